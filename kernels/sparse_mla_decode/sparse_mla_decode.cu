/* SPDX-License-Identifier: Apache-2.0 */
/*
 * sparse_mla_decode on CUDA: the plans, the plain split, the combines, the launcher.
 *
 * plan v1     one thread walks tokens and parts, as upstream's
 * plan v2     a thread a token and a thread a part, closed formulas
 * split v1    fp32 arithmetic, 4 threads a head, one column after the other
 * combine v1  2 heads a block: few tokens; v2: 8 heads a block
 */
#include <cuda_fp16.h>
#include <cuda_fp8.h>

#include "kernels/dequantize_and_gather/dequantize_and_gather.h"
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

/* Adds up the pieces of a head, N values a thread; `lane` of 512 / N threads. */
template <int N>
static __device__ __forceinline__ void combine_head(const struct decode_launch &l, int t, int h,
                                                    int lane) {
    const struct st_decode_token token = plan_tokens(l)[t];
    if (token.pieces == 1)
        return;
    const int first_part = token.first_slot / 2;
    float max = -INFINITY;
    for (int k = 0; k < token.pieces; k++) {
        const int slot = k == 0 ? token.first_slot : 2 * (first_part + k);
        max = fmaxf(max, slot_state(l, slot, h)->x);
    }
    const float base = max == -INFINITY ? 0.0f : max;
    float sum = 0.0f;
    float v[N];
#pragma unroll
    for (int i = 0; i < N; i++)
        v[i] = 0.0f;
#pragma unroll 4
    for (int k = 0; k < token.pieces; k++) {
        const int slot = k == 0 ? token.first_slot : 2 * (first_part + k);
        const float2 state = *slot_state(l, slot, h);
        const float4 *from = (const float4 *)slot_sums(l, slot, h) + lane;
        const float factor = exp2f(state.x - base);
        sum = fmaf(state.y, factor, sum);
#pragma unroll
        for (int i = 0; i < N / 4; i++) {
            const float4 value = from[i * (ST_DECODE_V_DIM / N)];
            v[4 * i] = fmaf(value.x, factor, v[4 * i]);
            v[4 * i + 1] = fmaf(value.y, factor, v[4 * i + 1]);
            v[4 * i + 2] = fmaf(value.z, factor, v[4 * i + 2]);
            v[4 * i + 3] = fmaf(value.w, factor, v[4 * i + 3]);
        }
    }
    float lse;
    const float factor = finish(l.a, max, sum, h, &lse);
    uint16_t *out = out_row(l.a, t, h);
#pragma unroll
    for (int i = 0; i < N / 4; i++) {
        const float f = factor;
        uint2 bits = make_uint2(0, 0);
        if (sum != 0.0f)
            bits = make_uint2(bf16x2(v[4 * i] * f, v[4 * i + 1] * f),
                              bf16x2(v[4 * i + 2] * f, v[4 * i + 3] * f));
        *(uint2 *)(out + 4 * (lane + i * (ST_DECODE_V_DIM / N))) = bits;
    }
    if (lane == 0 && l.a.lse != NULL)
        l.a.lse[(int64_t)t * l.a.heads + h] = lse;
}

extern "C" __global__ void __launch_bounds__(256)
    steptape_sparse_mla_decode_combine_v1(const __grid_constant__ decode_launch l) {
    combine_head<4>(l, blockIdx.x, blockIdx.y * 2 + threadIdx.x / 128, threadIdx.x % 128);
}

extern "C" __global__ void __launch_bounds__(256)
    steptape_sparse_mla_decode_combine_v2(const __grid_constant__ decode_launch l) {
    combine_head<16>(l, blockIdx.x, blockIdx.y * 8 + threadIdx.x / 32, threadIdx.x % 32);
}

/* ---- launcher */

static int launch_split(const struct decode_launch *l, const struct st_decode_launch *geometry,
                        cudaStream_t stream) {
    cudaError_t error = cudaFuncSetAttribute(steptape_sparse_mla_decode_split_v1,
                                             cudaFuncAttributeMaxDynamicSharedMemorySize,
                                             (int)geometry->smem_bytes);
    if (error != cudaSuccess)
        return st_cuda_status(error);
    const dim3 grid(geometry->grid[0], geometry->grid[1]);
    steptape_sparse_mla_decode_split_v1<<<grid, geometry->threads, geometry->smem_bytes, stream>>>(
        *l);
    return st_launch_status();
}

static int launch_combine(const struct decode_launch *l, const struct st_decode_launch *geometry,
                          cudaStream_t stream) {
    const dim3 grid(geometry->grid[0], geometry->grid[1]);
    if (l->a.tokens <= ST_DECODE_FEW_TOKENS)
        steptape_sparse_mla_decode_combine_v1<<<grid, geometry->threads, 0, stream>>>(*l);
    else
        steptape_sparse_mla_decode_combine_v2<<<grid, geometry->threads, 0, stream>>>(*l);
    return st_launch_status();
}

int st_sparse_mla_decode_cuda(const decode_args *args, const struct st_decode_geometry *geometry,
                              void *stream) {
    struct decode_launch l;
    l.a = *args;
    l.parts = geometry->parts;
    l.scale_log2 = args->sm_scale * ST_LOG2E;
    for (int s = 0; s < 2; s++)
        l.shift[s] = st_shift_of(args->scope[s].page_size);
    int rc = STEPTAPE_OK;
    if ((geometry->phases & STEPTAPE_DECODE_PLAN) != 0)
        rc = st_decode_plan_cuda(&l, geometry, stream);
    if (rc == STEPTAPE_OK && (geometry->phases & STEPTAPE_DECODE_SPLIT) != 0)
        rc = launch_split(&l, &geometry->split, (cudaStream_t)stream);
    if (rc == STEPTAPE_OK && (geometry->phases & STEPTAPE_DECODE_COMBINE) != 0)
        rc = launch_combine(&l, &geometry->combine, (cudaStream_t)stream);
    return rc;
}
