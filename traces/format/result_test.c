/* SPDX-License-Identifier: Apache-2.0 */
/* Result tapes: what is written can be read under contracts' names; half a run is never seen. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>
#include <cmocka.h>
#include <sqlite3.h>

#include "traces/format/result.h"
#include "traces/format/testing.h"
#include "traces/format/writer.h"

static char folder[] = "/tmp/steptape-result-XXXXXX";
static char tape_path[64], other_path[64], result_path[64];
static struct st_tape *tape, *other;

#define OK(call)                                                                                   \
    do {                                                                                           \
        struct st_error ok_err = {.msg = ""};                                                      \
        int ok_rc = (call);                                                                        \
        if (ok_rc != 0)                                                                            \
            fail_msg("%s: %d: %s", #call, ok_rc, ok_err.msg);                                      \
    } while (0)

static int write_tape(const char *path, int64_t steps, struct st_error *err) {
    const struct st_header header = {.engine = "made-up",
                                     .compress_ratio_count = -1,
                                     .max_model_len = -1,
                                     .max_num_seqs = -1,
                                     .max_num_batched_tokens = -1,
                                     .num_blocks = 100,
                                     .prefix_caching = -1,
                                     .async_scheduling = -1,
                                     .rank = 0,
                                     .clock_monotonic_ns = ST_UNKNOWN,
                                     .clock_realtime_ns = ST_UNKNOWN};
    struct st_writer *writer = NULL;
    ST_TRY(st_writer_open(path, &header, &writer, err));
    for (int64_t i = 0; i < steps; i++) {
        struct st_step step = st_test_bare_step(i);
        step.start_ns = 100 * i;
        int rc = st_writer_add(writer, &step, NULL, err);
        if (rc != 0) {
            st_writer_abort(writer);
            return rc;
        }
    }
    return st_writer_finish(writer, err);
}

static int setup(void **state) {
    (void)state;
    struct st_error err = {0};
    if (!mkdtemp(folder))
        return -1;
    snprintf(tape_path, sizeof tape_path, "%s/x?#%%.tape", folder); /* a URI's own characters */
    snprintf(other_path, sizeof other_path, "%s/other.tape", folder);
    snprintf(result_path, sizeof result_path, "%s/x.runs.tape", folder);
    if (write_tape(tape_path, 3, &err) || write_tape(other_path, 4, &err) ||
        st_tape_open(tape_path, &tape, &err) || st_tape_open(other_path, &other, &err)) {
        fprintf(stderr, "%s\n", err.msg);
        return -1;
    }
    return 0;
}

static int teardown(void **state) {
    (void)state;
    st_tape_close(tape);
    st_tape_close(other);
    char command[96];
    snprintf(command, sizeof command, "rm -r %s", folder);
    return system(command);
}

static const char *ask(const char *sql) {
    static char answer[256];
    sqlite3 *db = NULL;
    sqlite3_stmt *stmt = NULL;
    assert_int_equal(sqlite3_open_v2(result_path, &db, SQLITE_OPEN_READONLY, NULL), SQLITE_OK);
    if (sqlite3_prepare_v2(db, sql, -1, &stmt, NULL) != SQLITE_OK)
        fail_msg("%s: %s", sql, sqlite3_errmsg(db));
    assert_int_equal(sqlite3_step(stmt), SQLITE_ROW);
    const char *text = (const char *)sqlite3_column_text(stmt, 0);
    snprintf(answer, sizeof answer, "%s", text ? text : "NULL");
    sqlite3_finalize(stmt);
    sqlite3_close(db);
    return answer;
}

static const char *const policies[] = {"baseline", "upstream"};
static const char *const operators[] = {"save", "pool"};

static int64_t begin(struct st_result *result) {
    int64_t run_id = 0;
    const struct st_result_facts facts = {.backend = "cpu",
                                          .graph_mode = "eager",
                                          .passes = "verify",
                                          .policy_count = 2,
                                          .policy = policies,
                                          .operator_count = 2,
                                          .operator_name = operators};
    OK(st_result_run(result, &facts, &run_id, &ok_err));
    return run_id;
}

static void add_step(struct st_result *result, int64_t step_id, int32_t policy, bool known) {
    const int32_t launches[] = {20, policy ? 0 : 20}, skipped[] = {0, policy ? 20 : 0};
    const int32_t could[] = {0, 0};
    const int64_t op_ns[] = {known ? 40 : ST_UNKNOWN, 60};
    const struct st_result_step step = {.step_id = step_id,
                                        .policy = policy,
                                        .graph_mode = ST_GRAPH_MODE_NONE,
                                        .padded_token_count = 1,
                                        .launches = launches,
                                        .skipped = skipped,
                                        .could_skip = could,
                                        .step_ns = known ? 1000 : ST_UNKNOWN,
                                        .kernel_ns = known ? 100 : ST_UNKNOWN,
                                        .predicate_ps = policy ? 7500 : ST_UNKNOWN,
                                        .op_kernel_ns = op_ns};
    OK(st_result_step(result, &step, &ok_err));
}

static void write_run(void) {
    struct st_result *result = NULL;
    char *argv[200]; /* more than a function of SQL may take */
    for (int i = 0; i < 200; i++)
        argv[i] = (char *)(i ? "it's" : "steptape");
    OK(st_result_open(result_path, tape, &result, &ok_err));
    begin(result);
    for (int64_t s = 0; s < 3; s++)
        for (int32_t p = 0; p < 2; p++)
            add_step(result, s, p, s > 0);
    OK(st_result_sample(result, 1, 0, "time", 0, 990, &ok_err));
    const struct st_result_hazard hazard = {2, 1, -1, 1, 17, -1, "slot 3, baseline has 4"};
    OK(st_result_hazard(result, &hazard, &ok_err));
    OK(st_result_predicate(result, 1, 7500, 7000, 8000, 31, &ok_err));
    OK(st_result_run_end(result, ST_UNKNOWN, "{\"repeat\":1}", &ok_err));
    OK(st_result_operation(result, 200, argv, &ok_err));
    OK(st_result_finish(result, &ok_err));
}

static void round_trip(void **state) {
    (void)state;
    remove(result_path);
    write_run();
    static const char *const cases[][2] = {
        {"SELECT count(*) FROM step", "3"},
        {"SELECT kind FROM tape", "result"},
        {"SELECT source_hash = (SELECT tape_hash FROM run) FROM tape", "1"},
        {"SELECT engine FROM tape", "made-up"},
        {"SELECT tape_file FROM _result", "x?#%.tape"},
        {"SELECT noise_floor_ns FROM run", "NULL"},
        {"SELECT options ->> '$.repeat' FROM run", "1"},
        {"SELECT step_ns FROM run_step WHERE step_id = 0 AND policy = 'baseline'", "NULL"},
        {"SELECT step_ns FROM run_step WHERE step_id = 1 AND policy = 'baseline'", "1000"},
        {"SELECT launches FROM run_step WHERE step_id = 1 AND policy = 'upstream'", "20"},
        {"SELECT predicate_ns FROM run_step WHERE step_id = 1 AND policy = 'upstream'", "7.5"},
        {"SELECT predicate_ns FROM run_step WHERE step_id = 1 AND policy = 'baseline'", "NULL"},
        {"SELECT graph_mode FROM run_step WHERE step_id = 1", "NONE"},
        {"SELECT sum(skipped) FROM launch_count WHERE operator = 'pool'", "60"},
        {"SELECT count(*) FROM launch_count", "12"},
        {"SELECT kernel_ns FROM launch_count WHERE step_id = 0 AND operator = 'save'", "NULL"},
        {"SELECT kernel_ns FROM launch_count WHERE step_id = 1 AND operator = 'save'", "40"},
        {"SELECT count(DISTINCT shape_id) FROM _run_step", "2"}, /* shared by the steps */
        {"SELECT step_ns FROM run_sample WHERE pass = 'time' AND repetition = 0", "990"},
        {"SELECT layer IS NULL AND row = 17 AND column IS NULL FROM hazard", "1"},
        {"SELECT policy || operator FROM hazard", "upstreampool"},
        {"SELECT argv ->> '$[1]' FROM operation ORDER BY operation_id DESC", "it's"},
        {"SELECT json_array_length(argv) FROM operation", "200"},
        {"SELECT count(*) FROM operation", "1"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
        if (strcmp(ask(cases[i][0]), cases[i][1]) != 0)
            fail_msg("%s: %s, %s expected", cases[i][0], ask(cases[i][0]), cases[i][1]);
    struct st_tape *opened = NULL;
    OK(st_tape_open(result_path, &opened, &ok_err));
    assert_true(st_tape_is_result(opened));
    st_tape_close(opened);
}

static void appends_and_aborts(void **state) {
    (void)state;
    remove(result_path);
    write_run();
    write_run();
    assert_string_equal(ask("SELECT count(*) FROM run"), "2");
    assert_string_equal(ask("SELECT count(*) FROM step"), "3");
    assert_string_equal(ask("SELECT sum(skipped) FROM launch_count WHERE run_id = 2"), "60");
    assert_string_equal(ask("SELECT count(*) FROM _operator"), "2");
    struct st_result *result = NULL;
    OK(st_result_open(result_path, tape, &result, &ok_err));
    assert_int_equal(begin(result), 3);
    add_step(result, 0, 0, true);
    st_result_abort(result);
    assert_string_equal(ask("SELECT count(*) FROM run"), "2");
    assert_string_equal(ask("PRAGMA integrity_check"), "ok");

    /* A new file that is given up leaves nothing behind. */
    char path[96], command[128];
    snprintf(path, sizeof path, "%s/new.tape", folder);
    OK(st_result_open(path, tape, &result, &ok_err));
    begin(result);
    st_result_abort(result);
    snprintf(command, sizeof command, "ls %s | grep -q new", folder);
    assert_int_not_equal(system(command), 0);
}

static void refuses_what_is_not_its_own(void **state) {
    (void)state;
    struct st_result *result = NULL;
    struct st_error err = {0};
    remove(result_path);
    write_run();
    assert_int_equal(st_result_open(result_path, other, &result, &err), ST_ERR_INPUT);
    assert_non_null(strstr(err.msg, "another tape"));
    assert_int_equal(st_result_open(other_path, tape, &result, &err), ST_ERR_INPUT);
    assert_non_null(strstr(err.msg, "is a tape"));
    assert_int_equal(st_result_open("/nonexistent/x.tape", tape, &result, &err), ST_ERR_IO);
    assert_null(result);

    /* Two runs that make the same new file: the second does not overwrite the first. */
    remove(result_path);
    struct st_result *late = NULL;
    OK(st_result_open(result_path, tape, &late, &ok_err));
    begin(late);
    FILE *file = fopen(result_path, "w");
    fclose(file);
    assert_int_equal(st_result_finish(late, &err), ST_ERR_IO);
    assert_non_null(strstr(err.msg, "meanwhile"));
}

static void change(const char *sql) {
    sqlite3 *db = NULL;
    assert_int_equal(sqlite3_open(result_path, &db), SQLITE_OK);
    assert_int_equal(sqlite3_exec(db, sql, NULL, NULL, NULL), SQLITE_OK);
    sqlite3_close(db);
}

/* What kill -9 in the middle of an appended run leaves: pages in the file and a journal beside it.
 */
static void takes_back_half_a_run(void **state) {
    (void)state;
    remove(result_path);
    write_run();
    pid_t child = fork();
    if (child == 0) {
        sqlite3 *db = NULL;
        int rc = sqlite3_open(result_path, &db);
        rc = rc ? rc
                : sqlite3_exec(db,
                               "PRAGMA cache_size = 1; BEGIN IMMEDIATE;"
                               "INSERT INTO operation (tool, version, argv, time)"
                               " WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n"
                               " LIMIT 9999) SELECT 't', 'v', '[]', i FROM n",
                               NULL, NULL, NULL);
        _exit(rc);
    }
    int status = -1;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(status, 0);

    struct st_tape *half = NULL;
    struct st_error err = {0};
    assert_int_equal(st_tape_open(result_path, &half, &err), ST_ERR_IO);
    assert_non_null(strstr(err.msg, "half a run"));
    write_run();
    assert_string_equal(ask("SELECT count(*) FROM run"), "2");
    assert_string_equal(ask("SELECT count(*) < 9 FROM operation"), "1");
    assert_string_equal(ask("PRAGMA integrity_check"), "ok");
}

/* Definitions of a stranger's file neither run for ever nor act when a run is appended. */
static void runs_no_definitions_of_others(void **state) {
    (void)state;
    static const char *const bad[][2] = {
        {"DROP VIEW run_step; CREATE VIEW run_step AS WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL"
         " SELECT i + 1 FROM n) SELECT i AS run_id FROM n",
         "run_step is not a view of the tape format"},
        {"DROP VIEW hazard; CREATE VIEW hazard AS SELECT 1", "hazard is not a view"},
        {"DROP VIEW run_digest; CREATE TABLE run_digest(x)", "run_digest is not a view"},
        {"ALTER TABLE run RENAME TO r; CREATE VIEW run AS SELECT * FROM r", "run is not a table"},
        {"PRAGMA journal_mode = WAL", "in WAL mode"},
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        struct st_tape *opened = NULL;
        struct st_error err = {0};
        remove(result_path);
        write_run();
        change(bad[i][0]);
        assert_int_equal(st_tape_open(result_path, &opened, &err), ST_ERR_CORRUPT);
        if (!strstr(err.msg, bad[i][1]))
            fail_msg("'%s' expected, not '%s'", bad[i][1], err.msg);
    }
    remove(result_path);
    write_run();
    change("CREATE TRIGGER t AFTER INSERT ON run BEGIN DELETE FROM step; END");
    write_run();
    assert_string_equal(ask("SELECT count(*) FROM step"), "3");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(round_trip),
        cmocka_unit_test(appends_and_aborts),
        cmocka_unit_test(refuses_what_is_not_its_own),
        cmocka_unit_test(takes_back_half_a_run),
        cmocka_unit_test(runs_no_definitions_of_others),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
