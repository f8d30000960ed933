/* SPDX-License-Identifier: Apache-2.0 */
/*
 * global_topk_indices, the reference.
 */
#include "kernels/global_topk_indices/global_topk_indices.h"

static void global_topk_indices_row(const struct steptape_global_topk_indices_args *args,
                                    int64_t t) {
    const int64_t first = args->token_to_req[t] * args->block_table_stride;
    int32_t found = 0;
    for (int32_t c = 0; c < args->k; c++) {
        const int32_t entry = args->topk_indices[t * args->topk_stride + c];
        int32_t slot = -1;
        if (entry >= 0) {
            int32_t block = args->block_table[first + entry / args->block_size];
            slot = (block > 0 ? block : 0) * args->block_size + entry % args->block_size;
            found++;
        }
        args->out[t * args->out_stride + c] = slot;
    }
    args->lens[t] = args->slot_mapping[t] >= 0 ? found : 0;
}

ST_OPERATOR_REF(global_topk_indices, args->num_tokens)
