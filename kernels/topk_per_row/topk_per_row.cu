/* SPDX-License-Identifier: Apache-2.0 */
/*
 * topk_per_row on CUDA: variant 2 and the way to the others, which have files of their own.
 */
#include "kernels/topk_per_row/topk_per_row.cuh"

/* ---- v2: the row is read five times */

enum { V2_THREADS = 512, V2_WARPS = V2_THREADS / 32, V2_BINS = 256 };

/* What a byte's histogram says: the k-th column's byte, and how many columns are above it. */
struct v2_state {
    uint32_t bins[V2_BINS];
    uint32_t byte;
    int above;
    int warp_counts[2][V2_WARPS];
};

/* Counts the columns whose key begins with prefix (bits over shift + 8) by their next byte. */
static __device__ void v2_count(const float *values, int n, uint32_t prefix, int shift,
                                v2_state *s) {
    for (int i = threadIdx.x; i < V2_BINS; i += V2_THREADS)
        s->bins[i] = 0;
    __syncthreads();
    for (int i = threadIdx.x; i < n; i += V2_THREADS) {
        const uint32_t key = topk_key(values[i]);
        if (shift == 24 || key >> (shift + 8) == prefix)
            atomicAdd(&s->bins[key >> shift & 255], 1u);
    }
    __syncthreads();
}

/* The byte in which the left-th best column of those counted is. */
static __device__ void v2_find(int left, v2_state *s) {
    if (threadIdx.x == 0) {
        int above = 0, byte = V2_BINS - 1;
        while (byte > 0 && above + (int)s->bins[byte] < left)
            above += (int)s->bins[byte--];
        s->byte = (uint32_t)byte;
        s->above = above;
    }
    __syncthreads();
}

/* Lists, in order, columns above `low` and the first `equal` of those at it. */
static __device__ void v2_list(const float *values, int n, uint32_t low, int equal, int32_t *out,
                               v2_state *s) {
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const uint32_t before = (1u << lane) - 1;
    int above_base = 0, equal_base = 0;
    for (int start = 0; start < n; start += V2_THREADS) {
        const int i = start + threadIdx.x;
        const uint32_t key = i < n ? topk_key(values[i]) : 0;
        const uint32_t is_above = __ballot_sync(~0u, i < n && key > low);
        const uint32_t is_equal = __ballot_sync(~0u, i < n && key == low);
        if (lane == 0) {
            s->warp_counts[0][warp] = __popc(is_above);
            s->warp_counts[1][warp] = __popc(is_equal);
        }
        __syncthreads();
        int my_above = above_base + __popc(is_above & before);
        int my_equal = equal_base + __popc(is_equal & before);
        for (int w = 0; w < V2_WARPS; w++) {
            my_above += w < warp ? s->warp_counts[0][w] : 0;
            my_equal += w < warp ? s->warp_counts[1][w] : 0;
            above_base += s->warp_counts[0][w];
            equal_base += s->warp_counts[1][w];
        }
        if (i < n && (key > low || (key == low && my_equal < equal)))
            out[my_above + min(my_equal, equal)] = i;
        __syncthreads();
    }
}

extern "C" __global__ void __launch_bounds__(V2_THREADS)
    steptape_topk_per_row_v2(const __grid_constant__ topk_args a) {
    __shared__ v2_state s;
    const int64_t row = blockIdx.x;
    const topk_range range = topk_range_of(a, row);
    const float *values = a.logits + row * a.logits_stride + range.first;
    int32_t *out = a.out + row * a.out_stride;
    if (range.n <= a.k) {
        topk_all(out, range.n, a.k, 0);
        return;
    }
    uint32_t prefix = 0;
    int left = a.k;
    for (int shift = 24; shift >= 0; shift -= 8) {
        v2_count(values, range.n, prefix, shift, &s);
        v2_find(left, &s);
        left -= s.above;
        prefix = prefix << 8 | s.byte;
    }
    v2_list(values, range.n, prefix, left, out, &s);
}

int st_topk_per_row_cuda(const topk_args *args, const struct st_geometry *geometry, void *stream) {
    struct st_topk_plan plan;
    if (geometry->variant == ST_TOPK_LIBRARY)
        return st_topk_library_cuda(args, stream);
    int rc = st_topk_plan(args, &plan);
    if (rc != STEPTAPE_OK)
        return rc;
    if (plan.function == ST_TOPK_V2) {
        steptape_topk_per_row_v2<<<plan.grid, plan.threads, 0, (cudaStream_t)stream>>>(*args);
        return st_launch_status();
    }
    if (plan.function == ST_TOPK_V3_LONG || plan.function == ST_TOPK_V5)
        return st_topk_long_cuda(args, &plan, stream);
    return plan.function == ST_TOPK_V6 ? st_topk_stay_cuda(args, &plan, stream)
                                       : st_topk_block_cuda(args, &plan, stream);
}
