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

/* The default depends on the shape: 2 for c4 and the indexer, 4 for c128 (3 without clusters), 1
 * for what these do not serve. */
enum { ST_FUSED_VARIANTS = 4, ST_FUSED_DEFAULT = 4 };

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

/* Static shared memory of the variants. */
enum {
    ST_FUSED_V1_SMEM = 64,
    ST_FUSED_V2_SMEM = 32,
    ST_FUSED_V3_SMEM = 49152,
    ST_FUSED_V4_SMEM = 24688
};

/* How a call is launched: a function of sizes, of whether there is a list, and of the device. */
struct st_compress_fused_geometry {
    unsigned int variant; /* resolved, 1..n */
    int32_t threads;
    int64_t blocks;
    uint32_t smem_bytes;
    int32_t groups;           /* that share the tokens out */
    int32_t group_blocks;     /* blocks of a group: v4's are a cluster */
    int32_t tokens_per_group; /* without a list: neighbours that a group looks at, at most 32; */
    int32_t groups_with_more; /* the first so many groups look at one more */
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
