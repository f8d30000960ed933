/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Windows of what random engines did: each is a recording by the rules of import, and its steps
 * hold what they held in the whole one.
 */
#include <inttypes.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "traces/cut.h"
#include "traces/format/testing.h"
#include "traces/format/writer.h"
#include "traces/interchange/rules.h"

static void expect_ok(int rc, const struct st_error *err) {
    if (rc < 0)
        fail_msg("%d: %s (%s:%d)", rc, err->msg, err->file, err->line);
    assert_int_equal(rc, 0);
}

static void write_window(const char *from, int64_t first, int64_t last, const char *to) {
    struct st_tape *tape;
    struct st_cursor *cursor;
    struct st_cut *cut;
    struct st_writer *writer;
    struct st_rules rules;
    struct st_rules_odd odd;
    struct st_rules_fault fault;
    const struct st_step *step;
    struct st_step own;
    struct st_error err;
    expect_ok(st_tape_open(from, &tape, &err), &err);
    const struct st_header *header = st_tape_header(tape);
    st_rules_init(&rules, header);
    expect_ok(st_cursor_open(tape, ST_READ_TABLES, &cursor, &err), &err);
    expect_ok(st_cursor_seek(cursor, first, &err), &err);
    expect_ok(st_cut_create(header->group_count, &cut, &err), &err);
    expect_ok(st_writer_open(to, header, &writer, &err), &err);
    for (int64_t i = first; i <= last; i++) {
        expect_ok(st_cursor_next(cursor, &step, &err), &err);
        expect_ok(st_cut_step(cut, cursor, step, &own, &err), &err);
        assert_int_equal(own.step_id, i - first);
        if (st_rules_step(&rules, &own, &odd, &fault))
            fail_msg("step %" PRId64 ": %s: %s", own.step_id, fault.place, fault.what);
        expect_ok(st_writer_add(writer, &own, NULL, &err), &err);
    }
    expect_ok(st_writer_finish(writer, &err), &err);
    st_cut_destroy(cut);
    st_rules_fini(&rules);
    st_cursor_close(cursor);
    st_tape_close(tape);
}

static void compare_rows(struct st_cursor *a, struct st_cursor *b, const struct st_step *x,
                         const struct st_step *y) {
    struct st_error err;
    size_t rows = (size_t)x->request_count;
    assert_int_equal(y->request_count, x->request_count);
    assert_memory_equal(y->request_id, x->request_id, rows * sizeof *x->request_id);
    assert_memory_equal(y->query_len, x->query_len, rows * sizeof *x->query_len);
    assert_memory_equal(y->num_computed_tokens, x->num_computed_tokens,
                        rows * sizeof *x->num_computed_tokens);
    assert_memory_equal(y->prompt_len, x->prompt_len, rows * sizeof *x->prompt_len);
    for (int32_t g = 0; g < x->group_count; g++)
        for (int32_t row = 0; row < x->request_count; row++) {
            const int32_t *ids, *own;
            int32_t count, own_count;
            expect_ok(st_cursor_block_table(a, g, row, &ids, &count, &err), &err);
            expect_ok(st_cursor_block_table(b, g, row, &own, &own_count, &err), &err);
            assert_int_equal(own_count, count);
            if (count)
                assert_memory_equal(own, ids, (size_t)count * sizeof *ids);
        }
}

static void compare_window(const char *from, int64_t first, const char *to) {
    struct st_tape *tape, *window;
    struct st_cursor *a, *b;
    const struct st_step *x, *y;
    struct st_error err;
    expect_ok(st_tape_open(from, &tape, &err), &err);
    expect_ok(st_tape_open(to, &window, &err), &err);
    expect_ok(st_cursor_open(tape, ST_READ_TABLES, &a, &err), &err);
    expect_ok(st_cursor_open(window, ST_READ_TABLES, &b, &err), &err);
    expect_ok(st_cursor_seek(a, first, &err), &err);
    int rc;
    while ((rc = st_cursor_next(b, &y, &err)) == 0) {
        expect_ok(st_cursor_next(a, &x, &err), &err);
        assert_int_equal(x->step_id, y->step_id + first);
        compare_rows(a, b, x, y);
    }
    assert_int_equal(rc, ST_DONE);
    st_cursor_close(a);
    st_cursor_close(b);
    st_tape_close(tape);
    st_tape_close(window);
}

static void a_window_is_a_recording(void **state) {
    (void)state;
    for (uint64_t seed = 1; seed <= 30; seed++) {
        struct st_test_engine_options options;
        struct st_error err;
        struct st_test_random random = {seed};
        st_test_engine_options_init(&options, seed);
        options.lawful = true;
        options.first_step = 0;
        options.step_count = 200;
        options.preempt = 8;
        struct st_test_recording *r = st_test_record(&options);
        const char *from = st_test_path("whole.tape"), *to = st_test_path("window.tape");
        expect_ok(st_test_write(r, from, &err), &err);
        int64_t first = st_test_within(&random, 0, 199), last = st_test_within(&random, first, 199);
        write_window(from, first, last, to);
        compare_window(from, first, to);
        unlink(from);
        unlink(to);
        st_test_recording_destroy(r);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(a_window_is_a_recording)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
