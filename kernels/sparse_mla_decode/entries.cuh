/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the tensor core variants of sparse_mla_decode share: entries from pages to registers, sums
 * from registers to results.
 */
#ifndef ST_KERNELS_SPARSE_MLA_DECODE_ENTRIES_CUH
#define ST_KERNELS_SPARSE_MLA_DECODE_ENTRIES_CUH

#include <math.h>

#include "kernels/sparse_mla_decode/decode.cuh"

/* Where an entry lies. */
struct source {
    const uint8_t *data; /* NULL: no entry, zeros */
    const uint8_t *scales;
};

static __device__ __forceinline__ uint4 load16(const uint8_t *from) {
    uint4 v;
    asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "l"(from));
    return v;
}

template <bool V32>
static __device__ __forceinline__ struct source source_of(const struct decode_launch &l, int index,
                                                          int scope) {
    struct source source = {NULL, NULL};
    if (index < 0)
        return source;
    const struct steptape_decode_scope &s = l.a.scope[scope];
    const int page = st_divide32(index, s.page_size, l.shift[scope]);
    const int entry = index - page * s.page_size;
    const uint8_t *base = s.cache + page * s.page_stride_bytes;
    if (V32) {
        source.data = base + (int64_t)entry * STEPTAPE_KV_V32_ENTRY_BYTES;
        source.scales = source.data + 512;
    } else {
        source.data = base + (int64_t)entry * STEPTAPE_KV_ENTRY_DATA_BYTES;
        source.scales = base + (int64_t)s.page_size * STEPTAPE_KV_ENTRY_DATA_BYTES +
                        entry * STEPTAPE_KV_ENTRY_SCALE_BYTES;
    }
    return source;
}

/* Two e4m3 values as floats. */
static __device__ __forceinline__ float2 floats_of(uint32_t pair) {
    float2 v;
#if __CUDA_ARCH__ >= 890
    asm("{\n.reg .b32 h;\n.reg .b16 lo, hi;\n"
        "cvt.rn.f16x2.e4m3x2 h, %2;\n"
        "mov.b32 {lo, hi}, h;\n"
        "cvt.f32.f16 %0, lo;\n"
        "cvt.f32.f16 %1, hi;\n}"
        : "=f"(v.x), "=f"(v.y)
        : "h"((unsigned short)pair));
#else
    /* the bits in place of a float's, exponent too small by 120 */
    const uint32_t low = pair & 0x7f, high = pair >> 8 & 0x7f;
    v.x = __uint_as_float(low << 20 | (pair & 0x80) << 24) * 0x1p120f;
    v.y = __uint_as_float(high << 20 | (pair & 0x8000) << 16) * 0x1p120f;
    v.x = low == 0x7f ? NAN : v.x;
    v.y = high == 0x7f ? NAN : v.y;
#endif
    return v;
}

static __device__ __forceinline__ void store16(uint32_t address, uint32_t a, uint32_t b, uint32_t c,
                                               uint32_t d) {
    asm volatile("st.shared.v4.u32 [%0], {%1, %2, %3, %4};" ::"r"(address), "r"(a), "r"(b), "r"(c),
                 "r"(d)
                 : "memory");
}

/* Four words of each of four lanes: lane t gets word t of each. */
static __device__ __forceinline__ void transpose(uint32_t (&w)[4], int t) {
    const bool odd = t & 1;
    const bool high = t & 2;
    uint32_t a = __shfl_xor_sync(0xffffffffu, odd ? w[0] : w[1], 1);
    uint32_t b = __shfl_xor_sync(0xffffffffu, odd ? w[2] : w[3], 1);
    w[0] = odd ? a : w[0];
    w[1] = odd ? w[1] : a;
    w[2] = odd ? b : w[2];
    w[3] = odd ? w[3] : b;
    a = __shfl_xor_sync(0xffffffffu, high ? w[0] : w[2], 2);
    b = __shfl_xor_sync(0xffffffffu, high ? w[1] : w[3], 2);
    w[0] = high ? a : w[0];
    w[1] = high ? b : w[1];
    w[2] = high ? w[2] : a;
    w[3] = high ? w[3] : b;
}

/*
 * Sums of columns column .. column + 2 * N of two heads, `head` and the eighth after it, to scratch
 * or as results, from a tensor core's layout: o[4 * j + 2 * half + i] of lane t of four is column
 * 8 * j + 2 * t + i.
 */
template <int N>
static __device__ __forceinline__ void
store_sums(const struct decode_launch &l, const struct decode_piece &piece, const float (&o)[N],
           const float (&factor)[2], const bool (&is_empty)[2], int head, int column) {
    const int t = threadIdx.x % 4;
    if (piece.slot >= 0) {
#pragma unroll
        for (int half = 0; half < 2; half++) {
            float *to = slot_sums(l, piece.slot, head + 8 * half) + column + 2 * t;
#pragma unroll
            for (int j = 0; j < N / 4; j++)
                *(float2 *)(to + 8 * j) = make_float2(o[4 * j + 2 * half], o[4 * j + 2 * half + 1]);
        }
        return;
    }
#pragma unroll
    for (int half = 0; half < 2; half++) {
        uint16_t *to = out_row(l.a, piece.token, head + 8 * half) + column + 8 * t;
#pragma unroll
        for (int j = 0; j < N / 4; j += 4) {
            uint32_t w[4];
#pragma unroll
            for (int i = 0; i < 4; i++)
                w[i] = is_empty[half] ? 0
                                      : bf16x2(o[4 * (j + i) + 2 * half] * factor[half],
                                               o[4 * (j + i) + 2 * half + 1] * factor[half]);
            transpose(w, t);
            *(uint4 *)(to + 8 * j) = make_uint4(w[0], w[1], w[2], w[3]);
        }
    }
}

#endif
