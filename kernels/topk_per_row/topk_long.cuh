/* SPDX-License-Identifier: Apache-2.0 */
/*
 * topk_per_row: a row that registers do not hold.  The bound of topk_row.cuh, from a first look at
 * the row; what reaches it is marked in a second look, a bit a column, and the marked are the
 * candidates.  A team's blocks add up their histograms and bring their candidates to the first.
 */
#ifndef ST_KERNELS_TOPK_LONG_CUH
#define ST_KERNELS_TOPK_LONG_CUH

#include "kernels/topk_per_row/topk_row.cuh"

enum { TOPK_LONG_BATCH = 16, TOPK_LONG_GROUP = 8 /* the least group of a long row */ };

/* A warp's part of a row: quads of neighbours, of which a lane has every 32nd. */
struct topk_quads {
    int first; /* column; before the row's first when that is not aligned to 16 bytes */
    int count; /* of 128 columns, the last ones perhaps beyond the row */
    int n;     /* columns of the row */
};

template <int T, typename Team>
static __device__ __forceinline__ topk_quads topk_quads_of(const float *values, int n) {
    const int skew = (int)((uintptr_t)values / 4 % 4), lot = Team::size() * T * 4;
    const int count = (n + skew + lot - 1) / lot;
    return {(Team::rank() * (T / 32) + (int)threadIdx.x / 32) * count * 128 - skew, count, n};
}

/* Calls use(i, quad) for i = 0 .. count - 1, all lanes together; beyond the row it is NaN. */
template <typename Use>
static __device__ __forceinline__ void topk_each_quad(const float *values, const topk_quads &part,
                                                      const Use &use) {
    enum { BATCH = 4 };
    const int lane = threadIdx.x % 32;
    for (int i0 = 0; i0 < part.count; i0 += BATCH) {
        float4 v[BATCH];
#pragma unroll
        for (int j = 0; j < BATCH; j++) {
            const int from = part.first + (i0 + j) * 128, column = from + lane * 4;
            if (__builtin_expect(i0 + j < part.count && from >= 0 && from + 128 <= part.n, 1)) {
                v[j] = __ldg((const float4 *)(values + column));
                continue;
            }
            float x[4];
#pragma unroll
            for (int c = 0; c < 4; c++)
                x[c] = i0 + j < part.count && (unsigned int)(column + c) < (unsigned int)part.n
                           ? __ldg(values + column + c)
                           : topk_nan();
            v[j] = make_float4(x[0], x[1], x[2], x[3]);
        }
#pragma unroll
        for (int j = 0; j < BATCH; j++)
            if (i0 + j < part.count)
                use(i0 + j, v[j]);
    }
}

/* Marks what reaches the bound, a bit a column of this warp; returns how many these are. */
static __device__ __forceinline__ int topk_mark(const float *values, const topk_quads &part,
                                                float bound, uint32_t *words) {
    const int lane = threadIdx.x % 32;
    unsigned char *bytes = (unsigned char *)words + lane / 2;
    int count = 0;
    topk_each_quad(values, part, [&](int i, float4 v) {
        uint32_t bits = (v.x >= bound ? 1u : 0u) + (v.y >= bound ? 2u : 0u) +
                        (v.z >= bound ? 4u : 0u) + (v.w >= bound ? 8u : 0u);
        count += __popc(bits);
        bits += __shfl_down_sync(~0u, bits, 1) << 4;
        if (lane % 2 == 0)
            bytes[i * 16] = (unsigned char)bits;
    });
    __syncwarp();
    return (int)__reduce_add_sync(~0u, count);
}

/* The marked columns of this warp, in order, from columns[at] on. */
static __device__ __forceinline__ void
topk_list_marked(const topk_quads &part, const uint32_t *words, int at, int32_t *columns) {
    const int lane = threadIdx.x % 32;
    for (int i = 0; i < 4 * part.count; i += 32) {
        uint32_t word = i + lane < 4 * part.count ? words[i + lane] : 0;
        const int mine = __popc(word);
        const int upto = (int)topk_sum_below((uint32_t)mine, lane);
        int to = at + upto - mine;
        for (; word != 0; word &= word - 1)
            columns[to++] = part.first + (i + lane) * 32 + __ffs((int)word) - 1;
        at += __shfl_sync(~0u, upto, 31);
    }
}

/* Counts the maxima of groups (a power of two, at least TOPK_LONG_GROUP) of a lane's columns. */
static __device__ __forceinline__ void topk_long_maxima(const float *values, const topk_quads &part,
                                                        int group, uint32_t *bins) {
    const int last = group / 4 - 1; /* of a group's quads */
    float most = topk_nan();
    topk_each_quad(values, part, [&](int i, float4 v) {
        most = fmaxf(fmaxf(fmaxf(most, v.x), fmaxf(v.y, v.z)), v.w);
        if ((i & last) != last && i != part.count - 1)
            return;
        int bin, unused;
        topk_bins_of(most, most, &bin, &unused);
        atomicAdd(&bins[bin], 1u);
        most = topk_nan();
    });
}

/* The marked of this block to the first block's candidates, from `before` on. */
template <int T, typename Team>
static __device__ __forceinline__ void topk_bring(const float *values, const int32_t *columns,
                                                  int count, int before, topk_shared &s) {
    topk_entry *to = Team::at(s.candidates, 0) + before;
    for (int i0 = threadIdx.x; i0 < count; i0 += 4 * T) {
        topk_entry e[4];
#pragma unroll
        for (int j = 0; j < 4; j++)
            if (i0 + j * T < count) {
                e[j].column = columns[i0 + j * T];
                e[j].value = __ldg(values + e[j].column);
            }
#pragma unroll
        for (int j = 0; j < 4; j++)
            if (i0 + j * T < count)
                to[i0 + j * T] = e[j];
    }
}

/* words: room for a bit a column of this block's slice, and for TOPK_CAPACITY columns.  s is clear
 * but for a barrier. */
template <int T, typename Team>
static __device__ __forceinline__ void topk_long(const float *values, int n, int k, int32_t *out,
                                                 uint32_t *words, topk_shared &s) {
    const topk_quads part = topk_quads_of<T, Team>(values, n);
    const int ratio = n / (2 * k);
    uint32_t low = 0;
    __syncthreads();
    if (ratio >= TOPK_LONG_GROUP && k <= TOPK_STAGE) {
        topk_long_maxima(values, part, 1 << (31 - __clz(ratio)), s.bins);
        const uint32_t *bins = topk_team_bins<T, Team>(s);
        topk_find<T>(bins, k, s.sums[0], [&](int bin, int above, int inside) {
            topk_judge_values(bins, k, bin, above, inside, &s.range);
        });
        if (s.range.bin > TOPK_BIN_OF_MINUS_INF) {
            low = s.range.low;
            int32_t *columns = (int32_t *)words;
            words += TOPK_CAPACITY + threadIdx.x / 32 * part.count * 4;
            const int marked = topk_mark(values, part, topk_value(low), words);
            const topk_places warps = topk_place<T>(marked, s.sums[3]);
            const topk_places blocks = topk_place_team<Team>(warps.all, 2, s);
            if (blocks.all <= TOPK_CAPACITY) {
                topk_list_marked(part, words, warps.before, columns);
                topk_zero<T>(s.more_bins); /* they had a team's sums */
                if (threadIdx.x == 0) {
                    s.range.first = 0;
                    s.range.last = blocks.all - 1;
                }
                __syncthreads();
                topk_bring<T, Team>(values, columns, warps.all, blocks.before, s);
                Team::sync();
                if (Team::rank() == 0)
                    topk_of_candidates<T>(blocks.all, k, low, false, out, s);
                return;
            }
        }
    }
    topk_stream<T, TOPK_LONG_BATCH, Team>(values, n, k, topk_anywhere(low, n, k), out, s);
}

#endif
