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

int st_fill_cuda(const fill_args *args, const struct st_geometry *geometry, void *stream) {
    steptape_fill_v1<<<geometry->grid[0], geometry->threads, 0, (cudaStream_t)stream>>>(*args);
    return st_launch_status();
}
