/* SPDX-License-Identifier: Apache-2.0 */
/*
 * compress_fused on the host: variants, argument check, geometry, cost, launcher.
 */
#include "kernels/compress_fused/compress_fused.h"

#include "kernels/compress_norm_rope_store/compress_norm_rope_store.h"
#include "kernels/device.h"

const struct st_kernel_variant st_compress_fused_variants[ST_FUSED_VARIANTS] = {
    {1,
     1,
     {"steptape_compress_fused_v1", NULL},
     "any shape: one block of 256 a token, a thread a channel walks the window"},
};

int st_compress_fused_check(const struct steptape_compress_fused_args *args) {
    if (args == NULL || args->num_tokens < 0 || args->num_tokens > INT32_MAX ||
        args->head_dim < 1 || args->ratio < 1 || args->block_size < 1 || args->kv_block_size < 1 ||
        (args->overlap != 0 && args->overlap != 1) || args->block_table_stride < 0 ||
        args->cos_sin_stride < args->rope_dim || !(args->eps >= 0.0f) ||
        (args->weight_dtype != STEPTAPE_FP32 && args->weight_dtype != STEPTAPE_BF16) ||
        (args->format != STEPTAPE_COMPRESS_FP8_DS_MLA &&
         args->format != STEPTAPE_COMPRESS_INDEXER_FP8) ||
        (args->list != NULL && args->list_count == NULL) || args->variant > ST_FUSED_VARIANTS)
        return STEPTAPE_ERR_ARGUMENT;
    int64_t row = (args->overlap ? 4 : 2) * (int64_t)args->head_dim;
    int64_t entry = st_compress_fused_entry_bytes(args->format);
    if (args->state_row_stride < row ||
        args->state_page_stride < args->block_size * args->state_row_stride ||
        args->kv_page_stride_bytes < args->kv_block_size * entry)
        return STEPTAPE_ERR_ARGUMENT;
    int32_t head_dim =
        args->format == STEPTAPE_COMPRESS_INDEXER_FP8 ? ST_FUSED_INDEXER_DIM : ST_NORM_HEAD_DIM;
    if (args->head_dim != head_dim || args->rope_dim != ST_NORM_ROPE_DIM)
        return STEPTAPE_ERR_UNSUPPORTED;
    return STEPTAPE_OK;
}

int st_compress_fused_has_pointers(const struct steptape_compress_fused_args *args) {
    return args->state_cache != NULL && args->positions != NULL && args->slot_mapping != NULL &&
           args->kv_slot_mapping != NULL && args->token_to_req != NULL &&
           args->block_table != NULL && args->weight != NULL && args->cos_sin_cache != NULL &&
           args->kv_cache != NULL;
}

int st_compress_fused_geometry(const struct steptape_compress_fused_args *args,
                               struct st_compress_fused_geometry *out) {
    int64_t wave = 4 * (int64_t)st_device_facts().multiprocessors;
    out->variant = 1;
    out->threads = 256;
    out->smem_bytes = 2 * 8 * 4;
    out->group_blocks = 1;
    out->tokens_per_group = 1;
    out->blocks = args->num_tokens;
    if (args->list != NULL && out->blocks > wave)
        out->blocks = wave;
    return STEPTAPE_OK;
}

int steptape_compress_fused(const struct steptape_compress_fused_args *args, void *stream) {
    int rc = st_compress_fused_check(args);
    if (rc != STEPTAPE_OK || args->num_tokens == 0)
        return rc;
    if (!st_compress_fused_has_pointers(args))
        return STEPTAPE_ERR_ARGUMENT;
    struct st_compress_fused_geometry geometry;
    rc = st_compress_fused_geometry(args, &geometry);
    if (rc != STEPTAPE_OK)
        return rc;
#ifdef ST_KERNELS_CUDA
    return st_compress_fused_cuda(args, &geometry, stream);
#else
    (void)stream;
    return STEPTAPE_ERR_UNAVAILABLE;
#endif
}

/* Bytes and operations of what the contract asks for, whatever the variant. */
static void count_work(const struct steptape_compress_fused_args *args,
                       const struct steptape_token_counts *counts, struct steptape_cost *cost) {
    uint64_t stored = (uint64_t)counts->stored;
    uint64_t dim = (uint64_t)args->head_dim;
    uint64_t rope = (uint64_t)args->rope_dim;
    uint64_t window = (args->overlap ? 2 : 1) * (uint64_t)args->ratio;
    uint64_t block_size = (uint64_t)args->block_size;
    uint64_t table_entries = (window + block_size - 1) / block_size;
    uint64_t weight_bytes = dim * (args->weight_dtype == STEPTAPE_BF16 ? 2 : 4);
    uint64_t quantised = args->format == STEPTAPE_COMPRESS_INDEXER_FP8 ? dim : dim - rope;
    if (args->list != NULL)
        cost->read_bytes = 4 + 4 * (uint64_t)counts->entries + 24 * (uint64_t)counts->entries;
    else
        cost->read_bytes = 8 * (uint64_t)args->num_tokens + 8 * (uint64_t)counts->mapped +
                           8 * (uint64_t)counts->boundary;
    cost->read_bytes += stored * (4 + 4 * table_entries + window * dim * 8 + 4 * rope) +
                        (stored > 0 ? weight_bytes : 0);
    cost->written_bytes = stored * (uint64_t)st_compress_fused_entry_bytes(args->format);
    /* pool: compare, subtract, exponential, add, multiply-add a row, one division; norm: square,
     * add, two multiplies; RoPE 3 a channel; quantised: compare, scale, clamp */
    cost->flops = stored * (dim * (window * 6 + 1) + dim * 4 + 3 + rope * 3 + quantised * 4);
}

int steptape_compress_fused_cost(const struct steptape_compress_fused_args *args,
                                 const struct steptape_token_counts *counts,
                                 struct steptape_cost *out) {
    int rc = st_compress_fused_check(args);
    if (rc != STEPTAPE_OK)
        return rc;
    if (counts == NULL || out == NULL || counts->stored < 0 || counts->boundary < counts->stored ||
        counts->mapped < counts->boundary || counts->mapped > args->num_tokens ||
        (args->list != NULL &&
         (counts->entries < counts->stored || counts->entries > args->num_tokens)))
        return STEPTAPE_ERR_ARGUMENT;
    struct steptape_cost cost = {0};
    if (args->num_tokens > 0) {
        struct st_compress_fused_geometry geometry;
        rc = st_compress_fused_geometry(args, &geometry);
        if (rc != STEPTAPE_OK)
            return rc;
        count_work(args, counts, &cost);
        cost.launch_count = 1;
        cost.grid[0] = (uint32_t)geometry.blocks;
        cost.grid[1] = cost.grid[2] = 1;
        cost.block[0] = (uint32_t)geometry.threads;
        cost.block[1] = cost.block[2] = 1;
        cost.smem_bytes = geometry.smem_bytes;
        cost.block_count = (uint64_t)geometry.blocks;
        /* at best the stored tokens share as few groups of blocks as they can */
        uint64_t per_group = args->list != NULL ? 1 : (uint64_t)geometry.tokens_per_group;
        uint64_t groups = cost.block_count / (uint64_t)geometry.group_blocks;
        uint64_t busy = ((uint64_t)counts->stored + per_group - 1) / per_group;
        busy = busy > groups ? groups : busy;
        cost.idle_max_block_count = (groups - busy) * (uint64_t)geometry.group_blocks;
    }
    *out = cost;
    return STEPTAPE_OK;
}
