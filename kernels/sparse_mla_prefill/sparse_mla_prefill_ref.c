/* SPDX-License-Identifier: Apache-2.0 */
/*
 * sparse_mla_prefill, the reference: everything in double.  The same walk over a list also gives
 * the sum of |weight * value|, which is what an error of an output is measured by.
 */
#include "kernels/sparse_mla_prefill/sparse_mla_prefill.h"

#include <math.h>
#include <string.h>

#include "kernels/softmax_ref.h"

typedef struct steptape_sparse_mla_prefill_args prefill_args;

enum { HEADS = 8 /* at a time: a row of kv is decoded once for so many */ };

static float value_of(uint16_t bits) {
    const uint32_t wide = (uint32_t)bits << 16;
    float value;
    memcpy(&value, &wide, sizeof(value));
    return value;
}

/* A listed row in the last tile past the length: weight 0, but a NaN of it is a NaN of the sum. */
static void add_nothing(struct st_softmax *state, const float *value) {
    for (int d = 0; d < ST_PREFILL_V_DIM; d++)
        state->v[d] += 0.0 * (double)value[d];
}

static double factor_of(const prefill_args *args, int32_t h, const struct st_softmax *state) {
    return st_softmax_factor(state, args->attn_sink != NULL ? &args->attn_sink[h] : NULL);
}

static void store_magnitude(const prefill_args *args, int32_t h, const struct st_softmax *state,
                            float *magnitude) {
    const double factor = factor_of(args, h, state);
    for (int d = 0; d < ST_PREFILL_V_DIM; d++)
        magnitude[h * ST_PREFILL_V_DIM + d] = (float)(state->v[d] * factor);
}

static void store(const prefill_args *args, int64_t t, int32_t h, const struct st_softmax *state) {
    uint16_t *out = args->out + (t * args->heads + h) * ST_PREFILL_V_DIM;
    const double factor = factor_of(args, h, state);
    for (int d = 0; d < ST_PREFILL_V_DIM; d++)
        out[d] = steptape_bf16_from_float((float)(state->v[d] * factor));
    if (args->max_logits != NULL)
        args->max_logits[t * args->heads + h] = (float)state->max;
    if (args->lse != NULL)
        args->lse[t * args->heads + h] = (float)st_softmax_lse(state);
}

/* magnitude: [heads, 512] of the token; NULL: outputs. */
static void prefill_heads(const prefill_args *args, int64_t t, int32_t first, float *magnitude) {
    struct st_softmax states[HEADS];
    float q[HEADS][576];
    const int32_t tile = STEPTAPE_MLA_TILE;
    int32_t length = args->topk_length != NULL ? args->topk_length[t] : args->topk;
    length = length < 0 ? 0 : length > args->topk ? args->topk : length;
    const int32_t end = (length + tile - 1) / tile * tile;
    for (int i = 0; i < HEADS; i++) {
        const uint16_t *from = args->q + t * args->q_stride + (first + i) * args->q_head_stride;
        st_softmax_init(&states[i]);
        for (int32_t d = 0; d < args->d_qk; d++)
            q[i][d] = value_of(from[d]);
    }
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
            if (c < length)
                st_softmax_add(&states[i], (double)args->sm_scale * st_dot(q[i], row, args->d_qk),
                               value);
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
