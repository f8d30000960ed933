/* SPDX-License-Identifier: Apache-2.0 */
/*
 * combine_topk_swa_indices, the reference.
 */
#include "kernels/combine_topk_swa_indices/combine_topk_swa_indices.h"

typedef struct steptape_combine_topk_swa_indices_args combine_args;

static int32_t wrap(int64_t value) {
    return (int32_t)(uint32_t)(uint64_t)value;
}

static void combine_token(const combine_args *args, int64_t t, int32_t b, int64_t query_len,
                          int64_t i) {
    const int64_t p = args->seq_lens[b] - query_len + i;
    int64_t k = p < 0 || args->topk == 0 ? 0 : (p + 1) / args->ratio;
    k = k < args->topk ? k : args->topk;
    int64_t w = p < 0 ? 0 : p + 1;
    w = w < args->window ? w : args->window;
    const int64_t base = (int64_t)args->m * b;
    int32_t *row = args->indices + t * args->indices_stride;
    for (int64_t c = 0; c < k; c++)
        row[c] = wrap(args->topk_indices[t * args->topk_stride + c] + base);
    for (int64_t j = 0; j < w; j++)
        row[k + j] = wrap(base + args->n + (p - w + 1 + j) -
                          ((int64_t)args->seq_lens[b] - args->gather_lens[b]));
    args->lens[t] = (int32_t)(k + w);
    int64_t end = k + w;
    if (args->tail == STEPTAPE_COMBINE_TAIL_WIDTH)
        end = args->width;
    else if (args->tail == STEPTAPE_COMBINE_TAIL_128)
        end = st_ceil_div(k + w, 128) * 128;
    for (int64_t c = k + w; c < end; c++)
        row[c] = -1;
}

static void combine_topk_swa_indices_row(const combine_args *args, int64_t t) {
    const int64_t token = t + args->query_start_loc[0];
    for (int32_t b = 0; b < args->num_reqs; b++) {
        const int64_t first = args->query_start_loc[b], last = args->query_start_loc[b + 1];
        if (first <= token && token < last)
            combine_token(args, t, b, last - first, token - first);
    }
}

ST_OPERATOR_REF(combine_topk_swa_indices, args->num_tokens)
