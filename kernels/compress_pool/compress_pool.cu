/* SPDX-License-Identifier: Apache-2.0 */
/*
 * compress_pool on CUDA.
 *
 * Variants, slowest first, with microseconds a launch (one NVIDIA H200, CUDA 13.0, 2026-11-30, a
 * graph of 20 launches over the same buffers, medians): every one of T = 64, 256, 2048 tokens
 * closes a group; none of 256, of 2048 does; every 128th of 2048 does.
 * v1  107   172   733   1.35  3.04  115    any shape: a thread walks a channel's window
 * v2  7.48  38.0  274   3.55  21.5  23.8   a block a token and 64 columns, as upstream
 * v3  10.4  34.3  258   2.61  7.27  9.47   16-byte loads; a block looks at several tokens
 * v4  10.2  33.3  254   1.24  2.59  5.05   more tokens a block, next scores read ahead
 * v5  5.98  32.5  247   1.25  1.78  4.64   128 columns: 512 bytes of a row at a time
 * The 34 MB of T = 64 stay in the L2 cache for v2 and v5, whose loads let it keep them; with other
 * buffers in each call v2 to v5 take 12.2, 10.5, 10.1 and 10.5.  The default is v5, and v3 up to
 * 32 tokens, where it takes 2.17 at T = 1 (v1 103, v2 2.74, v4 2.41): narrow tiles, more blocks.
 */
#include "kernels/compress_pool/compress_pool.h"
#include "kernels/launch.cuh"

typedef struct steptape_compress_pool_args pool_args;

enum {
    C128_RATIO = 128,
    C128_DIM = 512,
    C128_PAGE_ROWS = 8,
    C128_PAGES = C128_RATIO / C128_PAGE_ROWS,
    WARPS = 8,
    THREADS = 32 * WARPS
};

#define LOG2E 1.4426950408889634f

/* Weights of rows whose scores are all -inf are 0, not NaN, as long as another row has one. */
static __device__ __forceinline__ float finite_max(float max) {
    return max == -INFINITY ? 0.0f : max;
}

/*
 * From v2 on maxima are in units of log2: max2 = max * LOG2E, rounded once, and a weight is
 * 2^(score * LOG2E - max2) by one fused operation.  Partial sums are brought together with
 * differences of the same rounded max2, so its rounding cancels however large scores are.
 */
static __device__ __forceinline__ float log2_of(float max) {
    return __fmul_rn(max, LOG2E);
}

static __device__ __forceinline__ float weight_of(float score, float max2) {
    return st_exp2(fmaf(score, LOG2E, -max2));
}

/*
 * Column threadIdx.x of the tile from what each warp has of it (maxima in log2 units); out: the
 * tile's first column.  A warp whose scores are all -inf has max -inf and weighs nothing.
 */
template <int TILE>
static __device__ __forceinline__ void merge_warps(float *out, const float (*s_max)[TILE],
                                                   const float (*s_sum)[TILE],
                                                   const float (*s_product)[TILE]) {
    float max = s_max[0][threadIdx.x];
#pragma unroll
    for (int w = 1; w < WARPS; w++)
        max = fmaxf(max, s_max[w][threadIdx.x]);
    max = finite_max(max);
    float sum = 0.0f;
    float product = 0.0f;
#pragma unroll
    for (int w = 0; w < WARPS; w++) {
        const float scale = st_exp2(s_max[w][threadIdx.x] - max);
        sum += s_sum[w][threadIdx.x] * scale;
        product += s_product[w][threadIdx.x] * scale;
    }
    out[threadIdx.x] = product / sum;
}

/* ---- v1: any shape */

extern "C" __global__ void __launch_bounds__(THREADS)
    steptape_compress_pool_v1(const __grid_constant__ pool_args a) {
    const int64_t t = blockIdx.x;
    if (a.slot_mapping[t] < 0)
        return;
    const int64_t p = a.positions[t];
    if ((p + 1) % a.ratio != 0)
        return;
    if (a.kv_slot_mapping[t] < 0)
        return;
    const int window = (a.overlap ? 2 : 1) * a.ratio;
    const int width = (a.overlap ? 2 : 1) * a.head_dim;
    const int64_t first = p - window + 1;
    const int32_t *table = a.block_table + a.token_to_req[t] * a.block_table_stride;
    for (int d = threadIdx.x; d < a.head_dim; d += blockDim.x) {
        float max = -INFINITY;
        float sum = 0.0f;
        float product = 0.0f;
        for (int64_t q = first < 0 ? 0 : first; q <= p; q++) {
            const int32_t page = table[q / a.block_size];
            const float *row = a.state_cache + (page > 0 ? page : 0) * a.state_page_stride +
                               (q % a.block_size) * a.state_row_stride;
            const int column = a.overlap && q - first >= a.ratio ? a.head_dim + d : d;
            const float score = row[width + column];
            const float kv = row[column];
            const float new_max = fmaxf(max, score);
            const float old_scale = exp2f((max - finite_max(new_max)) * LOG2E);
            const float weight = exp2f((score - finite_max(new_max)) * LOG2E);
            sum = sum * old_scale + weight;
            product = product * old_scale + kv * weight;
            max = new_max;
        }
        a.pooled[t * a.pooled_stride + d] = product / sum;
    }
}

/* ---- v2: c128 in upstream's shape */

extern "C" __global__ void __launch_bounds__(THREADS)
    steptape_compress_pool_v2(const __grid_constant__ pool_args a) {
    __shared__ float s_max[WARPS][64];
    __shared__ float s_sum[WARPS][64];
    __shared__ float s_product[WARPS][64];
    const int64_t t = blockIdx.x / 8;
    const int tile = blockIdx.x % 8;
    const int64_t p = a.positions[t];
    if (a.slot_mapping[t] < 0 || (p + 1) % C128_RATIO != 0 || a.kv_slot_mapping[t] < 0)
        return;
    const int warp = threadIdx.x / 32;
    const int lane = threadIdx.x % 32;
    const int32_t *table = a.block_table + a.token_to_req[t] * a.block_table_stride +
                           p / C128_RATIO * C128_PAGES + warp * 2;
    float2 kv[16];
    float2 score[16];
    float2 max = make_float2(-INFINITY, -INFINITY);
#pragma unroll
    for (int i = 0; i < 16; i++) {
        const int32_t page = table[i / 8];
        const float *row = a.state_cache + (page > 0 ? page : 0) * a.state_page_stride +
                           i % 8 * a.state_row_stride + tile * 64 + lane * 2;
        kv[i] = __ldg((const float2 *)row);
        score[i] = __ldg((const float2 *)(row + C128_DIM));
    }
#pragma unroll
    for (int i = 0; i < 16; i++) {
        max.x = fmaxf(max.x, score[i].x);
        max.y = fmaxf(max.y, score[i].y);
    }
    max = make_float2(log2_of(max.x), log2_of(max.y));
    const float2 base = make_float2(finite_max(max.x), finite_max(max.y));
    float2 sum = make_float2(0.0f, 0.0f);
    float2 product = make_float2(0.0f, 0.0f);
#pragma unroll
    for (int i = 0; i < 16; i++) {
        const float wx = weight_of(score[i].x, base.x);
        const float wy = weight_of(score[i].y, base.y);
        sum.x += wx;
        sum.y += wy;
        product.x += kv[i].x * wx;
        product.y += kv[i].y * wy;
    }
    *(float2 *)&s_max[warp][lane * 2] = max;
    *(float2 *)&s_sum[warp][lane * 2] = sum;
    *(float2 *)&s_product[warp][lane * 2] = product;
    __syncthreads();
    if (threadIdx.x >= 64)
        return;
    merge_warps<64>(a.pooled + t * a.pooled_stride + tile * 64, s_max, s_sum, s_product);
}

/* ---- v3: 16-byte loads, a warp looks at several tokens at once, tiles by the number of tokens */

struct pool_tile_params {
    int tile_log2; /* 4, 5, 6: columns of a tile */
    int tokens;    /* of a block, at most 32 */
};

/*
 * One token's columns [tile * TILE, + TILE) by one block.  LANES lanes read 16 bytes each of a
 * row, the block's groups of LANES lanes read ROWS neighbouring rows each: all of a lane's rows
 * are of one page.
 */
template <int TILE>
static __device__ __forceinline__ void pool_tile(const pool_args &a, int64_t t, int group_of_token,
                                                 int req, int tile, float (*s_max)[64],
                                                 float (*s_sum)[64], float (*s_product)[64]) {
    constexpr int LANES = TILE / 4;
    constexpr int ROWS = C128_RATIO * LANES / THREADS;
    const int warp = threadIdx.x / 32;
    const int lane = threadIdx.x % LANES;
    const int row = threadIdx.x / LANES * ROWS;
    const int32_t *table = a.block_table + req * a.block_table_stride;
    int32_t page = __ldg(table + group_of_token * C128_PAGES + row / C128_PAGE_ROWS);
    page = page > 0 ? page : 0;
    const float *base = a.state_cache + page * a.state_page_stride +
                        row % C128_PAGE_ROWS * a.state_row_stride + tile * TILE + lane * 4;
    float4 kv[ROWS];
    float4 score[ROWS];
#pragma unroll
    for (int i = 0; i < ROWS; i++) {
        score[i] = st_load_stream(base + i * a.state_row_stride + C128_DIM);
        kv[i] = st_load_stream(base + i * a.state_row_stride);
    }
    float max[4], sum[4], product[4];
#pragma unroll
    for (int c = 0; c < 4; c++) {
        max[c] = (&score[0].x)[c];
#pragma unroll
        for (int i = 1; i < ROWS; i++)
            max[c] = fmaxf(max[c], (&score[i].x)[c]);
#pragma unroll
        for (int offset = LANES; offset < 32; offset *= 2)
            max[c] = fmaxf(max[c], __shfl_xor_sync(0xffffffffu, max[c], offset));
        max[c] = log2_of(max[c]);
        const float base = finite_max(max[c]);
        sum[c] = 0.0f;
        product[c] = 0.0f;
#pragma unroll
        for (int i = 0; i < ROWS; i++) {
            const float weight = weight_of((&score[i].x)[c], base);
            sum[c] += weight;
            product[c] = fmaf((&kv[i].x)[c], weight, product[c]);
        }
#pragma unroll
        for (int offset = LANES; offset < 32; offset *= 2) {
            sum[c] += __shfl_xor_sync(0xffffffffu, sum[c], offset);
            product[c] += __shfl_xor_sync(0xffffffffu, product[c], offset);
        }
    }
    if (threadIdx.x % 32 < LANES) {
        *(float4 *)&s_max[warp][lane * 4] = make_float4(max[0], max[1], max[2], max[3]);
        *(float4 *)&s_sum[warp][lane * 4] = make_float4(sum[0], sum[1], sum[2], sum[3]);
        *(float4 *)&s_product[warp][lane * 4] =
            make_float4(product[0], product[1], product[2], product[3]);
    }
    __syncthreads();
    if (threadIdx.x < TILE) {
        merge_warps<64>(a.pooled + t * a.pooled_stride + tile * TILE, s_max, s_sum, s_product);
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, 2)
    steptape_compress_pool_v3(const __grid_constant__ pool_args a,
                              const __grid_constant__ pool_tile_params g) {
    /* Two sets: a block's next token writes the other one while this one is still read. */
    __shared__ float s_max[2][WARPS][64];
    __shared__ float s_sum[2][WARPS][64];
    __shared__ float s_product[2][WARPS][64];
    st_launch_dependents();
    const int lane = threadIdx.x % 32;
    const int tiles_log2 = 9 - g.tile_log2;
    const int tile = blockIdx.x & ((1 << tiles_log2) - 1);
    const int64_t first = (int64_t)(blockIdx.x >> tiles_log2) * g.tokens;
    int group_of_token = 0;
    int req = 0;
    bool stored = false;
    if (lane < g.tokens && first + lane < a.num_tokens) {
        const int64_t slot = __ldg(a.slot_mapping + first + lane);
        const int64_t position = __ldg(a.positions + first + lane);
        const int64_t kv_slot = __ldg(a.kv_slot_mapping + first + lane);
        req = __ldg(a.token_to_req + first + lane);
        group_of_token = (int)(position / C128_RATIO);
        stored = slot >= 0 && (position + 1) % C128_RATIO == 0 && kv_slot >= 0;
    }
    unsigned int left = __ballot_sync(0xffffffffu, stored);
    for (int set = 0; left != 0; left &= left - 1, set ^= 1) {
        const int i = __ffs(left) - 1;
        const int token_group = __shfl_sync(0xffffffffu, group_of_token, i);
        const int token_req = __shfl_sync(0xffffffffu, req, i);
        if (g.tile_log2 == 6)
            pool_tile<64>(a, first + i, token_group, token_req, tile, s_max[set], s_sum[set],
                          s_product[set]);
        else if (g.tile_log2 == 5)
            pool_tile<32>(a, first + i, token_group, token_req, tile, s_max[set], s_sum[set],
                          s_product[set]);
        else
            pool_tile<16>(a, first + i, token_group, token_req, tile, s_max[set], s_sum[set],
                          s_product[set]);
    }
}

/* ---- v4: v3 for 64 columns, with the next token's loads ahead */

enum { V4_TILE = 64, V4_LANES = 16, V4_ROWS = 8 };

/* Where this thread's rows of a token begin: its page is asked for here. */
static __device__ __forceinline__ const float *rows_of(const pool_args &a, int group_of_token,
                                                       int req, int tile) {
    const int group = threadIdx.x / V4_LANES; /* a group of 16 lanes has one page */
    int32_t page =
        __ldg(a.block_table + req * a.block_table_stride + group_of_token * C128_PAGES + group);
    page = page > 0 ? page : 0;
    return a.state_cache + page * a.state_page_stride + tile * V4_TILE + threadIdx.x % V4_LANES * 4;
}

template <bool STREAM = true>
static __device__ __forceinline__ void load_rows(float4 (&to)[V4_ROWS], const float *from,
                                                 int stride) {
#pragma unroll
    for (int i = 0; i < V4_ROWS; i++)
        to[i] = STREAM ? st_load_stream(from + i * stride) : st_load_keep(from + i * stride);
}

extern "C" __global__ void __launch_bounds__(THREADS, 2)
    steptape_compress_pool_v4(const __grid_constant__ pool_args a, int tokens) {
    __shared__ float s_max[2][WARPS][V4_TILE];
    __shared__ float s_sum[2][WARPS][V4_TILE];
    __shared__ float s_product[2][WARPS][V4_TILE];
    st_launch_dependents();
    const int lane = threadIdx.x % 32;
    const int warp = threadIdx.x / 32;
    const int tile = blockIdx.x % 8;
    const int64_t first = (int64_t)(blockIdx.x / 8) * tokens;
    int group_of_token = 0;
    int req = 0;
    bool stored = false;
    if (lane < tokens && first + lane < a.num_tokens) {
        const int64_t slot = __ldg(a.slot_mapping + first + lane);
        const int64_t position = __ldg(a.positions + first + lane);
        const int64_t kv_slot = __ldg(a.kv_slot_mapping + first + lane);
        req = __ldg(a.token_to_req + first + lane);
        group_of_token = (int)(position / C128_RATIO);
        stored = slot >= 0 && (position + 1) % C128_RATIO == 0 && kv_slot >= 0;
    }
    unsigned int left = __ballot_sync(0xffffffffu, stored);
    if (left == 0)
        return;

    int i = __ffs(left) - 1;
    const float *rows = rows_of(a, __shfl_sync(0xffffffffu, group_of_token, i),
                                __shfl_sync(0xffffffffu, req, i), tile);
    float4 score[V4_ROWS];
    load_rows(score, rows + C128_DIM, a.state_row_stride);
    for (int set = 0;; set ^= 1) {
        float4 kv[V4_ROWS];
        load_rows(kv, rows, a.state_row_stride);
        const int64_t t = first + i;
        left &= left - 1;
        if (left != 0) {
            i = __ffs(left) - 1;
            rows = rows_of(a, __shfl_sync(0xffffffffu, group_of_token, i),
                           __shfl_sync(0xffffffffu, req, i), tile);
        }
        /* scores become weights against the warp's maximum */
        float max[4], sum[4], product[4];
#pragma unroll
        for (int c = 0; c < 4; c++) {
            max[c] = (&score[0].x)[c];
#pragma unroll
            for (int r = 1; r < V4_ROWS; r++)
                max[c] = fmaxf(max[c], (&score[r].x)[c]);
            max[c] = fmaxf(max[c], __shfl_xor_sync(0xffffffffu, max[c], V4_LANES));
            max[c] = log2_of(max[c]);
            const float base = finite_max(max[c]);
            sum[c] = 0.0f;
#pragma unroll
            for (int r = 0; r < V4_ROWS; r++) {
                const float weight = weight_of((&score[r].x)[c], base);
                (&score[r].x)[c] = weight;
                sum[c] += weight;
            }
        }
        float4 next_score[V4_ROWS];
        if (left != 0)
            load_rows(next_score, rows + C128_DIM, a.state_row_stride);
#pragma unroll
        for (int c = 0; c < 4; c++) {
            product[c] = 0.0f;
#pragma unroll
            for (int r = 0; r < V4_ROWS; r++)
                product[c] = fmaf((&kv[r].x)[c], (&score[r].x)[c], product[c]);
            sum[c] += __shfl_xor_sync(0xffffffffu, sum[c], V4_LANES);
            product[c] += __shfl_xor_sync(0xffffffffu, product[c], V4_LANES);
        }
        if (lane < V4_LANES) {
            *(float4 *)&s_max[set][warp][lane * 4] = make_float4(max[0], max[1], max[2], max[3]);
            *(float4 *)&s_sum[set][warp][lane * 4] = make_float4(sum[0], sum[1], sum[2], sum[3]);
            *(float4 *)&s_product[set][warp][lane * 4] =
                make_float4(product[0], product[1], product[2], product[3]);
        }
        __syncthreads();
        if (threadIdx.x < V4_TILE) {
            merge_warps<64>(a.pooled + t * a.pooled_stride + tile * V4_TILE, s_max[set], s_sum[set],
                            s_product[set]);
        }
        if (left == 0)
            return;
#pragma unroll
        for (int r = 0; r < V4_ROWS; r++)
            score[r] = next_score[r];
    }
}

/* ---- v5: v4 with 128 columns a block, so that a warp reads 512 bytes of a row */

enum { V5_TILE = 128 };

/* The first of the 8 rows of this thread in page `page` of a warp's two. */
static __device__ __forceinline__ const float *page_rows(const pool_args &a, const int32_t *pages,
                                                         int page) {
    const int32_t at = __ldg(pages + page);
    return a.state_cache + (at > 0 ? at : 0) * a.state_page_stride;
}

/* Takes 8 rows into max, sum and product; score becomes weights.  between(): loads to issue once
 * the scores are used and before kv is waited for. */
template <typename Between>
static __device__ __forceinline__ void
take_rows(float4 (&score)[V4_ROWS], const float4 (&kv)[V4_ROWS], float (&max)[4], float (&sum)[4],
          float (&product)[4], Between between) {
#pragma unroll
    for (int c = 0; c < 4; c++) {
        float new_max = (&score[0].x)[c];
#pragma unroll
        for (int r = 1; r < V4_ROWS; r++)
            new_max = fmaxf(new_max, (&score[r].x)[c]);
        new_max = fmaxf(max[c], log2_of(new_max));
        const float base = finite_max(new_max);
        const float scale = st_exp2(max[c] - base);
        max[c] = new_max;
        sum[c] *= scale;
        product[c] *= scale;
#pragma unroll
        for (int r = 0; r < V4_ROWS; r++) {
            const float weight = weight_of((&score[r].x)[c], base);
            (&score[r].x)[c] = weight;
            sum[c] += weight;
        }
    }
    between();
#pragma unroll
    for (int c = 0; c < 4; c++) {
#pragma unroll
        for (int r = 0; r < V4_ROWS; r++)
            product[c] = fmaf((&kv[r].x)[c], (&score[r].x)[c], product[c]);
    }
}

template <bool STREAM>
static __device__ __forceinline__ void pool_wide(const pool_args &a, int tokens) {
    __shared__ float s_max[2][WARPS][V5_TILE];
    __shared__ float s_sum[2][WARPS][V5_TILE];
    __shared__ float s_product[2][WARPS][V5_TILE];
    st_launch_dependents();
    const int lane = threadIdx.x % 32;
    const int warp = threadIdx.x / 32;
    const int tile = blockIdx.x % 4;
    const int64_t first = (int64_t)(blockIdx.x / 4) * tokens;
    const int32_t *pages = NULL; /* this warp's two, of the token of this lane */
    bool stored = false;
    if (lane < tokens && first + lane < a.num_tokens) {
        const int64_t slot = __ldg(a.slot_mapping + first + lane);
        const int64_t position = __ldg(a.positions + first + lane);
        const int64_t kv_slot = __ldg(a.kv_slot_mapping + first + lane);
        const int32_t req = __ldg(a.token_to_req + first + lane);
        pages = a.block_table + req * a.block_table_stride + position / C128_RATIO * C128_PAGES +
                warp * 2;
        stored = slot >= 0 && (position + 1) % C128_RATIO == 0 && kv_slot >= 0;
    }
    unsigned int left = __ballot_sync(0xffffffffu, stored);
    if (left == 0)
        return;

    const int column = tile * V5_TILE + lane * 4;
    const int stride = (int)a.state_row_stride;
    int i = __ffs(left) - 1;
    const int32_t *token_pages =
        (const int32_t *)__shfl_sync(0xffffffffu, (unsigned long long)pages, i);
    const float *low = page_rows(a, token_pages, 0) + column;
    const float *high = page_rows(a, token_pages, 1) + column;
    float4 score[V4_ROWS];
    load_rows<STREAM>(score, low + C128_DIM, stride);
    for (int set = 0;; set ^= 1) {
        float max[4], sum[4], product[4];
#pragma unroll
        for (int c = 0; c < 4; c++) {
            max[c] = -INFINITY;
            sum[c] = 0.0f;
            product[c] = 0.0f;
        }
        float4 next_score[V4_ROWS];
        {
            float4 kv[V4_ROWS];
            load_rows<STREAM>(kv, low, stride);
            take_rows(score, kv, max, sum, product,
                      [&]() { load_rows<STREAM>(next_score, high + C128_DIM, stride); });
        }
        const int64_t t = first + i;
        left &= left - 1;
        {
            float4 kv[V4_ROWS];
            load_rows<STREAM>(kv, high, stride);
            if (left != 0) {
                i = __ffs(left) - 1;
                token_pages =
                    (const int32_t *)__shfl_sync(0xffffffffu, (unsigned long long)pages, i);
                low = page_rows(a, token_pages, 0) + column;
                high = page_rows(a, token_pages, 1) + column;
            }
            take_rows(next_score, kv, max, sum, product, [&]() {
                if (left != 0)
                    load_rows<STREAM>(score, low + C128_DIM, stride);
            });
        }
        *(float4 *)&s_max[set][warp][lane * 4] = make_float4(max[0], max[1], max[2], max[3]);
        *(float4 *)&s_sum[set][warp][lane * 4] = make_float4(sum[0], sum[1], sum[2], sum[3]);
        *(float4 *)&s_product[set][warp][lane * 4] =
            make_float4(product[0], product[1], product[2], product[3]);
        __syncthreads();
        if (threadIdx.x < V5_TILE)
            merge_warps<V5_TILE>(a.pooled + t * a.pooled_stride + tile * V5_TILE, s_max[set],
                                 s_sum[set], s_product[set]);
        if (left == 0)
            return;
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, 2)
    steptape_compress_pool_v5(const __grid_constant__ pool_args a, int tokens) {
    pool_wide<true>(a, tokens);
}

/* For so few tokens that their rows may be in the L2 cache, and may stay there. */
extern "C" __global__ void __launch_bounds__(THREADS, 2)
    steptape_compress_pool_v5_keep(const __grid_constant__ pool_args a, int tokens) {
    pool_wide<false>(a, tokens);
}

/* ---- launcher */

static int is_vectorisable(const pool_args *args) {
    return args->state_page_stride % 4 == 0 && args->state_row_stride % 4 == 0 &&
           args->state_row_stride <= INT32_MAX / C128_PAGE_ROWS && /* 8 rows by 32-bit offsets */
           st_is_aligned(args->state_cache, 16);
}

int st_compress_pool_cuda(const pool_args *args, unsigned int variant, void *stream) {
    struct st_compress_pool_geometry geometry;
    cudaStream_t s = (cudaStream_t)stream;
    if (variant > 1 && !is_vectorisable(args)) {
        if (args->variant > 1)
            return STEPTAPE_ERR_UNSUPPORTED;
        variant = 1;
    }
    st_compress_pool_geometry(args, variant, &geometry);
    if (geometry.blocks > INT32_MAX)
        return STEPTAPE_ERR_ARGUMENT;
    const unsigned int blocks = (unsigned int)geometry.blocks;
    switch (variant) {
    case 1:
        steptape_compress_pool_v1<<<blocks, geometry.threads, 0, s>>>(*args);
        break;
    case 2:
        steptape_compress_pool_v2<<<blocks, geometry.threads, 0, s>>>(*args);
        break;
    case 4:
        steptape_compress_pool_v4<<<blocks, geometry.threads, 0, s>>>(*args,
                                                                      geometry.tokens_per_block);
        break;
    case 5:
        if (args->num_tokens <= ST_POOL_KEEP_TOKENS)
            steptape_compress_pool_v5_keep<<<blocks, geometry.threads, 0, s>>>(
                *args, geometry.tokens_per_block);
        else
            steptape_compress_pool_v5<<<blocks, geometry.threads, 0, s>>>(
                *args, geometry.tokens_per_block);
        break;
    default: {
        pool_tile_params tile = {geometry.tile_log2, geometry.tokens_per_block};
        steptape_compress_pool_v3<<<blocks, geometry.threads, 0, s>>>(*args, tile);
        break;
    }
    }
    return st_launch_status();
}
