/* SPDX-License-Identifier: Apache-2.0 */
#include "replay/plan.h"

#include <string.h>

#include "steptape/kernels.h"

static const char *const operator_names[ST_OP_COUNT] = {
    [ST_OP_COMPRESSED_SLOT_MAPPING] = "compressed_slot_mapping",
    [ST_OP_SAVE_PARTIAL_STATES] = "save_partial_states",
    [ST_OP_COMPRESS_POOL] = "compress_pool",
    [ST_OP_COMPRESS_NORM_ROPE_STORE] = "compress_norm_rope_store",
};

const char *st_operator_name(enum st_operator op) {
    return operator_names[op];
}

int st_operator_find(const char *name) {
    for (int i = 0; i < ST_OP_COUNT; i++)
        if (strcmp(operator_names[i], name) == 0)
            return i;
    return -1;
}

/* ---- shape of a step */

static int32_t closed_groups(const struct st_step *step, int32_t ratio) {
    int64_t groups = 0;
    for (int32_t i = 0; i < step->request_count; i++) {
        int64_t start = step->num_computed_tokens[i];
        groups += (start + step->query_len[i]) / ratio - start / ratio;
    }
    return (int32_t)groups;
}

static void set_full(const struct st_model *model, const struct st_step *step, bool use_recorded,
                     struct st_step_shape *shape) {
    int64_t size = st_model_capture_size(model, step->token_count);
    if (use_recorded && step->padded_token_count >= step->token_count)
        size = step->padded_token_count;
    if (size < 0) {
        shape->above_largest = true;
        return;
    }
    shape->mode = ST_GRAPH_MODE_FULL;
    shape->padded_token_count = (int32_t)size;
    /* Requests are padded to one token each, as far as the engine has rows for them. */
    int64_t rows = size < model->max_num_seqs ? size : model->max_num_seqs;
    if (rows > shape->request_count)
        shape->padded_request_count = (int32_t)rows;
}

void st_step_shape_make(const struct st_model *model, const struct st_step *step,
                        enum st_mode_request request, struct st_step_shape *shape) {
    memset(shape, 0, sizeof *shape);
    shape->mode = ST_GRAPH_MODE_NONE;
    shape->request_count = step->request_count;
    shape->token_count = (int32_t)step->token_count;
    shape->padded_request_count = shape->request_count;
    shape->padded_token_count = shape->token_count;
    shape->boundary =
        st_boundary_predicate(st_step_has_cpu_starts(step) ? step->num_computed_tokens : NULL,
                              step->query_len, step->request_count, 128);
    shape->boundary_tokens = closed_groups(step, 128);
    shape->boundary_tokens_c4 = closed_groups(step, 4);
    shape->boundary_true = shape->boundary_tokens > 0;
    if (step->request_count == 0)
        return;
    if (request == ST_MODE_FULL)
        set_full(model, step, false, shape);
    else if (request == ST_MODE_TAPE && step->graph_mode == ST_GRAPH_MODE_FULL)
        set_full(model, step, true, shape);
    else if (request == ST_MODE_TAPE && step->graph_mode == ST_GRAPH_MODE_UNKNOWN)
        shape->mode_unknown = true;
}

/* ---- launches */

struct builder {
    const struct st_model *model;
    const struct st_step_shape *shape;
    unsigned ops_mask;
    struct st_plan *plan;
};

static bool wanted(const struct builder *b, enum st_operator op) {
    return st_operator_wanted(b->ops_mask, op);
}

static void add(struct builder *b, enum st_operator op, int16_t layer, int16_t ordinal,
                int16_t ratio, const struct steptape_cost *cost) {
    struct st_plan *plan = b->plan;
    struct st_launch *launch = &plan->launch[plan->launch_count++];
    launch->op = (uint8_t)op;
    launch->in_graph = layer >= 0 && b->shape->mode == ST_GRAPH_MODE_FULL;
    launch->layer = layer;
    launch->ordinal = ordinal;
    launch->ratio = ratio;
    launch->grid = cost->grid[0] * (cost->grid[1] ? cost->grid[1] : 1);
    launch->block = cost->block[0];
    launch->bytes = (int64_t)(cost->read_bytes + cost->written_bytes);
    launch->flops = (int64_t)cost->flops;
    plan->launches[op]++;
}

static void add_slot_mapping(struct builder *b, const struct st_model_cache *cache,
                             int32_t boundary_tokens) {
    if (!wanted(b, ST_OP_COMPRESSED_SLOT_MAPPING))
        return;
    struct steptape_compressed_slot_mapping_args args;
    memset(&args, 0, sizeof args);
    args.num_reqs = b->shape->padded_request_count;
    args.ratio = cache->ratio;
    args.block_size = cache->entries;
    args.block_table_stride = b->model->max_model_len / cache->block_size + 1;
    args.out_len = b->model->max_num_batched_tokens;
    if (args.out_len < b->shape->padded_token_count)
        args.out_len = b->shape->padded_token_count;
    struct steptape_token_counts counts = {b->shape->token_count, boundary_tokens, boundary_tokens,
                                           0};
    struct steptape_cost cost;
    memset(&cost, 0, sizeof cost);
    (void)steptape_compressed_slot_mapping_cost(&args, &counts, &cost);
    add(b, ST_OP_COMPRESSED_SLOT_MAPPING, -1, -1, (int16_t)cache->ratio, &cost);
}

/* What the three launches of a c128 layer cost: the same in every layer. */
struct layer_cost {
    struct steptape_cost save, pool, store;
};

static void cost_layer(const struct builder *b, struct layer_cost *cost) {
    const struct st_model *model = b->model;
    int32_t tokens = b->shape->padded_token_count, dim = model->head_dim;
    int64_t page = model->state_c128.page_bytes / 4;
    struct steptape_token_counts counts = {b->shape->token_count, b->shape->boundary_tokens,
                                           b->shape->boundary_tokens, 0};
    struct steptape_save_partial_states_args save;
    memset(&save, 0, sizeof save);
    save.kv_stride = save.score_stride = save.state_row_stride = 2 * dim;
    save.ape_stride = save.width = dim;
    save.state_page_stride = page;
    save.num_tokens = tokens;
    save.ratio = 128;
    save.block_size = model->state_c128.block_size;

    struct steptape_compress_pool_args pool;
    memset(&pool, 0, sizeof pool);
    pool.state_page_stride = page;
    pool.state_row_stride = 2 * dim;
    pool.block_table_stride = model->max_model_len / model->state_c128.block_size + 1;
    pool.pooled_stride = dim;
    pool.num_tokens = tokens;
    pool.head_dim = dim;
    pool.ratio = 128;
    pool.block_size = model->state_c128.block_size;

    struct steptape_compress_norm_rope_store_args store;
    memset(&store, 0, sizeof store);
    store.pooled_stride = store.values_stride = dim;
    store.cos_sin_stride = model->rope_dim;
    store.kv_page_stride_bytes = model->kv_c128.page_bytes;
    store.num_tokens = tokens;
    store.head_dim = dim;
    store.rope_dim = model->rope_dim;
    store.ratio = 128;
    store.kv_block_size = model->kv_c128.entries;
    store.eps = (float)model->rms_eps;

    memset(cost, 0, sizeof *cost);
    (void)steptape_save_partial_states_cost(&save, &counts, &cost->save);
    (void)steptape_compress_pool_cost(&pool, &counts, &cost->pool);
    (void)steptape_compress_norm_rope_store_cost(&store, &counts, &cost->store);
}

/* The engine's decision, from what the engine knew: only a certain "no" skips, and never in a FULL
 * graph, whose launches are fixed at capture. */
static bool skips_pair(const struct st_step_shape *shape, const struct st_policy *policy) {
    return policy->value[ST_SWITCH_C128_LAUNCH] == ST_C128_LAUNCH_SKIP_EMPTY &&
           shape->boundary == ST_BOUNDARY_FALSE && shape->mode != ST_GRAPH_MODE_FULL;
}

static bool rule_allows_skip(const struct st_step_shape *shape, const struct st_policy *policy) {
    return policy->value[ST_SWITCH_C128_LAUNCH] == ST_C128_LAUNCH_SKIP_EMPTY &&
           !shape->boundary_true;
}

static void add_layers(struct builder *b, const struct st_policy *policy) {
    const struct st_model *model = b->model;
    struct layer_cost cost;
    cost_layer(b, &cost);
    bool skip = skips_pair(b->shape, policy);
    for (int32_t i = 0; i < model->c128_layer_count; i++) {
        int16_t layer = (int16_t)model->c128_layer[i];
        if (wanted(b, ST_OP_SAVE_PARTIAL_STATES))
            add(b, ST_OP_SAVE_PARTIAL_STATES, layer, (int16_t)i, 128, &cost.save);
        if (skip)
            continue;
        if (wanted(b, ST_OP_COMPRESS_POOL))
            add(b, ST_OP_COMPRESS_POOL, layer, (int16_t)i, 128, &cost.pool);
        if (wanted(b, ST_OP_COMPRESS_NORM_ROPE_STORE))
            add(b, ST_OP_COMPRESS_NORM_ROPE_STORE, layer, (int16_t)i, 128, &cost.store);
    }
    static const enum st_operator pair[] = {ST_OP_COMPRESS_POOL, ST_OP_COMPRESS_NORM_ROPE_STORE};
    for (int i = 0; i < 2; i++) {
        if (!wanted(b, pair[i]))
            continue;
        if (skip)
            b->plan->skipped[pair[i]] = model->c128_layer_count;
        else if (rule_allows_skip(b->shape, policy))
            b->plan->could_skip[pair[i]] = model->c128_layer_count;
    }
}

void st_plan_make(const struct st_model *model, const struct st_step_shape *shape,
                  const struct st_policy *policy, unsigned ops_mask, struct st_plan *plan) {
    struct builder b = {model, shape, ops_mask, plan};
    plan->shape = *shape;
    plan->launch_count = 0;
    memset(plan->launches, 0, sizeof plan->launches);
    memset(plan->skipped, 0, sizeof plan->skipped);
    memset(plan->could_skip, 0, sizeof plan->could_skip);
    if (shape->request_count == 0)
        return;
    if (model->has_c4)
        add_slot_mapping(&b, &model->kv_c4, shape->boundary_tokens_c4);
    if (model->has_c128) {
        add_slot_mapping(&b, &model->kv_c128, shape->boundary_tokens);
        add_layers(&b, policy);
    }
}
