/* SPDX-License-Identifier: Apache-2.0 */
/* Plans of hand-made steps: what is launched, skipped, and could have been skipped. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "replay/bind.h"
#include "replay/plan.h"
#include "replay/testing.h"
#include "steptape/kernels.h"

struct rig {
    struct st_model model;
    struct st_policy baseline, upstream;
    struct st_plan a, b;
    int32_t start[300], query_len[300], draft[300];
    struct st_step step;
};

static void rig_init(struct rig *rig, const char *model) {
    static const struct st_header nothing = {.compress_ratio_count = -1,
                                             .max_model_len = -1,
                                             .max_num_seqs = -1,
                                             .max_num_batched_tokens = -1,
                                             .num_blocks = -1};
    memset(rig, 0, sizeof *rig);
    ST_ASSERT_OK(st_model_load(model, &nothing, &rig->model, &ok_err));
    ST_ASSERT_OK(st_policy_parse("baseline", &rig->baseline, &ok_err));
    ST_ASSERT_OK(st_policy_parse("upstream", &rig->upstream, &ok_err));
    rig->step.num_computed_tokens = rig->start;
    rig->step.query_len = rig->query_len;
    rig->step.graph_mode = ST_GRAPH_MODE_NONE;
    rig->step.padded_token_count = rig->step.padded_request_count = ST_UNKNOWN;
    rig->step.cpu_starts = -1;
}

static void set_decodes(struct rig *rig, int32_t n, int32_t start) {
    rig->step.request_count = n;
    rig->step.token_count = n;
    for (int32_t i = 0; i < n; i++) {
        rig->start[i] = start;
        rig->query_len[i] = 1;
    }
}

static void plan_one(struct rig *rig, const char *policy, enum st_mode_request mode,
                     struct st_plan *plan) {
    struct st_step_shape shape;
    static struct st_policy parsed; /* a plan borrows it */
    ST_ASSERT_OK(st_policy_parse(policy, &parsed, &ok_err));
    st_step_shape_make(&rig->model, &rig->step, mode, &shape);
    ST_ASSERT_OK(st_plan_make(&rig->model, &rig->step, &shape, &parsed, 0, false, plan, &ok_err));
}

static void plan_both(struct rig *rig, enum st_mode_request mode) {
    struct st_step_shape shape;
    st_step_shape_make(&rig->model, &rig->step, mode, &shape);
    ST_ASSERT_OK(
        st_plan_make(&rig->model, &rig->step, &shape, &rig->baseline, 0, false, &rig->a, &ok_err));
    ST_ASSERT_OK(
        st_plan_make(&rig->model, &rig->step, &shape, &rig->upstream, 0, false, &rig->b, &ok_err));
}

static void rig_fini(struct rig *rig) {
    st_plan_fini(&rig->a);
    st_plan_fini(&rig->b);
}

static int32_t could_skip(const struct st_plan *plan) {
    int32_t total = 0;
    for (int op = 0; op < ST_OP_COUNT; op++)
        total += plan->could_skip[op];
    return total;
}

static void expect(const struct st_plan *plan, enum st_operator op, int32_t launches,
                   int32_t skipped) {
    if (plan->launches[op] != launches || plan->skipped[op] != skipped)
        fail_msg("%s: %d launches and %d skipped, expected %d and %d", st_operator_name(op),
                 plan->launches[op], plan->skipped[op], launches, skipped);
}

static void skips_where_no_group_closes(void **state) {
    (void)state;
    static const struct {
        const char *model;
        int32_t layers;
    } models[] = {{"deepseek-v4-flash", 20}, {"deepseek-v4-pro", 31}, {"deepseek-v4-tiny", 1}};
    for (int i = 0; i < 3; i++) {
        struct rig rig;
        int32_t n = models[i].layers;
        rig_init(&rig, models[i].model);
        set_decodes(&rig, 3, 125);
        plan_both(&rig, ST_MODE_EAGER);
        expect(&rig.a, ST_OP_COMPRESS_POOL, n, 0);
        expect(&rig.a, ST_OP_COMPRESS_NORM_ROPE_STORE, n, 0);
        expect(&rig.b, ST_OP_COMPRESS_POOL, 0, n);
        expect(&rig.b, ST_OP_COMPRESS_NORM_ROPE_STORE, 0, n);
        assert_int_equal(rig.b.skipped[ST_OP_SAVE_PARTIAL_STATES], 0);
        assert_int_equal(could_skip(&rig.b), 0);
        set_decodes(&rig, 3, 127);
        plan_both(&rig, ST_MODE_PIECEWISE);
        assert_int_equal(rig.b.shape.mode, ST_GRAPH_MODE_PIECEWISE);
        expect(&rig.b, ST_OP_COMPRESS_POOL, n, 0);
        assert_int_equal(could_skip(&rig.b), 0);
        rig_fini(&rig);
    }
}

static void full_graphs_prevent_it(void **state) {
    (void)state;
    struct rig rig;
    rig_init(&rig, "deepseek-v4-flash");
    set_decodes(&rig, 3, 125);
    plan_both(&rig, ST_MODE_FULL);
    assert_int_equal(rig.b.shape.mode, ST_GRAPH_MODE_FULL);
    assert_int_equal(rig.b.shape.padded_token_count, 4);
    assert_int_equal(rig.b.shape.padded_request_count, 4);
    expect(&rig.b, ST_OP_COMPRESS_POOL, 20, 0);
    assert_int_equal(could_skip(&rig.b), 40);
    assert_int_equal(could_skip(&rig.a), 0);
    for (int32_t i = 0; i < rig.b.launch_count; i++)
        assert_int_equal(rig.b.launch[i].in_graph, rig.b.launch[i].layer >= 0);
    set_decodes(&rig, 3, 127);
    plan_both(&rig, ST_MODE_FULL);
    assert_int_equal(could_skip(&rig.b), 0);
    rig_fini(&rig);
}

static void graph_skip_collects_it(void **state) {
    (void)state;
    static const struct {
        const char *policy;
        int8_t cpu_starts;
        int32_t pairs, disabled, conditions;
    } cases[] = {
        {"upstream,graph-skip=variant", 1, 0, 0, 0},
        {"upstream,graph-skip=variant", 0, 20, 0, 0},
        {"upstream,graph-skip=node-disable", 1, 0, 40, 0},
        {"upstream,graph-skip=node-disable", 0, 20, 0, 0},
        {"upstream,graph-skip=conditional", 1, 0, 0, 1},
        {"upstream,graph-skip=conditional", 0, 0, 0, 1},
    };
    struct rig rig;
    rig_init(&rig, "deepseek-v4-flash");
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        int32_t disabled = 0;
        set_decodes(&rig, 3, 125);
        rig.step.cpu_starts = cases[i].cpu_starts;
        plan_one(&rig, cases[i].policy, ST_MODE_FULL, &rig.a);
        expect(&rig.a, ST_OP_COMPRESS_POOL, cases[i].pairs, 20 - cases[i].pairs);
        assert_int_equal(rig.a.launches[ST_OP_GRAPH_CONDITION], cases[i].conditions);
        assert_int_equal(could_skip(&rig.a), 2 * cases[i].pairs);
        for (int32_t l = 0; l < rig.a.launch_count; l++)
            disabled += rig.a.launch[l].disabled;
        assert_int_equal(disabled, cases[i].disabled);
        set_decodes(&rig, 3, 127); /* a group closes */
        plan_one(&rig, cases[i].policy, ST_MODE_FULL, &rig.a);
        expect(&rig.a, ST_OP_COMPRESS_POOL, 20, 0);
    }
    rig_fini(&rig);
}

static void compact_is_one_launch_a_layer(void **state) {
    (void)state;
    struct rig rig;
    static const struct {
        enum st_mode_request mode;
        int32_t decodes, start, lists;
    } cases[] = {{ST_MODE_EAGER, 3, 125, 0},
                 {ST_MODE_FULL, 3, 127, 0},
                 {ST_MODE_EAGER, 64, 125, 0},
                 {ST_MODE_EAGER, 65, 127, 1},
                 {ST_MODE_FULL, 65, 125, 1}};
    rig_init(&rig, "deepseek-v4-flash");
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        set_decodes(&rig, cases[i].decodes, cases[i].start);
        plan_one(&rig, "baseline,c128-launch=compact", cases[i].mode, &rig.a);
        expect(&rig.a, ST_OP_COMPRESS_POOL, 0, 20);
        expect(&rig.a, ST_OP_COMPRESS_NORM_ROPE_STORE, 0, 20);
        expect(&rig.a, ST_OP_BOUNDARY_LIST, cases[i].lists, 0);
        expect(&rig.a, ST_OP_COMPRESS_FUSED, 2 * 21 + 20, 0);
        assert_int_equal(could_skip(&rig.a), 0);
        for (int32_t l = 1; l < rig.a.launch_count; l++) {
            const struct st_launch *launch = &rig.a.launch[l];
            if (launch->op != ST_OP_COMPRESS_FUSED)
                continue;
            assert_int_equal(launch->after_save, launch->cache == ST_CACHE_KV_C128);
            assert_int_equal(launch[-1].op, ST_OP_SAVE_PARTIAL_STATES);
        }
    }
    rig_fini(&rig);
}

static void by_size_is_one_of_the_two(void **state) {
    (void)state;
    struct rig rig;
    static const enum st_mode_request all[] = {ST_MODE_EAGER, ST_MODE_FULL};
    rig_init(&rig, "deepseek-v4-flash");
    for (int i = 0; i < 2; i++) {
        const char *policy = "baseline,c128-launch=by-size,graph-skip=variant";
        set_decodes(&rig, 64, 125); /* no group closes */
        plan_one(&rig, policy, all[i], &rig.a);
        expect(&rig.a, ST_OP_COMPRESS_POOL, 0, 20);
        expect(&rig.a, ST_OP_COMPRESS_FUSED, 2 * 21, 0);
        set_decodes(&rig, 64, 127);
        plan_one(&rig, policy, all[i], &rig.a);
        expect(&rig.a, ST_OP_COMPRESS_POOL, 20, 0);
        set_decodes(&rig, 65, 125);
        plan_one(&rig, policy, all[i], &rig.a);
        expect(&rig.a, ST_OP_BOUNDARY_LIST, 1, 0);
        expect(&rig.a, ST_OP_COMPRESS_POOL, 0, 20);
        expect(&rig.a, ST_OP_COMPRESS_FUSED, 2 * 21 + 20, 0);
        assert_int_equal(could_skip(&rig.a), 0);
    }
    rig_fini(&rig);
}

static void so_do_starts_that_are_not_on_the_cpu(void **state) {
    (void)state;
    struct rig rig;
    rig_init(&rig, "deepseek-v4-flash");
    set_decodes(&rig, 3, 125);
    rig.step.cpu_starts = 0;
    plan_both(&rig, ST_MODE_EAGER);
    assert_int_equal(rig.b.shape.boundary, ST_BOUNDARY_NONE);
    expect(&rig.b, ST_OP_COMPRESS_POOL, 20, 0);
    assert_int_equal(could_skip(&rig.b), 40);
    set_decodes(&rig, 3, 127); /* the tape knows that a group closes */
    plan_both(&rig, ST_MODE_EAGER);
    assert_int_equal(could_skip(&rig.b), 0);
    rig_fini(&rig);
}

static void tape_modes(void **state) {
    (void)state;
    struct rig rig;
    rig_init(&rig, "deepseek-v4-flash");
    set_decodes(&rig, 5, 10);
    rig.step.graph_mode = ST_GRAPH_MODE_FULL;
    rig.step.padded_token_count = 24; /* as recorded, not the default's 8 */
    plan_both(&rig, ST_MODE_TAPE);
    assert_int_equal(rig.a.shape.mode, ST_GRAPH_MODE_FULL);
    assert_int_equal(rig.a.shape.padded_token_count, 24);
    rig.step.graph_mode = ST_GRAPH_MODE_PIECEWISE;
    plan_both(&rig, ST_MODE_TAPE);
    assert_int_equal(rig.a.shape.mode, ST_GRAPH_MODE_PIECEWISE);
    assert_int_equal(rig.a.shape.padded_token_count, 5);
    assert_false(rig.a.shape.mode_unknown);
    rig.step.graph_mode = ST_GRAPH_MODE_UNKNOWN;
    plan_both(&rig, ST_MODE_TAPE);
    assert_int_equal(rig.a.shape.mode, ST_GRAPH_MODE_NONE);
    assert_true(rig.a.shape.mode_unknown);
    rig_fini(&rig);
}

static void default_modes_are_the_dispatchers(void **state) {
    (void)state;
    struct rig rig;
    rig_init(&rig, "deepseek-v4-flash");
    set_decodes(&rig, 5, 10);
    plan_both(&rig, ST_MODE_FULL_AND_PIECEWISE);
    assert_int_equal(rig.a.shape.mode, ST_GRAPH_MODE_FULL);
    assert_int_equal(rig.a.shape.padded_token_count, 8);
    rig.query_len[4] = 40; /* a prefill beside */
    rig.step.token_count = 44;
    plan_both(&rig, ST_MODE_FULL_AND_PIECEWISE);
    assert_int_equal(rig.a.shape.mode, ST_GRAPH_MODE_PIECEWISE);
    assert_int_equal(rig.a.shape.decode_token_count, 4);
    assert_int_equal(rig.a.shape.padded_token_count, 44);
    rig.query_len[0] = 509; /* the largest size is 512 */
    rig.step.token_count = 552;
    static const enum st_mode_request graphs[] = {ST_MODE_FULL, ST_MODE_PIECEWISE,
                                                  ST_MODE_FULL_AND_PIECEWISE};
    for (int i = 0; i < 3; i++) {
        plan_both(&rig, graphs[i]);
        assert_int_equal(rig.a.shape.mode, ST_GRAPH_MODE_NONE);
        assert_true(rig.a.shape.above_largest);
    }
    /* Verified drafts of one length are uniform too, ragged ones are not. */
    set_decodes(&rig, 4, 10);
    for (int i = 0; i < 4; i++) {
        rig.query_len[i] = 3;
        rig.draft[i] = 2;
    }
    rig.step.draft = rig.draft;
    rig.step.token_count = 12;
    plan_both(&rig, ST_MODE_FULL_AND_PIECEWISE);
    assert_int_equal(rig.a.shape.mode, ST_GRAPH_MODE_FULL);
    rig.query_len[2] = 2;
    rig.step.token_count = 11;
    plan_both(&rig, ST_MODE_FULL_AND_PIECEWISE);
    assert_int_equal(rig.a.shape.mode, ST_GRAPH_MODE_PIECEWISE);
    assert_int_equal(rig.a.shape.decode_token_count, 11);
    rig_fini(&rig);
}

static void nothing_without_tokens(void **state) {
    (void)state;
    struct rig rig;
    rig_init(&rig, "deepseek-v4-flash");
    for (int mode = ST_MODE_FULL_AND_PIECEWISE; mode <= ST_MODE_FULL; mode++) {
        plan_both(&rig, (enum st_mode_request)mode);
        assert_int_equal(rig.a.launch_count + rig.b.launch_count, 0);
        assert_int_equal(rig.b.skipped[ST_OP_COMPRESS_POOL], 0);
        assert_int_equal(could_skip(&rig.b), 0);
    }
    rig_fini(&rig);
}

static void ops_leave_out(void **state) {
    (void)state;
    struct rig rig;
    struct st_step_shape shape;
    rig_init(&rig, "deepseek-v4-flash");
    set_decodes(&rig, 3, 125);
    st_step_shape_make(&rig.model, &rig.step, ST_MODE_EAGER, &shape);
    ST_ASSERT_OK(st_plan_make(&rig.model, &rig.step, &shape, &rig.upstream,
                              1u << ST_OP_COMPRESS_POOL, true, &rig.b, &ok_err));
    assert_int_equal(rig.b.launch_count, 0);
    expect(&rig.b, ST_OP_COMPRESS_POOL, 0, 20);
    expect(&rig.b, ST_OP_COMPRESS_NORM_ROPE_STORE, 0, 0);
    rig_fini(&rig);
}

/* Decodes and a prefill of one step: who is served by which kernels, per kind of layers. */
static void attention_of_a_mixed_step(void **state) {
    (void)state;
    struct rig rig;
    rig_init(&rig, "deepseek-v4-flash"); /* 2 swa, 21 c4, 20 c128 */
    set_decodes(&rig, 3, 1000);
    rig.query_len[2] = 200;
    rig.step.token_count = 202;
    plan_both(&rig, ST_MODE_EAGER);
    const struct st_plan *p = &rig.a;
    assert_int_equal(p->shape.decode_token_count, 2);
    expect(p, ST_OP_COMPRESSED_SLOT_MAPPING, 3, 0);
    expect(p, ST_OP_SWA_INDICES, 2, 0);
    expect(p, ST_OP_GATHER_LENS, 1, 0);
    expect(p, ST_OP_C128A_TOPK_METADATA, 1, 0);
    expect(p, ST_OP_SAVE_PARTIAL_STATES, 21 * 2 + 20, 0);
    expect(p, ST_OP_COMPRESS_FUSED, 21 * 2, 0);
    expect(p, ST_OP_GLOBAL_TOPK_INDICES, 21, 0);
    expect(p, ST_OP_SPARSE_MLA_DECODE, 43 * 3, 0);
    expect(p, ST_OP_DEQUANTIZE_AND_GATHER, 2 + 41 * 2, 0);
    expect(p, ST_OP_COMBINE_TOPK_SWA_INDICES, 43, 0);
    expect(p, ST_OP_SPARSE_MLA_PREFILL, 43, 0);
    expect(p, ST_OP_FILL, 21 + 43, 0);
    expect(&rig.b, ST_OP_FILL, 21, 43); /* reuse */
    plan_one(&rig, "baseline,mla-plan=per-type", ST_MODE_EAGER, &rig.b);
    expect(&rig.b, ST_OP_SPARSE_MLA_DECODE, 43 * 2 + 3, 40);
    plan_one(&rig, "baseline", ST_MODE_FULL, &rig.b); /* all rows decode */
    expect(&rig.b, ST_OP_SPARSE_MLA_PREFILL, 0, 0);
    assert_int_equal(rig.b.shape.decode_token_count, 208);
    rig_fini(&rig);
}

static void the_fast_selection_is_one_launch(void **state) {
    (void)state;
    struct rig rig;
    rig_init(&rig, "deepseek-v3.2");
    set_decodes(&rig, 3, 5000);
    plan_both(&rig, ST_MODE_EAGER); /* upstream: fast for k = 2048 */
    assert_true(rig.a.launches[ST_OP_TOPK_PER_ROW] > 61);
    expect(&rig.b, ST_OP_TOPK_PER_ROW, 61, rig.a.launches[ST_OP_TOPK_PER_ROW] - 61);
    assert_int_equal(rig.a.launches[ST_OP_SWA_INDICES], 0);
    assert_int_equal(rig.a.launches[ST_OP_SAVE_PARTIAL_STATES], 0);
    rig_fini(&rig);
}

static void order_and_sizes(void **state) {
    (void)state;
    struct rig rig;
    rig_init(&rig, "deepseek-v4-flash");
    set_decodes(&rig, 4, 127);
    plan_both(&rig, ST_MODE_EAGER);
    assert_int_equal(rig.a.launch[0].op, ST_OP_COMPRESSED_SLOT_MAPPING);
    assert_int_equal(rig.a.launch[0].cache, ST_CACHE_KV_C4);
    int32_t layer = -1;
    for (int32_t i = 0; i < rig.a.launch_count; i++) {
        const struct st_launch *l = &rig.a.launch[i];
        assert_true(l->layer >= layer);
        layer = l->layer;
        assert_true(l->grid > 0 && l->block > 0 && l->bytes > 0);
        if (l->op == ST_OP_COMPRESS_POOL) { /* four windows: 4 x 128 rows of 4 KB */
            assert_true(l->bytes >= 4 * 128 * 4096);
            assert_true(l[1].op == ST_OP_COMPRESS_NORM_ROPE_STORE && l[1].after_pool);
        }
    }
    assert_int_equal(layer, 42);
    assert_int_equal(rig.a.shape.boundary_tokens, 4);
    rig_fini(&rig);
}

/* What a graph holds beside device data may not depend on the step. */
static void a_full_graph_holds_for_every_step(void **state) {
    (void)state;
    static const char *const policies[] = {"baseline", "upstream", "corrected", "safe"};
    struct rig rig;
    rig_init(&rig, "deepseek-v4-flash");
    for (int p = 0; p < 4; p++) {
        set_decodes(&rig, 3, 125);
        plan_one(&rig, policies[p], ST_MODE_FULL, &rig.a);
        set_decodes(&rig, 4, 9005);
        plan_one(&rig, policies[p], ST_MODE_FULL, &rig.b);
        assert_int_equal(rig.a.launch_count, rig.b.launch_count);
        struct st_limits limits = {.max_tokens = 4,
                                   .max_requests = 4,
                                   .max_seq_len = 10000,
                                   .max_logits = 1 << 22,
                                   .uses_full = true};
        struct st_buffers buffers;
        st_buffers_make(&rig.model, &limits, 1, &buffers);
        for (int32_t i = 0; i < rig.a.launch_count; i++) {
            if (!rig.a.launch[i].in_graph)
                continue;
            union st_args x, y;
            st_bind(&rig.model, &buffers, NULL, &rig.a, &rig.a.launch[i], &x);
            st_bind(&rig.model, &buffers, NULL, &rig.b, &rig.b.launch[i], &y);
            assert_memory_equal(&x, &y, sizeof x);
            assert_int_equal(rig.a.launch[i].grid, rig.b.launch[i].grid);
        }
    }
    rig_fini(&rig);
}

/* A cost function that refuses what it is told leaves a launch without a grid. */
/* One request in a batch needs them. */
static void lists_as_wide_as_the_longest_context(void **state) {
    (void)state;
    struct rig rig;
    rig_init(&rig, "deepseek-v4-flash");
    set_decodes(&rig, 3, 125);
    rig.start[1] = 16510;
    plan_both(&rig, ST_MODE_EAGER);
    assert_int_equal(rig.b.topk_width, 128);
    rig.start[1] = 16511; /* and its token */
    plan_both(&rig, ST_MODE_EAGER);
    assert_int_equal(rig.b.topk_width, 256);
    rig_fini(&rig);
}

static void every_launch_has_a_cost(void **state) {
    (void)state;
    static const char *const models[] = {"deepseek-v4-tiny", "deepseek-v4-pro", "deepseek-v3.2"};
    static const char *const policies[] = {"baseline", "upstream", "corrected", "safe"};
    static const int32_t chunks[] = {1, 30, 5000};
    for (int i = 0; i < 3 * 4 * 3; i++) {
        struct rig rig;
        rig_init(&rig, models[i % 3]);
        set_decodes(&rig, 4, 126);
        rig.query_len[3] = chunks[i / 12];
        rig.step.token_count = 3 + rig.query_len[3];
        plan_one(&rig, policies[i / 3 % 4], ST_MODE_EAGER, &rig.a);
        for (int32_t k = 0; k < rig.a.launch_count; k++)
            if (rig.a.launch[k].grid == 0 || rig.a.launch[k].block == 0)
                fail_msg("%s, %s: %s of layer %d has no grid", models[i % 3], policies[i / 3 % 4],
                         st_operator_name((enum st_operator)rig.a.launch[k].op),
                         rig.a.launch[k].layer);
        rig_fini(&rig);
    }
}

static void observations_follow_the_step(void **state) {
    (void)state;
    struct rig rig;
    struct st_step_shape shape;
    rig_init(&rig, "deepseek-v4-tiny");
    set_decodes(&rig, 3, 300);
    rig.query_len[2] = 30;
    rig.step.token_count = 32;
    st_step_shape_make(&rig.model, &rig.step, ST_MODE_EAGER, &shape);
    ST_ASSERT_OK(
        st_plan_make(&rig.model, &rig.step, &shape, &rig.baseline, 0, true, &rig.a, &ok_err));
    ST_ASSERT_OK(
        st_plan_make(&rig.model, &rig.step, &shape, &rig.upstream, 0, true, &rig.b, &ok_err));
    assert_int_equal(rig.a.observation_count, rig.b.observation_count);
    assert_true(rig.a.observation_count > 20);
    int32_t j = 0;
    for (int32_t i = 0; i < rig.a.launch_count; i++) {
        const struct st_launch *l = &rig.a.launch[i];
        if (l->op != ST_OP_OBSERVE)
            continue;
        while (rig.b.launch[j].op != ST_OP_OBSERVE)
            j++;
        assert_int_equal(rig.b.launch[j].view, l->view);
        assert_int_equal(rig.b.launch[j].layer, l->layer);
        assert_int_equal(rig.b.launch[j++].token_count, l->token_count);
    }
    rig_fini(&rig);
}

/* Drafts of 2, 0 and 1: 6 tokens; rows for 3 of each, or of what a graph captured. */
static void rows_of_a_selection(void **state) {
    (void)state;
    static const struct {
        const char *policy;
        enum st_mode_request mode;
        int64_t rows;
        enum st_buffer_id out;
    } cases[] = {
        {"baseline", ST_MODE_EAGER, 6, ST_BUF_TOPK},
        {"baseline,topk-rows=padded", ST_MODE_EAGER, 9, ST_BUF_TOPK_PADDED},
        {"baseline,topk-rows=unpadded", ST_MODE_PIECEWISE, 9, ST_BUF_TOPK},
        {"baseline,topk-rows=padded", ST_MODE_FULL, 8, ST_BUF_TOPK},
        {"baseline,topk-rows=unpadded", ST_MODE_FULL, 8, ST_BUF_TOPK},
    };
    static const int32_t drafts[] = {2, 0, 1};
    static uint8_t memory[ST_BUF_COUNT];
    struct st_frame frame;
    for (int id = 0; id < ST_BUF_COUNT; id++)
        frame.at[id] = &memory[id];
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct rig rig;
        rig_init(&rig, "deepseek-v4-tiny");
        set_decodes(&rig, 3, 200);
        for (int r = 0; r < 3; r++)
            rig.query_len[r] = 1 + (rig.draft[r] = drafts[r]);
        rig.step.token_count = 6;
        rig.step.draft = rig.draft;
        plan_one(&rig, cases[i].policy, cases[i].mode, &rig.a);
        struct st_limits limits = {.max_tokens = 8,
                                   .max_requests = 8,
                                   .max_seq_len = 300,
                                   .max_logits = 1 << 20,
                                   .max_topk_rows = 9,
                                   .uses_full = true};
        struct st_buffers buffers;
        st_buffers_make(&rig.model, &limits, 1, &buffers);
        assert_int_equal(buffers.bytes[ST_BUF_TOPK], 9 * 512 * 4);
        int selections = 0;
        for (int32_t k = 0; k < rig.a.launch_count; k++) {
            const struct st_launch *launch = &rig.a.launch[k];
            union st_args args;
            st_bind(&rig.model, &buffers, &frame, &rig.a, launch, &args);
            if (launch->op == ST_OP_TOPK_PER_ROW) {
                assert_int_equal(args.topk_per_row.num_rows, cases[i].rows);
                assert_ptr_equal(args.topk_per_row.out, frame.at[cases[i].out]);
                assert_int_equal(launch->grid, cases[i].rows);
                selections++;
            } else if (launch->op == ST_OP_GLOBAL_TOPK_INDICES) {
                assert_ptr_equal(args.global_topk_indices.topk_indices, frame.at[cases[i].out]);
            }
        }
        assert_int_equal(selections, 2);
        rig_fini(&rig);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(skips_where_no_group_closes),
        cmocka_unit_test(full_graphs_prevent_it),
        cmocka_unit_test(graph_skip_collects_it),
        cmocka_unit_test(compact_is_one_launch_a_layer),
        cmocka_unit_test(by_size_is_one_of_the_two),
        cmocka_unit_test(so_do_starts_that_are_not_on_the_cpu),
        cmocka_unit_test(tape_modes),
        cmocka_unit_test(default_modes_are_the_dispatchers),
        cmocka_unit_test(nothing_without_tokens),
        cmocka_unit_test(ops_leave_out),
        cmocka_unit_test(attention_of_a_mixed_step),
        cmocka_unit_test(the_fast_selection_is_one_launch),
        cmocka_unit_test(order_and_sizes),
        cmocka_unit_test(a_full_graph_holds_for_every_step),
        cmocka_unit_test(lists_as_wide_as_the_longest_context),
        cmocka_unit_test(every_launch_has_a_cost),
        cmocka_unit_test(rows_of_a_selection),
        cmocka_unit_test(observations_follow_the_step),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
