/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the references of attention share: a softmax over columns that come one after the other, in
 * double.
 */
#ifndef ST_KERNELS_SOFTMAX_REF_H
#define ST_KERNELS_SOFTMAX_REF_H

#include <math.h>
#include <stdint.h>
#include <string.h>

enum { ST_SOFTMAX_V_DIM = 512 };

/* Sums are relative to exp(max). */
struct st_softmax {
    double max, sum;
    double v[ST_SOFTMAX_V_DIM];
};

static inline void st_softmax_init(struct st_softmax *state) {
    memset(state, 0, sizeof(*state));
    state->max = -INFINITY;
}

/* Of n numbers, a multiple of 8.  Eight sums side by side: their order is fixed, and a compiler can
 * use vectors. */
static inline double st_dot(const float *a, const float *b, int32_t n) {
    double sums[8] = {0};
    for (int32_t d = 0; d < n; d += 8)
        for (int k = 0; k < 8; k++)
            sums[k] += (double)a[d + k] * (double)b[d + k];
    return ((sums[0] + sums[4]) + (sums[2] + sums[6])) +
           ((sums[1] + sums[5]) + (sums[3] + sums[7]));
}

static inline void st_softmax_add(struct st_softmax *state, double score, const float *value) {
    if (score > state->max) {
        const double factor = exp(state->max - score);
        for (int d = 0; d < ST_SOFTMAX_V_DIM; d++)
            state->v[d] *= factor;
        state->sum *= factor;
        state->max = score;
    }
    /* nothing but columns of -inf so far: exp(-inf - -inf) would be NaN */
    const double weight = score == -INFINITY ? 0.0 : exp(score - state->max);
    state->sum += weight;
    for (int d = 0; d < ST_SOFTMAX_V_DIM; d++)
        state->v[d] += weight * (double)value[d];
}

/* Natural log of the sum; +inf without a column. */
static inline double st_softmax_lse(const struct st_softmax *state) {
    return state->sum == 0.0 ? INFINITY : log(state->sum) + state->max;
}

/* What v is multiplied with; sink: of the head, or NULL. */
static inline double st_softmax_factor(const struct st_softmax *state, const float *sink) {
    if (state->sum == 0.0)
        return 1.0;
    const double factor = 1.0 / state->sum;
    return sink == NULL ? factor : factor / (1.0 + exp((double)*sink - st_softmax_lse(state)));
}

#endif
