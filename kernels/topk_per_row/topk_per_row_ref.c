/* SPDX-License-Identifier: Apache-2.0 */
/*
 * topk_per_row, the reference: bisects for the value of the k-th column, then takes what is above
 * it and the first of what equals it.
 */
#include "kernels/topk_per_row/topk_per_row.h"

#include <math.h>
#include <string.h>

/* The order of values as an order of integers; NaN is 0, below everything. */
static uint32_t rank_of(float value) {
    uint32_t bits;
    if (isnan(value))
        return 0;
    if (value == 0.0f)
        value = 0.0f; /* -0 too */
    memcpy(&bits, &value, sizeof(bits));
    if (bits == UINT32_C(0x80000000))
        bits = 0;
    return bits & UINT32_C(0x80000000) ? ~bits : bits | UINT32_C(0x80000000);
}

static int64_t clamped(int64_t value, int64_t most) {
    return value < 0 ? 0 : value > most ? most : value;
}

static int64_t count_from(const float *values, int64_t n, uint32_t least) {
    int64_t count = 0;
    for (int64_t i = 0; i < n; i++)
        count += rank_of(values[i]) >= least;
    return count;
}

static void topk_per_row_row(const struct steptape_topk_per_row_args *args, int64_t row) {
    int64_t first = 0, last;
    if (args->row_ends != NULL) {
        first = args->row_starts != NULL ? args->row_starts[row] : 0;
        last = args->row_ends[row];
    } else if (args->seq_lens_2d) {
        last = args->seq_lens[row];
    } else {
        last = (int64_t)args->seq_lens[row / args->next_n] - args->next_n + row % args->next_n + 1;
    }
    first = clamped(first, args->num_columns);
    last = clamped(last, args->num_columns);
    const int64_t n = last > first ? last - first : 0, k = args->k;
    const float *values = args->logits + row * args->logits_stride + first;
    int32_t *out = args->out + row * args->out_stride;
    const int32_t base = (args->flags & STEPTAPE_TOPK_ABSOLUTE) != 0 ? (int32_t)first : 0;
    int64_t written = 0, equal_left = k;
    uint32_t low = 0; /* the largest value that k columns reach */
    if (n > k) {
        for (uint32_t bit = UINT32_C(1) << 31; bit != 0; bit >>= 1)
            if (count_from(values, n, low | bit) >= k)
                low |= bit;
        equal_left = k - (low == UINT32_MAX ? 0 : count_from(values, n, low + 1));
    }
    for (int64_t i = 0; i < n && written < k; i++) {
        const uint32_t rank = rank_of(values[i]);
        if (n > k && (rank < low || (rank == low && equal_left == 0)))
            continue;
        if (n > k && rank == low)
            equal_left--;
        out[written++] = (int32_t)i + base;
    }
    while (written < k)
        out[written++] = -1;
}

ST_OPERATOR_REF(topk_per_row, args->num_rows)
