/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fill on CUDA.
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
