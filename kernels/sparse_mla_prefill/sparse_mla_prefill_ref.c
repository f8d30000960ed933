/* SPDX-License-Identifier: Apache-2.0 */
/*
 * sparse_mla_prefill, the reference: everything in double.  The same walk over a list also gives
 * the sum of |weight * value|, which is what an error of an output is measured by.
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

static float value_of(uint16_t bits) {
    const uint32_t wide = (uint32_t)bits << 16;
    float value;
    memcpy(&value, &wide, sizeof(value));
    return value;
}

/* Eight sums side by side: their order is fixed, and a compiler can use vectors. */
static double dot(const uint16_t *q, const float *row, int32_t n) {
    double sums[8] = {0};
    for (int32_t d = 0; d < n; d += 8)
        for (int k = 0; k < 8; k++)
            sums[k] += (double)value_of(q[d + k]) * (double)row[d + k];
    return ((sums[0] + sums[4]) + (sums[2] + sums[6])) +
           ((sums[1] + sums[5]) + (sums[3] + sums[7]));
}

static void add_column(struct state *state, const float *row, const float *value, const uint16_t *q,
                       const prefill_args *args) {
    const double score = (double)args->sm_scale * dot(q, row, args->d_qk);
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
        state->v[d] += weight * (double)value[d];
}

/* A listed row in the last tile past the length: weight 0, but a NaN of it is a NaN of the sum. */
static void add_nothing(struct state *state, const float *value) {
    for (int d = 0; d < ST_PREFILL_V_DIM; d++)
        state->v[d] += 0.0 * (double)value[d];
}

static double lse_of(const struct state *state) {
    return state->sum == 0.0 ? INFINITY : log(state->sum) + state->max;
}

/* What a head's sums are multiplied with. */
static double factor_of(const prefill_args *args, int32_t h, const struct state *state) {
    if (state->sum == 0.0)
        return 1.0;
    const double factor = 1.0 / state->sum;
    return args->attn_sink == NULL
               ? factor
               : factor / (1.0 + exp((double)args->attn_sink[h] - lse_of(state)));
}

static void store_magnitude(const prefill_args *args, int32_t h, const struct state *state,
                            float *magnitude) {
    const double factor = factor_of(args, h, state);
    for (int d = 0; d < ST_PREFILL_V_DIM; d++)
        magnitude[h * ST_PREFILL_V_DIM + d] = (float)(state->v[d] * factor);
}

static void store(const prefill_args *args, int64_t t, int32_t h, const struct state *state) {
    uint16_t *out = args->out + (t * args->heads + h) * ST_PREFILL_V_DIM;
    const double factor = factor_of(args, h, state);
    for (int d = 0; d < ST_PREFILL_V_DIM; d++)
        out[d] = steptape_bf16_from_float((float)(state->v[d] * factor));
    if (args->max_logits != NULL)
        args->max_logits[t * args->heads + h] = (float)state->max;
    if (args->lse != NULL)
        args->lse[t * args->heads + h] = (float)lse_of(state);
}

/* magnitude: [heads, 512] of the token; NULL: outputs. */
static void prefill_heads(const prefill_args *args, int64_t t, int32_t first, float *magnitude) {
    struct state states[HEADS];
    const int32_t tile = STEPTAPE_MLA_TILE;
    int32_t length = args->topk_length != NULL ? args->topk_length[t] : args->topk;
    length = length < 0 ? 0 : length > args->topk ? args->topk : length;
    const int32_t end = (length + tile - 1) / tile * tile;
    memset(states, 0, sizeof(states));
    for (int i = 0; i < HEADS; i++)
        states[i].max = -INFINITY;
    for (int32_t c = 0; c < end; c++) {
        const int64_t index = args->indices[t * args->indices_stride + c];
        float row[576], value[ST_PREFILL_V_DIM];
        if (index < 0 || index >= args->s_kv)
            continue;
        for (int32_t d = 0; d < args->d_qk; d++)
            row[d] = value_of(args->kv[index * args->kv_stride + d]);
        for (int32_t d = 0; d < ST_PREFILL_V_DIM; d++)
            value[d] = magnitude != NULL ? fabsf(row[d]) : row[d];
        for (int i = 0; i < HEADS; i++) {
            const uint16_t *q = args->q + t * args->q_stride + (first + i) * args->q_head_stride;
            if (c < length)
                add_column(&states[i], row, value, q, args);
            else
                add_nothing(&states[i], value);
        }
    }
    for (int i = 0; i < HEADS; i++) {
        if (magnitude != NULL)
            store_magnitude(args, first + i, &states[i], magnitude);
        else
            store(args, t, first + i, &states[i]);
    }
}

static void sparse_mla_prefill_row(const prefill_args *args, int64_t t) {
    for (int32_t h = 0; h < args->heads; h += HEADS)
        prefill_heads(args, t, h, NULL);
}

void st_sparse_mla_prefill_magnitude(const prefill_args *args, int64_t t, float *magnitude) {
    for (int32_t h = 0; h < args->heads; h += HEADS)
        prefill_heads(args, t, h, magnitude);
}

ST_OPERATOR_REF(sparse_mla_prefill, args->s_q)
