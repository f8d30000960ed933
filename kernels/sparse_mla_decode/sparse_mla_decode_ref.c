/* SPDX-License-Identifier: Apache-2.0 */
/*
 * sparse_mla_decode, the reference: everything in double, entries rounded to bf16 first.
 *
 * It needs no plan: a call with SPLIT or COMBINE leaves the results of its rows, as the device's
 * does after COMBINE; a call of all rows with PLAN leaves the plan that the device makes.
 */
#include "kernels/sparse_mla_decode/sparse_mla_decode.h"

#include <math.h>
#include <string.h>

#include "kernels/dequantize_and_gather/dequantize_and_gather.h"

typedef struct steptape_sparse_mla_decode_args decode_args;

enum { HEADS = 8 /* at a time: an entry is decoded once for so many */ };

/* A softmax over columns that come one after the other; sums are relative to exp(max). */
struct state {
    double max, sum;
    double v[ST_DECODE_V_DIM];
};

/* Eight sums side by side: their order is fixed, and a compiler can use vectors. */
static double dot(const float *q, const float *entry, int32_t n) {
    double sums[8] = {0};
    for (int32_t d = 0; d < n; d += 8)
        for (int k = 0; k < 8; k++)
            sums[k] += (double)q[d + k] * (double)entry[d + k];
    return ((sums[0] + sums[4]) + (sums[2] + sums[6])) +
           ((sums[1] + sums[5]) + (sums[3] + sums[7]));
}

static void add_column(struct state *state, const float *entry, const float *q, int32_t d_qk,
                       double scale) {
    const double score = scale * dot(q, entry, d_qk);
    if (score > state->max) {
        const double factor = exp(state->max - score);
        for (int d = 0; d < ST_DECODE_V_DIM; d++)
            state->v[d] *= factor;
        state->sum *= factor;
        state->max = score;
    }
    /* nothing but columns of -inf so far: exp(-inf - -inf) would be NaN */
    const double weight = score == -INFINITY ? 0.0 : exp(score - state->max);
    state->sum += weight;
    for (int d = 0; d < ST_DECODE_V_DIM; d++)
        state->v[d] += weight * (double)entry[d];
}

static void store(const decode_args *args, int64_t t, int32_t h, const struct state *state) {
    uint16_t *out = args->out + (t * args->heads + h) * ST_DECODE_V_DIM;
    const int is_empty = state->sum == 0.0;
    const double lse = is_empty ? INFINITY : log(state->sum) + state->max;
    double factor = is_empty ? 0.0 : 1.0 / state->sum;
    if (args->attn_sink != NULL && !is_empty)
        factor /= 1.0 + exp((double)args->attn_sink[h] - lse);
    for (int d = 0; d < ST_DECODE_V_DIM; d++)
        out[d] = is_empty ? 0 : steptape_bf16_from_float((float)(state->v[d] * factor));
    if (args->lse != NULL)
        args->lse[t * args->heads + h] = (float)lse;
}

static void decode_heads(const decode_args *args, int64_t t, int32_t first, int32_t end) {
    struct state states[HEADS];
    float q[HEADS][576];
    memset(states, 0, sizeof(states));
    for (int i = 0; i < HEADS; i++)
        states[i].max = -INFINITY;
    for (int32_t h = first; h < end; h++)
        for (int32_t d = 0; d < args->d_qk; d++)
            q[h - first][d] =
                steptape_bf16_to_float(args->q[t * args->q_stride + h * args->q_head_stride + d]);
    for (int s = 0; s < 2; s++) {
        const struct steptape_decode_scope *scope = &args->scope[s];
        const int32_t columns = st_decode_columns(scope, t);
        for (int32_t c = 0; c < columns; c++) {
            const int64_t index = scope->indices[t * scope->indices_stride + c];
            uint16_t bits[576];
            float entry[576];
            if (index < 0)
                continue;
            st_gather_entry(bits,
                            scope->cache + index / scope->page_size * scope->page_stride_bytes,
                            scope->page_size, index % scope->page_size, args->format);
            for (int32_t d = 0; d < args->d_qk; d++)
                entry[d] = steptape_bf16_to_float(bits[d]);
            for (int32_t h = first; h < end; h++)
                add_column(&states[h - first], entry, q[h - first], args->d_qk, args->sm_scale);
        }
    }
    for (int32_t h = first; h < end; h++)
        store(args, t, h, &states[h - first]);
}

static void decode_row(const decode_args *args, int64_t t) {
    for (int32_t h = 0; h < args->heads; h += HEADS)
        decode_heads(args, t, h, h + HEADS < args->heads ? h + HEADS : args->heads);
}

/* Phases of a call; the reference takes COMBINE for the whole computation. */
static int wants(const decode_args *args, uint32_t phases) {
    return args->phases == 0 || (args->phases & phases) != 0;
}

static int ready(const decode_args *args) {
    int rc = st_sparse_mla_decode_check(args);
    if (rc <= 0)
        return rc;
    if (wants(args, STEPTAPE_DECODE_SPLIT | STEPTAPE_DECODE_COMBINE)) {
        if (args->q == NULL || args->out == NULL)
            return STEPTAPE_ERR_ARGUMENT;
        for (int s = 0; s < 2; s++)
            if (args->scope[s].topk > 0 &&
                (args->scope[s].cache == NULL || args->scope[s].indices == NULL))
                return STEPTAPE_ERR_ARGUMENT;
    }
    return rc;
}

int steptape_sparse_mla_decode_ref(const decode_args *args) {
    int rc = ready(args);
    if (rc <= 0)
        return rc;
    if (wants(args, STEPTAPE_DECODE_PLAN) && args->plan != NULL) {
        struct st_decode_geometry geometry;
        rc = st_sparse_mla_decode_geometry(args, &geometry);
        if (rc != STEPTAPE_OK)
            return rc;
        struct st_decode_part *parts = (struct st_decode_part *)args->plan;
        rc = st_sparse_mla_decode_plan_ref(args, &geometry, parts,
                                           (struct st_decode_token *)(parts + geometry.parts));
        if (rc != STEPTAPE_OK)
            return rc;
    }
    if (wants(args, STEPTAPE_DECODE_SPLIT | STEPTAPE_DECODE_COMBINE))
        for (int64_t t = 0; t < args->tokens; t++)
            decode_row(args, t);
    return STEPTAPE_OK;
}

int steptape_sparse_mla_decode_ref_rows(const decode_args *args, const int64_t *rows, int64_t n) {
    int rc = ready(args);
    if (rc < 0)
        return rc;
    for (int64_t i = 0; i < n; i++) {
        if (rc == 0 || rows[i] < 0 || rows[i] >= args->tokens)
            return STEPTAPE_ERR_ARGUMENT;
        if (wants(args, STEPTAPE_DECODE_SPLIT | STEPTAPE_DECODE_COMBINE))
            decode_row(args, rows[i]);
    }
    return STEPTAPE_OK;
}
