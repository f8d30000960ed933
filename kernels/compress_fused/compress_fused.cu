/* SPDX-License-Identifier: Apache-2.0 */
/*
 * compress_fused on CUDA.
 *
 * Microseconds a call (one NVIDIA H200, CUDA 13.0, 2026-11-30, a graph of 20 calls over the same
 * buffers, medians), in brackets with STEPTAPE_LAUNCH_EARLY.  `two` is compress_pool and
 * compress_norm_rope_store, in brackets overlapped.
 *
 * v1: any shape and alignment; a block of 256 threads a token, a thread a channel.
 * v2 (c4.cuh): c4 and the indexer's keys.  T = 1, 64, 2048, all stored; 2048, none; 8192, a
 * prefill:
 *
 *     c4       2.53 (2.27)  2.85 (2.62)  19.5 (19.3)  1.39 (1.34)  19.6 (19.3)
 *     indexer  2.41 (2.15)  2.71 (2.34)  5.14 (4.86)  1.41 (1.33)  5.50 (5.56)
 *
 * Four blocks a multiprocessor: with five, one block a token or the other cache policy c4 takes
 * 20.0 to 22.8 at T = 2048.
 *
 * v3, v4 (c128.cuh): c128 by one block a token, and by a cluster of eight.  T = 1, 16, 64, 256,
 * 512:
 *
 *     none  two  1.93 (1.65)  2.28 (1.85)  2.31 (1.99)  2.37 (2.10)  2.49 (2.22)
 *           v3   1.49 (1.21)  1.58 (1.26)  1.62         1.74 (1.47)  1.77 (1.46)
 *           v4   1.21 (0.88)  1.43 (1.08)  1.48 (1.11)  1.43 (1.10)  1.46 (1.12)
 *     all   two  3.79 (3.06)  5.00 (4.33)  8.13 (7.89)  34.8 (36.1)  66.6 (69.0)
 *           v3   6.75 (6.47)  7.85 (6.73)  9.08 (8.67)  36.0 (35.6)  67.5 (67.6)
 *           v4   3.66 (3.36)  4.58 (4.75)  8.80 (10.3)  36.8 (39.6)  70.6 (73.2)
 *
 * Along a list, one token in 128 stored (at least one), T = 1, 16, 64, 256, 512:
 *
 *           two  3.79 (3.06)  4.15 (3.39)  5.17 (4.27)  5.81 (4.67)  6.48 (5.63)
 *           v4   3.83 (3.54)  3.92 (3.59)  4.25 (3.74)  4.35 (4.12)  4.52 (4.45)
 *
 * Decode closes one group in 128 tokens, so the default is v4; v3 is best from some hundreds of
 * stored tokens on (T = 2048, all: 251, two 258).  These figures are older than v4's cluster
 * barrier without a fence and than STEPTAPE_LAUNCH_AFTER_SAVE, whose figures, after
 * save_partial_states as a model has it, are in docs/measurements/graph-skip-h200.md.
 *
 * Tried and slower: clusters of 4 and 2 with wider tiles (T = 256, all: 38.9, 41.7), of 16 (7.1 at
 * T = 16), blocks without clusters that leave their columns in global memory, the last of which
 * stores (T = 256, all: 40.5; one in 128: 5.0), and clusters of 4 that pool all tokens of a batch
 * before they store any: 1.2 times the two after save_partial_states, T = 128 and more, all, since
 * 62 of 64 such clusters find a place.
 */
#include "kernels/compress_fused/c128.cuh"
#include "kernels/compress_fused/c4.cuh"
#include "kernels/compress_fused/compress_fused.h"

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
static __device__ __forceinline__ void store_v1(const fused_args &a, const struct fused_launch &s,
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
        const int64_t page = st_divide(kv_slot, a.kv_block_size, s.block_shift);
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
        st_entry_place(a.kv_cache, a.kv_page_stride_bytes, a.kv_block_size, s.block_shift, kv_slot);
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

static __device__ __forceinline__ void token_v1(const fused_args &a, const struct fused_launch &s,
                                                int64_t t, float *warp_sum, float *warp_max) {
    if (t < 0 || t >= a.num_tokens || a.slot_mapping[t] < 0)
        return;
    const int64_t p = a.positions[t];
    const int64_t kv_slot = a.kv_slot_mapping[t];
    const int64_t angle = st_divide(p, a.ratio, s.ratio_shift) * a.ratio;
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
    const int pair = (d - (a.head_dim - FUSED_ROPE)) / 2;
    if (d >= a.head_dim - FUSED_ROPE && d < a.head_dim) {
        const float *row = a.cos_sin_cache + angle * a.cos_sin_stride;
        st_turn(&even, &odd, __ldg(row + pair), __ldg(row + FUSED_ROPE / 2 + pair));
    }
    store_v1(a, s, kv_slot, d, even, odd, warp_max);
}

extern "C" __global__ void __launch_bounds__(V1_THREADS)
    steptape_compress_fused_v1(const __grid_constant__ fused_args a,
                               const __grid_constant__ struct fused_launch s) {
    __shared__ float warp_sum[V1_WARPS];
    __shared__ float warp_max[V1_WARPS];
    st_launch_dependents();
    st_wait_for_earlier();
    if (a.list == NULL) {
        token_v1(a, s, blockIdx.x, warp_sum, warp_max);
        return;
    }
    const int64_t listed = *a.list_count;
    const int64_t count = listed < a.num_tokens ? listed : a.num_tokens;
    for (int64_t i = blockIdx.x; i < count; i += gridDim.x)
        token_v1(a, s, a.list[i], warp_sum, warp_max);
}

/* ---- v2 */

#define C4_KERNEL(name, dim)                                                                       \
    extern "C" __global__ void __launch_bounds__(C4_THREADS, 4)                                    \
        steptape_compress_fused_v2_##name(const __grid_constant__ fused_args a,                    \
                                          const __grid_constant__ struct fused_launch launch) {    \
        c4_walk<dim>(a, launch);                                                                   \
    }

C4_KERNEL(c4, 512)
C4_KERNEL(indexer, 128)

/* ---- launcher */

static_assert(sizeof(struct st_pool_parts<ST_C128_DIM>) == ST_FUSED_V3_SMEM, "the cost says so");
static_assert(sizeof(struct v4_shared) == ST_FUSED_V4_SMEM, "the cost says so");

typedef void fused_kernel(fused_args a, struct fused_launch launch);

static fused_kernel *kernel_of(const fused_args *args,
                               const struct st_compress_fused_geometry *geometry) {
    static fused_kernel *const kernels[ST_FUSED_VARIANTS] = {
        steptape_compress_fused_v1, steptape_compress_fused_v2_c4, steptape_compress_fused_v3,
        steptape_compress_fused_v4};
    if (geometry->variant == 2 && args->head_dim == ST_FUSED_INDEXER_DIM)
        return steptape_compress_fused_v2_indexer;
    return kernels[geometry->variant - 1];
}

int st_compress_fused_cuda(const fused_args *args,
                           const struct st_compress_fused_geometry *geometry, void *stream) {
    struct fused_launch launch;
    fused_kernel *kernel = kernel_of(args, geometry);
    cudaLaunchConfig_t config = {};
    cudaLaunchAttribute attributes[3] = {};
    launch.ratio_shift = st_shift_of(args->ratio);
    launch.block_shift = st_shift_of(args->kv_block_size);
    launch.tokens = geometry->tokens_per_group;
    launch.more = geometry->groups_with_more;
    launch.groups = geometry->groups;
    launch.after_save = (args->flags & STEPTAPE_LAUNCH_AFTER_SAVE) != 0;
    config.gridDim = dim3((unsigned int)geometry->blocks);
    config.blockDim = dim3((unsigned int)geometry->threads);
    config.stream = (cudaStream_t)stream;
    config.attrs = attributes;
    if (geometry->variant == 4) {
        cudaLaunchAttribute *cluster = &attributes[config.numAttrs++];
        cluster->id = cudaLaunchAttributeClusterDimension;
        cluster->val.clusterDim.x = (unsigned int)geometry->group_blocks;
        cluster->val.clusterDim.y = cluster->val.clusterDim.z = 1;
    }
    if (args->flags != 0 && st_has_dependent_launch()) {
        cudaLaunchAttribute *early = &attributes[config.numAttrs++];
        early->id = cudaLaunchAttributeProgrammaticStreamSerialization;
        early->val.programmaticStreamSerializationAllowed = 1;
    }
    if (launch.after_save)
        st_keep_split(&config);
    return st_cuda_status(cudaLaunchKernelEx(&config, kernel, *args, launch));
}
