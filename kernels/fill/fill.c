/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fill on the host: variants, argument check, geometry, bytes.
 */
#include "kernels/fill/fill.h"

const struct st_kernel_variant st_fill_variants[ST_FILL_VARIANTS] = {
    {1, 1, {"steptape_fill_v1", NULL}, "one word a thread, a division for its row"},
};

int st_fill_check(const struct steptape_fill_args *args) {
    if (args == NULL || args->rows < 0 || args->columns < 0 || args->stride < args->columns ||
        args->variant > ST_FILL_VARIANTS)
        return STEPTAPE_ERR_ARGUMENT;
    return args->rows > 0 && args->columns > 0;
}

void st_fill_geometry(const struct steptape_fill_args *args, struct st_geometry *geometry) {
    int64_t blocks = st_ceil_div(args->rows * args->columns, 256);
    geometry->variant = args->variant != 0 ? args->variant : ST_FILL_DEFAULT;
    geometry->threads = 256;
    geometry->grid[0] = (uint32_t)(blocks < 1 << 20 ? blocks : 1 << 20);
}

static int fill_bytes(const struct steptape_fill_args *args,
                      const struct steptape_token_counts *counts, struct steptape_cost *cost) {
    (void)counts;
    cost->written_bytes = 4 * (uint64_t)args->rows * (uint64_t)args->columns;
    return STEPTAPE_OK;
}

ST_OPERATOR_HOST(fill, args->out != NULL)
