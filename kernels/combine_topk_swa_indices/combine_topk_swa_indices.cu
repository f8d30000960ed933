/* SPDX-License-Identifier: Apache-2.0 */
/*
 * combine_topk_swa_indices on CUDA.
 *
 * Variants, slowest first, with microseconds a call (one NVIDIA H200, CUDA 13.0, 2026-11-30, a
 * graph of 20 calls over the same buffers, medians), for T tokens of R
 * requests with K columns of top-k:
 *
 *     T              8192   8192   8192   8192   8192    512
 *     R                 1      4      4      4      4      1
 *     K              8192   8192    256    512   1024    512
 *     v1 kept        27.1   12.7   12.6   16.5   41.5   4.23
 *     v2 kept        3.40   5.36   5.26   8.90   21.7   2.52
 *     v3 kept        3.23   4.88   4.75   6.70   18.8   1.77
 *     v3 to 128      3.79   4.69   4.55   6.69   18.8   1.75
 *     v3 to width    61.9   66.7   4.57   6.71   18.8   1.76
 *
 * v1: blocks of a request walk its tokens, a column a thread.
 * v2: a warp a token finds its request by a ballot, 16 bytes a load and store.
 * v3: what a list begins with is read meanwhile, as much as the longest context makes likely; a row
 *     that is written far out is cut into pieces.
 */
#include "kernels/combine_topk_swa_indices/combine_topk_swa_indices.h"
#include "kernels/index_lists.cuh"

typedef struct steptape_combine_topk_swa_indices_args combine_args;

/* What a row is made of. */
struct combine_row {
    int k;      /* copied columns */
    int length; /* k + window columns */
    int end;    /* up to here it is written */
    int base;   /* added to copied ones */
    int window; /* column k + j is window + k + j */
};

static __device__ __forceinline__ combine_row make_row(const combine_args &a, int shift, int b,
                                                       int seq_len, int gather_len, int p) {
    combine_row row;
    row.k = a.topk > 0 && p >= 0 ? min(st_divide32(p + 1, a.ratio, shift), a.topk) : 0;
    const int w = max(min(p + 1, a.window), 0);
    row.length = row.k + w;
    row.base = a.m * b;
    row.window = row.base + a.n + (p - w + 1) - (seq_len - gather_len) - row.k;
    row.end = row.length;
    if (a.tail == STEPTAPE_COMBINE_TAIL_128)
        row.end = (row.length + 127) / 128 * 128;
    else if (a.tail == STEPTAPE_COMBINE_TAIL_WIDTH)
        row.end = a.width;
    return row;
}

extern "C" __global__ void __launch_bounds__(256)
    steptape_combine_topk_swa_indices_v1(const __grid_constant__ combine_args a) {
    const int b = blockIdx.x;
    const int first = a.query_start_loc[b] - a.query_start_loc[0];
    const int query_len = a.query_start_loc[b + 1] - a.query_start_loc[b];
    const int seq_len = a.seq_lens[b];
    for (int i = blockIdx.y; i < query_len; i += gridDim.y) {
        const int64_t t = first + i;
        if (t >= a.num_tokens)
            return;
        const combine_row row =
            make_row(a, -1, b, seq_len, a.gather_lens[b], seq_len - query_len + i);
        int32_t *out = a.indices + t * a.indices_stride;
        for (int c = threadIdx.x; c < row.end; c += blockDim.x) {
            int value = -1;
            if (c < row.k)
                value = a.topk_indices[t * a.topk_stride + c] + row.base;
            else if (c < row.length)
                value = row.window + c;
            out[c] = value;
        }
        if (threadIdx.x == 0)
            a.lens[t] = row.length;
    }
}

/* What a warp knows of its token's request. */
struct combine_request {
    int b;
    int first, last; /* tokens of the chunk */
    int seq_len, gather_len;
};

/*
 * The request of token t of the chunk: the last one that begins at or before t.  All lanes of a
 * warp ask for the same t.  Up to 32 requests: all that can be needed is asked for at once.
 */
static __device__ __forceinline__ combine_request find_request(const combine_args &a, int t,
                                                               int lane) {
    combine_request found;
    if (a.num_reqs <= 32) {
        const int b = min(lane, a.num_reqs - 1);
        const int begin = __ldg(a.query_start_loc + b);
        const int end = __ldg(a.query_start_loc + b + 1);
        const int seq_len = __ldg(a.seq_lens + b);
        const int gather_len = __ldg(a.gather_lens + b);
        const int zero = __shfl_sync(0xffffffffu, begin, 0);
        const unsigned int votes =
            __ballot_sync(0xffffffffu, lane < a.num_reqs && begin - zero <= t);
        found.b = 31 - __clz(votes);
        found.first = __shfl_sync(0xffffffffu, begin, found.b) - zero;
        found.last = __shfl_sync(0xffffffffu, end, found.b) - zero;
        found.seq_len = __shfl_sync(0xffffffffu, seq_len, found.b);
        found.gather_len = __shfl_sync(0xffffffffu, gather_len, found.b);
        return found;
    }
    const int zero = __ldg(a.query_start_loc);
    found.b = 0;
    for (int count = a.num_reqs; count > 1;) {
        const int step = (count + 31) / 32;
        const int b = lane * step;
        const unsigned int votes = __ballot_sync(
            0xffffffffu, b < count && __ldg(a.query_start_loc + found.b + b) - zero <= t);
        const int last = 31 - __clz(votes);
        found.b += last * step;
        count = min(step, count - last * step);
    }
    found.first = __ldg(a.query_start_loc + found.b) - zero;
    found.last = __ldg(a.query_start_loc + found.b + 1) - zero;
    found.seq_len = __ldg(a.seq_lens + found.b);
    found.gather_len = __ldg(a.gather_lens + found.b);
    return found;
}

/* Four columns from c on; copied: what the list has there. */
static __device__ __forceinline__ int4 combine_four(const combine_row &row, int c, int4 copied) {
    int4 value;
    value.x = c < row.k ? copied.x + row.base : c < row.length ? row.window + c : -1;
    value.y = c + 1 < row.k ? copied.y + row.base : c + 1 < row.length ? row.window + c + 1 : -1;
    value.z = c + 2 < row.k ? copied.z + row.base : c + 2 < row.length ? row.window + c + 2 : -1;
    value.w = c + 3 < row.k ? copied.w + row.base : c + 3 < row.length ? row.window + c + 3 : -1;
    return value;
}

struct combine_plan {
    int ratio;           /* shift */
    unsigned int pieces; /* of a row */
    int stream;
};

/* AHEAD steps of 128 columns are read before the length of the list is known. */
template <int AHEAD, bool PIECES, bool STREAM>
static __device__ __forceinline__ void combine_token(const combine_args &a,
                                                     const combine_plan &plan) {
    const unsigned int warp = blockIdx.x * ST_COMBINE_WARPS + threadIdx.x / 32;
    const unsigned int t = PIECES ? warp / plan.pieces : warp;
    const unsigned int piece = PIECES ? warp - t * plan.pieces : 0;
    constexpr int AFTER = AHEAD > 0 ? 1 : 4;
    const int lane = threadIdx.x & 31;
    if (t >= a.num_tokens)
        return;
    const int32_t *list = a.topk_indices + t * a.topk_stride;
    const int begin = PIECES ? piece * ST_COMBINE_PIECE : 0;
    int c = begin + lane * 4;
    int4 copied[AHEAD > 0 ? AHEAD : 1];
#pragma unroll
    for (int i = 0; i < AHEAD; i++)
        if (c + i * 128 < a.topk)
            copied[i] = __ldg((const int4 *)(list + c + i * 128));
    const combine_request request = find_request(a, t, lane);
    if ((int)t >= request.last)
        return;
    const int p = request.seq_len - (request.last - request.first) + ((int)t - request.first);
    const combine_row row =
        make_row(a, plan.ratio, request.b, request.seq_len, request.gather_len, p);
    if (lane == 0 && begin == 0)
        a.lens[t] = row.length;
    int32_t *out = a.indices + t * a.indices_stride;
    const int end =
        PIECES && piece + 1 < plan.pieces ? min(row.end, begin + ST_COMBINE_PIECE) : row.end;
#pragma unroll
    for (int i = 0; i < AHEAD; i++, c += 128)
        if (c + 4 <= end)
            st_store_four(out + c, combine_four(row, c, copied[i]), STREAM);
#pragma unroll AFTER
    for (; c + 4 <= end; c += 128) {
        int4 four = make_int4(0, 0, 0, 0);
        if (c < row.k)
            four = __ldg((const int4 *)(list + c));
        st_store_four(out + c, combine_four(row, c, four), PIECES ? plan.stream != 0 : STREAM);
    }
    /* a kept tail begins within a group of four */
    c = (end & ~3) + lane;
    if (lane < (end & 3) && end > begin)
        out[c] = c < row.k ? __ldg(list + c) + row.base : row.window + c;
}

/* Registers for so many blocks of an SM: 8,192 tokens are then one wave. */
#define COMBINE(name, ahead, is_pieces, stream, blocks)                                            \
    extern "C" __global__ void __launch_bounds__(32 * ST_COMBINE_WARPS, blocks)                    \
        steptape_combine_topk_swa_indices_##name(const __grid_constant__ combine_args a,           \
                                                 const __grid_constant__ combine_plan plan) {      \
        combine_token<ahead, is_pieces, stream>(a, plan);                                          \
    }

COMBINE(v2, 0, false, false, 1)
COMBINE(v3_256, 2, false, false, 16)
COMBINE(v3_512, 4, false, true, 12)
COMBINE(v3_1024, 8, false, true, 1)
COMBINE(v3_wide, 0, true, false, 16)

int st_combine_topk_swa_indices_cuda(const combine_args *args, const struct st_geometry *geometry,
                                     void *stream) {
    const dim3 grid(geometry->grid[0], geometry->grid[1]);
    const unsigned int threads = geometry->threads;
    cudaStream_t s = (cudaStream_t)stream;
    if (geometry->variant == 1) {
        steptape_combine_topk_swa_indices_v1<<<grid, threads, 0, s>>>(*args);
        return st_launch_status();
    }
    if (!st_combine_topk_swa_indices_is_fast(args))
        return STEPTAPE_ERR_UNSUPPORTED;
    combine_plan plan;
    plan.ratio = st_shift_of(args->ratio);
    plan.pieces = (unsigned int)st_combine_topk_swa_indices_pieces(args);
    plan.stream = args->tail == STEPTAPE_COMBINE_TAIL_WIDTH &&
                  4 * args->num_tokens * args->width > ST_STREAM_BYTES;
    const int list = min(args->topk, args->n);
    if (geometry->variant == 2)
        steptape_combine_topk_swa_indices_v2<<<grid, threads, 0, s>>>(*args, plan);
    else if (plan.pieces > 1)
        steptape_combine_topk_swa_indices_v3_wide<<<grid, threads, 0, s>>>(*args, plan);
    else if (list <= 256)
        steptape_combine_topk_swa_indices_v3_256<<<grid, threads, 0, s>>>(*args, plan);
    else if (list <= 512)
        steptape_combine_topk_swa_indices_v3_512<<<grid, threads, 0, s>>>(*args, plan);
    else
        steptape_combine_topk_swa_indices_v3_1024<<<grid, threads, 0, s>>>(*args, plan);
    return st_launch_status();
}
