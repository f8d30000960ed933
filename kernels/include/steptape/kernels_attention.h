/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Sparse MLA attention and the gather before it.  Included by steptape/kernels.h, whose rules hold
 * here too.  bf16 tensors are uint16_t.
 */
#ifndef STEPTAPE_KERNELS_ATTENTION_H
#define STEPTAPE_KERNELS_ATTENTION_H

#include "steptape/kernels_base.h"

#ifdef __cplusplus
extern "C" {
#endif

enum steptape_kv_format {
    /* 584 bytes an entry, split by page: n * 576 of data (448 e4m3, 64 bf16), then n * 8 of scales
     * (7 UE8M0 and a zero); 512 values, all of them key and value */
    STEPTAPE_KV_FP8_DS_MLA = 0,
    /* 656 bytes an entry, whole: 512 e4m3, 4 fp32 scales (of 128 each), 64 bf16; 576 values, the
     * first 512 are the value */
    STEPTAPE_KV_FP8_V32 = 1
};
#define STEPTAPE_KV_V32_ENTRY_BYTES 656

/* ---- dequantize_and_gather */

/*
 * Entries of paged fp8 caches as bf16 rows.  For request b, L = seq_lens[b] / ratio entries,
 * g = gather_lens ? gather_lens[b] : L, i < g, e = L - g + i:
 *     out[b * out_req_stride + (offset + i) * out_row_stride + d] = bf16(value d of entry e)
 *     entry e lies in page max(block_table[b][e / block_size], 0) at e % block_size
 * A value is e4m3 * scale, one fp32 product, rounded to bf16; the bf16 part is copied.  A UE8M0
 * byte is 2^(byte - 127), 255 is NaN.  Rows i >= max_gather and rows with e < 0 (g > L) are not
 * made; other rows are untouched.  A row's index in _ref_rows is b * max_gather + i.
 */
struct steptape_dequantize_and_gather_args {
    uint16_t *out;
    const uint8_t *cache;
    const int32_t *seq_lens;    /* [num_reqs] in tokens */
    const int32_t *gather_lens; /* [num_reqs] in entries, or NULL */
    const int32_t *block_table; /* [num_reqs, block_table_stride] */
    int64_t out_req_stride;     /* elements */
    int64_t out_row_stride;     /* elements, >= 512 or 576 */
    int64_t cache_page_stride_bytes;
    int64_t block_table_stride;
    int32_t offset;     /* rows */
    int32_t max_gather; /* no g of this call is larger (known on the host: sizes the grid) */
    int32_t num_reqs;
    int32_t ratio;
    int32_t block_size; /* entries of a page */
    int32_t format;     /* enum steptape_kv_format */
    uint32_t variant;
};

/* ---- sparse_mla_prefill */

/* Index rows are read in tiles of so many columns. */
#define STEPTAPE_MLA_TILE 128

/*
 * Attention of each query row over the listed rows of kv.  Row t, head h; a column c is valid when
 * c < length, 0 <= indices[t][c] < s_kv; length = topk_length ? min(topk_length[t], topk) : topk:
 *     P_c = sm_scale * q[t][h] . kv[indices[t][c]]      (d_qk products)
 *     max_logits[t][h] = max P, lse[t][h] = ln sum exp P   (natural log)
 *     lse' = attn_sink ? ln(exp(lse) + exp(attn_sink[h])) : lse
 *     out[t][h] = bf16(sum exp(P_c - lse') * kv[indices[t][c]][0 .. d_v))
 * No valid column: out = 0, max_logits = -inf, lse = +inf.  A sink of -inf has no effect, +inf
 * gives zeros; a sink never changes lse and max_logits.
 * Columns at or past the length have weight 0, but the tile in which the length ends is read whole:
 * in columns [length, round_up(length, 128)) an index that is valid otherwise contributes 0 times
 * its row, so a NaN there makes the output NaN (FlashMLA's documented hazard; that is what a caller
 * must avoid, and what a replay must show).  Beyond that multiple of 128 nothing is read.
 * Tensor cores, bf16 with fp32 accumulation; the same bits from run to run.
 */
struct steptape_sparse_mla_prefill_args {
    const uint16_t *q;          /* [s_q, heads, d_qk] */
    const uint16_t *kv;         /* [s_kv, d_qk] */
    const int32_t *indices;     /* [s_q, indices_stride] */
    const int32_t *topk_length; /* [s_q] or NULL */
    const float *attn_sink;     /* [heads] or NULL */
    uint16_t *out;              /* [s_q, heads, d_v] contiguous */
    float *max_logits;          /* [s_q, heads] contiguous, or NULL */
    float *lse;                 /* [s_q, heads] contiguous, or NULL */
    int64_t q_stride;           /* elements between two tokens */
    int64_t q_head_stride;
    int64_t kv_stride; /* elements between two rows */
    int64_t indices_stride;
    int64_t s_q, s_kv;
    int32_t topk;  /* columns, a multiple of 128 */
    int32_t heads; /* 64 or 128 */
    int32_t d_qk;  /* 512 or 576 */
    int32_t d_v;   /* 512 */
    float sm_scale;
    uint32_t variant;
};

/* ---- sparse_mla_decode */

/* Which launches of the operator a call makes; 0: all three, in this order. */
#define STEPTAPE_DECODE_PLAN 1u    /* splits the lists over the parts: depends on lengths alone */
#define STEPTAPE_DECODE_SPLIT 2u   /* partial attention */
#define STEPTAPE_DECODE_COMBINE 4u /* parts to results */

/* One scope of pages. */
struct steptape_decode_scope {
    const uint8_t *cache;   /* pages of entries */
    const int32_t *indices; /* [tokens, indices_stride]: page * page_size + entry, -1 invalid */
    const int32_t *length;  /* [tokens] or NULL: topk */
    int64_t page_stride_bytes;
    int64_t indices_stride;
    int32_t page_size; /* entries of a page */
    int32_t topk;      /* columns, a multiple of 64; 0: no scope */
};

/*
 * Decode attention of each token over fp8 pages, two scopes in one softmax.  A column c of a scope
 * is valid when c < min(length, topk) and its index is >= 0.  Entries are dequantised to bf16 first
 * (e4m3 * scale).  With P_c = sm_scale * q . k_c over all valid columns of both scopes:
 *     lse[t][h] = ln sum exp P   (natural log)
 *     out[t][h] = bf16(sum exp(P_c - lse) * v_c / (1 + exp(attn_sink[h] - lse)))
 * Without a valid column, or when the sum is 0, out = 0 and lse = +inf.  Columns at or past the
 * length are not read, nor entries of other columns.
 * The plan: every token's columns, in tiles of 64, are cut into parts of about equal work for
 * num_parts groups of blocks (one block each 64 heads); scratch holds partial results of tokens
 * that are cut.  A plan is valid as long as lengths, topk, tokens and num_parts are equal.  Grids
 * depend on tokens, heads, num_parts and the device alone, so a captured graph may be replayed with
 * other lengths.  The same bits from run to run.
 * plan, scratch and out are aligned to 16 bytes.  The references need neither plan nor scratch:
 * with SPLIT or COMBINE they leave the results, with PLAN (all rows) and a plan that is not NULL
 * the plan.
 */
struct steptape_sparse_mla_decode_args {
    const uint16_t *q; /* [tokens, heads, d_qk] */
    struct steptape_decode_scope scope[2];
    const float *attn_sink; /* [heads] or NULL */
    uint16_t *out;          /* [tokens, heads, 512] contiguous */
    float *lse;             /* [tokens, heads] contiguous, or NULL */
    void *plan;             /* steptape_sparse_mla_decode_plan_bytes() */
    void *scratch;          /* steptape_sparse_mla_decode_scratch_bytes() */
    int64_t q_stride;       /* elements between two tokens */
    int64_t q_head_stride;
    int64_t tokens;
    int32_t heads;     /* 64 or 128 */
    int32_t d_qk;      /* 512 or 576 */
    int32_t format;    /* enum steptape_kv_format */
    int32_t num_parts; /* 0: multiprocessors / (heads / 64) (132 of them without a device) */
    float sm_scale;
    uint32_t phases;       /* STEPTAPE_DECODE_* */
    uint32_t plan_variant; /* 0: the fastest; 1: one thread, as upstream; 2: one block */
    uint32_t variant;
};

/* Sizes alone; never less than what fewer tokens need, so one buffer of the largest serves all. */
STEPTAPE_API uint64_t
steptape_sparse_mla_decode_plan_bytes(const struct steptape_sparse_mla_decode_args *args);
STEPTAPE_API uint64_t
steptape_sparse_mla_decode_scratch_bytes(const struct steptape_sparse_mla_decode_args *args);

/* counts->entries: rows gathered or attended to, all tokens (or requests) together. */
STEPTAPE_OPERATOR(dequantize_and_gather)
STEPTAPE_OPERATOR(sparse_mla_prefill)
STEPTAPE_OPERATOR(sparse_mla_decode)

#ifdef __cplusplus
}
#endif
#endif
