/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Records what random engines did, in every form, with and without dropped steps, and reads the
 * tape back.  st_ring_reserve() is wrapped: a ring that is full when the test says so.
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

#include "capture/ring.h"
#include "capture/testing.h"
#include "traces/format/reader.h"
#include "traces/format/verify.h"

uint8_t *__real_st_ring_reserve(struct st_ring *ring, uint64_t size);
uint8_t *__wrap_st_ring_reserve(struct st_ring *ring, uint64_t size);

static bool full;

uint8_t *__wrap_st_ring_reserve(struct st_ring *ring, uint64_t size) {
    return full ? NULL : __real_st_ring_reserve(ring, size);
}

static void expect_ok(int rc, const struct st_error *err) {
    if (rc < 0)
        fail_msg("%d: %s (%s:%d)", rc, err->msg, err->file, err->line);
    assert_int_equal(rc, 0);
}

static struct st_test_recording *make(uint64_t seed, int32_t steps) {
    struct st_test_engine_options options;
    st_test_engine_options_init(&options, seed);
    options.lawful = true;
    options.step_count = steps;
    if (seed % ST_TEST_FORMS == ST_TEST_SPLIT)
        options.random_id = 0; /* such ids cannot be split */
    struct st_test_recording *r = st_test_record(&options);
    for (int32_t i = 0; i < r->step_count; i++)
        if (r->step[i].check_json && !r->step[i].check_json[0]) {
            free(r->step[i].check_json); /* C has no empty check object */
            r->step[i].check_json = NULL;
        }
    return r;
}

static struct steptape_recorder *open_recorder(const struct st_test_recording *r,
                                               const char *path) {
    struct steptape_recorder *recorder;
    char message[512];
    char *json = st_test_header_json(&r->header);
    struct steptape_recorder_options options = {.struct_size = sizeof options,
                                                .ring_bytes = 8 << 20};
    int rc = steptape_recorder_open(path, json, &options, &recorder, message, sizeof message);
    free(json);
    if (rc)
        fail_msg("%d: %s", rc, message);
    assert_string_equal(message, "");
    return recorder;
}

static int record(struct steptape_recorder *recorder, const struct st_test_step *s,
                  enum st_test_form form) {
    struct st_test_call call;
    st_test_call_init(&call, s, form);
    int rc = steptape_recorder_record_step(recorder, &call.step);
    st_test_call_fini(&call);
    if (rc < 0) {
        struct steptape_recorder_stats stats = {.struct_size = sizeof stats};
        steptape_recorder_get_stats(recorder, &stats);
        fail_msg("step %" PRId64 ": %d: %s", s->step.step_id, rc, stats.message);
    }
    return rc;
}

static void close_recorder(struct steptape_recorder *recorder, const char *path) {
    char message[512];
    int rc = steptape_recorder_close(recorder, message, sizeof message);
    if (rc)
        fail_msg("%d: %s", rc, message);
    assert_string_equal(message, path);
}

static void check_whole(const struct st_test_recording *r, const char *path) {
    struct st_tape *tape;
    struct st_cursor *cursor;
    struct st_error err;
    const struct st_step *step;
    struct st_verify_report report;
    expect_ok(st_tape_verify(path, &report, &err), &err);
    assert_int_equal(report.step_count, r->step_count);
    expect_ok(st_tape_open(path, &tape, &err), &err);
    expect_ok(st_cursor_open(tape, ST_READ_TABLES, &cursor, &err), &err);
    for (int32_t i = 0; i < r->step_count; i++) {
        const char *json, *want = r->step[i].check_json;
        expect_ok(st_cursor_next(cursor, &step, &err), &err);
        const char *differs = st_test_compare(r, i, step, ST_READ_TABLES);
        if (!differs)
            differs = st_test_compare_tables(r, i, cursor);
        if (differs)
            fail_msg("step %d: %s", i, differs);
        expect_ok(st_tape_check_json(tape, i, &json, &err), &err);
        if (want)
            assert_string_equal(json, want);
        else
            assert_null(json);
    }
    assert_int_equal(st_test_ask(path, "SELECT sequence_count FROM recorder"), r->step_count);
    assert_int_equal(st_test_ask(path, "SELECT dropped_count FROM recorder"), 0);
    assert_int_equal(st_test_ask(path, "SELECT count(*) FROM step_gap"), 0);
    assert_int_equal(st_test_ask(path, "SELECT recovered OR lost_reason NOT NULL FROM recorder"),
                     0);
    assert_true(st_test_ask(path, "SELECT recorder_cost_ns FROM tape") > 0);
    st_cursor_close(cursor);
    st_tape_close(tape);
}

static void records_every_step(void **state) {
    (void)state;
    for (uint64_t seed = 0; seed < 24; seed++) {
        struct st_test_recording *r = make(seed, 300);
        const char *path = st_test_path("whole.tape");
        struct steptape_recorder *recorder = open_recorder(r, path);
        for (int32_t i = 0; i < r->step_count; i++) {
            assert_int_equal(steptape_recorder_sequence(recorder), i);
            assert_int_equal(record(recorder, &r->step[i], seed % ST_TEST_FORMS), 0);
        }
        close_recorder(recorder, path);
        check_whole(r, path);
        remove(path);
        assert_int_equal(st_test_file_count(), 0);
        st_test_recording_destroy(r);
    }
}

/* The steps that were kept, with the numbers they have on the tape. */
struct kept {
    struct st_test_recording recording;
    int32_t *gap; /* steps dropped before each: its lists may hold more than the engine's own */
    int32_t dropped;
};

static void keep(struct kept *kept, const struct st_test_step *s, int32_t gap) {
    int32_t at = kept->recording.step_count++;
    kept->recording.step[at] = *s;
    kept->recording.step[at].step.step_id = at;
    kept->gap[at] = gap;
}

static const char *compare_rows(const struct st_step *a, const struct st_step *b) {
    size_t rows = (size_t)a->request_count;
    if (a->request_count != b->request_count || memcmp(a->request_id, b->request_id, rows * 8))
        return "req";
    if (memcmp(a->query_len, b->query_len, rows * 4))
        return "qlen";
    if (memcmp(a->num_computed_tokens, b->num_computed_tokens, rows * 4))
        return "start";
    if (memcmp(a->prompt_len, b->prompt_len, rows * 4))
        return "prompt_len";
    return a->start_ns != b->start_ns ? "t_ns" : NULL;
}

static void check_kept(const struct kept *kept, const char *path) {
    const struct st_test_recording *r = &kept->recording;
    struct st_tape *tape;
    struct st_cursor *cursor;
    struct st_error err;
    const struct st_step *step;
    struct st_verify_report report;
    expect_ok(st_tape_verify(path, &report, &err), &err);
    assert_int_equal(report.step_count, r->step_count);
    expect_ok(st_tape_open(path, &tape, &err), &err);
    expect_ok(st_cursor_open(tape, ST_READ_TABLES, &cursor, &err), &err);
    for (int32_t i = 0; i < r->step_count; i++) {
        expect_ok(st_cursor_next(cursor, &step, &err), &err);
        const char *differs = compare_rows(&r->step[i].step, step);
        if (!differs && step->dropped_before != kept->gap[i])
            differs = "dropped";
        if (!differs)
            differs = st_test_compare_tables(r, i, cursor);
        if (differs)
            fail_msg("step %d%s: %s", i, kept->gap[i] ? " after a gap" : "", differs);
    }
    assert_int_equal(st_test_ask(path, "SELECT dropped_count FROM recorder"), kept->dropped);
    assert_int_equal(st_test_ask(path, "SELECT sum(dropped_count) FROM step_gap"), kept->dropped);
    assert_int_equal(st_test_ask(path, "SELECT sequence_count FROM recorder"),
                     kept->dropped + r->step_count);
    st_cursor_close(cursor);
    st_tape_close(tape);
}

static void drops_whole_steps(void **state) {
    (void)state;
    for (uint64_t seed = 0; seed < 60; seed++) {
        struct st_test_random random = {seed};
        struct st_test_recording *r = make(seed, 400);
        const char *path = st_test_path("drops.tape");
        struct steptape_recorder *recorder = open_recorder(r, path);
        struct kept kept = {0};
        kept.recording.header = r->header;
        kept.recording.step = calloc((size_t)r->step_count, sizeof *kept.recording.step);
        kept.gap = calloc((size_t)r->step_count, sizeof *kept.gap);
        int percent = (int)st_test_within(&random, 1, 70);
        int32_t gap = 0;
        for (int32_t i = 0; i < r->step_count; i++) {
            full = st_test_chance(&random, percent);
            int rc = record(recorder, &r->step[i], seed % ST_TEST_FORMS);
            assert_int_equal(rc, full ? STEPTAPE_RECORDER_DROPPED : 0);
            if (full)
                kept.dropped++;
            else
                keep(&kept, &r->step[i], gap);
            gap = full ? gap + 1 : 0;
        }
        full = false;
        struct steptape_recorder_stats stats = {.struct_size = sizeof stats};
        assert_int_equal(steptape_recorder_get_stats(recorder, &stats), 0);
        assert_int_equal(stats.dropped_count, kept.dropped);
        assert_int_equal(stats.step_count, kept.recording.step_count);
        assert_int_equal(stats.state, STEPTAPE_RECORDER_RECORDING);
        assert_true(stats.cost_median_ns > 0 && stats.cost_median_ns <= stats.cost_p999_ns);
        assert_true(stats.cost_p999_ns <= stats.cost_max_ns);
        close_recorder(recorder, path);
        check_kept(&kept, path);
        remove(path);
        free(kept.recording.step);
        free(kept.gap);
        st_test_recording_destroy(r);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(records_every_step),
        cmocka_unit_test(drops_whole_steps),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
