/* SPDX-License-Identifier: Apache-2.0 */
/* The simulated backend: deterministic, monotonic in what it should be, and only data. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "replay/backend.h"
#include "replay/device.h"
#include "replay/testing.h"

static int64_t time_plan(const char *const *set, int32_t set_count, const struct st_plan *plan) {
    struct st_backend_config config = {
        .pass = ST_PASS_TIME, .device_set_count = set_count, .device_set = set};
    struct st_backend_info info;
    struct st_backend *backend = NULL;
    struct st_step_result result;
    ST_ASSERT_OK(st_backend_sim.open(&config, &backend, &info, &ok_err));
    assert_true(info.simulated);
    ST_ASSERT_OK(st_backend_sim.launch(backend, plan, 0, &ok_err));
    ST_ASSERT_OK(st_backend_sim.sync(backend, &result, &ok_err));
    st_backend_sim.close(backend);
    return result.step_ns;
}

static struct st_plan *make_plan(enum st_mode_request mode, const char *policy_name) {
    static struct st_plan plan;
    static struct st_policy policy; /* a plan borrows it */
    static const int32_t start[] = {5, 6, 7}, query_len[] = {1, 1, 1};
    struct st_model model;
    struct st_step_shape shape;
    struct st_step step = {.request_count = 3,
                           .token_count = 3,
                           .num_computed_tokens = start,
                           .query_len = query_len,
                           .padded_token_count = ST_UNKNOWN,
                           .cpu_starts = 1};
    ST_ASSERT_OK(st_model_load("deepseek-v4-flash", st_testing_header(), &model, &ok_err));
    ST_ASSERT_OK(st_policy_parse(policy_name, &policy, &ok_err));
    st_step_shape_make(&model, &step, mode, &shape);
    ST_ASSERT_OK(st_plan_make(&model, &step, &shape, &policy, 0, false, &plan, &ok_err));
    return &plan;
}

static void same_plan_same_time(void **state) {
    (void)state;
    struct st_plan *plan = make_plan(ST_MODE_EAGER, "baseline");
    int64_t first = time_plan(NULL, 0, plan);
    assert_true(first > 0);
    for (int i = 0; i < 5; i++)
        assert_int_equal(time_plan(NULL, 0, plan), first);
}

static void fewer_launches_take_less(void **state) {
    (void)state;
    int64_t all = time_plan(NULL, 0, make_plan(ST_MODE_EAGER, "baseline"));
    int64_t skipped = time_plan(NULL, 0, make_plan(ST_MODE_EAGER, "upstream"));
    int64_t graph = time_plan(NULL, 0, make_plan(ST_MODE_FULL, "baseline"));
    assert_true(skipped < all);
    assert_true(graph < all);
}

/* A node that is switched off is passed, not run; a graph without it has nothing to pass. */
static void nodes_that_are_off(void **state) {
    (void)state;
    int64_t on = time_plan(NULL, 0, make_plan(ST_MODE_FULL, "upstream"));
    int64_t off = time_plan(NULL, 0, make_plan(ST_MODE_FULL, "upstream,graph-skip=node-disable"));
    int64_t gone = time_plan(NULL, 0, make_plan(ST_MODE_FULL, "upstream,graph-skip=variant"));
    assert_true(gone < off && off < on);
}

/* A chain of several kernels is issued, and waits, as often. */
static void chains_take_longer(void **state) {
    (void)state;
    struct st_launch launch = {.op = ST_OP_TOPK_PER_ROW, .launch_count = 1, .grid = 1};
    struct st_plan plan = {.launch_count = 1, .launch = &launch};
    int64_t one = time_plan(NULL, 0, &plan);
    launch.launch_count = 6;
    assert_true(time_plan(NULL, 0, &plan) > 2 * one);
}

static void profile_decides(void **state) {
    (void)state;
    static const char *const slow_host[] = {"host_issue_ns=50000"};
    struct st_plan *plan = make_plan(ST_MODE_EAGER, "baseline");
    int64_t before = time_plan(NULL, 0, plan);
    assert_true(time_plan(slow_host, 1, plan) > 62 * 50000 && before < 62 * 50000);
    struct st_device device;
    struct st_error err = {0};
    ST_ASSERT_OK(st_device_load(NULL, &device, &ok_err));
    assert_string_equal(device.origin, "datasheet");
    double flops = device.fp32_flops_per_s, block_ps = device.block_ps;
    ST_ASSERT_OK(st_device_set(&device, "sm_count=66", &ok_err));
    assert_true(device.fp32_flops_per_s == flops / 2 && device.block_ps == block_ps * 2);
    assert_int_equal(st_device_set(&device, "sm_count=0", &err), ST_ERR_USAGE);
    assert_int_equal(st_device_set(&device, "colour=1", &err), ST_ERR_USAGE);
    assert_non_null(strstr(err.msg, "host_issue_ns"));
    assert_int_equal(st_device_load("h900", &device, &err), ST_ERR_USAGE);
    assert_int_equal(st_device_load("./no.profile", &device, &err), ST_ERR_INPUT);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(same_plan_same_time), cmocka_unit_test(fewer_launches_take_less),
        cmocka_unit_test(nodes_that_are_off),  cmocka_unit_test(chains_take_longer),
        cmocka_unit_test(profile_decides),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
