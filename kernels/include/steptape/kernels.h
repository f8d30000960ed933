/* SPDX-License-Identifier: Apache-2.0 */
/*
 * libsteptape_kernels: the operators that a scheduler step launches, one launcher and one CPU
 * reference each, so that anyone can compare an operator with another implementation.
 *
 *     struct steptape_save_partial_states_args args = {.kv = d_kv, ...};
 *     int rc = steptape_save_partial_states(&args, stream);      // device pointers
 *     rc = steptape_save_partial_states_ref(&host_args);         // host pointers, any machine
 *
 * Rules that hold for every operator here:
 * 1. Pointers are plain device pointers for a launcher and plain host pointers for a reference.
 *    `stream` is a cudaStream_t, or NULL for the default stream.
 * 2. Strides are in elements; strides of byte caches are in bytes.  A page stride is taken from
 *    the tensor by the caller and never derived here: caches may be packed beside each other.
 * 3. A launcher checks its arguments and its launch.  It never allocates, waits, prints or picks
 *    a device.  With nothing to do (num_tokens == 0) it returns 0 without a launch.
 * 4. variant 0 is the default (the fastest measured); 1..n are the numbered ones, slowest first.
 *    All variants compute the same function.
 * 5. Return value: 0, or a negative enum steptape_status.
 * 6. A _ref is plain C with double accumulators.  A _ref_rows computes only the listed tokens
 *    (for a check by sample); it writes what the whole reference would write for these.
 * 7. A _cost needs the sizes in args only; its pointers may all be NULL.
 *
 * Thread-safe: yes; nothing here has state.
 */
#ifndef STEPTAPE_KERNELS_H
#define STEPTAPE_KERNELS_H

#include "steptape/kernels_attention.h" /* IWYU pragma: export */
#include "steptape/kernels_base.h"      /* IWYU pragma: export */
#include "steptape/kernels_indices.h"   /* IWYU pragma: export */
#include "steptape/kernels_topk.h"      /* IWYU pragma: export */

#ifdef __cplusplus
extern "C" {
#endif

/* ---- compressed_slot_mapping */

/*
 * Slots of the compressed cache, one per query token, for one KV group:
 *     p = seq_lens[r] - query_len(r) + i
 *     c = p / ratio
 *     out[query_start_loc[r] + i] =
 *         max(block_table[r][c / block_size], 0) * block_size + c % block_size
 *     when (p + 1) % ratio == 0, else -1
 * and -1 in every element of out that belongs to no request.  Upstream fills the whole buffer in a
 * launch of its own first; here one launch writes each element once (variant 1 does it the
 * upstream way, in two).
 */
struct steptape_compressed_slot_mapping_args {
    int64_t *out;                   /* [out_len] */
    const int32_t *query_start_loc; /* [num_reqs + 1], ascending */
    const int32_t *seq_lens;        /* [num_reqs] */
    const int32_t *block_table;     /* [num_reqs, block_table_stride] */
    int64_t block_table_stride;
    int64_t out_len;    /* the whole buffer, not this step's tokens */
    int32_t num_reqs;   /* may be 0: then all of out becomes -1 */
    int32_t ratio;      /* 4 or 128; any value >= 1 */
    int32_t block_size; /* stored entries of a page (2 for c128, 64 for c4) */
    uint32_t variant;
};

STEPTAPE_API int
steptape_compressed_slot_mapping(const struct steptape_compressed_slot_mapping_args *args,
                                 void *stream);
STEPTAPE_API int
steptape_compressed_slot_mapping_ref(const struct steptape_compressed_slot_mapping_args *args);
/* tokens: indices into out. */
STEPTAPE_API int
steptape_compressed_slot_mapping_ref_rows(const struct steptape_compressed_slot_mapping_args *args,
                                          const int64_t *tokens, int64_t n);
/* counts->mapped: query tokens of all requests; counts->boundary: those that close a group. */
STEPTAPE_API int
steptape_compressed_slot_mapping_cost(const struct steptape_compressed_slot_mapping_args *args,
                                      const struct steptape_token_counts *counts,
                                      struct steptape_cost *out);

/* ---- save_partial_states */

/*
 * Writes this step's partial states.  For token t with s = slot_mapping[t] >= 0:
 *     row = state_cache[s / block_size][s % block_size]
 *     row[0 .. width)         = kv[t]
 *     row[width .. 2 * width) = score[t] + ape[positions[t] % ratio]
 * A token with a negative slot writes nothing.  kv and score are usually the two halves of one
 * [T, 2 * width] buffer.
 */
struct steptape_save_partial_states_args {
    const float *kv;             /* [>= num_tokens, width] */
    const float *score;          /* [>= num_tokens, width] */
    const float *ape;            /* [ratio, width] */
    const int64_t *positions;    /* [>= num_tokens] */
    const int64_t *slot_mapping; /* [num_tokens] */
    float *state_cache;          /* [pages, block_size, 2 * width] */
    int64_t kv_stride;           /* elements between two tokens */
    int64_t score_stride;
    int64_t ape_stride;
    int64_t state_page_stride; /* elements between two pages */
    int64_t state_row_stride;  /* elements between two rows of a page */
    int64_t num_tokens;        /* length of slot_mapping */
    int32_t width;             /* 512 for c128, 1024 for c4, 256 for the indexer; any >= 1 */
    int32_t ratio;
    int32_t block_size; /* rows of a page: 8 for c128, 4 for c4 */
    uint32_t variant;
};

STEPTAPE_API int steptape_save_partial_states(const struct steptape_save_partial_states_args *args,
                                              void *stream);
STEPTAPE_API int
steptape_save_partial_states_ref(const struct steptape_save_partial_states_args *args);
STEPTAPE_API int
steptape_save_partial_states_ref_rows(const struct steptape_save_partial_states_args *args,
                                      const int64_t *tokens, int64_t n);
/* Uses counts->mapped. */
STEPTAPE_API int
steptape_save_partial_states_cost(const struct steptape_save_partial_states_args *args,
                                  const struct steptape_token_counts *counts,
                                  struct steptape_cost *out);

/* ---- compress_pool */

/*
 * Pools a group's states into one vector.  Token t writes row t of pooled when, in this order,
 * slot_mapping[t] >= 0, (positions[t] + 1) % ratio == 0, and kv_slot_mapping[t] >= 0; no other
 * row is touched.  With p = positions[t], r = token_to_req[t], window = (overlap ? 2 : 1) * ratio:
 *     for j in 0 .. window: q = p - window + 1 + j, read from
 *         state_cache[max(block_table[r][q / block_size], 0)][q % block_size]
 *     column offset c = overlap ? (j / ratio) * head_dim : 0, in the kv half and the score half
 *     (q < 0: weight 0)
 *     pooled[t][d] = sum_j softmax_j(score_j[c + d]) * kv_j[c + d]
 * One softmax per channel d.  state width = (overlap ? 2 : 1) * head_dim.
 */
struct steptape_compress_pool_args {
    const float *state_cache;       /* [pages, block_size, 2 * state width] */
    const int64_t *positions;       /* [>= num_tokens] */
    const int64_t *slot_mapping;    /* [num_tokens], of the state cache */
    const int64_t *kv_slot_mapping; /* [>= num_tokens], of the compressed cache */
    const int32_t *token_to_req;    /* [>= num_tokens] */
    const int32_t *block_table;     /* [reqs, block_table_stride], of the state cache */
    float *pooled;                  /* scratch [num_tokens, head_dim] */
    int64_t state_page_stride;      /* elements */
    int64_t state_row_stride;
    int64_t block_table_stride;
    int64_t pooled_stride;
    int64_t num_tokens;
    int32_t head_dim; /* 512 */
    int32_t ratio;    /* 128, or 4 with overlap */
    int32_t overlap;  /* 0: c128; 1: c4, two groups a window */
    int32_t block_size;
    uint32_t variant;
    uint32_t flags; /* 0; reserved */
};

STEPTAPE_API int steptape_compress_pool(const struct steptape_compress_pool_args *args,
                                        void *stream);
STEPTAPE_API int steptape_compress_pool_ref(const struct steptape_compress_pool_args *args);
STEPTAPE_API int steptape_compress_pool_ref_rows(const struct steptape_compress_pool_args *args,
                                                 const int64_t *tokens, int64_t n);
STEPTAPE_API int steptape_compress_pool_cost(const struct steptape_compress_pool_args *args,
                                             const struct steptape_token_counts *counts,
                                             struct steptape_cost *out);
/* Bytes of pooled for num_tokens tokens. */
STEPTAPE_API uint64_t steptape_compress_pool_scratch_bytes(int64_t num_tokens, int32_t head_dim);

/* ---- compress_norm_rope_store */

enum steptape_dtype { STEPTAPE_FP32 = 0, STEPTAPE_BF16 = 1 };

/* The launch right before this one in the stream is compress_pool over the same tokens: this one
 * may start while that one ends (programmatic dependent launch).  Never set it otherwise. */
#define STEPTAPE_LAUNCH_AFTER_POOL 1u

/*
 * RMSNorm, RoPE, fp8 quantisation and the store into the compressed cache of what compress_pool
 * left in pooled.  Same early-outs in the same order; a stored token t at position p writes the
 * entry kv_slot_mapping[t] and nothing else:
 *     y = x * rsqrt(mean(x^2) + eps) * weight                       (512 channels, fp32)
 *     RoPE on the last 64: pairs (2i, 2i+1) with row (p / ratio) * ratio of cos_sin_cache,
 *         e' = e * cos - o * sin, o' = o * cos + e * sin
 *     the first 448 in 7 blocks of 64: v = bf16(y); scale = max(absmax / 448, 1e-4);
 *         e = ceil(log2(scale)) (from the bits), stored byte e + 127, q = e4m3(clamp(v * 2^-e))
 *     the last 64 as bf16
 * Entry s of a page of n = kv_block_size entries ("fp8_ds_mla"): data at s * 576 (448 bytes of
 * e4m3, 64 bf16), scales at n * 576 + s * 8 (7 bytes and one zero).
 */
struct steptape_compress_norm_rope_store_args {
    const float *pooled;            /* [num_tokens, 512], from compress_pool */
    const int64_t *positions;       /* [>= num_tokens] */
    const int64_t *slot_mapping;    /* [num_tokens] */
    const int64_t *kv_slot_mapping; /* [>= num_tokens] */
    const void *weight;             /* [512] of weight_dtype */
    const float *cos_sin_cache;     /* [max position, 64]: 32 cos, then 32 sin */
    uint8_t *kv_cache;              /* pages of bytes */
    float *values;                  /* [num_tokens, 512] or NULL: also leaves y after RoPE, before
                                       any rounding, of stored tokens (to look into a difference) */
    int64_t pooled_stride;
    int64_t cos_sin_stride;
    int64_t values_stride;
    int64_t kv_page_stride_bytes;
    int64_t num_tokens;
    int32_t head_dim;      /* 512 */
    int32_t rope_dim;      /* 64 */
    int32_t ratio;         /* 128, or 4 */
    int32_t kv_block_size; /* entries of a page: 2 for c128, 64 for c4 */
    int32_t weight_dtype;  /* enum steptape_dtype */
    float eps;
    uint32_t variant;
    uint32_t flags; /* 0 or STEPTAPE_LAUNCH_AFTER_POOL */
};

#define STEPTAPE_KV_ENTRY_BYTES 584
#define STEPTAPE_KV_ENTRY_DATA_BYTES 576
#define STEPTAPE_KV_ENTRY_SCALE_BYTES 8

STEPTAPE_API int
steptape_compress_norm_rope_store(const struct steptape_compress_norm_rope_store_args *args,
                                  void *stream);
STEPTAPE_API int
steptape_compress_norm_rope_store_ref(const struct steptape_compress_norm_rope_store_args *args);
STEPTAPE_API int steptape_compress_norm_rope_store_ref_rows(
    const struct steptape_compress_norm_rope_store_args *args, const int64_t *tokens, int64_t n);
STEPTAPE_API int
steptape_compress_norm_rope_store_cost(const struct steptape_compress_norm_rope_store_args *args,
                                       const struct steptape_token_counts *counts,
                                       struct steptape_cost *out);

/* The numbers of an entry: e4m3 as the kernels round it (nearest even, saturating at 448), bf16. */
STEPTAPE_API uint8_t steptape_e4m3_from_float(float value);
STEPTAPE_API float steptape_e4m3_to_float(uint8_t bits);
STEPTAPE_API uint16_t steptape_bf16_from_float(float value);
STEPTAPE_API float steptape_bf16_to_float(uint16_t bits);

/*
 * Decodes an entry into 512 floats.  page: first byte of its page.  A scale byte of 255 is NaN.
 */
STEPTAPE_API void steptape_kv_entry_decode(const uint8_t *page, int32_t kv_block_size,
                                           int32_t entry, float *out);

/* ---- compress_fused */

/* The launch may be scheduled while the one before it in the stream ends (programmatic dependent
 * launch); it waits for that one before it reads anything. */
#define STEPTAPE_LAUNCH_EARLY 2u

/* The launch right before this one in the stream writes states alone of what this one reads, as
 * save_partial_states does, and did not itself begin early: this one may be scheduled while that
 * one runs, reads all but the states at once and waits before it reads a state.  Never set it
 * otherwise. */
#define STEPTAPE_LAUNCH_AFTER_SAVE 4u

enum steptape_compress_format {
    STEPTAPE_COMPRESS_FP8_DS_MLA = 0, /* head_dim 512: as compress_norm_rope_store */
    /* head_dim 128, the indexer's key: page of n entries = n * 128 e4m3, then n fp32 scales;
     * scale = 2^ceil(log2(max(absmax, 1e-4) / 448)) (from the bits) over the 128, after RoPE and
     * rounding to bf16 */
    STEPTAPE_COMPRESS_INDEXER_FP8 = 1
};

/*
 * compress_pool and compress_norm_rope_store in one launch, nothing between them in memory.  Same
 * early-outs, same window, same numbers: with ratio 128 and data aligned to 16 bytes the default
 * gives the bits of the default variants of the two.  head_dim 128: mean over the 128, RoPE on the
 * last 64, no bf16 part.
 * With a list only the tokens list[0 .. min(*list_count, num_tokens)) are looked at (boundary_list
 * makes it; an index that is no token is passed over, a token is listed once).  The grid is then
 * at most the grid without a list and at most one wave of the device, and an empty list costs an
 * empty launch.  The grid is a function of sizes, of whether list is NULL, and of the device; a
 * _cost looks at list for that alone, and counts->entries is then the length of the list.
 */
struct steptape_compress_fused_args {
    const float *state_cache;
    const int64_t *positions;
    const int64_t *slot_mapping;
    const int64_t *kv_slot_mapping;
    const int32_t *token_to_req;
    const int32_t *block_table;
    const int32_t *list;       /* [num_tokens] or NULL */
    const int32_t *list_count; /* [1] on the device, with list */
    const void *weight;        /* [head_dim] of weight_dtype */
    const float *cos_sin_cache;
    uint8_t *kv_cache;
    int64_t state_page_stride; /* elements */
    int64_t state_row_stride;
    int64_t block_table_stride;
    int64_t cos_sin_stride;
    int64_t kv_page_stride_bytes;
    int64_t num_tokens;
    int32_t head_dim; /* 512, or 128 (indexer) */
    int32_t rope_dim; /* 64 */
    int32_t ratio;    /* 4 with overlap, 128 without */
    int32_t overlap;
    int32_t block_size;    /* rows of a state page */
    int32_t kv_block_size; /* entries of a page */
    int32_t weight_dtype;
    int32_t format; /* enum steptape_compress_format */
    float eps;
    uint32_t variant;
    uint32_t flags; /* 0, STEPTAPE_LAUNCH_EARLY or STEPTAPE_LAUNCH_AFTER_SAVE */
};

STEPTAPE_OPERATOR(compress_fused)

#ifdef __cplusplus
}
#endif

#endif
