/* SPDX-License-Identifier: Apache-2.0 */
/*
 * boundary_list on CUDA.
 *
 * Variants, slowest first, with microseconds a call (one NVIDIA H200, CUDA 13.0, 2026-11-30, a
 * graph of 20 calls over the same buffers, medians), for 1, 256, 2,048 and
 * 8,192 tokens of ratio 128:
 * v1  2.60  2.83  4.90  16.1   a block walks the tokens, a sum over warps each time
 * v2  1.11  1.13  1.88   2.88  a warp has a stretch of its own and reads eight tokens a lane at
 * once Tried and left: to read position and slot only where the compressed slot is there (3.28 for
 * the last): a second look at memory costs more than the bytes.
 */
#include "kernels/boundary_list/boundary_list.h"
#include "kernels/index_lists.cuh"

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

/*
 * Tokens in stretches of blockDim.x * 8: warp w of W has the next 256 each, so that what it finds
 * follows what warps before it find.
 */
template <int ROUNDS> static __device__ __forceinline__ void list_tokens(const list_args &a) {
    __shared__ int of_warp[2][32];
    const int lane = threadIdx.x & 31;
    const int warp = threadIdx.x >> 5;
    const int warps = blockDim.x >> 5;
    int before = 0;
    int buffer = 0;
    for (int64_t base = 0; base < a.num_tokens; base += blockDim.x * ROUNDS) {
        const int64_t first = base + warp * 32 * ROUNDS + lane;
        unsigned int votes[ROUNDS];
        int64_t kv[ROUNDS], position[ROUNDS], slot[ROUNDS];
#pragma unroll
        for (int i = 0; i < ROUNDS; i++) {
            const int64_t t = first + i * 32;
            const bool is_there = t < a.num_tokens;
            kv[i] = is_there ? __ldg(a.kv_slot_mapping + t) : -1;
            position[i] = is_there ? __ldg(a.positions + t) : 0;
            slot[i] = is_there ? __ldg(a.slot_mapping + t) : -1;
        }
        int found = 0;
#pragma unroll
        for (int i = 0; i < ROUNDS; i++) {
            votes[i] = __ballot_sync(0xffffffffu, kv[i] >= 0 && slot[i] >= 0 &&
                                                      ((position[i] + 1) & (a.ratio - 1)) == 0);
            found += __popc(votes[i]);
        }
        if (lane == 0)
            of_warp[buffer][warp] = found;
        __syncthreads();
        const int theirs = lane < warps ? of_warp[buffer][lane] : 0;
        int place = before + st_warp_sum(lane < warp ? theirs : 0);
        before += st_warp_sum(theirs);
        buffer ^= 1;
#pragma unroll
        for (int i = 0; i < ROUNDS; i++) {
            if (votes[i] >> lane & 1)
                a.list[place + __popc(votes[i] & ((1u << lane) - 1))] = (int32_t)(first + i * 32);
            place += __popc(votes[i]);
        }
    }
    if (threadIdx.x == 0)
        *a.count = before;
}

extern "C" __global__ void __launch_bounds__(1024)
    steptape_boundary_list_v2(const __grid_constant__ list_args a) {
    list_tokens<8>(a);
}

extern "C" __global__ void __launch_bounds__(1024)
    steptape_boundary_list_v2_few(const __grid_constant__ list_args a) {
    list_tokens<1>(a);
}

int st_boundary_list_cuda(const list_args *args, const struct st_geometry *geometry, void *stream) {
    const unsigned int blocks = geometry->grid[0], threads = geometry->threads;
    cudaStream_t s = (cudaStream_t)stream;
    if (geometry->variant == 1)
        steptape_boundary_list_v1<<<blocks, threads, 0, s>>>(*args);
    else if (!st_is_power_of_two(args->ratio))
        return STEPTAPE_ERR_UNSUPPORTED;
    else if (args->num_tokens <= ST_BOUNDARY_LIST_FEW)
        steptape_boundary_list_v2_few<<<blocks, threads, 0, s>>>(*args);
    else
        steptape_boundary_list_v2<<<blocks, threads, 0, s>>>(*args);
    return st_launch_status();
}
