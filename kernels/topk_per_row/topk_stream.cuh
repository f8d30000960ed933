/* SPDX-License-Identifier: Apache-2.0 */
/*
 * topk_per_row: a row that is read again for each step, by one block or by the blocks of a
 * cluster (a team), each of which has a slice of it.  For rows that registers do not hold and for
 * those that a bound does not help with.
 */
#ifndef ST_KERNELS_TOPK_STREAM_CUH
#define ST_KERNELS_TOPK_STREAM_CUH

#include "kernels/topk_per_row/topk_select.cuh"

/* A team of one block. */
struct topk_alone {
    static __device__ __forceinline__ int rank() {
        return 0;
    }
    static __device__ __forceinline__ int size() {
        return 1;
    }
    static __device__ __forceinline__ void sync() {
        __syncthreads();
    }
    template <typename V> static __device__ __forceinline__ V *at(V *mine, int) {
        return mine;
    }
};

/* A warp's part of a slice: columns begin + lane, begin + 32 + lane ... before end. */
struct topk_part {
    int begin, end;
    int words; /* of 32 columns, the last one perhaps not whole */
};

template <int T, typename Team> static __device__ __forceinline__ topk_part topk_part_of(int n) {
    const int slice = (n + Team::size() - 1) / Team::size();
    const int words = (slice + T - 1) / T;
    const int begin = (Team::rank() * (T / 32) + (int)threadIdx.x / 32) * words * 32;
    return {begin, n, words};
}

/* Calls use(i, value, is_there) for i = 0 .. words - 1, all lanes together; a thread has BATCH
 * loads under way. */
template <int BATCH, typename Use>
static __device__ __forceinline__ void topk_each(const float *values, const topk_part &part,
                                                 const Use &use) {
    const int lane = threadIdx.x % 32;
    for (int i0 = 0; i0 < part.words; i0 += BATCH) {
        float x[BATCH];
#pragma unroll
        for (int j = 0; j < BATCH; j++) {
            const int column = part.begin + (i0 + j) * 32 + lane;
            x[j] = i0 + j < part.words && column < part.end ? __ldg(values + column)
                                                            : __int_as_float(0x7fffffff);
        }
#pragma unroll
        for (int j = 0; j < BATCH; j++)
            if (i0 + j < part.words)
                use(i0 + j, x[j], part.begin + (i0 + j) * 32 + lane < part.end);
    }
}

/* The bins to look into: this block's s.bins, or what s.more_bins then hold, the sums of the bins
 * of a team's blocks.  Complete for all threads. */
template <int T, typename Team>
static __device__ __forceinline__ const uint32_t *topk_team_bins(topk_shared &s) {
    constexpr int EACH = TOPK_BINS / T;
    Team::sync();
    if (Team::size() == 1)
        return s.bins;
    int sum[EACH] = {};
#pragma unroll 8
    for (int r = 0; r < Team::size(); r++) {
        int count[EACH];
        topk_load_bins<EACH>(Team::at(s.bins, r) + threadIdx.x * EACH, count);
#pragma unroll
        for (int i = 0; i < EACH; i++)
            sum[i] += count[i];
    }
#pragma unroll
    for (int i = 0; i < EACH; i++)
        s.more_bins[threadIdx.x * EACH + i] = (uint32_t)sum[i];
    __syncthreads();
    return s.more_bins;
}

/* Counts of the team's blocks before this one, and of all; slot: one of s.team_counts. */
template <typename Team>
static __device__ __forceinline__ topk_places topk_place_team(int count, int slot, topk_shared &s) {
    if (Team::size() == 1)
        return {0, count};
    const int lane = threadIdx.x % 32;
    if (threadIdx.x == 0)
        s.team_counts[slot] = count;
    Team::sync();
    const int value = lane < Team::size() ? *Team::at(&s.team_counts[slot], lane) : 0;
    return {(int)__reduce_add_sync(~0u, lane < Team::rank() ? value : 0),
            (int)__reduce_add_sync(~0u, value)};
}

/* Where the k-th of n columns is when only this much is known, that at least k reach the key low.
 */
static __device__ __forceinline__ topk_range_of_kth topk_anywhere(uint32_t low, int n, int k) {
    return {low, ~0u, 0, n - 1, k, n, 0};
}

/*
 * The k best of n > k columns, whatever they hold, when the k-th is known to be in r (of which
 * first and last are not looked at).  A histogram of what is left of the range of keys narrows it
 * by 11 bits, until it is one key (or all in it are taken); then what is above it and the first of
 * what equals it are counted and written.
 */
template <int T, int BATCH, typename Team>
static __device__ __noinline__ void topk_stream(const float *values, int n, int k,
                                                topk_range_of_kth r, int32_t *out, topk_shared &s) {
    const int lane = threadIdx.x % 32;
    const uint32_t lower_lanes = (1u << lane) - 1;
    const topk_part part = topk_part_of<T, Team>(n);
    while (r.low != r.high && r.inside != r.need) {
        const int shift = max(0, 21 - __clz((int)(r.high - r.low)));
        Team::sync();
        topk_zero<T>(s.bins);
        __syncthreads();
        topk_each<BATCH>(values, part, [&](int, float x, bool is_there) {
            const uint32_t key = topk_key(x);
            if (is_there && key >= r.low && key <= r.high)
                atomicAdd(&s.bins[(key - r.low) >> shift], 1u);
        });
        topk_find<T>(topk_team_bins<T, Team>(s), r.need, s.sums[2],
                     [&](int bin, int above, int inside) {
                         s.range.need = r.need - above;
                         s.range.inside = inside;
                         s.range.low = r.low + ((uint32_t)bin << shift);
                         s.range.high = s.range.low + min(r.high - s.range.low, (1u << shift) - 1);
                     });
        r = s.range;
    }
    uint32_t low = r.low;
    int need = r.need;
    if (r.inside == need) { /* n > k: low is not 0 */
        low--;
        need = 0;
    }
    int above = 0, equal = 0;
    topk_each<BATCH>(values, part, [&](int, float x, bool is_there) {
        const uint32_t key = topk_key(x);
        above += is_there && key > low;
        equal += is_there && key == low;
    });
    __syncthreads();
    const topk_places above_warps = topk_place<T>((int)__reduce_add_sync(~0u, above), s.sums[0]);
    const topk_places equal_warps = topk_place<T>((int)__reduce_add_sync(~0u, equal), s.sums[1]);
    above = above_warps.before + topk_place_team<Team>(above_warps.all, 0, s).before;
    equal = equal_warps.before + topk_place_team<Team>(equal_warps.all, 1, s).before;
    topk_each<BATCH>(values, part, [&](int i, float x, bool is_there) {
        const uint32_t key = topk_key(x);
        const uint32_t is_above = __ballot_sync(~0u, is_there && key > low);
        const uint32_t is_equal = __ballot_sync(~0u, is_there && key == low);
        const int my_equal = equal + __popc(is_equal & lower_lanes);
        const int at = above + __popc(is_above & lower_lanes) + min(my_equal, need);
        if (is_there && (key > low || (key == low && my_equal < need)))
            out[at] = part.begin + i * 32 + lane;
        above += __popc(is_above);
        equal += __popc(is_equal);
    });
    Team::sync(); /* no block ends while another reads its counts */
}

#endif
