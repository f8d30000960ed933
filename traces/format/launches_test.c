/* SPDX-License-Identifier: Apache-2.0 */
/* Streams of launches become tables of a tape, and come back from them. */
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

#include "traces/format/launch_family.h"
#include "traces/format/launch_stream.h"
#include "traces/format/launches.h"
#include "traces/format/reader.h"
#include "traces/format/testing.h"
#include "traces/format/verify.h"
#include "traces/format/writer.h"

enum { STEPS = 40, KERNELS = 9, GRAPH = 30 };

static char stream_path[80], tape_path[80];

/* ---- a stream: of each step some kernels alone and a graph; step 7 is one that the recorder
 * dropped, the last two are not in the tape */

static struct st_launch_record record[STEPS * (KERNELS + GRAPH)];

static int64_t make_step(struct st_launch_encoder *e, int64_t sequence) {
    int64_t count = 0, clock = 1000000 * (sequence + 1);
    for (int i = 0; i < KERNELS + GRAPH; i++) {
        bool in_graph = i >= KERNELS;
        struct st_launch_site site = {.name = i % 2 ? "_save_partial_states_kernel" : "a_gemm",
                                      .graph_id = in_graph,
                                      .graph_node_id = in_graph ? (uint64_t)i : 0,
                                      .grid = {i + 1, 2, 3},
                                      .block = {32, 1, 1}};
        struct st_launch_record *l = &record[count++];
        *l = (struct st_launch_record){
            .sequence = sequence,
            .start_ns = i == 3 ? 0 : clock + 100 * i, /* one has no time */
            .end_ns = i == 3 ? 0 : clock + 100 * i + 50,
            .correlation_id = (uint32_t)(sequence * 100 + (in_graph ? KERNELS : i))};
        assert_int_equal(st_launch_encoder_site(e, &site, &l->site, NULL), 0);
    }
    return count;
}

static void put(struct st_bytes *out, enum st_launch_chunk type, struct st_bytes *payload) {
    assert_int_equal(st_chunk_put(out, type, payload->data, payload->size, NULL), 0);
    payload->size = 0;
}

static void put_block(struct st_bytes *out, struct st_launch_encoder *e) {
    struct st_bytes payload = {0};
    assert_int_equal(st_launch_encoder_definitions(e, &payload, NULL), 0);
    if (payload.size)
        put(out, ST_CHUNK_DEFINITIONS, &payload);
    assert_int_equal(st_launch_encoder_block(e, &payload, NULL), 0);
    put(out, ST_CHUNK_LAUNCHES, &payload);
    st_bytes_fini(&payload);
}

static void put_texts(struct st_bytes *out, bool ended) {
    struct st_bytes text = {0};
    st_chunk_text(&text, "what", "window");
    st_chunk_text(&text, "cost_share", "%.6f", 0.0123);
    st_chunk_text(&text, "cost_launch_ns", "%.1f", 45.6);
    put(out, ST_CHUNK_NOTE, &text);
    st_chunk_text(&text, "records", "%d", STEPS * (KERNELS + GRAPH));
    st_chunk_text(&text, "dropped", "%d", 3);
    put(out, ended ? ST_CHUNK_END : ST_CHUNK_TOTALS, &text);
    st_bytes_fini(&text);
}

static void make_stream(struct st_bytes *out, bool ended) {
    struct st_launch_encoder *e = NULL;
    struct st_launch_step step[STEPS];
    struct st_bytes text = {0};
    assert_int_equal(st_launch_encoder_create(&e, NULL), 0);
    st_chunk_text(&text, "pid", "%d", 1234);
    st_chunk_text(&text, "asked", "node");
    put(out, ST_CHUNK_HEAD, &text);
    for (int64_t s = 0; s < STEPS; s++) {
        int64_t count = make_step(e, s);
        /* A launch may be split between two blocks. */
        assert_int_equal(st_launch_encoder_add(e, record, count / 2, NULL), 0);
        if (s % 7 == 3)
            put_block(out, e);
        assert_int_equal(st_launch_encoder_add(e, record + count / 2, count - count / 2, NULL), 0);
        step[s] = (struct st_launch_step){.sequence = s,
                                          .level = ST_LEVEL_NODE,
                                          .start_ns = 1000 * s,
                                          .duration_ns = 900,
                                          .kernel_launches = KERNELS,
                                          .graph_launches = 1,
                                          .graph_kernels = s % 2 ? GRAPH : -1};
    }
    put_block(out, e);
    assert_int_equal(st_chunk_put_steps(out, step, STEPS, NULL), 0);
    put_texts(out, ended);
    st_bytes_fini(&text);
    st_launch_encoder_destroy(e);
}

static void write_stream(const struct st_bytes *data, size_t size) {
    FILE *f = fopen(stream_path, "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(data->data, 1, size, f), size);
    assert_int_equal(fclose(f), 0);
}

/* ---- a tape of STEPS - 3 steps */

static const struct gap { int64_t before_step, count; } one_gap[] = {{7, 1}, {0}}, *gaps = one_gap;

static int write_tape(struct st_launches_imported *imported, struct st_error *err) {
    const struct st_header header = {.engine = "made-up",
                                     .compress_ratio_count = -1,
                                     .prefix_caching = -1,
                                     .async_scheduling = -1,
                                     .clock_monotonic_ns = ST_UNKNOWN,
                                     .clock_realtime_ns = ST_UNKNOWN};
    struct st_writer *w = NULL;
    unlink(tape_path);
    ST_TRY(st_writer_open(tape_path, &header, &w, err));
    for (int64_t i = 0; i < STEPS - 3; i++) {
        const struct st_step step = st_test_bare_step(i);
        assert_int_equal(st_writer_add(w, &step, NULL, err), 0);
    }
    for (const struct gap *gap = gaps; gap->count; gap++)
        assert_int_equal(st_writer_gap(w, gap->before_step, gap->count, err), 0);
    int rc = st_writer_launches(w, stream_path, imported, err);
    if (rc) {
        st_writer_abort(w);
        return rc;
    }
    return st_writer_finish(w, err);
}

static int64_t ask(sqlite3 *db, const char *sql) {
    sqlite3_stmt *stmt = NULL;
    if (sqlite3_prepare_v2(db, sql, -1, &stmt, NULL) != SQLITE_OK)
        fail_msg("%s: %s", sql, sqlite3_errmsg(db));
    assert_int_equal(sqlite3_step(stmt), SQLITE_ROW);
    int64_t value =
        sqlite3_column_type(stmt, 0) == SQLITE_NULL ? ST_UNKNOWN : sqlite3_column_int64(stmt, 0);
    sqlite3_finalize(stmt);
    return value;
}

static void check_rows(sqlite3 *db) {
    assert_int_equal(ask(db, "SELECT count(*) FROM launch_step"), STEPS - 3);
    assert_int_equal(ask(db, "SELECT sequence FROM launch_step WHERE step_id = 6"), 6);
    assert_int_equal(ask(db, "SELECT sequence FROM launch_step WHERE step_id = 7"), 8);
    assert_int_equal(ask(db, "SELECT min(records) FROM launch_step"), KERNELS + GRAPH);
    assert_int_equal(ask(db, "SELECT max(records) FROM launch_step"), KERNELS + GRAPH);
    assert_int_equal(ask(db, "SELECT max(untimed) FROM launch_step"), 1);
    assert_int_equal(ask(db, "SELECT min(kernel_ns) FROM launch_step"), 50 * (KERNELS + GRAPH - 1));
    assert_int_equal(ask(db, "SELECT graph_kernels FROM launch_step WHERE step_id = 1"), GRAPH);
    assert_int_equal(ask(db, "SELECT graph_kernels FROM launch_step WHERE step_id = 2"),
                     ST_UNKNOWN);
    assert_int_equal(ask(db, "SELECT kernel_launches FROM launch_step WHERE step_id = 2"), KERNELS);
    assert_int_equal(ask(db, "SELECT dropped FROM launch_capture"), 3);
    assert_int_equal(ask(db, "SELECT elsewhere FROM launch_capture"), 3 * (KERNELS + GRAPH));
    /* Every recorded kernel was called, in steps whose graph is known. */
    assert_int_equal(ask(db, "SELECT missing FROM launch_capture"), 0);
    assert_int_equal(ask(db, "SELECT cost_ppm FROM launch_capture"), 12300);
    assert_int_equal(ask(db, "SELECT cost_launch_ps FROM launch_event"), 45600);
    assert_int_equal(ask(db, "SELECT count(*) FROM launch_site"), KERNELS + GRAPH);
}

static void check_launches(struct st_tape *tape) {
    struct st_launches *l = NULL;
    const struct st_launch_record *list;
    int64_t count;
    assert_int_equal(st_launches_open(st_tape_db(tape), tape_path, &l, NULL), 0);
    assert_int_equal(st_launches_verify(l, NULL), 0);
    for (int64_t step = 0; step < STEPS - 3; step++) {
        int64_t sequence = step < 7 ? step : step + 1;
        assert_int_equal(st_launches_step(l, step, &list, &count, NULL), 0);
        assert_int_equal(count, KERNELS + GRAPH);
        for (int64_t i = 0; i < count; i++) {
            const struct st_launch_site *site = st_launches_site(l, list[i].site);
            assert_int_equal(list[i].sequence, sequence);
            assert_int_equal(site->grid[0], i + 1);
            assert_int_equal(site->graph_node_id, i >= KERNELS ? i : 0);
            assert_int_equal(list[i].start_ns, i == 3 ? 0 : 1000000 * (sequence + 1) + 100 * i);
            const char *op = st_launch_family_at(st_launches_family(l, list[i].site))->op;
            assert_true(i % 2 ? op && strcmp(op, "save_partial_states") == 0 : op == NULL);
        }
    }
    assert_int_equal(st_launches_step(l, STEPS, &list, &count, NULL), 0);
    assert_int_equal(count, 0);
    st_launches_close(l);
}

/* A fused one holds the word of its other half as well. */
static void communication_is_not_work(void **state) {
    (void)state;
    static const char *const names[] = {
        "_Z41ncclDevKernel_AllReduce_Sum_bf16_RING_LL24ncclDevKernelArgsStorageILm4096EE",
        "_ZN4vllm26cross_device_reduce_1stageI13__nv_bfloat16Li2EEEvPNS_8RankDataE",
        "_ZN10flashinfer38allreduce_fusion_kernel_oneshot_lamportIL_per_token_group_quantE",
        "_ZN7deep_ep9internode8dispatchEv", "multimem_all_reduce_kernel"};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        int32_t family = st_launch_family_of(ST_LAUNCH_KERNEL, names[i]);
        assert_string_equal(st_launch_family_at(family)->family, "communication, waits for ranks");
    }
    int32_t last = st_launch_family_count() - 1;
    assert_int_equal(st_launch_family_of(ST_LAUNCH_KERNEL, "all_of_it"), last);
}

static void a_stream_becomes_tables(void **state) {
    (void)state;
    struct st_bytes stream = {0};
    struct st_launches_imported got;
    struct st_tape *tape = NULL;
    struct st_verify_report report;
    struct st_error err = {0};
    make_stream(&stream, true);
    write_stream(&stream, stream.size);
    if (write_tape(&got, &err) != 0)
        fail_msg("%s", err.msg);
    assert_int_equal(got.launches, STEPS * (KERNELS + GRAPH));
    assert_int_equal(got.steps, STEPS - 3);
    assert_int_equal(got.elsewhere, 3 * (KERNELS + GRAPH));
    assert_true(got.ended);
    assert_int_equal(got.torn_bytes, 0);
    if (st_tape_verify(tape_path, &report, &err) != 0)
        fail_msg("%s", err.msg);
    assert_int_equal(st_tape_open(tape_path, &tape, NULL), 0);
    check_rows(st_tape_db(tape));
    check_launches(tape);
    st_tape_close(tape);
    st_bytes_fini(&stream);
}

/* Launches of dropped steps are nowhere; those behind them find their steps. */
static void steps_are_found_behind_gaps(void **state) {
    (void)state;
    static const struct gap many[] = {{0, 2}, {2, 1}, {3, 4}, {20, 1}, {STEPS - 3, 1}, {0}};
    struct st_bytes stream = {0};
    struct st_launches_imported got;
    struct st_tape *tape = NULL;
    struct st_error err = {0};
    char sql[80];
    make_stream(&stream, true);
    write_stream(&stream, stream.size);
    gaps = many;
    int rc = write_tape(&got, &err);
    gaps = one_gap;
    if (rc)
        fail_msg("%s", err.msg);
    assert_int_equal(st_tape_open(tape_path, &tape, NULL), 0);
    const struct gap *gap = many;
    int64_t sequence = 0, found = 0;
    for (int64_t step = 0; step < STEPS - 3; step++, sequence++) {
        for (; gap->count && gap->before_step == step; gap++)
            sequence += gap->count;
        if (sequence >= STEPS)
            break;
        snprintf(sql, sizeof sql, "SELECT sequence FROM launch_step WHERE step_id = %d", (int)step);
        assert_int_equal(ask(st_tape_db(tape), sql), sequence);
        found++;
    }
    assert_int_equal(found, STEPS - 2 - 1 - 4 - 1);
    assert_int_equal(ask(st_tape_db(tape), "SELECT count(*) FROM launch_step"), found);
    assert_int_equal(got.elsewhere, (STEPS - found) * (KERNELS + GRAPH));
    st_tape_close(tape);
    st_bytes_fini(&stream);
}

/* Kernels that were called and that CUPTI did not give are missing, and said to be. */
static void missing_kernels_are_counted(void **state) {
    (void)state;
    struct st_bytes stream = {0};
    struct st_launches_imported got;
    struct st_launch_step step = {.sequence = 1,
                                  .level = ST_LEVEL_NODE,
                                  .kernel_launches = 3,
                                  .graph_launches = 1,
                                  .graph_kernels = 4};
    struct st_error err = {0};
    assert_int_equal(st_chunk_put_steps(&stream, &step, 1, NULL), 0);
    step.sequence = 2;
    step.changed = 1; /* the level changed: nobody expects all of them */
    assert_int_equal(st_chunk_put_steps(&stream, &step, 1, NULL), 0);
    write_stream(&stream, stream.size);
    assert_int_equal(write_tape(&got, &err), 0);
    assert_int_equal(got.missing, 7);
    st_bytes_fini(&stream);
}

/* A process that was killed: what it had written by then, wherever that ends. */
static void a_torn_stream(void **state) {
    (void)state;
    struct st_bytes stream = {0};
    struct st_launches_imported got;
    struct st_error err = {0};
    make_stream(&stream, false);
    for (size_t size = 30; size < stream.size; size += stream.size / 7) {
        write_stream(&stream, size);
        if (write_tape(&got, &err) != 0)
            fail_msg("%s", err.msg);
        assert_false(got.ended);
        assert_true(got.torn_bytes > 0);
    }
    /* Damage that a checksum does not see is refused, by name. */
    struct st_bytes bad = {0};
    st_bytes_put(&bad, stream.data, 0);
    assert_int_equal(st_chunk_put(&bad, ST_CHUNK_LAUNCHES, "\x05\x01\x01\x01\x01", 5, NULL), 0);
    write_stream(&bad, bad.size);
    assert_int_equal(write_tape(&got, &err), ST_ERR_CORRUPT);
    assert_non_null(strstr(err.msg, stream_path));
    unlink(stream_path);
    assert_int_equal(write_tape(&got, &err), ST_ERR_IO);
    st_bytes_fini(&bad);
    st_bytes_fini(&stream);
}

/* Somebody changed the tape: the seal tells, and reading ends in an error. */
static void a_damaged_tape(void **state) {
    (void)state;
    static const char *const changes[] = {
        "UPDATE launch_block SET columns = zeroblob(40) WHERE block_id = 2",
        "UPDATE launch_block SET columns = substr(columns, 1, length(columns) - 3)",
        "UPDATE launch_block SET capture_id = 9",
        "UPDATE launch_site SET site_id = site_id + 100",
        "UPDATE launch_site SET name_id = -1 WHERE site_id = 3",
        "UPDATE launch_site SET kind = 'else' WHERE site_id = 3",
        "UPDATE launch_capture SET first_site = 20",
        "DELETE FROM launch_site WHERE site_id > 10",
        "DELETE FROM launch_name",
    };
    for (size_t i = 0; i < sizeof changes / sizeof changes[0]; i++) {
        struct st_bytes stream = {0};
        struct st_launches *l = NULL;
        struct st_verify_report report;
        struct st_error err = {0};
        sqlite3 *db = NULL;
        make_stream(&stream, true);
        write_stream(&stream, stream.size);
        assert_int_equal(write_tape(NULL, &err), 0);
        assert_int_equal(sqlite3_open(tape_path, &db), SQLITE_OK);
        if (sqlite3_exec(db, changes[i], NULL, NULL, NULL) != SQLITE_OK)
            fail_msg("%s: %s", changes[i], sqlite3_errmsg(db));
        int rc = st_launches_open(db, tape_path, &l, &err);
        if (rc == 0)
            rc = st_launches_verify(l, &err);
        if (rc != ST_ERR_CORRUPT)
            fail_msg("%s: %d %s", changes[i], rc, err.msg);
        st_launches_close(l);
        sqlite3_close(db);
        assert_int_equal(st_tape_verify(tape_path, &report, &err), ST_ERR_CORRUPT);
        st_bytes_fini(&stream);
    }
}

static int setup(void **state) {
    (void)state;
    snprintf(stream_path, sizeof stream_path, "%s", st_test_path("launches-1234.stream"));
    snprintf(tape_path, sizeof tape_path, "%s", st_test_path("x.tape"));
    return 0;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(communication_is_not_work),
        cmocka_unit_test(a_stream_becomes_tables),
        cmocka_unit_test(steps_are_found_behind_gaps),
        cmocka_unit_test(missing_kernels_are_counted),
        cmocka_unit_test(a_torn_stream),
        cmocka_unit_test(a_damaged_tape),
    };
    return cmocka_run_group_tests(tests, setup, NULL);
}
