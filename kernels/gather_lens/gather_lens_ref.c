/* SPDX-License-Identifier: Apache-2.0 */
/*
 * gather_lens, the reference.
 */
#include "kernels/gather_lens/gather_lens.h"

static void gather_lens_row(const struct steptape_gather_lens_args *args, int64_t r) {
    const int32_t query_len = args->query_start_loc[r + 1] - args->query_start_loc[r];
    const int32_t prefix_len = args->seq_lens[r] - query_len;
    args->out[r] = query_len + (prefix_len < args->window - 1 ? prefix_len : args->window - 1);
}

ST_OPERATOR_REF(gather_lens, args->num_reqs)
