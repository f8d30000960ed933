/* SPDX-License-Identifier: Apache-2.0 */
/*
 * swa_indices on the host: variants, argument check, geometry, bytes.
 */
#include "kernels/swa_indices/swa_indices.h"

const struct st_kernel_variant st_swa_indices_variants[ST_SWA_VARIANTS] = {
    {1, 1, {"steptape_swa_indices_v1", NULL}, "one block of 128 a token, one entry a thread"},
    {2,
     1,
     {"steptape_swa_indices_v2", NULL},
     "one warp a token, 16 bytes a store, each page looked up once"},
};

int st_swa_indices_check(const struct steptape_swa_indices_args *args) {
    if (args == NULL || args->num_tokens < 0 || args->num_tokens > INT32_MAX || args->window < 1 ||
        args->block_size < 1 || args->indices_stride < args->window ||
        args->block_table_stride < 0 || args->variant > ST_SWA_VARIANTS)
        return STEPTAPE_ERR_ARGUMENT;
    return args->num_tokens > 0;
}

int st_swa_indices_is_fast(const struct steptape_swa_indices_args *args) {
    return st_rows_are_aligned(args->indices, args->indices_stride) && args->window % 4 == 0 &&
           args->block_size >= 4 && st_is_power_of_two(args->block_size);
}

void st_swa_indices_geometry(const struct steptape_swa_indices_args *args,
                             struct st_geometry *geometry) {
    geometry->variant = args->variant != 0             ? args->variant
                        : st_swa_indices_is_fast(args) ? ST_SWA_DEFAULT
                                                       : 1;
    geometry->threads = 128;
    geometry->grid[0] = (uint32_t)args->num_tokens;
    if (geometry->variant > 1) {
        geometry->threads = 32 * ST_SWA_WARPS;
        geometry->grid[0] = (uint32_t)st_ceil_div(args->num_tokens, ST_SWA_WARPS);
    }
}

static int swa_indices_bytes(const struct steptape_swa_indices_args *args,
                             const struct steptape_token_counts *counts,
                             struct steptape_cost *cost) {
    const uint64_t tokens = (uint64_t)args->num_tokens, mapped = (uint64_t)counts->mapped;
    const uint64_t window = (uint64_t)args->window;
    if (mapped > tokens || (uint64_t)counts->entries > mapped * window)
        return STEPTAPE_ERR_ARGUMENT;
    /* slot; position and request of mapped ones; a block id for each page of a window, begun or not
     */
    cost->read_bytes =
        8 * tokens + 12 * mapped + 4 * (uint64_t)st_ceil_div(counts->entries, args->block_size);
    cost->written_bytes = 4 * tokens + 4 * mapped * window;
    return STEPTAPE_OK;
}

ST_OPERATOR_HOST(swa_indices, args->indices != NULL && args->lens != NULL &&
                                  args->positions != NULL && args->slot_mapping != NULL &&
                                  args->token_to_req != NULL && args->block_table != NULL)
