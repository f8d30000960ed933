/* SPDX-License-Identifier: Apache-2.0 */
/*
 * compress_fused v2: c4 and the indexer's keys, windows of eight rows over two pages of four.
 *
 * DIM / 4 threads a token, four channels each: a thread has all eight rows of its channels, so the
 * softmax needs no exchange; the norm needs one barrier with 512 channels and none with 128.
 */
#ifndef ST_KERNELS_COMPRESS_FUSED_C4_CUH
#define ST_KERNELS_COMPRESS_FUSED_C4_CUH

#include "kernels/compress_fused/walk.cuh"

enum { C4_THREADS = 128, C4_RATIO = 4 };

/* The pages of a token's older and newer four positions; the older ones of the first group lie
 * before position 0: -1. */
struct c4_pages {
    int32_t older, newer;
};

static __device__ __forceinline__ struct c4_pages c4_pages_of(const fused_args &a,
                                                              const struct fused_item &item) {
    struct c4_pages pages = {-1, 0};
    if (item.stored) {
        const int64_t at = item.position / C4_RATIO;
        const int32_t *table = a.block_table + item.req * a.block_table_stride + at;
        const int32_t newer = __ldg(table);
        const int32_t older = at > 0 ? __ldg(table - 1) : 0;
        pages.newer = newer > 0 ? newer : 0;
        pages.older = at == 0 ? -1 : older > 0 ? older : 0;
    }
    return pages;
}

/* Rows 0 to 3 are the older four, which read the first DIM columns; 4 to 7 the newer, the second.
 */
template <int DIM>
static __device__ __forceinline__ void c4_load(const fused_args &a, int32_t page, int half, int d,
                                               float4 (&score)[8], float4 (&kv)[8]) {
    const float *rows = a.state_cache + page * a.state_page_stride + half * DIM + d;
#pragma unroll
    for (int r = 0; r < 4; r++) {
        score[4 * half + r] = st_load_stream(rows + r * a.state_row_stride + 2 * DIM);
        kv[4 * half + r] = st_load_stream(rows + r * a.state_row_stride);
    }
}

template <int DIM>
static __device__ __forceinline__ float4 c4_pool(const fused_args &a, int32_t older, int32_t newer,
                                                 int d) {
    float4 score[8], kv[8];
    c4_load<DIM>(a, newer, 1, d, score, kv);
    if (older >= 0) {
        c4_load<DIM>(a, older, 0, d, score, kv);
    } else {
#pragma unroll
        for (int r = 0; r < 4; r++) {
            score[r] = make_float4(-INFINITY, -INFINITY, -INFINITY, -INFINITY);
            kv[r] = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
        }
    }
    struct st_pool_part part;
    st_pool_weights<8, 32>(score, &part);
    st_pool_products<8, 32>(score, kv, &part);
    return make_float4(part.product[0] / part.sum[0], part.product[1] / part.sum[1],
                       part.product[2] / part.sum[2], part.product[3] / part.sum[3]);
}

/* The indexer's entry by one warp, four channels a lane. */
static __device__ __forceinline__ void c4_store128(const fused_args &a, int block_shift,
                                                   int64_t kv_slot, int lane, float4 x,
                                                   float4 weight, const struct fused_turn &turn) {
    const float squares = st_sum_lanes<32>(st_squares4(x));
    float4 y = st_norm4(x, st_norm_scale(squares, ST_FUSED_INDEXER_DIM, a.eps), weight);
    if (lane >= 16)
        y = st_turn4(y, turn.cosine, turn.sine);
    const float4 v = st_round4(y);
    const float absmax = st_max_lanes<32>(st_absmax4(v));
    const unsigned int byte = st_scale_bits(__fdiv_rn(fmaxf(absmax, 1e-4f), 448.0f));
    const int64_t page = st_divide(kv_slot, a.kv_block_size, block_shift);
    const int64_t entry = kv_slot - page * a.kv_block_size;
    uint8_t *base = a.kv_cache + page * a.kv_page_stride_bytes;
    *(unsigned int *)(base + entry * ST_FUSED_INDEXER_DIM + 4 * lane) =
        st_quantise4(v, st_scale_inverse(byte));
    if (lane == 0)
        *(unsigned int *)(base + (int64_t)a.kv_block_size * ST_FUSED_INDEXER_DIM + entry * 4) =
            byte << 23;
}

template <int DIM>
static __device__ __forceinline__ void c4_walk(const fused_args &a,
                                               const struct fused_launch &launch) {
    constexpr int THREADS = DIM / 4; /* of a token */
    constexpr int GROUPS = C4_THREADS / THREADS;
    __shared__ float partial[2][C4_THREADS / 32];
    const int group = blockIdx.x * GROUPS + threadIdx.x / THREADS;
    const int thread = threadIdx.x % THREADS;
    const int lane = threadIdx.x % 32;
    const int d = 4 * thread;
    const bool turns = d >= DIM - FUSED_ROPE;
    int set = 0;
    bool more = true;
    st_launch_dependents();
    st_wait_for_earlier();
    for (int batch = 0; more; batch++) {
        const struct fused_item item =
            fused_item_of<C4_RATIO>(a, launch, group, batch, lane, &more);
        const struct c4_pages pages = c4_pages_of(a, item);
        unsigned int left = __ballot_sync(0xffffffffu, item.stored);
        if (left == 0)
            continue;
        const float4 weight = st_weight4_at(a.weight, a.weight_dtype, d);
        for (; left != 0; left &= left - 1) {
            const int i = __ffs(left) - 1;
            const int32_t older = __shfl_sync(0xffffffffu, pages.older, i);
            const int32_t newer = __shfl_sync(0xffffffffu, pages.newer, i);
            const int64_t kv_slot = __shfl_sync(0xffffffffu, item.kv_slot, i);
            const int64_t position = __shfl_sync(0xffffffffu, item.position, i);
            struct fused_turn turn = {};
            if (turns)
                turn = fused_turn_of(a, position, (d - (DIM - FUSED_ROPE)) / 2);
            const float4 x = c4_pool<DIM>(a, older, newer, d);
            if (DIM == ST_FUSED_INDEXER_DIM) {
                c4_store128(a, launch.block_shift, kv_slot, lane, x, weight, turn);
            } else {
                const float part = st_sum_lanes<32>(st_squares4(x));
                if (lane == 0)
                    partial[set][threadIdx.x / 32] = part;
                __syncthreads();
                const float squares = fused_squares512(partial[set]);
                fused_store512(a, launch.block_shift, kv_slot, thread, x,
                               st_norm_scale(squares, DIM, a.eps), weight, turn);
                set ^= 1;
            }
        }
    }
}

#endif
