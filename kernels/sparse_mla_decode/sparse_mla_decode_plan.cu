/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The plan kernels of sparse_mla_decode; cut.h has the same computations, one after
 * the other, and says what they are.
 */
#include "kernels/sparse_mla_decode/cut.h"
#include "kernels/sparse_mla_decode/decode.cuh"

static __device__ __forceinline__ int length_of_tiles(int tiles) {
    return tiles > 0 ? tiles + ST_DECODE_OVERHEAD : 0;
}

static __device__ __forceinline__ int ceil_div(int value, int unit) {
    return (int)(((unsigned int)value + (unsigned int)unit - 1) / (unsigned int)unit);
}

static __device__ __forceinline__ struct st_decode_part make_part(int first_token, int first_tile,
                                                                  int last_token, int end_tile) {
    struct st_decode_part part = {first_token, first_tile, last_token, end_tile};
    return part;
}

/* 16 and 8 bytes in one store. */
static __device__ __forceinline__ void put_part(struct st_decode_part *to,
                                                const struct st_decode_part &part) {
    *(int4 *)to = make_int4(part.first_token, part.first_tile, part.last_token, part.end_tile);
}

static __device__ __forceinline__ void put_token(struct st_decode_token *to, int first_slot,
                                                 int pieces) {
    *(int2 *)to = make_int2(first_slot, pieces);
}

/* ---- v1: one thread, as upstream */

extern "C" __global__ void __launch_bounds__(32)
    steptape_sparse_mla_decode_plan_v1(const __grid_constant__ decode_launch l) {
    st_launch_dependents();
    struct st_decode_part *parts = (struct st_decode_part *)l.a.plan;
    struct st_decode_token *tokens = (struct st_decode_token *)(parts + l.parts);
    extern __shared__ int plan_shared[];
    const int count = (int)l.a.tokens;
    int *tile = plan_shared;
    for (int t = threadIdx.x; t < count; t += 32)
        tile[t] = tiles_of(l.a, t);
    __syncwarp();
    if (threadIdx.x == 0)
        st_plan_cut(tile, count, l.parts, parts, tokens);
}

/* ---- v2: a thread a token, a thread a part */

/* What all threads know of the lengths. */
struct plan_cut {
    int total;    /* of lengths */
    int nonempty; /* tokens */
    int longest;  /* tiles */
    int share;    /* of a part */
};

/* Inclusive sum over the block's threads, *sum the total; `warps`: 32 words of shared memory. */
static __device__ __forceinline__ int block_scan(int value, int *warps, int *sum) {
    const int lane = threadIdx.x % 32;
    const int warp = threadIdx.x / 32;
    for (int step = 1; step < 32; step *= 2) {
        const int other = __shfl_up_sync(0xffffffffu, value, step);
        value += lane >= step ? other : 0;
    }
    if (lane == 31)
        warps[warp] = value;
    __syncthreads();
    int all = lane < (int)blockDim.x / 32 ? warps[lane] : 0;
    for (int step = 1; step < 32; step *= 2) {
        const int other = __shfl_up_sync(0xffffffffu, all, step);
        all += lane >= step ? other : 0;
    }
    const int before = __shfl_sync(0xffffffffu, all, (warp + 31) % 32);
    *sum = __shfl_sync(0xffffffffu, all, 31);
    __syncthreads();
    return value + (warp > 0 ? before : 0);
}

/* Largest value over the block. */
static __device__ __forceinline__ int block_max(int value, int *warps) {
    value = __reduce_max_sync(0xffffffffu, value);
    if (threadIdx.x % 32 == 0)
        warps[threadIdx.x / 32] = value;
    __syncthreads();
    const int lane = threadIdx.x % 32;
    value = __reduce_max_sync(0xffffffffu, lane < (int)blockDim.x / 32 ? warps[lane] : INT32_MIN);
    __syncthreads();
    return value;
}

/* Tiles of token t from the prefix sums of lengths. */
static __device__ __forceinline__ int tiles_at(const int *begin, int t) {
    const int length = begin[t + 1] - begin[t];
    return length > 0 ? length - ST_DECODE_OVERHEAD : 0;
}

/* Prefix sums of lengths into begin[0 .. count]. */
static __device__ struct plan_cut measure(const struct decode_launch &l, int *begin, int *warps) {
    const int count = (int)l.a.tokens;
    struct plan_cut cut = {0, 0, 0, 1};
    int longest = 0;
    if (threadIdx.x == 0)
        begin[0] = 0;
    for (int first = 0; first < count; first += blockDim.x) {
        const int t = first + threadIdx.x;
        const int tiles = t < count ? tiles_of(l.a, t) : 0;
        int sum;
        const int end = cut.total + block_scan(length_of_tiles(tiles), warps, &sum);
        if (t < count)
            begin[t + 1] = end;
        cut.total += sum;
        cut.nonempty += __syncthreads_count(tiles > 0);
        longest = max(longest, tiles);
    }
    cut.longest = block_max(longest, warps);
    if (cut.total > 0)
        cut.share = ceil_div(cut.total, l.parts);
    return cut;
}

/*
 * The smallest L <= share such that pieces of at most L tiles need no more than the parts, or 0.
 * Each warp tries another L, all at once.
 */
static __device__ int even_length(const struct decode_launch &l, const int *begin,
                                  const struct plan_cut &cut, int *warps) {
    const int count = (int)l.a.tokens;
    const int warp_count = blockDim.x / 32;
    const int warp = threadIdx.x / 32;
    const int lane = threadIdx.x % 32;
    const int tiles = cut.total - ST_DECODE_OVERHEAD * cut.nonempty;
    int low = max(ceil_div(tiles, l.parts), 1);
    int high = max(cut.longest, 1);
    while (low < high) {
        const int step = ceil_div(high - low, warp_count);
        const int tried = low + warp * step; /* >= high: known to do */
        int pieces = 0;
        if (tried < high)
            for (int t = lane; t < count; t += 32)
                pieces += ceil_div(tiles_at(begin, t), tried);
        pieces = __reduce_add_sync(0xffffffffu, pieces);
        if (lane == 0)
            warps[warp] = tried >= high || pieces <= l.parts;
        __syncthreads();
        const unsigned int good = __ballot_sync(0xffffffffu, lane < warp_count ? warps[lane] : 1);
        __syncthreads();
        const int first = __ffs(good) - 1; /* warp_count: none of them, if that is under 32 */
        const int found = first >= 0 ? min(low + first * step, high) : high;
        low = first == 0 ? found : low + ((first >= 0 ? first : warp_count) - 1) * step + 1;
        high = found;
    }
    if (high > cut.share)
        return 0;
    while ((int64_t)32 * (high + 1) * (high + 1) <= cut.longest)
        high++;
    return high;
}

static __device__ void cut_even(const struct decode_launch &l, const int *begin, int most,
                                struct st_decode_part *parts, struct st_decode_token *tokens,
                                int *warps) {
    const int count = (int)l.a.tokens;
    const int lane = threadIdx.x % 32;
    int used = 0;
    for (int first = 0; first < count; first += blockDim.x) {
        const int t = first + threadIdx.x;
        const int tiles = t < count ? tiles_at(begin, t) : 0;
        const int pieces = ceil_div(tiles, most);
        /* pieces of `length` tiles, the first `longer` of them of one more */
        const int length = pieces > 0 ? (int)((unsigned int)tiles / (unsigned int)pieces) : 0;
        const int longer = tiles - pieces * length;
        int sum;
        const int part = used + block_scan(pieces, warps, &sum) - pieces;
        if (t < count)
            put_token(&tokens[t], pieces > 0 ? 2 * part : 0, pieces);
        /* a warp writes the parts of its tokens, one token after the other */
        for (unsigned int left = __ballot_sync(0xffffffffu, pieces > 0); left != 0;
             left &= left - 1) {
            const int from = __ffs(left) - 1;
            const int token_pieces = __shfl_sync(0xffffffffu, pieces, from);
            const int token_part = __shfl_sync(0xffffffffu, part, from);
            const int token_length = __shfl_sync(0xffffffffu, length, from);
            const int token_longer = __shfl_sync(0xffffffffu, longer, from);
            const int token = t - lane + from;
            for (int k = lane; k < token_pieces; k += 32)
                put_part(&parts[token_part + k],
                         make_part(token, k * token_length + min(k, token_longer), token,
                                   (k + 1) * token_length + min(k + 1, token_longer)));
        }
        used += sum;
    }
    for (int p = used + threadIdx.x; p < l.parts; p += blockDim.x)
        put_part(&parts[p], make_part(0, 0, -1, 0));
}

/* Whether runs of whole tokens do; if so, they are written. */
static __device__ bool cut_whole(const struct decode_launch &l, const int *begin,
                                 const struct plan_cut &cut, struct st_decode_part *parts,
                                 struct st_decode_token *tokens, int *warps) {
    const int count = (int)l.a.tokens;
    const int run = ceil_div(count, l.parts);
    int fullest = 0;
    for (int p = threadIdx.x; p < l.parts; p += blockDim.x) {
        const int first = (int)min((int64_t)p * run, (int64_t)count);
        fullest = max(fullest, begin[min(first + run, count)] - begin[first]);
    }
    if (block_max(fullest, warps) > cut.share + ST_DECODE_OVERHEAD)
        return false;
    for (int p = threadIdx.x; p < l.parts; p += blockDim.x) {
        const int first = (int)min((int64_t)p * run, (int64_t)count);
        const int end = min(first + run, count);
        put_part(&parts[p], first < end ? make_part(first, 0, end - 1, tiles_at(begin, end - 1))
                                        : make_part(0, 0, -1, 0));
    }
    for (int t = threadIdx.x; t < count; t += blockDim.x)
        put_token(&tokens[t], 0, tiles_at(begin, t) > 0);
    return true;
}

/* The token at place `at` of the line: the last that begins there or before. */
static __device__ __forceinline__ int token_at(const int *begin, int count, int at) {
    int low = 0;
    int high = count - 1;
    while (low < high) {
        const int middle = (low + high + 1) / 2;
        if (begin[middle] <= at)
            low = middle;
        else
            high = middle - 1;
    }
    return low;
}

static __device__ void cut_line(const struct decode_launch &l, const int *begin,
                                const struct plan_cut &cut, struct st_decode_part *parts,
                                struct st_decode_token *tokens) {
    const int count = (int)l.a.tokens;
    for (int p = threadIdx.x; p < l.parts; p += blockDim.x) {
        const int64_t from = (int64_t)p * cut.share;
        struct st_decode_part part = make_part(0, 0, -1, 0);
        if (from < cut.total) {
            const int to = (int)min(from + cut.share, (int64_t)cut.total);
            part.first_token = token_at(begin, count, (int)from);
            part.last_token = token_at(begin, count, to - 1);
            part.first_tile = max((int)from - begin[part.first_token] - (int)ST_DECODE_OVERHEAD, 0);
            part.end_tile = max(to - begin[part.last_token] - (int)ST_DECODE_OVERHEAD, 0);
        }
        put_part(&parts[p], part);
    }
    for (int t = threadIdx.x; t < count; t += blockDim.x) {
        const int at = begin[t];
        const int end = begin[t + 1];
        int slot = 0;
        int pieces = 0;
        if (end > at) {
            const int p = (at + ST_DECODE_OVERHEAD) / cut.share;
            const int is_first = at == 0 || (at - 1) / cut.share < p;
            pieces = (end - 1) / cut.share - p + 1;
            slot = pieces > 1 ? 2 * p + !is_first : 0;
        }
        put_token(&tokens[t], slot, pieces);
    }
}

extern "C" __global__ void __launch_bounds__(1024)
    steptape_sparse_mla_decode_plan_v2(const __grid_constant__ decode_launch l) {
    extern __shared__ int plan_shared[];
    st_launch_dependents();
    int *warps = plan_shared;
    int *begin = plan_shared + 32;
    struct st_decode_part *parts = (struct st_decode_part *)l.a.plan;
    struct st_decode_token *tokens = (struct st_decode_token *)(parts + l.parts);
    const struct plan_cut cut = measure(l, begin, warps);
    __syncthreads();
    if (cut.nonempty <= l.parts) {
        const int most = even_length(l, begin, cut, warps);
        if (most > 0) {
            cut_even(l, begin, most, parts, tokens, warps);
            return;
        }
    } else if (cut_whole(l, begin, cut, parts, tokens, warps)) {
        return;
    }
    cut_line(l, begin, cut, parts, tokens);
}

int st_decode_plan_cuda(const struct decode_launch *l, const struct st_decode_geometry *geometry,
                        void *stream) {
    return st_decode_launch_kernel(geometry->plan_variant == 1 ? steptape_sparse_mla_decode_plan_v1
                                                               : steptape_sparse_mla_decode_plan_v2,
                                   l, &geometry->plan, 0, (cudaStream_t)stream);
}
