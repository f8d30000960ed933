/* SPDX-License-Identifier: Apache-2.0 */
/*
 * sparse_mla_prefill v3: Hopper's warpgroup products.
 *
 * An item is a token and 64 of its heads; a block of four warpgroups takes every gridDim.x-th item.
 * The warpgroups pass tiles of 64 listed rows to each other through shared memory:
 *   gather   copies listed rows into a ring of two tiles, 16 rows at a time, and the queries
 *   score    S = Q K^T, softmax, weights P (bf16) to shared memory
 *   values   two of them: O += P V, each 256 of the 512 columns (128 registers a thread), in
 *            products of 128 (one of 256 needs more registers than a thread starts with)
 * Scores of a tile are made while values of the one before are summed, and the gather fills the
 * 16-row slots of the ring as the values give them up, over the end of an item too.
 *
 * A row's running maximum is replaced only when it grew by more than LAZY (in powers of two): O is
 * rarely rescaled, and a weight is at most 2^LAZY, which bf16 and fp32 hold as exactly as 1.
 *
 * Microseconds a call (one NVIDIA H200, CUDA 13.0, 2026-11-30, medians of 12 graphs of 4 calls, 4
 * graphs where a call takes over 4000; the two runs that were made), s_kv 8192:
 *   d 512, 64 heads, 4096 tokens: topk = length 384  409, 411;  640  640, 691;
 *       topk 640, length 160  291, 290;  topk 8320, length 2080  2187, 2225;  8320  8319, 8301
 *   1024 tokens, topk 640: length 640  174, 169;  160  83, 85
 *   128 tokens, topk 640: length 640  28.2, 27.8;  160  15.5, 15.3
 *   d 512, 128 heads, 4096 tokens, topk = length 1152  2390, 2438;  d 576, 2048  4143, 4345
 * With a part left out (wrong results; 4096 tokens, topk = length 640, 640 as it is): the gather
 * 650, the products of scores 481, those of values 566, both 415.  So what the others wait for is
 * the one group that makes scores and then weights.
 */
#include "kernels/hopper.cuh"
#include "kernels/launch.cuh"
#include "kernels/sparse_mla_prefill/sparse_mla_prefill.h"

#include <atomic>
#include <math_constants.h>

typedef struct steptape_sparse_mla_prefill_args prefill_args;

enum {
    ROWS = 64, /* of a tile */
    SLOTS = 4, /* of a tile: what the gather fills and the values give up at once */
    SLOT_ROWS = ROWS / SLOTS,
    BLOCK_BYTES = ROWS * 128, /* 64 columns of a tile or of the queries */
    GROUP = 128,              /* threads of a warpgroup */
    WARPS = 4
};

#define LAZY 8.0f
#define LOG2_E 1.4426950408889634f
#define LN_2 0.6931471805599453f

/* Shared memory of a block, in bytes from its start. */
template <int D> struct layout {
    static constexpr int blocks = D / 64;
    static constexpr int tile_bytes = blocks * BLOCK_BYTES;
    static constexpr int weight_tiles = D == 512 ? 2 : 1; /* what there is room for */
    static constexpr int q = 0;
    static constexpr int kv = q + tile_bytes;
    static constexpr int weights = kv + 2 * tile_bytes;
    static constexpr int factors = weights + weight_tiles * BLOCK_BYTES; /* float [tiles][64] */
    static constexpr int grew = factors + weight_tiles * ROWS * 4;       /* int [tiles][4] */
    static constexpr int shares = grew + weight_tiles * WARPS * 4;       /* float [64] */
    static constexpr int valid = shares + ROWS * 4; /* 16 bytes a tile: 4 columns a byte */
    static constexpr int barriers = valid + 2 * 16;
    static constexpr int kv_full = barriers;
    static constexpr int kv_empty = kv_full + 2 * 8; /* [2][SLOTS] */
    static constexpr int q_full = kv_empty + 2 * SLOTS * 8;
    static constexpr int q_empty = q_full + 8;
    static constexpr int weights_full = q_empty + 8;
    static constexpr int weights_empty = weights_full + weight_tiles * 8;
    static constexpr int shares_full = weights_empty + weight_tiles * 8;
    static constexpr int shares_empty = shares_full + 8;
    static constexpr int bytes = shares_empty + 8;
};

#if ST_HOPPER

/* ---- copies and stores */

static __device__ __forceinline__ void st_copy16(uint32_t to, const void *from, uint32_t bytes) {
    asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;" ::"r"(to), "l"(from),
                 "r"(bytes)
                 : "memory");
}

static __device__ __forceinline__ void st_shared_store(uint32_t address, uint32_t value) {
    asm volatile("st.shared.b32 [%0], %1;" ::"r"(address), "r"(value) : "memory");
}

/* ---- items */

struct item {
    int64_t token;
    int first_head;
    int length; /* columns that count */
    int tiles;  /* that are read: an even number */
};

static __device__ __forceinline__ int64_t item_count(const prefill_args &a) {
    return a.heads == ROWS ? a.s_q : 2 * a.s_q;
}

static __device__ __forceinline__ item item_at(const prefill_args &a, int64_t i) {
    item it;
    it.token = a.heads == ROWS ? i : i >> 1;
    it.first_head = a.heads == ROWS ? 0 : (int)(i & 1) * ROWS;
    const int listed = a.topk_length != NULL ? __ldg(a.topk_length + it.token) : a.topk;
    it.length = listed < 0 ? 0 : listed < a.topk ? listed : a.topk;
    it.tiles = (it.length + STEPTAPE_MLA_TILE - 1) / STEPTAPE_MLA_TILE * (STEPTAPE_MLA_TILE / ROWS);
    return it;
}

/* ---- gather */

/* The next tile to gather, over the ends of items. */
struct cursor {
    int64_t i;
    item it;
    int tile;
};

static __device__ __forceinline__ void skip_empty(const prefill_args &a, cursor &c) {
    const int64_t end = item_count(a);
    c.tile = 0;
    for (; c.i < end; c.i += gridDim.x) {
        c.it = item_at(a, c.i);
        if (c.it.tiles > 0)
            return;
    }
}

/* This thread's rows of the tile: one of each slot. */
static __device__ __forceinline__ void load_indices(const prefill_args &a, const cursor &c,
                                                    int (&indices)[SLOTS]) {
    const int32_t *list =
        a.indices + c.it.token * a.indices_stride + c.tile * ROWS + (int)(threadIdx.x % GROUP) / 8;
#pragma unroll
    for (int s = 0; s < SLOTS; s++)
        indices[s] = __ldg(list + s * SLOT_ROWS);
}

template <int D>
static __device__ __forceinline__ void gather_queries(const prefill_args &a, const cursor &c,
                                                      uint32_t smem, int row, int unit,
                                                      uint32_t place) {
    const uint16_t *q =
        a.q + c.it.token * a.q_stride + (c.it.first_head + row) * a.q_head_stride + unit * 8;
#pragma unroll
    for (int s = 0; s < SLOTS; s++)
#pragma unroll
        for (int b = 0; b < layout<D>::blocks; b++)
            st_copy16(smem + layout<D>::q + b * BLOCK_BYTES + s * SLOT_ROWS * 128 + place,
                      q + s * SLOT_ROWS * a.q_head_stride + b * 64, 16);
    st_mbarrier_arrive_after_copies(smem + layout<D>::q_full);
}

/* Eight threads a row: each copies a 16-byte unit of each of its 128-byte blocks. */
template <int D>
static __device__ __forceinline__ void gather(const prefill_args &a, uint32_t smem) {
    typedef layout<D> L;
    const int row = (int)(threadIdx.x % GROUP) / 8, unit = threadIdx.x % 8, lane = threadIdx.x % 32;
    const uint32_t place = row * 128 + ((unit ^ (row & 7)) << 4);
    const int64_t end = item_count(a);
    int next[SLOTS], indices[SLOTS];
    uint32_t q_parity = 0;
    cursor c;
    c.i = blockIdx.x;
    skip_empty(a, c);
    if (c.i < end)
        load_indices(a, c, next);
    for (uint32_t n = 0; c.i < end; n++) {
        const uint32_t buffer = n & 1, parity = (n >> 1) & 1;
        const cursor now = c;
#pragma unroll
        for (int s = 0; s < SLOTS; s++)
            indices[s] = next[s];
        if (++c.tile == c.it.tiles) {
            c.i += gridDim.x;
            skip_empty(a, c);
        }
        if (c.i < end)
            load_indices(a, c, next);
#pragma unroll
        for (int s = 0; s < SLOTS; s++) {
            const bool is_row = indices[s] >= 0 && indices[s] < a.s_kv;
            const bool counts = is_row && now.tile * ROWS + s * SLOT_ROWS + row < now.it.length;
            const uint32_t lanes = __ballot_sync(~0u, counts);
            st_mbarrier_wait(smem + L::kv_empty + (buffer * SLOTS + s) * 8, parity ^ 1);
            const uint16_t *from =
                is_row ? a.kv + (int64_t)indices[s] * a.kv_stride + unit * 8 : a.q; /* not read */
            const uint32_t to = smem + L::kv + buffer * L::tile_bytes + s * SLOT_ROWS * 128 + place;
            const uint32_t bytes = is_row ? 16 : 0;
#pragma unroll
            for (int b = 0; b < L::blocks; b++)
                st_copy16(to + b * BLOCK_BYTES, from + b * 64, bytes);
            if (lane == 0) {
                const uint32_t bits =
                    (lanes & 1) | (lanes >> 7 & 2) | (lanes >> 14 & 4) | (lanes >> 21 & 8);
                asm volatile("st.shared.u8 [%0], %1;" ::"r"(smem + L::valid + buffer * 16 +
                                                            s * WARPS +
                                                            (int)(threadIdx.x / 32 % 4)),
                             "r"(bits)
                             : "memory");
            }
        }
        st_mbarrier_arrive_after_copies(smem + L::kv_full + buffer * 8);
        if (lane == 0)
            st_mbarrier_arrive(smem + L::kv_full + buffer * 8);
        if (now.tile == 0) {
            st_mbarrier_wait(smem + L::q_empty, q_parity ^ 1);
            gather_queries<D>(a, now, smem, row, unit, place);
            q_parity ^= 1;
        }
    }
}

/* ---- score */

/* A thread has two rows, r and r + 8 of its warp's 16. */
struct softmax {
    float max[2];  /* what weights are relative to; in powers of two */
    float most[2]; /* the true maximum */
    float sum[2];  /* of this thread's columns */
};

/* Scores in powers of two; -inf for columns that do not count. */
static __device__ __forceinline__ void mask_scores(float (&s)[32], const uint4 &valid,
                                                   float scale) {
    const int q = threadIdx.x % 4;
#pragma unroll
    for (int i = 0; i < 32; i++)
        s[i] *= scale;
    if ((valid.x & valid.y & valid.z & valid.w) == 0x0f0f0f0fu)
        return;
    const uint32_t words[4] = {valid.x, valid.y, valid.z, valid.w};
#pragma unroll
    for (int i = 0; i < 8; i++) {
        const uint32_t bits = words[i / 2] >> ((i & 1) * 16 + (q >> 1) * 8 + (q & 1) * 2);
        if ((bits & 1) == 0)
            s[i * 4] = s[i * 4 + 2] = -CUDART_INF_F;
        if ((bits & 2) == 0)
            s[i * 4 + 1] = s[i * 4 + 3] = -CUDART_INF_F;
    }
}

/* Scores to weights; factor[k]: what the sums so far are to be multiplied with. */
static __device__ __forceinline__ void weigh(float (&s)[32], softmax &state, float (&factor)[2]) {
#pragma unroll
    for (int k = 0; k < 2; k++) {
        float top = state.most[k];
#pragma unroll
        for (int i = 0; i < 8; i++)
            top = fmaxf(top, fmaxf(s[i * 4 + 2 * k], s[i * 4 + 2 * k + 1]));
        top = fmaxf(top, __shfl_xor_sync(~0u, top, 1));
        top = fmaxf(top, __shfl_xor_sync(~0u, top, 2));
        state.most[k] = top;
        factor[k] = 1.0f;
        if (top > state.max[k] + LAZY) {
            factor[k] = st_exp2(state.max[k] - top);
            state.max[k] = top;
        }
        /* nothing counted so far: -inf - -inf would be NaN */
        const float base = state.max[k] == -CUDART_INF_F ? 0.0f : state.max[k];
        float sum = 0.0f;
#pragma unroll
        for (int i = 0; i < 8; i++) {
            s[i * 4 + 2 * k] = st_exp2(s[i * 4 + 2 * k] - base);
            s[i * 4 + 2 * k + 1] = st_exp2(s[i * 4 + 2 * k + 1] - base);
            sum += s[i * 4 + 2 * k] + s[i * 4 + 2 * k + 1];
        }
        state.sum[k] = state.sum[k] * factor[k] + sum;
    }
}

static __device__ __forceinline__ uint32_t pack_bf16(float low, float high) {
    uint32_t packed;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(high), "f"(low));
    return packed;
}

/* The item's statistics, and what its sums are to be multiplied with. */
template <int D>
static __device__ __forceinline__ void finish(const prefill_args &a, const item &it, softmax &state,
                                              unsigned char *base, int row) {
#pragma unroll
    for (int k = 0; k < 2; k++) {
        float sum = state.sum[k];
        sum += __shfl_xor_sync(~0u, sum, 1);
        sum += __shfl_xor_sync(~0u, sum, 2);
        const int head = it.first_head + row + 8 * k;
        const int64_t at = it.token * a.heads + head;
        const bool is_empty = sum == 0.0f;
        float share = 0.0f;
        if (!is_empty) {
            const float sink = a.attn_sink != NULL ? a.attn_sink[head] : -CUDART_INF_F;
            share = 1.0f / (sum + exp2f(sink * LOG2_E - state.max[k]));
        }
        if (threadIdx.x % 4 == 0) {
            ((float *)(base + layout<D>::shares))[row + 8 * k] = share;
            if (a.max_logits != NULL)
                a.max_logits[at] = state.most[k] * LN_2;
            if (a.lse != NULL)
                a.lse[at] = is_empty ? CUDART_INF_F : (state.max[k] + log2f(sum)) * LN_2;
        }
    }
}

template <int D>
static __device__ __forceinline__ void score_tile(uint32_t smem, uint32_t buffer, float (&s)[32]) {
    typedef layout<D> L;
    const uint64_t q = st_wgmma_rows(smem + L::q);
    const uint64_t k = st_wgmma_rows(smem + L::kv + buffer * L::tile_bytes);
    st_wgmma_fence();
#pragma unroll
    for (int step = 0; step < D / 16; step++) {
        const int offset = (step / 4 * BLOCK_BYTES + step % 4 * 32) / 16;
        st_wgmma_ss_n64<0>(s, q + offset, k + offset, step > 0);
    }
    st_wgmma_commit();
    st_wgmma_wait<0>();
    st_wgmma_pin(s);
}

template <int D>
static __device__ __forceinline__ void score(const prefill_args &a, unsigned char *base,
                                             uint32_t smem) {
    typedef layout<D> L;
    const int warp = threadIdx.x / 32 % 4, lane = threadIdx.x % 32, row = warp * 16 + lane / 4;
    const float scale = a.sm_scale * LOG2_E;
    const int64_t end = item_count(a);
    uint32_t n = 0, item_parity = 0, q_parity = 0;
    for (int64_t i = blockIdx.x; i < end; i += gridDim.x) {
        const item it = item_at(a, i);
        softmax state = {
            {-CUDART_INF_F, -CUDART_INF_F}, {-CUDART_INF_F, -CUDART_INF_F}, {0.0f, 0.0f}};
        if (it.tiles > 0) {
            st_mbarrier_wait(smem + L::q_full, q_parity);
            q_parity ^= 1;
        }
        for (int tile = 0; tile < it.tiles; tile++, n++) {
            const uint32_t buffer = n & 1;
            const uint32_t w = n % L::weight_tiles, w_parity = n / L::weight_tiles & 1;
            float s[32], factor[2];
            st_mbarrier_wait(smem + L::kv_full + buffer * 8, n >> 1 & 1);
            st_fence_async();
            score_tile<D>(smem, buffer, s);
            if (tile + 1 == it.tiles && lane == 0)
                st_mbarrier_arrive(smem + L::q_empty);
            mask_scores(s, *(const uint4 *)(base + L::valid + buffer * 16), scale);
            weigh(s, state, factor);
            const uint32_t grew = __any_sync(~0u, factor[0] != 1.0f || factor[1] != 1.0f);
            st_mbarrier_wait(smem + L::weights_empty + w * 8, w_parity ^ 1);
#pragma unroll
            for (int u = 0; u < 8; u++) {
                const uint32_t to = smem + L::weights + w * BLOCK_BYTES + row * 128 +
                                    ((u ^ (row & 7)) << 4) + lane % 4 * 4;
                st_shared_store(to, pack_bf16(s[u * 4], s[u * 4 + 1]));
                st_shared_store(to + 8 * 128, pack_bf16(s[u * 4 + 2], s[u * 4 + 3]));
            }
            if (lane % 4 == 0) {
                float *factors = (float *)(base + L::factors) + w * ROWS;
                factors[row] = factor[0];
                factors[row + 8] = factor[1];
            }
            if (lane == 0)
                ((uint32_t *)(base + L::grew))[w * WARPS + warp] = grew;
            st_fence_async();
            st_mbarrier_arrive(smem + L::weights_full + w * 8);
        }
        st_mbarrier_wait(smem + L::shares_empty, item_parity ^ 1);
        item_parity ^= 1;
        finish<D>(a, it, state, base, row);
        st_mbarrier_arrive(smem + L::shares_full);
    }
}

/* ---- values */

/* Four lanes hold two columns of each of four groups of 8; then each holds one group of 8. */
static __device__ __forceinline__ void exchange(uint32_t (&w)[4]) {
    const bool is_odd = threadIdx.x & 1, is_high = threadIdx.x & 2;
#pragma unroll
    for (int j = 0; j < 4; j += 2) {
        const uint32_t got = __shfl_xor_sync(~0u, is_odd ? w[j] : w[j + 1], 1);
        w[j] = is_odd ? got : w[j];
        w[j + 1] = is_odd ? w[j + 1] : got;
    }
#pragma unroll
    for (int j = 0; j < 2; j++) {
        const uint32_t got = __shfl_xor_sync(~0u, is_high ? w[j] : w[j + 2], 2);
        w[j] = is_high ? got : w[j];
        w[j + 2] = is_high ? w[j + 2] : got;
    }
}

/* Adding 0 makes -0 a 0: the sign of a zero sum would depend on rows of weight 0.  Without a tile
 * there is no sum. */
static __device__ __forceinline__ float share_of(float sum, float share, bool is_sum) {
    return is_sum ? fmaf(sum, share, 0.0f) : 0.0f;
}

static __device__ __forceinline__ void store_rows(const prefill_args &a, const item &it,
                                                  const float (&o)[2][64], int row, int half,
                                                  const float (&share)[2]) {
#pragma unroll
    for (int k = 0; k < 2; k++) {
        uint16_t *out = a.out +
                        (it.token * a.heads + it.first_head + row + 8 * k) * ST_PREFILL_V_DIM +
                        half * 256 + threadIdx.x % 4 * 8;
#pragma unroll
        for (int g = 0; g < 8; g++) {
            uint32_t w[4];
#pragma unroll
            for (int j = 0; j < 4; j++) {
                const int at = (g % 4 * 4 + j) * 4 + 2 * k;
                w[j] = pack_bf16(share_of(o[g / 4][at], share[k], it.tiles > 0),
                                 share_of(o[g / 4][at + 1], share[k], it.tiles > 0));
            }
            exchange(w);
            *(uint4 *)(out + g * 32) = make_uint4(w[0], w[1], w[2], w[3]);
        }
    }
}

static __device__ __forceinline__ void rescale(float (&o)[2][64], float low, float high) {
#pragma unroll
    for (int i = 0; i < 16; i++)
#pragma unroll
        for (int h = 0; h < 2; h++) {
            o[h][i * 4] *= low;
            o[h][i * 4 + 1] *= low;
            o[h][i * 4 + 2] *= high;
            o[h][i * 4 + 3] *= high;
        }
}

/* One tile's part of the sums; slots of the ring are given up as they are done with. */
template <int D>
static __device__ __forceinline__ void sum_tile(float (&o)[2][64], uint32_t smem, uint32_t n,
                                                int half, bool is_first) {
    typedef layout<D> L;
    const uint32_t buffer = n & 1, w = n % L::weight_tiles;
    const uint32_t empty = smem + L::kv_empty + buffer * SLOTS * 8;
    const uint64_t p = st_wgmma_rows(smem + L::weights + w * BLOCK_BYTES);
    const uint64_t v = st_wgmma_columns(
        smem + L::kv + buffer * L::tile_bytes + half * 4 * BLOCK_BYTES, BLOCK_BYTES);
    const bool is_leader = threadIdx.x % 32 == 0;
    st_wgmma_pin(o[0]);
    st_wgmma_pin(o[1]);
    st_wgmma_fence();
#pragma unroll
    for (int s = 0; s < SLOTS; s++) {
        const uint64_t rows = v + s * (SLOT_ROWS * 128 / 16);
        st_wgmma_ss_n128<1>(o[0], p + s * 2, rows, s > 0 || !is_first);
        st_wgmma_ss_n128<1>(o[1], p + s * 2, rows + 2 * BLOCK_BYTES / 16, s > 0 || !is_first);
        st_wgmma_commit();
    }
    st_wgmma_wait<3>();
    if (is_leader)
        st_mbarrier_arrive(empty);
    st_wgmma_wait<2>();
    if (is_leader)
        st_mbarrier_arrive(empty + 8);
    st_wgmma_wait<1>();
    if (is_leader)
        st_mbarrier_arrive(empty + 16);
    st_wgmma_wait<0>();
    if (is_leader)
        st_mbarrier_arrive(empty + 24);
    st_mbarrier_arrive(smem + L::weights_empty + w * 8); /* all: each has loaded its factors */
    st_wgmma_pin(o[0]);
    st_wgmma_pin(o[1]);
}

template <int D>
static __device__ __forceinline__ void values(const prefill_args &a, const unsigned char *base,
                                              uint32_t smem, int half) {
    typedef layout<D> L;
    const int warp = threadIdx.x / 32 % 4, lane = threadIdx.x % 32, row = warp * 16 + lane / 4;
    const int64_t end = item_count(a);
    uint32_t n = 0, item_parity = 0;
    float o[2][64];
    for (int64_t i = blockIdx.x; i < end; i += gridDim.x) {
        const item it = item_at(a, i);
        for (int tile = 0; tile < it.tiles; tile++, n++) {
            const uint32_t w = n % L::weight_tiles;
            st_mbarrier_wait(smem + L::weights_full + w * 8, n / L::weight_tiles & 1);
            st_fence_async();
            if (tile > 0 && ((const volatile uint32_t *)(base + L::grew))[w * WARPS + warp] != 0) {
                const volatile float *factors =
                    (const volatile float *)(base + L::factors) + w * ROWS;
                rescale(o, factors[row], factors[row + 8]);
            }
            sum_tile<D>(o, smem, n, half, tile == 0);
        }
        st_mbarrier_wait(smem + L::shares_full, item_parity);
        item_parity ^= 1;
        const volatile float *shares = (const volatile float *)(base + L::shares);
        const float share[2] = {shares[row], shares[row + 8]};
        st_mbarrier_arrive(smem + L::shares_empty);
        store_rows(a, it, o, row, half, share);
    }
}

/* ---- a block */

template <int D> static __device__ __forceinline__ void make_barriers(uint32_t smem) {
    typedef layout<D> L;
    for (int b = 0; b < 2; b++) {
        st_mbarrier_init(smem + L::kv_full + b * 8, GROUP + WARPS);
        for (int s = 0; s < SLOTS; s++)
            st_mbarrier_init(smem + L::kv_empty + (b * SLOTS + s) * 8, 2 * WARPS);
    }
    for (int w = 0; w < L::weight_tiles; w++) {
        st_mbarrier_init(smem + L::weights_full + w * 8, GROUP);
        st_mbarrier_init(smem + L::weights_empty + w * 8, 2 * GROUP);
    }
    st_mbarrier_init(smem + L::q_full, GROUP);
    st_mbarrier_init(smem + L::q_empty, WARPS);
    st_mbarrier_init(smem + L::shares_full, GROUP);
    st_mbarrier_init(smem + L::shares_empty, 2 * GROUP);
}

template <int D> static __device__ __forceinline__ void block(const prefill_args &a) {
    extern __shared__ __align__(1024) unsigned char base[];
    const uint32_t smem = (uint32_t)__cvta_generic_to_shared(base);
    if (threadIdx.x == 0)
        make_barriers<D>(smem);
    __syncthreads();
    const int group = threadIdx.x / GROUP;
    if (group == 0) {
        st_give_registers<72>();
        gather<D>(a, smem);
    } else if (group == 1) {
        st_give_registers<120>();
        score<D>(a, base, smem);
    } else {
        st_take_registers<160>();
        values<D>(a, base, smem, group - 2);
    }
}

#define PREFILL_BLOCK(d) block<d>(args)
#define PREFILL_THREADS ST_PREFILL_V3_THREADS
#else
/* What st_sparse_mla_prefill_has_hopper tells by its limit of threads. */
#define PREFILL_BLOCK(d) (void)args
#define PREFILL_THREADS 32
#endif

extern "C" __global__ void __launch_bounds__(PREFILL_THREADS, 1)
    steptape_sparse_mla_prefill_v3_d512(const __grid_constant__ prefill_args args) {
    PREFILL_BLOCK(512);
}

extern "C" __global__ void __launch_bounds__(PREFILL_THREADS, 1)
    steptape_sparse_mla_prefill_v3_d576(const __grid_constant__ prefill_args args) {
    PREFILL_BLOCK(576);
}

int st_sparse_mla_prefill_has_hopper(void) {
    static std::atomic<int> known{0}; /* 1: no, 2: yes */
    int answer = known.load(std::memory_order_relaxed);
    if (answer == 0) {
        cudaFuncAttributes attributes;
        if (cudaFuncGetAttributes(&attributes, steptape_sparse_mla_prefill_v3_d512) !=
            cudaSuccess) {
            cudaGetLastError();
            return 0;
        }
        answer = attributes.maxThreadsPerBlock < ST_PREFILL_V3_THREADS ? 1 : 2;
        known.store(answer, std::memory_order_relaxed);
    }
    return answer == 2;
}

int st_sparse_mla_prefill_hopper(const prefill_args *args, const struct st_geometry *geometry,
                                 void *stream) {
    void (*kernel)(prefill_args) = args->d_qk == 512 ? steptape_sparse_mla_prefill_v3_d512
                                                     : steptape_sparse_mla_prefill_v3_d576;
    const int bytes = args->d_qk == 512 ? layout<512>::bytes : layout<576>::bytes;
    cudaError_t error =
        cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
    if (error != cudaSuccess)
        return st_cuda_status(error);
    kernel<<<geometry->grid[0], geometry->threads, (size_t)bytes, (cudaStream_t)stream>>>(*args);
    return st_launch_status();
}
