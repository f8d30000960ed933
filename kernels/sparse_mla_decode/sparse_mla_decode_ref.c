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
#include "kernels/softmax_ref.h"

typedef struct steptape_sparse_mla_decode_args decode_args;

enum { HEADS = 8 /* at a time: an entry is decoded once for so many */ };

static void store(const decode_args *args, int64_t t, int32_t h, const struct st_softmax *state) {
    uint16_t *out = args->out + (t * args->heads + h) * ST_DECODE_V_DIM;
    const int is_empty = state->sum == 0.0;
    const double factor =
        st_softmax_factor(state, args->attn_sink != NULL ? &args->attn_sink[h] : NULL);
    for (int d = 0; d < ST_DECODE_V_DIM; d++)
        out[d] = is_empty ? 0 : steptape_bf16_from_float((float)(state->v[d] * factor));
    if (args->lse != NULL)
        args->lse[t * args->heads + h] = (float)st_softmax_lse(state);
}

static void decode_heads(const decode_args *args, int64_t t, int32_t first, int32_t end) {
    struct st_softmax states[HEADS];
    float q[HEADS][576];
    for (int i = 0; i < HEADS; i++)
        st_softmax_init(&states[i]);
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
                st_softmax_add(&states[h - first],
                               (double)args->sm_scale * st_dot(q[h - first], entry, args->d_qk),
                               entry);
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
