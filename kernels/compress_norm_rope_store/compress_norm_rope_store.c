/* SPDX-License-Identifier: Apache-2.0 */
/*
 * compress_norm_rope_store on the host: variants, argument check, geometry, cost, launcher.
 */
#include "kernels/compress_norm_rope_store/compress_norm_rope_store.h"

const struct st_kernel_variant st_compress_norm_rope_store_variants[ST_NORM_VARIANTS] = {
    {1,
     1,
     {"steptape_compress_norm_rope_store_v1", NULL, NULL},
     "one block of 256 a token, two channels a thread, reductions in shared memory"},
    {2,
     1,
     {"steptape_compress_norm_rope_store_v2", NULL, NULL},
     "one warp a token, 16 channels a lane, shuffles only, 4- and 8-byte stores"},
    {3,
     1,
     {"steptape_compress_norm_rope_store_v3", NULL, NULL},
     "one block of 128 a token, four channels a thread, one barrier"},
};

int st_compress_norm_rope_store_check(const struct steptape_compress_norm_rope_store_args *args) {
    if (args == NULL || args->num_tokens < 0 || args->num_tokens > INT32_MAX || args->ratio < 1 ||
        args->kv_block_size < 1 || args->pooled_stride < args->head_dim ||
        args->cos_sin_stride < args->rope_dim ||
        args->kv_page_stride_bytes < (int64_t)args->kv_block_size * STEPTAPE_KV_ENTRY_BYTES ||
        (args->values != NULL && args->values_stride < args->head_dim) || !(args->eps >= 0.0f) ||
        (args->weight_dtype != STEPTAPE_FP32 && args->weight_dtype != STEPTAPE_BF16) ||
        args->variant > ST_NORM_VARIANTS || (args->flags & ~STEPTAPE_LAUNCH_AFTER_POOL) != 0)
        return STEPTAPE_ERR_ARGUMENT;
    if (args->head_dim != ST_NORM_HEAD_DIM || args->rope_dim != ST_NORM_ROPE_DIM)
        return STEPTAPE_ERR_UNSUPPORTED;
    return STEPTAPE_OK;
}

static unsigned int resolve(const struct steptape_compress_norm_rope_store_args *args) {
    if (args->variant != 0)
        return args->variant;
    return args->num_tokens <= ST_NORM_FEW_TOKENS ? ST_NORM_DEFAULT : 2;
}

int steptape_compress_norm_rope_store(const struct steptape_compress_norm_rope_store_args *args,
                                      void *stream) {
    int rc = st_compress_norm_rope_store_check(args);
    if (rc != STEPTAPE_OK)
        return rc;
    if (args->num_tokens == 0)
        return STEPTAPE_OK;
    if (args->pooled == NULL || args->positions == NULL || args->slot_mapping == NULL ||
        args->kv_slot_mapping == NULL || args->weight == NULL || args->cos_sin_cache == NULL ||
        args->kv_cache == NULL)
        return STEPTAPE_ERR_ARGUMENT;
#ifdef ST_KERNELS_CUDA
    return st_compress_norm_rope_store_cuda(args, resolve(args), stream);
#else
    (void)stream;
    return STEPTAPE_ERR_UNAVAILABLE;
#endif
}

void st_compress_norm_rope_store_geometry(const struct steptape_compress_norm_rope_store_args *args,
                                          unsigned int variant, int64_t *blocks, int *threads,
                                          uint32_t *smem_bytes, int *tokens_per_block) {
    if (variant == 1) {
        *tokens_per_block = 1;
        *threads = 256;
        *smem_bytes = (8 + 8) * 4;
    } else if (variant == 2) {
        *tokens_per_block = 4;
        *threads = 128;
        *smem_bytes = 0;
    } else {
        *tokens_per_block = 1;
        *threads = 128;
        *smem_bytes = 4 * 4;
    }
    *blocks = (args->num_tokens + *tokens_per_block - 1) / *tokens_per_block;
}

int steptape_compress_norm_rope_store_cost(
    const struct steptape_compress_norm_rope_store_args *args,
    const struct steptape_token_counts *counts, struct steptape_cost *out) {
    int rc = st_compress_norm_rope_store_check(args);
    if (rc != STEPTAPE_OK)
        return rc;
    if (counts == NULL || out == NULL || counts->stored < 0 || counts->boundary < counts->stored ||
        counts->mapped < counts->boundary || counts->mapped > args->num_tokens)
        return STEPTAPE_ERR_ARGUMENT;
    struct steptape_cost cost = {0};
    if (args->num_tokens > 0) {
        uint64_t tokens = (uint64_t)args->num_tokens;
        uint64_t stored = (uint64_t)counts->stored;
        uint64_t dim = ST_NORM_HEAD_DIM;
        uint64_t rope = ST_NORM_ROPE_DIM;
        uint64_t nope = ST_NORM_NOPE_DIM;
        uint64_t weight_bytes = dim * (args->weight_dtype == STEPTAPE_BF16 ? 2 : 4);
        int64_t blocks;
        int threads, per_block;
        st_compress_norm_rope_store_geometry(args, resolve(args), &blocks, &threads,
                                             &cost.smem_bytes, &per_block);
        cost.read_bytes = 8 * tokens + 8 * (uint64_t)counts->mapped +
                          8 * (uint64_t)counts->boundary + stored * (4 * dim + 4 * rope) +
                          (stored > 0 ? weight_bytes : 0);
        cost.written_bytes = stored * STEPTAPE_KV_ENTRY_BYTES;
        if (args->values != NULL)
            cost.written_bytes += stored * dim * 4;
        /* norm: square, add, two multiplies; rope: 3 a channel; nope: compare, scale, clamp */
        cost.flops = stored * (dim * 4 + 3 + rope * 3 + nope * 4);
        cost.launch_count = 1;
        cost.grid[0] = (uint32_t)blocks;
        cost.grid[1] = cost.grid[2] = 1;
        cost.block[0] = (uint32_t)threads;
        cost.block[1] = cost.block[2] = 1;
        cost.block_count = (uint64_t)blocks;
        cost.idle_max_block_count =
            (uint64_t)blocks - (stored + (uint64_t)per_block - 1) / (uint64_t)per_block;
    }
    *out = cost;
    return STEPTAPE_OK;
}
