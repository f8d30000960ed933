/* SPDX-License-Identifier: Apache-2.0 */
#include "replay/plan.h"

#include <stdlib.h>
#include <string.h>

#include "replay/bind.h"
#include "replay/plan_i.h"

static const char *const operator_names[ST_OP_COUNT] = {
    [ST_OP_COMPRESSED_SLOT_MAPPING] = "compressed_slot_mapping",
    [ST_OP_SWA_INDICES] = "swa_indices",
    [ST_OP_GATHER_LENS] = "gather_lens",
    [ST_OP_C128A_TOPK_METADATA] = "c128a_topk_metadata",
    [ST_OP_BOUNDARY_LIST] = "boundary_list",
    [ST_OP_GRAPH_CONDITION] = "graph_condition",
    [ST_OP_SAVE_PARTIAL_STATES] = "save_partial_states",
    [ST_OP_COMPRESS_POOL] = "compress_pool",
    [ST_OP_COMPRESS_NORM_ROPE_STORE] = "compress_norm_rope_store",
    [ST_OP_COMPRESS_FUSED] = "compress_fused",
    [ST_OP_FILL] = "fill",
    [ST_OP_TOPK_PER_ROW] = "topk_per_row",
    [ST_OP_GLOBAL_TOPK_INDICES] = "global_topk_indices",
    [ST_OP_SPARSE_MLA_DECODE] = "sparse_mla_decode",
    [ST_OP_DEQUANTIZE_AND_GATHER] = "dequantize_and_gather",
    [ST_OP_COMBINE_TOPK_SWA_INDICES] = "combine_topk_swa_indices",
    [ST_OP_SPARSE_MLA_PREFILL] = "sparse_mla_prefill",
};

const char *st_operator_name(enum st_operator op) {
    return op < ST_OP_COUNT ? operator_names[op] : "observation";
}

int st_operator_find(const char *name) {
    for (int i = 0; i < ST_OP_COUNT; i++)
        if (strcmp(operator_names[i], name) == 0)
            return i;
    return -1;
}

/* ---- building blocks */

struct st_launch st_plan_launch(const struct st_plan_builder *b, enum st_operator op, int32_t layer,
                                int32_t ordinal) {
    struct st_launch launch;
    memset(&launch, 0, sizeof launch);
    launch.op = (uint8_t)op;
    launch.in_graph = layer >= 0 && b->shape->mode == ST_GRAPH_MODE_FULL;
    launch.layer = (int16_t)layer;
    launch.ordinal = (int16_t)ordinal;
    launch.kind = layer >= 0 ? b->model->layer_kind[layer] : ST_LAYER_SWA;
    launch.chunk = -1;
    launch.token_count = b->shape->padded_token_count;
    launch.request_count = b->shape->padded_request_count;
    launch.launch_count = 1;
    return launch;
}

static struct st_launch *append(struct st_plan_builder *b, const struct st_launch *launch) {
    struct st_plan *plan = b->plan;
    if (plan->launch_count == plan->launch_room) {
        int32_t room = plan->launch_room ? 2 * plan->launch_room : 256;
        struct st_launch *grown = realloc(plan->launch, (size_t)room * sizeof *grown);
        if (!grown) {
            b->rc = ST_FAIL_NOMEM(b->err);
            return NULL;
        }
        plan->launch = grown;
        plan->launch_room = room;
    }
    plan->launch[plan->launch_count] = *launch;
    return &plan->launch[plan->launch_count++];
}

static uint32_t volume(const uint32_t *dim) {
    return dim[0] * (dim[1] ? dim[1] : 1) * (dim[2] ? dim[2] : 1);
}

static void set_cost(struct st_plan_builder *b, struct st_launch *launch) {
    const struct st_kernel *kernel = st_operator_kernel((enum st_operator)launch->op);
    if (!kernel) { /* graph_condition: one block looks at every token's slot and position */
        launch->grid = 1;
        launch->block = 256;
        launch->bytes = 16 * (int64_t)launch->token_count;
        return;
    }
    union st_args args;
    struct steptape_token_counts counts;
    struct steptape_cost cost;
    memset(&cost, 0, sizeof cost);
    st_bind(b->model, &b->buffers, NULL, b->plan, launch, &args);
    st_bind_counts(b->model, b->plan, launch, &counts);
    int rc = kernel->cost(&args, &counts, &cost);
    if (rc != STEPTAPE_OK) {
        if (b->rc == 0)
            b->rc = ST_FAIL(b->err, ST_ERR_INPUT,
                            "step %lld: %s of layer %d at max_model_len = %lld (see --set): %s",
                            (long long)b->step->step_id,
                            st_operator_name((enum st_operator)launch->op), launch->layer,
                            (long long)b->model->max_model_len, steptape_status_name(rc));
        return;
    }
    launch->launch_count = cost.launch_count;
    launch->grid = volume(cost.grid);
    launch->block = volume(cost.block);
    launch->bytes = (int64_t)(cost.read_bytes + cost.written_bytes);
    launch->flops = (int64_t)cost.flops;
}

/* A graph that holds the pair cannot do without what decides about it. */
static bool is_wanted(const struct st_plan_builder *b, enum st_operator op) {
    if (op != ST_OP_GRAPH_CONDITION)
        return st_operator_wanted(b->ops_mask, op);
    return st_operator_wanted(b->ops_mask, ST_OP_COMPRESS_POOL) ||
           st_operator_wanted(b->ops_mask, ST_OP_COMPRESS_NORM_ROPE_STORE);
}

void st_plan_add(struct st_plan_builder *b, struct st_launch launch) {
    if (!is_wanted(b, (enum st_operator)launch.op))
        return;
    set_cost(b, &launch);
    if (!launch.disabled)
        b->launches[launch.op] += (int32_t)launch.launch_count;
    if (!b->count_only)
        (void)append(b, &launch);
}

void st_plan_observe(struct st_plan_builder *b, struct st_launch launch, enum st_view view) {
    if (!b->observe || b->count_only ||
        !st_operator_wanted(b->ops_mask, (enum st_operator)launch.op))
        return;
    launch.observed = launch.op;
    launch.op = ST_OP_OBSERVE;
    launch.view = (uint8_t)view;
    if (append(b, &launch))
        b->plan->observation_count++;
}

/* ---- once a step */

static void add_slot_mappings(struct st_plan_builder *b) {
    static const enum st_cache_id caches[] = {ST_CACHE_KV_C4, ST_CACHE_KV_C128,
                                              ST_CACHE_KV_INDEXER};
    for (size_t i = 0; i < sizeof caches / sizeof caches[0]; i++) {
        if (!st_model_has(b->model, caches[i]))
            continue;
        struct st_launch launch = st_plan_launch(b, ST_OP_COMPRESSED_SLOT_MAPPING, -1, -1);
        launch.cache = (uint8_t)caches[i];
        st_plan_add(b, launch);
        st_plan_observe(b, launch, ST_VIEW_KV_SLOT);
    }
}

static int32_t swa_groups(const struct st_model *model) {
    int32_t groups = 0;
    while (groups < ST_MAX_SWA_GROUPS &&
           st_model_has(model, (enum st_cache_id)(ST_CACHE_SWA0 + groups)))
        groups++;
    return groups;
}

static void add_window_metadata(struct st_plan_builder *b) {
    const struct st_step_shape *shape = b->shape;
    int32_t prefill = shape->padded_token_count - shape->decode_token_count;
    for (int32_t g = 0; g < swa_groups(b->model); g++) {
        struct st_launch launch = st_plan_launch(b, ST_OP_SWA_INDICES, -1, -1);
        launch.cache = (uint8_t)(ST_CACHE_SWA0 + g);
        launch.part = ST_PART_DECODE;
        launch.token_count = shape->decode_token_count;
        if (shape->decode_token_count > 0) {
            st_plan_add(b, launch);
            st_plan_observe(b, launch, ST_VIEW_SWA_INDICES);
        }
        launch.part = ST_PART_PREFILL;
        launch.first_token = shape->decode_token_count;
        launch.token_count = prefill;
        if (prefill > 0) {
            st_plan_add(b, launch);
            st_plan_observe(b, launch, ST_VIEW_SWA_INDICES);
        }
    }
    if (prefill == 0 || swa_groups(b->model) == 0)
        return;
    struct st_launch launch = st_plan_launch(b, ST_OP_GATHER_LENS, -1, -1);
    launch.first_request = shape->decode_request_count;
    launch.request_count = shape->padded_request_count - shape->decode_request_count;
    st_plan_add(b, launch);
    st_plan_observe(b, launch, ST_VIEW_GATHER_LENS);
}

static void add_c128a(struct st_plan_builder *b) {
    if (b->model->kind_count[ST_LAYER_C128] == 0)
        return;
    struct st_launch launch = st_plan_launch(b, ST_OP_C128A_TOPK_METADATA, -1, -1);
    st_plan_add(b, launch);
    launch.token_count = b->shape->decode_token_count;
    if (launch.token_count > 0)
        st_plan_observe(b, launch, ST_VIEW_C128A_DECODE);
    launch.first_token = b->shape->decode_token_count;
    launch.token_count = b->shape->padded_token_count - b->shape->decode_token_count;
    if (launch.token_count > 0)
        st_plan_observe(b, launch, ST_VIEW_C128A_PREFILL);
    if (st_plan_c128_launch(b) == ST_C128_LAUNCH_COMPACT &&
        b->shape->padded_token_count > ST_C128_FEW_TOKENS) {
        launch = st_plan_launch(b, ST_OP_BOUNDARY_LIST, -1, -1);
        launch.cache = ST_CACHE_KV_C128;
        st_plan_add(b, launch);
    }
}

static void add_all(struct st_plan_builder *b) {
    int32_t ordinal[ST_LAYER_KINDS] = {0};
    add_slot_mappings(b);
    add_window_metadata(b);
    add_c128a(b);
    if (st_plan_is_conditional(b)) {
        struct st_launch launch = st_plan_launch(b, ST_OP_GRAPH_CONDITION, -1, -1);
        launch.in_graph = true;
        launch.cache = ST_CACHE_STATE_C128;
        st_plan_add(b, launch);
    }
    for (int32_t layer = 0; layer < b->model->layer_count; layer++)
        st_plan_layer(b, layer, ordinal[b->model->layer_kind[layer]]++);
}

/* ---- the whole */

static void count_skips(struct st_plan_builder *b, const struct st_policy *policy) {
    struct st_plan_builder other = *b;
    struct st_policy base;
    struct st_step_shape shape = *b->shape;
    st_policy_baseline(&base);
    shape.pair = -1;
    other.policy = &base;
    other.shape = &shape;
    other.count_only = true;
    memset(other.launches, 0, sizeof other.launches);
    b->plan->policy = &base; /* what bind looks at */
    add_all(&other);
    b->rc = b->rc != 0 ? b->rc : other.rc;
    b->plan->policy = policy;
    for (int op = 0; op < ST_OP_COUNT; op++)
        if (other.launches[op] > b->launches[op])
            b->plan->skipped[op] = other.launches[op] - b->launches[op];
    bool allowed = st_plan_c128_launch(b) == ST_C128_LAUNCH_SKIP_EMPTY && !b->shape->boundary_true;
    for (int op = ST_OP_COMPRESS_POOL; allowed && op <= ST_OP_COMPRESS_NORM_ROPE_STORE; op++)
        b->plan->could_skip[op] = b->launches[op];
}

int st_plan_make(const struct st_model *model, const struct st_step *step,
                 const struct st_step_shape *shape, const struct st_policy *policy,
                 unsigned ops_mask, bool observe, struct st_plan *plan, struct st_error *err) {
    struct st_plan_builder b;
    memset(&b, 0, sizeof b);
    b.model = model;
    b.step = step;
    b.shape = &plan->shape;
    b.policy = plan->policy = policy;
    b.ops_mask = ops_mask;
    b.observe = observe;
    b.plan = plan;
    b.err = err;
    plan->shape = *shape;
    plan->launch_count = plan->observation_count = plan->chunk_count = 0;
    memset(plan->launches, 0, sizeof plan->launches);
    memset(plan->skipped, 0, sizeof plan->skipped);
    memset(plan->could_skip, 0, sizeof plan->could_skip);
    if (shape->request_count == 0)
        return 0;
    int rc = st_plan_chunks(model, step, shape, plan);
    if (rc != 0)
        return ST_FAIL(err, rc, "step %lld: its prefill cannot be planned",
                       (long long)step->step_id);
    struct st_limits limits = {.max_tokens = shape->padded_token_count,
                               .max_requests = shape->padded_request_count,
                               .max_seq_len = shape->max_seq_len,
                               .uses_full = true};
    st_buffers_make(model, &limits, 1, &b.buffers);
    plan->topk_width = steptape_c128a_width(shape->max_seq_len, 128, b.buffers.c128a_capacity);
    add_all(&b);
    memcpy(plan->launches, b.launches, sizeof plan->launches);
    count_skips(&b, policy);
    return b.rc;
}

void st_plan_fini(struct st_plan *plan) {
    free(plan->launch);
    free(plan->chunk);
    memset(plan, 0, sizeof *plan);
}
