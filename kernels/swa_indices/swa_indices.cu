/* SPDX-License-Identifier: Apache-2.0 */
/*
 * swa_indices on CUDA.
 *
 * Variants, slowest first, with microseconds a call (one NVIDIA H200, CUDA 13.0, 2026-11-30, a
 * graph of 20 calls over the same buffers, medians), for 1, 64, 256 and
 * 8,192 tokens, window 128:
 * v1  1.76  1.88  2.09  6.90  a block a token, an entry a thread
 * v2  1.30  1.37  1.44  2.86  a warp a token, 16 bytes a store, two looks at the block table for
 * four
 */
#include "kernels/index_lists.cuh"
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

extern "C" __global__ void __launch_bounds__(32 * ST_SWA_WARPS)
    steptape_swa_indices_v2(const __grid_constant__ swa_args a, int shift) {
    const int64_t t = blockIdx.x * (int64_t)ST_SWA_WARPS + threadIdx.x / 32;
    const int lane = threadIdx.x & 31;
    if (t >= a.num_tokens)
        return;
    const int64_t slot = __ldg(a.slot_mapping + t);
    const int last = (int)__ldg(a.positions + t);
    const int32_t *table = a.block_table + __ldg(a.token_to_req + t) * a.block_table_stride;
    const int first = max(last - a.window + 1, 0);
    const int n = slot >= 0 ? max(last - first + 1, 0) : 0;
    if (lane == 0)
        a.lens[t] = n;
    if (slot < 0)
        return;
    int32_t *row = a.indices + t * a.indices_stride;
#pragma unroll 1
    for (int c = lane * 4; c < a.window; c += 128) {
        const int left = n - c; /* of the window */
        int4 slots = make_int4(-1, -1, -1, -1);
        if (left > 0) {
            /* four entries in a row lie on two pages at most */
            const int entry = first + c;
            const int page = entry >> shift;
            const int next_page = (entry + min(left, 4) - 1) >> shift;
            const int base = st_page_slot(table, page, shift) - (page << shift);
            const int next = st_page_slot(table, next_page, shift) - (next_page << shift);
            slots.x = base + entry;
            if (left > 1)
                slots.y = ((entry + 1) >> shift == page ? base : next) + entry + 1;
            if (left > 2)
                slots.z = ((entry + 2) >> shift == page ? base : next) + entry + 2;
            if (left > 3)
                slots.w = ((entry + 3) >> shift == page ? base : next) + entry + 3;
        }
        *(int4 *)(row + c) = slots;
    }
}

int st_swa_indices_cuda(const swa_args *args, const struct st_geometry *geometry, void *stream) {
    const unsigned int blocks = geometry->grid[0], threads = geometry->threads;
    cudaStream_t s = (cudaStream_t)stream;
    if (geometry->variant == 1)
        steptape_swa_indices_v1<<<blocks, threads, 0, s>>>(*args);
    else if (st_swa_indices_is_fast(args))
        steptape_swa_indices_v2<<<blocks, threads, 0, s>>>(*args, st_shift_of(args->block_size));
    else
        return STEPTAPE_ERR_UNSUPPORTED;
    return st_launch_status();
}
