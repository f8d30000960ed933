/* SPDX-License-Identifier: Apache-2.0 */
/*
 * compress_fused on CUDA.
 *
 * v1: any shape and alignment; a block of 256 threads a token, a thread a channel.
 */
#include "kernels/compress_fused/compress_fused.h"
#include "kernels/compress_norm_rope_store/entry.cuh"
#include "kernels/compress_pool/pool.cuh"
#include "kernels/launch.cuh"

typedef struct steptape_compress_fused_args fused_args;

struct fused_shifts {
    int ratio; /* -1: divide */
    int block;
};

enum { ROPE = ST_NORM_ROPE_DIM };

/* ---- v1: any shape */

enum { V1_THREADS = 256, V1_WARPS = V1_THREADS / 32 };

/* Bytes one by one: this variant asks for no alignment. */
static __device__ __forceinline__ void store_bytes(uint8_t *to, unsigned int value, int n) {
    for (int i = 0; i < n; i++)
        to[i] = (uint8_t)(value >> 8 * i);
}

/*
 * The entry of this thread's two channels d and d + 1, after norm and RoPE.  All threads of the
 * block come here; those from head_dim / 2 on have no channels.
 */
static __device__ __forceinline__ void store_v1(const fused_args &a, const fused_shifts &s,
                                                int64_t kv_slot, int d, float even, float odd,
                                                float *warp_max) {
    const int warp = threadIdx.x / 32;
    const int lane = threadIdx.x % 32;
    const unsigned int rounded = st_bf16x2(even, odd);
    const float low = st_bf16_low(rounded);
    const float high = st_bf16_high(rounded);
    const float absmax = st_max_lanes<32>(fmaxf(fabsf(low), fabsf(high)));
    if (a.format == STEPTAPE_COMPRESS_INDEXER_FP8) {
        if (lane == 0)
            warp_max[warp] = absmax;
        __syncthreads();
        if (d >= ST_FUSED_INDEXER_DIM)
            return;
        const float most = fmaxf(fmaxf(warp_max[0], warp_max[1]), 1e-4f);
        const unsigned int byte = st_scale_bits(__fdiv_rn(most, 448.0f));
        const int64_t page = st_divide(kv_slot, a.kv_block_size, s.block);
        const int64_t entry = kv_slot - page * a.kv_block_size;
        uint8_t *base = a.kv_cache + page * a.kv_page_stride_bytes;
        store_bytes(base + entry * ST_FUSED_INDEXER_DIM + d,
                    st_quantise2(low, high, st_scale_inverse(byte)), 2);
        if (d == 0)
            store_bytes(base + (int64_t)a.kv_block_size * ST_FUSED_INDEXER_DIM + entry * 4,
                        byte << 23, 4);
        return;
    }
    const struct st_entry_place place =
        st_entry_place(a.kv_cache, a.kv_page_stride_bytes, a.kv_block_size, s.block, kv_slot);
    if (warp == ST_NORM_QUANT_BLOCKS) {
        store_bytes(place.data + ST_NORM_NOPE_DIM + 4 * lane, rounded, 4);
        if (lane == 0)
            place.scales[ST_NORM_QUANT_BLOCKS] = 0;
    } else {
        const unsigned int byte = st_scale_byte(absmax);
        store_bytes(place.data + d, st_quantise2(low, high, st_scale_inverse(byte)), 2);
        if (lane == 0)
            place.scales[warp] = (uint8_t)byte;
    }
}

static __device__ __forceinline__ void token_v1(const fused_args &a, const fused_shifts &s,
                                                int64_t t, float *warp_sum, float *warp_max) {
    if (t < 0 || t >= a.num_tokens || a.slot_mapping[t] < 0)
        return;
    const int64_t p = a.positions[t];
    const int64_t kv_slot = a.kv_slot_mapping[t];
    const int64_t angle = st_divide(p, a.ratio, s.ratio) * a.ratio;
    if (p + 1 != angle + a.ratio || kv_slot < 0)
        return;
    const struct st_pool_channel channel = {a.state_cache,
                                            a.block_table +
                                                a.token_to_req[t] * a.block_table_stride,
                                            a.state_page_stride,
                                            a.state_row_stride,
                                            p,
                                            a.head_dim,
                                            a.ratio,
                                            a.overlap,
                                            a.block_size};
    const int d = threadIdx.x * 2;
    float even = 0.0f;
    float odd = 0.0f;
    if (d < a.head_dim) {
        even = st_pool_channel(channel, d);
        odd = st_pool_channel(channel, d + 1);
    }
    const float part = st_sum_lanes<32>(st_squares2(even, odd));
    __syncthreads(); /* warp_sum and warp_max of the token before are read */
    if (threadIdx.x % 32 == 0)
        warp_sum[threadIdx.x / 32] = part;
    __syncthreads();
    const float squares = st_sum_lanes<V1_WARPS>(warp_sum[threadIdx.x % V1_WARPS]);
    const float scale = st_norm_scale(squares, a.head_dim, a.eps);
    if (d < a.head_dim) {
        even = even * scale * st_weight_at(a.weight, a.weight_dtype, d);
        odd = odd * scale * st_weight_at(a.weight, a.weight_dtype, d + 1);
    }
    const int pair = (d - (a.head_dim - ROPE)) / 2;
    if (d >= a.head_dim - ROPE && d < a.head_dim) {
        const float *row = a.cos_sin_cache + angle * a.cos_sin_stride;
        st_turn(&even, &odd, __ldg(row + pair), __ldg(row + ROPE / 2 + pair));
    }
    store_v1(a, s, kv_slot, d, even, odd, warp_max);
}

extern "C" __global__ void __launch_bounds__(V1_THREADS)
    steptape_compress_fused_v1(const __grid_constant__ fused_args a,
                               const __grid_constant__ fused_shifts s) {
    __shared__ float warp_sum[V1_WARPS];
    __shared__ float warp_max[V1_WARPS];
    if (a.list == NULL) {
        token_v1(a, s, blockIdx.x, warp_sum, warp_max);
        return;
    }
    const int64_t listed = *a.list_count;
    const int64_t count = listed < a.num_tokens ? listed : a.num_tokens;
    for (int64_t i = blockIdx.x; i < count; i += gridDim.x)
        token_v1(a, s, a.list[i], warp_sum, warp_max);
}

/* ---- launcher */

int st_compress_fused_cuda(const fused_args *args,
                           const struct st_compress_fused_geometry *geometry, void *stream) {
    const fused_shifts shifts = {st_shift_of(args->ratio), st_shift_of(args->kv_block_size)};
    steptape_compress_fused_v1<<<(unsigned int)geometry->blocks, geometry->threads, 0,
                                 (cudaStream_t)stream>>>(*args, shifts);
    return st_launch_status();
}
