/* SPDX-License-Identifier: Apache-2.0 */
/*
 * swa_indices on CUDA.
 */
#include "kernels/launch.cuh"
#include "kernels/swa_indices/swa_indices.h"

typedef struct steptape_swa_indices_args swa_args;

extern "C" __global__ void __launch_bounds__(128)
    steptape_swa_indices_v1(const __grid_constant__ swa_args a) {
    const int64_t t = blockIdx.x;
    if (a.slot_mapping[t] < 0) {
        if (threadIdx.x == 0)
            a.lens[t] = 0;
        return;
    }
    const int64_t last = a.positions[t];
    const int64_t first = last - a.window + 1 > 0 ? last - a.window + 1 : 0;
    const int64_t n = last - first + 1 > 0 ? last - first + 1 : 0;
    const int32_t *table = a.block_table + a.token_to_req[t] * a.block_table_stride;
    for (int j = threadIdx.x; j < a.window; j += blockDim.x) {
        int32_t slot = -1;
        if (j < n) {
            const int64_t page = (first + j) / a.block_size;
            slot = max(table[page], 0) * a.block_size + (int32_t)(first + j - page * a.block_size);
        }
        a.indices[t * a.indices_stride + j] = slot;
    }
    if (threadIdx.x == 0)
        a.lens[t] = (int32_t)n;
}

int st_swa_indices_cuda(const swa_args *args, const struct st_geometry *geometry, void *stream) {
    steptape_swa_indices_v1<<<geometry->grid[0], geometry->threads, 0, (cudaStream_t)stream>>>(
        *args);
    return st_launch_status();
}
