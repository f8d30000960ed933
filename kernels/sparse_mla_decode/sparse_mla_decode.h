/* SPDX-License-Identifier: Apache-2.0 */
/*
 * sparse_mla_decode, private side: variants, launch geometry, the plan.  The contract is in
 * steptape/kernels_attention.h.
 *
 * Three launches: the plan cuts every token's columns, in tiles of 64 (each scope has its own last
 * tile), into pieces for `parts` blocks (times head groups of 64); a split block walks the pieces
 * of its part.  A token that is one piece is finished there; the pieces of others go to scratch,
 * and combine adds them up.  A piece that does not begin its token is always the first of its
 * part, and a token's pieces lie in consecutive parts: so a piece's slot of scratch is 2 * part
 * when it is the part's first, 2 * part + 1 otherwise, and nothing has to be counted.
 */
#ifndef ST_KERNELS_SPARSE_MLA_DECODE_H
#define ST_KERNELS_SPARSE_MLA_DECODE_H

#include <stddef.h>

#include "kernels/registry.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { ST_DECODE_VARIANTS = 4, ST_DECODE_DEFAULT = 4, ST_DECODE_PLAN_VARIANTS = 2 };

extern const struct st_kernel_variant st_sparse_mla_decode_variants[ST_DECODE_VARIANTS];

enum {
    ST_DECODE_TILE = 64,        /* columns */
    ST_DECODE_GROUP_HEADS = 64, /* heads of a block */
    ST_DECODE_V_DIM = 512,
    ST_DECODE_OVERHEAD = 3, /* what beginning and ending a piece costs, in tiles */
    ST_DECODE_MAX_PARTS = 8192,
    ST_DECODE_FEW_TOKENS = 32,        /* combine: up to here a block has a head, then 8 */
    ST_DECODE_PLAN_MAX_TOKENS = 24000 /* whose prefix sums fit into a block's shared memory */
};

/* ---- the plan: part[parts], then token[tokens] */

/* Tiles first_tile of first_token up to, but without, end_tile of last_token. */
struct st_decode_part {
    int32_t first_token;
    int32_t first_tile;
    int32_t last_token; /* < first_token: no work */
    int32_t end_tile;
};

struct st_decode_token {
    int32_t first_slot; /* of its first piece; piece k > 0: 2 * (first_slot / 2 + k) */
    int32_t pieces;     /* 0: no columns */
};

/* A slot of scratch: heads * 512 sums, not divided; after all sums heads pairs (max, sum), the max
 * of scores * sm_scale in units of log2(e). */

/* ---- geometry */

struct st_decode_launch {
    uint32_t grid[2];
    uint32_t threads;
    uint32_t smem_bytes;
};

struct st_decode_geometry {
    unsigned int variant; /* resolved, 1..n */
    unsigned int plan_variant;
    uint32_t phases; /* resolved: never 0 */
    int32_t parts;
    int32_t groups; /* of 64 heads */
    struct st_decode_launch plan, split, combine;
};

/* 1 when there is work, 0 when there is none, or a negative status; looks at sizes only. */
int st_sparse_mla_decode_check(const struct steptape_sparse_mla_decode_args *args);
/* The same, and the pointers that its phases need are there. */
int st_sparse_mla_decode_ready(const struct steptape_sparse_mla_decode_args *args);

/* Args are checked.  STEPTAPE_ERR_UNSUPPORTED when the variant does not serve them. */
int st_sparse_mla_decode_geometry(const struct steptape_sparse_mla_decode_args *args,
                                  struct st_decode_geometry *out);

/* The device side of the launches: args are ready. */
int st_sparse_mla_decode_cuda(const struct steptape_sparse_mla_decode_args *args,
                              const struct st_decode_geometry *geometry, void *stream);

/* The plan that the plan kernel of that variant makes, byte for byte. */
int st_sparse_mla_decode_plan_ref(const struct steptape_sparse_mla_decode_args *args,
                                  const struct st_decode_geometry *geometry,
                                  struct st_decode_part *parts, struct st_decode_token *tokens);

/* Columns that a scope lists for token t. */
static inline int32_t st_decode_columns(const struct steptape_decode_scope *scope, int64_t t) {
    if (scope->topk == 0 || scope->length == NULL)
        return scope->topk;
    int32_t length = scope->length[t];
    return length < 0 ? 0 : length < scope->topk ? length : scope->topk;
}

#ifdef __cplusplus
}
#endif
#endif
