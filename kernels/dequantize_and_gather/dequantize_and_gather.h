/* SPDX-License-Identifier: Apache-2.0 */
/*
 * dequantize_and_gather, private side: variants, launch geometry, argument check.  The contract is
 * in steptape/kernels_attention.h.
 */
#ifndef ST_KERNELS_DEQUANTIZE_AND_GATHER_H
#define ST_KERNELS_DEQUANTIZE_AND_GATHER_H

#include <stddef.h>

#include "kernels/registry.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { ST_GATHER_VARIANTS = 3, ST_GATHER_DEFAULT = 3 };

extern const struct st_kernel_variant st_dequantize_and_gather_variants[ST_GATHER_VARIANTS];

enum {
    ST_GATHER_ROPE = 64,
    ST_GATHER_MLA_QUANTISED = 448, /* e4m3 values of an entry, in blocks of 64 */
    ST_GATHER_V32_QUANTISED = 512, /* in blocks of 128 */
    ST_GATHER_V32_SCALES = 512,    /* bytes before the four scales */
    ST_GATHER_V32_ROPE = 528       /* bytes before the bf16 part */
};

/* Values of a row. */
static inline int32_t st_gather_width(int32_t format) {
    return format == STEPTAPE_KV_FP8_V32 ? ST_GATHER_V32_QUANTISED + ST_GATHER_ROPE
                                         : ST_GATHER_MLA_QUANTISED + ST_GATHER_ROPE;
}

/* The values of an entry of a page of either format as bf16, st_gather_width(format) of them; what
 * every reference that reads entries goes by. */
void st_gather_entry(uint16_t *out, const uint8_t *page, int32_t block_size, int64_t entry,
                     int32_t format);

struct st_gather_geometry {
    unsigned int variant; /* resolved, 1..n */
    int32_t threads;
    int32_t rows_per_thread; /* that a thread has under way at once: 1 or 2 */
    int32_t rows_per_block;
    int64_t blocks_per_request; /* grid x; grid y is num_reqs */
};

/* STEPTAPE_ERR_UNSUPPORTED when args->variant does not serve these strides and alignments. */
int st_gather_geometry(const struct steptape_dequantize_and_gather_args *args,
                       struct st_gather_geometry *out);

int st_dequantize_and_gather_check(const struct steptape_dequantize_and_gather_args *args);

/* The device side of a launch: args are checked, there is work. */
int st_dequantize_and_gather_cuda(const struct steptape_dequantize_and_gather_args *args,
                                  const struct st_gather_geometry *geometry, void *stream);

#ifdef __cplusplus
}
#endif
#endif
