/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Recorded launches as a run.  The second test takes a recording of a real engine from outside:
 * STEPTAPE_LAUNCH_DATA (launches by kernel, JSON, gzip) and STEPTAPE_LAUNCH_STEPS (its steps); it
 * is skipped without them.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <cmocka.h>

#include <jansson.h>
#include <sqlite3.h>
#include <zlib.h>

#include "replay/engine.h"
#include "replay/testing.h"
#include "traces/anonymize.h"
#include "traces/format/launch_family.h"
#include "traces/format/launch_stream.h"
#include "traces/format/launches.h"
#include "traces/format/reader.h"
#include "traces/format/writer.h"
#include "traces/interchange/parse.h"

static char folder[] = "/tmp/steptape-engine-XXXXXX";
static char plain[64], stream[64], tape[64], result[64];

/* ---- making a tape with launches */

static struct st_launch_encoder *encoder;
static struct st_bytes chunks;

static void put_block(void) {
    struct st_bytes payload = {0};
    ST_ASSERT_OK(st_launch_encoder_definitions(encoder, &payload, &ok_err));
    if (payload.size)
        ST_ASSERT_OK(
            st_chunk_put(&chunks, ST_CHUNK_DEFINITIONS, payload.data, payload.size, &ok_err));
    payload.size = 0;
    ST_ASSERT_OK(st_launch_encoder_block(encoder, &payload, &ok_err));
    ST_ASSERT_OK(st_chunk_put(&chunks, ST_CHUNK_LAUNCHES, payload.data, payload.size, &ok_err));
    st_bytes_fini(&payload);
}

static void put_launch(int64_t step, const char *name, int64_t node, int64_t ns) {
    static int64_t clock = 1000;
    static uint32_t call;
    const struct st_launch_site site = {.name = name,
                                        .graph_id = node ? 1 : 0,
                                        .graph_node_id = (uint64_t)node,
                                        .grid = {4, 2, 1},
                                        .block = {64, 2, 1}};
    struct st_launch_record l = {.sequence = step, .correlation_id = ++call};
    ST_ASSERT_OK(st_launch_encoder_site(encoder, &site, &l.site, &ok_err));
    l.start_ns = clock += 10;
    l.end_ns = clock += ns;
    ST_ASSERT_OK(st_launch_encoder_add(encoder, &l, 1, &ok_err));
}

static void begin_stream(void) {
    ST_ASSERT_OK(st_launch_encoder_create(&encoder, &ok_err));
    chunks.size = 0;
    ST_ASSERT_OK(st_chunk_put(&chunks, ST_CHUNK_HEAD, "asked=node\n", 11, &ok_err));
}

static void end_stream(void) {
    put_block();
    ST_ASSERT_OK(st_chunk_put(&chunks, ST_CHUNK_END, "", 0, &ok_err));
    FILE *f = fopen(stream, "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(chunks.data, 1, chunks.size, f), chunks.size);
    assert_int_equal(fclose(f), 0);
    st_launch_encoder_destroy(encoder);
    st_bytes_fini(&chunks);
}

/* The steps of one tape and the launches of the stream. */
static void join(const char *steps) {
    struct st_tape *from = NULL;
    struct st_cursor *cursor = NULL;
    struct st_writer *writer = NULL;
    const struct st_step *step;
    unlink(tape);
    ST_ASSERT_OK(st_tape_open(steps, &from, &ok_err));
    ST_ASSERT_OK(st_writer_open(tape, st_tape_header(from), &writer, &ok_err));
    ST_ASSERT_OK(st_cursor_open(from, ST_READ_BLOCKS, &cursor, &ok_err));
    while (st_cursor_next(cursor, &step, NULL) == 0)
        ST_ASSERT_OK(st_writer_add(writer, step, NULL, &ok_err));
    ST_ASSERT_OK(st_writer_launches(writer, stream, NULL, &ok_err));
    ST_ASSERT_OK(st_writer_finish(writer, &ok_err));
    st_cursor_close(cursor);
    st_tape_close(from);
}

static int64_t ask(const char *sql) {
    sqlite3 *db = NULL;
    sqlite3_stmt *stmt = NULL;
    assert_int_equal(sqlite3_open_v2(result, &db, SQLITE_OPEN_READONLY, NULL), SQLITE_OK);
    if (sqlite3_prepare_v2(db, sql, -1, &stmt, NULL) != SQLITE_OK)
        fail_msg("%s: %s", sql, sqlite3_errmsg(db));
    if (sqlite3_step(stmt) != SQLITE_ROW)
        fail_msg("%s: no row", sql);
    int64_t value =
        sqlite3_column_type(stmt, 0) == SQLITE_NULL ? ST_UNKNOWN : sqlite3_column_int64(stmt, 0);
    sqlite3_finalize(stmt);
    sqlite3_close(db);
    return value;
}

static void run_engine(struct st_replay_outcome *outcome) {
    struct st_replay_options o;
    st_replay_options_init(&o);
    o.tape_path = tape;
    o.result_path = result;
    o.backend = ST_ENGINE_BACKEND;
    ST_ASSERT_OK(st_policy_parse("baseline", &o.policy[0], &ok_err));
    o.policy_count = 1;
    ST_ASSERT_OK(st_engine_run(&o, outcome, &ok_err));
}

static void a_run_of_the_engine(void **state) {
    (void)state;
    struct st_replay_outcome outcome;
    begin_stream();
    for (int64_t step = 1; step < 400; step++) { /* more than 256 different sets of counts */
        for (int i = 0; i < step; i++)
            put_launch(step, "_save_partial_states_kernel", i + 1, 100);
        put_launch(step, "void deep_gemm::sm90_fp8_gemm_1d2d_impl<>", 0, 1000);
        put_launch(step, "my_own_kernel", 0, 10);
    }
    put_launch(-1, "outside", 0, 10);
    end_stream();
    join(plain);
    run_engine(&outcome);
    assert_int_equal(ask("SELECT count(*) FROM run WHERE backend = 'engine'"), 1);
    assert_int_equal(ask("SELECT count(*) FROM run_step WHERE policy = 'recorded'"), 399);
    assert_int_equal(ask("SELECT count(*) FROM run_step WHERE policy = 'baseline'"), 399);
    assert_int_equal(ask("SELECT launches FROM run_step WHERE policy = 'recorded'"
                         " AND step_id = 300"),
                     302);
    assert_int_equal(ask("SELECT kernel_ns FROM run_step WHERE policy = 'recorded'"
                         " AND step_id = 300"),
                     300 * 100 + 1010);
    assert_int_equal(ask("SELECT launches FROM launch_count WHERE policy = 'recorded'"
                         " AND step_id = 300 AND operator = 'save_partial_states'"),
                     300);
    assert_true(ask("SELECT sum(launches) FROM launch_count WHERE policy = 'baseline'") > 0);
    assert_int_equal(ask("SELECT sum(launches) FROM _family WHERE operator IS NULL"), 2 * 399);
    assert_int_equal(ask("SELECT sum(kernel_ns) FROM _family WHERE family = 'other'"), 3990);
    assert_int_equal(ask("SELECT count(*) FROM launch_step"), 399);
    /* Again: a second run, the tables of launches only once. */
    run_engine(&outcome);
    assert_int_equal(outcome.run_id, 2);
    assert_int_equal(ask("SELECT count(*) FROM launch_capture"), 1);
}

/* All that a run says, as text; the caller's to free. */
static char *run_facts(void) {
    sqlite3 *db = NULL;
    sqlite3_stmt *stmt = NULL;
    assert_int_equal(sqlite3_open_v2(result, &db, SQLITE_OPEN_READONLY, NULL), SQLITE_OK);
    const char *sql =
        "SELECT (SELECT group_concat(concat) FROM (SELECT step_id || policy || launches || ' ' ||"
        " ifnull(kernel_ns, '-') || ' ' || ifnull(step_ns, '-') AS concat FROM run_step"
        " ORDER BY step_id, policy)) || (SELECT group_concat(concat) FROM (SELECT step_id || policy"
        " || operator || launches || ' ' || ifnull(kernel_ns, '-') AS concat FROM launch_count"
        " ORDER BY step_id, policy, operator)) || (SELECT group_concat(concat) FROM (SELECT family"
        " || mode || launches || ' ' || ifnull(kernel_ns, '-') AS concat FROM _family"
        " ORDER BY family, mode, operator))";
    if (sqlite3_prepare_v2(db, sql, -1, &stmt, NULL) != SQLITE_OK)
        fail_msg("%s", sqlite3_errmsg(db));
    assert_int_equal(sqlite3_step(stmt), SQLITE_ROW);
    assert_non_null(sqlite3_column_text(stmt, 0));
    char *facts = strdup((const char *)sqlite3_column_text(stmt, 0));
    sqlite3_finalize(stmt);
    sqlite3_close(db);
    return facts;
}

/* A launch of each kind in each step, some not timed or of no step. */
static void put_kinds(int64_t step) {
    for (int32_t kind = 0; kind < ST_LAUNCH_KINDS; kind++) {
        const struct st_launch_site site = {.kind = kind,
                                            .name = kind ? NULL : "acme_secret_kernel",
                                            .graph_id = kind == ST_LAUNCH_GRAPH,
                                            .stream_id = 7};
        struct st_launch_record l = {
            .sequence = kind == ST_LAUNCH_MEMSET && step % 3 == 0 ? ST_LAUNCH_UNATTRIBUTED : step,
            .correlation_id = (uint32_t)(step * 100 + kind),
            .bytes = kind == ST_LAUNCH_MEMCPY ? 4096 : 0};
        ST_ASSERT_OK(st_launch_encoder_site(encoder, &site, &l.site, &ok_err));
        l.start_ns = step % 5 ? 1000000 + step * 1000 + kind * 10 : 0;
        l.end_ns = step % 5 ? l.start_ns + 7 : 0;
        ST_ASSERT_OK(st_launch_encoder_add(encoder, &l, 1, &ok_err));
    }
}

/* Names of kernels, threads and times are others; what was launched is not. */
static void the_same_run_of_an_anonymized_tape(void **state) {
    (void)state;
    struct st_replay_outcome outcome;
    const struct st_anonymize_options usual = {0};
    struct st_anonymize_left_out left_out;
    struct st_tape *opened = NULL;
    struct st_writer *writer = NULL;
    char copy[96];
    snprintf(copy, sizeof copy, "%s/copy.tape", folder);
    begin_stream();
    for (int64_t step = 1; step < 400; step++) {
        put_launch(step, "_save_partial_states_kernel", step % 4, 100);
        put_launch(step, "void deep_gemm::sm90_fp8_gemm_1d2d_impl<>", 0, 1000);
        put_kinds(step);
    }
    end_stream();
    join(plain);
    unlink(result);
    run_engine(&outcome);
    char *before = run_facts();
    assert_true(ask("SELECT count(DISTINCT family) FROM _family") >= 5);
    ST_ASSERT_OK(st_tape_open(tape, &opened, &ok_err));
    ST_ASSERT_OK(st_anonymize(opened, copy, &usual, &writer, &left_out, &ok_err));
    ST_ASSERT_OK(st_writer_finish(writer, &ok_err));
    st_tape_close(opened);
    assert_int_equal(rename(copy, tape), 0);
    unlink(result);
    run_engine(&outcome);
    char *after = run_facts();
    assert_string_equal(after, before);
    assert_int_equal(ask("SELECT count(*) FROM launch_site JOIN launch_name USING (name_id)"
                         " WHERE name LIKE '%acme%'"),
                     0);
    free(before);
    free(after);
}

static void what_cannot_be_a_run(void **state) {
    (void)state;
    struct st_replay_options o;
    struct st_replay_outcome outcome;
    struct st_error err = {0};
    st_replay_options_init(&o);
    o.tape_path = plain;
    o.result_path = result;
    o.backend = ST_ENGINE_BACKEND;
    unlink(result);
    assert_int_equal(st_engine_run(&o, &outcome, &err), ST_ERR_INPUT);
    assert_non_null(strstr(err.msg, "no recorded launches"));
    o.tape_path = tape;
    o.first_step = o.last_step = 0; /* the one step that has none */
    assert_int_equal(st_engine_run(&o, &outcome, &err), ST_ERR_INPUT);
    o.pass_mask = 1;
    assert_int_equal(st_engine_run(&o, &outcome, &err), ST_ERR_USAGE);
    assert_int_equal(access(result, F_OK), -1);
}

/* ---- a real engine */

static json_t *load_json(const char *path) {
    size_t room = 1 << 20, size = 0;
    char *text = malloc(room);
    gzFile f = gzopen(path, "rb");
    int got = 0;
    while (f && text && (got = gzread(f, text + size, (unsigned)(room - size))) > 0) {
        size += (size_t)got;
        if (size == room)
            text = realloc(text, room *= 2);
    }
    gzclose(f);
    json_t *root = json_loadb(text, size, 0, NULL);
    free(text);
    if (!root)
        fail_msg("%s cannot be read", path);
    return root;
}

/* Rows are [kernel, grid, block, count, total ns, in graph, ...]. */
static void put_step(const json_t *kernels, const json_t *step) {
    int64_t number = json_integer_value(json_object_get(step, "i"));
    const json_t *rows = json_object_get(step, "rows");
    for (size_t r = 0; r < json_array_size(rows); r++) {
        const json_t *row = json_array_get(rows, r);
        size_t kernel = (size_t)json_integer_value(json_array_get(row, 0));
        int64_t count = json_integer_value(json_array_get(row, 3));
        int64_t total = json_integer_value(json_array_get(row, 4));
        bool in_graph = json_integer_value(json_array_get(row, 5)) != 0;
        for (int64_t i = 0; i < count; i++)
            put_launch(number, json_string_value(json_array_get(kernels, kernel)),
                       in_graph ? (int64_t)(r * 100) + i + 1 : 0,
                       total / count + (i < total % count));
    }
}

/* Launches a step and hundredths of a microsecond a launch, as the anchor's table gives them for a
 * decode step of one request in a FULL graph. */
static const struct {
    const char *family;
    int32_t launches, us_100;
} anchor[] = {
    {"MoE experts (Marlin)", 12, 2317},
    {"fp8 GEMM (DeepGEMM)", 38, 1340},
    {"MLA decode planner", 6, 2567},
    {"MLA sparse decode, split-KV", 6, 1510},
    {"MLA decode combine", 6, 564},
    {"save_partial_states", 6, 212},
    {"compressor", 6, 345},
    {"indexer compressor", 2, 433},
    {"compressed_slot_mapping", 3, 139},
    {"slot mapping", 6, 221},
    {"SWA indices", 3, 186},
    {"C128A top-k metadata", 1, 203},
    {"global top-k indices", 2, 216},
    {"top-k, cooperative", 2, 189},
    {"indexer logits", 2, 380},
    {"indexer logits planner", 1, 227},
    {"indexer q", 2, 232},
    {"q/kv norm + rope + insert", 6, 346},
    {"q/kv RMSNorm", 6, 165},
    {"inverse rope + quant", 6, 186},
    {"activation quant", 32, 288},
    {"mHC", 26, 459},
    {"MoE routing and glue", 30, 379},
    {"bf16 GEMM (cuBLAS, CuTe)", 23, 495},
    {"fills", 16, 88},
    {"copies, casts, elementwise", 34, 121},
    {"other", 3, 348},
};

struct family {
    int64_t launches, ns;
};

static void add_step(struct st_launches *launches, int64_t step, struct family *sum) {
    const struct st_launch_record *list;
    int64_t count;
    ST_ASSERT_OK(st_launches_step(launches, step, &list, &count, &ok_err));
    assert_int_equal(count, 286);
    for (int64_t i = 0; i < count; i++) {
        const char *name = st_launch_family_at(st_launches_family(launches, list[i].site))->family;
        size_t k = 0;
        while (k < sizeof anchor / sizeof anchor[0] && strcmp(anchor[k].family, name) != 0)
            k++;
        if (k == sizeof anchor / sizeof anchor[0])
            fail_msg("step %ld launches a kernel of family '%s'", (long)step, name);
        sum[k].launches++;
        sum[k].ns += list[i].end_ns - list[i].start_ns;
    }
}

static void import_steps(const char *path) {
    struct st_interchange *in = NULL;
    struct st_writer *writer = NULL;
    const struct st_step *step;
    const char *check_json;
    unlink(tape);
    ST_ASSERT_OK(st_interchange_open(path, NULL, &in, &ok_err));
    ST_ASSERT_OK(st_writer_open(tape, st_interchange_header(in), &writer, &ok_err));
    while (st_interchange_next(in, &step, &check_json, NULL) == 0)
        ST_ASSERT_OK(st_writer_add(writer, step, NULL, &ok_err));
    ST_ASSERT_OK(st_writer_launches(writer, stream, NULL, &ok_err));
    ST_ASSERT_OK(st_writer_finish(writer, &ok_err));
    st_interchange_close(in);
}

static void a_real_engine(void **state) {
    (void)state;
    const char *data = getenv("STEPTAPE_LAUNCH_DATA"), *steps = getenv("STEPTAPE_LAUNCH_STEPS");
    struct family sum[sizeof anchor / sizeof anchor[0]] = {{0, 0}};
    struct st_tape *opened = NULL;
    struct st_launches *launches = NULL;
    struct st_replay_outcome outcome;
    int64_t decodes = 0;
    if (!data || !steps)
        skip();
    json_t *root = load_json(data);
    const json_t *list = json_object_get(root, "steps");
    begin_stream();
    for (size_t i = 0; i < json_array_size(list); i++)
        put_step(json_object_get(root, "kernels"), json_array_get(list, i));
    end_stream();
    import_steps(steps);
    ST_ASSERT_OK(st_tape_open(tape, &opened, &ok_err));
    ST_ASSERT_OK(st_launches_open(st_tape_db(opened), tape, &launches, &ok_err));
    for (size_t i = 0; i < json_array_size(list); i++) {
        const json_t *step = json_array_get(list, i);
        if (strcmp(json_string_value(json_object_get(step, "tag")), "dec1") != 0)
            continue;
        add_step(launches, json_integer_value(json_object_get(step, "i")), sum);
        decodes++;
    }
    assert_true(decodes > 0);
    for (size_t k = 0; k < sizeof anchor / sizeof anchor[0]; k++) {
        if (sum[k].launches != anchor[k].launches * decodes)
            fail_msg("%s: %ld launches in %ld steps", anchor[k].family, (long)sum[k].launches,
                     (long)decodes);
        assert_int_equal((sum[k].ns + 5 * sum[k].launches) / (10 * sum[k].launches),
                         anchor[k].us_100);
    }
    st_launches_close(launches);
    st_tape_close(opened);
    unlink(result);
    run_engine(&outcome);
    assert_int_equal(ask("SELECT count(*) FROM run_step WHERE policy = 'recorded'"),
                     json_array_size(list));
    assert_int_equal(ask("SELECT max(launches) FROM run_step AS s JOIN step USING (step_id)"
                         " WHERE policy = 'recorded' AND s.graph_mode = 'FULL'"
                         " AND token_count IN (1, 16)"),
                     286);
    json_decref(root);
}

static int setup(void **state) {
    (void)state;
    struct st_error err = {0};
    if (!mkdtemp(folder))
        return -1;
    snprintf(plain, sizeof plain, "%s/plain.tape", folder);
    snprintf(stream, sizeof stream, "%s/launches-1.stream", folder);
    snprintf(tape, sizeof tape, "%s/x.tape", folder);
    snprintf(result, sizeof result, "%s/x.runs.tape", folder);
    return st_testing_write_tape(plain, st_testing_header(), &err);
}

static int teardown(void **state) {
    (void)state;
    char command[96];
    snprintf(command, sizeof command, "%s%s", getenv("STEPTAPE_KEEP") ? "true " : "rm -r ", folder);
    return system(command);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_run_of_the_engine),
        cmocka_unit_test(the_same_run_of_an_anonymized_tape),
        cmocka_unit_test(what_cannot_be_a_run),
        cmocka_unit_test(a_real_engine),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
