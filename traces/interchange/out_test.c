/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Output: integers of every size, JSON escapes, files that appear only when they are whole.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "traces/interchange/out.h"

static void expect_text(struct st_out *out, const char *expected) {
    size_t size;
    const char *text = st_out_memory(out, &size);
    assert_int_equal(size, strlen(expected));
    assert_memory_equal(text, expected, size);
    st_out_abort(out);
}

static void integers(void **state) {
    (void)state;
    struct st_out *out;
    assert_int_equal(st_out_open_memory(&out, NULL), 0);
    char expected[8192] = "";
    size_t n = 0;
    for (int64_t power = 1; power > 0 && power < INT64_MAX / 10; power *= 10) {
        for (int d = -1; d <= 1; d++) {
            const int64_t value[2] = {power + d, -(power + d)};
            const int32_t small[2] = {(int32_t)(power + d), (int32_t) - (power + d)};
            st_out_ints64(out, value, 2);
            st_out_bytes(out, " ", 1);
            st_out_ints32(out, small, 2);
            n += (size_t)snprintf(expected + n, sizeof expected - n,
                                  "%" PRId64 ",%" PRId64 " %" PRId32 ",%" PRId32, value[0],
                                  value[1], small[0], small[1]);
        }
    }
    st_out_int(out, INT64_MIN);
    st_out_int(out, INT64_MAX);
    snprintf(expected + n, sizeof expected - n, "%" PRId64 "%" PRId64, INT64_MIN, INT64_MAX);
    expect_text(out, expected);
}

static void long_lists(void **state) {
    (void)state;
    enum { COUNT = 100000 };
    int32_t *values = malloc(COUNT * sizeof *values);
    char *expected = malloc(COUNT * 8);
    assert_non_null(values);
    assert_non_null(expected);
    size_t n = 0;
    for (int i = 0; i < COUNT; i++) {
        values[i] = i;
        n += (size_t)sprintf(expected + n, i ? ",%d" : "%d", i);
    }
    struct st_out *out;
    assert_int_equal(st_out_open_memory(&out, NULL), 0);
    st_out_ints32(out, values, COUNT);
    st_out_ints32(out, values, 0);
    expect_text(out, expected);
    free(values);
    free(expected);
}

static void json_strings(void **state) {
    (void)state;
    struct st_out *out;
    assert_int_equal(st_out_open_memory(&out, NULL), 0);
    st_out_json_string(out, NULL);
    st_out_json_string(out, "a\"b\\c\n\t\r\b\f\x01\x7f/\xc3\xa9");
    st_out_json_string(out, "\xff\xc3x\xed\xa0\x80");
    st_out_json(out, "[\"\xff\\n\xc3\xa9\"]");
    expect_text(out, "null\"a\\\"b\\\\c\\n\\t\\r\\b\\f\\u0001\x7f/\xc3\xa9\""
                     "\"\\ufffd\\ufffdx\\ufffd\\ufffd\\ufffd\""
                     "[\"\\ufffd\\n\xc3\xa9\"]");
}

static void files_appear_when_they_are_whole(void **state) {
    (void)state;
    char folder[] = "/tmp/steptape-out-XXXXXX", path[64], line[16] = "";
    assert_non_null(mkdtemp(folder));
    snprintf(path, sizeof path, "%s/x", folder);
    struct st_out *out;
    struct st_error err = {0};
    assert_int_equal(st_out_open(path, &out, &err), 0);
    st_out_string(out, "gone");
    assert_int_equal(access(path, F_OK), -1);
    st_out_abort(out);
    assert_int_equal(access(path, F_OK), -1);

    assert_int_equal(st_out_open(path, &out, &err), 0);
    st_out_format(out, "%s\n", "there");
    assert_int_equal(st_out_finish(out, &err), 0);
    FILE *file = fopen(path, "r");
    assert_non_null(file);
    assert_non_null(fgets(line, sizeof line, file));
    fclose(file);
    assert_string_equal(line, "there\n");
    unlink(path);
    assert_int_equal(rmdir(folder), 0); /* nothing is left in it */

    assert_int_equal(st_out_open(path, &out, &err), ST_ERR_IO);
    assert_non_null(strstr(err.msg, "No such file or directory"));
    assert_int_equal(st_out_open("/", &out, &err), ST_ERR_IO);
}

static void a_full_device_is_told(void **state) {
    (void)state;
    if (access("/dev/full", W_OK) != 0)
        skip();
    struct st_out *out;
    struct st_error err = {0};
    assert_int_equal(st_out_open("/dev/full", &out, &err), 0);
    for (int i = 0; i < 100000 && !st_out_failed(out); i++)
        st_out_string(out, "0123456789");
    assert_true(st_out_failed(out));
    assert_int_equal(st_out_finish(out, &err), ST_ERR_IO);
    assert_string_equal(err.msg, "/dev/full: No space left on device");
    assert_int_equal(access("/dev/full", F_OK), 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(integers),
        cmocka_unit_test(long_lists),
        cmocka_unit_test(json_strings),
        cmocka_unit_test(files_appear_when_they_are_whole),
        cmocka_unit_test(a_full_device_is_told),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
