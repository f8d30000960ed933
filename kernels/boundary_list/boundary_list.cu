/* SPDX-License-Identifier: Apache-2.0 */
/*
 * boundary_list on CUDA.
 */
#include "kernels/boundary_list/boundary_list.h"
#include "kernels/launch.cuh"

typedef struct steptape_boundary_list_args list_args;

extern "C" __global__ void __launch_bounds__(1024)
    steptape_boundary_list_v1(const __grid_constant__ list_args a) {
    __shared__ int of_warp[32];
    const int lane = threadIdx.x & 31;
    const int warp = threadIdx.x >> 5;
    int before = 0; /* listed in earlier rounds */
    for (int64_t first = 0; first < a.num_tokens; first += blockDim.x) {
        const int64_t t = first + threadIdx.x;
        const bool is_listed = t < a.num_tokens && a.slot_mapping[t] >= 0 &&
                               (a.positions[t] + 1) % a.ratio == 0 && a.kv_slot_mapping[t] >= 0;
        const unsigned int votes = __ballot_sync(0xffffffffu, is_listed);
        if (lane == 0)
            of_warp[warp] = __popc(votes);
        __syncthreads();
        int place = before + __popc(votes & ((1u << lane) - 1));
        for (int w = 0; w < (int)blockDim.x / 32; w++) {
            place += w < warp ? of_warp[w] : 0;
            before += of_warp[w];
        }
        if (is_listed)
            a.list[place] = (int32_t)t;
        __syncthreads();
    }
    if (threadIdx.x == 0)
        *a.count = before;
}

int st_boundary_list_cuda(const list_args *args, const struct st_geometry *geometry, void *stream) {
    steptape_boundary_list_v1<<<geometry->grid[0], geometry->threads, 0, (cudaStream_t)stream>>>(
        *args);
    return st_launch_status();
}
