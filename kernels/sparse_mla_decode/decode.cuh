/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the device files of sparse_mla_decode share: lengths in tiles, the pieces of a part, where
 * results go.
 */
#ifndef ST_KERNELS_SPARSE_MLA_DECODE_CUH
#define ST_KERNELS_SPARSE_MLA_DECODE_CUH

#include "kernels/launch.cuh"
#include "kernels/sparse_mla_decode/sparse_mla_decode.h"

typedef struct steptape_sparse_mla_decode_args decode_args;

#define ST_LOG2E 1.4426950408889634f
#define ST_LN2 0.6931471805599453f

/* Args and what the host worked out of them. */
struct decode_launch {
    decode_args a;
    int32_t parts;
    int32_t shift[2]; /* of the page sizes, see st_divide32 */
    float scale_log2; /* sm_scale * log2(e) */
};

static __device__ __forceinline__ const struct st_decode_part *
plan_parts(const struct decode_launch &l) {
    return (const struct st_decode_part *)l.a.plan;
}

static __device__ __forceinline__ const struct st_decode_token *
plan_tokens(const struct decode_launch &l) {
    return (const struct st_decode_token *)(plan_parts(l) + l.parts);
}

/* Columns of scope s of token t. */
static __device__ __forceinline__ int columns_of(const decode_args &a, int s, int t) {
    const int topk = a.scope[s].topk;
    if (topk == 0 || a.scope[s].length == NULL)
        return topk;
    return max(min(__ldg(a.scope[s].length + t), topk), 0);
}

static __device__ __forceinline__ int tiles_of_columns(int columns) {
    return (columns + ST_DECODE_TILE - 1) / ST_DECODE_TILE;
}

static __device__ __forceinline__ int tiles_of(const decode_args &a, int t) {
    return tiles_of_columns(columns_of(a, 0, t)) + tiles_of_columns(columns_of(a, 1, t));
}

/* Tiles [begin, end) of a token; empty when begin >= end. */
struct decode_piece {
    int token;
    int columns[2];
    int begin, end;
    int slot; /* of scratch; -1: the token's only piece */
};

static __device__ __forceinline__ struct decode_piece
piece_of(const struct decode_launch &l, const struct st_decode_part &part, int p, int t) {
    struct decode_piece piece;
    piece.token = t;
    piece.columns[0] = columns_of(l.a, 0, t);
    piece.columns[1] = columns_of(l.a, 1, t);
    piece.begin = t == part.first_token ? part.first_tile : 0;
    piece.end = t == part.last_token
                    ? part.end_tile
                    : tiles_of_columns(piece.columns[0]) + tiles_of_columns(piece.columns[1]);
    const struct st_decode_token token = plan_tokens(l)[t];
    piece.slot = token.pieces <= 1 ? -1 : piece.begin == 0 ? token.first_slot : 2 * p;
    return piece;
}

/* Where tile i of a piece's token lies. */
struct decode_tile {
    int scope;
    int first; /* column */
    int count; /* columns, 1..64 */
};

static __device__ __forceinline__ struct decode_tile tile_of(const struct decode_piece &piece,
                                                             int i) {
    const int tiles0 = tiles_of_columns(piece.columns[0]);
    struct decode_tile tile;
    tile.scope = i >= tiles0;
    tile.first = (tile.scope ? i - tiles0 : i) * ST_DECODE_TILE;
    tile.count =
        min((tile.scope ? piece.columns[1] : piece.columns[0]) - tile.first, (int)ST_DECODE_TILE);
    return tile;
}

/* Sums and (max, sum) of head h in a slot of scratch. */
static __device__ __forceinline__ float *slot_sums(const struct decode_launch &l, int slot, int h) {
    return (float *)l.a.scratch + ((int64_t)slot * l.a.heads + h) * ST_DECODE_V_DIM;
}

static __device__ __forceinline__ float2 *slot_state(const struct decode_launch &l, int slot,
                                                     int h) {
    float *after = (float *)l.a.scratch + (int64_t)2 * l.parts * l.a.heads * ST_DECODE_V_DIM;
    return (float2 *)after + ((int64_t)slot * l.a.heads + h);
}

/*
 * The factor that turns sums relative to 2^max into results: 1 / sum, times the sink's share; sets
 * *lse.  A sum of 0 is a row without a column: factor 0, lse +inf.
 */
static __device__ __forceinline__ float finish(const decode_args &a, float max, float sum, int h,
                                               float *lse) {
    if (sum == 0.0f) {
        *lse = __int_as_float(0x7f800000);
        return 0.0f;
    }
    const float lse_log2 = max + log2f(sum);
    *lse = lse_log2 * ST_LN2;
    float factor = 1.0f / sum;
    if (a.attn_sink != NULL)
        factor /= 1.0f + exp2f(fmaf(__ldg(a.attn_sink + h), ST_LOG2E, -lse_log2));
    return factor;
}

static __device__ __forceinline__ unsigned int bf16x2(float low, float high) {
    unsigned int packed;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(high), "f"(low));
    return packed;
}

static __device__ __forceinline__ uint16_t *out_row(const decode_args &a, int t, int h) {
    return a.out + ((int64_t)t * a.heads + h) * ST_DECODE_V_DIM;
}

/* ---- the device files' launchers */

typedef void decode_kernel(const decode_launch l);

/* A launch that may begin while the one before it ends (it waits before it reads) when `overlap`
 * is set: the call before it in the stream is then this operator's own. */
static inline int st_decode_launch_kernel(decode_kernel *kernel, const struct decode_launch *l,
                                          const struct st_decode_launch *geometry, int overlap,
                                          cudaStream_t stream) {
    cudaLaunchAttribute attribute = {};
    attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attribute.val.programmaticStreamSerializationAllowed = 1;
    cudaLaunchConfig_t config = {};
    config.gridDim = dim3(geometry->grid[0], geometry->grid[1]);
    config.blockDim = dim3(geometry->threads);
    config.dynamicSmemBytes = geometry->smem_bytes;
    config.stream = stream;
    config.attrs = &attribute;
    config.numAttrs = overlap ? 1 : 0;
    if (geometry->smem_bytes > 48 * 1024) {
        cudaError_t error = cudaFuncSetAttribute(
            kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)geometry->smem_bytes);
        if (error != cudaSuccess)
            return st_cuda_status(error);
    }
    cudaError_t error = cudaLaunchKernelEx(&config, kernel, *l);
    return error == cudaSuccess ? st_launch_status() : st_cuda_status(error);
}

int st_decode_plan_cuda(const struct decode_launch *l, const struct st_decode_geometry *geometry,
                        void *stream);
int st_decode_split_mma(const struct decode_launch *l, const struct st_decode_launch *geometry,
                        int overlap, void *stream);
int st_decode_split_hopper(const struct decode_launch *l, const struct st_decode_launch *geometry,
                           int is_prefetching, int overlap, void *stream);

#endif
