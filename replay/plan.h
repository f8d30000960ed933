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
 */
#ifndef ST_REPLAY_PLAN_H
#define ST_REPLAY_PLAN_H

#include <stdbool.h>
#include <stdint.h>

#include "replay/model.h"
#include "replay/policy.h"
#include "replay/predicate.h"
#include "traces/base/error.h"
#include "traces/format/step.h"

/* Order of the columns in every table; names in st_operator_name(). */
enum st_operator {
    ST_OP_COMPRESSED_SLOT_MAPPING,
    ST_OP_SAVE_PARTIAL_STATES,
    ST_OP_COMPRESS_POOL,
    ST_OP_COMPRESS_NORM_ROPE_STORE,
    ST_OP_COUNT
};
const char *st_operator_name(enum st_operator op);
/* -1: no such operator. */
int st_operator_find(const char *name);
/* ops_mask: a bit per operator (--ops), 0: all. */
static inline bool st_operator_wanted(unsigned ops_mask, enum st_operator op) {
    return ops_mask == 0 || (ops_mask >> op & 1u);
}

/* What the user asked for. */
enum st_mode_request { ST_MODE_EAGER, ST_MODE_FULL, ST_MODE_TAPE };

/* What one step runs as, and why when that is not what was asked. */
struct st_step_shape {
    enum st_graph_mode mode; /* NONE (eager) or FULL */
    bool above_largest;      /* asked for FULL, larger than the largest capture size: eager */
    bool mode_unknown;       /* the tape does not know the mode: eager */
    int32_t request_count, token_count;
    int32_t padded_request_count,
        padded_token_count;     /* of layer launches; FULL: the capture size */
    enum st_boundary boundary;  /* what the engine's predicate says (c128) */
    bool boundary_true;         /* what the tape says, known in every step */
    int32_t boundary_tokens;    /* tokens that close a group of 128 */
    int32_t boundary_tokens_c4; /* of 4 */
};

struct st_launch {
    uint8_t op;           /* enum st_operator */
    bool in_graph;        /* part of the step's FULL graph */
    int16_t layer;        /* layer number of the model; -1: metadata, once a step */
    int16_t ordinal;      /* index among the c128 layers; -1: metadata */
    int16_t ratio;        /* 4 or 128 */
    uint32_t grid, block; /* x dimensions; the operators here use no other */
    int64_t bytes, flops; /* least data to move, arithmetic */
};

#define ST_PLAN_MAX_LAUNCHES (2 + 3 * ST_MODEL_MAX_LAYERS)

struct st_plan {
    struct st_step_shape shape;
    int32_t launch_count;
    int32_t launches[ST_OP_COUNT]; /* by operator */
    int32_t skipped[ST_OP_COUNT];
    int32_t could_skip[ST_OP_COUNT];
    struct st_launch launch[ST_PLAN_MAX_LAUNCHES];
};

void st_step_shape_make(const struct st_model *model, const struct st_step *step,
                        enum st_mode_request request, struct st_step_shape *shape);
void st_plan_make(const struct st_model *model, const struct st_step_shape *shape,
                  const struct st_policy *policy, unsigned ops_mask, struct st_plan *plan);

#endif
