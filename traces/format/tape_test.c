/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Writes what random engines did and reads it back: every array, every block table, every slot, in
 * order and from any step.  A second program of the same source has tiny blocks of steps
 * (ST_TEST_TINY), so that a few hundred steps hold many keyframes.
 */
#include <inttypes.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "traces/format/reader.h"
#include "traces/format/reader_i.h"
#include "traces/format/testing.h"
#include "traces/format/verify.h"

#ifdef ST_TEST_TINY
enum { SEEDS = 16 };
#else
enum { SEEDS = 4 };
#endif

static const unsigned modes[] = {0, ST_READ_BLOCKS, ST_READ_TABLES};

static void expect_same(const char *differs, uint64_t seed, unsigned what, int64_t step_id) {
    if (differs)
        fail_msg("seed %" PRIu64 ", cursor of %u, step %" PRId64 ": %s", seed, what, step_id,
                 differs);
}

static void expect_ok(int rc, const struct st_error *err) {
    if (rc < 0)
        fail_msg("%d: %s (%s:%d)", rc, err->msg, err->file, err->line);
    assert_int_equal(rc, 0);
}

static void read_in_order(const struct st_test_recording *r, struct st_tape *tape, unsigned what,
                          uint64_t seed) {
    struct st_cursor *cursor;
    struct st_error err;
    const struct st_step *step;
    expect_ok(st_cursor_open(tape, what, &cursor, &err), &err);
    for (int32_t i = 0; i < r->step_count; i++) {
        int64_t step_id = r->step[i].step.step_id;
        expect_ok(st_cursor_next(cursor, &step, &err), &err);
        expect_same(st_test_compare(r, step_id, step, what), seed, what, step_id);
        if (what) {
            expect_same(st_test_compare_tables(r, step_id, cursor), seed, what, step_id);
            expect_same(st_test_compare_slots(r, step_id, cursor), seed, what, step_id);
        }
    }
    assert_int_equal(st_cursor_next(cursor, &step, &err), ST_DONE);
    assert_int_equal(st_cursor_next(cursor, &step, &err), ST_DONE);
    /* From the end back to the beginning. */
    if (r->step_count) {
        int64_t first = r->step[0].step.step_id;
        expect_ok(st_cursor_seek(cursor, first, &err), &err);
        expect_ok(st_cursor_next(cursor, &step, &err), &err);
        expect_same(st_test_compare(r, first, step, what), seed, what, first);
    }
    st_cursor_close(cursor);
}

static int tables_not_held;

/* With block ids alone a table is whole or the cursor says what it needs. */
static void whole_or_refused(const struct st_test_recording *r, struct st_cursor *cursor,
                             int64_t step_id) {
    const struct st_test_step *want = &r->step[step_id - r->step[0].step.step_id];
    for (int32_t g = 0; g < want->step.group_count; g++)
        for (int32_t row = 0; row < want->step.request_count; row++) {
            const struct st_test_table *table = &want->table[g * want->step.request_count + row];
            const int32_t *id;
            int32_t count;
            struct st_error err;
            if (st_cursor_block_table(cursor, g, row, &id, &count, &err)) {
                assert_int_equal(err.code, ST_ERR_USAGE);
                assert_non_null(strstr(err.msg, "whole block tables need ST_READ_TABLES"));
                tables_not_held++;
            } else {
                assert_int_equal(count, table->count);
                if (count)
                    assert_memory_equal(id, table->id, (size_t)count * sizeof *id);
            }
        }
}

static void read_anywhere(const struct st_test_recording *r, struct st_tape *tape, unsigned what,
                          uint64_t seed, bool regular) {
    struct st_test_random random = {seed + what};
    struct st_cursor *cursor;
    struct st_error err;
    const struct st_step *step;
    expect_ok(st_cursor_open(tape, what, &cursor, &err), &err);
    for (int i = 0; i < 20; i++) {
        int64_t first = r->step[0].step.step_id;
        int64_t step_id = first + st_test_within(&random, 0, r->step_count - 1);
        expect_ok(st_cursor_seek(cursor, step_id, &err), &err);
        if (st_test_chance(&random, 10)) /* a seek after a seek, nothing read */
            continue;
        int64_t end = step_id + st_test_within(&random, 1, 12);
        for (; step_id < end && step_id < first + r->step_count; step_id++) {
            expect_ok(st_cursor_next(cursor, &step, &err), &err);
            expect_same(st_test_compare(r, step_id, step, what), seed, what, step_id);
            if (what == ST_READ_TABLES)
                expect_same(st_test_compare_tables(r, step_id, cursor), seed, what, step_id);
            if (what == ST_READ_BLOCKS)
                whole_or_refused(r, cursor, step_id);
            /* Starts that jump back may need blocks that are no longer held. */
            if (what == ST_READ_TABLES || (what && regular))
                expect_same(st_test_compare_slots(r, step_id, cursor), seed, what, step_id);
        }
    }
    st_cursor_close(cursor);
}

static int64_t query(struct st_tape *tape, const char *sql, int64_t argument) {
    sqlite3_stmt *stmt;
    assert_int_equal(sqlite3_prepare_v2(st_tape_db(tape), sql, -1, &stmt, NULL), SQLITE_OK);
    sqlite3_bind_int64(stmt, 1, argument);
    assert_int_equal(sqlite3_step(stmt), SQLITE_ROW);
    int64_t value = sqlite3_column_int64(stmt, 0);
    sqlite3_finalize(stmt);
    return value;
}

static void check_rows(const struct st_test_recording *r, struct st_tape *tape) {
    for (int32_t i = 0; i < r->step_count; i++) {
        const struct st_test_step *s = &r->step[i];
        const char *json;
        struct st_error err;
        int64_t id = s->step.step_id;
        expect_ok(st_tape_check_json(tape, id, &json, &err), &err);
        assert_int_equal(json != NULL, s->check_json != NULL);
        if (json)
            assert_string_equal(json, s->check_json);
        assert_int_equal(query(tape, "SELECT decode_count FROM step WHERE step_id = ?", id),
                         s->decode_count);
        assert_int_equal(query(tape, "SELECT prefill_token_count FROM step WHERE step_id = ?", id),
                         s->prefill_token_count);
        assert_int_equal(query(tape, "SELECT preempted_count FROM step WHERE step_id = ?", id),
                         s->step.preempted.count);
    }
}

static void round_trip(const struct st_test_engine_options *options) {
    struct st_test_recording *r = st_test_record(options);
    const char *path = st_test_path("engine.tape");
    struct st_error err = {0};
    struct st_tape *tape;
    struct st_verify_report report;
    expect_ok(st_test_write(r, path, &err), &err);
    expect_ok(st_tape_open(path, &tape, &err), &err);
    assert_null(st_test_compare_header(&r->header, st_tape_header(tape)));
    assert_int_equal(st_tape_step_count(tape), r->step_count);
    assert_int_equal(st_tape_first_step(tape), r->step_count ? options->first_step : 0);
    for (int m = 0; m < 3; m++) {
        read_in_order(r, tape, modes[m], options->seed);
        if (r->step_count)
            read_anywhere(r, tape, modes[m], options->seed, !options->odd);
    }
    check_rows(r, tape);
    st_tape_close(tape);
    expect_ok(st_tape_verify(path, &report, &err), &err);
    assert_int_equal(report.step_count, r->step_count);
    st_test_recording_destroy(r);
}

static void random_engines(void **state) {
    (void)state;
    for (uint64_t seed = 1; seed <= SEEDS; seed++) {
        struct st_test_engine_options options;
        st_test_engine_options_init(&options, seed);
        options.first_step = seed % 3 ? 0 : (int64_t)seed * 1000;
        round_trip(&options);
    }
#ifdef ST_TEST_TINY
    assert_true(tables_not_held > 0);
#endif
}

/* Every regularity switched on alone, and none of it. */
static void plain_engines(void **state) {
    (void)state;
    for (int variant = 0; variant < 4; variant++) {
        struct st_test_engine_options options = {.seed = 1000 + (uint64_t)variant,
                                                 .step_count = 200,
                                                 .group_count = 4,
                                                 .num_blocks = 2000,
                                                 .max_running = 8,
                                                 .free_to_tail = variant & 1,
                                                 .late_window = variant & 2};
        round_trip(&options);
    }
}

#ifndef ST_TEST_TINY
/* A window may be freed a step late and blocks may join either end; the tape tells which. */
static void the_fitting_model_is_chosen(void **state) {
    (void)state;
    for (int variant = 0; variant < 4; variant++) {
        struct st_test_engine_options options = {.seed = 77,
                                                 .step_count = 300,
                                                 .group_count = 3,
                                                 .num_blocks = 2000,
                                                 .max_running = 12,
                                                 .free_to_tail = variant & 1,
                                                 .late_window = variant & 2};
        struct st_test_recording *r = st_test_record(&options);
        struct st_tape *tape;
        struct st_error err;
        expect_ok(st_test_write(r, st_test_path("model.tape"), &err), &err);
        expect_ok(st_tape_open(st_test_path("model.tape"), &tape, &err), &err);
        assert_int_equal(query(tape, "SELECT allocator_model & 3 FROM tape", 0), variant);
        st_tape_close(tape);
        st_test_recording_destroy(r);
    }
}

#endif

static void short_tapes(void **state) {
    (void)state;
    for (int32_t steps = 0; steps < 5; steps++) {
        struct st_test_engine_options options;
        st_test_engine_options_init(&options, 9);
        options.step_count = steps;
        round_trip(&options);
    }
}

static void no_groups(void **state) {
    (void)state;
    struct st_test_engine_options options;
    st_test_engine_options_init(&options, 4);
    options.group_count = 0;
    round_trip(&options);
}

/* Same steps, same bytes: but for the time of making, which is in tape and operation. */
static void same_twice(void **state) {
    (void)state;
    static const char *const tables[] = {"step", "step_block", "step_check", "kv_group"};
    struct st_test_engine_options options;
    struct st_error err;
    st_test_engine_options_init(&options, 12);
    struct st_test_recording *r = st_test_record(&options);
    expect_ok(st_test_write(r, st_test_path("one.tape"), &err), &err);
    expect_ok(st_test_write(r, st_test_path("two.tape"), &err), &err);
    struct st_tape *tape;
    expect_ok(st_tape_open(st_test_path("one.tape"), &tape, &err), &err);
    char sql[256];
    snprintf(sql, sizeof sql, "ATTACH '%s' AS two", st_test_path("two.tape"));
    assert_int_equal(sqlite3_exec(st_tape_db(tape), sql, NULL, NULL, NULL), SQLITE_OK);
    for (size_t i = 0; i < sizeof tables / sizeof *tables; i++) {
        snprintf(sql, sizeof sql,
                 "SELECT count(*) FROM (SELECT * FROM main.%s EXCEPT SELECT * FROM two.%s)",
                 tables[i], tables[i]);
        assert_int_equal(query(tape, sql, 0), 0);
    }
    st_tape_close(tape);
    st_test_recording_destroy(r);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(plain_engines),
#ifndef ST_TEST_TINY
        cmocka_unit_test(the_fitting_model_is_chosen),
#endif
        cmocka_unit_test(short_tapes),
        cmocka_unit_test(no_groups),
        cmocka_unit_test(random_engines),
        cmocka_unit_test(same_twice),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
