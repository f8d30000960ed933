/* SPDX-License-Identifier: Apache-2.0 */
/*
 * global_topk_indices on CUDA.
 *
 * Variants, slowest first, with microseconds a call (one NVIDIA H200, CUDA 13.0, 2026-11-30, a
 * graph of 20 calls over the same buffers, medians), for 1, 64 and 256
 * tokens with k = 512, then 1,024:
 * v1  2.09  2.26  2.46  2.70  2.87  3.14  a block of 256 a token, an entry a thread
 * v2  1.70  1.82  2.02  1.69  1.86  2.15  four entries a thread, counted by warps
 */
#include "kernels/global_topk_indices/global_topk_indices.h"
#include "kernels/index_lists.cuh"

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

extern "C" __global__ void __launch_bounds__(1024)
    steptape_global_topk_indices_v2(const __grid_constant__ global_args a, int shift) {
    __shared__ int of_warp[32];
    const int64_t t = blockIdx.x;
    const int32_t *list = a.topk_indices + t * a.topk_stride;
    const int32_t *table = a.block_table + __ldg(a.token_to_req + t) * a.block_table_stride;
    int mine = 0;
#pragma unroll 1
    for (int c = threadIdx.x * 4; c < a.k; c += blockDim.x * 4) {
        const int4 e = __ldg((const int4 *)(list + c));
        int4 slots = make_int4(-1, -1, -1, -1);
        if (e.x >= 0)
            slots.x = st_slot(table, e.x, shift);
        if (e.y >= 0)
            slots.y = st_slot(table, e.y, shift);
        if (e.z >= 0)
            slots.z = st_slot(table, e.z, shift);
        if (e.w >= 0)
            slots.w = st_slot(table, e.w, shift);
        *(int4 *)(a.out + t * a.out_stride + c) = slots;
        mine += (e.x >= 0) + (e.y >= 0) + (e.z >= 0) + (e.w >= 0);
    }
    mine = st_warp_sum(mine);
    const int lane = threadIdx.x & 31;
    if (lane == 0)
        of_warp[threadIdx.x / 32] = mine;
    __syncthreads();
    if (threadIdx.x < 32) {
        mine = st_warp_sum(lane < blockDim.x / 32 ? of_warp[lane] : 0);
        if (lane == 0)
            a.lens[t] = __ldg(a.slot_mapping + t) >= 0 ? mine : 0;
    }
}

int st_global_topk_indices_cuda(const global_args *args, const struct st_geometry *geometry,
                                void *stream) {
    const unsigned int blocks = geometry->grid[0], threads = geometry->threads;
    cudaStream_t s = (cudaStream_t)stream;
    if (geometry->variant == 1)
        steptape_global_topk_indices_v1<<<blocks, threads, 0, s>>>(*args);
    else if (st_global_topk_indices_is_fast(args))
        steptape_global_topk_indices_v2<<<blocks, threads, 0, s>>>(*args,
                                                                   st_shift_of(args->block_size));
    else
        return STEPTAPE_ERR_UNSUPPORTED;
    return st_launch_status();
}
