/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Graphs of FULL steps: one a policy and capture size, captured when it is first needed and never
 * again.  What skips the c128 pair inside of one (graph-skip):
 *
 *   none, and c128-launch=compact   one chain
 *   variant        two graphs, with and without the pair; the plan says which one
 *   node-disable   one chain, the pair's nodes are switched when the plan's answer changes
 *   conditional    an IF/ELSE node of two chains; a kernel before it writes the condition
 */
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#include "replay/backend_cuda_i.h"
#include "replay/backend_cuda_kernels.h"
#include "traces/base/log.h"

static bool is_pair(const struct st_launch *launch) {
    return launch->op == ST_OP_COMPRESS_POOL || launch->op == ST_OP_COMPRESS_NORM_ROPE_STORE;
}

static bool has_pair(const struct st_plan *plan) {
    for (int32_t i = 0; i < plan->launch_count; i++)
        if (plan->launch[i].in_graph && is_pair(&plan->launch[i]))
            return true;
    return false;
}

static bool skips_by(const struct st_plan *plan, enum st_graph_skip how) {
    return st_policy_c128_launch(plan->policy, plan->shape.padded_token_count) ==
               ST_C128_LAUNCH_SKIP_EMPTY &&
           plan->policy->value[ST_SWITCH_GRAPH_SKIP] == (int8_t)how;
}

static const struct st_launch *find_condition(const struct st_plan *plan) {
    for (int32_t i = 0; i < plan->launch_count; i++)
        if (plan->launch[i].in_graph && plan->launch[i].op == ST_OP_GRAPH_CONDITION)
            return &plan->launch[i];
    return NULL;
}

/* ---- what a graph holds */

static void add(uint64_t *digest, const void *bytes, size_t size) {
    *digest = XXH3_64bits_withSeed(bytes, size, *digest);
}

/* Which launches, in order, with all that they are bound to. */
static uint64_t contents_of(const struct st_backend *b, const struct st_plan *plan, int32_t set) {
    uint64_t digest = 1;
    int32_t observation = 0;
    for (int32_t i = 0; i < plan->launch_count; i++) {
        const struct st_launch *launch = &plan->launch[i];
        if (launch->in_graph) {
            add(&digest, &launch->op, sizeof launch->op);
            add(&digest, &launch->layer, sizeof launch->layer);
            if (launch->op == ST_OP_OBSERVE) {
                struct st_cuda_rows rows;
                st_cuda_bind_observation(b, plan, launch, set, &rows);
                add(&digest, &rows, sizeof rows);
                add(&digest, &b->observed[set].offset[observation], sizeof(int64_t));
            } else if (launch->op != ST_OP_GRAPH_CONDITION) {
                union st_args args;
                st_bind(&b->model, &b->buffers, st_cuda_frame(b, set, launch->ordinal), plan,
                        launch, &args);
                add(&digest, &args, sizeof args);
            }
        }
        observation += launch->op == ST_OP_OBSERVE;
    }
    return digest;
}

/* ---- capturing */

struct capture {
    struct st_backend *b;
    const struct st_plan *plan[2]; /* by `which` of the capture */
    int32_t set;
    struct st_cuda_full *full;
};

static int remember_node(struct capture *c, struct st_error *err) {
    struct st_cuda_full *full = c->full;
    cudaGraphNode_t *grown =
        realloc(full->node, (size_t)(full->node_count + 1) * sizeof *full->node);
    if (!grown)
        return ST_FAIL_NOMEM(err);
    full->node = grown;
    return st_cuda_last_node(c->b->stream, &full->node[full->node_count++], err);
}

/* Launches that are switched off are captured all the same. */
static int issue_captured(void *user, int which, cudaStream_t stream, struct st_error *err) {
    struct capture *c = user;
    const struct st_plan *plan = c->plan[which];
    bool nodes = skips_by(plan, ST_GRAPH_SKIP_NODE_DISABLE);
    int32_t observation = 0;
    (void)stream; /* the backend's own */
    for (int32_t i = 0; i < plan->launch_count; i++) {
        const struct st_launch *launch = &plan->launch[i];
        if (launch->in_graph && launch->op != ST_OP_GRAPH_CONDITION) {
            ST_TRY(st_cuda_launch_one(c->b, plan, launch, c->set, observation, err));
            if (nodes && is_pair(launch))
                ST_TRY(remember_node(c, err));
            if (c->b->poison)
                ST_TRY(st_cuda_check_guards(c->b, launch, c->set, err));
        }
        observation += launch->op == ST_OP_OBSERVE;
    }
    return 0;
}

/* Both bodies of an IF/ELSE: the plan only lists what runs in this step. */
static int make_stacks(struct st_backend *b, const struct st_plan *plan, struct st_error *err) {
    bool verify = b->pass == ST_PASS_VERIFY; /* plans of verify hold every operator */
    for (int8_t pair = 0; pair < 2; pair++) {
        struct st_step_shape shape = plan->shape;
        shape.pair = pair;
        ST_TRY(st_plan_make(&b->model, &b->step, &shape, plan->policy, verify ? 0 : b->ops_mask,
                            verify, &b->stack[pair], err));
    }
    return 0;
}

static int capture_if(struct st_backend *b, struct capture *c, const struct st_launch *condition,
                      struct st_error *err) {
    ST_TRY(make_stacks(b, c->plan[0], err));
    for (int pair = 0; pair < 2; pair++) {
        c->plan[pair] = &b->stack[pair];
        c->full->contents[pair] = contents_of(b, &b->stack[pair], c->set);
    }
    const struct st_frame *frame = st_cuda_frame(b, c->set, 0);
    struct st_cuda_condition args = {
        .position = frame->at[ST_BUF_POSITION],
        .slot = (const int64_t *)frame->at[ST_BUF_SLOT] +
                (int64_t)condition->cache * b->buffers.max_tokens,
        .token_count = condition->token_count,
        .ratio = 128,
    };
    return st_cuda_capture_if(b->stream, &args, issue_captured, c, &c->full->graph, err);
}

/* Once eagerly, as engines do: whatever a first launch of a kernel costs is not in the graph's.
 * With the step's metadata: what an earlier step left of it would store entries where they do not
 * belong. */
static int warm_up(struct st_backend *b, const struct st_plan *plan, int32_t set,
                   struct st_error *err) {
    for (int32_t i = 0; i < plan->launch_count; i++) {
        const struct st_launch *launch = &plan->launch[i];
        if (launch->op == ST_OP_GRAPH_CONDITION || launch->op == ST_OP_OBSERVE || launch->disabled)
            continue;
        ST_TRY(st_cuda_launch_one(b, plan, launch, set, 0, err));
        b->strays += launch->launch_count;
    }
    ST_CUDA(err, cudaStreamSynchronize(b->stream));
    return 0;
}

static int capture_full(struct st_backend *b, const struct st_plan *plan, int32_t set,
                        struct st_cuda_full *full, struct st_error *err) {
    struct capture c = {b, {plan, plan}, set, full};
    const struct st_launch *condition = find_condition(plan);
    struct st_cuda_graph_cost cost;
    ST_TRY(warm_up(b, plan, set, err));
    int64_t start_ns = st_cuda_now_ns();
    if (condition)
        ST_TRY(capture_if(b, &c, condition, err));
    else
        ST_TRY(st_cuda_capture(b->stream, issue_captured, &c, 0, &full->graph, err));
    ST_TRY(st_cuda_instantiate(full->graph, b->stream, &full->exec, &cost, err));
    b->counters.capture_ns += st_cuda_now_ns() - start_ns;
    b->counters.graph_bytes += cost.bytes;
    b->counters.graphs++;
    return 0;
}

static void free_one(struct st_cuda_full *full) {
    if (full->exec)
        cudaGraphExecDestroy(full->exec);
    if (full->graph)
        cudaGraphDestroy(full->graph);
    free(full->node);
}

/* ---- finding */

static struct st_cuda_full *look_up(struct st_backend *b, int32_t policy, int32_t tokens,
                                    bool pair) {
    for (int32_t i = 0; i < b->full_count; i++) {
        struct st_cuda_full *full = &b->full[i];
        if (full->policy == policy && full->tokens == tokens && full->pair == pair)
            return full;
    }
    return NULL;
}

static int grow(struct st_backend *b, struct st_error *err) {
    if (b->full_count < b->full_room)
        return 0;
    int32_t room = b->full_room ? 2 * b->full_room : 64;
    struct st_cuda_full *grown = realloc(b->full, (size_t)room * sizeof *grown);
    if (!grown)
        return ST_FAIL_NOMEM(err);
    b->full = grown;
    b->full_room = room;
    return 0;
}

int st_cuda_find_full(struct st_backend *b, const struct st_plan *plan, int32_t policy,
                      struct st_cuda_full **out, struct st_error *err) {
    int32_t set = st_cuda_set(b, policy), tokens = plan->shape.padded_token_count;
    bool pair = has_pair(plan), variant = skips_by(plan, ST_GRAPH_SKIP_VARIANT);
    struct st_cuda_full *full = look_up(b, policy, tokens, variant && pair);
    uint64_t contents = contents_of(b, plan, set);
    if (!full) {
        ST_TRY(grow(b, err));
        full = &b->full[b->full_count];
        memset(full, 0, sizeof *full);
        full->policy = policy;
        full->tokens = tokens;
        full->pair = variant && pair;
        full->contents[pair] = contents;
        int rc = capture_full(b, plan, set, full, err);
        if (rc != 0) {
            free_one(full);
            return rc;
        }
        b->full_count++;
    }
    if (full->contents[pair] != contents)
        return ST_FAIL(
            err, ST_ERR_MISMATCH,
            "step %lld, policy %s: the plan changed what the graph of %d tokens captured",
            (long long)b->step.step_id, plan->policy->name, tokens);
    *out = full;
    return 0;
}

void st_cuda_free_full(struct st_backend *b) {
    for (int32_t i = 0; i < b->full_count; i++)
        free_one(&b->full[i]);
    free(b->full);
    b->full = NULL;
    b->full_count = 0;
}

/* ---- launching */

static bool is_disabled(const struct st_plan *plan) {
    for (int32_t i = 0; i < plan->launch_count; i++)
        if (plan->launch[i].in_graph && plan->launch[i].disabled)
            return true;
    return false;
}

int st_cuda_launch_full(struct st_backend *b, struct st_cuda_full *full, const struct st_plan *plan,
                        struct st_error *err) {
    if (full->node_count > 0 && full->disabled != is_disabled(plan)) {
        for (int32_t i = 0; i < full->node_count; i++)
            ST_CUDA(err, cudaGraphNodeSetEnabled(full->exec, full->node[i], full->disabled));
        full->disabled = !full->disabled;
    }
    ST_CUDA(err, cudaGraphLaunch(full->exec, b->stream));
    b->counters.graph_launches++;
    return 0;
}
