/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "traces/base/error.h"

static void an_error_is_one_line(void **state) {
    (void)state;
    struct st_error err;
    assert_int_equal(ST_FAIL(&err, ST_ERR_INPUT, "%s: line %d", "a\nb\rc", 7), ST_ERR_INPUT);
    assert_string_equal(err.msg, "a b c: line 7");
    assert_int_equal(err.code, ST_ERR_INPUT);
    assert_int_equal(err.native, 0);
    assert_non_null(strstr(err.file, "error_test.c"));
}

/* A tape's text must not drive the terminal that an error is printed on. */
static void no_control_characters(void **state) {
    (void)state;
    struct st_error err;
    ST_FAIL_NATIVE(&err, ST_ERR_IO, 5, "x\x1b[2Jy\a\tz\x7f\xc3\xa4\xc2\x9b");
    assert_string_equal(err.msg, "x [2Jy  z \xc3\xa4  ");
    assert_int_equal(err.native, 5);
}

static void a_long_message_is_cut(void **state) {
    (void)state;
    struct st_error err;
    char text[2000];
    memset(text, 'a', sizeof text - 1);
    text[sizeof text - 1] = 0;
    ST_FAIL(&err, ST_ERR_INPUT, "%s", text);
    assert_int_equal(strlen(err.msg), sizeof err.msg - 1);
}

static void nobody_listens(void **state) {
    (void)state;
    assert_int_equal(ST_FAIL(NULL, ST_ERR_CORRUPT, "%s", "x"), ST_ERR_CORRUPT);
    assert_int_equal(ST_FAIL_NOMEM(NULL), ST_ERR_NOMEM);
}

static void exit_statuses(void **state) {
    (void)state;
    assert_int_equal(st_error_exit_status(ST_OK), 0);
    assert_int_equal(st_error_exit_status(ST_ERR_INPUT), 1);
    assert_int_equal(st_error_exit_status(ST_ERR_CORRUPT), 1);
    assert_int_equal(st_error_exit_status(ST_ERR_NOMEM), 1);
    assert_int_equal(st_error_exit_status(ST_ERR_USAGE), 2);
    assert_int_equal(st_error_exit_status(ST_ERR_MISMATCH), 3);
    assert_int_equal(st_error_exit_status(ST_ERR_UNAVAILABLE), 77);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_error_is_one_line),  cmocka_unit_test(no_control_characters),
        cmocka_unit_test(a_long_message_is_cut), cmocka_unit_test(nobody_listens),
        cmocka_unit_test(exit_statuses),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
