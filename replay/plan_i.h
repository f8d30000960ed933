/* SPDX-License-Identifier: Apache-2.0 */
/* Inside of making a plan: plan.c (the walk), plan_layers.c (what a layer launches), plan_chunks.c
 * (how prefill is cut). */
#ifndef ST_REPLAY_PLAN_I_H
#define ST_REPLAY_PLAN_I_H

#include "replay/buffers.h"
#include "replay/plan.h"

struct st_plan_builder {
    const struct st_model *model;
    const struct st_step *step;
    const struct st_step_shape *shape;
    const struct st_policy *policy;
    unsigned ops_mask;
    bool observe;
    bool count_only; /* of baseline: only `launches` is wanted */
    struct st_buffers buffers;
    struct st_plan *plan;
    int32_t launches[ST_OP_COUNT];
    int rc; /* first error, said in err */
    struct st_error *err;
};

/* A launch to fill in; op and layer are set, rows are all of the step's (padded) tokens. */
struct st_launch st_plan_launch(const struct st_plan_builder *b, enum st_operator op, int32_t layer,
                                int32_t ordinal);
/* Adds it with its cost, unless --ops leaves its operator out. */
void st_plan_add(struct st_plan_builder *b, struct st_launch launch);
/* Adds an observation of op's output, where observations and the operator are wanted. */
void st_plan_observe(struct st_plan_builder *b, struct st_launch launch, enum st_view view);

void st_plan_layer(struct st_plan_builder *b, int32_t layer, int32_t ordinal);
/* c128-launch of this step's size. */
enum st_c128_launch st_plan_c128_launch(const struct st_plan_builder *b);
/* Whether an IF/ELSE node decides about the pair. */
bool st_plan_is_conditional(const struct st_plan_builder *b);

/* Fills plan->chunk for all kinds of layers that the model has. */
int st_plan_chunks(const struct st_model *model, const struct st_step *step,
                   const struct st_step_shape *shape, struct st_plan *plan);

#endif
