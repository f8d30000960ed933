/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A copy without what says whose it is: every column of the format is known, what random engines
 * did is there with other numbers, launches move in time, and planted bytes are nowhere.
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
#include <sqlite3.h>

#include "traces/anonymize.h"
#include "traces/format/launch_stream.h"
#include "traces/format/launches.h"
#include "traces/format/testing.h"
#include "traces/format/verify.h"
#include "traces/format/writer.h"

enum { SEEDS = 12, LAUNCHES = 60 };
static const int64_t clock_ns = INT64_C(0x1122334455667788);

static void expect_ok(int rc, const struct st_error *err) {
    if (rc)
        fail_msg("%d: %s (%s:%d)", rc, err->msg, err->file, err->line);
}

static void anonymize(const char *from, const char *to, const struct st_anonymize_options *options,
                      struct st_anonymize_left_out *left_out) {
    struct st_tape *tape;
    struct st_writer *writer;
    struct st_error err = {0};
    struct st_verify_report report;
    expect_ok(st_tape_open(from, &tape, &err), &err);
    expect_ok(st_anonymize(tape, to, options, &writer, left_out, &err), &err);
    expect_ok(st_writer_finish(writer, &err), &err);
    st_tape_close(tape);
    expect_ok(st_tape_verify(to, &report, &err), &err);
}

static void execute(const char *path, const char *sql) {
    sqlite3 *db;
    char *message = NULL;
    assert_int_equal(sqlite3_open(path, &db), SQLITE_OK);
    if (sqlite3_exec(db, sql, NULL, NULL, &message) != SQLITE_OK)
        fail_msg("%s: %s", sql, message);
    sqlite3_close(db);
}

static bool holds(const char *path, const void *bytes, size_t size) {
    FILE *file = fopen(path, "rb");
    assert_non_null(file);
    assert_int_equal(fseek(file, 0, SEEK_END), 0);
    long length = ftell(file);
    rewind(file);
    char *content = malloc((size_t)length);
    assert_int_equal(fread(content, 1, (size_t)length, file), length);
    fclose(file);
    bool found = memmem(content, (size_t)length, bytes, size) != NULL;
    free(content);
    return found;
}

/* An integer as SQLite stores it; without its last byte, so that neighbours are found too. */
static bool holds_number(const char *path, int64_t value) {
    uint8_t bytes[7];
    for (int i = 0; i < 7; i++)
        bytes[i] = (uint8_t)((uint64_t)value >> (56 - 8 * i));
    return holds(path, bytes, sizeof bytes);
}

/* ---- columns */

static void write_launches(const char *path);

static void every_column_is_known(void **state) {
    (void)state;
    const char *path = st_test_path("columns.tape");
    char name[160];
    int64_t count;
    struct st_tape *tape;
    struct st_error err = {0};
    write_launches(path);
    expect_ok(st_tape_open(path, &tape, &err), &err);
    /* Of empty tables as well, which st_private_find_unknown() passes over. */
    sqlite3_stmt *stmt;
    assert_int_equal(sqlite3_prepare_v2(st_tape_db(tape),
                                        "SELECT t.name, x.name FROM sqlite_schema AS t,"
                                        " pragma_table_info(t.name) AS x WHERE t.type = 'table'",
                                        -1, &stmt, NULL),
                     SQLITE_OK);
    while (sqlite3_step(stmt) == SQLITE_ROW) {
        const char *table = (const char *)sqlite3_column_text(stmt, 0);
        const char *column = (const char *)sqlite3_column_text(stmt, 1);
        if (!st_private_find(table, column))
            fail_msg("anonymize_columns.c does not say what becomes of %s.%s", table, column);
    }
    sqlite3_finalize(stmt);
    for (const struct st_private_column *c = st_private_columns; c->table; c++)
        if (sqlite3_table_column_metadata(st_tape_db(tape), "main", c->table, c->column, NULL, NULL,
                                          NULL, NULL, NULL) != SQLITE_OK)
            fail_msg("there is no column %s.%s", c->table, c->column);
    expect_ok(st_private_find_unknown(tape, name, sizeof name, &count, &err), &err);
    assert_int_equal(count, 0);
    st_tape_close(tape);
}

static void refuse(const char *path, const struct st_anonymize_options *options, int want,
                   const char *text) {
    struct st_tape *tape;
    struct st_writer *writer;
    struct st_anonymize_left_out left_out;
    struct st_error err = {0};
    int files = st_test_file_count();
    expect_ok(st_tape_open(path, &tape, &err), &err);
    int rc = st_anonymize(tape, st_test_path("refused.tape"), options, &writer, &left_out, &err);
    if (rc != want || !strstr(err.msg, text))
        fail_msg("%d, \"%s\": %d, \"%s\" was expected", rc, err.msg, want, text);
    st_tape_close(tape);
    assert_int_equal(st_test_file_count(), files);
}

static void unknown_is_refused(void **state) {
    (void)state;
    const char *path = st_test_path("unknown.tape"), *copy = st_test_path("known.tape");
    const struct st_anonymize_options usual = {0}, drop = {.drop_unknown = true};
    struct st_anonymize_left_out left_out;
    struct st_test_engine_options options;
    st_test_engine_options_init(&options, 3);
    options.first_step = 0;
    options.step_count = 40;
    struct st_test_recording *r = st_test_record(&options);
    struct st_error err = {0};
    expect_ok(st_test_write(r, path, &err), &err);
    execute(path, "CREATE TABLE mine(x); CREATE TABLE \"empty\"\"\"(x)");
    anonymize(path, copy, &usual, &left_out); /* without rows they say nothing */
    execute(path, "INSERT INTO mine VALUES('acme-planted')");
    refuse(path, &usual, ST_ERR_UNSUPPORTED, "unknown.tape: mine holds");
    anonymize(path, copy, &drop, &left_out);
    assert_int_equal(left_out.unknown, 1);
    assert_false(holds(copy, "acme-planted", 12));
    execute(path, "DELETE FROM mine; ALTER TABLE tape ADD COLUMN owner TEXT");
    anonymize(path, copy, &usual, &left_out);
    execute(path, "UPDATE tape SET owner = 'acme-planted'");
    refuse(path, &usual, ST_ERR_UNSUPPORTED, "tape.owner holds");
    st_test_recording_destroy(r);
}

static void a_tail_is_refused(void **state) {
    (void)state;
    const char *path = st_test_path("tail.tape");
    const struct st_anonymize_options usual = {0};
    struct st_test_engine_options options;
    st_test_engine_options_init(&options, 4);
    options.first_step = 9;
    options.step_count = 5;
    struct st_test_recording *r = st_test_record(&options);
    struct st_error err = {0};
    expect_ok(st_test_write(r, path, &err), &err);
    refuse(path, &usual, ST_ERR_UNSUPPORTED, "begins with step 9");
    st_test_recording_destroy(r);
}

/* ---- steps */

struct pair {
    int64_t from, to;
};

struct pairs {
    struct pair *pair;
    int64_t count, next;
};

/* One number for one request, also within lists of requests that are gone. */
static void same_number(struct pairs *pairs, int64_t from, int64_t to) {
    for (int64_t i = pairs->count - 1; i >= 0; i--)
        if (pairs->pair[i].from == from && pairs->pair[i].to == to)
            return;
    /* A new one: the next, counted from 0. */
    assert_int_equal(to, pairs->next);
    pairs->next++;
    pairs->pair = realloc(pairs->pair, (size_t)(pairs->count + 1) * sizeof *pairs->pair);
    assert_non_null(pairs->pair);
    pairs->pair[pairs->count++] = (struct pair){from, to};
}

static void same_list(struct pairs *pairs, const struct st_request_list *a,
                      const struct st_request_list *b) {
    assert_int_equal(a->count, b->count);
    for (int32_t i = 0; i < a->count; i++)
        same_number(pairs, a->request_id[i], b->request_id[i]);
}

static void same_step(struct pairs *pairs, const struct st_step *a, const struct st_step *b,
                      int64_t base) {
    const struct st_request_list rows_a = {a->request_count, a->request_id};
    const struct st_request_list rows_b = {b->request_count, b->request_id};
    size_t bytes = (size_t)a->request_count * sizeof(int32_t);
    same_list(pairs, &a->finished, &b->finished);
    same_list(pairs, &a->preempted, &b->preempted);
    same_list(pairs, &a->resumed, &b->resumed);
    same_list(pairs, &a->new_requests, &b->new_requests);
    same_list(pairs, &a->replaced, &b->replaced);
    same_list(pairs, &rows_a, &rows_b);
    if (a->start_ns == ST_UNKNOWN)
        assert_int_equal(b->start_ns, ST_UNKNOWN);
    else
        assert_int_equal(b->start_ns, a->start_ns - base);
    assert_int_equal(a->duration_ns, b->duration_ns);
    assert_int_equal(a->graph_mode, b->graph_mode);
    assert_int_equal(a->padded_token_count, b->padded_token_count);
    assert_int_equal(a->padded_request_count, b->padded_request_count);
    assert_int_equal(a->cpu_starts, b->cpu_starts);
    assert_int_equal(a->zeroed, b->zeroed);
    assert_memory_equal(a->query_len, b->query_len, bytes);
    assert_memory_equal(a->num_computed_tokens, b->num_computed_tokens, bytes);
    assert_memory_equal(a->prompt_len, b->prompt_len, bytes);
    assert_int_equal(a->draft == NULL, b->draft == NULL);
    if (a->draft)
        assert_memory_equal(a->draft, b->draft, bytes);
    assert_int_equal(a->group_count, b->group_count);
    for (int32_t g = 0; g < a->group_count; g++) {
        const struct st_row_blocks *x = &a->blocks[g], *y = &b->blocks[g];
        assert_memory_equal(x->offset, y->offset, bytes + sizeof(int32_t));
        assert_memory_equal(x->block_id, y->block_id,
                            (size_t)x->offset[a->request_count] * sizeof(int32_t));
    }
}

static void same_steps(const struct st_test_recording *r, const char *copy, bool checks) {
    struct st_tape *tape;
    struct st_cursor *cursor;
    const struct st_step *step;
    const char *json;
    struct st_error err = {0};
    struct pairs pairs = {0};
    int64_t base = INT64_MAX;
    for (int32_t i = 0; i < r->step_count; i++)
        if (r->step[i].step.start_ns != ST_UNKNOWN && r->step[i].step.start_ns < base)
            base = r->step[i].step.start_ns;
    expect_ok(st_tape_open(copy, &tape, &err), &err);
    expect_ok(st_cursor_open(tape, ST_READ_BLOCKS, &cursor, &err), &err);
    for (int32_t i = 0; i < r->step_count; i++) {
        expect_ok(st_cursor_next(cursor, &step, &err), &err);
        same_step(&pairs, &r->step[i].step, step, base);
        expect_ok(st_tape_check_json(tape, step->step_id, &json, &err), &err);
        assert_int_equal(json != NULL, checks && r->step[i].check_json);
    }
    assert_int_equal(st_cursor_next(cursor, &step, &err), ST_DONE);
    st_cursor_close(cursor);
    st_tape_close(tape);
    free(pairs.pair);
}

static void random_engines(void **state) {
    (void)state;
    const struct st_anonymize_options usual = {0};
    for (uint64_t seed = 0; seed < SEEDS; seed++) {
        struct st_test_engine_options options;
        struct st_anonymize_left_out left_out;
        struct st_error err = {0};
        st_test_engine_options_init(&options, seed);
        options.first_step = 0;
        options.step_count = 150;
        struct st_test_recording *r = st_test_record(&options);
        expect_ok(st_test_write(r, st_test_path("x.tape"), &err), &err);
        anonymize(st_test_path("x.tape"), st_test_path("y.tape"), &usual, &left_out);
        same_steps(r, st_test_path("y.tape"), false);
        st_test_recording_destroy(r);
    }
}

/* ---- launches */

static void put(struct st_bytes *out, enum st_launch_chunk type, struct st_bytes *payload) {
    assert_int_equal(st_chunk_put(out, type, payload->data, payload->size, NULL), 0);
    st_bytes_fini(payload);
    *payload = (struct st_bytes){0};
}

static struct st_launch_site site_of(int i) {
    static const char *const names[] = {"acme_planted_kernel", "nvjet_acme_planted",
                                        "cudaLaunchKernel_v7000"};
    int32_t kind = i % 3 == 2 ? ST_LAUNCH_API : ST_LAUNCH_KERNEL;
    return (struct st_launch_site){.kind = kind,
                                   .name = names[i % 3],
                                   .grid = {i % 3 + 1, 1, 1},
                                   .block = {32, 1, 1},
                                   .stream_id = kind == ST_LAUNCH_API ? 0x44332211 : 7};
}

static void write_stream(const char *path) {
    struct st_launch_encoder *e = NULL;
    struct st_launch_record record[LAUNCHES];
    struct st_bytes out = {0}, payload = {0};
    assert_int_equal(st_launch_encoder_create(&e, NULL), 0);
    st_chunk_text(&payload, "pid", "%d", 0x31323334);
    st_chunk_text(&payload, "asked", "node");
    st_chunk_text(&payload, "cupti", "/home/acme-planted/libcupti.so");
    st_chunk_text(&payload, "counted_by", "hooks");
    st_chunk_text(&payload, "note", "acme-planted");
    put(&out, ST_CHUNK_HEAD, &payload);
    for (int i = 0; i < LAUNCHES; i++) {
        struct st_launch_site site = site_of(i);
        /* The last step's are not timed, and before the first step something ran. */
        int64_t start = i >= LAUNCHES - 6 ? 0 : clock_ns + 100 * (i - 6);
        record[i] = (struct st_launch_record){.sequence = i / 6 - 1,
                                              .start_ns = start,
                                              .end_ns = start ? start + 50 : 0,
                                              .correlation_id = (uint32_t)i + 1};
        assert_int_equal(st_launch_encoder_site(e, &site, &record[i].site, NULL), 0);
    }
    for (int part = 0; part < 2; part++) {
        int first = part ? LAUNCHES - 6 : 0, count = part ? 6 : LAUNCHES - 6;
        assert_int_equal(st_launch_encoder_add(e, record + first, count, NULL), 0);
        assert_int_equal(st_launch_encoder_definitions(e, &payload, NULL), 0);
        if (payload.size)
            put(&out, ST_CHUNK_DEFINITIONS, &payload);
        assert_int_equal(st_launch_encoder_block(e, &payload, NULL), 0);
        put(&out, ST_CHUNK_LAUNCHES, &payload);
    }
    struct st_launch_step step = {
        .sequence = 1, .level = ST_LEVEL_NODE, .start_ns = clock_ns, .duration_ns = 5};
    assert_int_equal(st_chunk_put_steps(&out, &step, 1, NULL), 0);
    st_chunk_text(&payload, "t_ns", "%" PRId64, clock_ns + 1);
    st_chunk_text(&payload, "what", "acme-planted");
    st_chunk_text(&payload, "text", "/home/acme-planted");
    put(&out, ST_CHUNK_NOTE, &payload);
    FILE *file = fopen(path, "wb");
    assert_non_null(file);
    assert_int_equal(fwrite(out.data, 1, out.size, file), out.size);
    assert_int_equal(fclose(file), 0);
    st_launch_encoder_destroy(e);
    st_bytes_fini(&out);
}

/* Steps without groups, launches, and all that a recorder and a user can say. */
static void write_launches(const char *path) {
    const struct st_header header = {.engine = "acme-planted",
                                     .engine_version = "0.26.0+acme-planted",
                                     .runner = "acme-planted",
                                     .device = "acme-planted",
                                     .model = "/home/acme-planted/model",
                                     .architecture = "acme-planted",
                                     .speculative = "{\"method\":\"eagle\",\"model\":"
                                                    "\"acme-planted\",\"acme-planted\":1,"
                                                    "\"num_speculative_tokens\":3}",
                                     .scale = "acme-planted",
                                     .compress_ratio_count = -1,
                                     .prefix_caching = -1,
                                     .async_scheduling = -1,
                                     .clock_monotonic_ns = clock_ns,
                                     .clock_realtime_ns = clock_ns};
    const struct st_recorder_facts facts = {.sequence_count = LAUNCHES / 6,
                                            .dropped_count = 1,
                                            .lost_reason = "acme-planted",
                                            .ring_bytes = 1 << 20,
                                            .byte_count = ST_UNKNOWN,
                                            .cost_sum_ns = 77,
                                            .cost_median_ns = ST_UNKNOWN,
                                            .cost_p999_ns = ST_UNKNOWN,
                                            .cost_max_ns = ST_UNKNOWN};
    const char *stream = st_test_path("launches.stream");
    char tool[] = "acme-planted";
    char *argv[] = {tool, NULL};
    struct st_writer *w;
    struct st_error err = {0};
    write_stream(stream);
    expect_ok(st_writer_open(path, &header, &w, &err), &err);
    for (int64_t i = 0; i < LAUNCHES / 6 - 1; i++) {
        const int64_t id = clock_ns;
        struct st_step step = st_test_bare_step(i);
        step.start_ns = clock_ns + 600 * i;
        step.duration_ns = 500;
        step.request_id = step.new_requests.request_id = &id;
        expect_ok(st_writer_add(w, &step, i ? NULL : "{\"acme-planted\":[1]}", &err), &err);
    }
    expect_ok(st_writer_recorder(w, &facts, &err), &err);
    expect_ok(st_writer_note(w, 1, "acme-planted", "acme-planted", &err), &err);
    expect_ok(st_writer_gap(w, 3, 1, &err), &err);
    expect_ok(st_writer_launches(w, stream, NULL, &err), &err);
    expect_ok(st_writer_operation(w, 1, argv, &err), &err);
    expect_ok(st_writer_finish(w, &err), &err);
    unlink(stream);
}

static int64_t ask(const char *path, const char *sql) {
    sqlite3 *db;
    sqlite3_stmt *stmt;
    assert_int_equal(sqlite3_open(path, &db), SQLITE_OK);
    if (sqlite3_prepare_v2(db, sql, -1, &stmt, NULL) != SQLITE_OK)
        fail_msg("%s: %s", sql, sqlite3_errmsg(db));
    assert_int_equal(sqlite3_step(stmt), SQLITE_ROW);
    int64_t value = sqlite3_column_int64(stmt, 0);
    sqlite3_finalize(stmt);
    sqlite3_close(db);
    return value;
}

/* What the planted tape says afterwards. */
static void check_facts(const char *path) {
    static const char *const truths[] = {
        "engine IS NULL AND engine_version = '0.26.0' AND runner IS NULL AND device IS NULL"
        " AND model IS NULL AND architecture IS NULL AND scale LIKE 'scaled%' AND"
        " clock_monotonic_ns IS NULL AND clock_realtime_ns IS NULL AND recorder_cost_ns = 77 AND"
        " speculative = '{\"method\":\"eagle\",\"num_speculative_tokens\":3}' FROM tape",
        "created % 86400000000000 = 0 AND created > 0 FROM tape",
        "count(*) = 1 AND min(time) % 86400000000000 = 0 FROM operation",
        "sequence_count = 10 AND dropped_count = 1 AND lost_reason IS NOT NULL FROM recorder",
        "before_step_id = 3 AND dropped_count = 1 FROM step_gap",
        "count(*) = 0 FROM recorder_note",
        "count(*) = 0 FROM step_check",
        /* The first thing is a launch 600 ns before the first step. */
        "min(start_ns) = 601 AND max(start_ns) - min(start_ns) = 4800 FROM step",
        "start_ns = 601 FROM launch_step WHERE step_id = 1",
        "level = 'node' AND counted_by = 'hooks' AND pid IS NULL AND cupti IS NULL AND note IS NULL"
        " FROM launch_capture",
        "time_ns = 602 AND what = 'other' AND text IS NULL FROM launch_event",
        "group_concat(name) = 'kernel_0,kernel_1_nvjet,cudaLaunchKernel_v7000' FROM launch_name",
        "stream_id = 0 FROM launch_site WHERE kind = 'api'",
        "min(stream_id) = 7 FROM launch_site WHERE kind <> 'api'",
    };
    for (size_t i = 0; i < sizeof truths / sizeof *truths; i++) {
        char sql[640];
        snprintf(sql, sizeof sql, "SELECT %s", truths[i]);
        if (ask(path, sql) != 1)
            fail_msg("not so: %s", truths[i]);
    }
}

/* Launches of both tapes: the same but for their times and names. */
static void compare_launches(const char *from, const char *to) {
    struct st_tape *tape[2];
    struct st_launches *launches[2];
    const char *path[2] = {from, to};
    struct st_error err = {0};
    for (int t = 0; t < 2; t++) {
        expect_ok(st_tape_open(path[t], &tape[t], &err), &err);
        expect_ok(st_launches_open(st_tape_db(tape[t]), path[t], &launches[t], &err), &err);
        expect_ok(st_launches_verify(launches[t], &err), &err);
    }
    int timed = 0, untimed = 0;
    for (int64_t step = 0; step < LAUNCHES / 6 - 1; step++) {
        const struct st_launch_record *list[2];
        int64_t count[2];
        for (int t = 0; t < 2; t++)
            expect_ok(st_launches_step(launches[t], step, &list[t], &count[t], &err), &err);
        assert_int_equal(count[0], count[1]);
        for (int64_t i = 0; i < count[0]; i++) {
            const struct st_launch_record *a = &list[0][i], *b = &list[1][i];
            int64_t moved = a->start_ns ? clock_ns - 601 : 0;
            assert_int_equal(b->start_ns, a->start_ns - moved);
            assert_int_equal(b->end_ns, a->end_ns - moved);
            assert_int_equal(a->site, b->site);
            assert_int_equal(st_launches_family(launches[0], a->site),
                             st_launches_family(launches[1], b->site));
            *(a->start_ns ? &timed : &untimed) += 1;
        }
    }
    assert_true(timed > 0 && untimed > 0);
    for (int t = 0; t < 2; t++) {
        st_launches_close(launches[t]);
        st_tape_close(tape[t]);
    }
}

static void planted_bytes_are_gone(void **state) {
    (void)state;
    const struct st_anonymize_options usual = {0};
    const char *from = st_test_path("planted.tape"), *to = st_test_path("clean.tape");
    struct st_anonymize_left_out left_out;
    write_launches(from);
    assert_true(holds(from, "acme", 4));
    assert_true(holds_number(from, clock_ns));
    anonymize(from, to, &usual, &left_out);
    assert_false(holds(to, "acme", 4));
    assert_false(holds_number(to, clock_ns));
    assert_false(holds(to, "1234", 4)); /* the process */
    assert_false(holds(to, "\x44\x33\x22\x11", 4));
    assert_int_equal(left_out.checks, 1);
    assert_int_equal(left_out.notes, 1);
    assert_int_equal(left_out.operations, 1);
    check_facts(to);
    compare_launches(from, to);
}

static void options_keep(void **state) {
    (void)state;
    const struct st_anonymize_options model = {.keep_model = true}, times = {.keep_times = true},
                                      kernels = {.keep_kernels = true},
                                      check = {.keep_check = true};
    const char *from = st_test_path("planted.tape"), *to = st_test_path("kept.tape");
    struct st_anonymize_left_out left_out;
    write_launches(from);
    anonymize(from, to, &model, &left_out);
    assert_int_equal(ask(to, "SELECT model = '/home/acme-planted/model' AND architecture ="
                             " 'acme-planted' AND engine IS NULL FROM tape"),
                     1);
    anonymize(from, to, &times, &left_out);
    assert_int_equal(ask(to, "SELECT clock_monotonic_ns = (SELECT min(start_ns) FROM step)"
                             " AND clock_realtime_ns = clock_monotonic_ns FROM tape"),
                     1);
    assert_int_equal(ask(to, "SELECT start_ns FROM launch_step WHERE step_id = 1"), clock_ns);
    anonymize(from, to, &kernels, &left_out);
    assert_int_equal(ask(to, "SELECT count(*) FROM launch_name WHERE name LIKE '%acme%'"), 2);
    refuse(from, &check, ST_ERR_INPUT, "step 0: check holds more");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_column_is_known),  cmocka_unit_test(unknown_is_refused),
        cmocka_unit_test(a_tail_is_refused),      cmocka_unit_test(random_engines),
        cmocka_unit_test(planted_bytes_are_gone), cmocka_unit_test(options_keep),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
