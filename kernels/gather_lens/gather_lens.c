/* SPDX-License-Identifier: Apache-2.0 */
/*
 * gather_lens on the host: variants, argument check, geometry, bytes.
 */
#include "kernels/gather_lens/gather_lens.h"

const struct st_kernel_variant st_gather_lens_variants[ST_GATHER_LENS_VARIANTS] = {
    {1, 1, {"steptape_gather_lens_v1", NULL}, "one thread a request"},
};

int st_gather_lens_check(const struct steptape_gather_lens_args *args) {
    if (args == NULL || args->num_reqs < 0 || args->window < 1 ||
        args->variant > ST_GATHER_LENS_VARIANTS)
        return STEPTAPE_ERR_ARGUMENT;
    return args->num_reqs > 0;
}

void st_gather_lens_geometry(const struct steptape_gather_lens_args *args,
                             struct st_geometry *geometry) {
    geometry->variant = args->variant != 0 ? args->variant : ST_GATHER_LENS_DEFAULT;
    geometry->threads = 128;
    geometry->grid[0] = (uint32_t)st_ceil_div(args->num_reqs, 128);
}

static int gather_lens_bytes(const struct steptape_gather_lens_args *args,
                             const struct steptape_token_counts *counts,
                             struct steptape_cost *cost) {
    (void)counts;
    cost->read_bytes = 4 * (2 * (uint64_t)args->num_reqs + 1);
    cost->written_bytes = 4 * (uint64_t)args->num_reqs;
    return STEPTAPE_OK;
}

ST_OPERATOR_HOST(gather_lens,
                 args->out != NULL && args->query_start_loc != NULL && args->seq_lens != NULL)
