/* SPDX-License-Identifier: Apache-2.0 */
/*
 * save_partial_states on the host: variants, argument check, cost, launcher.
 */
#include "kernels/save_partial_states/save_partial_states.h"

const struct st_kernel_variant st_save_partial_states_variants[ST_SAVE_VARIANTS] = {
    {1,
     1,
     {"steptape_save_partial_states_v1", NULL, NULL},
     "one block of 128 a token, one float at a time, the slot read first"},
    {2,
     1,
     {"steptape_save_partial_states_v2", NULL, NULL},
     "16-byte accesses; the token's row is read while its slot and position are"},
    {3,
     1,
     {"steptape_save_partial_states_v3_w256", "steptape_save_partial_states_v3_w256_many",
      "steptape_save_partial_states_v3_w512", "steptape_save_partial_states_v3_w512_many",
      "steptape_save_partial_states_v3_w1024", "steptape_save_partial_states_v3_w1024_many", NULL},
     "v2 with width and sizes known to the compiler; many tokens: fewer threads a token"},
};

int st_save_partial_states_check(const struct steptape_save_partial_states_args *args) {
    if (args == NULL || args->num_tokens < 0 || args->width < 1 || args->ratio < 1 ||
        args->block_size < 1 || args->num_tokens > INT32_MAX || args->kv_stride < args->width ||
        args->score_stride < args->width || args->ape_stride < args->width ||
        args->state_row_stride < 2 * (int64_t)args->width ||
        args->state_page_stride < args->block_size * args->state_row_stride ||
        args->variant > ST_SAVE_VARIANTS)
        return STEPTAPE_ERR_ARGUMENT;
    return STEPTAPE_OK;
}

/* Variant 3 knows the compressors' own rows only. */
static unsigned int resolve(const struct steptape_save_partial_states_args *args) {
    if (args->variant != 0)
        return args->variant;
    int fixed = (args->width == 256 || args->width == 512 || args->width == 1024) &&
                (args->ratio & (args->ratio - 1)) == 0 &&
                (args->block_size & (args->block_size - 1)) == 0;
    return fixed ? ST_SAVE_DEFAULT : 2;
}

int steptape_save_partial_states(const struct steptape_save_partial_states_args *args,
                                 void *stream) {
    int rc = st_save_partial_states_check(args);
    if (rc != STEPTAPE_OK)
        return rc;
    if (args->num_tokens == 0)
        return STEPTAPE_OK;
    if (args->kv == NULL || args->score == NULL || args->ape == NULL || args->positions == NULL ||
        args->slot_mapping == NULL || args->state_cache == NULL)
        return STEPTAPE_ERR_ARGUMENT;
#ifdef ST_KERNELS_CUDA
    return st_save_partial_states_cuda(args, resolve(args), stream);
#else
    (void)stream;
    return STEPTAPE_ERR_UNAVAILABLE;
#endif
}

void st_save_partial_states_geometry(const struct steptape_save_partial_states_args *args,
                                     unsigned int variant, int64_t *blocks, int *threads,
                                     int *tokens_per_block) {
    *blocks = args->num_tokens;
    *threads = 128;
    *tokens_per_block = 1;
    if (variant == 1)
        return;
    int64_t many = args->width == 256 ? 2 * ST_SAVE_MANY_TOKENS : ST_SAVE_MANY_TOKENS;
    if (variant == 3 && args->num_tokens >= many) {
        *threads = args->width == 1024 ? 256 : 128;
        *tokens_per_block = args->width == 256 ? 4 : 2;
        *blocks = (args->num_tokens + *tokens_per_block - 1) / *tokens_per_block;
        return;
    }
    /* a thread for 16 bytes of each half of a row, whole warps */
    int64_t lanes = (args->width / 4 + 31) / 32 * 32;
    lanes = lanes < 32 ? 32 : lanes > 512 ? 512 : lanes;
    *threads = (int)lanes;
}

int steptape_save_partial_states_cost(const struct steptape_save_partial_states_args *args,
                                      const struct steptape_token_counts *counts,
                                      struct steptape_cost *out) {
    int rc = st_save_partial_states_check(args);
    if (rc != STEPTAPE_OK)
        return rc;
    if (counts == NULL || out == NULL || counts->mapped < 0 || counts->mapped > args->num_tokens)
        return STEPTAPE_ERR_ARGUMENT;
    struct steptape_cost cost = {0};
    if (args->num_tokens > 0) {
        uint64_t tokens = (uint64_t)args->num_tokens;
        uint64_t mapped = (uint64_t)counts->mapped;
        uint64_t width = (uint64_t)args->width;
        uint64_t ape_rows = mapped < (uint64_t)args->ratio ? mapped : (uint64_t)args->ratio;
        int64_t blocks;
        int threads, per_block;
        st_save_partial_states_geometry(args, resolve(args), &blocks, &threads, &per_block);
        cost.read_bytes = 8 * tokens + 8 * mapped + 8 * width * mapped + 4 * width * ape_rows;
        cost.written_bytes = 8 * width * mapped;
        cost.flops = width * mapped;
        cost.launch_count = 1;
        cost.grid[0] = (uint32_t)blocks;
        cost.grid[1] = cost.grid[2] = 1;
        cost.block[0] = (uint32_t)threads;
        cost.block[1] = cost.block[2] = 1;
        cost.block_count = (uint64_t)blocks;
        cost.idle_max_block_count =
            cost.block_count - (mapped + (uint64_t)per_block - 1) / (uint64_t)per_block;
    }
    *out = cost;
    return STEPTAPE_OK;
}
