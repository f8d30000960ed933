/* SPDX-License-Identifier: Apache-2.0 */
/*
 * c128a_topk_metadata on CUDA.
 *
 * Variants, slowest first, with microseconds a call (one NVIDIA H200, CUDA 13.0, 2026-11-30, a
 * graph of 20 calls over the same buffers, medians), for D decode and P
 * prefill tokens, every decode list as long as its row:
 *
 *     D              64     64    256    256      0      0      0      0      0      0
 *     P               0      0      0      0    512    512   2048   2048   8192   8192
 *     width         256   8192    256   8192    256   8192    256   8192    256   8192
 *     v1           1.89   10.8   2.01   11.6   1.49   5.26   2.57   17.2   6.54   62.5
 *     v2           1.61   2.31   1.67   3.92   1.38   5.09   1.78   15.9   3.27   58.9
 *
 * v1: a block a token, a column a thread, two divisions a column.
 * v2: a warp for up to 256 columns, warps in the order of memory, 16 bytes a store, streaming from
 *     32 MiB on.
 * Tried and left, for the last column: a whole row a warp, whose writes are spread too far (64.3);
 * one store a thread (77.0); 1,024 columns a warp (59.6).
 */
#include "kernels/c128a_topk_metadata/c128a_topk_metadata.h"
#include "kernels/index_lists.cuh"

typedef struct steptape_c128a_topk_metadata_args c128a_args;

/* Entries of a token at that position. */
static __device__ __forceinline__ int entry_count(const c128a_args &a, int64_t position) {
    return position < 0 ? 0 : (int)min((position + 1) / a.ratio, (int64_t)a.width);
}

extern "C" __global__ void __launch_bounds__(256)
    steptape_c128a_topk_metadata_v1(const __grid_constant__ c128a_args a) {
    const int64_t t = blockIdx.x;
    const int n = entry_count(a, a.positions[t]);
    if (t >= a.num_decode_tokens) {
        int32_t *row = a.prefill + (t - a.num_decode_tokens) * a.prefill_stride;
        for (int c = threadIdx.x; c < a.width; c += blockDim.x)
            row[c] = c < n ? c : -1;
        return;
    }
    const int32_t *table = a.block_table + a.token_to_req[t] * a.block_table_stride;
    int32_t *row = a.decode + t * a.decode_stride;
    for (int c = threadIdx.x; c < a.width; c += blockDim.x)
        row[c] = c < n ? max(table[c / a.block_size], 0) * a.block_size + c % a.block_size : -1;
    if (threadIdx.x == 0)
        a.decode_lens[t] = a.slot_mapping[t] >= 0 ? n : 0;
}

struct c128a_plan {
    int ratio; /* shifts */
    int block;
    int columns;         /* of a warp */
    unsigned int of_row; /* warps of a row */
    int of_row_shift;    /* -1: divide */
};

/* 0 .. n, then -1. */
static __device__ __forceinline__ int4 count_up(int c, int n) {
    return make_int4(c < n ? c : -1, c + 1 < n ? c + 1 : -1, c + 2 < n ? c + 2 : -1,
                     c + 3 < n ? c + 3 : -1);
}

/* Slots of the entries c .. c + 3, those of `left` of them; pages of two are looked up once. */
static __device__ __forceinline__ int4 slots_of_four(const int32_t *table, int c, int left,
                                                     int shift) {
    int4 slots = make_int4(-1, -1, -1, -1);
    if (shift == 1) {
        if (left > 0)
            slots.x = st_page_slot(table, c >> 1, 1);
        if (left > 2)
            slots.z = st_page_slot(table, (c >> 1) + 1, 1);
        if (left > 1)
            slots.y = slots.x + 1;
        if (left > 3)
            slots.w = slots.z + 1;
        return slots;
    }
    if (left > 0)
        slots.x = st_slot(table, c, shift);
    if (left > 1)
        slots.y = st_slot(table, c + 1, shift);
    if (left > 2)
        slots.z = st_slot(table, c + 2, shift);
    if (left > 3)
        slots.w = st_slot(table, c + 3, shift);
    return slots;
}

/* Warps are in the order of memory, so that what is written at one time lies together. */
template <bool STREAM>
static __device__ __forceinline__ void make_lists(const c128a_args &a, const c128a_plan &plan) {
    const unsigned int warp = blockIdx.x * 8 + threadIdx.x / 32;
    const unsigned int t = plan.of_row_shift >= 0 ? warp >> plan.of_row_shift : warp / plan.of_row;
    if (t >= a.num_tokens)
        return;
    const int begin = (int)(warp - t * plan.of_row) * plan.columns;
    const int end = min(begin + plan.columns, a.width);
    int c = begin + (threadIdx.x & 31) * 4;
    const int64_t entries = min((__ldg(a.positions + t) + 1) >> plan.ratio, (int64_t)a.width);
    const int n = (int)max(entries, (int64_t)0);
    if (t >= a.num_decode_tokens) {
        int32_t *row = a.prefill + (t - a.num_decode_tokens) * a.prefill_stride;
#pragma unroll 2
        for (; c < end; c += 128)
            st_store_four(row + c, count_up(c, n), STREAM);
        return;
    }
    const int32_t *table = a.block_table + __ldg(a.token_to_req + t) * a.block_table_stride;
    if (c == 0)
        a.decode_lens[t] = __ldg(a.slot_mapping + t) >= 0 ? n : 0;
    int32_t *row = a.decode + t * a.decode_stride;
#pragma unroll 1
    for (; c < end; c += 128)
        st_store_four(row + c, slots_of_four(table, c, n - c, plan.block), STREAM);
}

extern "C" __global__ void __launch_bounds__(256)
    steptape_c128a_topk_metadata_v2(const __grid_constant__ c128a_args a,
                                    const __grid_constant__ c128a_plan plan) {
    make_lists<false>(a, plan);
}

extern "C" __global__ void __launch_bounds__(256)
    steptape_c128a_topk_metadata_v2_large(const __grid_constant__ c128a_args a,
                                          const __grid_constant__ c128a_plan plan) {
    make_lists<true>(a, plan);
}

int st_c128a_topk_metadata_cuda(const c128a_args *args, const struct st_geometry *geometry,
                                void *stream) {
    const unsigned int blocks = geometry->grid[0], threads = geometry->threads;
    cudaStream_t s = (cudaStream_t)stream;
    if (geometry->variant == 1) {
        steptape_c128a_topk_metadata_v1<<<blocks, threads, 0, s>>>(*args);
        return st_launch_status();
    }
    if (!st_c128a_topk_metadata_is_fast(args))
        return STEPTAPE_ERR_UNSUPPORTED;
    c128a_plan plan;
    plan.ratio = st_shift_of(args->ratio);
    plan.block = st_shift_of(args->block_size);
    plan.columns = 128 * st_c128a_topk_metadata_steps(args);
    plan.of_row = (unsigned int)((args->width + plan.columns - 1) / plan.columns);
    plan.of_row_shift = st_shift_of((int32_t)plan.of_row);
    if (4 * args->num_tokens * args->width > ST_STREAM_BYTES)
        steptape_c128a_topk_metadata_v2_large<<<blocks, threads, 0, s>>>(*args, plan);
    else
        steptape_c128a_topk_metadata_v2<<<blocks, threads, 0, s>>>(*args, plan);
    return st_launch_status();
}
