/* SPDX-License-Identifier: Apache-2.0 */
/*
 * sparse_mla_prefill with mma.sync: a block of 8 warps for 64 heads of one token, keys in tiles.
 *
 * A tile of keys is gathered with 16-byte asynchronous copies into one of two buffers while the
 * other is worked on.  Scores: the warps split heads x keys x half of the channels 2 x 2 x 2, the
 * two halves meet in shared memory.  Softmax: four threads a head.  Values: each warp owns 64 of
 * the 512 channels for all heads, the sums stay in registers.  Rows lie in shared memory with
 * their 16-byte chunks exchanged by the row's number, so that ldmatrix meets no bank twice.
 */
#ifndef ST_KERNELS_SPARSE_MLA_PREFILL_MMA_CUH
#define ST_KERNELS_SPARSE_MLA_PREFILL_MMA_CUH

#include "kernels/sparse_mla_prefill/sparse_mla_prefill.h"

#include <cuda_bf16.h>
#include <math_constants.h>
#include <stdint.h>

static __device__ __forceinline__ uint32_t st_smem_address(const void *pointer) {
    return (uint32_t)__cvta_generic_to_shared(pointer);
}

/* 16 bytes, or 16 zeros when not wanted. */
static __device__ __forceinline__ void st_copy16(uint32_t to, const void *from, bool wanted) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from),
                 "r"(wanted ? 16 : 0));
}

static __device__ __forceinline__ void st_copy_commit(void) {
    asm volatile("cp.async.commit_group;");
}

static __device__ __forceinline__ void st_copy_wait(void) {
    asm volatile("cp.async.wait_group 0;");
}

static __device__ __forceinline__ void st_ldmatrix(uint32_t (&r)[4], uint32_t address) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(address));
}

static __device__ __forceinline__ void st_ldmatrix_trans(uint32_t (&r)[4], uint32_t address) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(address));
}

static __device__ __forceinline__ void st_mma(float (&c)[4], const uint32_t (&a)[4], uint32_t b0,
                                              uint32_t b1) {
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
                 "{%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

template <int D, int KEYS> struct st_prefill_mma {
    static constexpr int threads = 256, heads = ST_PREFILL_HEADS;
    static constexpr int chunks = D / 8;               /* 16-byte chunks of a row */
    static constexpr int score_stride = KEYS * 4 + 16; /* bytes; rows shift by 4 banks */
    static constexpr int score_bytes = heads * score_stride;
    static constexpr int q_bytes = heads * D * 2, kv_bytes = KEYS * D * 2;
    static constexpr int smem_bytes = q_bytes + 2 * kv_bytes + 2 * score_bytes;

    /* Address of chunk `chunk` of row `row` of a tile. */
    static __device__ __forceinline__ uint32_t at(uint32_t tile, int row, int chunk) {
        return tile + (uint32_t)(row * D * 2 + ((chunk ^ (row & 7)) << 4));
    }
};

struct st_prefill_tail {
    float factor[ST_PREFILL_HEADS];
    int32_t index[2][64];
};

/* Rows of one tile: a warp takes every 8th.  Invalid rows become zeros. */
template <int D, int KEYS>
static __device__ __forceinline__ void st_prefill_gather(const steptape_sparse_mla_prefill_args &a,
                                                         uint32_t tile, const int32_t *index) {
    typedef st_prefill_mma<D, KEYS> T;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
#pragma unroll
    for (int row = warp; row < KEYS; row += T::threads / 32) {
        const int32_t at = index[row];
        const uint16_t *from = a.kv + (at >= 0 ? at : 0) * a.kv_stride;
#pragma unroll
        for (int chunk = lane; chunk < T::chunks; chunk += 32)
            st_copy16(T::at(tile, row, chunk), from + chunk * 8, at >= 0);
    }
    st_copy_commit();
}

/* This thread's part of a tile's indices, -1 for one that is not valid. */
template <int KEYS>
static __device__ __forceinline__ int32_t
st_prefill_index(const steptape_sparse_mla_prefill_args &a, int64_t token, int column, int end) {
    int32_t index = -1;
    if ((int)threadIdx.x < KEYS && column + (int)threadIdx.x < end)
        index = a.indices[token * a.indices_stride + column + threadIdx.x];
    return index < a.s_kv ? index : -1;
}

/* Scores of the tile, each half of the channels to its own array. */
template <int D, int KEYS>
static __device__ __forceinline__ void st_prefill_scores(uint32_t q, uint32_t kv, uint32_t scores) {
    typedef st_prefill_mma<D, KEYS> T;
    constexpr int n_tiles = KEYS / 16; /* of 8 keys, a warp has half of the keys */
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const int head = (warp & 1) * 32, key = (warp >> 1 & 1) * (KEYS / 2), half = warp >> 2;
    float c[2][n_tiles][4] = {};
#pragma unroll 4
    for (int step = 0; step < D / 32; step++) {
        const int chunk = half * (T::chunks / 2) + step * 2;
        uint32_t am[2][4];
        st_ldmatrix(am[0], T::at(q, head + (lane & 15), chunk + (lane >> 4)));
        st_ldmatrix(am[1], T::at(q, head + 16 + (lane & 15), chunk + (lane >> 4)));
#pragma unroll
        for (int n = 0; n < n_tiles; n += 2) {
            uint32_t b[4];
            st_ldmatrix(
                b, T::at(kv, key + n * 8 + (lane & 7) + (lane >> 4) * 8, chunk + (lane >> 3 & 1)));
#pragma unroll
            for (int m = 0; m < 2; m++) {
                st_mma(c[m][n], am[m], b[0], b[1]);
                st_mma(c[m][n + 1], am[m], b[2], b[3]);
            }
        }
    }
    const uint32_t out = scores + half * T::score_bytes;
#pragma unroll
    for (int m = 0; m < 2; m++)
#pragma unroll
        for (int n = 0; n < n_tiles; n++) {
            const int row = head + m * 16 + lane / 4, column = key + n * 8 + lane % 4 * 2;
            const uint32_t to = out + row * T::score_stride + column * 4;
            asm volatile("st.shared.v2.f32 [%0], {%1,%2};" ::"r"(to), "f"(c[m][n][0]),
                         "f"(c[m][n][1]));
            asm volatile("st.shared.v2.f32 [%0], {%1,%2};" ::"r"(to + 8 * T::score_stride),
                         "f"(c[m][n][2]), "f"(c[m][n][3]));
        }
}

/* Running maximum and sum of a head; the same in its four threads. */
struct st_prefill_softmax {
    float max, sum; /* of scores in units of log2 */
};

/* Scores to weights, in place: row r of the first array then holds KEYS bf16.  Returns what the
 * sums so far are to be multiplied with. */
template <int D, int KEYS>
static __device__ __forceinline__ float st_prefill_weights(unsigned char *scores,
                                                           const int32_t *index, int valid,
                                                           float scale, st_prefill_softmax &state) {
    typedef st_prefill_mma<D, KEYS> T;
    constexpr int own = KEYS / 4;
    const int row = threadIdx.x / 4, first = threadIdx.x % 4 * own;
    float4 *a = (float4 *)(scores + row * T::score_stride + first * 4);
    const float4 *b = (const float4 *)(scores + T::score_bytes + row * T::score_stride + first * 4);
    float s[own], top = -CUDART_INF_F, sum = 0.0f;
#pragma unroll
    for (int i = 0; i < own; i += 4) {
        const float4 x = a[i / 4], y = b[i / 4];
        s[i] = x.x + y.x;
        s[i + 1] = x.y + y.y;
        s[i + 2] = x.z + y.z;
        s[i + 3] = x.w + y.w;
    }
#pragma unroll
    for (int i = 0; i < own; i++) {
        const bool is_valid = first + i < valid && index[first + i] >= 0;
        s[i] = is_valid ? s[i] * scale : -CUDART_INF_F;
        top = fmaxf(top, s[i]);
    }
    top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, 1));
    top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, 2));
    top = fmaxf(top, state.max);
    /* nothing valid so far: exp2(-inf - -inf) would be NaN */
    const float base = top == -CUDART_INF_F ? 0.0f : top;
    const float factor = exp2f(state.max - base);
    uint32_t packed[own / 2];
#pragma unroll
    for (int i = 0; i < own; i += 2) {
        const float x = exp2f(s[i] - base), y = exp2f(s[i + 1] - base);
        sum += x + y;
        const __nv_bfloat162 pair = __floats2bfloat162_rn(x, y);
        packed[i / 2] = *(const uint32_t *)&pair;
    }
    sum += __shfl_xor_sync(0xffffffffu, sum, 1);
    sum += __shfl_xor_sync(0xffffffffu, sum, 2);
    state.sum = state.sum * factor + sum;
    state.max = top;
    __syncwarp(); /* the row's four threads have read it */
    uint32_t *out = (uint32_t *)(scores + row * T::score_stride + first * 2);
#pragma unroll
    for (int i = 0; i < own / 2; i++)
        out[i] = packed[i];
    return factor;
}

/* sums[m][n]: heads m * 16.., channels warp * 64 + n * 8.. */
template <int D, int KEYS>
static __device__ __forceinline__ void st_prefill_values(float (&sums)[4][8][4], uint32_t weights,
                                                         uint32_t kv) {
    typedef st_prefill_mma<D, KEYS> T;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
#pragma unroll
    for (int step = 0; step < KEYS / 16; step++) {
        uint32_t am[4][4];
#pragma unroll
        for (int m = 0; m < 4; m++)
            st_ldmatrix(am[m], weights + (m * 16 + (lane & 15)) * T::score_stride + step * 32 +
                                   (lane >> 4) * 16);
#pragma unroll
        for (int n = 0; n < 8; n += 2) {
            uint32_t b[4];
            st_ldmatrix_trans(b, T::at(kv, step * 16 + (lane & 15), warp * 8 + n + (lane >> 4)));
#pragma unroll
            for (int m = 0; m < 4; m++) {
                st_mma(sums[m][n], am[m], b[0], b[1]);
                st_mma(sums[m][n + 1], am[m], b[2], b[3]);
            }
        }
    }
}

template <int D, int KEYS>
static __device__ __forceinline__ void
st_prefill_store(const steptape_sparse_mla_prefill_args &a, int64_t token, int head,
                 const float (&sums)[4][8][4], const float *factor) {
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
#pragma unroll
    for (int m = 0; m < 4; m++)
#pragma unroll
        for (int k = 0; k < 2; k++) {
            const int row = m * 16 + k * 8 + lane / 4;
            const float f = factor[row];
            uint16_t *out = a.out + ((token * a.heads + head + row) * ST_PREFILL_V_DIM);
#pragma unroll
            for (int n = 0; n < 8; n++)
                *(__nv_bfloat162 *)(out + warp * 64 + n * 8 + lane % 4 * 2) =
                    __floats2bfloat162_rn(sums[m][n][2 * k] * f, sums[m][n][2 * k + 1] * f);
        }
}

/* What a head's sums are divided by, and its two statistics. */
static __device__ __forceinline__ float st_prefill_finish(const steptape_sparse_mla_prefill_args &a,
                                                          int64_t at, int head,
                                                          const st_prefill_softmax &state) {
    const float ln2 = 0.6931471805599453f;
    const bool is_empty = state.sum == 0.0f;
    const float max = state.max * ln2, lse = is_empty ? CUDART_INF_F : logf(state.sum) + max;
    float factor = is_empty ? 1.0f : 1.0f / state.sum;
    if (a.attn_sink != NULL && !is_empty)
        factor /= 1.0f + expf(a.attn_sink[head] - lse);
    if (threadIdx.x % 4 == 0) {
        if (a.max_logits != NULL)
            a.max_logits[at] = max;
        if (a.lse != NULL)
            a.lse[at] = lse;
    }
    return factor;
}

template <int D, int KEYS>
static __device__ __forceinline__ void st_prefill_block(const steptape_sparse_mla_prefill_args &a) {
    typedef st_prefill_mma<D, KEYS> T;
    extern __shared__ __align__(16) unsigned char smem[];
    __shared__ st_prefill_tail tail;
    const int64_t token = blockIdx.x;
    const int first_head = blockIdx.y * T::heads;
    const uint32_t q = st_smem_address(smem), kv = q + T::q_bytes;
    unsigned char *scores = smem + T::q_bytes + 2 * T::kv_bytes;
    const uint32_t score = st_smem_address(scores);
    int length = a.topk_length != NULL ? a.topk_length[token] : a.topk;
    length = length < 0 ? 0 : length > a.topk ? a.topk : length;
    const int end = (length + STEPTAPE_MLA_TILE - 1) / STEPTAPE_MLA_TILE * STEPTAPE_MLA_TILE;
    const int tiles = end / KEYS;
    const float scale = a.sm_scale * 1.4426950408889634f;

    if (threadIdx.x < KEYS)
        tail.index[0][threadIdx.x] = st_prefill_index<KEYS>(a, token, 0, end);
    const uint16_t *q_rows = a.q + token * a.q_stride + first_head * a.q_head_stride;
    for (int i = threadIdx.x; i < T::heads * T::chunks; i += T::threads) {
        const int row = i / T::chunks, chunk = i % T::chunks;
        st_copy16(T::at(q, row, chunk), q_rows + row * a.q_head_stride + chunk * 8, true);
    }
    int32_t next = st_prefill_index<KEYS>(a, token, KEYS, end);
    __syncthreads();
    if (tiles > 0)
        st_prefill_gather<D, KEYS>(a, kv, tail.index[0]);
    if (threadIdx.x < KEYS)
        tail.index[1][threadIdx.x] = next;

    float sums[4][8][4] = {};
    st_prefill_softmax state = {-CUDART_INF_F, 0.0f};
    for (int tile = 0; tile < tiles; tile++) {
        const uint32_t keys = kv + (tile & 1) * T::kv_bytes;
        st_copy_wait();
        __syncthreads(); /* the tile is here, and nobody reads the other buffer any more */
        if (tile + 1 < tiles)
            st_prefill_gather<D, KEYS>(a, kv + (~tile & 1) * T::kv_bytes, tail.index[~tile & 1]);
        next = st_prefill_index<KEYS>(a, token, (tile + 2) * KEYS, end);
        st_prefill_scores<D, KEYS>(q, keys, score);
        __syncthreads();
        const float factor = st_prefill_weights<D, KEYS>(scores, tail.index[tile & 1],
                                                         length - tile * KEYS, scale, state);
        if (threadIdx.x % 4 == 0)
            tail.factor[threadIdx.x / 4] = factor;
        const int rescale = __syncthreads_or(factor != 1.0f);
        if (threadIdx.x < KEYS)
            tail.index[tile & 1][threadIdx.x] = next;
        if (rescale) {
#pragma unroll
            for (int m = 0; m < 4; m++)
#pragma unroll
                for (int k = 0; k < 2; k++) {
                    const float f = tail.factor[m * 16 + k * 8 + threadIdx.x % 32 / 4];
#pragma unroll
                    for (int n = 0; n < 8; n++) {
                        sums[m][n][2 * k] *= f;
                        sums[m][n][2 * k + 1] *= f;
                    }
                }
        }
        st_prefill_values<D, KEYS>(sums, score, keys);
    }
    st_copy_wait();
    __syncthreads();
    const int head = first_head + threadIdx.x / 4;
    const float factor = st_prefill_finish(a, token * a.heads + head, head, state);
    if (threadIdx.x % 4 == 0)
        tail.factor[threadIdx.x / 4] = factor;
    __syncthreads();
    st_prefill_store<D, KEYS>(a, token, first_head, sums, tail.factor);
}

#endif
