/* SPDX-License-Identifier: Apache-2.0 */
/*
 * compressed_slot_mapping, private side: variants, launch geometry, argument check.  The contract
 * is in steptape/kernels.h.
 */
#ifndef ST_KERNELS_COMPRESSED_SLOT_MAPPING_H
#define ST_KERNELS_COMPRESSED_SLOT_MAPPING_H

#include <stddef.h>

#include "kernels/registry.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { ST_SLOT_MAPPING_VARIANTS = 2, ST_SLOT_MAPPING_DEFAULT = 2 };

extern const struct st_kernel_variant st_compressed_slot_mapping_variants[ST_SLOT_MAPPING_VARIANTS];

enum {
    ST_SLOT_MAPPING_THREADS = 256,       /* of a request's or a fill block */
    ST_SLOT_MAPPING_FILL_ELEMENTS = 2048 /* of out that one fill block covers */
};

/* 0 or a status; the launcher, the reference and the cost all start with it. */
/* Blocks that fill what belongs to no request. */
int64_t st_compressed_slot_mapping_fill_blocks(int64_t out_len);

/* log2 of the blocks that share a request in variant 2: a prefill may be the whole buffer. */
int st_compressed_slot_mapping_slices_log2(
    const struct steptape_compressed_slot_mapping_args *args);

int st_compressed_slot_mapping_check(const struct steptape_compressed_slot_mapping_args *args);

/* The device side of a launch: args are checked, variant is resolved (1..n), there is work. */
int st_compressed_slot_mapping_cuda(const struct steptape_compressed_slot_mapping_args *args,
                                    unsigned int variant, void *stream);

#ifdef __cplusplus
}
#endif
#endif
