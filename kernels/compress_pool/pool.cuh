/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Pooling as every device variant from pool v2 on computes it.  One order of operations, so that
 * all of them give the same bits, one launch or two, whatever the batch:
 * 1. Of eight neighbouring rows (a page): the maximum; weights against it; sums of weights and of
 *    products as a tree, ((0 1) (2 3)) ((4 5) (6 7)), the lowest pair of products fused.
 * 2. Two pages are joined by scaling both to the larger maximum.
 * 3. The eight pairs of pages are scaled to the largest maximum and added in ascending order, then
 *    one division.
 * A thread has four neighbouring columns: float4 and float[4] below are those.
 */
#ifndef ST_KERNELS_POOL_CUH
#define ST_KERNELS_POOL_CUH

#include "kernels/launch.cuh"

enum {
    ST_C128_RATIO = 128,
    ST_C128_DIM = 512,
    ST_C128_PAGE_ROWS = 8,
    ST_C128_PAGES = ST_C128_RATIO / ST_C128_PAGE_ROWS,
    ST_POOL_WARPS = 8 /* one for two pages */
};

#define ST_LOG2E 1.4426950408889634f

/* Weights of rows whose scores are all -inf are 0, not NaN, as long as another row has one. */
static __device__ __forceinline__ float st_finite_max(float max) {
    return max == -INFINITY ? 0.0f : max;
}

/*
 * Maxima are in units of log2: max2 = max * LOG2E, rounded once, and a weight is
 * 2^(score * LOG2E - max2) by one fused operation.  Partial sums are brought together with
 * differences of the same rounded max2, so its rounding cancels however large scores are.
 */
static __device__ __forceinline__ float st_log2_of(float max) {
    return __fmul_rn(max, ST_LOG2E);
}

static __device__ __forceinline__ float st_weight_of(float score, float max2) {
    return st_exp2(fmaf(score, ST_LOG2E, -max2));
}

struct st_pool_part {
    float max[4], sum[4], product[4];
};

/*
 * Step 1 for ROWS of a page's eight rows in this thread; the others are in the 8 / ROWS - 1 lanes
 * that lie LANES apart.  score becomes weights; product is left to st_pool_products.
 */
template <int ROWS, int LANES>
static __device__ __forceinline__ void st_pool_weights(float4 (&score)[ROWS],
                                                       struct st_pool_part *part) {
#pragma unroll
    for (int c = 0; c < 4; c++) {
        float max = (&score[0].x)[c];
#pragma unroll
        for (int r = 1; r < ROWS; r++)
            max = fmaxf(max, (&score[r].x)[c]);
#pragma unroll
        for (int rows = ROWS; rows < 8; rows *= 2)
            max = fmaxf(max, __shfl_xor_sync(0xffffffffu, max, LANES * rows / ROWS));
        part->max[c] = st_log2_of(max);
        const float base = st_finite_max(part->max[c]);
        float sum[ROWS];
#pragma unroll
        for (int r = 0; r < ROWS; r++) {
            sum[r] = st_weight_of((&score[r].x)[c], base);
            (&score[r].x)[c] = sum[r];
        }
#pragma unroll
        for (int step = 1; step < ROWS; step *= 2) {
#pragma unroll
            for (int r = 0; r < ROWS; r += 2 * step)
                sum[r] = __fadd_rn(sum[r], sum[r + step]);
        }
        part->sum[c] = sum[0];
#pragma unroll
        for (int rows = ROWS; rows < 8; rows *= 2)
            part->sum[c] = __fadd_rn(
                part->sum[c], __shfl_xor_sync(0xffffffffu, part->sum[c], LANES * rows / ROWS));
    }
}

template <int ROWS, int LANES>
static __device__ __forceinline__ void st_pool_products(const float4 (&weight)[ROWS],
                                                        const float4 (&kv)[ROWS],
                                                        struct st_pool_part *part) {
#pragma unroll
    for (int c = 0; c < 4; c++) {
        float product[ROWS / 2];
#pragma unroll
        for (int r = 0; r < ROWS; r += 2)
            product[r / 2] = fmaf((&kv[r + 1].x)[c], (&weight[r + 1].x)[c],
                                  __fmul_rn((&kv[r].x)[c], (&weight[r].x)[c]));
#pragma unroll
        for (int step = 1; step < ROWS / 2; step *= 2) {
#pragma unroll
            for (int r = 0; r < ROWS / 2; r += 2 * step)
                product[r] = __fadd_rn(product[r], product[r + step]);
        }
        part->product[c] = product[0];
#pragma unroll
        for (int rows = ROWS; rows < 8; rows *= 2)
            part->product[c] =
                __fadd_rn(part->product[c],
                          __shfl_xor_sync(0xffffffffu, part->product[c], LANES * rows / ROWS));
    }
}

/*
 * Step 2 where one thread has both pages, in two halves, so that few registers wait for the second
 * page's kv: this one once other->max and other->sum are known ...
 */
static __device__ __forceinline__ void st_pool_join_weights(struct st_pool_part *part,
                                                            const struct st_pool_part *other,
                                                            float (&other_scale)[4]) {
#pragma unroll
    for (int c = 0; c < 4; c++) {
        const float max = fmaxf(part->max[c], other->max[c]);
        const float base = st_finite_max(max);
        const float scale = st_exp2(part->max[c] - base);
        other_scale[c] = st_exp2(other->max[c] - base);
        part->max[c] = max;
        part->sum[c] =
            __fadd_rn(__fmul_rn(part->sum[c], scale), __fmul_rn(other->sum[c], other_scale[c]));
        part->product[c] = __fmul_rn(part->product[c], scale);
    }
}

/* ... and this one for other->product. */
static __device__ __forceinline__ void st_pool_join_products(struct st_pool_part *part,
                                                             const struct st_pool_part *other,
                                                             const float (&other_scale)[4]) {
#pragma unroll
    for (int c = 0; c < 4; c++)
        part->product[c] =
            __fadd_rn(part->product[c], __fmul_rn(other->product[c], other_scale[c]));
}

/* Step 2 where the other page is in the other half of the warp; both halves have the result. */
static __device__ __forceinline__ void st_pool_join_halves(struct st_pool_part *part) {
#pragma unroll
    for (int c = 0; c < 4; c++) {
        const float max = fmaxf(part->max[c], __shfl_xor_sync(0xffffffffu, part->max[c], 16));
        const float scale = st_exp2(part->max[c] - st_finite_max(max));
        part->max[c] = max;
        part->sum[c] = __fmul_rn(part->sum[c], scale);
        part->product[c] = __fmul_rn(part->product[c], scale);
        part->sum[c] = __fadd_rn(part->sum[c], __shfl_xor_sync(0xffffffffu, part->sum[c], 16));
        part->product[c] =
            __fadd_rn(part->product[c], __shfl_xor_sync(0xffffffffu, part->product[c], 16));
    }
}

/* What the warps of a block have of TILE columns: one row a warp. */
template <int TILE> struct st_pool_parts {
    float max[ST_POOL_WARPS][TILE];
    float sum[ST_POOL_WARPS][TILE];
    float product[ST_POOL_WARPS][TILE];
};

/* Leaves this thread's columns, the first of which is `column`, as warp `warp`'s. */
template <int TILE>
static __device__ __forceinline__ void st_pool_leave(struct st_pool_parts<TILE> *parts, int warp,
                                                     int column, const struct st_pool_part *part) {
    *(float4 *)&parts->max[warp][column] =
        make_float4(part->max[0], part->max[1], part->max[2], part->max[3]);
    *(float4 *)&parts->sum[warp][column] =
        make_float4(part->sum[0], part->sum[1], part->sum[2], part->sum[3]);
    *(float4 *)&parts->product[warp][column] =
        make_float4(part->product[0], part->product[1], part->product[2], part->product[3]);
}

/*
 * Step 3: the pooled value of a column of the tile.  A warp whose scores are all -inf has max -inf
 * and weighs nothing.
 */
template <int TILE>
static __device__ __forceinline__ float st_pool_merge(const struct st_pool_parts<TILE> *parts,
                                                      int column) {
    float max = parts->max[0][column];
#pragma unroll
    for (int w = 1; w < ST_POOL_WARPS; w++)
        max = fmaxf(max, parts->max[w][column]);
    max = st_finite_max(max);
    float sum = 0.0f;
    float product = 0.0f;
#pragma unroll
    for (int w = 0; w < ST_POOL_WARPS; w++) {
        const float scale = st_exp2(parts->max[w][column] - max);
        sum = fmaf(parts->sum[w][column], scale, sum);
        product = fmaf(parts->product[w][column], scale, product);
    }
    return product / sum;
}

/*
 * One channel of any shape, row by row (v1, for what the others do not serve): not their bits.
 * table: the block table's row of the request.
 */
struct st_pool_channel {
    const float *state_cache;
    const int32_t *table;
    int64_t page_stride, row_stride;
    int64_t position;
    int32_t head_dim, ratio, overlap, block_size;
};

static __device__ __forceinline__ float st_pool_channel(const struct st_pool_channel &a, int d) {
    const int window = (a.overlap ? 2 : 1) * a.ratio;
    const int width = (a.overlap ? 2 : 1) * a.head_dim;
    const int64_t first = a.position - window + 1;
    float max = -INFINITY;
    float sum = 0.0f;
    float product = 0.0f;
    for (int64_t q = first < 0 ? 0 : first; q <= a.position; q++) {
        const int32_t page = a.table[q / a.block_size];
        const float *row = a.state_cache + (page > 0 ? page : 0) * a.page_stride +
                           (q % a.block_size) * a.row_stride;
        const int column = a.overlap && q - first >= a.ratio ? a.head_dim + d : d;
        const float score = row[width + column];
        const float kv = row[column];
        const float new_max = fmaxf(max, score);
        const float old_scale = exp2f((max - st_finite_max(new_max)) * ST_LOG2E);
        const float weight = exp2f((score - st_finite_max(new_max)) * ST_LOG2E);
        sum = fmaf(sum, old_scale, weight);
        product = fmaf(product, old_scale, __fmul_rn(kv, weight));
        max = new_max;
    }
    return product / sum;
}

#endif
