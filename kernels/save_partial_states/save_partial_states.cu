/* SPDX-License-Identifier: Apache-2.0 */
/*
 * save_partial_states on CUDA.
 *
 * Variants, slowest first, with microseconds a call (one NVIDIA H200, CUDA 13.0, 2026-11-30, a
 * graph of 20 calls over the same buffers, medians) for T = 1, 64, 256, 2048 at ratio 128 and
 * T = 2048 at ratio 4:
 * v1  2.43  2.72  2.81  4.55  7.95  one float at a time; the slot is known before a row is read
 * v2  1.45  1.63  1.95  4.69  8.11  16 bytes at a time; rows are read while slot and position are
 * v3  1.24  1.39  1.62  3.58  5.70  v2 with sizes known to the compiler (no division, no loop),
 *                                   default cache policy; from 512 tokens 64 threads a token
 * The other widths under v3, T = 1, 64, 512, 2048: 1024 (c4, 128 threads a token from 512 on) 1.29
 * 1.44 2.38 5.70, 256 (the indexer) 1.24 1.38 1.62 2.36.
 */
#include "kernels/launch.cuh"
#include "kernels/save_partial_states/save_partial_states.h"

typedef struct steptape_save_partial_states_args save_args;

struct save_shifts {
    int block; /* of block_size, ratio; -1: divide */
    int ratio;
};

static __device__ __forceinline__ float *state_row(const save_args &a, const save_shifts &s,
                                                   int64_t slot) {
    int64_t page = st_divide(slot, a.block_size, s.block);
    return a.state_cache + page * a.state_page_stride +
           (slot - page * a.block_size) * a.state_row_stride;
}

static __device__ __forceinline__ const float *ape_row(const save_args &a, const save_shifts &s,
                                                       int64_t position) {
    int64_t group = st_divide(position, a.ratio, s.ratio);
    return a.ape + (position - group * a.ratio) * a.ape_stride;
}

extern "C" __global__ void __launch_bounds__(128)
    steptape_save_partial_states_v1(const __grid_constant__ save_args a,
                                    const __grid_constant__ save_shifts s) {
    st_launch_dependents();
    int64_t t = blockIdx.x;
    int64_t slot = a.slot_mapping[t];
    if (slot < 0)
        return;
    const float *kv = a.kv + t * a.kv_stride;
    const float *score = a.score + t * a.score_stride;
    const float *ape = ape_row(a, s, a.positions[t]);
    float *row = state_row(a, s, slot);
    for (int d = threadIdx.x; d < a.width; d += blockDim.x) {
        row[d] = kv[d];
        row[a.width + d] = __fadd_rn(score[d], ape[d]);
    }
}

extern "C" __global__ void __launch_bounds__(512)
    steptape_save_partial_states_v2(const __grid_constant__ save_args a,
                                    const __grid_constant__ save_shifts s, int tokens_per_block) {
    st_launch_dependents();
    const int lanes = blockDim.x / tokens_per_block;
    const int within = threadIdx.x / lanes;
    const int lane = threadIdx.x - within * lanes;
    const int64_t t = (int64_t)blockIdx.x * tokens_per_block + within;
    if (t >= a.num_tokens)
        return;
    /* All that depends on t alone is asked for at once; only the ape row waits for a position. */
    int64_t slot = __ldg(a.slot_mapping + t);
    int64_t position = __ldg(a.positions + t);
    const float *kv_row = a.kv + t * a.kv_stride;
    const float *score_row = a.score + t * a.score_stride;
    for (int d = lane * 4; d < a.width; d += lanes * 4) {
        float4 kv = st_load_stream(kv_row + d);
        float4 score = st_load_stream(score_row + d);
        if (slot < 0)
            return;
        float4 ape = __ldg((const float4 *)(ape_row(a, s, position) + d));
        float *row = state_row(a, s, slot) + d;
        *(float4 *)row = kv;
        float4 sum = make_float4(__fadd_rn(score.x, ape.x), __fadd_rn(score.y, ape.y),
                                 __fadd_rn(score.z, ape.z), __fadd_rn(score.w, ape.w));
        *(float4 *)(row + a.width) = sum;
    }
}

/*
 * v3: width, lanes and vectors are compile-time; block_size and ratio are powers of two.
 * LANES threads a token, VECTORS times 16 bytes of each half a thread, TOKENS tokens a block.
 */
template <int LANES, int VECTORS, int TOKENS>
static __device__ __forceinline__ void save_rows(const save_args &a, const save_shifts &s) {
    constexpr int STEP = LANES * 4;
    st_launch_dependents();
    const int within = TOKENS == 1 ? 0 : threadIdx.x / LANES;
    const int column = (TOKENS == 1 ? threadIdx.x : threadIdx.x % LANES) * 4;
    const int64_t t = (int64_t)blockIdx.x * TOKENS + within;
    if (TOKENS > 1 && t >= a.num_tokens)
        return;
    const int64_t slot = __ldg(a.slot_mapping + t);
    const int64_t position = __ldg(a.positions + t);
    const float *kv_row = a.kv + t * a.kv_stride + column;
    const float *score_row = a.score + t * a.score_stride + column;
    float4 kv[VECTORS], score[VECTORS], ape[VECTORS];
#pragma unroll
    for (int i = 0; i < VECTORS; i++) {
        kv[i] = __ldg((const float4 *)(kv_row + i * STEP));
        score[i] = __ldg((const float4 *)(score_row + i * STEP));
    }
    if (slot < 0)
        return;
    const float *ape_at = a.ape + (position & ((1ll << s.ratio) - 1)) * a.ape_stride + column;
#pragma unroll
    for (int i = 0; i < VECTORS; i++)
        ape[i] = __ldg((const float4 *)(ape_at + i * STEP));
    float *row = a.state_cache + (slot >> s.block) * a.state_page_stride +
                 (slot & ((1ll << s.block) - 1)) * a.state_row_stride + column;
#pragma unroll
    for (int i = 0; i < VECTORS; i++)
        *(float4 *)(row + i * STEP) = kv[i];
#pragma unroll
    for (int i = 0; i < VECTORS; i++)
        *(float4 *)(row + LANES * VECTORS * 4 + i * STEP) =
            make_float4(__fadd_rn(score[i].x, ape[i].x), __fadd_rn(score[i].y, ape[i].y),
                        __fadd_rn(score[i].z, ape[i].z), __fadd_rn(score[i].w, ape[i].w));
}

#define SAVE_V3(name, lanes, vectors, tokens)                                                      \
    extern "C" __global__ void __launch_bounds__((lanes) * (tokens))                               \
        steptape_save_partial_states_v3_##name(const __grid_constant__ save_args a,                \
                                               const __grid_constant__ save_shifts s) {            \
        save_rows<lanes, vectors, tokens>(a, s);                                                   \
    }

SAVE_V3(w256, 64, 1, 1)
SAVE_V3(w256_many, 32, 2, 4)
SAVE_V3(w512, 128, 1, 1)
SAVE_V3(w512_many, 64, 2, 2)
SAVE_V3(w1024, 256, 1, 1)
SAVE_V3(w1024_many, 128, 2, 2)

/* Whether v3 has this shape. */
static int is_fixed_shape(const save_args *args, const save_shifts *shifts) {
    return shifts->block >= 0 && shifts->ratio >= 0 &&
           (args->width == 256 || args->width == 512 || args->width == 1024);
}

static int is_vectorisable(const save_args *args) {
    return args->width % 4 == 0 && args->kv_stride % 4 == 0 && args->score_stride % 4 == 0 &&
           args->ape_stride % 4 == 0 && args->state_page_stride % 4 == 0 &&
           args->state_row_stride % 4 == 0 && st_is_aligned(args->kv, 16) &&
           st_is_aligned(args->score, 16) && st_is_aligned(args->ape, 16) &&
           st_is_aligned(args->state_cache, 16);
}

typedef void save_v3(save_args a, save_shifts s);

static save_v3 *v3_of(int32_t width, bool many) {
    if (width == 256)
        return many ? steptape_save_partial_states_v3_w256_many
                    : steptape_save_partial_states_v3_w256;
    if (width == 512)
        return many ? steptape_save_partial_states_v3_w512_many
                    : steptape_save_partial_states_v3_w512;
    return many ? steptape_save_partial_states_v3_w1024_many
                : steptape_save_partial_states_v3_w1024;
}

int st_save_partial_states_cuda(const save_args *args, unsigned int variant, void *stream) {
    save_shifts shifts = {st_shift_of(args->block_size), st_shift_of(args->ratio)};
    if (variant == 3 && !is_fixed_shape(args, &shifts)) {
        if (args->variant == 3)
            return STEPTAPE_ERR_UNSUPPORTED;
        variant = 2;
    }
    if (variant > 1 && !is_vectorisable(args)) {
        if (args->variant > 1)
            return STEPTAPE_ERR_UNSUPPORTED;
        variant = 1;
    }
    int64_t block_count;
    int threads;
    int tokens_per_block;
    st_save_partial_states_geometry(args, variant, &block_count, &threads, &tokens_per_block);
    cudaLaunchConfig_t config = {};
    cudaLaunchAttribute attributes[1] = {};
    config.gridDim = dim3((unsigned int)block_count);
    config.blockDim = dim3((unsigned int)threads);
    config.stream = (cudaStream_t)stream;
    config.attrs = attributes;
    st_keep_split(&config);
    if (variant == 1)
        return st_cuda_status(
            cudaLaunchKernelEx(&config, steptape_save_partial_states_v1, *args, shifts));
    if (variant == 2)
        return st_cuda_status(cudaLaunchKernelEx(&config, steptape_save_partial_states_v2, *args,
                                                 shifts, tokens_per_block));
    return st_cuda_status(
        cudaLaunchKernelEx(&config, v3_of(args->width, tokens_per_block > 1), *args, shifts));
}
