/* SPDX-License-Identifier: Apache-2.0 */
/*
 * compressed_slot_mapping on CUDA.
 *
 * Variants, slowest first, with microseconds a call (one NVIDIA H200, CUDA 13.0, 2026-11-30, a
 * graph of 20 calls, medians; buffer of 8192, ratio 128) for 1, 16, 256 requests of one token and
 * 4 of 2048:
 * v1  2.06  2.23  2.45  3.52  two launches, fill and map, a block a request
 * v2  1.29  1.32  1.38  1.39  one launch writes each element once; few requests share 32 blocks
 */
#include "kernels/compressed_slot_mapping/compressed_slot_mapping.h"
#include "kernels/launch.cuh"

typedef struct steptape_compressed_slot_mapping_args map_args;

struct map_shifts {
    int ratio; /* -1: divide */
    int block;
};

/* Slice `slice` of `slices` of request r's tokens, by one block. */
static __device__ __forceinline__ void map_request(const map_args &a, const map_shifts &s, int r,
                                                   int slice, int slices) {
    const int first = __ldg(a.query_start_loc + r);
    const int last = __ldg(a.query_start_loc + r + 1);
    const int start = __ldg(a.seq_lens + r) - (last - first);
    const int32_t *table = a.block_table + r * a.block_table_stride;
    for (int i = slice * ST_SLOT_MAPPING_THREADS + threadIdx.x; i < last - first;
         i += slices * ST_SLOT_MAPPING_THREADS) {
        if (first + i >= a.out_len)
            break;
        const int position = start + i;
        int64_t slot = -1;
        if (position >= 0) {
            const int entry = st_divide32(position, a.ratio, s.ratio);
            if (position + 1 == (entry + 1) * a.ratio) {
                const int page = st_divide32(entry, a.block_size, s.block);
                int block = __ldg(table + page);
                block = block > 0 ? block : 0;
                slot = (int64_t)block * a.block_size + (entry - page * a.block_size);
            }
        }
        a.out[first + i] = slot;
    }
}

extern "C" __global__ void __launch_bounds__(ST_SLOT_MAPPING_THREADS)
    steptape_fill_i64_v1(int64_t *out, int64_t count, int64_t value) {
    int64_t i = (int64_t)blockIdx.x * ST_SLOT_MAPPING_FILL_ELEMENTS + threadIdx.x;
#pragma unroll
    for (int k = 0; k < ST_SLOT_MAPPING_FILL_ELEMENTS / ST_SLOT_MAPPING_THREADS; k++) {
        if (i < count)
            out[i] = value;
        i += ST_SLOT_MAPPING_THREADS;
    }
}

extern "C" __global__ void __launch_bounds__(ST_SLOT_MAPPING_THREADS)
    steptape_compressed_slot_mapping_v1(const __grid_constant__ map_args a,
                                        const __grid_constant__ map_shifts s) {
    map_request(a, s, blockIdx.x, 0, 1);
}

extern "C" __global__ void __launch_bounds__(ST_SLOT_MAPPING_THREADS)
    steptape_compressed_slot_mapping_v2(const __grid_constant__ map_args a,
                                        const __grid_constant__ map_shifts s, int slices_log2) {
    const unsigned int request_blocks = (unsigned int)a.num_reqs << slices_log2;
    if (blockIdx.x < request_blocks) {
        map_request(a, s, blockIdx.x >> slices_log2, blockIdx.x & ((1 << slices_log2) - 1),
                    1 << slices_log2);
        return;
    }
    /* The rest of the buffer: all elements outside [used_first, used_last). */
    int64_t used_first = 0;
    int64_t used_last = 0;
    if (a.num_reqs > 0) {
        used_first = __ldg(a.query_start_loc);
        used_last = __ldg(a.query_start_loc + a.num_reqs);
    }
    int64_t i = (int64_t)(blockIdx.x - request_blocks) * ST_SLOT_MAPPING_FILL_ELEMENTS;
    i += 2 * threadIdx.x;
#pragma unroll
    for (int k = 0; k < ST_SLOT_MAPPING_FILL_ELEMENTS / ST_SLOT_MAPPING_THREADS / 2; k++) {
        if (i >= used_last && i + 1 < a.out_len && ((uintptr_t)a.out & 15) == 0) {
            *(longlong2 *)(a.out + i) = make_longlong2(-1, -1);
        } else {
            for (int64_t j = i; j < i + 2; j++)
                if (j < a.out_len && (j < used_first || j >= used_last))
                    a.out[j] = -1;
        }
        i += 2 * ST_SLOT_MAPPING_THREADS;
    }
}

int st_compressed_slot_mapping_cuda(const map_args *args, unsigned int variant, void *stream) {
    map_shifts shifts = {st_shift_of(args->ratio), st_shift_of(args->block_size)};
    cudaStream_t s = (cudaStream_t)stream;
    unsigned int fill = (unsigned int)st_compressed_slot_mapping_fill_blocks(args->out_len);
    if (variant == 2) {
        const int slices_log2 = st_compressed_slot_mapping_slices_log2(args);
        const unsigned int blocks = ((unsigned int)args->num_reqs << slices_log2) + fill;
        steptape_compressed_slot_mapping_v2<<<blocks, ST_SLOT_MAPPING_THREADS, 0, s>>>(
            *args, shifts, slices_log2);
        return st_launch_status();
    }
    steptape_fill_i64_v1<<<fill, ST_SLOT_MAPPING_THREADS, 0, s>>>(args->out, args->out_len, -1);
    if (args->num_reqs > 0)
        steptape_compressed_slot_mapping_v1<<<(unsigned int)args->num_reqs, ST_SLOT_MAPPING_THREADS,
                                              0, s>>>(*args, shifts);
    return st_launch_status();
}
