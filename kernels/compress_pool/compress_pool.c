/* SPDX-License-Identifier: Apache-2.0 */
/*
 * compress_pool on the host: variants, argument check, geometry, cost, launcher.
 */
#include "kernels/compress_pool/compress_pool.h"

const struct st_kernel_variant st_compress_pool_variants[ST_POOL_VARIANTS] = {
    {1,
     1,
     {"steptape_compress_pool_v1", NULL, NULL},
     "any shape: one block a token, a thread a channel walks the window"},
    {2,
     1,
     {"steptape_compress_pool_v2", NULL, NULL},
     "c128 as upstream: a block for each token and 64 columns, 8 warps of 16 rows"},
    {3,
     1,
     {"steptape_compress_pool_v3", NULL, NULL},
     "c128: 16-byte loads, a block looks at several tokens, tile width by token count"},
    {4,
     1,
     {"steptape_compress_pool_v4", NULL, NULL},
     "c128: more tokens a block, the next token's scores are read before this one is merged"},
    {5,
     1,
     {"steptape_compress_pool_v5", "steptape_compress_pool_v5_keep", NULL},
     "v4 with 128 columns a block: a warp reads 512 bytes of a row, fewer blocks"},
};

int st_compress_pool_check(const struct steptape_compress_pool_args *args) {
    if (args == NULL || args->num_tokens < 0 || args->num_tokens > INT32_MAX ||
        args->head_dim < 1 || args->ratio < 1 || args->block_size < 1 ||
        (args->overlap != 0 && args->overlap != 1) || args->pooled_stride < args->head_dim ||
        args->block_table_stride < 0 || args->variant > ST_POOL_VARIANTS || args->flags != 0)
        return STEPTAPE_ERR_ARGUMENT;
    int64_t row = (args->overlap ? 4 : 2) * (int64_t)args->head_dim;
    if (args->state_row_stride < row ||
        args->state_page_stride < args->block_size * args->state_row_stride)
        return STEPTAPE_ERR_ARGUMENT;
    return STEPTAPE_OK;
}

/* Variants from 2 on know c128 of the model's own shape only. */
static int is_c128(const struct steptape_compress_pool_args *args) {
    return args->overlap == 0 && args->ratio == 128 && args->head_dim == 512 &&
           args->block_size == 8;
}

static unsigned int resolve(const struct steptape_compress_pool_args *args) {
    if (args->variant != 0)
        return args->variant;
    if (!is_c128(args))
        return 1;
    return args->num_tokens <= ST_POOL_FEW_TOKENS ? 3 : ST_POOL_DEFAULT;
}

int steptape_compress_pool(const struct steptape_compress_pool_args *args, void *stream) {
    int rc = st_compress_pool_check(args);
    if (rc != STEPTAPE_OK)
        return rc;
    if (args->num_tokens == 0)
        return STEPTAPE_OK;
    if (args->state_cache == NULL || args->positions == NULL || args->slot_mapping == NULL ||
        args->kv_slot_mapping == NULL || args->token_to_req == NULL || args->block_table == NULL ||
        args->pooled == NULL)
        return STEPTAPE_ERR_ARGUMENT;
    if (args->variant > 1 && !is_c128(args))
        return STEPTAPE_ERR_UNSUPPORTED;
#ifdef ST_KERNELS_CUDA
    return st_compress_pool_cuda(args, resolve(args), stream);
#else
    (void)stream;
    return STEPTAPE_ERR_UNAVAILABLE;
#endif
}

void st_compress_pool_geometry(const struct steptape_compress_pool_args *args, unsigned int variant,
                               struct st_compress_pool_geometry *out) {
    out->tokens_per_block = 1;
    out->smem_bytes = 0;
    out->tile_log2 = 9;
    out->threads = 256;
    if (variant == 2) {
        out->tile_log2 = 6;
        out->smem_bytes = 3 * 8 * 64 * 4;
    } else if (variant == 3) {
        out->tile_log2 = args->num_tokens <= 4 ? 4 : args->num_tokens <= 16 ? 5 : 6;
        out->tokens_per_block = args->num_tokens <= 32 ? 1 : args->num_tokens <= 512 ? 2 : 4;
        out->smem_bytes = 2 * 3 * 8 * 64 * 4;
    } else if (variant == 4) {
        /* about 256 blocks: two on each of 132 multiprocessors, as many as run at once; with
         * very many tokens more blocks, which even out */
        int64_t tokens = (args->num_tokens + 31) / 32;
        out->tile_log2 = 6;
        out->tokens_per_block = tokens > 16 ? 16 : (int32_t)tokens;
        out->smem_bytes = 2 * 3 * 8 * 64 * 4;
    } else if (variant == 5) {
        /* about 256 blocks again, then more, then as many tokens as a warp has lanes */
        int64_t tokens = (args->num_tokens + 63) / 64;
        int64_t many = (args->num_tokens + 127) / 128;
        tokens = tokens > 8 ? 8 : tokens;
        tokens = many > tokens ? many : tokens;
        out->tile_log2 = 7;
        out->tokens_per_block = tokens > 32 ? 32 : (int32_t)tokens;
        out->smem_bytes = 2 * 3 * 8 * 128 * 4;
    }
    int64_t groups = (args->num_tokens + out->tokens_per_block - 1) / out->tokens_per_block;
    out->blocks = groups << (9 - out->tile_log2);
}

uint64_t steptape_compress_pool_scratch_bytes(int64_t num_tokens, int32_t head_dim) {
    if (num_tokens < 0 || head_dim < 0)
        return 0;
    return 4 * (uint64_t)num_tokens * (uint64_t)head_dim;
}

int steptape_compress_pool_cost(const struct steptape_compress_pool_args *args,
                                const struct steptape_token_counts *counts,
                                struct steptape_cost *out) {
    int rc = st_compress_pool_check(args);
    if (rc != STEPTAPE_OK)
        return rc;
    if (counts == NULL || out == NULL || counts->stored < 0 || counts->boundary < counts->stored ||
        counts->mapped < counts->boundary || counts->mapped > args->num_tokens)
        return STEPTAPE_ERR_ARGUMENT;
    struct steptape_cost cost = {0};
    if (args->num_tokens > 0) {
        struct st_compress_pool_geometry geometry;
        st_compress_pool_geometry(args, resolve(args), &geometry);
        uint64_t tokens = (uint64_t)args->num_tokens;
        uint64_t stored = (uint64_t)counts->stored;
        uint64_t dim = (uint64_t)args->head_dim;
        uint64_t window = (args->overlap ? 2 : 1) * (uint64_t)args->ratio;
        uint64_t block_size = (uint64_t)args->block_size;
        uint64_t table_entries = (window + block_size - 1) / block_size;
        cost.read_bytes = 8 * tokens + 8 * (uint64_t)counts->mapped +
                          8 * (uint64_t)counts->boundary +
                          stored * (4 + 4 * table_entries + window * dim * 8);
        cost.written_bytes = 4 * dim * stored;
        /* a row: compare, subtract, exponential, add, multiply-add; a channel: one division */
        cost.flops = stored * dim * (window * 6 + 1);
        cost.launch_count = 1;
        cost.grid[0] = (uint32_t)geometry.blocks;
        cost.grid[1] = cost.grid[2] = 1;
        cost.block[0] = (uint32_t)geometry.threads;
        cost.block[1] = cost.block[2] = 1;
        cost.smem_bytes = geometry.smem_bytes;
        cost.block_count = (uint64_t)geometry.blocks;
        /* at best the stored tokens share as few blocks as they can */
        uint64_t groups = (tokens + (uint64_t)geometry.tokens_per_block - 1) /
                          (uint64_t)geometry.tokens_per_block;
        uint64_t busy = (stored + (uint64_t)geometry.tokens_per_block - 1) /
                        (uint64_t)geometry.tokens_per_block;
        cost.idle_max_block_count = (groups - busy) * (cost.block_count / groups);
        cost.scratch_bytes = steptape_compress_pool_scratch_bytes(args->num_tokens, args->head_dim);
    }
    *out = cost;
    return STEPTAPE_OK;
}
