/* SPDX-License-Identifier: Apache-2.0 */
/*
 * topk_per_row: a row in the registers of one block.  Two ways:
 *
 * topk_row_whole: a histogram of all values; the k-th is in one of its bins.
 *
 * topk_row_bound, for rows of many times k columns: the values of a thread are taken in groups; at
 * least k groups' maxima reach the k-th greatest maximum, so the k-th value is no less.  A
 * histogram of the maxima (2 * k to 4 * k, not of all values) gives that bound.  What reaches it,
 * about 1.4 * k entries, goes into shared memory in order, and the k-th best of these is the row's.
 *
 * A row that neither helps with (ties over ties, NaN among the best, a bound that says little) is
 * read again, see topk_stream.cuh.
 */
#ifndef ST_KERNELS_TOPK_ROW_CUH
#define ST_KERNELS_TOPK_ROW_CUH

#include "kernels/topk_per_row/topk_stream.cuh"

static __device__ __forceinline__ float topk_nan(void) {
    return __int_as_float(0x7fffffff);
}

/*
 * The row in registers: quads of neighbours.  Warp w holds the quads from w * quads * 32 on, its
 * lane l the quads l, 32 + l ... of these.  Columns count from `skew` floats before the row, where
 * an address is a multiple of 16 bytes; what is not the row's is NaN.
 */
template <int E> struct topk_held {
    float x[E];
    int quads; /* of E / 4, that this row needs */
    int begin; /* column of x[0] */
    int n;
    __device__ __forceinline__ int column(int i) const {
        return begin + i / 4 * 128 + i % 4;
    }
    /* for topk_kth_of */
    __device__ __forceinline__ uint32_t key(int i) const {
        return topk_key(x[i]);
    }
    /* for an i that is not known when compiled */
    __device__ __forceinline__ uint32_t key_of(int i) const {
        float value = x[0];
#pragma unroll
        for (int j = 1; j < E; j++)
            value = i == j ? x[j] : value;
        return topk_key(value);
    }
    __device__ __forceinline__ int place(int i) const {
        return column(i);
    }
    __device__ __forceinline__ bool within(int i, const topk_range_of_kth &r) const {
        /* the key below that of the zeros would be -0, which equals them */
        return x[i] >= topk_value(r.low) &&
               x[i] <= topk_value(r.high == 0x7fffffffu ? r.high - 1 : r.high);
    }
};

/* Loads n columns.  One that is not aligned may need a quad more than there are: then by floats. */
template <int T, int E>
static __device__ __forceinline__ void topk_load(const float *values, int n, topk_held<E> &h) {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    int skew = (int)((uintptr_t)values / 4 % 4);
    if (n + skew > T * E)
        skew = 0;
    const bool by_quads = ((uintptr_t)(values - skew) & 15) == 0;
    h.n = n;
    h.quads = (n + skew + 4 * T - 1) / (4 * T);
    const int first = warp * h.quads * 128 - skew; /* of the warp */
    h.begin = first + lane * 4;
#pragma unroll
    for (int i = 0; i < E / 4; i++) {
        const int from = first + i * 128;
        if (__builtin_expect(i < h.quads && by_quads && from >= 0 && from + 128 <= n, 1)) {
            const float4 v = __ldg((const float4 *)(values + h.begin + i * 128));
            h.x[4 * i] = v.x;
            h.x[4 * i + 1] = v.y;
            h.x[4 * i + 2] = v.z;
            h.x[4 * i + 3] = v.w;
            continue;
        }
#pragma unroll
        for (int j = 0; j < 4; j++) {
            const int column = h.begin + i * 128 + j;
            h.x[4 * i + j] = i < h.quads && (unsigned int)column < (unsigned int)n
                                 ? __ldg(values + column)
                                 : topk_nan();
        }
    }
}

/* What a block needs clear before it begins with a row; complete at the next barrier. */
template <int T> static __device__ __forceinline__ void topk_clear(topk_shared &s) {
    topk_zero<T>(s.bins);
    topk_zero<T>(s.more_bins);
    if (threadIdx.x == 0)
        s.list_count = 0;
}

/* The loaded range was wider than the row, which has n columns from `first` of it on. */
template <int E>
static __device__ __forceinline__ void topk_cut(topk_held<E> &h, int first, int n) {
    if (first == 0 && n == h.n)
        return;
    h.begin -= first;
    h.n = n;
#pragma unroll
    for (int i = 0; i < E; i++)
        h.x[i] = (unsigned int)h.column(i) < (unsigned int)n ? h.x[i] : topk_nan();
}

/*
 * Puts the held entries that reach `least` together in shared memory, in the order of columns: the
 * columns, or with BOTH entries.  Returns how many there are; when these are more than most, stores
 * nothing.
 */
template <int T, int E, bool BOTH>
static __device__ __forceinline__ int topk_compact(const topk_held<E> &h, float least, int most,
                                                   int *sums, void *to) {
    constexpr int WORDS = (E / 4 + 3) / 4, BYTES = BOTH ? 8 : 4;
    const int lane = threadIdx.x % 32;
    uint32_t count[WORDS], upto[WORDS], all[WORDS]; /* a byte a quad: a warp has at most 128 */
    int sum = 0;
#pragma unroll
    for (int w = 0; w < WORDS; w++) {
        count[w] = 0;
#pragma unroll
        for (int i = w * 16; i < w * 16 + 4; i++) {
            topk_count_if<1u>(h.x[i], least, count[w]);
            if (i + 4 < E)
                topk_count_if<1u << 8>(h.x[i + 4], least, count[w]);
            if (i + 8 < E)
                topk_count_if<1u << 16>(h.x[i + 8], least, count[w]);
            if (i + 12 < E)
                topk_count_if<1u << 24>(h.x[i + 12], least, count[w]);
        }
        upto[w] = topk_sum_below(count[w], lane);
        all[w] = __shfl_sync(~0u, upto[w], 31);
        sum += (int)__dp4a(all[w], 0x01010101u, 0u);
    }
    const topk_places places = topk_place<T>(sum, sums);
    if (places.all > most)
        return places.all;
    const int column = topk_keep(h.begin);
    uint32_t begin = topk_shared_address(to) + BYTES * (uint32_t)places.before;
#pragma unroll
    for (int i = 0; i < E; i += 4) {
        const int shift = i / 4 % 4 * 8;
        uint32_t at = begin + BYTES * ((upto[i / 16] - count[i / 16]) >> shift & 255);
#pragma unroll
        for (int j = 0; j < 4; j++) {
            if (BOTH)
                topk_store_both_if(h.x[i + j], least, column + i * 32 + j, at);
            else
                topk_store_column_if(h.x[i + j], least, column + i * 32 + j, at);
        }
        begin += BYTES * (all[i / 16] >> shift & 255);
    }
    return places.all;
}

/* The staged results, complete but for a barrier. */
template <int T>
static __device__ __forceinline__ void topk_unstage(const topk_shared &s, int k, int32_t *out) {
    __syncthreads();
    for (int c = threadIdx.x; c < k; c += T)
        out[c] = s.stage[c];
}

/* ---- a row as a whole */

/* Writes what is not worse than kth, whatever its place and however many there are. */
template <int T, int E>
static __device__ __noinline__ void topk_write_any(const topk_held<E> &h, topk_kth kth,
                                                   int32_t *out, topk_shared &s) {
    const int lane = threadIdx.x % 32;
    int mine = 0;
#pragma unroll 4
    for (int i = 0; i < 4 * h.quads; i++)
        mine += h.x[i] == h.x[i] && topk_takes(kth, h.key(i), h.column(i));
    int at = topk_place<T>((int)__reduce_add_sync(~0u, mine), s.sums[1]).before;
#pragma unroll 1
    for (int i = 0; i < 4 * h.quads; i += 4) {
        uint32_t takes = 0;
        for (int j = i; j < i + 4; j++)
            takes |= h.x[j] == h.x[j] && topk_takes(kth, h.key(j), h.column(j)) ? 1u << (j - i) : 0;
        const int upto = (int)topk_sum_below((uint32_t)__popc(takes), lane);
        int to = at + upto - __popc(takes);
        for (int j = 0; j < 4; j++)
            if (takes >> j & 1)
                out[to++] = h.column(i + j);
        at += __shfl_sync(~0u, upto, 31);
    }
}

template <int T, int E>
static __device__ __forceinline__ void topk_write_held(const topk_held<E> &h, const topk_kth &kth,
                                                       int k, int32_t *out, topk_shared &s) {
    if (kth.place != INT32_MAX || k > TOPK_STAGE) {
        const topk_held<E> in_memory = h;
        topk_write_any<T, E>(in_memory, kth, out, s);
        return;
    }
    topk_compact<T, E, false>(h, topk_value(kth.key), k, s.sums[1], s.stage);
    topk_unstage<T>(s, k, out);
}

/* n > k; s.bins are zero and list_count 0, but for a barrier. */
template <int T, int E>
static __device__ __forceinline__ void
topk_row_whole(const topk_held<E> &h, int k, const float *values, int32_t *out, topk_shared &s) {
    __syncthreads();
#pragma unroll
    for (int i = 0; i < E; i += 2) {
        if (i / 4 >= h.quads)
            break;
        int bin[2];
        topk_bins_of(h.x[i], h.x[i + 1], &bin[0], &bin[1]);
        atomicAdd(&s.bins[bin[0]], 1u);
        atomicAdd(&s.bins[bin[1]], 1u);
    }
    __syncthreads();
    topk_find<T>(s.bins, k, s.sums[0], [&](int bin, int above, int inside) {
        topk_judge_values(s.bins, k, bin, above, inside, &s.range);
        s.range.first = 0;
        s.range.last = h.n - 1;
    });
    const topk_range_of_kth r = s.range;
    if (r.bin <= TOPK_BIN_OF_MINUS_INF) { /* that bin has NaN, too, and what is beyond the row */
        topk_stream<T, 4, topk_alone>(values, h.n, k, topk_anywhere(0, h.n, k), out, s);
        return;
    }
    if (r.inside != r.need && r.inside > TOPK_LIST) {
        topk_stream<T, 4, topk_alone>(values, h.n, k, r, out, s);
        return;
    }
    const topk_kth kth = topk_kth_of_few<T, E>(h, r, h.n - 1, s);
    topk_write_held<T, E>(h, kth, k, out, s);
}

/* ---- candidates */

template <int N> struct topk_chosen {
    uint32_t held[N];
    int32_t column[N];
    int begin, each, count;
    __device__ __forceinline__ uint32_t key(int i) const {
        return held[i];
    }
    __device__ __forceinline__ uint32_t key_of(int i) const {
        uint32_t value = held[0];
#pragma unroll
        for (int j = 1; j < N; j++)
            value = i == j ? held[j] : value;
        return value;
    }
    __device__ __forceinline__ int place(int i) const {
        return begin + i * 32;
    }
    __device__ __forceinline__ bool valid(int i) const {
        return i < each && place(i) < count;
    }
    __device__ __forceinline__ bool within(int i, const topk_range_of_kth &r) const {
        return valid(i) && held[i] >= r.low && held[i] <= r.high;
    }
};

/*
 * The k best of `count` candidates, which are all that reach the key low.  s.more_bins are zero;
 * with is_exact s.range says where the k-th is.
 */
template <int T>
static __device__ __forceinline__ void
topk_of_candidates(int count, int k, uint32_t low, bool is_exact, int32_t *out, topk_shared &s) {
    constexpr int N = TOPK_CAPACITY / T;
    const int lane = threadIdx.x % 32;
    topk_chosen<N> e;
    e.each = (count + T - 1) / T;
    e.begin = threadIdx.x / 32 * e.each * 32 + lane;
    e.count = count;
    /* Most often the k-th is within a quarter of an octave above the bound. */
    const uint32_t span = min(~0u - low, (1u << 21) - 1);
#pragma unroll
    for (int i = 0; i < N; i++) {
        e.held[i] = 0;
        if (!e.valid(i))
            continue;
        const topk_entry entry = s.candidates[e.place(i)];
        e.held[i] = topk_key_of_number(entry.value);
        e.column[i] = entry.column;
        if (!is_exact)
            atomicAdd(&s.more_bins[min(e.held[i] - low, span) >> 10], 1u);
    }
    if (!is_exact) {
        __syncthreads();
        topk_find<T>(s.more_bins, k, s.sums[2], [&](int bin, int above, int inside) {
            s.range.need = k - above;
            s.range.inside = inside;
            s.range.low = low + ((uint32_t)bin << 10);
            s.range.high = bin < TOPK_BINS - 1 ? s.range.low + 1023 : ~0u;
            s.range.first = 0;
            s.range.last = count - 1;
        });
    }
    if (s.range.inside != s.range.need && s.range.inside > TOPK_LIST) {
        const topk_chosen<N> in_memory = e; /* that takes little code and no registers */
        topk_narrow<T, N>(in_memory, s.bins, s);
    }
    const topk_range_of_kth r = s.range;
    const topk_kth kth = topk_kth_of_few<T, N>(e, r, count - 1, s);
    if (kth.place != INT32_MAX) { /* what is left out of those that have the key is nothing */
#pragma unroll
        for (int i = 0; i < N; i++)
            e.held[i] = topk_takes(kth, e.held[i], e.place(i)) ? e.held[i] : 0;
    }
    int mine = 0;
#pragma unroll
    for (int i = 0; i < N; i++)
        mine += e.held[i] >= kth.key;
    int at = topk_place<T>((int)__reduce_add_sync(~0u, mine), s.sums[1]).before;
#pragma unroll
    for (int i = 0; i < N; i++) {
        if (i >= e.each)
            break;
        const uint32_t taken = __ballot_sync(~0u, e.held[i] >= kth.key);
        int32_t *to = &s.stage[at + __popc(taken & ((1u << lane) - 1))];
        if (e.held[i] >= kth.key)
            *to = e.column[i];
        at += __popc(taken);
    }
    topk_unstage<T>(s, k, out);
}

/* ---- a row of many times k columns */

/* Counts the maxima of groups of GROUP of the thread's entries in bins. */
template <int E, int GROUP>
static __device__ __forceinline__ void topk_count_maxima(const topk_held<E> &h, uint32_t *bins) {
#pragma unroll
    for (int i = 0; i < E; i += 2 * GROUP) {
        if (i / 4 >= h.quads)
            break;
        float most[2];
#pragma unroll
        for (int g = 0; g < 2; g++) {
            most[g] = topk_nan();
#pragma unroll
            for (int j = 0; j < GROUP; j++)
                if (i + g * GROUP + j < E)
                    most[g] = fmaxf(most[g], h.x[i + g * GROUP + j]);
        }
        int bin[2];
        topk_bins_of(most[0], most[1], &bin[0], &bin[1]);
        atomicAdd(&bins[bin[0]], 1u);
        if (i + GROUP < E)
            atomicAdd(&bins[bin[1]], 1u);
    }
}

/* n > k, k <= TOPK_STAGE; s.bins, s.more_bins are zero and list_count 0, but for a barrier. */
template <int T, int E>
static __device__ __forceinline__ void
topk_row_bound(const topk_held<E> &h, int k, const float *values, int32_t *out, topk_shared &s) {
    const int ratio = h.n / (2 * k);
    __syncthreads();
    if (ratio >= 16)
        topk_count_maxima<E, 16>(h, s.bins);
    else if (ratio >= 8)
        topk_count_maxima<E, 8>(h, s.bins);
    else if (ratio >= 4)
        topk_count_maxima<E, 4>(h, s.bins);
    else if (ratio >= 2)
        topk_count_maxima<E, 2>(h, s.bins);
    else
        topk_count_maxima<E, 1>(h, s.bins);
    __syncthreads();
    topk_find<T>(s.bins, k, s.sums[0], [&](int bin, int above, int inside) {
        topk_judge_values(s.bins, k, bin, above, inside, &s.range);
    });
    uint32_t low = 0;
    if (s.range.bin > TOPK_BIN_OF_MINUS_INF) {
        low = s.range.low;
        const int count =
            topk_compact<T, E, true>(h, topk_value(low), TOPK_CAPACITY, s.sums[3], s.candidates);
        if (count <= TOPK_CAPACITY) {
            if (threadIdx.x == 0) {
                s.range.first = 0;
                s.range.last = count - 1;
            }
            __syncthreads();
            topk_of_candidates<T>(count, k, low, ratio < 2, out, s);
            return;
        }
    }
    topk_stream<T, 4, topk_alone>(values, h.n, k, topk_anywhere(low, h.n, k), out, s);
}

#endif
