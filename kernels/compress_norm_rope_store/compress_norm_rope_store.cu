/* SPDX-License-Identifier: Apache-2.0 */
/*
 * compress_norm_rope_store on CUDA.
 *
 * Variants with microseconds a launch (one NVIDIA H200, CUDA 13.0, 2026-11-30, a graph of 20
 * launches over the same buffers, medians): every one of T = 1, 64, 256, 2048 tokens is stored;
 * none of 2048 is.
 * v1  1.55  1.72  1.96  5.35  2.35  a block of 256 a token, two channels a thread, any alignment
 * v2  2.01  2.17  2.25  3.25  1.37  a warp a token: fewest blocks, but one warp does it all
 * v3  1.62  1.75  1.92  3.52  2.14  a block of 128 a token, four channels a thread
 * The default is v3 up to 256 tokens and v2 above.  Both can begin while compress_pool ends
 * (STEPTAPE_LAUNCH_AFTER_POOL), which saves 0.3 to 0.9 us of the pair.
 */
#include "kernels/compress_norm_rope_store/compress_norm_rope_store.h"
#include "kernels/compress_norm_rope_store/entry.cuh"
#include "kernels/launch.cuh"

typedef struct steptape_compress_norm_rope_store_args norm_args;

enum { DIM = ST_NORM_HEAD_DIM, NOPE = ST_NORM_NOPE_DIM, ROPE = ST_NORM_ROPE_DIM };

struct norm_shifts {
    int ratio; /* -1: divide */
    int block;
};

/* Early-outs in the contract's order; the compressed slot of a token to store, else -1. */
static __device__ __forceinline__ int64_t slot_to_store(const norm_args &a, const norm_shifts &s,
                                                        int64_t t, int64_t *angle) {
    const int64_t slot = __ldg(a.slot_mapping + t);
    const int64_t position = __ldg(a.positions + t);
    const int64_t kv_slot = __ldg(a.kv_slot_mapping + t);
    *angle = st_divide(position, a.ratio, s.ratio) * a.ratio;
    return slot < 0 || position + 1 != *angle + a.ratio ? -1 : kv_slot;
}

/* ---- v1: one block a token, two channels a thread, warp w has quant block w */

extern "C" __global__ void __launch_bounds__(256)
    steptape_compress_norm_rope_store_v1(const __grid_constant__ norm_args a,
                                         const __grid_constant__ norm_shifts s) {
    __shared__ float partial[8];
    const int64_t t = blockIdx.x;
    st_wait_for_earlier();
    int64_t angle;
    const int64_t kv_slot = slot_to_store(a, s, t, &angle);
    if (kv_slot < 0)
        return;
    const int d = threadIdx.x * 2;
    const int warp = threadIdx.x / 32;
    const int lane = threadIdx.x % 32;
    float even = a.pooled[t * a.pooled_stride + d];
    float odd = a.pooled[t * a.pooled_stride + d + 1];
    const float part = st_sum_lanes<32>(st_squares2(even, odd));
    if (lane == 0)
        partial[warp] = part;
    __syncthreads();
    const float squares = st_sum_lanes<8>(partial[lane % 8]);
    const float scale = st_norm_scale(squares, DIM, a.eps);
    even = even * scale * st_weight_at(a.weight, a.weight_dtype, d);
    odd = odd * scale * st_weight_at(a.weight, a.weight_dtype, d + 1);

    const struct st_entry_place place =
        st_entry_place(a.kv_cache, a.kv_page_stride_bytes, a.kv_block_size, s.block, kv_slot);
    uint8_t *data = place.data;
    if (warp == ST_NORM_QUANT_BLOCKS) {
        const float *row = a.cos_sin_cache + angle * a.cos_sin_stride;
        st_turn(&even, &odd, __ldg(row + lane), __ldg(row + ROPE / 2 + lane));
        const unsigned int packed = st_bf16x2(even, odd);
#pragma unroll
        for (int i = 0; i < 4; i++) /* byte by byte: this variant asks for no alignment */
            data[NOPE + 4 * lane + i] = (uint8_t)(packed >> 8 * i);
    } else {
        const unsigned int rounded = st_bf16x2(even, odd);
        const float low = st_bf16_low(rounded);
        const float high = st_bf16_high(rounded);
        const float absmax = st_max_lanes<32>(fmaxf(fabsf(low), fabsf(high)));
        const unsigned int byte = st_scale_byte(absmax);
        const unsigned int packed = st_quantise2(low, high, st_scale_inverse(byte));
        data[d] = (uint8_t)packed;
        data[d + 1] = (uint8_t)(packed >> 8);
        if (lane == 0)
            place.scales[warp] = (uint8_t)byte;
        if (threadIdx.x == 0)
            place.scales[ST_NORM_QUANT_BLOCKS] = 0;
    }
    if (a.values != NULL) {
        a.values[t * a.values_stride + d] = even;
        a.values[t * a.values_stride + d + 1] = odd;
    }
}

/* ---- v2: one warp a token; chunk c of a lane is channels 128 c + 4 lane .. + 4 */

/* e4m3 of a lane's four values of a block of 64, which 16 lanes share; *byte: its scale. */
static __device__ __forceinline__ unsigned int quantise_block(float4 y, unsigned int *byte) {
    const float4 v = st_round4(y);
    *byte = st_scale_byte(st_max_lanes<16>(st_absmax4(v)));
    return st_quantise4(v, st_scale_inverse(*byte));
}

extern "C" __global__ void __launch_bounds__(128)
    steptape_compress_norm_rope_store_v2(const __grid_constant__ norm_args a,
                                         const __grid_constant__ norm_shifts s, int early) {
    const int64_t t = (int64_t)blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32;
    const int lane = threadIdx.x % 32;
    /* early: the launch before is the pool of these tokens, itself ordered after all that wrote
     * the metadata: only pooled has to be waited for.  Every thread waits before it ends, so
     * that this launch is complete only when the pool is. */
    if (!early)
        st_wait_for_earlier();
    int64_t angle = 0;
    int64_t kv_slot = -1;
    if (t < a.num_tokens)
        kv_slot = slot_to_store(a, s, t, &angle);
    float4 weight[4];
    float2 cosine = make_float2(1.0f, 1.0f);
    float2 sine = make_float2(0.0f, 0.0f);
    if (kv_slot >= 0) {
#pragma unroll
        for (int c = 0; c < 4; c++)
            weight[c] = st_weight4_at(a.weight, a.weight_dtype, 128 * c + 4 * lane);
        if (lane >= 16) {
            const float *row = a.cos_sin_cache + angle * a.cos_sin_stride + 2 * (lane - 16);
            cosine = __ldg((const float2 *)row);
            sine = __ldg((const float2 *)(row + ROPE / 2));
        }
    }
    if (early)
        st_wait_for_earlier();
    if (kv_slot < 0)
        return;

    const float *x = a.pooled + t * a.pooled_stride;
    float4 y[4];
#pragma unroll
    for (int c = 0; c < 4; c++)
        y[c] = *(const float4 *)(x + 128 * c + 4 * lane);
    const struct st_entry_place place =
        st_entry_place(a.kv_cache, a.kv_page_stride_bytes, a.kv_block_size, s.block, kv_slot);
    st_store512_warp(place, lane, y, weight, cosine, sine, a.eps);
    if (a.values != NULL) {
#pragma unroll
        for (int c = 0; c < 4; c++)
            *(float4 *)(a.values + t * a.values_stride + 128 * c + 4 * lane) = y[c];
    }
}

/* ---- v3: one block of 128 a token, four channels a thread, one barrier */

extern "C" __global__ void __launch_bounds__(128)
    steptape_compress_norm_rope_store_v3(const __grid_constant__ norm_args a,
                                         const __grid_constant__ norm_shifts s, int early) {
    __shared__ float partial[4];
    const int64_t t = blockIdx.x;
    if (!early)
        st_wait_for_earlier();
    int64_t angle;
    const int64_t kv_slot = slot_to_store(a, s, t, &angle);
    if (kv_slot < 0) {
        if (early)
            st_wait_for_earlier();
        return;
    }
    const int d = 4 * threadIdx.x;
    const int warp = threadIdx.x / 32;
    const int lane = threadIdx.x % 32;
    const bool turns = d >= NOPE;
    const float4 weight = st_weight4_at(a.weight, a.weight_dtype, d);
    float2 cosine = make_float2(1.0f, 1.0f);
    float2 sine = make_float2(0.0f, 0.0f);
    if (turns) {
        const float *row = a.cos_sin_cache + angle * a.cos_sin_stride + (d - NOPE) / 2;
        cosine = __ldg((const float2 *)row);
        sine = __ldg((const float2 *)(row + ROPE / 2));
    }
    const struct st_entry_place place =
        st_entry_place(a.kv_cache, a.kv_page_stride_bytes, a.kv_block_size, s.block, kv_slot);
    if (early)
        st_wait_for_earlier();
    float4 y = *(const float4 *)(a.pooled + t * a.pooled_stride + d);
    const float part = st_sum_lanes<32>(st_squares4(y));
    if (lane == 0)
        partial[warp] = part;
    __syncthreads();
    const float squares =
        __fadd_rn(__fadd_rn(partial[0], partial[1]), __fadd_rn(partial[2], partial[3]));
    const float scale = st_norm_scale(squares, DIM, a.eps);
    y = st_norm4(y, scale, weight);
    unsigned int byte;
    const unsigned int packed = quantise_block(y, &byte);
    if (turns) {
        y = st_turn4(y, cosine, sine);
        *(uint2 *)(place.data + NOPE + 2 * (d - NOPE)) =
            make_uint2(st_bf16x2(y.x, y.y), st_bf16x2(y.z, y.w));
    } else {
        *(unsigned int *)(place.data + d) = packed;
    }
    if (threadIdx.x % 16 == 0)
        place.scales[threadIdx.x / 16] = turns ? 0 : (uint8_t)byte;
    if (a.values != NULL)
        *(float4 *)(a.values + t * a.values_stride + d) = y;
}

/* ---- launcher */

static int is_vectorisable(const norm_args *args) {
    uintptr_t weight_bytes = args->weight_dtype == STEPTAPE_BF16 ? 8 : 16;
    return args->pooled_stride % 4 == 0 && args->cos_sin_stride % 2 == 0 &&
           args->kv_page_stride_bytes % 8 == 0 && st_is_aligned(args->pooled, 16) &&
           st_is_aligned(args->cos_sin_cache, 8) && st_is_aligned(args->kv_cache, 8) &&
           st_is_aligned(args->weight, weight_bytes) &&
           (args->values == NULL ||
            (args->values_stride % 4 == 0 && st_is_aligned(args->values, 16)));
}

int st_compress_norm_rope_store_cuda(const norm_args *args, unsigned int variant, void *stream) {
    norm_shifts shifts = {st_shift_of(args->ratio), st_shift_of(args->kv_block_size)};
    if (variant > 1 && !is_vectorisable(args)) {
        if (args->variant > 1)
            return STEPTAPE_ERR_UNSUPPORTED;
        variant = 1;
    }
    int64_t blocks;
    int threads, tokens_per_block;
    uint32_t smem_bytes;
    st_compress_norm_rope_store_geometry(args, variant, &blocks, &threads, &smem_bytes,
                                         &tokens_per_block);
    cudaLaunchConfig_t config = {};
    cudaLaunchAttribute attribute = {};
    config.gridDim = dim3((unsigned int)blocks);
    config.blockDim = dim3((unsigned int)threads);
    config.stream = (cudaStream_t)stream;
    int early = (args->flags & STEPTAPE_LAUNCH_AFTER_POOL) != 0 && st_has_dependent_launch();
    if (early) {
        attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
        attribute.val.programmaticStreamSerializationAllowed = 1;
        config.attrs = &attribute;
        config.numAttrs = 1;
    }
    if (variant == 1)
        return st_cuda_status(
            cudaLaunchKernelEx(&config, steptape_compress_norm_rope_store_v1, *args, shifts));
    return st_cuda_status(cudaLaunchKernelEx(&config,
                                             variant == 2 ? steptape_compress_norm_rope_store_v2
                                                          : steptape_compress_norm_rope_store_v3,
                                             *args, shifts, early));
}
