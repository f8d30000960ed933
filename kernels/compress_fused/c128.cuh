/* SPDX-License-Identifier: Apache-2.0 */
/*
 * compress_fused v3 and v4: c128, windows of 128 rows over sixteen pages of eight, 512 KB a token.
 *
 * v3: a block of 512 threads a token; its 64 partial sums meet in shared memory.
 * v4: a cluster of eight blocks a token, 64 columns a block, each as compress_pool v3 does them.
 * The block whose turn the token is (they take turns) gets the pooled columns of all into its
 * shared memory and stores the entry, one token later, so that nothing waits for it: the next
 * token's rows are under way by then.  How that exchange is safe:
 * 1. A block's barriers are initialised before any block sends (the cluster barrier).
 * 2. Columns are sent by st.async, which counts their bytes at the receiver's barrier; the receiver
 *    reads when all 2,048 have come.  For a turn there is one of V4_BUFFERS buffers and barriers.
 * 3. A buffer is sent to again V4_BUFFERS turns, so 32 tokens, later.  Before that the
 *    sender stored a token of its own turn, one of the last 9: it had the receiver's
 *    columns of that token, which the receiver sends after it stored all tokens but the last two.
 *    All warps of a block meet once a token, before it is sent.
 * 4. A block ends after its last turn; what it still sends leaves from registers.
 */
#ifndef ST_KERNELS_COMPRESS_FUSED_C128_CUH
#define ST_KERNELS_COMPRESS_FUSED_C128_CUH

#include "kernels/compress_fused/walk.cuh"

enum { C128_V3_THREADS = 512 };

static __device__ __forceinline__ const float *c128_page(const fused_args &a, int32_t page) {
    return a.state_cache + (page > 0 ? page : 0) * a.state_page_stride;
}

static __device__ __forceinline__ const int32_t *c128_table(const fused_args &a, int32_t req,
                                                            int64_t position) {
    return a.block_table + req * a.block_table_stride + position / ST_C128_RATIO * ST_C128_PAGES;
}

template <int ROWS>
static __device__ __forceinline__ void c128_load(float4 (&to)[ROWS], const float *from,
                                                 int stride) {
#pragma unroll
    for (int i = 0; i < ROWS; i++)
        to[i] = st_load_stream(from + i * stride);
}

/* Before anything but the states is read; st_wait_for_earlier comes before those are. */
static __device__ __forceinline__ void c128_begin(const struct fused_launch &launch) {
    st_launch_dependents();
    if (!launch.after_save)
        st_wait_for_earlier();
}

/* Where a block found nothing to do: this launch is complete only when the one before it is, and
 * for that it is enough that one block waits. */
static __device__ __forceinline__ void c128_end(void) {
    if (blockIdx.x == 0)
        st_wait_for_earlier();
}

/* ---- v3: one block a token */

extern "C" __global__ void __launch_bounds__(C128_V3_THREADS)
    steptape_compress_fused_v3(const __grid_constant__ fused_args a,
                               const __grid_constant__ struct fused_launch launch) {
    __shared__ struct st_pool_parts<ST_C128_DIM> parts; /* 48 KB, all that a block has unasked */
    float *x = parts.max[0];
    float *partial = parts.sum[0];
    const int lane = threadIdx.x % 32;
    const int quarter = threadIdx.x / 128; /* has pairs of pages `quarter` and `quarter + 4` */
    const int thread = threadIdx.x % 128;
    const int stride = (int)a.state_row_stride;
    c128_begin(launch);
    bool more = true;
    for (int batch = 0; more; batch++) {
        const struct fused_item item =
            fused_item_of<ST_C128_RATIO>(a, launch, blockIdx.x, batch, lane, &more);
        unsigned int left = __ballot_sync(0xffffffffu, item.stored);
        st_wait_for_earlier();
        for (; left != 0; left &= left - 1) {
            const int i = __ffs(left) - 1;
            const int64_t kv_slot = __shfl_sync(0xffffffffu, item.kv_slot, i);
            const int64_t position = __shfl_sync(0xffffffffu, item.position, i);
            const int32_t *table = c128_table(a, __shfl_sync(0xffffffffu, item.req, i), position);
            for (int pair = quarter; pair < ST_POOL_WARPS; pair += 4) {
                struct st_pool_part part, other;
                float4 score[8], kv[8];
                const float *low = c128_page(a, __ldg(table + 2 * pair)) + 4 * thread;
                const float *high = c128_page(a, __ldg(table + 2 * pair + 1)) + 4 * thread;
                float other_scale[4];
                c128_load(score, low + ST_C128_DIM, stride);
                c128_load(kv, low, stride);
                st_pool_weights<8, 32>(score, &part);
                st_pool_products<8, 32>(score, kv, &part);
                c128_load(score, high + ST_C128_DIM, stride);
                c128_load(kv, high, stride);
                st_pool_weights<8, 32>(score, &other);
                st_pool_join_weights(&part, &other, other_scale);
                st_pool_products<8, 32>(score, kv, &other);
                st_pool_join_products(&part, &other, other_scale);
                st_pool_leave(&parts, pair, 4 * thread, &part);
            }
            __syncthreads();
            const float pooled = st_pool_merge<ST_C128_DIM>(&parts, threadIdx.x);
            __syncthreads();
            x[threadIdx.x] = pooled;
            __syncthreads();
            float4 y = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
            if (threadIdx.x < 128) {
                y = *(const float4 *)(x + 4 * thread);
                const float sum = st_sum_lanes<32>(st_squares4(y));
                if (lane == 0)
                    partial[threadIdx.x / 32] = sum;
            }
            __syncthreads();
            if (threadIdx.x < 128) {
                struct fused_turn turn = {};
                if (4 * thread >= FUSED_NOPE)
                    turn = fused_turn_of(a, position, (4 * thread - FUSED_NOPE) / 2);
                const float scale = st_norm_scale(fused_squares512(partial), ST_C128_DIM, a.eps);
                fused_store512(a, launch.block_shift, kv_slot, thread, y, scale,
                               st_weight4_at(a.weight, a.weight_dtype, 4 * thread), turn);
            }
            __syncthreads();
        }
    }
}

/* ---- v4: a cluster of blocks a token */

enum {
    V4_CLUSTER = 8,
    V4_TILE = ST_C128_DIM / V4_CLUSTER,
    V4_LANES = V4_TILE / 4, /* of a row; half a warp has one page */
    V4_THREADS = 32 * ST_POOL_WARPS,
    V4_STORERS = V4_THREADS - 128, /* the first thread of the four warps that store */
    V4_BUFFERS = 4
};

struct v4_shared {
    struct st_pool_parts<V4_TILE> parts[2]; /* a token's are read while the next's are written */
    float4 x[V4_BUFFERS][ST_C128_DIM / 4];  /* pooled, of tokens that this block stores */
    uint64_t full[V4_BUFFERS];
    float partial[4];
    /* of a batch, one copy a warp, so that no warp waits for another: the pages of the rows that
     * the warp reads, and for the last four where and at what position an entry is stored */
    int2 pages[ST_POOL_WARPS][32];
    longlong2 entry[4][32];
    longlong2 owed[4]; /* the entry that is yet to be stored */
};

#if __CUDA_ARCH__ >= 900

static __device__ __forceinline__ unsigned int cluster_rank(void) {
    unsigned int rank;
    asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
    return rank;
}

/* Where a shared variable of this block lies in block `rank` of the cluster. */
static __device__ __forceinline__ unsigned int shared_of(const void *variable, unsigned int rank) {
    const unsigned int here = (unsigned int)__cvta_generic_to_shared(variable);
    unsigned int there;
    asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(here), "r"(rank));
    return there;
}

static __device__ __forceinline__ void barriers_init(uint64_t (&barriers)[V4_BUFFERS]) {
#pragma unroll
    for (int i = 0; i < V4_BUFFERS; i++)
        asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(
                         (unsigned int)__cvta_generic_to_shared(&barriers[i]))
                     : "memory");
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

static __device__ __forceinline__ void barrier_expect(uint64_t *barrier, int bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(
                     (unsigned int)__cvta_generic_to_shared(barrier)),
                 "r"(bytes)
                 : "memory");
}

static __device__ __forceinline__ void barrier_wait(uint64_t *barrier, int parity) {
    asm volatile("{\n\t"
                 ".reg .pred done;\n\t"
                 "again:\n\t"
                 "mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 done, [%0], %1;\n\t"
                 "@!done bra again;\n\t"
                 "}" ::"r"((unsigned int)__cvta_generic_to_shared(barrier)),
                 "r"(parity)
                 : "memory");
}

static __device__ __forceinline__ void send_float(unsigned int to, float value,
                                                  unsigned int barrier) {
    asm volatile(
        "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.f32 [%0], %1, [%2];" ::"r"(to),
        "f"(value), "r"(barrier)
        : "memory");
}

/* Relaxed: barriers_init has a fence of its own, and nothing else has been written by then. */
static __device__ __forceinline__ void cluster_arrive(void) {
    asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");
}

static __device__ __forceinline__ void cluster_wait(void) {
    asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
}

/* Barrier 1, of the four warps that store. */
static __device__ __forceinline__ void storers_sync(void) {
    asm volatile("bar.sync 1, 128;" ::: "memory");
}

/* The last four warps of the block store the entry of the last of `done` tokens, if that was this
 * block's turn. */
static __device__ __forceinline__ void v4_store(const fused_args &a,
                                                const struct fused_launch &launch,
                                                struct v4_shared *s, unsigned int rank, int done) {
    const int thread = threadIdx.x - V4_STORERS;
    const int turn = (done - 1) / V4_CLUSTER;
    const int buffer = turn % V4_BUFFERS;
    if (done == 0 || (done - 1) % V4_CLUSTER != (int)rank)
        return;
    const longlong2 entry = s->owed[thread / 32];
    const float4 weight = st_weight4_at(a.weight, a.weight_dtype, 4 * thread);
    struct fused_turn angle = {};
    if (4 * thread >= FUSED_NOPE)
        angle = fused_turn_of(a, entry.y, (4 * thread - FUSED_NOPE) / 2);
    if (thread == 0)
        barrier_expect(&s->full[buffer], 4 * ST_C128_DIM);
    barrier_wait(&s->full[buffer], turn / V4_BUFFERS & 1);
    const float4 x = s->x[buffer][thread];
    const float sum = st_sum_lanes<32>(st_squares4(x));
    storers_sync(); /* the sums of the turn before are read */
    if (thread % 32 == 0)
        s->partial[thread / 32] = sum;
    storers_sync();
    fused_store512(a, launch.block_shift, entry.x, thread, x,
                   st_norm_scale(fused_squares512(s->partial), ST_C128_DIM, a.eps), weight, angle);
}

/* Brings the block's columns of a token together and sends them to the block that stores it. */
static __device__ __forceinline__ void v4_send(struct v4_shared *s, unsigned int rank, int done) {
    if (threadIdx.x >= V4_TILE)
        return;
    const int buffer = done / V4_CLUSTER % V4_BUFFERS;
    const unsigned int to = (unsigned int)(done % V4_CLUSTER);
    const float pooled = st_pool_merge<V4_TILE>(&s->parts[done & 1], threadIdx.x);
    const float *x = &s->x[buffer][0].x + rank * V4_TILE + threadIdx.x;
    send_float(shared_of(x, to), pooled, shared_of(&s->full[buffer], to));
}

/* The tokens `left` of a batch; *done counts tokens of all batches. */
static __device__ __forceinline__ void v4_batch(const fused_args &a,
                                                const struct fused_launch &launch,
                                                struct v4_shared *s, unsigned int left, int *done) {
    const unsigned int rank = cluster_rank();
    const int lane = threadIdx.x % 32;
    const int warp = threadIdx.x / 32;
    const int column = threadIdx.x % V4_LANES * 4;
    const int stride = (int)a.state_row_stride;
    const int offset = (int)rank * V4_TILE + column;
    const int *pages = &s->pages[warp][0].x + lane / V4_LANES; /* this thread's of the two */
    int token = __ffs(left) - 1;
    const float *rows = c128_page(a, pages[2 * token]) + offset;
    float4 score[8];
    c128_load(score, rows + ST_C128_DIM, stride);
    for (;;) {
        struct st_pool_part part;
        float4 kv[8], next_score[8];
        left &= left - 1;
        const int next = left != 0 ? __ffs(left) - 1 : token;
        c128_load(kv, rows, stride);
        rows = c128_page(a, pages[2 * next]) + offset;
        st_pool_weights<8, V4_LANES>(score, &part);
        if (left != 0)
            c128_load(next_score, rows + ST_C128_DIM, stride);
        st_pool_products<8, V4_LANES>(score, kv, &part);
        st_pool_join_halves(&part);
        if (lane < V4_LANES)
            st_pool_leave(&s->parts[*done & 1], warp, column, &part);
#pragma unroll
        for (int r = 0; r < 8; r++)
            score[r] = next_score[r];
        __syncthreads();
        if (*done == 0)
            cluster_wait(); /* every block's barriers are there */
        v4_send(s, rank, *done);
        if (threadIdx.x >= V4_STORERS) {
            v4_store(a, launch, s, rank, *done);
            if (*done % V4_CLUSTER == (int)rank && lane == 0)
                s->owed[warp - 4] = s->entry[warp - 4][token];
            __syncwarp();
        }
        token = next;
        ++*done;
        if (left == 0)
            return;
    }
}

#endif

extern "C" __global__ void __launch_bounds__(V4_THREADS, 2)
    steptape_compress_fused_v4(const __grid_constant__ fused_args a,
                               const __grid_constant__ struct fused_launch launch) {
#if __CUDA_ARCH__ >= 900
    __shared__ struct v4_shared shared;
    const int lane = threadIdx.x % 32;
    const int warp = threadIdx.x / 32;
    const int group = blockIdx.x / V4_CLUSTER;
    int done = 0;
    bool more;
    c128_begin(launch);
    struct fused_item item = fused_item_of<ST_C128_RATIO>(a, launch, group, 0, lane, &more);
    unsigned int left = __ballot_sync(0xffffffffu, item.stored);
    if (left == 0 && !more)
        c128_end();
    if (left == 0 && !more)
        asm volatile("exit;"); /* here, not behind the code of all that is not done */
    for (int batch = 1;; batch++) {
        if (left != 0) {
            if (item.stored) {
                const int32_t *pages = c128_table(a, item.req, item.position) + 2 * warp;
                shared.pages[warp][lane] = make_int2(__ldg(pages), __ldg(pages + 1));
                if (warp >= 4)
                    shared.entry[warp - 4][lane] = make_longlong2(item.kv_slot, item.position);
            }
            __syncwarp();
            if (done == 0) {
                if (threadIdx.x == 0)
                    barriers_init(shared.full);
                __syncwarp();
                cluster_arrive();
                st_wait_for_earlier();
            }
            v4_batch(a, launch, &shared, left, &done);
        }
        if (!more)
            break;
        item = fused_item_of<ST_C128_RATIO>(a, launch, group, batch, lane, &more);
        left = __ballot_sync(0xffffffffu, item.stored);
    }
    if (done == 0) { /* a list of nothing to store */
        c128_end();
        return;
    }
    if (threadIdx.x >= V4_STORERS)
        v4_store(a, launch, &shared, cluster_rank(), done);
#endif
}

#endif
