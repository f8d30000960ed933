/* SPDX-License-Identifier: Apache-2.0 */
/*
 * topk_per_row, long rows: variant 3's kernel of one block a row and variant 5, a cluster a row.
 */
#include "kernels/topk_per_row/topk_cluster.cuh"
#include "kernels/topk_per_row/topk_long.cuh"

enum { LONG_THREADS = 1024, LONG_HELD = 32 };

/*
 * A row per team.  What a block's registers hold is left to the first block: the others would only
 * be waited for.
 */
template <typename Team> static __device__ __forceinline__ void long_row(const topk_args &a) {
    topk_shared &s = *(topk_shared *)topk_memory;
    uint32_t *words = (uint32_t *)(topk_memory + ST_TOPK_SHARED_BYTES);
    const int64_t row = blockIdx.x / Team::size();
    int32_t *out = a.out + row * a.out_stride;
    topk_clear<LONG_THREADS>(s);
    const topk_range range = topk_range_of(a, row);
    if (range.n <= a.k) {
        if (Team::rank() == 0)
            topk_all(out, range.n, a.k, 0);
        return;
    }
    const float *values = a.logits + row * a.logits_stride + range.first;
    if (range.n <= LONG_THREADS * LONG_HELD / (Team::size() > 1 ? 2 : 1)) {
        if (Team::rank() > 0)
            return;
        topk_held<LONG_HELD> h;
        topk_load<LONG_THREADS, LONG_HELD>(values, range.n, h);
        if (a.k <= TOPK_STAGE)
            topk_row_bound<LONG_THREADS, LONG_HELD>(h, a.k, values, out, s);
        else
            topk_stream<LONG_THREADS, 4, topk_alone>(values, range.n, a.k,
                                                     topk_anywhere(0, range.n, a.k), out, s);
        return;
    }
    topk_long<LONG_THREADS, Team>(values, range.n, a.k, out, words, s);
}

extern "C" __global__ void __launch_bounds__(LONG_THREADS, 1)
    steptape_topk_per_row_v3_long(const __grid_constant__ topk_args a) {
    long_row<topk_alone>(a);
}

extern "C" __global__ void __launch_bounds__(LONG_THREADS, 1)
    steptape_topk_per_row_v5(const __grid_constant__ topk_args a) {
    long_row<topk_cluster>(a);
}

int st_topk_long_cuda(const topk_args *args, const struct st_topk_plan *plan, void *stream) {
    void (*kernel)(topk_args) =
        plan->function == ST_TOPK_V5 ? steptape_topk_per_row_v5 : steptape_topk_per_row_v3_long;
    /* the same for all shapes: a captured launch may have another size than this one */
    cudaError_t error = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                             (int)plan->most_bytes);
    if (error != cudaSuccess)
        return st_cuda_status(error);
    cudaLaunchAttribute cluster = {};
    cluster.id = cudaLaunchAttributeClusterDimension;
    cluster.val.clusterDim.x = plan->cluster;
    cluster.val.clusterDim.y = cluster.val.clusterDim.z = 1;
    cudaLaunchConfig_t config = {};
    config.gridDim = dim3(plan->grid);
    config.blockDim = dim3(plan->threads);
    config.dynamicSmemBytes = plan->smem_bytes;
    config.stream = (cudaStream_t)stream;
    config.attrs = &cluster;
    config.numAttrs = plan->function == ST_TOPK_V5 ? 1 : 0;
    error = cudaLaunchKernelEx(&config, kernel, *args);
    return error == cudaSuccess ? st_launch_status() : st_cuda_status(error);
}
