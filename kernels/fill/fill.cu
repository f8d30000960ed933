/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fill on CUDA.
 *
 * Variants, slowest first, with microseconds a call (one NVIDIA H200, CUDA 13.0, 2026-11-30, a
 * graph of 20 calls over the same buffers, medians), for 512 x 640,
 * 8192 x 384, 8192 x 640, 8192 x 1152 and 8192 x 8320 words, and 512 of each 8,192:
 * v1  2.55  15.1   24.4   43.1   304    19.7   one word a thread, a division for its row
 * v2  1.21   3.79   5.56   9.10   59.2   4.84  two stores of 16 bytes a thread, 8 KiB a block
 * Tried and left: a warp for 4 KiB (60.2 and 5.30 for the second), bulk copies of 16 KiB from
 * shared memory (62.1).
 */
#include "kernels/fill/fill.h"
#include "kernels/launch.cuh"

typedef struct steptape_fill_args fill_args;

extern "C" __global__ void __launch_bounds__(256)
    steptape_fill_v1(const __grid_constant__ fill_args a) {
    const int64_t words = a.rows * a.columns;
    for (int64_t i = blockIdx.x * (int64_t)blockDim.x + threadIdx.x; i < words;
         i += (int64_t)gridDim.x * blockDim.x) {
        const int64_t row = i / a.columns;
        a.out[row * a.stride + (i - row * a.columns)] = a.value;
    }
}

extern "C" __global__ void __launch_bounds__(256)
    steptape_fill_v2(const __grid_constant__ fill_args a) {
    const int64_t end = a.rows * a.columns / 4;
    const int64_t i = blockIdx.x * 512ll + threadIdx.x;
    int4 *out = (int4 *)a.out + i;
    const int4 four = make_int4(a.value, a.value, a.value, a.value);
    if (i < end)
        out[0] = four;
    if (i + 256 < end)
        out[256] = four;
}

extern "C" __global__ void __launch_bounds__(256)
    steptape_fill_v2_rows(const __grid_constant__ fill_args a, unsigned int pieces_of_row) {
    const unsigned int piece = blockIdx.x * 8 + threadIdx.x / 32;
    const unsigned int row = piece / pieces_of_row;
    if (row >= a.rows)
        return;
    const int64_t first = (int64_t)(piece - row * pieces_of_row) * ST_FILL_PIECE;
    const int words = (int)min(a.columns - first, (int64_t)ST_FILL_PIECE);
    uint32_t *out = a.out + row * a.stride + first;
    const int4 four = make_int4(a.value, a.value, a.value, a.value);
#pragma unroll 4
    for (int c = (threadIdx.x & 31) * 4; c < words; c += 128)
        *(int4 *)(out + c) = four;
}

int st_fill_cuda(const fill_args *args, const struct st_geometry *geometry, void *stream) {
    const unsigned int blocks = geometry->grid[0], threads = geometry->threads;
    cudaStream_t s = (cudaStream_t)stream;
    if (geometry->variant == 1)
        steptape_fill_v1<<<blocks, threads, 0, s>>>(*args);
    else if (!st_fill_is_fast(args))
        return STEPTAPE_ERR_UNSUPPORTED;
    else if (args->stride == args->columns)
        steptape_fill_v2<<<blocks, threads, 0, s>>>(*args);
    else
        steptape_fill_v2_rows<<<blocks, threads, 0, s>>>(
            *args, (unsigned int)st_ceil_div(args->columns, ST_FILL_PIECE));
    return st_launch_status();
}
