/* SPDX-License-Identifier: Apache-2.0 */
/*
 * compress_norm_rope_store, private side: variants, launch geometry, argument check, the shape of
 * a cache entry.  The contract is in steptape/kernels.h.
 */
#ifndef ST_KERNELS_COMPRESS_NORM_ROPE_STORE_H
#define ST_KERNELS_COMPRESS_NORM_ROPE_STORE_H

#include <stddef.h>

#include "kernels/registry.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { ST_NORM_VARIANTS = 3, ST_NORM_DEFAULT = 3 };

extern const struct st_kernel_variant st_compress_norm_rope_store_variants[ST_NORM_VARIANTS];

enum {
    ST_NORM_HEAD_DIM = 512,
    ST_NORM_ROPE_DIM = 64,
    ST_NORM_NOPE_DIM = 448,
    ST_NORM_QUANT_BLOCK = 64,
    ST_NORM_QUANT_BLOCKS = 7
};

void st_compress_norm_rope_store_geometry(const struct steptape_compress_norm_rope_store_args *args,
                                          unsigned int variant, int64_t *blocks, int *threads,
                                          uint32_t *smem_bytes, int *tokens_per_block);

/* Up to so many tokens the default is variant 3, above it variant 2: fewer blocks. */
enum { ST_NORM_FEW_TOKENS = 256 };

int st_compress_norm_rope_store_check(const struct steptape_compress_norm_rope_store_args *args);

/* Norm and RoPE of one row, the reference: y = norm(x) * weight, its last rope_dim turned. */
struct st_norm_rope {
    const void *weight;
    const float *cos_sin_row; /* rope_dim / 2 cos, then as many sin */
    int head_dim, rope_dim;
    int weight_dtype; /* enum steptape_dtype */
    float eps;
};
void st_norm_rope_ref(const struct st_norm_rope *norm, const float *x, float *y);

/* ceil(log2(scale)) of a normal positive number. */
int st_scale_exponent(float scale);

/* The device side of a launch: args are checked, variant is resolved (1..n), there is work. */
int st_compress_norm_rope_store_cuda(const struct steptape_compress_norm_rope_store_args *args,
                                     unsigned int variant, void *stream);

#ifdef __cplusplus
}
#endif
#endif
