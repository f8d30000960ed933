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
#include "kernels/launch.cuh"

typedef struct steptape_compress_norm_rope_store_args norm_args;

enum { DIM = ST_NORM_HEAD_DIM, NOPE = ST_NORM_NOPE_DIM, ROPE = ST_NORM_ROPE_DIM };

struct norm_shifts {
    int ratio; /* -1: divide */
    int block;
};

static __device__ __forceinline__ unsigned int bf16x2(float low, float high) {
    unsigned int packed;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(high), "f"(low));
    return packed;
}

static __device__ __forceinline__ float bf16_low(unsigned int packed) {
    return __uint_as_float(packed << 16);
}

static __device__ __forceinline__ float bf16_high(unsigned int packed) {
    return __uint_as_float(packed & 0xffff0000u);
}

/* e4m3 of floats already clamped to +-448, nearest even.  Before sm_89 there is no such
 * instruction: the same rounding on the bits. */
#if __CUDA_ARCH__ < 890
static __device__ __forceinline__ unsigned int e4m3_bits(float v) {
    const unsigned int sign = __float_as_uint(v) >> 31 << 7;
    const float magnitude = fabsf(v);
    unsigned int code;
    if (magnitude < 0.015625f) { /* under 2^-6: steps of 2^-9 */
        code = (unsigned int)__float2int_rn(magnitude * 512.0f);
    } else {
        unsigned int bits = __float_as_uint(magnitude);
        bits += 0x7ffffu + ((bits >> 20) & 1u);
        code = (bits >> 20) - ((127u - 7u) << 3);
    }
    return sign | (code > 0x7eu ? 0x7eu : code);
}
#endif

static __device__ __forceinline__ unsigned int e4m3x2(float low, float high) {
#if __CUDA_ARCH__ >= 890
    unsigned short packed;
    asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(packed) : "f"(high), "f"(low));
    return packed;
#else
    return e4m3_bits(low) | e4m3_bits(high) << 8;
#endif
}

/* The stored scale byte of a block of 64 and the factor that its values take. */
static __device__ __forceinline__ unsigned int scale_byte(float absmax) {
    const float scale = fmaxf(__fdiv_rn(absmax, 448.0f), 1e-4f);
    return (__float_as_uint(scale) + 0x7fffffu) >> 23;
}

static __device__ __forceinline__ float clamp448(float v) {
    return fminf(fmaxf(v, -448.0f), 448.0f);
}

/* Early-outs in the contract's order; the compressed slot of a token to store, else -1. */
static __device__ __forceinline__ int64_t slot_to_store(const norm_args &a, const norm_shifts &s,
                                                        int64_t t, int64_t *angle) {
    const int64_t slot = __ldg(a.slot_mapping + t);
    const int64_t position = __ldg(a.positions + t);
    const int64_t kv_slot = __ldg(a.kv_slot_mapping + t);
    *angle = st_divide(position, a.ratio, s.ratio) * a.ratio;
    return slot < 0 || position + 1 != *angle + a.ratio ? -1 : kv_slot;
}

static __device__ __forceinline__ float weight_at(const norm_args &a, int d) {
    if (a.weight_dtype == STEPTAPE_BF16)
        return __uint_as_float((unsigned int)__ldg((const unsigned short *)a.weight + d) << 16);
    return __ldg((const float *)a.weight + d);
}

static __device__ __forceinline__ uint8_t *entry_data(const norm_args &a, int64_t page,
                                                      int64_t entry) {
    return a.kv_cache + page * a.kv_page_stride_bytes + entry * STEPTAPE_KV_ENTRY_DATA_BYTES;
}

static __device__ __forceinline__ uint8_t *entry_scales(const norm_args &a, int64_t page,
                                                        int64_t entry) {
    return a.kv_cache + page * a.kv_page_stride_bytes +
           (int64_t)a.kv_block_size * STEPTAPE_KV_ENTRY_DATA_BYTES +
           entry * STEPTAPE_KV_ENTRY_SCALE_BYTES;
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
    float squares = even * even + odd * odd;
    for (int offset = 16; offset > 0; offset /= 2)
        squares += __shfl_xor_sync(0xffffffffu, squares, offset);
    if (lane == 0)
        partial[warp] = squares;
    __syncthreads();
    squares = 0.0f;
    for (int w = 0; w < 8; w++)
        squares += partial[w];
    const float scale = rsqrtf(squares / DIM + a.eps);
    even = even * scale * weight_at(a, d);
    odd = odd * scale * weight_at(a, d + 1);

    const int64_t page = st_divide(kv_slot, a.kv_block_size, s.block);
    const int64_t entry = kv_slot - page * a.kv_block_size;
    uint8_t *data = entry_data(a, page, entry);
    if (warp == ST_NORM_QUANT_BLOCKS) {
        const float *row = a.cos_sin_cache + angle * a.cos_sin_stride;
        const float cosine = __ldg(row + lane);
        const float sine = __ldg(row + ROPE / 2 + lane);
        const float e = even * cosine - odd * sine;
        odd = odd * cosine + even * sine;
        even = e;
        const unsigned int packed = bf16x2(even, odd);
#pragma unroll
        for (int i = 0; i < 4; i++) /* byte by byte: this variant asks for no alignment */
            data[NOPE + 4 * lane + i] = (uint8_t)(packed >> 8 * i);
    } else {
        const unsigned int rounded = bf16x2(even, odd);
        const float low = bf16_low(rounded);
        const float high = bf16_high(rounded);
        float absmax = fmaxf(fabsf(low), fabsf(high));
        for (int offset = 16; offset > 0; offset /= 2)
            absmax = fmaxf(absmax, __shfl_xor_sync(0xffffffffu, absmax, offset));
        const unsigned int byte = scale_byte(absmax);
        const float inverse = __uint_as_float((254u - byte) << 23);
        const unsigned int packed = e4m3x2(clamp448(low * inverse), clamp448(high * inverse));
        data[d] = (uint8_t)packed;
        data[d + 1] = (uint8_t)(packed >> 8);
        uint8_t *scales = entry_scales(a, page, entry);
        if (lane == 0)
            scales[warp] = (uint8_t)byte;
        if (threadIdx.x == 0)
            scales[ST_NORM_QUANT_BLOCKS] = 0;
    }
    if (a.values != NULL) {
        a.values[t * a.values_stride + d] = even;
        a.values[t * a.values_stride + d + 1] = odd;
    }
}

/* ---- v2: one warp a token; chunk c of a lane is channels 128 c + 4 lane .. + 4 */

/* Four consecutive weights. */
static __device__ __forceinline__ float4 weight4_at(const norm_args &a, int d) {
    if (a.weight_dtype == STEPTAPE_BF16) {
        const uint2 packed = __ldg((const uint2 *)((const unsigned short *)a.weight + d));
        return make_float4(bf16_low(packed.x), bf16_high(packed.x), bf16_low(packed.y),
                           bf16_high(packed.y));
    }
    return __ldg((const float4 *)((const float *)a.weight + d));
}

/* e4m3 of a lane's four values of a block of 64, which 16 lanes share; *byte: its scale. */
static __device__ __forceinline__ unsigned int quantise4(float4 y, unsigned int *byte) {
    const unsigned int first = bf16x2(y.x, y.y);
    const unsigned int second = bf16x2(y.z, y.w);
    const float4 v =
        make_float4(bf16_low(first), bf16_high(first), bf16_low(second), bf16_high(second));
    float absmax = fmaxf(fmaxf(fabsf(v.x), fabsf(v.y)), fmaxf(fabsf(v.z), fabsf(v.w)));
#pragma unroll
    for (int offset = 8; offset > 0; offset /= 2)
        absmax = fmaxf(absmax, __shfl_xor_sync(0xffffffffu, absmax, offset));
    *byte = scale_byte(absmax);
    const float inverse = __uint_as_float((254u - *byte) << 23);
    return e4m3x2(clamp448(v.x * inverse), clamp448(v.y * inverse)) |
           e4m3x2(clamp448(v.z * inverse), clamp448(v.w * inverse)) << 16;
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
            weight[c] = weight4_at(a, 128 * c + 4 * lane);
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
    float squares = 0.0f;
#pragma unroll
    for (int c = 0; c < 4; c++)
        squares += y[c].x * y[c].x + y[c].y * y[c].y + y[c].z * y[c].z + y[c].w * y[c].w;
#pragma unroll
    for (int offset = 16; offset > 0; offset /= 2)
        squares += __shfl_xor_sync(0xffffffffu, squares, offset);
    const float scale = rsqrtf(squares * (1.0f / DIM) + a.eps);
#pragma unroll
    for (int c = 0; c < 4; c++)
        y[c] = make_float4(y[c].x * scale * weight[c].x, y[c].y * scale * weight[c].y,
                           y[c].z * scale * weight[c].z, y[c].w * scale * weight[c].w);

    const int64_t page = st_divide(kv_slot, a.kv_block_size, s.block);
    const int64_t entry = kv_slot - page * a.kv_block_size;
    uint8_t *data = entry_data(a, page, entry);
    unsigned int byte[4];
#pragma unroll
    for (int c = 0; c < 4; c++) {
        /* lanes 16..31 of chunk 3 take part in the shuffles only: those channels are RoPE's */
        const unsigned int packed = quantise4(y[c], &byte[c]);
        if (c < 3 || lane < 16)
            *(unsigned int *)(data + 128 * c + 4 * lane) = packed;
    }
    if (lane >= 16) {
        const float4 v = y[3];
        y[3] = make_float4(v.x * cosine.x - v.y * sine.x, v.y * cosine.x + v.x * sine.x,
                           v.z * cosine.y - v.w * sine.y, v.w * cosine.y + v.z * sine.y);
        *(uint2 *)(data + NOPE + 8 * (lane - 16)) =
            make_uint2(bf16x2(y[3].x, y[3].y), bf16x2(y[3].z, y[3].w));
    }
    /* lane 0 has the even blocks' scales, lane 16 the odd ones' */
    const unsigned int mine = byte[0] | byte[1] << 16;
    const unsigned int mine_high = byte[2] | (lane < 16 ? byte[3] << 16 : 0);
    const unsigned int other = __shfl_xor_sync(0xffffffffu, mine, 16);
    const unsigned int other_high = __shfl_xor_sync(0xffffffffu, mine_high, 16);
    if (lane == 0)
        *(uint2 *)entry_scales(a, page, entry) =
            make_uint2(mine | other << 8, mine_high | other_high << 8);
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
    const float4 weight = weight4_at(a, d);
    float2 cosine = make_float2(1.0f, 1.0f);
    float2 sine = make_float2(0.0f, 0.0f);
    if (turns) {
        const float *row = a.cos_sin_cache + angle * a.cos_sin_stride + (d - NOPE) / 2;
        cosine = __ldg((const float2 *)row);
        sine = __ldg((const float2 *)(row + ROPE / 2));
    }
    const int64_t page = st_divide(kv_slot, a.kv_block_size, s.block);
    const int64_t entry = kv_slot - page * a.kv_block_size;
    if (early)
        st_wait_for_earlier();
    float4 y = *(const float4 *)(a.pooled + t * a.pooled_stride + d);
    float squares = y.x * y.x + y.y * y.y + y.z * y.z + y.w * y.w;
#pragma unroll
    for (int offset = 16; offset > 0; offset /= 2)
        squares += __shfl_xor_sync(0xffffffffu, squares, offset);
    if (lane == 0)
        partial[warp] = squares;
    __syncthreads();
    squares = (partial[0] + partial[1]) + (partial[2] + partial[3]);
    const float scale = rsqrtf(squares * (1.0f / DIM) + a.eps);
    y = make_float4(y.x * scale * weight.x, y.y * scale * weight.y, y.z * scale * weight.z,
                    y.w * scale * weight.w);
    unsigned int byte;
    const unsigned int packed = quantise4(y, &byte);
    uint8_t *data = entry_data(a, page, entry);
    if (turns) {
        y = make_float4(y.x * cosine.x - y.y * sine.x, y.y * cosine.x + y.x * sine.x,
                        y.z * cosine.y - y.w * sine.y, y.w * cosine.y + y.z * sine.y);
        *(uint2 *)(data + NOPE + 2 * (d - NOPE)) = make_uint2(bf16x2(y.x, y.y), bf16x2(y.z, y.w));
    } else {
        *(unsigned int *)(data + d) = packed;
    }
    if (threadIdx.x % 16 == 0)
        entry_scales(a, page, entry)[threadIdx.x / 16] = turns ? 0 : (uint8_t)byte;
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
