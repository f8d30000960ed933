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
 * v3 to v5 give the same bits (pool.cuh); v5 took 1 to 5 % less in the same run when its sums were
 * chains of its own: 6.14, 32.7, 255.1, against 6.48, 33.1, 255.7.
 */
#include "kernels/compress_pool/compress_pool.h"
#include "kernels/compress_pool/pool.cuh"
#include "kernels/launch.cuh"

typedef struct steptape_compress_pool_args pool_args;

enum {
    C128_RATIO = ST_C128_RATIO,
    C128_DIM = ST_C128_DIM,
    C128_PAGE_ROWS = ST_C128_PAGE_ROWS,
    C128_PAGES = ST_C128_PAGES,
    WARPS = ST_POOL_WARPS,
    THREADS = 32 * WARPS
};

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
    const struct st_pool_channel channel = {a.state_cache,
                                            a.block_table +
                                                a.token_to_req[t] * a.block_table_stride,
                                            a.state_page_stride,
                                            a.state_row_stride,
                                            p,
                                            a.head_dim,
                                            a.ratio,
                                            a.overlap,
                                            a.block_size};
    for (int d = threadIdx.x; d < a.head_dim; d += blockDim.x)
        a.pooled[t * a.pooled_stride + d] = st_pool_channel(channel, d);
}

/* ---- v2: c128 in upstream's shape */

extern "C" __global__ void __launch_bounds__(THREADS)
    steptape_compress_pool_v2(const __grid_constant__ pool_args a) {
    __shared__ struct st_pool_parts<64> parts;
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
    max = make_float2(st_log2_of(max.x), st_log2_of(max.y));
    const float2 base = make_float2(st_finite_max(max.x), st_finite_max(max.y));
    float2 sum = make_float2(0.0f, 0.0f);
    float2 product = make_float2(0.0f, 0.0f);
#pragma unroll
    for (int i = 0; i < 16; i++) {
        const float wx = st_weight_of(score[i].x, base.x);
        const float wy = st_weight_of(score[i].y, base.y);
        sum.x += wx;
        sum.y += wy;
        product.x += kv[i].x * wx;
        product.y += kv[i].y * wy;
    }
    *(float2 *)&parts.max[warp][lane * 2] = max;
    *(float2 *)&parts.sum[warp][lane * 2] = sum;
    *(float2 *)&parts.product[warp][lane * 2] = product;
    __syncthreads();
    if (threadIdx.x < 64)
        a.pooled[t * a.pooled_stride + tile * 64 + threadIdx.x] =
            st_pool_merge<64>(&parts, threadIdx.x);
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
                                                 int req, int tile,
                                                 struct st_pool_parts<64> *parts) {
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
    struct st_pool_part part;
    st_pool_weights<ROWS, LANES>(score, &part);
    st_pool_products<ROWS, LANES>(score, kv, &part);
    st_pool_join_halves(&part);
    if (threadIdx.x % 32 < LANES)
        st_pool_leave(parts, warp, lane * 4, &part);
    __syncthreads();
    if (threadIdx.x < TILE)
        a.pooled[t * a.pooled_stride + tile * TILE + threadIdx.x] =
            st_pool_merge<64>(parts, threadIdx.x);
}

extern "C" __global__ void __launch_bounds__(THREADS, 2)
    steptape_compress_pool_v3(const __grid_constant__ pool_args a,
                              const __grid_constant__ pool_tile_params g) {
    /* Two sets: a block's next token writes the other one while this one is still read. */
    __shared__ struct st_pool_parts<64> parts[2];
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
            pool_tile<64>(a, first + i, token_group, token_req, tile, &parts[set]);
        else if (g.tile_log2 == 5)
            pool_tile<32>(a, first + i, token_group, token_req, tile, &parts[set]);
        else
            pool_tile<16>(a, first + i, token_group, token_req, tile, &parts[set]);
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
    __shared__ struct st_pool_parts<V4_TILE> parts[2];
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
        struct st_pool_part part;
        st_pool_weights<V4_ROWS, V4_LANES>(score, &part);
        float4 next_score[V4_ROWS];
        if (left != 0)
            load_rows(next_score, rows + C128_DIM, a.state_row_stride);
        st_pool_products<V4_ROWS, V4_LANES>(score, kv, &part);
        st_pool_join_halves(&part);
        if (lane < V4_LANES)
            st_pool_leave(&parts[set], warp, lane * 4, &part);
        __syncthreads();
        if (threadIdx.x < V4_TILE)
            a.pooled[t * a.pooled_stride + tile * V4_TILE + threadIdx.x] =
                st_pool_merge<V4_TILE>(&parts[set], threadIdx.x);
        if (left == 0)
            return;
#pragma unroll
        for (int r = 0; r < V4_ROWS; r++)
            score[r] = next_score[r];
    }
}

/* ---- v5: v4 with 128 columns a block, so that a warp reads 512 bytes of a row */

enum { V5_TILE = 128, V5_LANES = 32 };

/* The first of the 8 rows of this thread in a page. */
static __device__ __forceinline__ const float *page_rows(const pool_args &a, int32_t page) {
    return a.state_cache + (page > 0 ? page : 0) * a.state_page_stride;
}

template <bool STREAM>
static __device__ __forceinline__ void pool_wide(const pool_args &a, int tokens) {
    __shared__ struct st_pool_parts<V5_TILE> parts[2];
    st_launch_dependents();
    const int lane = threadIdx.x % 32;
    const int warp = threadIdx.x / 32;
    const int tile = blockIdx.x % 4;
    const int64_t first = (int64_t)(blockIdx.x / 4) * tokens;
    int32_t low_page = 0, high_page = 0; /* this warp's two, of the token of this lane */
    bool stored = false;
    if (lane < tokens && first + lane < a.num_tokens) {
        const int64_t slot = __ldg(a.slot_mapping + first + lane);
        const int64_t position = __ldg(a.positions + first + lane);
        const int64_t kv_slot = __ldg(a.kv_slot_mapping + first + lane);
        const int32_t req = __ldg(a.token_to_req + first + lane);
        stored = slot >= 0 && (position + 1) % C128_RATIO == 0 && kv_slot >= 0;
        if (stored) {
            const int32_t *pages = a.block_table + req * a.block_table_stride +
                                   position / C128_RATIO * C128_PAGES + warp * 2;
            low_page = __ldg(pages);
            high_page = __ldg(pages + 1);
        }
    }
    unsigned int left = __ballot_sync(0xffffffffu, stored);
    if (left == 0)
        return;

    const int column = tile * V5_TILE + lane * 4;
    const int stride = (int)a.state_row_stride;
    int i = __ffs(left) - 1;
    const float *low = page_rows(a, __shfl_sync(0xffffffffu, low_page, i)) + column;
    float4 score[V4_ROWS];
    load_rows<STREAM>(score, low + C128_DIM, stride);
    for (int set = 0;; set ^= 1) {
        const float *high = page_rows(a, __shfl_sync(0xffffffffu, high_page, i)) + column;
        struct st_pool_part part, other;
        float4 next_score[V4_ROWS];
        {
            float4 kv[V4_ROWS];
            load_rows<STREAM>(kv, low, stride);
            st_pool_weights<V4_ROWS, V5_LANES>(score, &part);
            load_rows<STREAM>(next_score, high + C128_DIM, stride);
            st_pool_products<V4_ROWS, V5_LANES>(score, kv, &part);
        }
        const int64_t t = first + i;
        left &= left - 1;
        {
            float4 kv[V4_ROWS];
            load_rows<STREAM>(kv, high, stride);
            if (left != 0) {
                i = __ffs(left) - 1;
                low = page_rows(a, __shfl_sync(0xffffffffu, low_page, i)) + column;
            }
            float other_scale[4];
            st_pool_weights<V4_ROWS, V5_LANES>(next_score, &other);
            st_pool_join_weights(&part, &other, other_scale);
            if (left != 0)
                load_rows<STREAM>(score, low + C128_DIM, stride);
            st_pool_products<V4_ROWS, V5_LANES>(next_score, kv, &other);
            st_pool_join_products(&part, &other, other_scale);
        }
        st_pool_leave(&parts[set], warp, lane * 4, &part);
        __syncthreads();
        if (threadIdx.x < V5_TILE)
            a.pooled[t * a.pooled_stride + tile * V5_TILE + threadIdx.x] =
                st_pool_merge<V5_TILE>(&parts[set], threadIdx.x);
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
