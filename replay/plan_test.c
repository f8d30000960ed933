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

#include "replay/plan.h"
#include "replay/testing.h"
#include "steptape/kernels.h"

struct rig {
    struct st_model model;
    struct st_policy baseline, upstream;
    struct st_plan a, b;
    int32_t start[300], query_len[300];
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

static void plan_both(struct rig *rig, enum st_mode_request mode) {
    struct st_step_shape shape;
    st_step_shape_make(&rig->model, &rig->step, mode, &shape);
    st_plan_make(&rig->model, &shape, &rig->baseline, 0, &rig->a);
    st_plan_make(&rig->model, &shape, &rig->upstream, 0, &rig->b);
}

static int32_t could_skip(const struct st_plan *plan) {
    int32_t total = 0;
    for (int op = 0; op < ST_OP_COUNT; op++)
        total += plan->could_skip[op];
    return total;
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
        assert_int_equal(rig.a.launch_count, 2 + 3 * n);
        assert_int_equal(rig.b.launch_count, 2 + n);
        assert_int_equal(rig.a.skipped[ST_OP_COMPRESS_POOL], 0);
        assert_int_equal(rig.b.skipped[ST_OP_COMPRESS_POOL], n);
        assert_int_equal(rig.b.skipped[ST_OP_COMPRESS_NORM_ROPE_STORE], n);
        assert_int_equal(rig.b.skipped[ST_OP_SAVE_PARTIAL_STATES], 0);
        assert_int_equal(could_skip(&rig.b), 0);
        set_decodes(&rig, 3, 127);
        plan_both(&rig, ST_MODE_EAGER);
        assert_int_equal(rig.b.launch_count, 2 + 3 * n);
        assert_int_equal(rig.b.skipped[ST_OP_COMPRESS_POOL], 0);
        assert_int_equal(could_skip(&rig.b), 0);
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
    assert_int_equal(rig.b.launch_count, 62);
    assert_int_equal(could_skip(&rig.b), 40);
    assert_int_equal(could_skip(&rig.a), 0);
    for (int32_t i = 0; i < rig.b.launch_count; i++)
        assert_int_equal(rig.b.launch[i].in_graph, rig.b.launch[i].layer >= 0);
    set_decodes(&rig, 3, 127);
    plan_both(&rig, ST_MODE_FULL);
    assert_int_equal(could_skip(&rig.b), 0);
}

static void so_do_starts_that_are_not_on_the_cpu(void **state) {
    (void)state;
    struct rig rig;
    rig_init(&rig, "deepseek-v4-flash");
    set_decodes(&rig, 3, 125);
    rig.step.cpu_starts = 0;
    plan_both(&rig, ST_MODE_EAGER);
    assert_int_equal(rig.b.shape.boundary, ST_BOUNDARY_NONE);
    assert_int_equal(rig.b.launch_count, 62);
    assert_int_equal(could_skip(&rig.b), 40);
    set_decodes(&rig, 3, 127); /* the tape knows that a group closes */
    plan_both(&rig, ST_MODE_EAGER);
    assert_int_equal(could_skip(&rig.b), 0);
}

static void modes(void **state) {
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
    assert_int_equal(rig.a.shape.mode, ST_GRAPH_MODE_NONE);
    assert_int_equal(rig.a.shape.padded_token_count, 5);
    assert_false(rig.a.shape.mode_unknown);
    rig.step.graph_mode = ST_GRAPH_MODE_UNKNOWN;
    plan_both(&rig, ST_MODE_TAPE);
    assert_int_equal(rig.a.shape.mode, ST_GRAPH_MODE_NONE);
    assert_true(rig.a.shape.mode_unknown);
    rig.query_len[0] = 509; /* 513 tokens, the largest size is 512 */
    rig.step.token_count = 513;
    plan_both(&rig, ST_MODE_FULL);
    assert_int_equal(rig.a.shape.mode, ST_GRAPH_MODE_NONE);
    assert_true(rig.a.shape.above_largest);
}

static void nothing_without_tokens(void **state) {
    (void)state;
    struct rig rig;
    static const enum st_mode_request all[] = {ST_MODE_EAGER, ST_MODE_FULL, ST_MODE_TAPE};
    rig_init(&rig, "deepseek-v4-flash");
    for (int i = 0; i < 3; i++) {
        plan_both(&rig, all[i]);
        assert_int_equal(rig.a.launch_count + rig.b.launch_count, 0);
        assert_int_equal(rig.b.skipped[ST_OP_COMPRESS_POOL], 0);
        assert_int_equal(could_skip(&rig.b), 0);
    }
}

static void ops_leave_out(void **state) {
    (void)state;
    struct rig rig;
    struct st_step_shape shape;
    rig_init(&rig, "deepseek-v4-flash");
    set_decodes(&rig, 3, 125);
    st_step_shape_make(&rig.model, &rig.step, ST_MODE_EAGER, &shape);
    st_plan_make(&rig.model, &shape, &rig.upstream, 1u << ST_OP_COMPRESS_POOL, &rig.b);
    assert_int_equal(rig.b.launch_count, 0);
    assert_int_equal(rig.b.skipped[ST_OP_COMPRESS_POOL], 20);
    assert_int_equal(rig.b.skipped[ST_OP_COMPRESS_NORM_ROPE_STORE], 0);
}

static void order_and_sizes(void **state) {
    (void)state;
    struct rig rig;
    rig_init(&rig, "deepseek-v4-flash");
    set_decodes(&rig, 4, 127);
    plan_both(&rig, ST_MODE_EAGER);
    assert_int_equal(rig.a.launch[0].op, ST_OP_COMPRESSED_SLOT_MAPPING);
    assert_int_equal(rig.a.launch[0].ratio, 4);
    assert_int_equal(rig.a.launch[1].ratio, 128);
    for (int32_t i = 2; i < rig.a.launch_count; i++) {
        const struct st_launch *l = &rig.a.launch[i];
        assert_int_equal(l->op, ST_OP_SAVE_PARTIAL_STATES + (i - 2) % 3);
        assert_int_equal(l->ordinal, (i - 2) / 3);
        assert_int_equal(l->layer, 3 + 2 * l->ordinal);
        assert_true(l->grid > 0 && l->block > 0 && l->bytes > 0);
    }
    assert_int_equal(rig.a.shape.boundary_tokens, 4);
    /* Pooling four windows reads 4 x 128 rows of 4 KB. */
    assert_true(rig.a.launch[3].bytes >= 4 * 128 * 4096);
}

/* The plan counts one launch a call. */
static void default_variants_are_one_launch(void **state) {
    (void)state;
    struct rig rig;
    rig_init(&rig, "deepseek-v4-flash");
    set_decodes(&rig, 4, 127);
    struct steptape_compressed_slot_mapping_args args = {
        .out_len = 64, .num_reqs = 4, .ratio = 4, .block_size = 64, .block_table_stride = 4};
    struct steptape_token_counts counts = {4, 1, 1, 0};
    struct steptape_cost cost;
    assert_int_equal(steptape_compressed_slot_mapping_cost(&args, &counts, &cost), 0);
    assert_int_equal(cost.launch_count, 1);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(skips_where_no_group_closes),
        cmocka_unit_test(full_graphs_prevent_it),
        cmocka_unit_test(so_do_starts_that_are_not_on_the_cpu),
        cmocka_unit_test(modes),
        cmocka_unit_test(nothing_without_tokens),
        cmocka_unit_test(ops_leave_out),
        cmocka_unit_test(order_and_sizes),
        cmocka_unit_test(default_variants_are_one_launch),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
