/* SPDX-License-Identifier: Apache-2.0 */
/*
 * compress_pool, private side: variants, launch geometry, argument check.  The contract is in
 * steptape/kernels.h.
 */
#ifndef ST_KERNELS_COMPRESS_POOL_H
#define ST_KERNELS_COMPRESS_POOL_H

#include <stddef.h>

#include "kernels/registry.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { ST_POOL_VARIANTS = 5, ST_POOL_DEFAULT = 5 };

extern const struct st_kernel_variant st_compress_pool_variants[ST_POOL_VARIANTS];

/* Up to so many tokens the default is variant 3: narrower tiles, more blocks. */
enum { ST_POOL_FEW_TOKENS = 32 };

/* Up to so many tokens (34 MB of states) variant 5 lets the L2 cache keep what it reads. */
enum { ST_POOL_KEEP_TOKENS = 64 };

/* Grid, block threads and static shared memory of a variant (resolved, 1..n). */
struct st_compress_pool_geometry {
    int64_t blocks;
    int32_t threads;
    uint32_t smem_bytes;
    int32_t tokens_per_block; /* that one block looks at */
    int32_t tile_log2;        /* columns of a block: 2^tile_log2 */
};
void st_compress_pool_geometry(const struct steptape_compress_pool_args *args, unsigned int variant,
                               struct st_compress_pool_geometry *out);

int st_compress_pool_check(const struct steptape_compress_pool_args *args);

/* The device side of a launch: args are checked, variant is resolved (1..n), there is work. */
int st_compress_pool_cuda(const struct steptape_compress_pool_args *args, unsigned int variant,
                          void *stream);

#ifdef __cplusplus
}
#endif
#endif
