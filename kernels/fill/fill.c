/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fill on the host: variants, argument check, geometry, bytes.
 */
#include "kernels/fill/fill.h"

const struct st_kernel_variant st_fill_variants[ST_FILL_VARIANTS] = {
    {1, 1, {"steptape_fill_v1", NULL}, "one word a thread, a division for its row"},
    {2,
     1,
     {"steptape_fill_v2", "steptape_fill_v2_rows", NULL},
     "two stores of 16 bytes a thread, 8 KiB a block; rows with gaps: a warp for up to 4 KiB"},
};

int st_fill_check(const struct steptape_fill_args *args) {
    if (args == NULL || args->rows < 0 || args->columns < 0 || args->stride < args->columns ||
        args->variant > ST_FILL_VARIANTS)
        return STEPTAPE_ERR_ARGUMENT;
    return args->rows > 0 && args->columns > 0;
}

int st_fill_is_fast(const struct steptape_fill_args *args) {
    return st_rows_are_aligned(args->out, args->columns) && args->stride % 4 == 0 &&
           args->rows * st_ceil_div(args->columns, ST_FILL_PIECE) <= INT32_MAX;
}

void st_fill_geometry(const struct steptape_fill_args *args, struct st_geometry *geometry) {
    geometry->variant = args->variant != 0      ? args->variant
                        : st_fill_is_fast(args) ? ST_FILL_DEFAULT
                                                : 1;
    geometry->threads = 256;
    int64_t blocks = st_ceil_div(args->rows * args->columns, 256);
    blocks = blocks < ST_FILL_V1_BLOCKS ? blocks : ST_FILL_V1_BLOCKS;
    if (geometry->variant == 2 && args->stride == args->columns)
        blocks = st_ceil_div(args->rows * args->columns, 2 * 4 * 256);
    else if (geometry->variant == 2)
        blocks = st_ceil_div(args->rows * st_ceil_div(args->columns, ST_FILL_PIECE), 256 / 32);
    geometry->grid[0] = (uint32_t)blocks;
}

static int fill_bytes(const struct steptape_fill_args *args,
                      const struct steptape_token_counts *counts, struct steptape_cost *cost) {
    (void)counts;
    cost->written_bytes = 4 * (uint64_t)args->rows * (uint64_t)args->columns;
    return STEPTAPE_OK;
}

ST_OPERATOR_HOST(fill, args->out != NULL)
