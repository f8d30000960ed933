/* SPDX-License-Identifier: Apache-2.0 */
/*
 * dequantize_and_gather on CUDA.
 *
 * Variants with microseconds a launch (one NVIDIA H200, CUDA 13.0, 2026-11-30, a graph of 20 calls
 * over the same buffers, medians; x1, x2: rows that a thread has under way at once): 584 bytes an
 * entry, 1 x 2048, 4 x 2048, 4 x 8192 and 1 x 65536 rows; 656 bytes, 4 x 2048 and 1 x 65536.
 * v1: any alignment; 64 threads a row, a value at a time.
 * v2: 64 threads a row, 8 bytes in and 16 bytes out each, a row's output in one piece.
 *     x1  2.32  4.51  16.3  33.7    4.48  36.2
 *     x2  2.29  4.18  15.2  31.4    4.36  34.5
 * v3: a warp a row, 16 bytes in each; 32 bytes out, of which a thread gives half to its neighbour.
 *     x1  2.39  4.34  14.0  29.4    4.19  32.8   (3.6 TB/s with 65,536 rows)
 *     x2  2.54  4.81  14.7  30.2    4.25  33.3
 * The default is v3 x1, and v2 x2 up to 8,192 rows of 584 bytes.  Four rows at once lose
 * everywhere.
 */
#include <cuda_fp16.h>
#include <cuda_fp8.h>

#include "kernels/dequantize_and_gather/dequantize_and_gather.h"
#include "kernels/launch.cuh"

typedef struct steptape_dequantize_and_gather_args gather_args;

/* Where a row comes from and goes to; page == NULL: there is no such row. */
struct gather_row {
    const uint8_t *page;
    uint16_t *out;
    int32_t entry;
};

/* Rows of request b: how many, and the entry that row 0 is of. */
struct gather_request {
    int32_t count, first;
};

static __device__ __forceinline__ struct gather_request request_of(const gather_args &a, int b) {
    struct gather_request request;
    const int32_t seq_len = __ldg(a.seq_lens + b);
    const int32_t gathered = a.gather_lens != NULL ? __ldg(a.gather_lens + b) : 0;
    const int32_t length = seq_len / a.ratio;
    request.count = a.gather_lens != NULL ? gathered : length;
    request.first = length - request.count;
    request.count = request.count < a.max_gather ? request.count : a.max_gather;
    return request;
}

static __device__ __forceinline__ struct gather_row
row_of(const gather_args &a, int shift, const struct gather_request &request, int b, int i) {
    struct gather_row row = {NULL, NULL, 0};
    const int32_t e = request.first + i;
    if (i >= request.count || e < 0)
        return row;
    const int32_t at = st_divide32(e, a.block_size, shift);
    const int32_t page = __ldg(a.block_table + b * a.block_table_stride + at);
    row.entry = e - at * a.block_size;
    row.page = a.cache + (page > 0 ? page : 0) * a.cache_page_stride_bytes;
    row.out = a.out + b * a.out_req_stride + (int64_t)(a.offset + i) * a.out_row_stride;
    return row;
}

/* 2^(byte - 127), exactly: 0 is a subnormal, 255 NaN. */
static __device__ __forceinline__ float scale_of(unsigned int byte) {
    return __uint_as_float(byte == 0 ? 0x00400000u : byte == 255 ? 0x7fc00000u : byte << 23);
}

static __device__ __forceinline__ unsigned short bf16_of(float value) {
    unsigned short bits;
#if __CUDA_ARCH__ >= 900
    asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(bits) : "f"(value));
#else
    unsigned int packed;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(0.0f), "f"(value));
    bits = (unsigned short)packed;
#endif
    return bits;
}

static __device__ __forceinline__ float float_of_e4m3(unsigned int bits) {
    return __half2float(__half(__nv_cvt_fp8_to_halfraw((__nv_fp8_storage_t)bits, __NV_E4M3)));
}

/* ---- v1: a value at a time */

extern "C" __global__ void __launch_bounds__(256)
    steptape_dequantize_and_gather_v1(const __grid_constant__ gather_args a, int shift) {
    const struct gather_row row = row_of(a, shift, request_of(a, blockIdx.y), blockIdx.y,
                                         blockIdx.x * (blockDim.x / 64) + threadIdx.x / 64);
    const int lane = threadIdx.x % 64;
    if (row.page == NULL)
        return;
    const bool v32 = a.format == STEPTAPE_KV_FP8_V32;
    const int quantised = v32 ? ST_GATHER_V32_QUANTISED : ST_GATHER_MLA_QUANTISED;
    const uint8_t *data = row.page + (int64_t)row.entry * (v32 ? STEPTAPE_KV_V32_ENTRY_BYTES
                                                               : STEPTAPE_KV_ENTRY_DATA_BYTES);
    for (int d = lane; d < quantised; d += 64) {
        float scale;
        if (v32) {
            const uint8_t *at = data + ST_GATHER_V32_SCALES + d / 128 * 4;
            scale = __uint_as_float(at[0] | at[1] << 8 | at[2] << 16 | (unsigned int)at[3] << 24);
        } else {
            scale = scale_of(row.page[(int64_t)a.block_size * STEPTAPE_KV_ENTRY_DATA_BYTES +
                                      row.entry * STEPTAPE_KV_ENTRY_SCALE_BYTES + d / 64]);
        }
        row.out[d] = bf16_of(__fmul_rn(float_of_e4m3(data[d]), scale));
    }
    const uint8_t *rope = data + (v32 ? ST_GATHER_V32_ROPE : quantised) + 2 * lane;
    row.out[quantised + lane] = (unsigned short)(rope[0] | rope[1] << 8);
}

/* ---- v2 and v3: vectors */

/* What differs between the formats. */
template <bool V32> struct gather_format {
    static constexpr int QUANTISED = V32 ? ST_GATHER_V32_QUANTISED : ST_GATHER_MLA_QUANTISED;
    static constexpr int ENTRY = V32 ? STEPTAPE_KV_V32_ENTRY_BYTES : STEPTAPE_KV_ENTRY_DATA_BYTES;
    static constexpr int ROPE_AT = V32 ? ST_GATHER_V32_ROPE : ST_GATHER_MLA_QUANTISED;
};

/* The scale of value d of an entry. */
template <bool V32>
static __device__ __forceinline__ unsigned int load_scale(const gather_args &a,
                                                          const struct gather_row &row, int d) {
    if (V32)
        return __ldg((const unsigned int *)(row.page + row.entry * STEPTAPE_KV_V32_ENTRY_BYTES +
                                            ST_GATHER_V32_SCALES) +
                     d / 128);
    return __ldg(row.page + (int64_t)a.block_size * STEPTAPE_KV_ENTRY_DATA_BYTES +
                 row.entry * STEPTAPE_KV_ENTRY_SCALE_BYTES + d / 64);
}

template <bool V32> static __device__ __forceinline__ float scale_from(unsigned int loaded) {
    return V32 ? __uint_as_float(loaded) : scale_of(loaded);
}

/* bf16 of two e4m3 times scale. */
static __device__ __forceinline__ unsigned int two_of(unsigned int two, float scale) {
    const __half2_raw raw = __nv_cvt_fp8x2_to_halfraw2((__nv_fp8x2_storage_t)two, __NV_E4M3);
    const float2 v = __half22float2(__half2(raw));
    unsigned int packed;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;"
        : "=r"(packed)
        : "f"(__fmul_rn(v.y, scale)), "f"(__fmul_rn(v.x, scale)));
    return packed;
}

static __device__ __forceinline__ uint4 eight_of(uint2 eight, float scale) {
    return make_uint4(two_of(eight.x & 0xffffu, scale), two_of(eight.x >> 16, scale),
                      two_of(eight.y & 0xffffu, scale), two_of(eight.y >> 16, scale));
}

static __device__ __forceinline__ uint2 load8(const uint8_t *from) {
    uint2 v;
    asm volatile("ld.global.nc.L1::no_allocate.v2.u32 {%0, %1}, [%2];"
                 : "=r"(v.x), "=r"(v.y)
                 : "l"(from));
    return v;
}

static __device__ __forceinline__ uint4 load16(const uint8_t *from) {
    uint4 v;
    asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "l"(from));
    return v;
}

/* v2: thread l of a row's 64 has values 8 l .. 8 l + 7; past the quantised ones it copies. */
template <bool V32, int ROWS>
static __device__ __forceinline__ void gather_wide(const gather_args &a, int shift) {
    typedef struct gather_format<V32> format;
    constexpr int COPIES = ST_GATHER_ROPE / 8;
    const int lane = threadIdx.x % 64;
    const int slot = threadIdx.x / 64;
    const int b = blockIdx.y;
    const int first = blockIdx.x * (4 * ROWS) + slot;
    const struct gather_request request = request_of(a, b);
    /* the entries of 512 bytes of e4m3 take every lane: the first ones copy besides */
    const bool quantises = 8 * lane < format::QUANTISED;
    const bool copies = V32 ? lane < COPIES : !quantises;
    const int copied = V32 ? lane : lane - format::QUANTISED / 8;
    struct gather_row row[ROWS];
#pragma unroll
    for (int k = 0; k < ROWS; k++)
        row[k] = row_of(a, shift, request, b, first + 4 * k);
    uint2 eight[ROWS];
    uint4 rope[ROWS];
    unsigned int scale[ROWS];
#pragma unroll
    for (int k = 0; k < ROWS; k++) {
        const uint8_t *data = row[k].page + row[k].entry * format::ENTRY;
        if (row[k].page != NULL && quantises) {
            eight[k] = load8(data + 8 * lane);
            scale[k] = load_scale<V32>(a, row[k], 8 * lane);
        }
        if (row[k].page != NULL && copies)
            rope[k] = load16(data + format::ROPE_AT + 16 * copied);
    }
#pragma unroll
    for (int k = 0; k < ROWS; k++) {
        if (row[k].page != NULL && quantises)
            *(uint4 *)(row[k].out + 8 * lane) = eight_of(eight[k], scale_from<V32>(scale[k]));
        if (row[k].page != NULL && copies)
            *(uint4 *)(row[k].out + format::QUANTISED + 8 * copied) = rope[k];
    }
}

/* v3: lane l of a warp has values 16 l .. 16 l + 15 of a row.  An even lane stores the first half
 * of its own and the first half of the odd lane's, so that each store of the pair is 32 bytes. */
template <bool V32, int ROWS>
static __device__ __forceinline__ void gather_pairs(const gather_args &a, int shift) {
    typedef struct gather_format<V32> format;
    constexpr int COPIES = ST_GATHER_ROPE / 8;
    const int lane = threadIdx.x % 32;
    const int warp = threadIdx.x / 32;
    const int b = blockIdx.y;
    const int first = blockIdx.x * (8 * ROWS) + warp;
    const struct gather_request request = request_of(a, b);
    const bool quantises = 16 * lane < format::QUANTISED;
    const bool odd = lane & 1;
    struct gather_row row[ROWS];
#pragma unroll
    for (int k = 0; k < ROWS; k++)
        row[k] = row_of(a, shift, request, b, first + 8 * k);
    uint4 bytes[ROWS], rope[ROWS];
    unsigned int scale[ROWS];
#pragma unroll
    for (int k = 0; k < ROWS; k++) {
        const uint8_t *data = row[k].page + row[k].entry * format::ENTRY;
        bytes[k] = make_uint4(0, 0, 0, 0);
        scale[k] = 0;
        if (row[k].page != NULL && quantises) {
            bytes[k] = load16(data + 16 * lane);
            scale[k] = load_scale<V32>(a, row[k], 16 * lane);
        }
        if (row[k].page != NULL && lane < COPIES)
            rope[k] = load16(data + format::ROPE_AT + 16 * lane);
    }
#pragma unroll
    for (int k = 0; k < ROWS; k++) {
        if (row[k].page == NULL) /* the same for the whole warp */
            continue;
        const float factor = scale_from<V32>(scale[k]);
        const uint4 low = eight_of(make_uint2(bytes[k].x, bytes[k].y), factor);
        const uint4 high = eight_of(make_uint2(bytes[k].z, bytes[k].w), factor);
        const uint4 away = odd ? low : high;
        const uint4 got = make_uint4(
            __shfl_xor_sync(0xffffffffu, away.x, 1), __shfl_xor_sync(0xffffffffu, away.y, 1),
            __shfl_xor_sync(0xffffffffu, away.z, 1), __shfl_xor_sync(0xffffffffu, away.w, 1));
        uint16_t *out = row[k].out + 32 * (lane / 2) + 8 * odd;
        if (quantises) {
            *(uint4 *)out = odd ? got : low;
            *(uint4 *)(out + 16) = odd ? high : got;
        }
        if (lane < COPIES)
            *(uint4 *)(row[k].out + format::QUANTISED + 8 * lane) = rope[k];
    }
}

#define GATHER_KERNEL(name, function, v32, rows)                                                   \
    extern "C" __global__ void __launch_bounds__(256)                                              \
        steptape_dequantize_and_gather_##name(const __grid_constant__ gather_args a, int shift) {  \
        function<v32, rows>(a, shift);                                                             \
    }

GATHER_KERNEL(v2_mla_x1, gather_wide, false, 1)
GATHER_KERNEL(v2_mla_x2, gather_wide, false, 2)
GATHER_KERNEL(v2_v32_x1, gather_wide, true, 1)
GATHER_KERNEL(v2_v32_x2, gather_wide, true, 2)
GATHER_KERNEL(v3_mla_x1, gather_pairs, false, 1)
GATHER_KERNEL(v3_mla_x2, gather_pairs, false, 2)
GATHER_KERNEL(v3_v32_x1, gather_pairs, true, 1)
GATHER_KERNEL(v3_v32_x2, gather_pairs, true, 2)

/* ---- launcher */

typedef void gather_kernel(gather_args a, int shift);

int st_dequantize_and_gather_cuda(const gather_args *args,
                                  const struct st_gather_geometry *geometry, void *stream) {
    static gather_kernel *const kernels[2][2][2] = {
        {{steptape_dequantize_and_gather_v2_mla_x1, steptape_dequantize_and_gather_v2_mla_x2},
         {steptape_dequantize_and_gather_v2_v32_x1, steptape_dequantize_and_gather_v2_v32_x2}},
        {{steptape_dequantize_and_gather_v3_mla_x1, steptape_dequantize_and_gather_v3_mla_x2},
         {steptape_dequantize_and_gather_v3_v32_x1, steptape_dequantize_and_gather_v3_v32_x2}}};
    const dim3 grid((unsigned int)geometry->blocks_per_request, (unsigned int)args->num_reqs);
    gather_kernel *kernel = steptape_dequantize_and_gather_v1;
    if (geometry->variant > 1)
        kernel = kernels[geometry->variant - 2][args->format == STEPTAPE_KV_FP8_V32]
                        [geometry->rows_per_thread - 1];
    kernel<<<grid, geometry->threads, 0, (cudaStream_t)stream>>>(*args,
                                                                 st_shift_of(args->block_size));
    return st_launch_status();
}
