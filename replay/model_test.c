/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include <math.h>

#include "replay/model.h"
#include "replay/testing.h"

static const struct st_header nothing = {.compress_ratio_count = -1,
                                         .max_model_len = -1,
                                         .max_num_seqs = -1,
                                         .max_num_batched_tokens = -1,
                                         .num_blocks = -1};

static void bundled(void **state) {
    (void)state;
    struct st_model m;
    ST_ASSERT_OK(st_model_load("deepseek-v4-flash", &nothing, &m, &ok_err));
    assert_int_equal(m.layer_count, 43);
    assert_int_equal(m.kind_count[ST_LAYER_C128], 20);
    assert_int_equal(m.kind_count[ST_LAYER_C4], 21);
    assert_int_equal(m.layer_kind[3], ST_LAYER_C128);
    assert_int_equal(m.layer_kind[41], ST_LAYER_C128);
    assert_int_equal(m.cache[ST_CACHE_STATE_C128].page_bytes, 32832);
    assert_int_equal(m.cache[ST_CACHE_KV_C128].entries, 2);
    assert_int_equal(m.cache[ST_CACHE_KV_C4].entries, 64);
    assert_int_equal(m.allocated_group_count, 7);
    ST_ASSERT_OK(st_model_load("deepseek-v4-pro", &nothing, &m, &ok_err));
    assert_int_equal(m.layer_count, 61);
    assert_int_equal(m.kind_count[ST_LAYER_C128], 31);
    assert_int_equal(m.layer_kind[1], ST_LAYER_C128);
}

static void from_the_tape(void **state) {
    (void)state;
    struct st_model m;
    ST_ASSERT_OK(st_model_load(NULL, st_testing_header(), &m, &ok_err));
    assert_string_equal(m.name, "v4-tiny");
    assert_int_equal(m.kind_count[ST_LAYER_C128], 1);
    assert_int_equal(m.allocated_group_count, 3);
    assert_int_equal(m.cache[ST_CACHE_KV_C128].group, 1);
    assert_int_equal(m.cache[ST_CACHE_KV_C4].group, 1);
    assert_int_equal(m.cache[ST_CACHE_STATE_C128].group, 2);
    assert_int_equal(m.max_num_seqs, 8);
    assert_int_equal(m.num_blocks, 2000);
    /* Twice the requests, as vLLM has it. */
    assert_int_equal(m.capture_size[m.capture_size_count - 1], 16);
}

static void dense_needs_a_name(void **state) {
    (void)state;
    struct st_model m;
    struct st_error err = {0};
    assert_int_equal(st_model_load(NULL, st_testing_dense_header(), &m, &err), ST_ERR_INPUT);
    assert_non_null(strstr(err.msg, "--model"));
    assert_non_null(strstr(err.msg, "deepseek-v4-flash"));
    ST_ASSERT_OK(st_model_load("deepseek-v4-tiny", st_testing_dense_header(), &m, &ok_err));
    assert_int_equal(m.allocated_group_count, 7);
}

static void capture_sizes(void **state) {
    (void)state;
    struct st_model m;
    memset(&m, 0, sizeof m);
    st_model_default_capture_sizes(&m, 512);
    assert_int_equal(m.capture_size_count, 51);
    static const int32_t cases[][2] = {{1, 1},     {2, 2},     {3, 4},     {5, 8},     {9, 16},
                                       {248, 248}, {249, 256}, {257, 272}, {512, 512}, {513, -1}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
        assert_int_equal(st_model_capture_size(&m, cases[i][0]), cases[i][1]);
    st_model_default_capture_sizes(&m, 3);
    assert_int_equal(m.capture_size_count, 2);
}

static void settings(void **state) {
    (void)state;
    struct st_model m;
    struct st_error err = {0};
    ST_ASSERT_OK(st_model_load("deepseek-v4-tiny", &nothing, &m, &ok_err));
    ST_ASSERT_OK(st_model_set(&m, "max_model_len=1048576", &ok_err));
    assert_int_equal(m.max_model_len, 1048576);
    ST_ASSERT_OK(st_model_set(&m, "max_capture_size=64", &ok_err));
    assert_int_equal(st_model_capture_size(&m, 65), -1);
    ST_ASSERT_OK(st_model_set(&m, "capture_sizes=3+7+4096", &ok_err));
    assert_int_equal(st_model_capture_size(&m, 4), 7);
    static const char *const bad[] = {
        "max_model_len",    "max_model_len=",    "max_model_len=0",
        "max_model_len=1x", "layers=3",          "=5",
        "capture_sizes=",   "capture_sizes=1+",  "capture_sizes=1++2",
        "capture_sizes= 1", "capture_sizes=2+1", "capture_sizes=-1",
        "capture_sizes=+1", "capture_sizes=0+1", "capture_sizes=4097"};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++)
        assert_int_equal(st_model_set(&m, bad[i], &err), ST_ERR_USAGE);
}

static void unknown_names(void **state) {
    (void)state;
    struct st_model m;
    struct st_error err = {0};
    assert_int_equal(st_model_load("deepseek-v9", &nothing, &m, &err), ST_ERR_USAGE);
    assert_non_null(strstr(err.msg, "deepseek-v4-pro"));
    assert_int_equal(st_model_load("./no-such.json", &nothing, &m, &err), ST_ERR_INPUT);
}

static void files(void **state) {
    (void)state;
    static const struct {
        const char *text, *said;
    } cases[] = {
        {"[1]", "JSON object"},
        {"{", "line 1"},
        {"{}", "name"},
        {"{\"name\":\"x\",\"architecture\":\"y\",\"head_dim\":100}", "head_dim"},
        {"{\"name\":\"x\",\"architecture\":\"y\",\"attention\":\"foo\"}", "no kind 'foo'; \"dsa\""},
        {"{\"name\":\"x\",\"architecture\":\"y\",\"attention\":1}", "\"attention\": \"dsa\""},
    };
    char path[] = "/tmp/steptape-model-XXXXXX.json";
    int fd = mkstemps(path, 5);
    assert_true(fd >= 0);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct st_model m;
        struct st_error err = {0};
        FILE *file = fopen(path, "w");
        fputs(cases[i].text, file);
        fclose(file);
        assert_int_equal(st_model_load(path, &nothing, &m, &err), ST_ERR_INPUT);
        if (!strstr(err.msg, cases[i].said) || !strstr(err.msg, path))
            fail_msg("'%s' does not say '%s'", err.msg, cases[i].said);
    }
    fclose(fdopen(fd, "r"));
    remove(path);
}

static void angles(void **state) {
    (void)state;
    struct st_model m;
    float row[2][64];
    ST_ASSERT_OK(st_model_load("deepseek-v4-flash", &nothing, &m, &ok_err));
    st_model_cos_sin(&m, 0, 2, row[0]);
    for (int i = 0; i < 32; i++) {
        assert_true(row[0][i] == 1 && row[0][32 + i] == 0);
        double square = (double)row[1][i] * row[1][i] + (double)row[1][32 + i] * row[1][32 + i];
        assert_true(fabs(square - 1) < 1e-6); /* mscale is off */
    }
    /* The fastest pair keeps its frequency, the slowest is divided by the factor. */
    assert_true(fabs(row[1][32] - sin(1)) < 1e-6);
    double slow = pow(160000, -62.0 / 64) / 16;
    assert_true(fabs(row[1][63] - sin(slow)) < 1e-12);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(bundled),
        cmocka_unit_test(from_the_tape),
        cmocka_unit_test(dense_needs_a_name),
        cmocka_unit_test(capture_sizes),
        cmocka_unit_test(settings),
        cmocka_unit_test(unknown_names),
        cmocka_unit_test(files),
        cmocka_unit_test(angles),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
