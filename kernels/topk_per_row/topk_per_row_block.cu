/* SPDX-License-Identifier: Apache-2.0 */
/*
 * topk_per_row, variants 3 and 4: one block a row, which it holds in registers.
 */
#include "kernels/topk_per_row/topk_row.cuh"

/*
 * AHEAD: the block loads all columns before it knows which of them are the row's; bounds come from
 * memory, too, and few rows wait for nothing but memory.
 */
template <int T, int E, bool WHOLE, bool AHEAD>
static __device__ __forceinline__ void block_row(const topk_args &a) {
    topk_shared &s = *(topk_shared *)topk_memory;
    const int64_t row = blockIdx.x;
    const float *values = a.logits + row * a.logits_stride;
    int32_t *out = a.out + row * a.out_stride;
    topk_held<E> h;
    if (AHEAD)
        topk_load<T, E>(values, a.num_columns, h);
    topk_clear<T>(s);
    const topk_range range = topk_range_of(a, row);
    if (range.n <= a.k) {
        topk_all(out, range.n, a.k, 0);
        return;
    }
    values += range.first;
    if (AHEAD)
        topk_cut(h, range.first, range.n);
    else
        topk_load<T, E>(values, range.n, h);
    if (WHOLE)
        topk_row_whole<T, E>(h, a.k, values, out, s);
    else if (a.k <= TOPK_STAGE)
        topk_row_bound<T, E>(h, a.k, values, out, s);
    else
        topk_stream<T, 4, topk_alone>(values, range.n, a.k, topk_anywhere(0, range.n, a.k), out, s);
}

#define BLOCK_KERNEL(name, threads, each, blocks, whole, ahead)                                    \
    extern "C" __global__ void __launch_bounds__(threads, blocks)                                  \
        steptape_topk_per_row_##name(const __grid_constant__ topk_args a) {                        \
        block_row<threads, each, whole, ahead>(a);                                                 \
    }

BLOCK_KERNEL(v3_4k, 512, 8, 3, true, true)
BLOCK_KERNEL(v3_8k, 512, 16, 3, true, true)
BLOCK_KERNEL(v3_16k, 1024, 16, 1, false, false)
BLOCK_KERNEL(v3_32k, 1024, 32, 1, false, false)
BLOCK_KERNEL(v4_4k, 256, 16, 5, true, false)
BLOCK_KERNEL(v4_8k, 256, 32, 5, true, false)
BLOCK_KERNEL(v4_16k, 512, 32, 2, false, false)

int st_topk_block_cuda(const topk_args *args, const struct st_topk_plan *plan, void *stream) {
    static void (*const kernels[])(topk_args) = {
        steptape_topk_per_row_v3_4k,  steptape_topk_per_row_v3_8k, steptape_topk_per_row_v3_16k,
        steptape_topk_per_row_v3_32k, steptape_topk_per_row_v4_4k, steptape_topk_per_row_v4_8k,
        steptape_topk_per_row_v4_16k};
    void (*kernel)(topk_args) = kernels[plan->function - ST_TOPK_V3_4K];
    cudaError_t error = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                             (int)plan->smem_bytes);
    if (error == cudaSuccess && plan->variant == ST_TOPK_SMALL) /* as many as registers allow */
        error = cudaFuncSetAttribute(kernel, cudaFuncAttributePreferredSharedMemoryCarveout,
                                     cudaSharedmemCarveoutMaxShared);
    if (error != cudaSuccess)
        return st_cuda_status(error);
    kernel<<<plan->grid, plan->threads, plan->smem_bytes, (cudaStream_t)stream>>>(*args);
    return st_launch_status();
}
