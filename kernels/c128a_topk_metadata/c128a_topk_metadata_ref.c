/* SPDX-License-Identifier: Apache-2.0 */
/*
 * c128a_topk_metadata, the reference.
 */
#include "kernels/c128a_topk_metadata/c128a_topk_metadata.h"

typedef struct steptape_c128a_topk_metadata_args c128a_args;

static void c128a_topk_metadata_row(const c128a_args *args, int64_t t) {
    int64_t n = args->positions[t] < 0 ? 0 : (args->positions[t] + 1) / args->ratio;
    n = n < args->width ? n : args->width;
    if (t >= args->num_decode_tokens) {
        int32_t *row = args->prefill + (t - args->num_decode_tokens) * args->prefill_stride;
        for (int32_t c = 0; c < args->width; c++)
            row[c] = c < n ? c : -1;
        return;
    }
    const int32_t *table = args->block_table + args->token_to_req[t] * args->block_table_stride;
    int32_t *row = args->decode + t * args->decode_stride;
    for (int32_t c = 0; c < args->width; c++) {
        row[c] = -1;
        if (c < n) {
            int32_t block = table[c / args->block_size];
            row[c] = (block > 0 ? block : 0) * args->block_size + c % args->block_size;
        }
    }
    args->decode_lens[t] = args->slot_mapping[t] >= 0 ? (int32_t)n : 0;
}

ST_OPERATOR_REF(c128a_topk_metadata, args->num_tokens)
