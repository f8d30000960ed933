/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The plan: the ordered launches of one step under one policy, a pure function of (model, step,
 * policy, graph mode).  Backends execute a plan; they decide nothing.
 *
 * Invariants
 *  1. Launches are in stream order: metadata first (layer -1, eager in every mode), then layer by
 *     layer.
 *  2. skipped = launches that `baseline` makes in this mode and this policy does not.
 *  3. could_skip = launches made although the policy's rule allows skipping them: a FULL graph
 *     holds them, or the engine had no starts on the CPU.
 *  4. A step without requests has no launch.
 *  5. In FULL every token is a row of decode attention, whatever its request's query length: one
 *     graph a capture size serves them all, as an engine captures it.
 *  6. Observations (op ST_OP_OBSERVE) are made for the pass `verify` alone: they stand where a
 *     consumer would read, follow from the step and never from the policy, and count as no launch.
 *  7. FULL: what a launch of the graph gets beside device data (addresses, strides, widths, grid)
 *     depends on the capture size, the model and the policy alone, never on the step.
 */
#ifndef ST_REPLAY_PLAN_H
#define ST_REPLAY_PLAN_H

#include <stdbool.h>
#include <stdint.h>

#include "replay/model.h"
#include "replay/policy.h"
#include "replay/predicate.h"
#include "steptape/kernels.h"
#include "traces/base/error.h"
#include "traces/format/step.h"

/* Order of the columns in every table; names in st_operator_name(). */
enum st_operator {
    ST_OP_COMPRESSED_SLOT_MAPPING,
    ST_OP_SWA_INDICES,
    ST_OP_GATHER_LENS,
    ST_OP_C128A_TOPK_METADATA,
    ST_OP_BOUNDARY_LIST,
    ST_OP_GRAPH_CONDITION, /* writes the condition of an IF/ELSE node; the cuda backend's own */
    ST_OP_SAVE_PARTIAL_STATES,
    ST_OP_COMPRESS_POOL,
    ST_OP_COMPRESS_NORM_ROPE_STORE,
    ST_OP_COMPRESS_FUSED,
    ST_OP_FILL,
    ST_OP_TOPK_PER_ROW,
    ST_OP_GLOBAL_TOPK_INDICES,
    ST_OP_SPARSE_MLA_DECODE,
    ST_OP_DEQUANTIZE_AND_GATHER,
    ST_OP_COMBINE_TOPK_SWA_INDICES,
    ST_OP_SPARSE_MLA_PREFILL,
    ST_OP_COUNT,
    ST_OP_OBSERVE = ST_OP_COUNT
};
const char *st_operator_name(enum st_operator op);
/* -1: no such operator. */
int st_operator_find(const char *name);
/* ops_mask: a bit per operator (--ops), 0: all. */
static inline bool st_operator_wanted(unsigned ops_mask, enum st_operator op) {
    return ops_mask == 0 || (ops_mask >> op & 1u);
}

/* What the user asked for. */
enum st_mode_request {
    ST_MODE_FULL_AND_PIECEWISE,
    ST_MODE_TAPE,
    ST_MODE_EAGER,
    ST_MODE_PIECEWISE,
    ST_MODE_FULL,
    ST_MODE_COUNT
};

/* Totals over a range of tokens: what launches work on. */
struct st_work {
    int64_t tokens;
    int64_t swa;      /* sum of min(position + 1, window) */
    int64_t c4, c128; /* sum of (position + 1) / ratio */
    int64_t c4_topk;  /* sum of min((position + 1) / 4, index_topk) */
    int64_t dsa;      /* sum of position + 1 */
    int64_t dsa_topk; /* sum of min(position + 1, index_topk) */
};

const char *st_mode_request_name(enum st_mode_request mode); /* as --graph-mode takes it */
/* -1: no such mode. */
int st_mode_request_find(const char *name);

/* What one step runs as, and why when that is not what was asked. */
struct st_step_shape {
    enum st_graph_mode mode; /* NONE (eager), PIECEWISE or FULL */
    bool above_largest;      /* asked for a graph, larger than the largest capture size: eager */
    bool mode_unknown;       /* the tape does not know the mode: eager */
    int32_t request_count, token_count;
    int32_t padded_request_count,
        padded_token_count; /* of layer launches; FULL: the capture size */
    int32_t decode_request_count, decode_token_count; /* leading rows of decode attention; FULL: all
                                                         (padded_token_count) */
    int32_t decode_next_n;      /* most tokens of a request that decodes, 0: none does */
    int32_t max_seq_len;        /* of the batch */
    enum st_boundary boundary;  /* what the engine's predicate says (c128) */
    bool boundary_true;         /* what the tape says, known in every step */
    int32_t boundary_tokens;    /* tokens that close a group of 128 */
    int32_t boundary_tokens_c4; /* of 4 */
    struct st_work decode, prefill;
    /* How a plan takes the c128 pair: -1 by the policy's rule, 0 left out, 1 launched; a backend
     * asks for both stacks of an IF/ELSE with it. */
    int8_t pair;
};

/* Rows of a selection that gives every decode as many as the longest has (topk-rows).  A FULL graph
 * has those of its capture: its tokens. */
static inline int64_t st_step_padded_rows(const struct st_step_shape *shape) {
    return shape->mode == ST_GRAPH_MODE_FULL
               ? shape->decode_token_count
               : (int64_t)shape->decode_request_count * shape->decode_next_n;
}

/* Which of several uses of an operator a launch is. */
enum st_part {
    ST_PART_MAIN,       /* c4: the compressor of the layer; attention: the layer's */
    ST_PART_INDEXER,    /* c4: the indexer's compressor */
    ST_PART_DECODE,     /* rows [0, decode_token_count) */
    ST_PART_PREFILL,    /* the rest */
    ST_PART_COMPRESSED, /* gather: entries */
    ST_PART_WINDOW      /* gather: window rows */
};

/* What an observation looks at (see bind.h). */
enum st_view {
    ST_VIEW_KV_SLOT,     /* the slots of cache `cache` */
    ST_VIEW_SWA_INDICES, /* of cache `cache` */
    ST_VIEW_GATHER_LENS,
    ST_VIEW_C128A_DECODE,
    ST_VIEW_C128A_PREFILL,
    ST_VIEW_STATE, /* rows of cache `cache` that this step's tokens own */
    ST_VIEW_ENTRY, /* entries of cache `cache` that this step's tokens close */
    ST_VIEW_TOPK,
    ST_VIEW_GLOBAL_TOPK,
    ST_VIEW_COMBINED,
    ST_VIEW_OUT
};

struct st_launch {
    uint8_t op;       /* enum st_operator */
    bool in_graph;    /* part of the step's FULL graph */
    bool disabled;    /* node-disable: its node stays in the graph and does not run */
    bool after_pool;  /* the launch right before it is its compress_pool */
    bool after_save;  /* nothing but save_partial_states and its observation since the metadata */
    uint8_t part;     /* enum st_part */
    uint8_t kind;     /* enum st_layer_kind */
    uint8_t cache;    /* enum st_cache_id, where an operator has one to serve */
    uint8_t phases;   /* sparse_mla_decode: STEPTAPE_DECODE_* */
    uint8_t view;     /* OBSERVE: enum st_view; op whose output it is: observed */
    uint8_t observed; /* OBSERVE: enum st_operator */
    int16_t layer;    /* layer number of the model; -1: metadata, once a step */
    int16_t ordinal;  /* index among the layers of its kind; -1: metadata */
    int16_t chunk;    /* index into plan->chunk; -1 */
    int32_t first_token, token_count; /* rows of the launch */
    int32_t first_request, request_count;
    uint32_t launch_count; /* kernels that it makes (the library chain: several), else 1 */
    uint32_t grid, block;  /* of its last kernel: blocks in all, threads */
    int64_t bytes, flops;  /* least data to move, arithmetic */
};

/* Prefill chunks of one kind of layers; indexer chunks (several rows, one logits array). */
struct st_chunk {
    struct steptape_prefill_chunk plan; /* first_req counts from the step's first request */
    int32_t first_token, token_count;
    int64_t gathered_entries, gathered_window; /* rows that the two gathers bring */
    int64_t listed;                            /* sum of the rows' list lengths */
    int64_t columns;                           /* indexer: logits columns */
    int64_t logits_offset;                     /* indexer: first float of the chunk in LOGITS */
};

struct st_plan {
    struct st_step_shape shape;
    const struct st_policy *policy;
    int32_t launch_count, launch_room;
    int32_t launches[ST_OP_COUNT]; /* kernels by operator */
    int32_t skipped[ST_OP_COUNT];
    int32_t could_skip[ST_OP_COUNT];
    int32_t observation_count;
    int32_t topk_width; /* adaptive width of this step (columns) */
    struct st_launch *launch;
    struct st_chunk *chunk;
    int32_t chunk_count, chunk_room;
    int32_t first_chunk[ST_LAYER_KINDS + 1]; /* of kind k: [first_chunk[k], first_chunk[k + 1]) */
    int32_t first_index_chunk;               /* indexer: [first_index_chunk, chunk_count) */
};

void st_step_shape_make(const struct st_model *model, const struct st_step *step,
                        enum st_mode_request request, struct st_step_shape *shape);
/* observe: with observations.  Grows plan's arrays; plan starts zeroed. */
int st_plan_make(const struct st_model *model, const struct st_step *step,
                 const struct st_step_shape *shape, const struct st_policy *policy,
                 unsigned ops_mask, bool observe, struct st_plan *plan, struct st_error *err);
void st_plan_fini(struct st_plan *plan);
/* fp32 that LOGITS must hold for a step: its decode rows and all of its indexer chunks. */
int64_t st_plan_logits(const struct st_model *model, const struct st_step *step,
                       const struct st_step_shape *shape);

#endif
