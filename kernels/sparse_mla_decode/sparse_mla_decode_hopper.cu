/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Splits v3 and v4 of sparse_mla_decode, for Hopper: four warpgroups a block.
 *
 *   2 and 3  read entries 64 at a time into registers (the next tile's while products of this one
 *            are made) and leave them as bf16 in one of two stages of shared memory;
 *   0        scores = queries * entries, softmax, weights to registers and shared memory; sums of
 *            the first 192 columns;
 *   1        sums of the other 320 columns, from the weights in shared memory.
 *
 * An entry is key and value, so the stage is read twice: by rows for the scores, by columns for the
 * sums.
 *
 * Measured on one H200, 2026-11-30, split and combine in a graph of 20 calls: 64 heads, 128 tokens
 * of 128 + 512 entries 37.2 us (v3), 34.3 us (v4), 128 heads of 128 + 1024 entries 106 and 110 us.
 * The first without loads 27 us, without products 30, without conversion 39: what bounds it is the
 * way of entries from memory and L2 cache into registers.  Slower, and therefore not here: loads of
 * the next tile during conversions, with lines prefetched two tiles ahead (39.9 us); the scores of
 * a second tile during the softmax of the first (57 us: too few registers).
 */
#include "kernels/hopper.cuh"
#include "kernels/sparse_mla_decode/entries.cuh"

enum {
    HOPPER_THREADS = 512,
    BLOCK_BYTES = 8192, /* 64 rows of 64 columns */
    FIRST_COLUMNS = 192 /* of warpgroup 0 */
};

#if ST_HOPPER

/* ---- shared memory, from a multiple of 1,024 */

template <bool V32> struct shape {
    enum {
        D = V32 ? 576 : 512,
        BLOCKS = D / 64,
        QUANTISED = BLOCKS - 1, /* blocks; the last is bf16 */
        SCALE_WORDS = V32 ? 4 : 2,
        MATRIX = BLOCKS * BLOCK_BYTES,
        Q = 0,
        K = MATRIX, /* two stages */
        P = 3 * MATRIX,
        ALPHA = P + BLOCK_BYTES,
        STATE = ALPHA + 64 * 4,
        MASK = STATE + 64 * 8,
        BARRIERS = MASK + 2 * 8 * 4,
        END = BARRIERS + 6 * 8
    };
};

/* As st_sparse_mla_decode_geometry says. */
static_assert(shape<false>::END + 1024 == 3 * 128 * 512 + 128 * 64 + 880 + 1024, "");
static_assert(shape<true>::END + 1024 == 3 * 128 * 576 + 128 * 64 + 880 + 1024, "");

/* Barriers.  Warps arrive; threads where each has loaded or stored something itself: masks (EMPTY,
 * warpgroup 0) and factors (P_FULL, P_FREE). */
enum { FULL = 0, EMPTY = 2, P_FULL = 4, P_FREE = 5 };

static __device__ __forceinline__ uint32_t barrier_at(uint32_t barriers, int which) {
    return barriers + 8 * which;
}

/* ---- tiles of a part, in order */

struct cursor {
    struct st_decode_part part;
    int p;
    int i; /* tile of piece */
    struct decode_piece piece;
    bool is_done;
};

static __device__ __forceinline__ void cursor_settle(const struct decode_launch &l,
                                                     struct cursor &c, int t) {
    for (;; t++) {
        c.is_done = t > c.part.last_token;
        if (c.is_done)
            return;
        c.piece = piece_of(l, c.part, c.p, t);
        c.i = c.piece.begin;
        if (c.piece.begin < c.piece.end)
            return;
    }
}

static __device__ __forceinline__ void cursor_next(const struct decode_launch &l,
                                                   struct cursor &c) {
    if (++c.i >= c.piece.end)
        cursor_settle(l, c, c.piece.token + 1);
}

/* ---- entries */

/* Index of column `key` of the tile under the cursor, -1 for none; moves on. */
static __device__ __forceinline__ int take_index(const struct decode_launch &l, struct cursor &c,
                                                 int key, int *scope) {
    *scope = 0;
    if (c.is_done)
        return -1;
    const struct decode_tile tile = tile_of(c.piece, c.i);
    *scope = tile.scope;
    const struct steptape_decode_scope &s = l.a.scope[tile.scope];
    int index = -1;
    if (key < tile.count)
        index = __ldg(s.indices + c.piece.token * s.indices_stride + tile.first + key);
    cursor_next(l, c);
    return index;
}

/* The scale byte of a block as two bf16: 2^(byte - 127); 0 is subnormal, 255 NaN. */
static __device__ __forceinline__ uint32_t scale_pair(uint32_t byte) {
    const uint32_t bits = byte == 0 ? 0x0040u : byte == 255 ? 0x7fc0u : byte << 7;
    return bits | bits << 16;
}

static __device__ __forceinline__ uint32_t multiply_pair(uint32_t a, uint32_t b) {
    uint32_t v;
    asm("mul.rn.bf16x2 %0, %1, %2;" : "=r"(v) : "r"(a), "r"(b));
    return v;
}

/* Two values of an entry: e4m3 is exact in bf16, so one rounding is left. */
static __device__ __forceinline__ uint32_t dequantise(uint32_t pair, uint32_t scale, float factor,
                                                      bool v32) {
    const float2 v = floats_of(pair);
    if (v32)
        return bf16x2(__fmul_rn(v.x, factor), __fmul_rn(v.y, factor));
    return multiply_pair(bf16x2(v.x, v.y), scale);
}

/* 16 values to their two pieces of a row. */
static __device__ __forceinline__ void put16(uint32_t address, uint32_t other, const uint4 &bytes,
                                             uint32_t scale, float factor, bool v32) {
    const uint32_t w[4] = {bytes.x, bytes.y, bytes.z, bytes.w};
    uint32_t v[8];
#pragma unroll
    for (int i = 0; i < 4; i++) {
        v[2 * i] = dequantise(w[i] & 0xffff, scale, factor, v32);
        v[2 * i + 1] = dequantise(w[i] >> 16, scale, factor, v32);
    }
    store16(address, v[0], v[1], v[2], v[3]);
    store16(other, v[4], v[5], v[6], v[7]);
}

/* ---- warpgroups 2 and 3 */

template <bool V32> struct entry_words {
    uint4 quantised[shape<V32>::QUANTISED];
    uint4 rope[2];
    uint32_t scale[shape<V32>::SCALE_WORDS];
};

/* A thread's quarter of an entry, 64 columns at a time. */
template <bool V32>
static __device__ __forceinline__ void load_entry(const struct source &source, int quarter,
                                                  struct entry_words<V32> &words) {
    typedef shape<V32> S;
    if (V32) {
        const uint4 v = load16(source.scales);
        words.scale[0] = v.x;
        words.scale[1] = v.y;
        words.scale[S::SCALE_WORDS - 2] = v.z;
        words.scale[S::SCALE_WORDS - 1] = v.w;
    } else {
        asm volatile("ld.global.nc.v2.u32 {%0, %1}, [%2];"
                     : "=r"(words.scale[0]), "=r"(words.scale[1])
                     : "l"(source.scales));
    }
    const uint8_t *data = source.data + 16 * quarter;
#pragma unroll
    for (int b = 0; b < S::QUANTISED; b++)
        words.quantised[b] = load16(data + 64 * b);
#pragma unroll
    for (int i = 0; i < 2; i++)
        words.rope[i] = load16(source.data + (V32 ? 528 : 448) + 32 * quarter + 16 * i);
}

static __device__ __forceinline__ uint4 keep(const uint4 &v, uint32_t mask) {
    return make_uint4(v.x & mask, v.y & mask, v.z & mask, v.w & mask);
}

/* What load_entry read to its row of a stage as bf16; mask 0: zeros. */
template <bool V32>
static __device__ __forceinline__ void convert(const struct entry_words<V32> &words, uint32_t mask,
                                               uint32_t row, uint32_t place) {
    typedef shape<V32> S;
#pragma unroll
    for (int b = 0; b < S::QUANTISED; b++) {
        uint32_t scale = 0;
        float factor = 0.0f;
        if (V32)
            factor = __uint_as_float(words.scale[b / 2 % S::SCALE_WORDS] & mask);
        else
            scale = scale_pair(words.scale[b / 4] >> (b % 4 * 8) & mask & 0xff);
        put16(row + b * BLOCK_BYTES + place, row + b * BLOCK_BYTES + (place ^ 16),
              keep(words.quantised[b], mask), scale, factor, V32);
    }
#pragma unroll
    for (int i = 0; i < 2; i++) {
        const uint4 v = keep(words.rope[i], mask);
        store16(row + S::QUANTISED * BLOCK_BYTES + (place ^ (16 * i)), v.x, v.y, v.z, v.w);
    }
}

/* The index of a tile's column; the entry it leads to.  A column without an entry reads a query
 * instead, which is thrown away: no loads under conditions. */
struct column {
    int index;
    int scope;
};

template <bool V32>
static __device__ __forceinline__ struct source source_or_query(const struct decode_launch &l,
                                                                const struct column &column) {
    struct source source = source_of<V32>(l, column.index, column.scope);
    if (column.index < 0)
        source.data = source.scales = (const uint8_t *)l.a.q;
    return source;
}

/* Asks for an entry to be in the L2 cache: one of its four threads does. */
template <bool V32>
static __device__ __forceinline__ void prefetch(const struct decode_launch &l,
                                                const struct column &column, int quarter) {
    if (quarter != 0 || column.index < 0)
        return;
    const struct source source = source_of<V32>(l, column.index, column.scope);
    asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(source.data),
                 "r"(V32 ? STEPTAPE_KV_V32_ENTRY_BYTES : STEPTAPE_KV_ENTRY_DATA_BYTES)
                 : "memory");
}

template <bool V32, bool PREFETCH>
static __device__ __forceinline__ void produce(const struct decode_launch &l, struct cursor &c,
                                               uint32_t base) {
    typedef shape<V32> S;
    const int thread = threadIdx.x - 256;
    const int key = thread / 4;
    const int quarter = thread % 4;
    const uint32_t barriers = base + S::BARRIERS;
    /* pieces 2 * quarter and the one beside it, of row `key` */
    const uint32_t place = ((2 * quarter) ^ (key & 7)) * 16;
    const uint32_t mask = base + S::MASK + thread / 32 * 4;
    struct entry_words<V32> words;
    struct column now, next;
    now.index = take_index(l, c, key, &now.scope);
    load_entry<V32>(source_or_query<V32>(l, now), quarter, words);
    bool has_next = !c.is_done;
    next.index = take_index(l, c, key, &next.scope);
    for (int n = 0;; n++) {
        const int stage = n & 1;
        if (PREFETCH)
            prefetch<V32>(l, next, quarter);
        st_mbarrier_wait(barrier_at(barriers, EMPTY + stage), (n >> 1 & 1) ^ 1);
        convert<V32>(words, now.index >= 0 ? 0xffffffffu : 0,
                     base + S::K + stage * S::MATRIX + key * 128, place);
        const uint32_t valid = __ballot_sync(0xffffffffu, now.index >= 0);
        if (thread % 32 == 0)
            asm volatile("st.shared.u32 [%0], %1;" ::"r"(mask + stage * 32), "r"(valid) : "memory");
        /* waits for loads under way, too: the next tile's come after it */
        st_fence_async();
        __syncwarp();
        if (thread % 32 == 0)
            st_mbarrier_arrive(barrier_at(barriers, FULL + stage));
        if (!has_next)
            return;
        now = next;
        load_entry<V32>(source_or_query<V32>(l, now), quarter, words);
        has_next = !c.is_done;
        next.index = take_index(l, c, key, &next.scope);
    }
}

/* ---- what warpgroups 0 and 1 share */

/* Queries of a piece into shared memory: 4 threads a head. */
template <bool V32>
static __device__ __forceinline__ void load_queries(const decode_args &a, int t, uint32_t base) {
    typedef shape<V32> S;
    const int row = threadIdx.x / 4;
    const int lane = threadIdx.x % 4;
    const uint16_t *from = a.q + t * a.q_stride +
                           (int64_t)(blockIdx.x * ST_DECODE_GROUP_HEADS + row) * a.q_head_stride;
#pragma unroll
    for (int i = 0; i < S::D / 32; i++) {
        const int piece = lane + 4 * i;
        const uint32_t to =
            base + S::Q + piece / 8 * BLOCK_BYTES + row * 128 + ((piece & 7) ^ (row & 7)) * 16;
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to), "l"(from + 8 * piece)
                     : "memory");
    }
    asm volatile("cp.async.wait_all;" ::: "memory");
    st_fence_async();
    st_named_sync(1, 256);
}

/* Factors of a thread's two rows from their (max, sum) in shared memory; one thread of each row
 * stores what is not a sum. */
template <bool V32>
static __device__ __forceinline__ void finish_rows(const struct decode_launch &l,
                                                   const struct decode_piece &piece, uint32_t base,
                                                   float (&factor)[2], bool (&is_empty)[2]) {
    const int thread = threadIdx.x % 128;
    const int row = thread / 32 * 16 + thread % 32 / 4;
#pragma unroll
    for (int half = 0; half < 2; half++) {
        float max, sum, lse;
        asm volatile("ld.shared.v2.f32 {%0, %1}, [%2];"
                     : "=f"(max), "=f"(sum)
                     : "r"(base + shape<V32>::STATE + (row + 8 * half) * 8));
        const int h = blockIdx.x * ST_DECODE_GROUP_HEADS + row + 8 * half;
        const bool is_storing = threadIdx.x < 128 && thread % 4 == 0;
        if (piece.slot >= 0) {
            if (is_storing)
                *slot_state(l, piece.slot, h) = make_float2(max, sum);
            continue;
        }
        factor[half] = finish(l.a, max, sum, h, &lse);
        is_empty[half] = sum == 0.0f;
        if (is_storing && l.a.lse != NULL)
            l.a.lse[(int64_t)piece.token * l.a.heads + h] = lse;
    }
}

template <int N>
static __device__ __forceinline__ void scale_rows(float (&o)[N], const float (&alpha)[2]) {
#pragma unroll
    for (int i = 0; i < N; i++)
        o[i] *= alpha[i / 2 % 2];
}

/* ---- warpgroup 0 */

/* Masks and scales a tile's scores, turns them into weights; returns alpha of the rows. */
static __device__ __forceinline__ void softmax(float (&s)[32], const uint32_t (&mask)[8],
                                               float scale, float (&max)[2], float (&sum)[2],
                                               float (&alpha)[2]) {
    const int t = threadIdx.x % 4;
    float most[2] = {-INFINITY, -INFINITY};
    uint32_t all = 0xffffffffu;
#pragma unroll
    for (int j = 0; j < 8; j++)
        all &= mask[j];
#pragma unroll
    for (int i = 0; i < 32; i++)
        s[i] *= scale;
    if (all != 0xffffffffu) {
#pragma unroll
        for (int i = 0; i < 32; i++)
            if ((mask[i / 4] >> (8 * t + 4 * (i & 1)) & 1) == 0)
                s[i] = -INFINITY;
    }
#pragma unroll
    for (int i = 0; i < 32; i++)
        most[i / 2 % 2] = fmaxf(most[i / 2 % 2], s[i]);
#pragma unroll
    for (int half = 0; half < 2; half++) {
        most[half] = fmaxf(most[half], __shfl_xor_sync(0xffffffffu, most[half], 1));
        most[half] = fmaxf(most[half], __shfl_xor_sync(0xffffffffu, most[half], 2));
        most[half] = fmaxf(most[half], max[half]);
        /* nothing but -inf so far: no difference of two infinities */
        const float base = most[half] == -INFINITY ? 0.0f : most[half];
        alpha[half] = st_exp2(max[half] - base);
        max[half] = most[half];
        sum[half] *= alpha[half];
        most[half] = base;
    }
#pragma unroll
    for (int i = 0; i < 32; i++) {
        s[i] = st_exp2(s[i] - most[i / 2 % 2]);
        sum[i / 2 % 2] += s[i];
    }
}

template <bool V32>
static __device__ __forceinline__ void put_weights(const uint32_t (&p)[16], const float (&alpha)[2],
                                                   uint32_t base) {
    const int lane = threadIdx.x % 32;
    const int row = threadIdx.x / 32 * 16 + lane / 4;
#pragma unroll
    for (int half = 0; half < 2; half++) {
        const uint32_t to = base + shape<V32>::P + (row + 8 * half) * 128 + lane % 4 * 4;
#pragma unroll
        for (int j = 0; j < 8; j++)
            asm volatile("st.shared.u32 [%0], %1;" ::"r"(to + ((j ^ (lane / 4)) * 16)),
                         "r"(p[2 * j + half])
                         : "memory");
        if (lane % 4 == 0)
            asm volatile(
                "st.shared.f32 [%0], %1;" ::"r"(base + shape<V32>::ALPHA + (row + 8 * half) * 4),
                "f"(alpha[half])
                : "memory");
    }
}

template <bool V32>
static __device__ __forceinline__ void scores_of(float (&s)[32], uint32_t base, int stage) {
    typedef shape<V32> S;
    const uint64_t q = st_wgmma_rows(base + S::Q);
    const uint64_t k = st_wgmma_rows(base + S::K) + stage * (S::MATRIX / 16);
    st_wgmma_fence();
#pragma unroll
    for (int b = 0; b < S::BLOCKS; b++)
#pragma unroll
        for (int i = 0; i < 4; i++)
            st_wgmma_ss_n64<0>(s, q + b * (BLOCK_BYTES / 16) + 2 * i,
                               k + b * (BLOCK_BYTES / 16) + 2 * i, b > 0 || i > 0);
    st_wgmma_commit();
    st_wgmma_wait<0>();
    st_wgmma_pin(s);
}

template <bool V32>
static __device__ __forceinline__ void consume_first(const struct decode_launch &l,
                                                     struct cursor &c, uint32_t base) {
    typedef shape<V32> S;
    const uint32_t barriers = base + S::BARRIERS;
    const int lane = threadIdx.x % 32;
    for (int n = 0; !c.is_done;) {
        const struct decode_piece piece = c.piece;
        float o[FIRST_COLUMNS / 2];
        float max[2] = {-INFINITY, -INFINITY};
        float sum[2] = {0.0f, 0.0f};
#pragma unroll
        for (int i = 0; i < FIRST_COLUMNS / 2; i++)
            o[i] = 0.0f;
        load_queries<V32>(l.a, piece.token, base);
        for (int i = piece.begin; i < piece.end; i++, n++) {
            const int stage = __shfl_sync(0xffffffffu, n & 1, 0); /* the same for all: no lanes */
            float s[32], alpha[2];
            uint32_t mask[8], p[16];
            st_mbarrier_wait(barrier_at(barriers, FULL + stage), n >> 1 & 1);
            scores_of<V32>(s, base, stage);
#pragma unroll
            for (int j = 0; j < 8; j += 4)
                asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
                             : "=r"(mask[j]), "=r"(mask[j + 1]), "=r"(mask[j + 2]),
                               "=r"(mask[j + 3])
                             : "r"(base + S::MASK + stage * 32 + j * 4));
            softmax(s, mask, l.scale_log2, max, sum, alpha);
#pragma unroll
            for (int j = 0; j < 16; j++)
                p[j] = bf16x2(s[2 * j], s[2 * j + 1]);
            st_mbarrier_wait(barrier_at(barriers, P_FREE), (n & 1) ^ 1);
            put_weights<V32>(p, alpha, base);
            st_fence_async();
            __syncwarp();
            if (lane % 4 == 0)
                st_mbarrier_arrive(barrier_at(barriers, P_FULL));
            scale_rows(o, alpha);
            const uint64_t v = st_wgmma_columns(base + S::K + stage * S::MATRIX, BLOCK_BYTES);
            st_wgmma_fence();
#pragma unroll
            for (int k = 0; k < 4; k++) {
                const uint32_t weights[4] = {p[4 * k], p[4 * k + 1], p[4 * k + 2], p[4 * k + 3]};
                st_wgmma_rs_n192<1>(o, weights, v + 128 * k, 1);
            }
            st_wgmma_commit();
            st_wgmma_wait<0>();
            st_wgmma_pin(o);
            st_mbarrier_arrive(barrier_at(barriers, EMPTY + stage));
        }
#pragma unroll
        for (int half = 0; half < 2; half++) {
            sum[half] += __shfl_xor_sync(0xffffffffu, sum[half], 1);
            sum[half] += __shfl_xor_sync(0xffffffffu, sum[half], 2);
            if (lane % 4 == 0)
                asm volatile(
                    "st.shared.v2.f32 [%0], {%1, %2};" ::"r"(
                        base + S::STATE + (threadIdx.x / 32 * 16 + lane / 4 + 8 * half) * 8),
                    "f"(max[half]), "f"(sum[half])
                    : "memory");
        }
        st_named_sync(2, 256);
        float factor[2];
        bool is_empty[2];
        finish_rows<V32>(l, piece, base, factor, is_empty);
        store_sums(l, piece, o, factor, is_empty,
                   blockIdx.x * ST_DECODE_GROUP_HEADS + threadIdx.x / 32 * 16 + lane / 4, 0);
        cursor_settle(l, c, piece.token + 1);
    }
}

/* ---- warpgroup 1 */

template <bool V32>
static __device__ __forceinline__ void consume_second(const struct decode_launch &l,
                                                      struct cursor &c, uint32_t base) {
    typedef shape<V32> S;
    const uint32_t barriers = base + S::BARRIERS;
    const int thread = threadIdx.x % 128;
    const int lane = thread % 32;
    const int row = thread / 32 * 16 + lane / 4;
    for (int n = 0; !c.is_done;) {
        const struct decode_piece piece = c.piece;
        float o[96], o2[64];
#pragma unroll
        for (int i = 0; i < 96; i++)
            o[i] = 0.0f;
#pragma unroll
        for (int i = 0; i < 64; i++)
            o2[i] = 0.0f;
        load_queries<V32>(l.a, piece.token, base);
        for (int i = piece.begin; i < piece.end; i++, n++) {
            const int stage = __shfl_sync(0xffffffffu, n & 1, 0);
            const uint32_t v = base + S::K + stage * S::MATRIX;
            float alpha[2];
            st_mbarrier_wait(barrier_at(barriers, FULL + stage), n >> 1 & 1);
            st_mbarrier_wait(barrier_at(barriers, P_FULL), n & 1);
#pragma unroll
            for (int half = 0; half < 2; half++)
                asm volatile("ld.shared.f32 %0, [%1];"
                             : "=f"(alpha[half])
                             : "r"(base + S::ALPHA + (row + 8 * half) * 4));
            scale_rows(o, alpha);
            scale_rows(o2, alpha);
            const uint64_t p = st_wgmma_rows(base + S::P);
            const uint64_t first = st_wgmma_columns(v + 3 * BLOCK_BYTES, BLOCK_BYTES);
            const uint64_t second = st_wgmma_columns(v + 6 * BLOCK_BYTES, BLOCK_BYTES);
            st_wgmma_fence();
#pragma unroll
            for (int k = 0; k < 4; k++) {
                st_wgmma_ss_n192<1>(o, p + 2 * k, first + 128 * k, 1);
                st_wgmma_ss_n128<1>(o2, p + 2 * k, second + 128 * k, 1);
            }
            st_wgmma_commit();
            st_wgmma_wait<0>();
            st_wgmma_pin(o);
            st_wgmma_pin(o2);
            if (lane == 0)
                st_mbarrier_arrive(barrier_at(barriers, EMPTY + stage));
            st_mbarrier_arrive(barrier_at(barriers, P_FREE));
        }
        st_named_sync(2, 256);
        float factor[2];
        bool is_empty[2];
        finish_rows<V32>(l, piece, base, factor, is_empty);
        const int head = blockIdx.x * ST_DECODE_GROUP_HEADS + row;
        store_sums(l, piece, o, factor, is_empty, head, 192);
        store_sums(l, piece, o2, factor, is_empty, head, 384);
        cursor_settle(l, c, piece.token + 1);
    }
}

template <bool V32, bool PREFETCH>
static __device__ __forceinline__ void split(const struct decode_launch &l) {
    typedef shape<V32> S;
    extern __shared__ uint8_t hopper_shared[];
    const uint32_t base = (st_shared_address(hopper_shared) + 1023) & ~1023u;
    const uint32_t barriers = base + S::BARRIERS;
    if (threadIdx.x == 0) {
        for (int stage = 0; stage < 2; stage++) {
            st_mbarrier_init(barrier_at(barriers, FULL + stage), 8);
            st_mbarrier_init(barrier_at(barriers, EMPTY + stage), 128 + 4);
        }
        st_mbarrier_init(barrier_at(barriers, P_FULL), 32);
        st_mbarrier_init(barrier_at(barriers, P_FREE), 128);
        st_fence_async();
    }
    __syncthreads();
    st_launch_dependents();
    st_wait_for_earlier();
    struct cursor c;
    c.p = blockIdx.y;
    const int4 part = *(const int4 *)&plan_parts(l)[c.p];
    c.part.first_token = part.x;
    c.part.first_tile = part.y;
    c.part.last_token = part.z;
    c.part.end_tile = part.w;
    cursor_settle(l, c, c.part.first_token);
    if (c.is_done)
        return;
    const int group = threadIdx.x / 128;
    if (group == 0) {
        st_take_registers<168>();
        consume_first<V32>(l, c, base);
    } else if (group == 1) {
        st_take_registers<200>();
        consume_second<V32>(l, c, base);
    } else {
        st_give_registers<72>();
        produce<V32, PREFETCH>(l, c, base);
    }
}

#define HOPPER_SPLIT(v32, prefetch) split<v32, prefetch>(l)
#else
/* Empty where it is not Hopper: the launcher never gets there. */
#define HOPPER_SPLIT(v32, prefetch) (void)l
#endif

extern "C" __global__ void __launch_bounds__(HOPPER_THREADS, 1)
    steptape_sparse_mla_decode_split_v3(const __grid_constant__ decode_launch l) {
    HOPPER_SPLIT(false, false);
}

extern "C" __global__ void __launch_bounds__(HOPPER_THREADS, 1)
    steptape_sparse_mla_decode_split_v3_v32(const __grid_constant__ decode_launch l) {
    HOPPER_SPLIT(true, false);
}

extern "C" __global__ void __launch_bounds__(HOPPER_THREADS, 1)
    steptape_sparse_mla_decode_split_v4(const __grid_constant__ decode_launch l) {
    HOPPER_SPLIT(false, true);
}

extern "C" __global__ void __launch_bounds__(HOPPER_THREADS, 1)
    steptape_sparse_mla_decode_split_v4_v32(const __grid_constant__ decode_launch l) {
    HOPPER_SPLIT(true, true);
}

int st_decode_split_hopper(const struct decode_launch *l, const struct st_decode_launch *geometry,
                           int is_prefetching, int overlap, void *stream) {
    decode_kernel *const kernels[2][2] = {
        {steptape_sparse_mla_decode_split_v3, steptape_sparse_mla_decode_split_v3_v32},
        {steptape_sparse_mla_decode_split_v4, steptape_sparse_mla_decode_split_v4_v32}};
    return st_decode_launch_kernel(kernels[is_prefetching][l->a.format == STEPTAPE_KV_FP8_V32], l,
                                   geometry, overlap, (cudaStream_t)stream);
}
