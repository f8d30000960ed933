/* SPDX-License-Identifier: Apache-2.0 */
/*
 * c128a_topk_metadata on CUDA.
 */
#include "kernels/c128a_topk_metadata/c128a_topk_metadata.h"
#include "kernels/launch.cuh"

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

int st_c128a_topk_metadata_cuda(const c128a_args *args, const struct st_geometry *geometry,
                                void *stream) {
    steptape_c128a_topk_metadata_v1<<<geometry->grid[0], geometry->threads, 0,
                                      (cudaStream_t)stream>>>(*args);
    return st_launch_status();
}
