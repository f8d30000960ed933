/* SPDX-License-Identifier: Apache-2.0 */
/*
 * topk_per_row: how a block finds the k-th best of what its threads hold, the building blocks.
 *
 * An entry is a value and a place; of equal values the lower place is the better one, so exactly
 * one entry is the k-th best, and the list is all that are not worse.  A histogram says in which
 * bin the k-th is; the few entries of that bin are compared with each other.
 *
 * A block has up to 32 warps on 4 schedulers: an instruction that all warps execute costs 8 cycles.
 * So what one warp can find out for all, one warp does.
 */
#ifndef ST_KERNELS_TOPK_SELECT_CUH
#define ST_KERNELS_TOPK_SELECT_CUH

#include "kernels/topk_per_row/topk_ptx.cuh"
#include "kernels/topk_per_row/topk_per_row.cuh"

enum {
    TOPK_BINS = 2048,
    TOPK_LIST = 256,      /* so few entries are compared with each other */
    TOPK_STAGE = 2048,    /* results that are put together in shared memory */
    TOPK_CAPACITY = 4096, /* candidates that a block can hold */
    TOPK_SUMS = 6
};

struct alignas(8) topk_entry {
    float value;
    int32_t column;
};

/* Where the k-th best is: its key in low .. high, its place in first .. last; it is the need-th
 * best of the `inside` entries that are there.  bin < 0: not found. */
struct topk_range_of_kth {
    uint32_t low, high;
    int first, last;
    int need, inside;
    int bin;
};

/* The k-th best: an entry is listed when its key is greater, or equal and its place no greater. */
struct topk_kth {
    uint32_t key;
    int place; /* INT32_MAX when no entry of that key is left out */
};

/* What a block has beside its registers; the candidates are used for rows of many columns only. */
struct topk_shared {
    alignas(16) uint32_t bins[TOPK_BINS];
    alignas(16) unsigned long long list[TOPK_LIST];
    int sums[TOPK_SUMS][32]; /* of warps; one use each between two barriers */
    topk_range_of_kth range;
    unsigned long long of_list[2]; /* the k-th best and the one after it */
    int list_count;
    int team_counts[3]; /* what the other blocks of a cluster ask for */
    union {
        alignas(16) uint32_t more_bins[TOPK_BINS]; /* of the candidates */
        int32_t stage[TOPK_STAGE];                 /* when no bins are needed any more */
    };
    alignas(16) topk_entry candidates[TOPK_CAPACITY];
};

static_assert(offsetof(topk_shared, candidates) <= ST_TOPK_SMALL_BYTES, "the host asks for less");
static_assert(sizeof(topk_shared) <= ST_TOPK_SHARED_BYTES, "the host asks for less");

/* Dynamic shared memory; topk_shared is at its beginning. */
extern __shared__ __align__(128) unsigned char topk_memory[];

/* ---- bins of values: the first 11 bits of a half, 32 an octave; NaN is with -inf */

enum { TOPK_BIN_OF_MINUS_INF = 31, TOPK_BIN_OF_ZERO = 1024 };

/* Bins of two values. */
static __device__ __forceinline__ void topk_bins_of(float x, float y, int *bin_x, int *bin_y) {
    const float none = __int_as_float((int)0xff800000);
    const uint32_t halves = topk_halves(fmaxf(y, none), fmaxf(x, none));
    const uint32_t signs = halves & 0x80008000u;
    /* of a negative half all bits are turned, of another the sign */
    const uint32_t order = halves ^ (signs - (signs >> 15)) ^ 0x80008000u;
    *bin_x = (int)(order >> 5 & 2047);
    *bin_y = (int)(order >> 21);
}

/* The least and the greatest key in a bin; the zeros share theirs with what is next to them. */
static __device__ __forceinline__ void topk_keys_of_bin(int bin, uint32_t *low, uint32_t *high) {
    const int step = bin >= 1024 ? bin - 1024 : 1023 - bin;
    const uint32_t infinite = 0x7f800000u;
    const uint32_t base =
        step >= 992 ? infinite : __float_as_uint(topk_from_half((uint32_t)step << 5));
    const uint32_t top =
        step >= 992 ? infinite : __float_as_uint(topk_from_half((uint32_t)(step + 1) << 5)) - 1;
    *low = bin >= 1024 ? 0x80000000u + base : 0x7fffffffu - top;
    *high = bin >= 1024 ? 0x80000000u + top : 0x7fffffffu - base;
    if (step == 0) {
        *low = 0x7fffffffu - top;
        *high = 0x80000000u + top;
    }
}

/* ---- sums over lanes and warps */

/* Sum of this lane's and all higher lanes' values. */
static __device__ __forceinline__ int topk_sum_above(int value, int lane) {
#pragma unroll
    for (int d = 1; d < 32; d *= 2) {
        const int other = __shfl_down_sync(~0u, value, d);
        value += lane + d < 32 ? other : 0;
    }
    return value;
}

/* Sum of this lane's and all lower lanes' values. */
static __device__ __forceinline__ uint32_t topk_sum_below(uint32_t value, int lane) {
#pragma unroll
    for (int d = 1; d < 32; d *= 2) {
        const uint32_t other = __shfl_up_sync(~0u, value, d);
        value += lane >= d ? other : 0;
    }
    return value;
}

/* Counts of those before this one, and of all. */
struct topk_places {
    int before, all;
};

/* Of warps.  A barrier within; sums may be written again after the next. */
template <int T>
static __device__ __forceinline__ topk_places topk_place(int count_of_warp, int *sums) {
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    if (lane == 0)
        sums[warp] = count_of_warp;
    __syncthreads();
    const int value = lane < T / 32 ? sums[lane] : 0;
    return {(int)__reduce_add_sync(~0u, lane < warp ? value : 0),
            (int)__reduce_add_sync(~0u, value)};
}

/* ---- finding a bin */

template <int T> static __device__ __forceinline__ void topk_zero(uint32_t *bins) {
#pragma unroll
    for (int i = 0; i < TOPK_BINS / 4; i += T)
        if (i + T <= TOPK_BINS / 4 || i + (int)threadIdx.x < TOPK_BINS / 4)
            ((uint4 *)bins)[i + threadIdx.x] = make_uint4(0, 0, 0, 0);
}

/* EACH neighbours, in as few loads as there can be. */
template <int EACH>
static __device__ __forceinline__ void topk_load_bins(const uint32_t *bins, int (&count)[EACH]) {
    if constexpr (EACH % 4 == 0) {
#pragma unroll
        for (int i = 0; i < EACH / 4; i++) {
            const int4 v = ((const int4 *)bins)[i];
            count[4 * i] = v.x;
            count[4 * i + 1] = v.y;
            count[4 * i + 2] = v.z;
            count[4 * i + 3] = v.w;
        }
    } else {
        static_assert(EACH == 2, "a block has 256, 512 or 1,024 threads");
        const int2 v = *(const int2 *)bins;
        count[0] = v.x;
        count[1] = v.y;
    }
}

/*
 * One thread calls judge(bin, above, inside): in which bin the target-th entry from the top is, how
 * many are in higher bins and how many in it; none does when there are fewer.  Bins are complete
 * (a barrier before); there is a barrier within and one at the end.
 */
template <int T, typename Judge>
static __device__ __forceinline__ void topk_find(const uint32_t *bins, int target, int *sums,
                                                 const Judge &judge) {
    constexpr int EACH = TOPK_BINS / T;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    int count[EACH], mine = 0;
    topk_load_bins<EACH>(bins + threadIdx.x * EACH, count);
#pragma unroll
    for (int i = 0; i < EACH; i++)
        mine += count[i];
    const int sum = (int)__reduce_add_sync(~0u, mine);
    if (lane == 0)
        sums[warp] = sum;
    __syncthreads();
    const int other = lane > warp && lane < T / 32 ? sums[lane] : 0;
    int above = (int)__reduce_add_sync(~0u, other);
    if (above < target && above + sum >= target) { /* one warp */
        above += topk_sum_above(mine, lane) - mine;
        if (above < target && above + mine >= target) { /* one lane */
            int bin = EACH - 1;
#pragma unroll
            for (int i = EACH - 1; i > 0; i--) {
                if (bin == i && above + count[i] < target) {
                    above += count[i];
                    bin--;
                }
            }
            int inside = count[0];
#pragma unroll
            for (int i = 1; i < EACH; i++)
                inside = bin == i ? count[i] : inside;
            judge((int)threadIdx.x * EACH + bin, above, inside);
        }
    }
    __syncthreads();
}

/* The range of the k-th from a bin of values. */
static __device__ __forceinline__ void topk_judge_values(const uint32_t *bins, int k, int bin,
                                                         int above, int inside,
                                                         topk_range_of_kth *range) {
    if (bin == TOPK_BIN_OF_ZERO - 1) { /* what is next to zero, of either sign */
        bin = TOPK_BIN_OF_ZERO;
        above -= (int)bins[TOPK_BIN_OF_ZERO];
    }
    if (bin == TOPK_BIN_OF_ZERO)
        inside = (int)(bins[TOPK_BIN_OF_ZERO] + bins[TOPK_BIN_OF_ZERO - 1]);
    range->bin = bin;
    range->need = k - above;
    range->inside = inside;
    topk_keys_of_bin(bin, &range->low, &range->high);
}

/* ---- the k-th best */

static __device__ __forceinline__ bool topk_takes(const topk_kth &kth, uint32_t key, int place) {
    return key > kth.key || (key == kth.key && place <= kth.place);
}

/* Puts the entries of a mask into the list: those that `r` says, or a part of them. */
template <int N, typename Entries>
static __device__ __forceinline__ void topk_put(const Entries &entries, uint32_t mask,
                                                const topk_range_of_kth &r, topk_shared &s) {
    if (r.low == r.high) {
#pragma unroll
        for (int i = 0; i < N; i++)
            if (entries.place(i) < r.first || entries.place(i) > r.last)
                mask &= ~(1u << i);
    }
    if (mask == 0)
        return;
    int at = atomicAdd(&s.list_count, __popc(mask));
    for (; mask != 0; mask &= mask - 1) {
        const int i = __ffs((int)mask) - 1;
        s.list[at++] =
            (unsigned long long)entries.key_of(i) << 32 | (uint32_t) ~(uint32_t)entries.place(i);
    }
}

/* The need-th best of the list, which is complete but for a barrier; one barrier more.  There is at
 * least one after it. */
template <int T>
static __device__ __forceinline__ topk_kth topk_of_list(int count, int need, topk_shared &s) {
    enum { PARTS = 8 }; /* threads that compare for an entry, when there are so many */
    const int tid = (int)threadIdx.x;
    __syncthreads();
    if (count <= T / PARTS) {
        if (tid / 32 * (32 / PARTS) < count) {
            const int entry = tid / PARTS;
            const unsigned long long mine = s.list[min(entry, count - 1)];
            int better = 0;
#pragma unroll 2
            for (int i = tid % PARTS; i < count; i += PARTS)
                better += s.list[i] > mine;
#pragma unroll
            for (int d = 1; d < PARTS; d *= 2)
                better += __shfl_xor_sync(~0u, better, d);
            better -= need - 1;
            if ((unsigned int)better < 2u)
                s.of_list[better] = mine;
        }
    } else if (tid < count) {
        const unsigned long long mine = s.list[tid];
        int better = 1 - need;
#pragma unroll 4
        for (int i = 0; i < count; i++)
            better += s.list[i] > mine;
        if ((unsigned int)better < 2u)
            s.of_list[better] = mine;
    }
    __syncthreads();
    const unsigned long long kth = s.of_list[0], next = s.of_list[1];
    return {(uint32_t)(kth >> 32), kth >> 32 == next >> 32 ? (int)~(uint32_t)kth : INT32_MAX};
}

/*
 * Narrows the range until a list can hold what is in it, with a histogram of what is left of the
 * keys, or of the places of those that have the one key.  Entries i < N are entries.key(i) at
 * entries.place(i); entries.within(i, range): it is one and its key is in the range.  bins are
 * written.
 */
template <int T, int N, typename Entries>
static __device__ __noinline__ void topk_narrow(const Entries &entries, uint32_t *bins,
                                                topk_shared &s) {
    topk_range_of_kth r = s.range;
    while (r.inside != r.need && r.inside > TOPK_LIST) {
        const bool by_place = r.low == r.high;
        const uint32_t span = by_place ? (uint32_t)(r.last - r.first) : r.high - r.low;
        const int shift = max(0, 21 - __clz((int)span));
        __syncthreads();
        topk_zero<T>(bins);
        __syncthreads();
#pragma unroll 4
        for (int i = 0; i < N; i++) {
            if (!entries.within(i, r))
                continue;
            const uint32_t step =
                by_place ? (uint32_t)(r.last - entries.place(i)) : entries.key(i) - r.low;
            atomicAdd(&bins[step >> shift], 1u);
        }
        __syncthreads();
        topk_find<T>(bins, r.need, s.sums[0], [&](int bin, int above, int inside) {
            topk_range_of_kth *to = &s.range;
            to->need = r.need - above;
            to->inside = inside;
            if (by_place) {
                to->last = r.last - (bin << shift);
                to->first = max(r.first, to->last - (1 << shift) + 1);
            } else {
                to->low = r.low + ((uint32_t)bin << shift);
                to->high = to->low + min(r.high - to->low, (1u << shift) - 1);
            }
        });
        r = s.range;
    }
}

/* The k-th best of the entries when r has few, or as many as are needed; last: r.last before it was
 * narrowed.  All threads get it. */
template <int T, int N, typename Entries>
static __device__ __forceinline__ topk_kth topk_kth_of_few(const Entries &entries,
                                                           const topk_range_of_kth &r, int last,
                                                           topk_shared &s) {
    if (r.inside == r.need)
        return {r.low, r.last == last ? INT32_MAX : r.last};
    uint32_t mask = 0;
#pragma unroll
    for (int i = 0; i < N; i++)
        mask |= entries.within(i, r) ? 1u << i : 0;
    if (mask != 0)
        topk_put<N>(entries, mask, r, s);
    return topk_of_list<T>(r.inside, r.need, s);
}

#endif
