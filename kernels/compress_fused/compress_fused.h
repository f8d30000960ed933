/* SPDX-License-Identifier: Apache-2.0 */
/*
 * compress_fused, private side: variants, launch geometry, argument check.  The contract is in
 * steptape/kernels.h.
 */
#ifndef ST_KERNELS_COMPRESS_FUSED_H
#define ST_KERNELS_COMPRESS_FUSED_H

#include <stddef.h>

#include "kernels/registry.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { ST_FUSED_VARIANTS = 1, ST_FUSED_DEFAULT = 1 };

extern const struct st_kernel_variant st_compress_fused_variants[ST_FUSED_VARIANTS];

enum {
    ST_FUSED_INDEXER_DIM = 128,
    ST_FUSED_INDEXER_ENTRY_BYTES = ST_FUSED_INDEXER_DIM + 4 /* e4m3, then an fp32 scale */
};

/* Bytes of an entry of a format. */
static inline int32_t st_compress_fused_entry_bytes(int32_t format) {
    return format == STEPTAPE_COMPRESS_INDEXER_FP8 ? ST_FUSED_INDEXER_ENTRY_BYTES
                                                   : STEPTAPE_KV_ENTRY_BYTES;
}

/* How a call is launched: a function of sizes, of whether there is a list, and of the device. */
struct st_compress_fused_geometry {
    unsigned int variant; /* resolved, 1..n */
    int32_t threads;
    int64_t blocks;
    uint32_t smem_bytes;
    int32_t group_blocks;     /* blocks that do a token together */
    int32_t tokens_per_group; /* without a list: neighbouring tokens that a group looks at */
};

/*
 * STEPTAPE_ERR_UNSUPPORTED when args->variant does not serve this shape, alignment or device.  The
 * cost and the launcher both ask this.
 */
int st_compress_fused_geometry(const struct steptape_compress_fused_args *args,
                               struct st_compress_fused_geometry *out);

int st_compress_fused_check(const struct steptape_compress_fused_args *args);

/* Whether pointers are there that a call with tokens needs. */
int st_compress_fused_has_pointers(const struct steptape_compress_fused_args *args);

/* The device side of a launch: args are checked, there is work. */
int st_compress_fused_cuda(const struct steptape_compress_fused_args *args,
                           const struct st_compress_fused_geometry *geometry, void *stream);

#ifdef __cplusplus
}
#endif
#endif
