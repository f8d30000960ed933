/* SPDX-License-Identifier: Apache-2.0 */
/*
 * swa_indices, the reference.
 */
#include "kernels/swa_indices/swa_indices.h"

static void swa_indices_row(const struct steptape_swa_indices_args *args, int64_t t) {
    args->lens[t] = 0;
    if (args->slot_mapping[t] < 0)
        return;
    const int64_t last = args->positions[t];
    const int64_t first = last - args->window + 1 > 0 ? last - args->window + 1 : 0;
    const int64_t n = last - first + 1 > 0 ? last - first + 1 : 0;
    const int32_t *table = args->block_table + args->token_to_req[t] * args->block_table_stride;
    int32_t *row = args->indices + t * args->indices_stride;
    for (int64_t j = 0; j < args->window; j++) {
        row[j] = -1;
        if (j < n) {
            int32_t block = table[(first + j) / args->block_size];
            row[j] = (block > 0 ? block : 0) * args->block_size +
                     (int32_t)((first + j) % args->block_size);
        }
    }
    args->lens[t] = (int32_t)n;
}

ST_OPERATOR_REF(swa_indices, args->num_tokens)
