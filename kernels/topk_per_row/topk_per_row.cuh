/* SPDX-License-Identifier: Apache-2.0 */
/*
 * topk_per_row: what its device files share.
 */
#ifndef ST_KERNELS_TOPK_PER_ROW_CUH
#define ST_KERNELS_TOPK_PER_ROW_CUH

#include "kernels/launch.cuh"
#include "kernels/topk_per_row/topk_per_row.h"

typedef struct steptape_topk_per_row_args topk_args;

/* The columns that a row considers: n of them from first on. */
struct topk_range {
    int first, n;
};

static __device__ __forceinline__ topk_range topk_range_of(const topk_args &a, int64_t row) {
    int first = 0, last;
    if (a.row_ends != NULL) {
        first = a.row_starts != NULL ? a.row_starts[row] : 0;
        last = a.row_ends[row];
    } else if (a.seq_lens_2d) {
        last = a.seq_lens[row];
    } else {
        const int request = a.next_n == 1 ? (int)row : (int)row / a.next_n;
        /* in 64 bits: a length is any int */
        const int64_t end =
            (int64_t)a.seq_lens[request] - a.next_n + ((int)row - request * a.next_n) + 1;
        last = (int)min(end, (int64_t)a.num_columns);
    }
    first = min(max(first, 0), a.num_columns);
    last = min(max(last, 0), a.num_columns);
    return {first, max(last - first, 0)};
}

/* The order of values as an order of integers: NaN is 0, -inf 0x7fffff, -0 and +0 the same. */
static __device__ __forceinline__ uint32_t topk_key(float value) {
    const int32_t bits = __float_as_int(value + 0.0f); /* -0 becomes +0 */
    const uint32_t key = (uint32_t)bits ^ ((uint32_t)(bits >> 31) | 0x80000000u);
    return value == value ? key : 0;
}

static __device__ __forceinline__ uint32_t topk_key_of_number(float value) {
    const int32_t bits = __float_as_int(value + 0.0f);
    return (uint32_t)bits ^ ((uint32_t)(bits >> 31) | 0x80000000u);
}

/* The least number whose key is not less, for a key of a number. */
static __device__ __forceinline__ float topk_value(uint32_t key) {
    return __uint_as_float(key >= 0x80000000u ? key & 0x7fffffffu : ~key);
}

/* Columns 0 .. n - 1, then -1, by all threads of a block. */
static __device__ __forceinline__ void topk_all(int32_t *out, int n, int k, int base) {
    for (int c = threadIdx.x; c < k; c += blockDim.x)
        out[c] = c < n ? c + base : -1;
}

#endif
