/* SPDX-License-Identifier: Apache-2.0 */
/* Unit tests of the SQL tables over a tape of formulas: what comes out, and what was decoded. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>
#include <sqlite3.h>
#include <stdio.h>
#include <string.h>

#include "analysis/fake_tape.h"
#include "analysis/sql.h"
#include "traces/format/schema.h"

static sqlite3 *db;

static int open_db(void **state) {
    (void)state;
    struct st_error err;
    memset(&fake_calls, 0, sizeof fake_calls);
    assert_int_equal(sqlite3_open(":memory:", &db), SQLITE_OK);
    assert_int_equal(st_sql_register(db, &err), 0);
    char mark[80];
    snprintf(mark, sizeof mark, "PRAGMA application_id = %d", ST_APPLICATION_ID);
    return sqlite3_exec(db, mark, NULL, NULL, NULL);
}

static int close_db(void **state) {
    (void)state;
    assert_int_equal(sqlite3_close(db), SQLITE_OK);
    assert_int_equal(fake_calls.attach, fake_calls.close);
    assert_int_equal(fake_calls.cursor_open, fake_calls.cursor_close);
    return 0;
}

/* All rows of a query as "1,2;3,4". */
static const char *ask(const char *sql) {
    static char text[65536];
    size_t length = 0;
    sqlite3_stmt *statement;
    int rc = sqlite3_prepare_v2(db, sql, -1, &statement, NULL);
    if (rc != SQLITE_OK)
        fail_msg("%s: %s", sql, sqlite3_errmsg(db));
    text[0] = 0;
    while ((rc = sqlite3_step(statement)) == SQLITE_ROW)
        for (int i = 0; i < sqlite3_column_count(statement); i++) {
            const char *value = (const char *)sqlite3_column_text(statement, i);
            length += (size_t)snprintf(text + length, sizeof text - length, "%s%s",
                                       i        ? ","
                                       : length ? ";"
                                                : "",
                                       value ? value : "NULL");
        }
    if (rc != SQLITE_DONE)
        fail_msg("%s: %s", sql, sqlite3_errmsg(db));
    sqlite3_finalize(statement);
    return text;
}

static void forget_calls(void) {
    int attach = fake_calls.attach, opened = fake_calls.cursor_open;
    int closed = fake_calls.cursor_close;
    memset(&fake_calls, 0, sizeof fake_calls);
    fake_calls.attach = attach;
    fake_calls.cursor_open = opened;
    fake_calls.cursor_close = closed;
}

static void test_rows(void **state) {
    (void)state;
    assert_string_equal(ask("SELECT * FROM request_step WHERE step_id = 12"),
                        "12,0,12,1,12,NULL;12,1,19,2,13,12");
    assert_string_equal(ask("SELECT * FROM block_table WHERE step_id = 11"),
                        "11,0,0,0,11000;11,0,0,1,11001;11,0,0,2,11002;11,0,0,3,11003;"
                        "11,1,0,0,11100;11,1,0,1,11101");
    assert_string_equal(ask("SELECT * FROM slot_mapping WHERE step_id = 12 AND group_id = 1"),
                        "12,1,0,12,1210;12,1,1,13,1211;12,1,2,14,1212");
    assert_string_equal(ask("SELECT count(*), min(step_id), max(step_id) FROM request_step"),
                        "200,11,109");
    assert_string_equal(ask("SELECT count(*) FROM slot_mapping"), "800");
}

static void test_step_seeks(void **state) {
    (void)state;
    ask("SELECT * FROM request_step WHERE step_id = 72");
    assert_int_equal(fake_calls.seek, 1);
    assert_int_equal(fake_calls.next, 1);
    forget_calls();
    ask("SELECT * FROM request_step WHERE step_id >= 50 AND step_id < 54");
    assert_int_equal(fake_calls.seek, 1);
    assert_int_equal(fake_calls.next, 4);
    forget_calls();
    ask("SELECT * FROM request_step WHERE step_id BETWEEN 95 AND 1000");
    assert_int_equal(fake_calls.next, 15);
    forget_calls();
    assert_string_equal(ask("SELECT count(*) FROM request_step WHERE step_id = 5"), "0");
    assert_string_equal(ask("SELECT count(*) FROM request_step WHERE step_id > 109"), "0");
    assert_int_equal(fake_calls.next, 0);
}

static void test_ascending_steps_decode_once(void **state) {
    (void)state;
    for (int step = 20; step < 60; step++) {
        char sql[100];
        snprintf(sql, sizeof sql, "SELECT * FROM block_table WHERE step_id = %d", step);
        ask(sql);
    }
    assert_int_equal(fake_calls.next, 40);
    assert_int_equal(fake_calls.seek, 1);
    assert_int_equal(fake_calls.cursor_open, 1);
    /* One step asked again and again, as a join does, is decoded once. */
    forget_calls();
    ask("SELECT * FROM request_step r JOIN block_table b USING (step_id, row) WHERE step_id = 59");
    assert_true(fake_calls.next <= 2);
}

static void test_group_and_row_narrow(void **state) {
    (void)state;
    assert_string_equal(ask("SELECT ordinal, block_id FROM block_table WHERE step_id = 14 "
                            "AND group_id = 1 AND row = 2"),
                        "0,14120;1,14121;2,14122;3,14123");
    assert_int_equal(fake_calls.block_table, 1);
    forget_calls();
    assert_string_equal(ask("SELECT row FROM block_table WHERE step_id = 14 AND group_id = 0 "
                            "AND row > 1 AND ordinal = 0"),
                        "2;3");
    assert_int_equal(fake_calls.block_table, 2);
    forget_calls();
    assert_string_equal(ask("SELECT position FROM slot_mapping WHERE step_id = 13 "
                            "AND group_id = 0 AND token IN (0, 1, 2, 5)"),
                        "13;14;15;17");
    assert_int_equal(fake_calls.slot_mapping, 1);
    assert_string_equal(ask("SELECT count(*) FROM slot_mapping WHERE group_id = 9"), "0");
}

static void test_values_of_any_type(void **state) {
    (void)state;
    const char *const whole[] = {"12", "12.0", "'12'", "'12.0'"};
    for (size_t i = 0; i < 4; i++) {
        char sql[200];
        snprintf(sql, sizeof sql, "SELECT count(*) FROM request_step WHERE step_id = %s", whole[i]);
        assert_string_equal(ask(sql), "2");
    }
    assert_string_equal(ask("SELECT count(*) FROM request_step WHERE step_id = 12.5"), "0");
    assert_string_equal(ask("SELECT count(*) FROM request_step WHERE step_id = NULL"), "0");
    assert_string_equal(ask("SELECT count(*) FROM request_step WHERE step_id = 'abc'"), "0");
    assert_string_equal(ask("SELECT count(*) FROM request_step WHERE step_id < 'abc'"), "200");
    assert_string_equal(ask("SELECT count(*) FROM request_step WHERE step_id > x'00'"), "0");
    assert_string_equal(ask("SELECT max(step_id) FROM request_step WHERE step_id < 13.5"), "13");
    assert_string_equal(ask("SELECT max(step_id) FROM request_step WHERE step_id < 13.0"), "12");
    assert_string_equal(ask("SELECT min(step_id) FROM request_step WHERE step_id > 13.5"), "14");
    assert_string_equal(ask("SELECT min(step_id) FROM request_step WHERE step_id >= 13.0"), "13");
    assert_string_equal(ask("SELECT count(*) FROM request_step WHERE step_id > 1e30"), "0");
    assert_string_equal(ask("SELECT count(*) FROM request_step WHERE step_id < 1e30"), "200");
    assert_string_equal(ask("SELECT count(*) FROM request_step WHERE step_id > -1e30"), "200");
    assert_string_equal(
        ask("SELECT count(*) FROM request_step WHERE step_id > 9223372036854775807"), "0");
    assert_string_equal(
        ask("SELECT count(*) FROM request_step WHERE step_id < -9223372036854775807 - 1"), "0");
    assert_string_equal(ask("SELECT count(*) FROM request_step WHERE row >= -3 AND row < 2"),
                        "140");
}

static void test_order_and_or(void **state) {
    (void)state;
    assert_string_equal(
        ask("SELECT DISTINCT step_id FROM request_step WHERE step_id = 13 OR step_id = 11"
            " OR (step_id = 12 AND row = 1) ORDER BY step_id"),
        "11;12;13");
    assert_string_equal(ask("SELECT count(*) FROM request_step WHERE step_id = 13 OR step_id = 11"
                            " OR row = 3"),
                        "24");
    assert_string_equal(ask("SELECT step_id, row FROM request_step WHERE step_id IN (13, 12) "
                            "ORDER BY step_id DESC, row DESC"),
                        "13,2;13,1;13,0;12,1;12,0");
    assert_string_equal(ask("SELECT step_id FROM request_step ORDER BY step_id LIMIT 1"), "11");
    assert_true(fake_calls.next < 200);
    /* Two tables over different steps at the same time. */
    assert_string_equal(ask("SELECT count(*) FROM block_table a JOIN block_table b "
                            "ON b.step_id = a.step_id + 1 AND b.group_id = a.group_id "
                            "AND b.row = a.row AND b.ordinal = a.ordinal WHERE a.step_id = 12"),
                        "10");
}

static void test_no_tape(void **state) {
    (void)state;
    sqlite3_exec(db, "PRAGMA application_id = 7", NULL, NULL, NULL);
    sqlite3_stmt *statement;
    assert_int_equal(sqlite3_prepare_v2(db, "SELECT * FROM slot_mapping", -1, &statement, NULL),
                     SQLITE_ERROR);
    assert_string_equal(sqlite3_errmsg(db), "slot_mapping: the database is no tape");
    char mark[80];
    snprintf(mark, sizeof mark, "PRAGMA application_id = %d; PRAGMA user_version = 99",
             ST_APPLICATION_ID);
    sqlite3_exec(db, mark, NULL, NULL, NULL);
    assert_int_equal(sqlite3_prepare_v2(db, "SELECT * FROM slot_mapping", -1, &statement, NULL),
                     SQLITE_ERROR);
    assert_non_null(strstr(sqlite3_errmsg(db), "format version 99"));
    sqlite3_exec(db, "PRAGMA user_version = 1", NULL, NULL, NULL); /* a tape now */
    assert_string_equal(ask("SELECT count(*) FROM request_step"), "200");
    assert_int_equal(sqlite3_exec(db, "DELETE FROM request_step", NULL, NULL, NULL), SQLITE_ERROR);
    assert_int_equal(
        sqlite3_exec(db, "CREATE VIRTUAL TABLE x USING request_step", NULL, NULL, NULL),
        SQLITE_ERROR);
}

static void test_launch(void **state) {
    (void)state;
    assert_string_equal(ask("SELECT count(*) FROM launch"), "0");
}

static void test_aggregates(void **state) {
    (void)state;
    assert_string_equal(ask("SELECT median(column1) FROM (VALUES (3),(1),(2))"), "2.0");
    assert_string_equal(ask("SELECT median(column1) FROM (VALUES (4),(1),(2),(3))"), "2.5");
    assert_string_equal(ask("SELECT percentile(column1, 25) FROM (VALUES (0),(NULL),(10))"), "2.5");
    assert_string_equal(ask("SELECT percentile(column1, 100) FROM (VALUES (5),(7))"), "7.0");
    assert_string_equal(ask("SELECT median(column1) FROM (VALUES (NULL))"), "NULL");
    assert_string_equal(ask("SELECT median(step_id) FROM request_step WHERE step_id < 0"), "NULL");
    const char *const wrong[] = {
        "SELECT percentile(column1, 101) FROM (VALUES (1))",
        "SELECT percentile(column1, 'x') FROM (VALUES (1))",
        "SELECT percentile(column1, column1) FROM (VALUES (1),(2))",
        "SELECT median(column1) FROM (VALUES (1),('x'))",
    };
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++)
        assert_int_equal(sqlite3_exec(db, wrong[i], NULL, NULL, NULL), SQLITE_ERROR);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_rows, open_db, close_db),
        cmocka_unit_test_setup_teardown(test_step_seeks, open_db, close_db),
        cmocka_unit_test_setup_teardown(test_ascending_steps_decode_once, open_db, close_db),
        cmocka_unit_test_setup_teardown(test_group_and_row_narrow, open_db, close_db),
        cmocka_unit_test_setup_teardown(test_values_of_any_type, open_db, close_db),
        cmocka_unit_test_setup_teardown(test_order_and_or, open_db, close_db),
        cmocka_unit_test_setup_teardown(test_no_tape, open_db, close_db),
        cmocka_unit_test_setup_teardown(test_launch, open_db, close_db),
        cmocka_unit_test_setup_teardown(test_aggregates, open_db, close_db),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
