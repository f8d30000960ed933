/* SPDX-License-Identifier: Apache-2.0 */
/*
 * dequantize_and_gather on CUDA.
 *
 * v1: any alignment; 64 threads a row, a value at a time.
 */
#include <cuda_fp16.h>
#include <cuda_fp8.h>

#include "kernels/dequantize_and_gather/dequantize_and_gather.h"
#include "kernels/launch.cuh"

typedef struct steptape_dequantize_and_gather_args gather_args;

/* Where a row comes from and goes to; from == NULL: there is no such row. */
struct gather_row {
    const uint8_t *page;
    uint16_t *out;
    int32_t entry;
};

static __device__ __forceinline__ struct gather_row row_of(const gather_args &a, int shift, int b,
                                                           int i) {
    struct gather_row row = {NULL, NULL, 0};
    const int32_t length = __ldg(a.seq_lens + b) / a.ratio;
    const int32_t gathered = a.gather_lens != NULL ? __ldg(a.gather_lens + b) : length;
    const int32_t e = length - gathered + i;
    if (i >= gathered || i >= a.max_gather || e < 0)
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
    const struct gather_row row =
        row_of(a, shift, blockIdx.y, blockIdx.x * (blockDim.x / 64) + threadIdx.x / 64);
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

/* ---- launcher */

int st_dequantize_and_gather_cuda(const gather_args *args,
                                  const struct st_gather_geometry *geometry, void *stream) {
    const dim3 grid((unsigned int)geometry->blocks_per_request, (unsigned int)args->num_reqs);
    steptape_dequantize_and_gather_v1<<<grid, geometry->threads, 0, (cudaStream_t)stream>>>(
        *args, st_shift_of(args->block_size));
    return st_launch_status();
}
