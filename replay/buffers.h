/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Every array that a replayed launch reads or writes, with its size: one table, the same for all
 * backends.  A backend allocates what the table says and hands out addresses; which launch gets
 * which address is replay/bind.h's business.
 *
 *     struct st_buffers buffers;
 *     st_buffers_make(&model, &limits, layer_buffers, &buffers);
 *     for each id: allocate st_buffer_copies(&buffers, id, sets) * buffers.bytes[id]
 *
 * Invariants
 *  1. Sizes and strides hold for the whole replay and are those of max_model_len wherever an engine
 *     captures graphs with them (block tables, C128A lists, logits): an address or a stride that a
 *     graph captured stays right for every later step.
 *  2. Buffers of scope INPUT and GENERATED are the same for all policies and no launch of a plan
 *     writes them.
 */
#ifndef ST_REPLAY_BUFFERS_H
#define ST_REPLAY_BUFFERS_H

#include <stdint.h>

#include "replay/model.h"

enum st_scope {
    ST_SCOPE_INPUT,     /* one: a step's metadata, from the host */
    ST_SCOPE_GENERATED, /* one a layer buffer: from the generator; read only */
    ST_SCOPE_SHARED,    /* one: from the generator, the same for all layers; read only */
    ST_SCOPE_SET,       /* one a policy: made once a step, or scratch that layers take turns in */
    ST_SCOPE_CACHE      /* one a policy and layer buffer: what outlives a step */
};

/* name, scope.  T = padded tokens, R = padded requests. */
#define ST_BUFFER_TABLE(X)                                                                         \
    X(POSITION, INPUT)        /* int64 [T] */                                                      \
    X(TOKEN_TO_REQ, INPUT)    /* int32 [T] */                                                      \
    X(REQUEST_ID, INPUT)      /* int64 [R], key of the generator */                                \
    X(QUERY_START_LOC, INPUT) /* int32 [R + 1] */                                                  \
    X(SEQ_LEN, INPUT)         /* int32 [R] */                                                      \
    X(LEN_C4, INPUT)          /* int32 [T]: (position + 1) / 4, 0 for padding */                   \
    X(LEN_C128, INPUT)        /* int32 [T]: (position + 1) / 128 */                                \
    X(LEN_DSA, INPUT)         /* int32 [T]: position + 1 */                                        \
    X(LEN_PADDED, INPUT)    /* int32 [topk_rows]: of decode tokens, then 0; topk-rows not flat */  \
    X(ROW_START, INPUT)     /* int32 [T]: first logits column of a prefill token's request */      \
    X(ROW_END, INPUT)       /* int32 [T]: and one past its last */                                 \
    X(SLOT, INPUT)          /* int64 [ST_CACHE_COUNT][T]: where each token is stored, -1 */        \
    X(EXPECTED_SLOT, INPUT) /* int64 [ST_CACHE_COUNT][T]: entry that a token must close, -1 */     \
    X(TABLE_SWA0, INPUT)    /* int32 [R][table_stride] */                                          \
    X(TABLE_SWA1, INPUT)                                                                           \
    X(TABLE_SWA2, INPUT)                                                                           \
    X(TABLE_KV_C4, INPUT)                                                                          \
    X(TABLE_KV_C128, INPUT)                                                                        \
    X(TABLE_KV_INDEXER, INPUT)                                                                     \
    X(TABLE_STATE_C4, INPUT)                                                                       \
    X(TABLE_STATE_C128, INPUT)                                                                     \
    X(TABLE_STATE_INDEXER, INPUT)                                                                  \
    X(TABLE_DSA, INPUT)                                                                            \
    X(KV_SCORE_C4, GENERATED)      /* fp32 [T][2048] */                                            \
    X(KV_SCORE_C128, GENERATED)    /* fp32 [T][1024] */                                            \
    X(KV_SCORE_INDEXER, GENERATED) /* fp32 [T][512] */                                             \
    X(APE_C4, GENERATED)           /* fp32 [4][1024] */                                            \
    X(APE_C128, GENERATED)         /* fp32 [128][512] */                                           \
    X(APE_INDEXER, GENERATED)      /* fp32 [4][256] */                                             \
    X(WEIGHT_C4, GENERATED)        /* fp32 [512] */                                                \
    X(WEIGHT_C128, GENERATED)                                                                      \
    X(WEIGHT_INDEXER, GENERATED) /* fp32 [128] */                                                  \
    X(CACHE_SWA0, GENERATED)     /* pages */                                                       \
    X(CACHE_SWA1, GENERATED)                                                                       \
    X(CACHE_SWA2, GENERATED)                                                                       \
    X(CACHE_DSA, GENERATED)                                                                        \
    X(COS_SIN, SHARED) /* fp32 [max_seq_len][64]; rows of multiples of 4 */                        \
    X(LOGITS, SHARED)  /* fp32 [logits_rows][logits_stride] */                                     \
    X(Q, SHARED)       /* bf16 [T][heads][head_dim] */                                             \
    X(SINK, SHARED)    /* fp32 [heads] */                                                          \
    X(KV_SLOT_C4, SET) /* int64 [slot_count] */                                                    \
    X(KV_SLOT_C128, SET)                                                                           \
    X(KV_SLOT_INDEXER, SET)                                                                        \
    X(SWA_INDICES, SET)    /* int32 [ST_MAX_SWA_GROUPS][T][window] */                              \
    X(SWA_LENS, SET)       /* int32 [ST_MAX_SWA_GROUPS][T] */                                      \
    X(GATHER_LENS, SET)    /* int32 [R] */                                                         \
    X(C128A_DECODE, SET)   /* int32 [T][c128a_capacity] */                                         \
    X(C128A_LENS, SET)     /* int32 [T] */                                                         \
    X(C128A_PREFILL, SET)  /* int32 [T][c128a_capacity] */                                         \
    X(BOUNDARY_LIST, SET)  /* int32 [T] */                                                         \
    X(BOUNDARY_COUNT, SET) /* int32 [1] */                                                         \
    X(POOLED, SET)         /* fp32 [T][512] */                                                     \
    X(TOPK, SET)           /* int32 [max(T, topk_rows)][index_topk] */                             \
    X(TOPK_PADDED, SET)    /* int32 [topk_rows][index_topk]: of decodes, topk-rows=padded */       \
    X(TOPK_SCRATCH, SET)                                                                           \
    X(GLOBAL_TOPK, SET) /* int32 [T][index_topk] */                                                \
    X(GLOBAL_LENS, SET) /* int32 [T] */                                                            \
    X(DECODE_PLAN, SET) /* [ST_LAYER_KINDS][plan_bytes] */                                         \
    X(DECODE_SCRATCH, SET)                                                                         \
    X(KV_WORKSPACE, SET)  /* bf16 [workspace_rows][head_dim]; reserved once */                     \
    X(COMBINED, SET)      /* int32 [T][combined_stride]; reserved once */                          \
    X(COMBINED_LENS, SET) /* int32 [T] */                                                          \
    X(OUT, SET)           /* bf16 [T][heads][512] */                                               \
    X(MAX_LOGITS, SET)    /* fp32 [T][heads] */                                                    \
    X(LSE, SET)           /* fp32 [T][heads] */                                                    \
    X(CACHE_KV_C4, CACHE)                                                                          \
    X(CACHE_KV_C128, CACHE)                                                                        \
    X(CACHE_KV_INDEXER, CACHE)                                                                     \
    X(CACHE_STATE_C4, CACHE)                                                                       \
    X(CACHE_STATE_C128, CACHE)                                                                     \
    X(CACHE_STATE_INDEXER, CACHE)

#define ST_BUFFER_ENUM(name, scope) ST_BUF_##name,
enum st_buffer_id { ST_BUFFER_TABLE(ST_BUFFER_ENUM) ST_BUF_COUNT };
#undef ST_BUFFER_ENUM

const char *st_buffer_name(enum st_buffer_id id);
enum st_scope st_buffer_scope(enum st_buffer_id id);
enum st_buffer_id st_buffer_of_table(enum st_cache_id cache);
enum st_buffer_id st_buffer_of_cache(enum st_cache_id cache);

/* Largest sizes of a replay, from a first look at its steps. */
struct st_limits {
    int32_t max_tokens, max_requests; /* padded */
    int64_t max_seq_len;              /* longest context, <= model->max_model_len */
    int64_t max_logits;               /* fp32 that one step needs, st_plan_logits() */
    bool uses_full;                   /* some step runs in FULL: strides of max_model_len */
    int64_t max_topk_rows;            /* st_step_padded_rows(); 0: every policy is flat */
};

struct st_buffers {
    int64_t bytes[ST_BUF_COUNT]; /* of one copy; 0: the model has no use for it */
    int32_t layer_buffers;       /* distinct layers; layer n of a kind uses n % layer_buffers */
    int32_t max_tokens, max_requests;
    int64_t slot_count;                   /* of KV_SLOT_*: max_num_batched_tokens or more */
    int64_t table_stride[ST_CACHE_COUNT]; /* columns */
    int32_t c128a_capacity;
    int64_t combined_stride; /* round_up(largest top-k + window, 128) */
    int64_t logits_stride;   /* of decode rows: st_logits_stride() */
    int64_t workspace_rows;
    int64_t plan_bytes;
};

/* Scores of a decode row: entries of max_model_len, rows on 16 bytes; 0: no layer selects. */
int64_t st_logits_stride(const struct st_model *model);
void st_buffers_make(const struct st_model *model, const struct st_limits *limits,
                     int32_t layer_buffers, struct st_buffers *buffers);
/* How many copies of a buffer `sets` cache sets need. */
int64_t st_buffer_copies(const struct st_buffers *buffers, enum st_buffer_id id, int32_t sets);
/* Which of them (set, layer buffer) uses. */
int64_t st_buffer_copy(const struct st_buffers *buffers, enum st_buffer_id id, int32_t set,
                       int32_t layer_buffer);

/* Addresses of one (set, layer buffer): host or device. */
struct st_frame {
    void *at[ST_BUF_COUNT];
};

#endif
