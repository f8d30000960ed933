/* SPDX-License-Identifier: Apache-2.0 */
/*
 * topk_per_row, variant 1: what an engine without a kernel of its own does with a library.  It
 * masks the row's range, lets the library sort whole rows, clips the first k to the range and puts
 * them in order.  The sort (CUB) is stable, so of equal values the lower column comes first.
 */
#include "kernels/topk_per_row/topk_per_row.cuh"

#define CCCL_DISABLE_NVTX /* which would look for a profiler in the environment */
#include <cub/device/device_segmented_radix_sort.cuh>
#include <iterator>

/* Where row i of a chunk begins, for the library.  The type's name is in the names of the kernels
 * that it is compiled into: the registry knows this operator's by it. */
struct steptape_topk_per_row_segments {
    typedef std::random_access_iterator_tag iterator_category;
    typedef int value_type;
    typedef int difference_type;
    typedef const int *pointer;
    typedef int reference;
    int columns;
    int at;
    __host__ __device__ int operator[](int i) const {
        return (at + i) * columns;
    }
    __host__ __device__ int operator*() const {
        return at * columns;
    }
    __host__ __device__ steptape_topk_per_row_segments operator+(int i) const {
        return {columns, at + i};
    }
    __host__ __device__ steptape_topk_per_row_segments &operator++() {
        at++;
        return *this;
    }
};

/* Keys of the columns in the row's range, NaN just above the 0 of those outside. */
extern "C" __global__ void __launch_bounds__(ST_TOPK_MASK_THREADS)
    steptape_topk_per_row_v1_mask(const __grid_constant__ topk_args a, int64_t first_row,
                                  uint32_t *keys, int32_t *columns) {
    const int64_t row = first_row + blockIdx.x;
    const topk_range range = topk_range_of(a, row);
    const float *values = a.logits + row * a.logits_stride;
    const int64_t to = blockIdx.x * (int64_t)a.num_columns;
    const int64_t begin = blockIdx.y * (int64_t)ST_TOPK_MASK_COLUMNS;
    const int end = (int)min(begin + ST_TOPK_MASK_COLUMNS, (int64_t)a.num_columns);
    for (int c = (int)begin + threadIdx.x; c < end; c += ST_TOPK_MASK_THREADS) {
        uint32_t key = 0;
        if (c >= range.first && c - range.first < range.n)
            key = max(topk_key(values[c]), 1u);
        keys[to + c] = key;
        columns[to + c] = c;
    }
}

/* The first k sorted columns; what is outside the range becomes -1. */
extern "C" __global__ void __launch_bounds__(ST_TOPK_CLIP_THREADS)
    steptape_topk_per_row_v1_clip(const __grid_constant__ topk_args a, int64_t first_row,
                                  const int32_t *sorted, int32_t *clipped) {
    const topk_range range = topk_range_of(a, first_row + blockIdx.x);
    const int64_t at = blockIdx.x * (int64_t)a.num_columns;
    const int base = (a.flags & STEPTAPE_TOPK_ABSOLUTE) != 0 ? range.first : 0;
    for (int i = threadIdx.x; i < min(a.k, a.num_columns); i += ST_TOPK_CLIP_THREADS) {
        const int c = sorted[at + i] - range.first;
        clipped[at + i] = c >= 0 && c < range.n ? c + base : -1;
    }
}

/* Columns in ascending order, then -1: a set of bits for ORDER_WORDS * 32 columns at a time. */
extern "C" __global__ void __launch_bounds__(ST_TOPK_ORDER_THREADS)
    steptape_topk_per_row_v1_order(const __grid_constant__ topk_args a, int64_t first_row,
                                   const int32_t *clipped) {
    enum { WARPS = ST_TOPK_ORDER_THREADS / 32, EACH = ST_TOPK_ORDER_WORDS / ST_TOPK_ORDER_THREADS };
    __shared__ uint32_t bits[ST_TOPK_ORDER_WORDS];
    __shared__ int warp_counts[WARPS];
    int32_t *out = a.out + (first_row + blockIdx.x) * a.out_stride;
    const int32_t *in = clipped + blockIdx.x * (int64_t)a.num_columns;
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    int written = 0;
    for (int start = 0; start < a.num_columns; start += ST_TOPK_ORDER_WORDS * 32) {
        for (int i = threadIdx.x; i < ST_TOPK_ORDER_WORDS; i += ST_TOPK_ORDER_THREADS)
            bits[i] = 0;
        __syncthreads();
        for (int i = threadIdx.x; i < min(a.k, a.num_columns); i += ST_TOPK_ORDER_THREADS) {
            const int c = in[i] - start;
            if (c >= 0 && c < ST_TOPK_ORDER_WORDS * 32)
                atomicOr(&bits[c / 32], 1u << (c % 32));
        }
        __syncthreads();
        int mine = 0;
        for (int i = 0; i < EACH; i++)
            mine += __popc(bits[threadIdx.x * EACH + i]);
        int upto = mine;
        for (int d = 1; d < 32; d *= 2) {
            const int other = __shfl_up_sync(~0u, upto, d);
            upto += lane >= d ? other : 0;
        }
        if (lane == 31)
            warp_counts[warp] = upto;
        __syncthreads();
        int at = written + upto - mine;
        for (int w = 0; w < WARPS; w++) {
            at += w < warp ? warp_counts[w] : 0;
            written += warp_counts[w];
        }
        for (int i = 0; i < EACH; i++) {
            const int word = threadIdx.x * EACH + i;
            for (uint32_t left = bits[word]; left != 0; left &= left - 1)
                out[at++] = start + word * 32 + __ffs((int)left) - 1;
        }
        __syncthreads();
    }
    for (int i = written + threadIdx.x; i < a.k; i += ST_TOPK_ORDER_THREADS)
        out[i] = -1;
}

static int library_chunk(const topk_args *args, const struct st_topk_library *layout, int64_t first,
                         int rows, cudaStream_t stream) {
    char *scratch = (char *)args->scratch;
    const int columns = args->num_columns;
    cub::DoubleBuffer<uint32_t> keys((uint32_t *)(scratch + layout->keys[0]),
                                     (uint32_t *)(scratch + layout->keys[1]));
    cub::DoubleBuffer<int32_t> values((int32_t *)(scratch + layout->columns[0]),
                                      (int32_t *)(scratch + layout->columns[1]));
    const steptape_topk_per_row_segments begins = {columns, 0}, ends = {columns, 1};
    size_t sort_bytes = 0;
    cudaError_t error = cub::DeviceSegmentedRadixSort::SortPairsDescending(
        NULL, sort_bytes, keys, values, rows * columns, rows, begins, ends, 0, 32, stream);
    if (error != cudaSuccess)
        return st_cuda_status(error);
    if (sort_bytes > layout->sort_bytes)
        return STEPTAPE_ERR_UNSUPPORTED;
    const dim3 mask_grid((unsigned int)rows,
                         (unsigned int)st_ceil_div(columns, ST_TOPK_MASK_COLUMNS));
    steptape_topk_per_row_v1_mask<<<mask_grid, ST_TOPK_MASK_THREADS, 0, stream>>>(
        *args, first, keys.Current(), values.Current());
    sort_bytes = (size_t)layout->sort_bytes;
    error = cub::DeviceSegmentedRadixSort::SortPairsDescending(scratch + layout->sort, sort_bytes,
                                                               keys, values, rows * columns, rows,
                                                               begins, ends, 0, 32, stream);
    if (error != cudaSuccess)
        return st_cuda_status(error);
    steptape_topk_per_row_v1_clip<<<rows, ST_TOPK_CLIP_THREADS, 0, stream>>>(
        *args, first, values.Current(), values.Alternate());
    steptape_topk_per_row_v1_order<<<rows, ST_TOPK_ORDER_THREADS, 0, stream>>>(*args, first,
                                                                               values.Alternate());
    return st_launch_status();
}

int st_topk_library_cuda(const topk_args *args, void *stream) {
    struct st_topk_library layout;
    st_topk_library_layout(args, &layout);
    if (layout.chunks == 0) {
        steptape_topk_per_row_v1_order<<<(unsigned int)args->num_rows, ST_TOPK_ORDER_THREADS, 0,
                                         (cudaStream_t)stream>>>(*args, 0, NULL);
        return st_launch_status();
    }
    for (int64_t first = 0; first < args->num_rows; first += layout.rows) {
        const int64_t left = args->num_rows - first;
        int rc = library_chunk(args, &layout, first, (int)(left < layout.rows ? left : layout.rows),
                               (cudaStream_t)stream);
        if (rc != STEPTAPE_OK)
            return rc;
    }
    return STEPTAPE_OK;
}
