/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fill, the reference.
 */
#include "kernels/fill/fill.h"

static void fill_row(const struct steptape_fill_args *args, int64_t row) {
    for (int64_t c = 0; c < args->columns; c++)
        args->out[row * args->stride + c] = args->value;
}

ST_OPERATOR_REF(fill, args->rows)
