/* SPDX-License-Identifier: Apache-2.0 */
/*
 * sparse_mla_prefill on the device.
 */
#include "kernels/device.h"
#include "kernels/launch.cuh"
#include "kernels/sparse_mla_prefill/mma.cuh"
#include "kernels/sparse_mla_prefill/sparse_mla_prefill.h"

#include <cuda_bf16.h>
#include <math_constants.h>

typedef struct steptape_sparse_mla_prefill_args prefill_args;

enum { LANES = 4 /* threads of a head */, V_LANE = ST_PREFILL_V_DIM / LANES };

static __device__ __forceinline__ float from_bits(uint16_t bits) {
    return __uint_as_float((uint32_t)bits << 16);
}

/* ---- v1: four threads a head take turns in its values; the row lies in shared memory */

extern "C" __global__ void __launch_bounds__(256)
    steptape_sparse_mla_prefill_v1(const prefill_args args) {
    __shared__ float row[576];
    const int64_t t = blockIdx.x;
    const int head = blockIdx.y * ST_PREFILL_HEADS + threadIdx.x / LANES,
              lane = threadIdx.x % LANES;
    const uint16_t *q = args.q + t * args.q_stride + head * args.q_head_stride;
    int length = args.topk_length != NULL ? args.topk_length[t] : args.topk;
    length = length < 0 ? 0 : length > args.topk ? args.topk : length;
    const int end = (length + STEPTAPE_MLA_TILE - 1) / STEPTAPE_MLA_TILE * STEPTAPE_MLA_TILE;
    float max = -CUDART_INF_F, sum = 0.0f, v[V_LANE];
#pragma unroll
    for (int i = 0; i < V_LANE; i++)
        v[i] = 0.0f;
    for (int c = 0; c < end; c++) {
        const int64_t index = args.indices[t * args.indices_stride + c];
        if (index < 0 || index >= args.s_kv)
            continue;
        __syncthreads();
        for (int d = threadIdx.x; d < args.d_qk; d += blockDim.x)
            row[d] = from_bits(args.kv[index * args.kv_stride + d]);
        __syncthreads();
        float weight = 0.0f;
        if (c < length) {
            float score = 0.0f;
            for (int d = lane; d < args.d_qk; d += LANES)
                score += from_bits(q[d]) * row[d];
            score += __shfl_xor_sync(0xffffffffu, score, 1);
            score += __shfl_xor_sync(0xffffffffu, score, 2);
            score *= args.sm_scale;
            const float top = fmaxf(max, score);
            const float factor = max == top ? 1.0f : expf(max - top);
            weight = score == -CUDART_INF_F ? 0.0f : expf(score - top);
            max = top;
            sum = sum * factor + weight;
#pragma unroll
            for (int i = 0; i < V_LANE; i++)
                v[i] *= factor;
        }
        /* weight 0 past the length: a NaN of the row still shows, as the contract says */
#pragma unroll
        for (int i = 0; i < V_LANE; i++)
            v[i] += weight * row[i * LANES + lane];
    }
    const bool is_empty = sum == 0.0f;
    const float lse = is_empty ? CUDART_INF_F : logf(sum) + max;
    float factor = is_empty ? 1.0f : 1.0f / sum;
    if (args.attn_sink != NULL && !is_empty)
        factor /= 1.0f + expf(args.attn_sink[head] - lse);
    const int64_t at = t * args.heads + head;
    __nv_bfloat16 *out = (__nv_bfloat16 *)args.out + at * ST_PREFILL_V_DIM;
#pragma unroll
    for (int i = 0; i < V_LANE; i++)
        out[i * LANES + lane] = __float2bfloat16_rn(v[i] * factor);
    if (lane == 0 && args.max_logits != NULL)
        args.max_logits[at] = max;
    if (lane == 0 && args.lse != NULL)
        args.lse[at] = lse;
}

/* ---- v2: see mma.cuh */

#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 800
#define ST_PREFILL_BLOCK(d, keys) st_prefill_block<d, keys>(args)
#else
#define ST_PREFILL_BLOCK(d, keys)
#endif

extern "C" __global__ void __launch_bounds__(256, 1)
    steptape_sparse_mla_prefill_v2_d512(const __grid_constant__ prefill_args args) {
    ST_PREFILL_BLOCK(512, 64);
}

extern "C" __global__ void __launch_bounds__(256, 1)
    steptape_sparse_mla_prefill_v2_d512_small(const __grid_constant__ prefill_args args) {
    ST_PREFILL_BLOCK(512, 32);
}

extern "C" __global__ void __launch_bounds__(256, 1)
    steptape_sparse_mla_prefill_v2_d576(const __grid_constant__ prefill_args args) {
    ST_PREFILL_BLOCK(576, 32);
}

static int launch_v2(const prefill_args *args, dim3 grid, void *stream) {
    const bool is_small = st_device_facts().generation < 90;
    void (*kernel)(prefill_args) = args->d_qk == 576 ? steptape_sparse_mla_prefill_v2_d576
                                   : is_small        ? steptape_sparse_mla_prefill_v2_d512_small
                                                     : steptape_sparse_mla_prefill_v2_d512;
    const int smem = args->d_qk == 576 ? st_prefill_mma<576, 32>::smem_bytes
                     : is_small        ? st_prefill_mma<512, 32>::smem_bytes
                                       : st_prefill_mma<512, 64>::smem_bytes;
    /* idempotent, no call into the driver after the first for a kernel on a device */
    cudaError_t rc =
        cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, smem);
    if (rc != cudaSuccess)
        return st_cuda_status(rc);
    kernel<<<grid, 256, (size_t)smem, (cudaStream_t)stream>>>(*args);
    return st_launch_status();
}

int st_sparse_mla_prefill_cuda(const prefill_args *args, const struct st_geometry *geometry,
                               void *stream) {
    const dim3 grid(geometry->grid[0], geometry->grid[1]);
    if (!st_sparse_mla_prefill_serves(args, geometry->variant))
        return STEPTAPE_ERR_UNSUPPORTED;
    if (geometry->variant == 3)
        return st_sparse_mla_prefill_hopper(args, geometry, stream);
    if (geometry->variant == 2)
        return launch_v2(args, grid, stream);
    steptape_sparse_mla_prefill_v1<<<grid, geometry->threads, 0, (cudaStream_t)stream>>>(*args);
    return st_launch_status();
}
