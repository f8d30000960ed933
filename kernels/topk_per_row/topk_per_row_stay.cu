/* SPDX-License-Identifier: Apache-2.0 */
/*
 * topk_per_row, variant 6: for many rows of up to 32,768 columns.  A block of 1,024 threads holds a
 * row in all of its registers, so a multiprocessor has one block and would compute and load in
 * turns.  Here a block stays for row after row, and the copy engine brings the next row into shared
 * memory while it works on this one.
 */
#include "kernels/topk_per_row/topk_async.cuh"
#include "kernels/topk_per_row/topk_row.cuh"

/* Beside topk_shared; floats of the row begin at row[skew]. */
struct stay_shared {
    alignas(128) float row[ST_TOPK_STAY_COLUMNS + 4]; /* a warp's quads may end past the row */
    alignas(8) uint64_t barrier;
};

/* Brings n columns into row[skew ...]: whole 16 bytes as a bulk copy, the last few by hand.  By all
 * lanes of one warp. */
static __device__ void stay_fetch(const float *values, int n, stay_shared &to) {
    const int lane = threadIdx.x % 32;
    const int skew = (int)((uintptr_t)values / 4 % 4);
    const int whole = (skew + n) & ~3;
    if (lane == 0) {
        topk_async_fence();
        topk_barrier_expect(&to.barrier, 4u * (uint32_t)whole);
        for (int at = 0; at < whole; at += 4096)
            topk_bulk_copy(to.row + at, values - skew + at, 4u * (uint32_t)min(whole - at, 4096),
                           &to.barrier);
    } else if (whole + lane - 1 < skew + n && lane <= 3) {
        to.row[whole + lane - 1] = __ldg(values - skew + whole + lane - 1);
    }
}

/* Whether the row is fetched: a row that is not aligned may need a quad more than there are. */
static __device__ __forceinline__ bool stay_fits(const float *values, int n) {
    return n + (int)((uintptr_t)values / 4 % 4) <= ST_TOPK_STAY_COLUMNS;
}

/* The fetched row to registers, as topk_load has it. */
template <int T, int E>
static __device__ __forceinline__ void stay_take(const stay_shared &from, const float *values,
                                                 int n, topk_held<E> &h) {
    const int skew = (int)((uintptr_t)values / 4 % 4);
    h.n = n;
    h.quads = (n + skew + 4 * T - 1) / (4 * T);
    const int first = (int)threadIdx.x / 32 * h.quads * 128;
    h.begin = first + (int)threadIdx.x % 32 * 4 - skew;
#pragma unroll
    for (int i = 0; i < E / 4; i++) {
        float4 v = make_float4(topk_nan(), topk_nan(), topk_nan(), topk_nan());
        if (i < h.quads && first + i * 128 < n + skew)
            v = *(const float4 *)(from.row + h.begin + skew + i * 128);
        h.x[4 * i] = v.x;
        h.x[4 * i + 1] = v.y;
        h.x[4 * i + 2] = v.z;
        h.x[4 * i + 3] = v.w;
        if (first + i * 128 >= skew && first + i * 128 + 128 <= n + skew)
            continue;
#pragma unroll
        for (int j = 4 * i; j < 4 * i + 4; j++)
            h.x[j] = (unsigned int)h.column(j) < (unsigned int)n ? h.x[j] : topk_nan();
    }
}

template <int T, int E> static __device__ __forceinline__ void stay_rows(const topk_args &a) {
    static_assert(T * E == ST_TOPK_STAY_COLUMNS, "a row in registers, the next in shared memory");
    topk_shared &s = *(topk_shared *)topk_memory;
    stay_shared &stay = *(stay_shared *)(topk_memory + ST_TOPK_SHARED_BYTES);
    topk_range range = topk_range_of(a, blockIdx.x);
    const float *values = a.logits + blockIdx.x * a.logits_stride + range.first;
    uint32_t parity = 0;
    if (threadIdx.x == 0)
        topk_barrier_init(&stay.barrier);
    topk_clear<T>(s);
    __syncthreads();
    if (range.n > a.k && stay_fits(values, range.n) && threadIdx.x < 32)
        stay_fetch(values, range.n, stay);
    __syncthreads();
    for (int64_t row = blockIdx.x; row < a.num_rows; row += gridDim.x) {
        const int64_t next_row = row + gridDim.x;
        topk_range next = {0, 0};
        if (next_row < a.num_rows)
            next = topk_range_of(a, next_row);
        const float *next_values = a.logits + next_row * a.logits_stride + next.first;
        topk_held<E> h;
        if (range.n > a.k && stay_fits(values, range.n)) {
            topk_barrier_wait(&stay.barrier, parity);
            parity ^= 1;
            stay_take<T, E>(stay, values, range.n, h);
            __syncthreads();
        } else if (range.n > a.k) {
            topk_load<T, E>(values, range.n, h);
        }
        if (next.n > a.k && stay_fits(next_values, next.n) && threadIdx.x < 32)
            stay_fetch(next_values, next.n, stay);
        int32_t *out = a.out + row * a.out_stride;
        if (range.n <= a.k)
            topk_all(out, range.n, a.k, 0);
        else if (a.k <= TOPK_STAGE)
            topk_row_bound<T, E>(h, a.k, values, out, s);
        else
            topk_stream<T, 4, topk_alone>(values, range.n, a.k, topk_anywhere(0, range.n, a.k), out,
                                          s);
        __syncthreads();
        topk_clear<T>(s);
        range = next;
        values = next_values;
    }
}

extern "C" __global__ void __launch_bounds__(ST_TOPK_STAY_THREADS, 1)
    steptape_topk_per_row_v6(const __grid_constant__ topk_args a) {
    stay_rows<ST_TOPK_STAY_THREADS, ST_TOPK_STAY_COLUMNS / ST_TOPK_STAY_THREADS>(a);
}

int st_topk_stay_cuda(const topk_args *args, const struct st_topk_plan *plan, void *stream) {
    static_assert(ST_TOPK_SHARED_BYTES + sizeof(stay_shared) <= ST_TOPK_STAY_BYTES, "too small");
    cudaError_t error =
        cudaFuncSetAttribute(steptape_topk_per_row_v6, cudaFuncAttributeMaxDynamicSharedMemorySize,
                             (int)plan->smem_bytes);
    if (error != cudaSuccess)
        return st_cuda_status(error);
    steptape_topk_per_row_v6<<<plan->grid, plan->threads, plan->smem_bytes, (cudaStream_t)stream>>>(
        *args);
    return st_launch_status();
}
