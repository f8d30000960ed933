/* SPDX-License-Identifier: Apache-2.0 */
/*
 * boundary_list on the host: variants, argument check, geometry, bytes.
 */
#include "kernels/boundary_list/boundary_list.h"

const struct st_kernel_variant st_boundary_list_variants[ST_BOUNDARY_LIST_VARIANTS] = {
    {1,
     1,
     {"steptape_boundary_list_v1", NULL},
     "one block of 1024 walks the tokens, counting by ballots"},
    {2,
     1,
     {"steptape_boundary_list_v2", "steptape_boundary_list_v2_few", NULL},
     "each warp takes a stretch of up to 256 tokens and reads it at once; one sum over warps"},
};

int st_boundary_list_check(const struct steptape_boundary_list_args *args) {
    if (args == NULL || args->num_tokens < 0 || args->num_tokens > INT32_MAX || args->ratio < 1 ||
        args->variant > ST_BOUNDARY_LIST_VARIANTS)
        return STEPTAPE_ERR_ARGUMENT;
    return 1; /* *count is always written */
}

void st_boundary_list_geometry(const struct steptape_boundary_list_args *args,
                               struct st_geometry *geometry) {
    geometry->variant = args->variant != 0                ? args->variant
                        : st_is_power_of_two(args->ratio) ? ST_BOUNDARY_LIST_DEFAULT
                                                          : 1;
    geometry->threads = 1024;
    geometry->smem_bytes = 4 * 32;
    if (geometry->variant > 1) {
        const int64_t warps = st_ceil_div(args->num_tokens, 32);
        geometry->threads = 32 * (uint32_t)(warps < 1 ? 1 : warps > 32 ? 32 : warps);
        geometry->smem_bytes = 2 * 4 * 32;
    }
}

static int boundary_list_bytes(const struct steptape_boundary_list_args *args,
                               const struct steptape_token_counts *counts,
                               struct steptape_cost *cost) {
    if (counts->mapped > args->num_tokens || counts->boundary > counts->mapped ||
        counts->stored > counts->boundary)
        return STEPTAPE_ERR_ARGUMENT;
    cost->read_bytes = 8 * (uint64_t)(args->num_tokens + counts->mapped + counts->boundary);
    cost->written_bytes = 4 * (uint64_t)counts->stored + 4;
    return STEPTAPE_OK;
}

ST_OPERATOR_HOST(boundary_list, args->count != NULL &&
                                    (args->num_tokens == 0 ||
                                     (args->list != NULL && args->positions != NULL &&
                                      args->slot_mapping != NULL && args->kv_slot_mapping != NULL)))
