/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Operators that make index lists and metadata.  Included by steptape/kernels.h, whose rules hold
 * here too.
 */
#ifndef STEPTAPE_KERNELS_INDICES_H
#define STEPTAPE_KERNELS_INDICES_H

#include "steptape/kernels_base.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- fill */

/*
 * out[r * stride + c] = value for r < rows, c < columns; 32-bit words.  Nothing else is written.
 * Rows of _ref_rows are rows.
 */
struct steptape_fill_args {
    uint32_t *out;
    int64_t rows;
    int64_t columns;
    int64_t stride; /* words between two rows, >= columns */
    uint32_t value;
    uint32_t variant;
};

/* ---- swa_indices */

/*
 * The sliding window of each token as slots of the SWA cache.  For token t with
 * slot_mapping[t] >= 0, r = token_to_req[t], p = positions[t], s = max(p - window + 1, 0) and
 * n = max(p - s + 1, 0):
 *
 *     indices[t][j] = block_table[r][(s + j) / block_size] * block_size + (s + j) % block_size
 *                     for j < n, -1 for n <= j < window
 *     lens[t] = n
 *
 * A token with a negative slot gets lens[t] = 0 and its row is untouched.  Block ids below 0 count
 * as 0.  Cost: counts->mapped; counts->entries is the sum of lens.
 */
struct steptape_swa_indices_args {
    int32_t *indices; /* [num_tokens, indices_stride] */
    int32_t *lens;    /* [num_tokens] */
    const int64_t *positions;
    const int64_t *slot_mapping;
    const int32_t *token_to_req;
    const int32_t *block_table; /* [reqs, block_table_stride] */
    int64_t indices_stride;     /* >= window */
    int64_t block_table_stride;
    int64_t num_tokens;
    int32_t window;     /* 128 */
    int32_t block_size; /* 64 */
    uint32_t variant;
};

/* ---- gather_lens */

/*
 * out[r] = query_len(r) + min(seq_lens[r] - query_len(r), window - 1) with
 * query_len(r) = query_start_loc[r + 1] - query_start_loc[r], one launch for all requests.
 * Rows of _ref_rows are requests.
 */
struct steptape_gather_lens_args {
    int32_t *out;                   /* [num_reqs] */
    const int32_t *query_start_loc; /* [num_reqs + 1] */
    const int32_t *seq_lens;        /* [num_reqs] */
    int32_t num_reqs;
    int32_t window; /* 128 */
    uint32_t variant;
};

/* ---- prefill chunk planning (host) */

/* One chunk of prefill requests [first_req, first_req + req_count): N rows of compressed entries
 * and then the window rows of each request, M = N + the largest gather length, in a workspace
 * [req_count, M, 512]. */
struct steptape_prefill_chunk {
    int32_t first_req, req_count;
    int32_t n, m;
};

/*
 * Area budget A = 4 * ((ratio > 1 ? ceil(max_model_len / ratio) : 0) + window +
 * max_num_batched_tokens); a chunk grows while (count + 1) * (largest compressed length + largest
 * gather length) <= A, and holds at least one request.  compressed length = ratio > 1 ? seq_len /
 * ratio : 0; gather length as gather_lens.  (vLLM #45061.)  fixed_size > 0: groups of so many
 * requests with the sizes of before that change, N = ceil(max_model_len / ratio) (0 without
 * compression) and M = N + window + max_num_batched_tokens.
 * seq_lens, query_lens: [num_reqs], host.  out: room for num_reqs chunks.  Returns the number of
 * chunks, or a negative status.
 */
STEPTAPE_API int32_t steptape_plan_prefill_chunks(
    const int32_t *seq_lens, const int32_t *query_lens, int32_t num_reqs, int32_t ratio,
    int32_t window, int64_t max_model_len, int64_t max_num_batched_tokens, int32_t fixed_size,
    struct steptape_prefill_chunk *out);

/* ---- c128a_topk_metadata */

/* Columns that a buffer for max_model_len needs: round_up(ceil(max_model_len / ratio), 128). */
STEPTAPE_API int32_t steptape_c128a_capacity(int64_t max_model_len, int32_t ratio);
/* The adaptive width: min(max(next_pow2(max(max_seq_len / ratio, 1)), 128), capacity). */
STEPTAPE_API int32_t steptape_c128a_width(int64_t max_seq_len, int32_t ratio, int32_t capacity);

/*
 * The lists of a layer that attends to every compressed entry.  For token t, r = token_to_req[t],
 * p = positions[t], n = clamp((p + 1) / ratio, 0, width) and c in 0 .. width:
 *
 *     t < num_decode_tokens:
 *         decode[t][c] = c < n ? max(block_table[r][c / block_size], 0) * block_size
 *                                + c % block_size : -1
 *         decode_lens[t] = slot_mapping[t] >= 0 ? n : 0    (the row is written all the same)
 *     else, with i = t - num_decode_tokens:
 *         prefill[i][c] = c < n ? c : -1
 *
 * Nothing past column width is written.  The three views are a choice of width and stride:
 * capacity (both the capacity), packed (both the adaptive width) and strided (adaptive width,
 * stride = capacity).  Cost: counts->entries is the sum of n over decode tokens.
 */
struct steptape_c128a_topk_metadata_args {
    int32_t *decode;      /* [num_decode_tokens, decode_stride] */
    int32_t *decode_lens; /* [num_decode_tokens] */
    int32_t *prefill;     /* [num_tokens - num_decode_tokens, prefill_stride] */
    const int64_t *positions;
    const int64_t *slot_mapping;
    const int32_t *token_to_req;
    const int32_t *block_table;
    int64_t decode_stride; /* >= width */
    int64_t prefill_stride;
    int64_t block_table_stride;
    int64_t num_tokens;
    int64_t num_decode_tokens; /* decodes come first */
    int32_t width;             /* columns written; a multiple of 128 */
    int32_t ratio;             /* 128 */
    int32_t block_size;        /* stored entries of a page: 2 */
    uint32_t variant;
};

/* ---- combine_topk_swa_indices */

/* What a row holds past its length. */
enum steptape_combine_tail {
    STEPTAPE_COMBINE_TAIL_KEEP = 0, /* what was there */
    STEPTAPE_COMBINE_TAIL_128 = 1,  /* -1 up to the next multiple of 128 (or width): where
                                       sparse_mla_prefill stops */
    STEPTAPE_COMBINE_TAIL_WIDTH = 2 /* -1 up to width */
};

/*
 * Rows of workspace indices for sparse prefill of one chunk of requests.  query_start_loc is global
 * and rebased by its first element; token t of the chunk belongs to request b of the chunk, is its
 * query number i and has p = seq_lens[b] - query_len(b) + i:
 *
 *     k = topk > 0 ? min((p + 1) / ratio, topk) : 0,  w = min(p + 1, window)
 *     indices[t][c] = topk_indices[t][c] + m * b                                    c < k
 *     indices[t][k + j] = m * b + n + (p - w + 1 + j) - (seq_lens[b] - gather_lens[b])  j < w
 *     lens[t] = k + w
 *
 * then the tail.  Sums wrap as int32_t.  k and w are at least 0; a token that belongs to no request
 * (num_tokens is more than the requests have) is left alone.  Cost: counts->entries is the sum of
 * lens.  What is copied of topk_indices is then taken to be entries - window * num_tokens, and the
 * tail of 128 to be that of rows of the average length.
 */
struct steptape_combine_topk_swa_indices_args {
    int32_t *indices;               /* [num_tokens, indices_stride] */
    int32_t *lens;                  /* [num_tokens] */
    const int32_t *topk_indices;    /* [num_tokens, topk_stride]; may be NULL when topk == 0 */
    const int32_t *query_start_loc; /* [num_reqs + 1] */
    const int32_t *seq_lens;        /* [num_reqs] */
    const int32_t *gather_lens;     /* [num_reqs] */
    int64_t indices_stride;         /* >= width */
    int64_t topk_stride;
    int64_t num_tokens; /* of the chunk */
    int32_t num_reqs;
    int32_t topk;   /* columns of topk_indices */
    int32_t ratio;  /* 1, 4, 128 */
    int32_t window; /* 128; 0: none, as V3.2 */
    int32_t m, n;   /* see struct steptape_prefill_chunk */
    int32_t width;  /* columns of a row, a multiple of 128: round_up(topk + window, 128) */
    int32_t tail;   /* enum steptape_combine_tail */
    uint32_t variant;
};

/* ---- global_topk_indices */

/*
 * Request-local entries to slots, for decode tokens.  For token t, r = token_to_req[t]:
 *
 *     out[t][c] = e < 0 ? -1 : max(block_table[r][e / block_size], 0) * block_size + e % block_size
 *                 with e = topk_indices[t][c], c < k
 *     lens[t] = slot_mapping[t] >= 0 ? number of e >= 0 in the row : 0
 *
 * Cost: counts->entries is the number of e >= 0 in all rows.
 */
struct steptape_global_topk_indices_args {
    int32_t *out;                /* [num_tokens, out_stride] */
    int32_t *lens;               /* [num_tokens] */
    const int32_t *topk_indices; /* [num_tokens, topk_stride] */
    const int64_t *slot_mapping;
    const int32_t *token_to_req;
    const int32_t *block_table;
    int64_t out_stride;
    int64_t topk_stride;
    int64_t block_table_stride;
    int64_t num_tokens;
    int32_t k;
    int32_t block_size; /* stored entries of a page: 64 */
    uint32_t variant;
};

/* ---- boundary_list */

/*
 * The tokens of a step that close a group, once a step: list[0 .. *count) = ascending t with
 * slot_mapping[t] >= 0, (positions[t] + 1) % ratio == 0 and kv_slot_mapping[t] >= 0.  *count is
 * always written, with num_tokens == 0 too (the exception to rule 3); list past it is not.
 * compress_fused walks it.  _ref_rows writes *count and the places of the listed tokens.
 */
struct steptape_boundary_list_args {
    int32_t *list;  /* [num_tokens] */
    int32_t *count; /* [1] */
    const int64_t *positions;
    const int64_t *slot_mapping;
    const int64_t *kv_slot_mapping;
    int64_t num_tokens;
    int32_t ratio;
    uint32_t variant;
};

STEPTAPE_OPERATOR(fill)
STEPTAPE_OPERATOR(swa_indices)
STEPTAPE_OPERATOR(gather_lens)
STEPTAPE_OPERATOR(c128a_topk_metadata)
STEPTAPE_OPERATOR(combine_topk_swa_indices)
STEPTAPE_OPERATOR(global_topk_indices)
STEPTAPE_OPERATOR(boundary_list)

#ifdef __cplusplus
}
#endif
#endif
