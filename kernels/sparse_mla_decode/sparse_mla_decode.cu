/* SPDX-License-Identifier: Apache-2.0 */
/*
 * sparse_mla_decode on CUDA: the plans, the plain split, the combines, the launcher.
 *
 * plan v1     one thread walks tokens and parts, as upstream's
 * plan v2     a thread a token and a thread a part, closed formulas
 * split v1    fp32 arithmetic, 4 threads a head, one column after the other
 * combine v1  a block a head: few tokens; v2: a warp a head
 */
#include <cuda_fp16.h>
#include <cuda_fp8.h>

#include "kernels/dequantize_and_gather/dequantize_and_gather.h"
#include "kernels/device.h"
#include "kernels/sparse_mla_decode/decode.cuh"

/* ---- split v1 */

enum { V1_THREADS = 256, V1_STAGE = 8, V1_PAD = 16 };

/* Value d of entry `index` of a scope, rounded to bf16. */
static __device__ float entry_value(const decode_args &a, const struct decode_launch &l, int s,
                                    int index, int d) {
    const struct steptape_decode_scope &scope = a.scope[s];
    const int page = st_divide32(index, scope.page_size, l.shift[s]);
    const int entry = index - page * scope.page_size;
    const uint8_t *base = scope.cache + page * scope.page_stride_bytes;
    const bool v32 = a.format == STEPTAPE_KV_FP8_V32;
    const int quantised = v32 ? ST_GATHER_V32_QUANTISED : ST_GATHER_MLA_QUANTISED;
    const uint8_t *data =
        base + (int64_t)entry * (v32 ? STEPTAPE_KV_V32_ENTRY_BYTES : STEPTAPE_KV_ENTRY_DATA_BYTES);
    if (d >= quantised) {
        const uint8_t *rope = data + (v32 ? ST_GATHER_V32_ROPE : quantised) + 2 * (d - quantised);
        return __uint_as_float((rope[0] | (unsigned int)rope[1] << 8) << 16);
    }
    float scale;
    if (v32) {
        const uint8_t *at = data + ST_GATHER_V32_SCALES + d / 128 * 4;
        scale = __uint_as_float(at[0] | at[1] << 8 | at[2] << 16 | (unsigned int)at[3] << 24);
    } else {
        const unsigned int byte = base[(int64_t)scope.page_size * STEPTAPE_KV_ENTRY_DATA_BYTES +
                                       entry * STEPTAPE_KV_ENTRY_SCALE_BYTES + d / 64];
        scale = __uint_as_float(byte == 0 ? 0x00400000u : byte == 255 ? 0x7fc00000u : byte << 23);
    }
    const float value =
        __half2float(__half(__nv_cvt_fp8_to_halfraw((__nv_fp8_storage_t)data[d], __NV_E4M3)));
    return __uint_as_float(bf16x2(__fmul_rn(value, scale), 0.0f) << 16);
}

/* A head's softmax; of four threads, each with every fourth group of 4 values. */
struct v1_state {
    float max, sum; /* max in units of log2(e) */
    float v[ST_DECODE_V_DIM / 4];
};

static __device__ __forceinline__ void v1_add(struct v1_state &state, const float *entry,
                                              const uint16_t *q, int chunks, int lane,
                                              float scale_log2) {
    float score = 0.0f;
    for (int c = lane; c < chunks; c += 4) {
        const uint2 bits = *(const uint2 *)(q + 4 * c);
        const float4 k = *(const float4 *)(entry + 4 * c);
        score = fmaf(__uint_as_float(bits.x << 16), k.x, score);
        score = fmaf(__uint_as_float(bits.x & 0xffff0000u), k.y, score);
        score = fmaf(__uint_as_float(bits.y << 16), k.z, score);
        score = fmaf(__uint_as_float(bits.y & 0xffff0000u), k.w, score);
    }
    score += __shfl_xor_sync(0xffffffffu, score, 1);
    score += __shfl_xor_sync(0xffffffffu, score, 2);
    score *= scale_log2;
    const float max = fmaxf(state.max, score);
    /* nothing but -inf so far: no difference of two infinities */
    const float base = max == -INFINITY ? 0.0f : max;
    const float factor = exp2f(state.max - base);
    const float weight = exp2f(score - base);
    state.max = max;
    state.sum = fmaf(state.sum, factor, weight);
#pragma unroll
    for (int i = 0; i < ST_DECODE_V_DIM / 16; i++) {
        const float4 v = *(const float4 *)(entry + 4 * (lane + 4 * i));
        state.v[4 * i] = fmaf(weight, v.x, state.v[4 * i] * factor);
        state.v[4 * i + 1] = fmaf(weight, v.y, state.v[4 * i + 1] * factor);
        state.v[4 * i + 2] = fmaf(weight, v.z, state.v[4 * i + 2] * factor);
        state.v[4 * i + 3] = fmaf(weight, v.w, state.v[4 * i + 3] * factor);
    }
}

static __device__ __forceinline__ void v1_store(const struct decode_launch &l,
                                                const struct v1_state &state, int t, int h,
                                                int slot, int lane) {
    if (slot >= 0) {
        float *sums = slot_sums(l, slot, h);
#pragma unroll
        for (int i = 0; i < ST_DECODE_V_DIM / 16; i++)
            *(float4 *)(sums + 4 * (lane + 4 * i)) = make_float4(
                state.v[4 * i], state.v[4 * i + 1], state.v[4 * i + 2], state.v[4 * i + 3]);
        if (lane == 0)
            *slot_state(l, slot, h) = make_float2(state.max, state.sum);
        return;
    }
    float lse;
    const float factor = finish(l.a, state.max, state.sum, h, &lse);
    uint16_t *out = out_row(l.a, t, h);
#pragma unroll
    for (int i = 0; i < ST_DECODE_V_DIM / 16; i++)
#pragma unroll
        for (int j = 0; j < 4; j++) {
            const float value = state.sum == 0.0f ? 0.0f : state.v[4 * i + j] * factor;
            out[4 * (lane + 4 * i) + j] = (uint16_t)bf16x2(value, 0.0f);
        }
    if (lane == 0 && l.a.lse != NULL)
        l.a.lse[(int64_t)t * l.a.heads + h] = lse;
}

static __device__ void v1_tile(const struct decode_launch &l, struct v1_state &state,
                               const struct decode_piece &piece, int i, const uint16_t *q,
                               float *stage) {
    const decode_args &a = l.a;
    const struct decode_tile tile = tile_of(piece, i);
    const int32_t *indices =
        a.scope[tile.scope].indices + piece.token * a.scope[tile.scope].indices_stride + tile.first;
    for (int first = 0; first < tile.count; first += V1_STAGE) {
        const int count = min(tile.count - first, (int)V1_STAGE);
        __syncthreads();
        for (int at = threadIdx.x; at < count * a.d_qk; at += V1_THREADS) {
            const int k = at / a.d_qk;
            const int index = indices[first + k];
            if (index >= 0)
                stage[at] = entry_value(a, l, tile.scope, index, at - k * a.d_qk);
        }
        __syncthreads();
        for (int k = 0; k < count; k++)
            if (indices[first + k] >= 0)
                v1_add(state, stage + k * a.d_qk, q, a.d_qk / 4, threadIdx.x % 4, l.scale_log2);
    }
}

extern "C" __global__ void __launch_bounds__(V1_THREADS)
    steptape_sparse_mla_decode_split_v1(const __grid_constant__ decode_launch l) {
    extern __shared__ float4 v1_shared[];
    const decode_args &a = l.a;
    float *stage = (float *)v1_shared;
    uint16_t *q = (uint16_t *)(stage + V1_STAGE * a.d_qk);
    const int row = a.d_qk + V1_PAD;
    const int h0 = blockIdx.x * ST_DECODE_GROUP_HEADS;
    st_launch_dependents();
    st_wait_for_earlier();
    const struct st_decode_part part = plan_parts(l)[blockIdx.y];
    for (int t = part.first_token; t <= part.last_token; t++) {
        const struct decode_piece piece = piece_of(l, part, blockIdx.y, t);
        if (piece.begin >= piece.end)
            continue;
        __syncthreads();
        for (int at = threadIdx.x; at < ST_DECODE_GROUP_HEADS * a.d_qk; at += V1_THREADS) {
            const int h = at / a.d_qk;
            const int d = at - h * a.d_qk;
            q[h * row + d] = a.q[t * a.q_stride + (h0 + h) * a.q_head_stride + d];
        }
        struct v1_state state;
        state.max = -INFINITY;
        state.sum = 0.0f;
#pragma unroll
        for (int i = 0; i < ST_DECODE_V_DIM / 4; i++)
            state.v[i] = 0.0f;
        for (int i = piece.begin; i < piece.end; i++)
            v1_tile(l, state, piece, i, q + threadIdx.x / 4 * row, stage);
        v1_store(l, state, t, h0 + threadIdx.x / 4, piece.slot, threadIdx.x % 4);
    }
}

/* ---- combine */

static __device__ __forceinline__ int slot_of(const struct st_decode_token &token, int k) {
    return k == 0 ? token.first_slot : 2 * (token.first_slot / 2 + k);
}

/* (max, sum) of all pieces of a head, the same in each lane; max is 0 where it would be -inf. */
static __device__ __forceinline__ float2 combine_states(const struct decode_launch &l,
                                                        const struct st_decode_token &token,
                                                        int h) {
    const int lane = threadIdx.x % 32;
    float max = -INFINITY;
    for (int k = lane; k < token.pieces; k += 32)
        max = fmaxf(max, slot_state(l, slot_of(token, k), h)->x);
    for (int step = 16; step > 0; step /= 2)
        max = fmaxf(max, __shfl_xor_sync(0xffffffffu, max, step));
    max = max == -INFINITY ? 0.0f : max;
    float sum = 0.0f;
    for (int k = lane; k < token.pieces; k += 32) {
        const float2 state = *slot_state(l, slot_of(token, k), h);
        sum = fmaf(state.y, exp2f(state.x - max), sum);
    }
    for (int step = 16; step > 0; step /= 2)
        sum += __shfl_xor_sync(0xffffffffu, sum, step);
    return make_float2(max, sum);
}

/* A warp's share of the pieces: first, first + step, ...; 16 values a lane. */
static __device__ __forceinline__ void combine_pieces(const struct decode_launch &l,
                                                      const struct st_decode_token &token, int h,
                                                      float max, int first, int step,
                                                      float4 (&v)[4]) {
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int i = 0; i < 4; i++)
        v[i] = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
#pragma unroll 2
    for (int k = first; k < token.pieces; k += step) {
        const int slot = slot_of(token, k);
        const float4 *from = (const float4 *)slot_sums(l, slot, h) + lane;
        const float factor = exp2f(slot_state(l, slot, h)->x - max);
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const float4 value = from[32 * i];
            v[i].x = fmaf(value.x, factor, v[i].x);
            v[i].y = fmaf(value.y, factor, v[i].y);
            v[i].z = fmaf(value.z, factor, v[i].z);
            v[i].w = fmaf(value.w, factor, v[i].w);
        }
    }
}

static __device__ __forceinline__ void combine_store(const struct decode_launch &l, int t, int h,
                                                     int at, const float4 &v, float sum,
                                                     float factor) {
    uint2 bits = make_uint2(0, 0);
    if (sum != 0.0f)
        bits = make_uint2(bf16x2(v.x * factor, v.y * factor), bf16x2(v.z * factor, v.w * factor));
    *(uint2 *)(out_row(l.a, t, h) + at) = bits;
}

/* v1: a block a head, its warps share the pieces; for few tokens of many pieces. */
extern "C" __global__ void __launch_bounds__(256)
    steptape_sparse_mla_decode_combine_v1(const __grid_constant__ decode_launch l) {
    extern __shared__ float4 combine_shared[]; /* [8 warps][512] values */
    st_wait_for_earlier();
    const int t = blockIdx.x;
    const int h = blockIdx.y;
    const int warp = threadIdx.x / 32;
    const int lane = threadIdx.x % 32;
    const struct st_decode_token token = plan_tokens(l)[t];
    if (token.pieces == 1)
        return;
    const float2 state = combine_states(l, token, h);
    float4 v[4];
    combine_pieces(l, token, h, state.x, warp, 8, v);
#pragma unroll
    for (int i = 0; i < 4; i++)
        combine_shared[128 * warp + lane + 32 * i] = v[i];
    __syncthreads();
    if (threadIdx.x >= 128)
        return;
    float4 sum = combine_shared[threadIdx.x];
    for (int w = 1; w < 8; w++) {
        const float4 other = combine_shared[128 * w + threadIdx.x];
        sum.x += other.x;
        sum.y += other.y;
        sum.z += other.z;
        sum.w += other.w;
    }
    float lse;
    const float factor = finish(l.a, state.x, state.y, h, &lse);
    combine_store(l, t, h, 4 * threadIdx.x, sum, state.y, factor);
    if (threadIdx.x == 0 && l.a.lse != NULL)
        l.a.lse[(int64_t)t * l.a.heads + h] = lse;
}

/* v2: a warp a head; for many tokens of few pieces, or one. */
extern "C" __global__ void __launch_bounds__(256)
    steptape_sparse_mla_decode_combine_v2(const __grid_constant__ decode_launch l) {
    st_wait_for_earlier();
    const int t = blockIdx.x;
    const int h = blockIdx.y * 8 + threadIdx.x / 32;
    const int lane = threadIdx.x % 32;
    const struct st_decode_token token = plan_tokens(l)[t];
    if (token.pieces == 1)
        return;
    const float2 state = combine_states(l, token, h);
    float4 v[4];
    combine_pieces(l, token, h, state.x, 0, 1, v);
    float lse;
    const float factor = finish(l.a, state.x, state.y, h, &lse);
#pragma unroll
    for (int i = 0; i < 4; i++)
        combine_store(l, t, h, 4 * (lane + 32 * i), v[i], state.y, factor);
    if (lane == 0 && l.a.lse != NULL)
        l.a.lse[(int64_t)t * l.a.heads + h] = lse;
}

/* ---- launcher */

static int launch_split(const struct decode_launch *l, const struct st_decode_geometry *geometry,
                        int overlap, void *stream) {
    if (geometry->variant >= 3)
        return st_decode_split_hopper(l, &geometry->split, geometry->variant == 4, overlap, stream);
    if (geometry->variant == 2)
        return st_decode_split_mma(l, &geometry->split, overlap, stream);
    return st_decode_launch_kernel(steptape_sparse_mla_decode_split_v1, l, &geometry->split,
                                   overlap, (cudaStream_t)stream);
}

int st_sparse_mla_decode_cuda(const decode_args *args, const struct st_decode_geometry *geometry,
                              void *stream) {
    const uint32_t phases = geometry->phases;
    const int can_overlap = st_device_facts().generation >= 90;
    struct decode_launch l;
    l.a = *args;
    l.parts = geometry->parts;
    l.scale_log2 = args->sm_scale * ST_LOG2E;
    for (int s = 0; s < 2; s++)
        l.shift[s] = st_shift_of(args->scope[s].page_size);
    int rc = STEPTAPE_OK;
    if ((phases & STEPTAPE_DECODE_PLAN) != 0)
        rc = st_decode_plan_cuda(&l, geometry, stream);
    if (rc == STEPTAPE_OK && (phases & STEPTAPE_DECODE_SPLIT) != 0)
        rc =
            launch_split(&l, geometry, can_overlap && (phases & STEPTAPE_DECODE_PLAN) != 0, stream);
    if (rc == STEPTAPE_OK && (phases & STEPTAPE_DECODE_COMBINE) != 0)
        rc = st_decode_launch_kernel(
            args->tokens <= ST_DECODE_FEW_TOKENS ? steptape_sparse_mla_decode_combine_v1
                                                 : steptape_sparse_mla_decode_combine_v2,
            &l, &geometry->combine, can_overlap && (phases & STEPTAPE_DECODE_SPLIT) != 0,
            (cudaStream_t)stream);
    return rc;
}
