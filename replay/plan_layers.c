/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What one layer launches, switch by switch, and what is looked at behind it.
 */
#include "replay/plan_i.h"

static int value(const struct st_plan_builder *b, enum st_switch sw) {
    return b->policy->value[sw];
}

enum st_c128_launch st_plan_c128_launch(const struct st_plan_builder *b) {
    return st_policy_c128_launch(b->policy, b->shape->padded_token_count);
}

static bool has_decode(const struct st_plan_builder *b) {
    return b->shape->decode_token_count > 0;
}

static struct st_launch decode_launch(const struct st_plan_builder *b, enum st_operator op,
                                      int32_t layer, int32_t ordinal) {
    struct st_launch launch = st_plan_launch(b, op, layer, ordinal);
    launch.part = ST_PART_DECODE;
    launch.token_count = b->shape->decode_token_count;
    launch.request_count = b->shape->decode_request_count;
    return launch;
}

/* ---- compressors */

/* The engine's decision, from what the engine knew: only a certain "no" skips.  A FULL graph holds
 * its launches unless graph-skip says how it does without. */
static bool skips_pair(const struct st_plan_builder *b) {
    const struct st_step_shape *shape = b->shape;
    if (shape->pair >= 0)
        return shape->pair == 0;
    if (st_plan_c128_launch(b) != ST_C128_LAUNCH_SKIP_EMPTY)
        return false;
    if (shape->mode != ST_GRAPH_MODE_FULL)
        return shape->boundary == ST_BOUNDARY_FALSE;
    switch (value(b, ST_SWITCH_GRAPH_SKIP)) {
    case ST_GRAPH_SKIP_VARIANT:
    case ST_GRAPH_SKIP_NODE_DISABLE:
        return shape->boundary == ST_BOUNDARY_FALSE;
    case ST_GRAPH_SKIP_CONDITIONAL:
        return !shape->boundary_true;
    default:
        return false;
    }
}

bool st_plan_is_conditional(const struct st_plan_builder *b) {
    return b->shape->mode == ST_GRAPH_MODE_FULL && b->model->kind_count[ST_LAYER_C128] > 0 &&
           st_plan_c128_launch(b) == ST_C128_LAUNCH_SKIP_EMPTY &&
           value(b, ST_SWITCH_GRAPH_SKIP) == ST_GRAPH_SKIP_CONDITIONAL;
}

static void add_save(struct st_plan_builder *b, int32_t layer, int32_t ordinal, enum st_part part,
                     enum st_cache_id state) {
    struct st_launch launch = st_plan_launch(b, ST_OP_SAVE_PARTIAL_STATES, layer, ordinal);
    launch.part = (uint8_t)part;
    launch.cache = (uint8_t)state;
    st_plan_add(b, launch);
    st_plan_observe(b, launch, ST_VIEW_STATE);
}

static void add_fused(struct st_plan_builder *b, int32_t layer, int32_t ordinal, enum st_part part,
                      enum st_cache_id entries) {
    struct st_launch launch = st_plan_launch(b, ST_OP_COMPRESS_FUSED, layer, ordinal);
    launch.part = (uint8_t)part;
    launch.cache = (uint8_t)entries;
    launch.after_save =
        entries == ST_CACHE_KV_C128 && st_operator_wanted(b->ops_mask, ST_OP_SAVE_PARTIAL_STATES);
    st_plan_add(b, launch);
    /* Ratio 128 is looked at under the name of the pair, whichever kernels wrote it. */
    if (entries != ST_CACHE_KV_C128)
        st_plan_observe(b, launch, ST_VIEW_ENTRY);
}

static void add_pair(struct st_plan_builder *b, int32_t layer, int32_t ordinal) {
    struct st_launch pool = st_plan_launch(b, ST_OP_COMPRESS_POOL, layer, ordinal);
    struct st_launch store = st_plan_launch(b, ST_OP_COMPRESS_NORM_ROPE_STORE, layer, ordinal);
    pool.cache = store.cache = ST_CACHE_KV_C128;
    store.after_pool = st_operator_wanted(b->ops_mask, ST_OP_COMPRESS_POOL);
    if (st_plan_c128_launch(b) == ST_C128_LAUNCH_COMPACT) {
        add_fused(b, layer, ordinal, ST_PART_MAIN, ST_CACHE_KV_C128);
    } else {
        bool node_disable = b->shape->mode == ST_GRAPH_MODE_FULL &&
                            value(b, ST_SWITCH_GRAPH_SKIP) == ST_GRAPH_SKIP_NODE_DISABLE;
        bool skip = skips_pair(b);
        pool.disabled = store.disabled = skip && node_disable;
        if (!skip || node_disable) {
            st_plan_add(b, pool);
            st_plan_add(b, store);
        }
    }
    st_plan_observe(b, store, ST_VIEW_ENTRY);
}

/* ---- indexer */

static void add_topk(struct st_plan_builder *b, int32_t layer, int32_t ordinal) {
    struct st_launch fill = st_plan_launch(b, ST_OP_FILL, layer, ordinal);
    fill.part = ST_PART_INDEXER;
    st_plan_add(b, fill);
    /* Prefill first, as in the engine: what decodes write past their rows stays there. */
    struct st_launch launch = decode_launch(b, ST_OP_TOPK_PER_ROW, layer, ordinal);
    for (int32_t i = b->plan->first_index_chunk; i < b->plan->chunk_count; i++) {
        launch.part = ST_PART_PREFILL;
        launch.chunk = (int16_t)i;
        launch.first_token = b->plan->chunk[i].first_token;
        launch.token_count = b->plan->chunk[i].token_count;
        launch.first_request = b->plan->chunk[i].plan.first_req;
        launch.request_count = b->plan->chunk[i].plan.req_count;
        st_plan_add(b, launch);
        st_plan_observe(b, launch, ST_VIEW_TOPK);
    }
    if (!has_decode(b))
        return;
    launch = decode_launch(b, ST_OP_TOPK_PER_ROW, layer, ordinal);
    st_plan_add(b, launch);
    st_plan_observe(b, launch, ST_VIEW_TOPK);
    launch = decode_launch(b, ST_OP_GLOBAL_TOPK_INDICES, layer, ordinal);
    st_plan_add(b, launch);
    st_plan_observe(b, launch, ST_VIEW_GLOBAL_TOPK);
}

/* ---- attention */

static void add_decode(struct st_plan_builder *b, int32_t layer, int32_t ordinal) {
    if (!has_decode(b))
        return;
    struct st_launch launch = decode_launch(b, ST_OP_SPARSE_MLA_DECODE, layer, ordinal);
    if (value(b, ST_SWITCH_MLA_PLAN) == ST_MLA_PLAN_PER_LAYER || ordinal == 0) {
        launch.phases = STEPTAPE_DECODE_PLAN;
        st_plan_add(b, launch);
    }
    launch.phases = STEPTAPE_DECODE_SPLIT;
    st_plan_add(b, launch);
    launch.phases = STEPTAPE_DECODE_COMBINE;
    st_plan_add(b, launch);
    st_plan_observe(b, launch, ST_VIEW_OUT);
}

static void add_prefill_chunk(struct st_plan_builder *b, int32_t layer, int32_t ordinal,
                              int32_t chunk) {
    enum st_layer_kind kind = (enum st_layer_kind)b->model->layer_kind[layer];
    const struct st_chunk *c = &b->plan->chunk[chunk];
    struct st_launch launch = st_plan_launch(b, ST_OP_DEQUANTIZE_AND_GATHER, layer, ordinal);
    launch.chunk = (int16_t)chunk;
    launch.first_token = c->first_token;
    launch.token_count = c->token_count;
    launch.first_request = c->plan.first_req;
    launch.request_count = c->plan.req_count;
    launch.part = ST_PART_COMPRESSED;
    if (kind != ST_LAYER_SWA)
        st_plan_add(b, launch);
    launch.part = ST_PART_WINDOW;
    if (kind != ST_LAYER_DSA)
        st_plan_add(b, launch);
    launch.part = ST_PART_PREFILL;
    int buffer = value(b, ST_SWITCH_COMBINE_BUFFER);
    if (buffer == ST_COMBINE_BUFFER_FILL || buffer == ST_COMBINE_BUFFER_RESEED) {
        launch.op = ST_OP_FILL;
        st_plan_add(b, launch);
    }
    launch.op = ST_OP_COMBINE_TOPK_SWA_INDICES;
    st_plan_add(b, launch);
    st_plan_observe(b, launch, ST_VIEW_COMBINED);
    launch.op = ST_OP_SPARSE_MLA_PREFILL;
    st_plan_add(b, launch);
    st_plan_observe(b, launch, ST_VIEW_OUT);
}

void st_plan_layer(struct st_plan_builder *b, int32_t layer, int32_t ordinal) {
    int kind = b->model->layer_kind[layer];
    if (kind == ST_LAYER_C4) {
        add_save(b, layer, ordinal, ST_PART_MAIN, ST_CACHE_STATE_C4);
        add_fused(b, layer, ordinal, ST_PART_MAIN, ST_CACHE_KV_C4);
        add_save(b, layer, ordinal, ST_PART_INDEXER, ST_CACHE_STATE_INDEXER);
        add_fused(b, layer, ordinal, ST_PART_INDEXER, ST_CACHE_KV_INDEXER);
    } else if (kind == ST_LAYER_C128) {
        add_save(b, layer, ordinal, ST_PART_MAIN, ST_CACHE_STATE_C128);
        add_pair(b, layer, ordinal);
    }
    if (kind == ST_LAYER_C4 || kind == ST_LAYER_DSA)
        add_topk(b, layer, ordinal);
    add_decode(b, layer, ordinal);
    for (int32_t i = b->plan->first_chunk[kind]; i < b->plan->first_chunk[kind + 1]; i++)
        add_prefill_chunk(b, layer, ordinal, i);
}
