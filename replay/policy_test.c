/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "replay/policy.h"

static void presets(void **state) {
    (void)state;
    struct st_policy p;
    assert_int_equal(st_policy_parse("baseline", &p, NULL), 0);
    assert_string_equal(p.name, "baseline");
    assert_int_equal(p.value[ST_SWITCH_C128_LAUNCH], ST_C128_LAUNCH_ALWAYS);
    static const struct {
        const char *name;
        int8_t value[ST_SWITCH_COUNT];
    } presets[] = {
        {"upstream",
         {ST_C128_LAUNCH_SKIP_EMPTY, ST_TOPK_WIDTH_PACKED, ST_COMBINE_BUFFER_REUSE,
          ST_TOPK_SELECT_FAST_2048, ST_TOPK_ROWS_FLAT, ST_GRAPH_SKIP_NONE, ST_MLA_PLAN_PER_LAYER}},
        {"corrected",
         {ST_C128_LAUNCH_SKIP_EMPTY, ST_TOPK_WIDTH_STRIDED, ST_COMBINE_BUFFER_RESEED,
          ST_TOPK_SELECT_FAST, ST_TOPK_ROWS_FLAT, ST_GRAPH_SKIP_NONE, ST_MLA_PLAN_PER_LAYER}},
        {"safe",
         {ST_C128_LAUNCH_BY_SIZE, ST_TOPK_WIDTH_STRIDED, ST_COMBINE_BUFFER_TAIL,
          ST_TOPK_SELECT_FAST, ST_TOPK_ROWS_FLAT, ST_GRAPH_SKIP_VARIANT, ST_MLA_PLAN_FAST}},
    };
    for (int i = 0; i < 3; i++) {
        assert_int_equal(st_policy_parse(presets[i].name, &p, NULL), 0);
        assert_string_equal(p.name, presets[i].name);
        assert_memory_equal(p.value, presets[i].value, sizeof p.value);
    }
    struct st_policy baseline;
    assert_int_equal(st_policy_parse("baseline", &p, NULL), 0);
    st_policy_baseline(&baseline);
    assert_memory_equal(&p, &baseline, sizeof p);
}

static void by_size(void **state) {
    (void)state;
    struct st_policy p;
    assert_int_equal(st_policy_parse("safe", &p, NULL), 0);
    assert_int_equal(st_policy_c128_launch(&p, 1), ST_C128_LAUNCH_SKIP_EMPTY);
    assert_int_equal(st_policy_c128_launch(&p, 64), ST_C128_LAUNCH_SKIP_EMPTY);
    assert_int_equal(st_policy_c128_launch(&p, 65), ST_C128_LAUNCH_COMPACT);
    assert_int_equal(st_policy_parse("safe,c128-launch=always", &p, NULL), 0);
    assert_int_equal(st_policy_c128_launch(&p, 512), ST_C128_LAUNCH_ALWAYS);
}

static void changes(void **state) {
    (void)state;
    struct st_policy p;
    assert_int_equal(st_policy_parse("baseline,c128-launch=skip-empty", &p, NULL), 0);
    assert_string_equal(p.name, "baseline,c128-launch=skip-empty");
    assert_int_equal(p.value[ST_SWITCH_C128_LAUNCH], ST_C128_LAUNCH_SKIP_EMPTY);
    assert_int_equal(st_policy_parse("upstream,c128-launch=always", &p, NULL), 0);
    assert_string_equal(p.name, "upstream,c128-launch=always");
    assert_int_equal(p.value[ST_SWITCH_C128_LAUNCH], ST_C128_LAUNCH_ALWAYS);
}

static void refused(const char *text, const char *said) {
    struct st_policy p;
    struct st_error err = {0};
    assert_int_equal(st_policy_parse(text, &p, &err), ST_ERR_USAGE);
    if (!strstr(err.msg, said))
        fail_msg("'%s': '%s' is not in '%s'", text, said, err.msg);
    assert_int_equal(st_error_exit_status(err.code), 2);
}

static void refusals_name_what_is_valid(void **state) {
    (void)state;
    refused("fastest", "baseline, upstream, corrected, safe");
    refused("", "empty");
    refused("baseline,", "between commas");
    refused("baseline,,c128-launch=always", "between commas");
    refused(",baseline", "between commas");
    refused("baseline,width=1", "c128-launch");
    refused("baseline,c128-launch=never", "always, skip-empty");
    refused("baseline,skip-empty", "SWITCH=VALUE");
    refused("baseline,c128-launch=always,c128-launch=always", "twice");
    char text[400];
    memset(text, 'x', sizeof text - 1);
    text[sizeof text - 1] = 0;
    refused(text, "longer");
}

static void list_shows_all(void **state) {
    (void)state;
    char *text = NULL;
    size_t size = 0;
    FILE *out = open_memstream(&text, &size);
    st_policy_list(out);
    fclose(out);
    static const char *const words[] = {
        "baseline",         "upstream",   "corrected", "safe",    "c128-launch",
        "always",           "skip-empty", "hazard",    "strided", "node-disable",
        "library-relative", "per-type",   "tail",      "unpadded"};
    for (size_t i = 0; i < sizeof words / sizeof words[0]; i++)
        assert_non_null(strstr(text, words[i]));
    free(text);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(presets),        cmocka_unit_test(by_size),
        cmocka_unit_test(changes),        cmocka_unit_test(refusals_name_what_is_valid),
        cmocka_unit_test(list_shows_all),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
