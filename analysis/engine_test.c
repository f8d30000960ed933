/* SPDX-License-Identifier: Apache-2.0 */
/* A run of backend `engine`, asked: the virtual table launch over tape and result, and the report.
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

#include <sqlite3.h>

#include "analysis/database.h"
#include "analysis/report.h"
#include "traces/format/launch_code.h"
#include "traces/format/launch_stream.h"
#include "traces/format/reader.h"
#include "traces/format/result.h"
#include "traces/format/testing.h"
#include "traces/format/writer.h"

enum { STEPS = 3, KERNELS = 5 };

static char tape[80], stream[80], result[80];

static void ok(int rc, const struct st_error *err) {
    if (rc != 0)
        fail_msg("%d: %s", rc, err->msg);
}
#define OK(call)                                                                                   \
    do {                                                                                           \
        struct st_error ok_err = {0};                                                              \
        int ok_rc = (call);                                                                        \
        ok(ok_rc, &ok_err);                                                                        \
    } while (0)

static void put_chunk(struct st_bytes *out, enum st_launch_chunk type, struct st_bytes *payload) {
    OK(st_chunk_put(out, type, payload->data, payload->size, &ok_err));
    payload->size = 0;
}

/* Of each step five kernels: the third in a graph, the last without a time. */
static void write_stream(void) {
    static const char *const names[KERNELS] = {"sm90_fp8_gemm", "_save_partial_states_kernel",
                                               "marlin_moe_wna16", "mine", "mine"};
    struct st_launch_encoder *e = NULL;
    struct st_bytes out = {0}, payload = {0};
    OK(st_launch_encoder_create(&e, &ok_err));
    for (int64_t i = 0; i < STEPS * KERNELS; i++) {
        int k = (int)(i % KERNELS);
        const struct st_launch_site site = {.name = names[k],
                                            .graph_id = k == 2,
                                            .graph_node_id = k == 2 ? 7 : 0,
                                            .grid = {2, 3, 4},
                                            .block = {32, 2, 1}};
        struct st_launch_record l = {.sequence = i / KERNELS,
                                     .correlation_id = (uint32_t)i,
                                     .start_ns = 1000 * (i + 1),
                                     .end_ns = k == 4 ? 0 : 1000 * (i + 1) + 100};
        OK(st_launch_encoder_site(e, &site, &l.site, &ok_err));
        OK(st_launch_encoder_add(e, &l, 1, &ok_err));
    }
    struct st_launch_step step[STEPS];
    for (int i = 0; i < STEPS; i++)
        step[i] = (struct st_launch_step){.sequence = i,
                                          .level = ST_LEVEL_NODE,
                                          .start_ns = 10000 * i,
                                          .duration_ns = 1000,
                                          .kernel_launches = -1,
                                          .graph_launches = -1,
                                          .graph_kernels = -1};
    OK(st_chunk_put(&out, ST_CHUNK_HEAD, "asked=node\n", 11, &ok_err));
    OK(st_chunk_put_steps(&out, step, STEPS, &ok_err));
    OK(st_launch_encoder_definitions(e, &payload, &ok_err));
    put_chunk(&out, ST_CHUNK_DEFINITIONS, &payload);
    OK(st_launch_encoder_block(e, &payload, &ok_err));
    put_chunk(&out, ST_CHUNK_LAUNCHES, &payload);
    put_chunk(&out, ST_CHUNK_END, &payload);
    FILE *f = fopen(stream, "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(out.data, 1, out.size, f), out.size);
    fclose(f);
    st_bytes_fini(&out);
    st_bytes_fini(&payload);
    st_launch_encoder_destroy(e);
}

static void write_tape(void) {
    const struct st_header header = {.engine = "made-up",
                                     .compress_ratio_count = -1,
                                     .prefix_caching = -1,
                                     .async_scheduling = -1,
                                     .clock_monotonic_ns = ST_UNKNOWN,
                                     .clock_realtime_ns = ST_UNKNOWN};
    struct st_writer *w = NULL;
    OK(st_writer_open(tape, &header, &w, &ok_err));
    for (int64_t i = 0; i < STEPS; i++) {
        struct st_step step = st_test_bare_step(i);
        step.start_ns = 10000 * i;
        step.duration_ns = 1000;
        step.graph_mode = ST_GRAPH_MODE_FULL;
        OK(st_writer_add(w, &step, NULL, &ok_err));
    }
    OK(st_writer_launches(w, stream, NULL, &ok_err));
    OK(st_writer_finish(w, &ok_err));
}

/* What replay/engine.c would make of it, steps 0 and 1 only. */
static void write_result(void) {
    static const char *const policies[] = {"recorded", "baseline"};
    static const char *const operators[] = {"save_partial_states", "opaque things"};
    const struct st_result_facts facts = {.backend = "engine",
                                          .graph_mode = "tape",
                                          .passes = "recorded",
                                          .policy_count = 2,
                                          .policy = policies,
                                          .operator_count = 2,
                                          .operator_name = operators};
    const int32_t zero[2] = {0}, counts[2][2] = {{1, 4}, {2, 0}};
    struct st_tape *from = NULL;
    struct st_result *r = NULL;
    int64_t run_id;
    OK(st_tape_open(tape, &from, &ok_err));
    OK(st_result_open(result, from, &r, &ok_err));
    OK(st_result_run(r, &facts, &run_id, &ok_err));
    for (int64_t step = 0; step < 2; step++)
        for (int32_t p = 0; p < 2; p++) {
            const struct st_result_step row = {.step_id = step,
                                               .policy = p,
                                               .graph_mode = ST_GRAPH_MODE_FULL,
                                               .padded_token_count = 1,
                                               .launches = counts[p],
                                               .skipped = zero,
                                               .could_skip = zero,
                                               .step_ns = p ? ST_UNKNOWN : 1000,
                                               .kernel_ns = p ? ST_UNKNOWN : 400,
                                               .predicate_ps = ST_UNKNOWN};
            OK(st_result_step(r, &row, &ok_err));
        }
    const struct st_result_family known = {
        ST_GRAPH_MODE_FULL, "save_partial_states", "save_partial_states", 2, 2000, 2, 0, 200};
    const struct st_result_family opaque = {
        ST_GRAPH_MODE_FULL, "opaque things", NULL, 2, 2000, 8, 2, 600};
    OK(st_result_family(r, &known, &ok_err));
    OK(st_result_family(r, &opaque, &ok_err));
    OK(st_result_launches(r, from, &ok_err));
    OK(st_result_finish(r, &ok_err));
    st_tape_close(from);
}

static const char *ask(const char *path, const char *sql) {
    static char answer[512];
    sqlite3 *db = NULL;
    sqlite3_stmt *stmt = NULL;
    size_t length = 0;
    OK(st_database_open(path, &db, &ok_err));
    if (sqlite3_prepare_v2(db, sql, -1, &stmt, NULL) != SQLITE_OK)
        fail_msg("%s: %s", sql, sqlite3_errmsg(db));
    answer[0] = 0;
    int rc;
    while ((rc = sqlite3_step(stmt)) == SQLITE_ROW && length < sizeof answer)
        for (int i = 0; i < sqlite3_column_count(stmt); i++) {
            const char *value = (const char *)sqlite3_column_text(stmt, i);
            length += (size_t)snprintf(answer + length, sizeof answer - length, "%s%s",
                                       i        ? ","
                                       : length ? ";"
                                                : "",
                                       value ? value : "-");
        }
    if (rc != SQLITE_DONE)
        fail_msg("%s: %s", sql, sqlite3_errmsg(db));
    sqlite3_finalize(stmt);
    sqlite3_close(db);
    return answer;
}

static void launches_of_a_tape(void **state) {
    (void)state;
    assert_string_equal(ask(tape, "SELECT count(*) FROM launch"), "15");
    assert_string_equal(
        ask(tape, "SELECT * FROM launch WHERE step_id = 1 AND ordinal IN (1, 2, 4)"),
        "-,recorded,1,1,save_partial_states,-,24,64,7000,100;"
        "-,recorded,1,2,MoE experts (Marlin),7,24,64,8000,100;-,recorded,1,4,other,-,24,64,-,-");
    assert_string_equal(ask(tape, "SELECT count(*) FROM launch WHERE step_id > 0"), "10");
    assert_string_equal(ask(tape, "SELECT count(*) FROM launch WHERE step_id = 9"), "0");
    assert_string_equal(ask(tape, "SELECT count(*) FROM launch WHERE run_id = 1"), "0");
    assert_string_equal(ask(tape, "SELECT count(*) FROM launch WHERE operator = 'other'"), "6");
    /* Two cursors at once do not disturb each other. */
    assert_string_equal(ask(tape, "SELECT count(*), sum(a.step_id = b.step_id + 1) FROM launch AS a"
                                  " JOIN launch AS b ON b.ordinal = a.ordinal"),
                        "45,10");
}

static void launches_of_a_run(void **state) {
    (void)state;
    assert_string_equal(ask(result, "SELECT run_id, policy, step_id, count(*), sum(duration_ns)"
                                    " FROM launch GROUP BY 1, 2, 3"),
                        "1,recorded,0,5,400;1,recorded,1,5,400");
    assert_string_equal(ask(result, "SELECT count(*) FROM launch WHERE run_id = 2"), "0");
    assert_string_equal(ask(result, "SELECT min(start_ns) FROM launch WHERE run_id = 1"
                                    " AND step_id >= 1"),
                        "6000");
}

static void report(const char *format, const char *section, const char *const *holds) {
    char *text = NULL;
    size_t size = 0;
    FILE *out = open_memstream(&text, &size);
    OK(st_report_print_section(result, ST_REPORT_LAST_RUN, format, section, out, &ok_err));
    fclose(out);
    for (; *holds; holds++)
        if (!strstr(text, *holds))
            fail_msg("'%s' is not in:\n%s", *holds, text);
    free(text);
}

static void a_report(void **state) {
    (void)state;
    report("table", NULL,
           (const char *const[]){"FULL: 5.0 launches a step, over 2 steps", "opaque things",
                                 "steptape knows 25.0 % of this kernel time, 75.0 % is opaque",
                                 "note: 2 launches have no time", "2.0 (baseline)",
                                 "note: 3 steps ran with CUPTI attached", NULL});
    report("csv", "family",
           (const char *const[]){"FULL,opaque things,,2,8,4.0,2,600,100.0,0.75,0.3", NULL});
    report("csv", "beside",
           (const char *const[]){"FULL,save_partial_states,2,1.0,baseline,2.0", NULL});
    report("json", NULL, (const char *const[]){"\"section\":\"family\"", NULL});
}

static int setup(void **state) {
    (void)state;
    snprintf(tape, sizeof tape, "%s", st_test_path("x.tape"));
    snprintf(stream, sizeof stream, "%s", st_test_path("launches-1.stream"));
    snprintf(result, sizeof result, "%s", st_test_path("x.runs.tape"));
    write_stream();
    write_tape();
    write_result();
    return 0;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(launches_of_a_tape),
        cmocka_unit_test(launches_of_a_run),
        cmocka_unit_test(a_report),
    };
    return cmocka_run_group_tests(tests, setup, NULL);
}
