/* SPDX-License-Identifier: Apache-2.0 */
/* Opening what is no tape, and using a tape in ways it is not meant for. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>
#include <sqlite3.h>

#include "traces/format/reader.h"
#include "traces/format/testing.h"
#include "traces/format/verify.h"

static struct st_test_recording *recording;

static void expect_error(int rc, int want, const struct st_error *err, const char *text) {
    if (rc != want || !strstr(err->msg, text))
        fail_msg("%d, \"%s\": %d, \"%s\" was expected", rc, rc ? err->msg : "", want, text);
}

/* A tape of the recording, changed by SQL; its path. */
static const char *changed_tape(const char *sql) {
    const char *path = st_test_path("changed.tape");
    assert_int_equal(st_test_write(recording, path, NULL), 0);
    sqlite3 *db;
    char *message = NULL;
    assert_int_equal(sqlite3_open(path, &db), SQLITE_OK);
    sqlite3_exec(db, "PRAGMA writable_schema=ON", NULL, NULL, NULL);
    if (sqlite3_exec(db, sql, NULL, NULL, &message) != SQLITE_OK)
        fail_msg("%s: %s", sql, message);
    sqlite3_close(db);
    return path;
}

static int open_changed(const char *sql, struct st_error *err) {
    struct st_tape *tape;
    int rc = st_tape_open(changed_tape(sql), &tape, err);
    if (!rc)
        st_tape_close(tape);
    return rc;
}

static int write_bytes(const char *path, const void *data, size_t size) {
    FILE *file = fopen(path, "wb");
    return !file || fwrite(data, 1, size, file) != size || fclose(file);
}

static void no_tapes(void **state) {
    (void)state;
    struct st_tape *tape;
    struct st_error err;
    const char *path = st_test_path("not.tape");
    static const char jpeg[] = "\xff\xd8\xff\xe0\0\x10JFIF";
    assert_int_equal(write_bytes(path, jpeg, sizeof jpeg), 0);
    expect_error(st_tape_open(path, &tape, &err), ST_ERR_INPUT, &err, "not a tape");
    assert_int_equal(write_bytes(path, "", 0), 0);
    expect_error(st_tape_open(path, &tape, &err), ST_ERR_INPUT, &err, "the file is empty");
    unlink(path);
    expect_error(st_tape_open(path, &tape, &err), ST_ERR_IO, &err, "No such file");
    expect_error(st_tape_open("/tmp", &tape, &err), ST_ERR_INPUT, &err, "directory");
    expect_error(st_tape_open("/dev/null", &tape, &err), ST_ERR_INPUT, &err, "special file");
    sqlite3 *db;
    assert_int_equal(sqlite3_open(path, &db), SQLITE_OK);
    sqlite3_exec(db, "CREATE TABLE step(x)", NULL, NULL, NULL);
    sqlite3_close(db);
    expect_error(st_tape_open(path, &tape, &err), ST_ERR_INPUT, &err, "but not a tape");
}

static void versions(void **state) {
    (void)state;
    struct st_error err;
    expect_error(open_changed("PRAGMA user_version=3", &err), ST_ERR_VERSION, &err,
                 "format version 3, this steptape reads up to 2");
    expect_error(open_changed("PRAGMA user_version=0", &err), ST_ERR_CORRUPT, &err, "version 0");
    assert_int_equal(open_changed("SELECT 1", &err), 0);
}

static void tables_that_are_none(void **state) {
    (void)state;
    static const char *const cases[][2] = {
        {"DROP TABLE step_block", "step_block"}, /* missing: shows when it is read */
        {"ALTER TABLE step RENAME TO s2; CREATE VIEW step AS SELECT * FROM s2", "step is not"},
        {"ALTER TABLE step RENAME TO s2; CREATE VIEW Step AS SELECT * FROM s2", "Step is not"},
        {"ALTER TABLE kv_group ADD COLUMN x INT AS (1)", "kv_group is not a table"},
        {"DROP TABLE seal; CREATE VIEW seal(hash) AS WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL"
         " SELECT i + 1 FROM n) SELECT i FROM n",
         "seal is not a table"},
        {"CREATE VIEW LAUNCH_COUNT AS SELECT 1", "LAUNCH_COUNT is not a view"},
        {"DELETE FROM seal", "the seal is missing"},
        {"UPDATE seal SET hash = 'short'", "the seal is missing"},
        {"DELETE FROM tape", "table tape is empty"},
        {"UPDATE tape SET compress_ratios = '[1,'", "compress_ratios"},
        {"UPDATE tape SET compress_ratios = '5'", ""},
        {"UPDATE tape SET speculative = '{\"k\":'", "speculative is not JSON"},
        {"UPDATE tape SET allocator_model = 99", "allocator_model"},
        {"UPDATE kv_group SET block_size = 0", "is out of range"},
        {"UPDATE kv_group SET kind = 'x'", "is out of range"},
        {"UPDATE kv_group SET group_id = group_id + 1", "is out of order"},
        {"UPDATE step SET step_id = step_id - 1000", "step number -1000 is out of range"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct st_error err = {0};
        struct st_verify_report report;
        int rc = open_changed(cases[i][0], &err);
        if (i > 0 && cases[i][1][0])
            expect_error(rc, ST_ERR_CORRUPT, &err, cases[i][1]);
        expect_error(st_tape_verify(changed_tape(cases[i][0]), &report, &err), ST_ERR_CORRUPT, &err,
                     cases[i][1]);
    }
}

/* What a cursor meets on its way. */
static void damaged_steps(void **state) {
    (void)state;
    static const char *const cases[][2] = {
        {"DELETE FROM step WHERE step_id = 7", "step 7: the row of table step is missing"},
        {"UPDATE step_block SET step_count = step_count - 1", "not consecutive"},
        {"UPDATE step_block SET step_count = step_count + 5000", "fewer steps"},
        {"UPDATE step_block SET step_count = 0", "not consecutive"},
        {"DELETE FROM step_block WHERE first_step > 0", ""},
        {"UPDATE step_block SET facts = x''", "a packed block is empty"},
        {"UPDATE step_block SET block_ids = facts WHERE first_step = 0", "step 0: "},
        {"UPDATE step_block SET facts = block_ids", "step 0: "},
        {"UPDATE step_block SET facts = x'ffffffffff7f789c'", "impossible size"},
        {"UPDATE step_block SET keyframe = x'01'", "step 0: "},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct st_error err = {0};
        struct st_tape *tape;
        struct st_cursor *cursor;
        const struct st_step *step;
        int rc;
        assert_int_equal(st_tape_open(changed_tape(cases[i][0]), &tape, &err), 0);
        assert_int_equal(st_cursor_open(tape, ST_READ_TABLES, &cursor, &err), 0);
        while ((rc = st_cursor_next(cursor, &step, &err)) == 0)
            ;
        if (cases[i][1][0])
            expect_error(rc, rc, &err, cases[i][1]);
        assert_true(rc < 0 || !cases[i][1][0]);
        /* A cursor that failed can be moved: it starts anew. */
        int64_t last = st_tape_step_count(tape) - 1;
        rc = st_cursor_seek(cursor, last, &err);
        if (i == 4)
            expect_error(rc, ST_ERR_CORRUPT, &err, "the step is in no block");
        st_cursor_close(cursor);
        st_tape_close(tape);
    }
}

static void seeks_beyond(void **state) {
    (void)state;
    struct st_error err;
    struct st_tape *tape;
    struct st_cursor *cursor;
    const struct st_step *step;
    assert_int_equal(st_tape_open(changed_tape("SELECT 1"), &tape, &err), 0);
    assert_int_equal(st_cursor_open(tape, 0, &cursor, &err), 0);
    assert_int_equal(st_cursor_seek(cursor, 5, &err), 0);
    static const int64_t beyond[] = {-1, INT64_MIN, INT64_MAX, 140};
    for (int i = 0; i < 4; i++)
        expect_error(st_cursor_seek(cursor, beyond[i], &err), ST_ERR_USAGE, &err, "0 to 139");
    /* A refused seek leaves the cursor where it was. */
    assert_int_equal(st_cursor_next(cursor, &step, &err), 0);
    assert_int_equal(step->step_id, 5);
    st_cursor_close(cursor);
    st_tape_close(tape);
}

static void tables_nobody_asked_for(void **state) {
    (void)state;
    struct st_error err;
    struct st_tape *tape;
    struct st_cursor *cursor;
    const struct st_step *step;
    const int32_t *id;
    int32_t count;
    int64_t slot[4];
    assert_int_equal(st_tape_open(changed_tape("SELECT 1"), &tape, &err), 0);
    assert_int_equal(st_cursor_open(tape, ST_READ_TABLES, &cursor, &err), 0);
    expect_error(st_cursor_block_table(cursor, 0, 0, &id, &count, &err), ST_ERR_USAGE, &err,
                 "no block table"); /* no step is out */
    assert_int_equal(st_cursor_next(cursor, &step, &err), 0);
    expect_error(st_cursor_block_table(cursor, step->group_count, 0, &id, &count, &err),
                 ST_ERR_USAGE, &err, "no block table");
    expect_error(st_cursor_block_table(cursor, 0, step->request_count, &id, &count, &err),
                 ST_ERR_USAGE, &err, "no block table");
    expect_error(st_cursor_block_table(cursor, -1, -1, &id, &count, &err), ST_ERR_USAGE, &err,
                 "no block table");
    st_cursor_close(cursor);
    assert_int_equal(st_cursor_open(tape, 0, &cursor, &err), 0);
    do
        assert_int_equal(st_cursor_next(cursor, &step, &err), 0);
    while (!step->request_count);
    assert_null(step->blocks);
    expect_error(st_cursor_slot_mapping(cursor, 0, slot, &err), ST_ERR_USAGE, &err,
                 "no block table");
    st_cursor_close(cursor);
    st_tape_close(tape);
}

static void result_tapes_have_no_steps(void **state) {
    (void)state;
    struct st_error err;
    struct st_tape *tape;
    struct st_cursor *cursor;
    assert_int_equal(st_tape_open(changed_tape("UPDATE tape SET kind = 'result'"), &tape, &err), 0);
    assert_true(st_tape_is_result(tape));
    assert_string_equal(st_tape_hash(tape), "");
    expect_error(st_cursor_open(tape, 0, &cursor, &err), ST_ERR_INPUT, &err,
                 "a result tape holds no arrays of steps");
    st_tape_close(tape);
}

static void attached_databases_stay_open(void **state) {
    (void)state;
    struct st_error err;
    struct st_tape *tape, *second;
    struct st_cursor *cursor;
    const struct st_step *step;
    sqlite3 *db;
    const char *path = changed_tape("SELECT 1");
    assert_int_equal(sqlite3_open(path, &db), SQLITE_OK);
    assert_int_equal(st_tape_attach(db, &tape, &err), 0);
    assert_int_equal(st_tape_attach(db, &second, &err), 0);
    assert_string_equal(st_tape_path(tape), path);
    assert_ptr_equal(st_tape_db(tape), db);
    assert_int_equal(st_cursor_open(tape, ST_READ_BLOCKS, &cursor, &err), 0);
    assert_int_equal(st_cursor_next(cursor, &step, &err), 0);
    st_cursor_close(cursor);
    st_tape_close(tape);
    st_tape_close(second);
    assert_int_equal(sqlite3_exec(db, "SELECT * FROM step", NULL, NULL, NULL), SQLITE_OK);
    assert_int_equal(sqlite3_close(db), SQLITE_OK); /* no statement of ours is left */
    assert_int_equal(sqlite3_open(":memory:", &db), SQLITE_OK);
    expect_error(st_tape_attach(db, &tape, &err), ST_ERR_CORRUPT, &err, "(memory)");
    sqlite3_close(db);
}

static void check_objects(void **state) {
    (void)state;
    struct st_error err;
    struct st_tape *tape;
    const char *json = "x";
    assert_int_equal(st_tape_open(changed_tape("DELETE FROM step_check WHERE step_id < 5;"
                                               "INSERT INTO step_check VALUES(0, x'00');"
                                               "INSERT INTO step_check VALUES(1, x'')"),
                                  &tape, &err),
                     0);
    expect_error(st_tape_check_json(tape, 0, &json, &err), ST_ERR_CORRUPT, &err, "damaged");
    expect_error(st_tape_check_json(tape, 1, &json, &err), ST_ERR_CORRUPT, &err,
                 "step 1: check: a packed block is empty");
    assert_int_equal(st_tape_check_json(tape, 2, &json, &err), 0);
    assert_null(json);
    assert_int_equal(st_tape_check_json(tape, 12345, &json, &err), 0);
    assert_null(json);
    st_tape_close(tape);
}

static int set_up(void **state) {
    (void)state;
    struct st_test_engine_options options;
    st_test_engine_options_init(&options, 8);
    options.max_running = 5;
    options.step_count = 140;
    recording = st_test_record(&options);
    return 0;
}

static int tear_down(void **state) {
    (void)state;
    st_test_recording_destroy(recording);
    return 0;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(no_tapes),
        cmocka_unit_test(versions),
        cmocka_unit_test(tables_that_are_none),
        cmocka_unit_test(damaged_steps),
        cmocka_unit_test(seeks_beyond),
        cmocka_unit_test(tables_nobody_asked_for),
        cmocka_unit_test(result_tapes_have_no_steps),
        cmocka_unit_test(attached_databases_stay_open),
        cmocka_unit_test(check_objects),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
