/* SPDX-License-Identifier: Apache-2.0 */
/*
 * sparse_mla_prefill, the reference: everything in double.
 */
#include "kernels/sparse_mla_prefill/sparse_mla_prefill.h"

#include <math.h>
#include <string.h>

typedef struct steptape_sparse_mla_prefill_args prefill_args;

enum { HEADS = 8 /* at a time: a row of kv is decoded once for so many */ };

struct state {
    double max, sum;
    double v[ST_PREFILL_V_DIM];
};

static void add_column(struct state *state, const float *row, const uint16_t *q, int32_t d_qk,
                       double scale) {
    double score = 0.0;
    for (int32_t d = 0; d < d_qk; d++)
        score += (double)steptape_bf16_to_float(q[d]) * (double)row[d];
    score *= scale;
    if (score > state->max) {
        const double factor = exp(state->max - score);
        for (int d = 0; d < ST_PREFILL_V_DIM; d++)
            state->v[d] *= factor;
        state->sum *= factor;
        state->max = score;
    }
    /* nothing but columns of -inf so far: exp(-inf - -inf) would be NaN */
    const double weight = score == -INFINITY ? 0.0 : exp(score - state->max);
    state->sum += weight;
    for (int d = 0; d < ST_PREFILL_V_DIM; d++)
        state->v[d] += weight * (double)row[d];
}

/* A listed row in the last tile past the length: weight 0, but a NaN of it is a NaN of the sum. */
static void add_nothing(struct state *state, const float *row) {
    for (int d = 0; d < ST_PREFILL_V_DIM; d++)
        state->v[d] += 0.0 * (double)row[d];
}

static void store(const prefill_args *args, int64_t t, int32_t h, const struct state *state) {
    uint16_t *out = args->out + (t * args->heads + h) * ST_PREFILL_V_DIM;
    const int is_empty = state->sum == 0.0;
    const double lse = is_empty ? INFINITY : log(state->sum) + state->max;
    double factor = is_empty ? 1.0 : 1.0 / state->sum;
    if (args->attn_sink != NULL && !is_empty)
        factor /= 1.0 + exp((double)args->attn_sink[h] - lse);
    for (int d = 0; d < ST_PREFILL_V_DIM; d++)
        out[d] = steptape_bf16_from_float((float)(state->v[d] * factor));
    if (args->max_logits != NULL)
        args->max_logits[t * args->heads + h] = (float)state->max;
    if (args->lse != NULL)
        args->lse[t * args->heads + h] = (float)lse;
}

static void prefill_heads(const prefill_args *args, int64_t t, int32_t first, int32_t length) {
    struct state states[HEADS];
    const int32_t tile = STEPTAPE_MLA_TILE;
    const int32_t end = (length + tile - 1) / tile * tile;
    memset(states, 0, sizeof(states));
    for (int i = 0; i < HEADS; i++)
        states[i].max = -INFINITY;
    for (int32_t c = 0; c < end && c < args->topk; c++) {
        const int64_t index = args->indices[t * args->indices_stride + c];
        float row[576];
        if (index < 0 || index >= args->s_kv)
            continue;
        for (int32_t d = 0; d < args->d_qk; d++)
            row[d] = steptape_bf16_to_float(args->kv[index * args->kv_stride + d]);
        for (int i = 0; i < HEADS; i++) {
            const uint16_t *q = args->q + t * args->q_stride + (first + i) * args->q_head_stride;
            if (c < length)
                add_column(&states[i], row, q, args->d_qk, args->sm_scale);
            else
                add_nothing(&states[i], row);
        }
    }
    for (int i = 0; i < HEADS; i++)
        store(args, t, first + i, &states[i]);
}

static void sparse_mla_prefill_row(const prefill_args *args, int64_t t) {
    int32_t length = args->topk_length != NULL ? args->topk_length[t] : args->topk;
    length = length < 0 ? 0 : length > args->topk ? args->topk : length;
    for (int32_t h = 0; h < args->heads; h += HEADS)
        prefill_heads(args, t, h, length);
}

ST_OPERATOR_REF(sparse_mla_prefill, args->s_q)
