/* SPDX-License-Identifier: Apache-2.0 */
/*
 * global_topk_indices on the host: variants, argument check, geometry, bytes.
 */
#include "kernels/global_topk_indices/global_topk_indices.h"

const struct st_kernel_variant st_global_topk_indices_variants[ST_GLOBAL_TOPK_VARIANTS] = {
    {1,
     1,
     {"steptape_global_topk_indices_v1", NULL},
     "one block of 256 a token, one entry a thread, counted in shared memory"},
    {2,
     1,
     {"steptape_global_topk_indices_v2", NULL},
     "one block a token, four entries a thread, 16 bytes a load and store, counted by warps"},
};

int st_global_topk_indices_check(const struct steptape_global_topk_indices_args *args) {
    if (args == NULL || args->num_tokens < 0 || args->num_tokens > INT32_MAX || args->k < 0 ||
        args->block_size < 1 || args->out_stride < args->k || args->topk_stride < args->k ||
        args->block_table_stride < 0 || args->variant > ST_GLOBAL_TOPK_VARIANTS)
        return STEPTAPE_ERR_ARGUMENT;
    return args->num_tokens > 0;
}

int st_global_topk_indices_is_fast(const struct steptape_global_topk_indices_args *args) {
    return args->k % 4 == 0 && st_is_power_of_two(args->block_size) &&
           st_rows_are_aligned(args->out, args->out_stride) &&
           st_rows_are_aligned(args->topk_indices, args->topk_stride);
}

void st_global_topk_indices_geometry(const struct steptape_global_topk_indices_args *args,
                                     struct st_geometry *geometry) {
    geometry->variant = args->variant != 0                     ? args->variant
                        : st_global_topk_indices_is_fast(args) ? ST_GLOBAL_TOPK_DEFAULT
                                                               : 1;
    geometry->threads = 256;
    geometry->grid[0] = (uint32_t)args->num_tokens;
    geometry->smem_bytes = 4;
    if (geometry->variant > 1) {
        const int64_t warps = st_ceil_div(args->k, 128);
        geometry->threads = 32 * (uint32_t)(warps < 1 ? 1 : warps > 32 ? 32 : warps);
        geometry->smem_bytes = 4 * 32;
    }
}

static int global_topk_indices_bytes(const struct steptape_global_topk_indices_args *args,
                                     const struct steptape_token_counts *counts,
                                     struct steptape_cost *cost) {
    const uint64_t tokens = (uint64_t)args->num_tokens, list = 4 * tokens * (uint64_t)args->k;
    if (4 * (uint64_t)counts->entries > list)
        return STEPTAPE_ERR_ARGUMENT;
    /* slot and request; the list; a block id an entry, for entries lie where they like */
    cost->read_bytes = 12 * tokens + list + 4 * (uint64_t)counts->entries;
    cost->written_bytes = list + 4 * tokens;
    return STEPTAPE_OK;
}

ST_OPERATOR_HOST(global_topk_indices,
                 args->lens != NULL && args->slot_mapping != NULL && args->token_to_req != NULL &&
                     (args->k == 0 || (args->out != NULL && args->topk_indices != NULL &&
                                       args->block_table != NULL)))
