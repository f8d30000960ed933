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
    {2,
     1,
     {"steptape_compress_fused_v2_c4", "steptape_compress_fused_v2_indexer", NULL},
     "c4 and the indexer: a thread has four channels and all eight rows of them"},
    {3,
     1,
     {"steptape_compress_fused_v3", NULL},
     "c128: one block of 512 a token, two pages at a time"},
    {4,
     1,
     {"steptape_compress_fused_v4", NULL},
     "c128: a cluster of eight blocks a token, 64 columns each (sm_90 on)"},
};

int st_compress_fused_check(const struct steptape_compress_fused_args *args) {
    if (args == NULL || args->num_tokens < 0 || args->num_tokens > INT32_MAX ||
        args->head_dim < 1 || args->ratio < 1 || args->block_size < 1 || args->kv_block_size < 1 ||
        (args->overlap != 0 && args->overlap != 1) || args->block_table_stride < 0 ||
        args->cos_sin_stride < args->rope_dim || !(args->eps >= 0.0f) ||
        (args->weight_dtype != STEPTAPE_FP32 && args->weight_dtype != STEPTAPE_BF16) ||
        (args->format != STEPTAPE_COMPRESS_FP8_DS_MLA &&
         args->format != STEPTAPE_COMPRESS_INDEXER_FP8) ||
        (args->list != NULL && args->list_count == NULL) || args->variant > ST_FUSED_VARIANTS ||
        (args->flags & ~(STEPTAPE_LAUNCH_EARLY | STEPTAPE_LAUNCH_AFTER_SAVE)) != 0)
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

static int is_aligned(const void *pointer, uintptr_t bytes) {
    return (uintptr_t)pointer % bytes == 0;
}

/* Whether 16-byte reads of states and 4- and 8-byte accesses of the rest are right. */
static int is_vectorisable(const struct steptape_compress_fused_args *args) {
    return args->state_page_stride % 4 == 0 && args->state_row_stride % 4 == 0 &&
           args->state_row_stride <= INT32_MAX / 8 && args->cos_sin_stride % 2 == 0 &&
           args->kv_page_stride_bytes % 8 == 0 && is_aligned(args->state_cache, 16) &&
           is_aligned(args->cos_sin_cache, 8) && is_aligned(args->kv_cache, 8) &&
           is_aligned(args->weight, args->weight_dtype == STEPTAPE_BF16 ? 8 : 16);
}

static int is_c4(const struct steptape_compress_fused_args *args) {
    return args->overlap == 1 && args->ratio == 4 && args->block_size == 4;
}

static int is_c128(const struct steptape_compress_fused_args *args) {
    return args->overlap == 0 && args->ratio == 128 && args->block_size == 8 &&
           args->format == STEPTAPE_COMPRESS_FP8_DS_MLA;
}

/* Groups of v4 at once: multiprocessors lie in groups of unequal size and a cluster lies in one
 * of these, so of an H200's 264 places for blocks 30 clusters find theirs, not 33.  One that finds
 * none begins when all others end; so a tenth is left free. */
static int64_t cluster_groups(struct st_device_facts device) {
    int64_t groups = 2 * (int64_t)device.multiprocessors * 9 / 10 / 8;
    return groups > 0 ? groups : 1;
}

/* The variant that runs, or 0 when the one that is asked for does not serve this. */
static unsigned int resolve(const struct steptape_compress_fused_args *args,
                            struct st_device_facts device) {
    int fits = is_vectorisable(args);
    int c128 = fits && is_c128(args);
    int serves[ST_FUSED_VARIANTS + 1] = {0, 1, fits && is_c4(args), c128,
                                         c128 && device.generation >= 90};
    if (args->variant != 0)
        return serves[args->variant] ? args->variant : 0;
    return serves[4] ? 4 : serves[3] ? 3 : serves[2] ? 2 : 1;
}

/* Shares the tokens out among at most `most` groups, or more of 32 tokens each: more than a warp
 * has lanes no group looks at.  With a list, `most` is all: a group takes what comes. */
static void share_out(const struct steptape_compress_fused_args *args, int64_t most,
                      struct st_compress_fused_geometry *out) {
    int64_t groups = args->num_tokens < most ? args->num_tokens : most;
    if (args->list == NULL && groups * 32 < args->num_tokens)
        groups = (args->num_tokens + 31) / 32;
    out->groups = (int32_t)groups;
    out->tokens_per_group = (int32_t)(args->num_tokens / groups);
    out->groups_with_more = (int32_t)(args->num_tokens % groups);
}

int st_compress_fused_geometry(const struct steptape_compress_fused_args *args,
                               struct st_compress_fused_geometry *out) {
    struct st_device_facts device = st_device_facts();
    int64_t wave = 4 * (int64_t)device.multiprocessors;
    *out = (struct st_compress_fused_geometry){.variant = resolve(args, device), .group_blocks = 1};
    switch (out->variant) {
    case 0:
        return STEPTAPE_ERR_UNSUPPORTED;
    case 1:
        out->threads = 256;
        out->smem_bytes = ST_FUSED_V1_SMEM;
        out->blocks = args->num_tokens;
        if (args->list != NULL && out->blocks > wave)
            out->blocks = wave;
        out->groups = (int32_t)out->blocks;
        out->tokens_per_group = 1;
        break;
    case 2: {
        int64_t groups_per_block = args->format == STEPTAPE_COMPRESS_INDEXER_FP8 ? 4 : 1;
        out->threads = 128;
        out->smem_bytes = groups_per_block == 1 ? ST_FUSED_V2_SMEM : 0;
        share_out(args, wave * groups_per_block, out);
        out->blocks = (out->groups + groups_per_block - 1) / groups_per_block;
        break;
    }
    case 3:
        out->threads = 512;
        out->smem_bytes = ST_FUSED_V3_SMEM;
        share_out(args, device.multiprocessors, out);
        out->blocks = out->groups;
        break;
    default:
        out->threads = 256;
        out->smem_bytes = ST_FUSED_V4_SMEM;
        out->group_blocks = 8;
        share_out(args, cluster_groups(device), out);
        out->blocks = 8 * (int64_t)out->groups;
        break;
    }
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

/* How many stored tokens one block (or cluster) may have, so that the others have none. */
static int64_t most_of_a_block(const struct steptape_compress_fused_args *args,
                               const struct st_compress_fused_geometry *geometry) {
    int64_t tokens = geometry->tokens_per_group + (geometry->groups_with_more > 0);
    int64_t groups_per_block =
        geometry->variant == 2 && args->format == STEPTAPE_COMPRESS_INDEXER_FP8 ? 4 : 1;
    return groups_per_block * (args->list != NULL ? 1 : tokens);
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
        uint64_t most = (uint64_t)most_of_a_block(args, &geometry);
        uint64_t busy = ((uint64_t)counts->stored + most - 1) / most;
        busy *= (uint64_t)geometry.group_blocks;
        cost.idle_max_block_count = busy > cost.block_count ? 0 : cost.block_count - busy;
    }
    *out = cost;
    return STEPTAPE_OK;
}
