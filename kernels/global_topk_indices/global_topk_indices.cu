/* SPDX-License-Identifier: Apache-2.0 */
/*
 * global_topk_indices on CUDA.
 */
#include "kernels/global_topk_indices/global_topk_indices.h"
#include "kernels/launch.cuh"

typedef struct steptape_global_topk_indices_args global_args;

extern "C" __global__ void __launch_bounds__(256)
    steptape_global_topk_indices_v1(const __grid_constant__ global_args a) {
    __shared__ int found;
    const int64_t t = blockIdx.x;
    if (threadIdx.x == 0)
        found = 0;
    __syncthreads();
    const int32_t *table = a.block_table + a.token_to_req[t] * a.block_table_stride;
    int mine = 0;
    for (int c = threadIdx.x; c < a.k; c += blockDim.x) {
        const int entry = a.topk_indices[t * a.topk_stride + c];
        int slot = -1;
        if (entry >= 0) {
            slot = max(table[entry / a.block_size], 0) * a.block_size + entry % a.block_size;
            mine++;
        }
        a.out[t * a.out_stride + c] = slot;
    }
    atomicAdd(&found, mine);
    __syncthreads();
    if (threadIdx.x == 0)
        a.lens[t] = a.slot_mapping[t] >= 0 ? found : 0;
}

int st_global_topk_indices_cuda(const global_args *args, const struct st_geometry *geometry,
                                void *stream) {
    steptape_global_topk_indices_v1<<<geometry->grid[0], geometry->threads, 0,
                                      (cudaStream_t)stream>>>(*args);
    return st_launch_status();
}
