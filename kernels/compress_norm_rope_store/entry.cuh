/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Norm, RoPE and the numbers of a compressed entry, as every device variant that stores one
 * computes them.  One order of operations, so that all variants give the same bits, one launch or
 * two, whatever the batch:
 * 1. The squares of four channels 4k .. 4k + 3 are (x0^2 + x1^2) + (x2^2 + x3^2), each pair with
 *    one fused operation; above that a binary tree over ascending channels, nearest first.
 * 2. y = (x * scale) * weight; RoPE with one fused operation a result.
 */
#ifndef ST_KERNELS_ENTRY_CUH
#define ST_KERNELS_ENTRY_CUH

#include "kernels/compress_norm_rope_store/compress_norm_rope_store.h"
#include "kernels/launch.cuh"

static __device__ __forceinline__ unsigned int st_bf16x2(float low, float high) {
    unsigned int packed;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(high), "f"(low));
    return packed;
}

static __device__ __forceinline__ float st_bf16_low(unsigned int packed) {
    return __uint_as_float(packed << 16);
}

static __device__ __forceinline__ float st_bf16_high(unsigned int packed) {
    return __uint_as_float(packed & 0xffff0000u);
}

/* e4m3 of floats already clamped to +-448, nearest even.  Before sm_89 there is no such
 * instruction: the same rounding on the bits. */
#if __CUDA_ARCH__ < 890
static __device__ __forceinline__ unsigned int st_e4m3_bits(float v) {
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

static __device__ __forceinline__ unsigned int st_e4m3x2(float low, float high) {
#if __CUDA_ARCH__ >= 890
    unsigned short packed;
    asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(packed) : "f"(high), "f"(low));
    return packed;
#else
    return st_e4m3_bits(low) | st_e4m3_bits(high) << 8;
#endif
}

static __device__ __forceinline__ float st_clamp448(float v) {
    return fminf(fmaxf(v, -448.0f), 448.0f);
}

/* 127 + ceil(log2(scale)) of a normal positive number, from its bits. */
static __device__ __forceinline__ unsigned int st_scale_bits(float scale) {
    return (__float_as_uint(scale) + 0x7fffffu) >> 23;
}

/* The stored scale byte of a block of 64. */
static __device__ __forceinline__ unsigned int st_scale_byte(float absmax) {
    return st_scale_bits(fmaxf(__fdiv_rn(absmax, 448.0f), 1e-4f));
}

/* The factor 2^-e that values take for a scale byte e + 127. */
static __device__ __forceinline__ float st_scale_inverse(unsigned int byte) {
    return __uint_as_float((254u - byte) << 23);
}

/* e4m3 of two or four values that take the factor `inverse`. */
static __device__ __forceinline__ unsigned int st_quantise2(float low, float high, float inverse) {
    return st_e4m3x2(st_clamp448(low * inverse), st_clamp448(high * inverse));
}

static __device__ __forceinline__ unsigned int st_quantise4(float4 v, float inverse) {
    return st_quantise2(v.x, v.y, inverse) | st_quantise2(v.z, v.w, inverse) << 16;
}

/* Rounded to bf16 and back. */
static __device__ __forceinline__ float4 st_round4(float4 y) {
    const unsigned int first = st_bf16x2(y.x, y.y);
    const unsigned int second = st_bf16x2(y.z, y.w);
    return make_float4(st_bf16_low(first), st_bf16_high(first), st_bf16_low(second),
                       st_bf16_high(second));
}

static __device__ __forceinline__ float st_absmax4(float4 v) {
    return fmaxf(fmaxf(fabsf(v.x), fabsf(v.y)), fmaxf(fabsf(v.z), fabsf(v.w)));
}

static __device__ __forceinline__ float st_weight_at(const void *weight, int dtype, int d) {
    if (dtype == STEPTAPE_BF16)
        return __uint_as_float((unsigned int)__ldg((const unsigned short *)weight + d) << 16);
    return __ldg((const float *)weight + d);
}

/* Four consecutive weights; d is a multiple of 4 and the weights are aligned to four. */
static __device__ __forceinline__ float4 st_weight4_at(const void *weight, int dtype, int d) {
    if (dtype == STEPTAPE_BF16) {
        const uint2 packed = __ldg((const uint2 *)((const unsigned short *)weight + d));
        return make_float4(st_bf16_low(packed.x), st_bf16_high(packed.x), st_bf16_low(packed.y),
                           st_bf16_high(packed.y));
    }
    return __ldg((const float4 *)((const float *)weight + d));
}

static __device__ __forceinline__ float st_squares2(float even, float odd) {
    return fmaf(odd, odd, __fmul_rn(even, even));
}

static __device__ __forceinline__ float st_squares4(float4 x) {
    return __fadd_rn(st_squares2(x.x, x.y), st_squares2(x.z, x.w));
}

/* Sums over groups of LANES lanes, nearest lanes first; every lane has the sum. */
template <int LANES> static __device__ __forceinline__ float st_sum_lanes(float sum) {
#pragma unroll
    for (int offset = 1; offset < LANES; offset *= 2)
        sum = __fadd_rn(sum, __shfl_xor_sync(0xffffffffu, sum, offset));
    return sum;
}

template <int LANES> static __device__ __forceinline__ float st_max_lanes(float max) {
#pragma unroll
    for (int offset = 1; offset < LANES; offset *= 2)
        max = fmaxf(max, __shfl_xor_sync(0xffffffffu, max, offset));
    return max;
}

/* 1 / sqrt(mean + eps); dim is a power of two, so the mean is exact. */
static __device__ __forceinline__ float st_norm_scale(float squares, int dim, float eps) {
    return rsqrtf(fmaf(squares, 1.0f / (float)dim, eps));
}

static __device__ __forceinline__ float4 st_norm4(float4 x, float scale, float4 weight) {
    return make_float4(x.x * scale * weight.x, x.y * scale * weight.y, x.z * scale * weight.z,
                       x.w * scale * weight.w);
}

static __device__ __forceinline__ void st_turn(float *even, float *odd, float cosine, float sine) {
    const float e = *even;
    *even = fmaf(e, cosine, -__fmul_rn(*odd, sine));
    *odd = fmaf(*odd, cosine, __fmul_rn(e, sine));
}

static __device__ __forceinline__ float4 st_turn4(float4 y, float2 cosine, float2 sine) {
    st_turn(&y.x, &y.y, cosine.x, sine.x);
    st_turn(&y.z, &y.w, cosine.y, sine.y);
    return y;
}

/* Where an entry of 584 bytes lies. */
struct st_entry_place {
    uint8_t *data;
    uint8_t *scales;
};

static __device__ __forceinline__ struct st_entry_place st_entry_place(uint8_t *cache,
                                                                       int64_t page_stride_bytes,
                                                                       int32_t block_size,
                                                                       int shift, int64_t slot) {
    const int64_t page = st_divide(slot, block_size, shift);
    const int64_t entry = slot - page * block_size;
    uint8_t *base = cache + page * page_stride_bytes;
    struct st_entry_place place;
    place.data = base + entry * STEPTAPE_KV_ENTRY_DATA_BYTES;
    place.scales = base + (int64_t)block_size * STEPTAPE_KV_ENTRY_DATA_BYTES +
                   entry * STEPTAPE_KV_ENTRY_SCALE_BYTES;
    return place;
}

/* ---- an entry of 512 channels by one warp: chunk c of a lane is channels 128 c + 4 lane .. + 4 */

/*
 * The sum over a warp's lanes of each chunk, nearest lanes first, then (0 + 1) + (2 + 3) of the
 * chunks.  A lane carries one chunk's sum on from the second step: 8 shuffles, not 20.
 */
static __device__ __forceinline__ float st_sum_chunks(const float (&chunk)[4], int lane) {
    const bool odd = lane & 1, upper = lane & 2;
    const float first = odd ? chunk[2] : chunk[0], second = odd ? chunk[3] : chunk[1];
    const float first_away = odd ? chunk[0] : chunk[2], second_away = odd ? chunk[1] : chunk[3];
    const float a = __fadd_rn(first, __shfl_xor_sync(0xffffffffu, first_away, 1));
    const float b = __fadd_rn(second, __shfl_xor_sync(0xffffffffu, second_away, 1));
    float sum = __fadd_rn(upper ? b : a, __shfl_xor_sync(0xffffffffu, upper ? a : b, 2));
#pragma unroll
    for (int offset = 4; offset < 32; offset *= 2)
        sum = __fadd_rn(sum, __shfl_xor_sync(0xffffffffu, sum, offset));
    /* lanes 0 and 2 (mod 4) have chunks 0 and 1, lanes 1 and 3 chunks 2 and 3 */
    sum = __fadd_rn(sum, __shfl_xor_sync(0xffffffffu, sum, 2));
    return __fadd_rn(sum, __shfl_xor_sync(0xffffffffu, sum, 1));
}

/* x: a lane's channels; becomes y, after norm and RoPE.  Lanes 16 to 31 turn their last chunk by
 * cosine and sine. */
static __device__ __forceinline__ void st_store512_warp(const struct st_entry_place &place,
                                                        int lane, float4 (&x)[4],
                                                        const float4 (&weight)[4], float2 cosine,
                                                        float2 sine, float eps) {
    float chunk[4];
    unsigned int byte[4];
#pragma unroll
    for (int c = 0; c < 4; c++)
        chunk[c] = st_squares4(x[c]);
    const float scale = st_norm_scale(st_sum_chunks(chunk, lane), ST_NORM_HEAD_DIM, eps);
#pragma unroll
    for (int c = 0; c < 4; c++) {
        x[c] = st_norm4(x[c], scale, weight[c]);
        /* lanes 16..31 of chunk 3 take part in the shuffles only: those channels are RoPE's */
        const float4 v = st_round4(x[c]);
        byte[c] = st_scale_byte(st_max_lanes<16>(st_absmax4(v)));
        if (c < 3 || lane < 16)
            *(unsigned int *)(place.data + 128 * c + 4 * lane) =
                st_quantise4(v, st_scale_inverse(byte[c]));
    }
    if (lane >= 16) {
        x[3] = st_turn4(x[3], cosine, sine);
        *(uint2 *)(place.data + ST_NORM_NOPE_DIM + 8 * (lane - 16)) =
            make_uint2(st_bf16x2(x[3].x, x[3].y), st_bf16x2(x[3].z, x[3].w));
    }
    /* lane 0 has the even blocks' scales, lane 16 the odd ones' */
    const unsigned int mine = byte[0] | byte[1] << 16;
    const unsigned int mine_high = byte[2] | (lane < 16 ? byte[3] << 16 : 0);
    const unsigned int other = __shfl_xor_sync(0xffffffffu, mine, 16);
    const unsigned int other_high = __shfl_xor_sync(0xffffffffu, mine_high, 16);
    if (lane == 0)
        *(uint2 *)place.scales = make_uint2(mine | other << 8, mine_high | other_high << 8);
}

#endif
