/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A tape that is being recorded: what is committed can be read, the finished one says what was
 * dropped, and sums or gaps that are not those of its steps are found.
 */
#include <inttypes.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "traces/format/db.h"
#include "traces/format/reader.h"
#include "traces/format/sums.h"
#include "traces/format/testing.h"
#include "traces/format/verify.h"
#include "traces/format/writer.h"

static void expect_ok(int rc, const struct st_error *err) {
    if (rc < 0)
        fail_msg("%d: %s (%s:%d)", rc, err->msg, err->file, err->line);
    assert_int_equal(rc, 0);
}

static struct st_test_recording *make(uint64_t seed) {
    struct st_test_engine_options options;
    st_test_engine_options_init(&options, seed);
    return st_test_record(&options);
}

/* What a second process would see, from the first block on. */
static void check_part(const struct st_test_recording *r, const char *path, int64_t committed) {
    struct st_tape *tape;
    struct st_cursor *cursor;
    struct st_error err;
    const struct st_step *step;
    assert_int_equal(st_tape_open(path, &tape, &err), ST_ERR_CORRUPT);
    assert_non_null(strstr(err.msg, "steptape recover"));
    expect_ok(st_tape_open_part(path, &tape, &err), &err);
    assert_int_equal(st_tape_step_count(tape), committed);
    expect_ok(st_cursor_open(tape, ST_READ_TABLES, &cursor, &err), &err);
    for (int64_t i = 0; i < committed; i++) {
        expect_ok(st_cursor_next(cursor, &step, &err), &err);
        const char *differs = st_test_compare(r, i, step, ST_READ_TABLES);
        if (!differs)
            differs = st_test_compare_tables(r, i, cursor);
        if (differs)
            fail_msg("step %" PRId64 " of %" PRId64 ": %s", i, committed, differs);
    }
    assert_int_equal(st_cursor_next(cursor, &step, &err), ST_DONE);
    st_cursor_close(cursor);
    st_tape_close(tape);
}

static void parts_can_be_read(void **state) {
    (void)state;
    for (uint64_t seed = 0; seed < 12; seed++) {
        struct st_test_recording *r = make(seed);
        const char *path = st_test_path("x.part");
        struct st_writer *writer;
        struct st_error err;
        int64_t checked = -1;
        expect_ok(st_writer_open_part(path, &r->header, &writer, &err), &err);
        assert_int_equal(st_writer_open_part(path, &r->header, &writer, &err), ST_ERR_IO);
        for (int32_t i = 0; i < r->step_count; i++) {
            expect_ok(st_writer_add(writer, &r->step[i].step, r->step[i].check_json, &err), &err);
            if (i % 70 == 69)
                expect_ok(st_writer_commit(writer, &err), &err);
            if (st_writer_committed(writer) != checked) {
                checked = st_writer_committed(writer);
                check_part(r, path, checked);
            }
        }
        assert_true(checked > 200);
        st_writer_leave(writer);
        check_part(r, path, checked);
        unlink(path);
        st_test_recording_destroy(r);
    }
}

static void write_whole(const struct st_test_recording *r, const char *path, bool recorder) {
    struct st_writer *writer;
    struct st_error err;
    const struct st_recorder_facts facts = {.sequence_count = r->step_count + 7,
                                            .dropped_count = 7,
                                            .lost_reason = "a reason",
                                            .ring_bytes = 4096,
                                            .byte_count = ST_UNKNOWN,
                                            .cost_sum_ns = 5000,
                                            .cost_median_ns = 5,
                                            .cost_p999_ns = 6,
                                            .cost_max_ns = 7};
    expect_ok(st_writer_open_part(path, &r->header, &writer, &err), &err);
    for (int32_t i = 0; i < r->step_count; i++) {
        r->step[i].step.dropped_before = i == 100 ? 4 : 0;
        expect_ok(st_writer_add(writer, &r->step[i].step, NULL, &err), &err);
    }
    expect_ok(st_writer_gap(writer, r->step_count, 3, &err), &err);
    if (recorder)
        expect_ok(st_writer_recorder(writer, &facts, &err), &err);
    expect_ok(st_writer_note(writer, 12, "key", "value", &err), &err);
    expect_ok(st_writer_seal(writer, &err), &err);
}

/* Changes a sealed tape and seals it again: what verify says then is not of the seal. */
static void expect_found(const struct st_test_recording *r, const char *sql, const char *found) {
    const char *path = st_test_path("changed.tape");
    struct st_verify_report report;
    struct st_error err = {0};
    sqlite3 *db;
    char hash[33], seal[96];
    write_whole(r, path, true);
    expect_ok(st_tape_verify(path, &report, &err), &err);
    assert_int_equal(sqlite3_open(path, &db), SQLITE_OK);
    assert_int_equal(sqlite3_exec(db, sql, NULL, NULL, NULL), SQLITE_OK);
    expect_ok(st_db_content_hash(db, path, hash, &err), &err);
    snprintf(seal, sizeof seal, "UPDATE seal SET hash = '%s'", hash);
    assert_int_equal(sqlite3_exec(db, seal, NULL, NULL, NULL), SQLITE_OK);
    sqlite3_close(db);
    assert_int_equal(st_tape_verify(path, &report, &err), ST_ERR_CORRUPT);
    if (!strstr(err.msg, found))
        fail_msg("'%s' is not in '%s'", found, err.msg);
    unlink(path);
}

static void wrong_sums_are_found(void **state) {
    (void)state;
    struct st_test_recording *r = make(3);
    const char *path = st_test_path("x.tape");
    struct st_verify_report report;
    struct st_error err;
    /* Gaps of a tape that no recorder made are taken as they are. */
    write_whole(r, path, false);
    expect_ok(st_tape_verify(path, &report, &err), &err);
    unlink(path);
    expect_found(r, "UPDATE step_summary SET token_count = token_count + 1", "token_count");
    expect_found(r, "UPDATE step_summary SET end_ns = NULL", "end_ns");
    expect_found(r, "DELETE FROM step_summary WHERE rowid = 1", "step_count");
    expect_found(r, "UPDATE step_gap SET dropped_count = 5 WHERE before_step_id = 100",
                 "not what the recorder counted");
    expect_found(r, "UPDATE step_gap SET before_step_id = 9999 WHERE before_step_id = 100",
                 "a gap is out of range");
    st_test_recording_destroy(r);
}

/* The recorder's own words can be read by the stock sqlite3. */
static void facts_are_rows(void **state) {
    (void)state;
    struct st_test_recording *r = make(4);
    const char *path = st_test_path("x.tape");
    struct st_tape *tape;
    struct st_error err;
    sqlite3_stmt *stmt;
    write_whole(r, path, true);
    expect_ok(st_tape_open(path, &tape, &err), &err);
    assert_int_equal(sqlite3_prepare_v2(st_tape_db(tape),
                                        "SELECT sequence_count - (SELECT count(*) FROM step),"
                                        " dropped_count, lost_reason = 'a reason', byte_count IS"
                                        " NULL, recorder_cost_ns, (SELECT value FROM recorder_note)"
                                        " FROM recorder, tape",
                                        -1, &stmt, NULL),
                     SQLITE_OK);
    assert_int_equal(sqlite3_step(stmt), SQLITE_ROW);
    static const int64_t want[] = {7, 7, 1, 1, 5000};
    for (int i = 0; i < 5; i++)
        assert_int_equal(sqlite3_column_int64(stmt, i), want[i]);
    assert_string_equal(sqlite3_column_text(stmt, 5), "value");
    sqlite3_finalize(stmt);
    st_tape_close(tape);
    unlink(path);
    st_test_recording_destroy(r);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(parts_can_be_read),
        cmocka_unit_test(wrong_sums_are_found),
        cmocka_unit_test(facts_are_rows),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
