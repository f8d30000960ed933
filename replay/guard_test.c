/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Guards in whole replays, on the backend ST_TEST_BACKEND: of launches as they should be, of a
 * selection over a view that is too short, and of operators that were broken on purpose.
 *
 * The linker gives this program st_operator_kernel() below instead of the real one.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include <sqlite3.h>
#include <unistd.h>

#include "replay/backend.h"
#include "replay/bind.h"
#include "replay/replay.h"
#include "replay/testing.h"
#include "traces/format/writer.h"

enum { STEPS = 5, ROWS = 4, RAGGED = 1, MIXED = 2, UNIFORM = 3 };

static char folder[] = "/tmp/steptape-guard-XXXXXX";
static char tape[64];

/* ---- operators that are broken on purpose */

static enum { NOT_BROKEN, ONE_ROW_MORE, ELSEWHERE } broken;
static int32_t *window_lens; /* where swa_indices was last told to write */

const struct st_kernel *__real_st_operator_kernel(enum st_operator op);
const struct st_kernel *__wrap_st_operator_kernel(enum st_operator op);

static struct steptape_fill_args one_row_more(const void *args) {
    struct steptape_fill_args a = *(const struct steptape_fill_args *)args;
    a.rows++;
    return a;
}

static int launch_longer(const void *args, void *stream) {
    struct steptape_fill_args a = one_row_more(args);
    return __real_st_operator_kernel(ST_OP_FILL)->launch(&a, stream);
}

static int ref_rows_longer(const void *args, const int64_t *rows, int64_t n) {
    struct steptape_fill_args a = one_row_more(args);
    int64_t last = a.rows - 1;
    int rc = __real_st_operator_kernel(ST_OP_FILL)->ref_rows(args, rows, n);
    return rc != 0 ? rc : __real_st_operator_kernel(ST_OP_FILL)->ref_rows(&a, &last, 1);
}

static int launch_noting(const void *args, void *stream) {
    window_lens = ((const struct steptape_swa_indices_args *)args)->lens;
    return __real_st_operator_kernel(ST_OP_SWA_INDICES)->launch(args, stream);
}

static int ref_noting(const void *args) {
    window_lens = ((const struct steptape_swa_indices_args *)args)->lens;
    return __real_st_operator_kernel(ST_OP_SWA_INDICES)->ref(args);
}

static struct steptape_fill_args before_lens(void) {
    return (struct steptape_fill_args){
        .out = (uint32_t *)(void *)window_lens - 1, .rows = 1, .columns = 1, .stride = 1};
}

static int launch_elsewhere(const void *args, void *stream) {
    struct steptape_fill_args a = before_lens();
    int rc = __real_st_operator_kernel(ST_OP_TOPK_PER_ROW)->launch(args, stream);
    return rc != 0 ? rc : __real_st_operator_kernel(ST_OP_FILL)->launch(&a, stream);
}

static int ref_rows_elsewhere(const void *args, const int64_t *rows, int64_t n) {
    struct steptape_fill_args a = before_lens();
    int rc = __real_st_operator_kernel(ST_OP_TOPK_PER_ROW)->ref_rows(args, rows, n);
    return rc != 0 ? rc : __real_st_operator_kernel(ST_OP_FILL)->ref(&a);
}

const struct st_kernel *__wrap_st_operator_kernel(enum st_operator op) {
    static struct st_kernel copy[ST_OP_COUNT];
    const struct st_kernel *real = __real_st_operator_kernel(op);
    if (!real || broken == NOT_BROKEN)
        return real;
    copy[op] = *real;
    if (broken == ONE_ROW_MORE && op == ST_OP_FILL) {
        copy[op].launch = launch_longer;
        copy[op].ref_rows = ref_rows_longer;
    } else if (broken == ELSEWHERE && op == ST_OP_SWA_INDICES) {
        copy[op].launch = launch_noting;
        copy[op].ref = ref_noting;
    } else if (broken == ELSEWHERE && op == ST_OP_TOPK_PER_ROW) {
        copy[op].launch = launch_elsewhere;
        copy[op].ref_rows = ref_rows_elsewhere;
    }
    return &copy[op];
}

/* ---- a tape with drafts */

/* Prefill of all; decodes of 3, 1 and 2 tokens; 2, 1 and 4 beside the rest of a prompt; then 3 of
 * each, and none. */
static const int32_t query_len[STEPS][ROWS] = {
    {200, 210, 220, 100}, {3, 1, 2, 0}, {2, 1, 4, 60}, {3, 3, 3, 3}, {1, 1, 1, 1}};
static const int32_t drafts[STEPS][ROWS] = {
    {0, 0, 0, 0}, {2, 0, 1, 0}, {1, 0, 3, 0}, {2, 2, 2, 2}, {0, 0, 0, 0}};

static int write_step(struct st_writer *writer, int32_t number, int32_t *start,
                      struct st_error *err) {
    static const int64_t id[ROWS] = {0, 1, 2, 3};
    static const int32_t prompt[ROWS] = {200, 210, 220, 160};
    int32_t at[ROWS], offset[ROWS + 1] = {0}, block[2 * ROWS], rows = 0;
    struct st_row_blocks blocks = {offset, block};
    struct st_step s = {.step_id = number,
                        .start_ns = number * 1000,
                        .duration_ns = ST_UNKNOWN,
                        .padded_token_count = ST_UNKNOWN,
                        .padded_request_count = ST_UNKNOWN,
                        .zeroed = ST_UNKNOWN,
                        .cpu_starts = -1,
                        .request_id = id,
                        .query_len = query_len[number],
                        .draft = drafts[number],
                        .num_computed_tokens = at,
                        .group_count = 1,
                        .blocks = &blocks};
    s.graph_mode = ST_GRAPH_MODE_NONE;
    s.replaced.count = -1;
    for (; rows < ROWS && query_len[number][rows] > 0; rows++) {
        at[rows] = start[rows];
        s.token_count += query_len[number][rows];
        offset[rows + 1] = offset[rows];
        for (int32_t b = (start[rows] + 127) / 128; b * 128 < start[rows] + query_len[number][rows];
             b++)
            block[offset[rows + 1]++] = 1 + 10 * rows + b;
        start[rows] += query_len[number][rows];
    }
    s.request_count = rows;
    s.new_requests = (struct st_request_list){number == 0 ? ROWS : 0, id};
    s.new_prompt_len = prompt;
    return st_writer_add(writer, &s, NULL, err);
}

static int write_tape(void **state) {
    (void)state;
    struct st_error err = {0};
    struct st_writer *writer = NULL;
    int32_t start[ROWS] = {0};
    if (!mkdtemp(folder))
        return -1;
    snprintf(tape, sizeof tape, "%s/x.tape", folder);
    int rc = st_writer_open(tape, st_testing_dense_header(), &writer, &err);
    for (int32_t number = 0; rc == 0 && number < STEPS; number++)
        rc = write_step(writer, number, start, &err);
    rc = rc == 0 ? st_writer_finish(writer, &err) : rc;
    if (rc != 0)
        fprintf(stderr, "%s\n", err.msg);
    return rc;
}

static int remove_tape(void **state) {
    (void)state;
    char command[96];
    snprintf(command, sizeof command, "rm -r %s", folder);
    return system(command);
}

/* ---- replays of it */

static char result[96];

static int64_t replay(enum st_mode_request mode, int64_t first, int64_t last,
                      const char *const *policy, int32_t policies) {
    struct st_replay_options o;
    struct st_replay_outcome outcome;
    st_replay_options_init(&o);
    snprintf(result, sizeof result, "%s/runs.tape", folder);
    remove(result);
    o.tape_path = tape;
    o.result_path = result;
    o.backend = ST_TEST_BACKEND;
    o.model = "deepseek-v4-tiny";
    o.mode = mode;
    o.first_step = first;
    o.last_step = last;
    o.sample_tokens = 0;
    o.pass_mask = 1u << ST_PASS_VERIFY;
    o.poison = true;
    o.policy_count = policies;
    for (int32_t p = 0; p < policies; p++)
        ST_ASSERT_OK(st_policy_parse(policy[p], &o.policy[p], &ok_err));
    ST_ASSERT_OK(st_replay_run(&o, &outcome, &ok_err));
    return outcome.hazard_count;
}

static int64_t ask(const char *sql) {
    sqlite3 *db = NULL;
    sqlite3_stmt *stmt = NULL;
    assert_int_equal(sqlite3_open_v2(result, &db, SQLITE_OPEN_READONLY, NULL), SQLITE_OK);
    if (sqlite3_prepare_v2(db, sql, -1, &stmt, NULL) != SQLITE_OK)
        fail_msg("%s: %s", sql, sqlite3_errmsg(db));
    assert_int_equal(sqlite3_step(stmt), SQLITE_ROW);
    int64_t value = sqlite3_column_int64(stmt, 0);
    sqlite3_finalize(stmt);
    sqlite3_close(db);
    return value;
}

static const char *hazards_told(void) {
    static char text[512];
    sqlite3 *db = NULL;
    sqlite3_stmt *stmt = NULL;
    assert_int_equal(sqlite3_open_v2(result, &db, SQLITE_OPEN_READONLY, NULL), SQLITE_OK);
    sqlite3_prepare_v2(db,
                       "SELECT group_concat(policy || ', step ' || step_id || ', layer ' ||"
                       " ifnull(layer, '-') || ', ' || operator || ', row ' || row || ': ' || what,"
                       " '; ') FROM hazard",
                       -1, &stmt, NULL);
    assert_int_equal(sqlite3_step(stmt), SQLITE_ROW);
    snprintf(text, sizeof text, "%s", (const char *)sqlite3_column_text(stmt, 0));
    sqlite3_finalize(stmt);
    sqlite3_close(db);
    return text;
}

static void clean_in_every_mode(void **state) {
    (void)state;
    static const char *const policies[] = {
        "baseline",
        "safe",
        "baseline,topk-rows=padded",
        "corrected,topk-rows=padded,topk-select=library-relative",
        "safe,graph-skip=conditional",
        "safe,graph-skip=node-disable",
        "safe,c128-launch=compact",
    };
    static const enum st_mode_request modes[] = {ST_MODE_FULL_AND_PIECEWISE, ST_MODE_EAGER,
                                                 ST_MODE_FULL};
    static const int64_t full[] = {2, 0, 3}; /* the others are larger than the largest graph */
    broken = NOT_BROKEN;
    for (int i = 0; i < 3; i++) {
        if (replay(modes[i], 0, STEPS - 1, policies, 7) > 0)
            fail_msg("mode %d: %s", (int)modes[i], hazards_told());
        assert_int_equal(ask("SELECT count(*) FROM run_step WHERE graph_mode = 'FULL'"),
                         7 * full[i]);
    }
}

/* 6 tokens of 3 requests, the longest of 3: rows 6 to 8 of 512 indices. */
static void an_unpadded_view_is_written_past(void **state) {
    (void)state;
    static const char *const policies[] = {"baseline", "baseline,topk-rows=unpadded"};
    static const enum st_mode_request modes[] = {ST_MODE_EAGER, ST_MODE_FULL_AND_PIECEWISE};
    broken = NOT_BROKEN;
    for (int i = 0; i < 2; i++) {
        assert_int_equal(replay(modes[i], RAGGED, RAGGED, policies, 2), 2);
        assert_int_equal(
            ask("SELECT count(DISTINCT layer) FROM hazard WHERE policy LIKE '%unpadded'"
                " AND operator = 'topk_per_row' AND layer IN (1, 3) AND step_id = 1"
                " AND row = 6 AND column = 0 AND what = 'written past the view of"
                " top-k indices: rows 6 to 8, 6144 bytes'"),
            2);
    }
    /* Decodes of one length have no padding, and a graph of them has the rows of its capture. */
    assert_int_equal(replay(ST_MODE_EAGER, UNIFORM, STEPS - 1, policies, 2), 0);
    assert_int_equal(replay(ST_MODE_FULL, RAGGED, RAGGED, policies, 2), 0);
}

/* The rows past the view are those of prefill then, whose consumers see it. */
static void an_unpadded_view_spoils_prefill(void **state) {
    (void)state;
    static const char *const policies[] = {"baseline", "baseline,topk-rows=unpadded",
                                           "baseline,topk-rows=padded"};
    broken = NOT_BROKEN;
    assert_true(replay(ST_MODE_EAGER, MIXED, MIXED, policies, 3) > 0);
    assert_int_equal(ask("SELECT count(*) FROM hazard WHERE policy LIKE '%padded' AND policy NOT"
                         " LIKE '%unpadded'"),
                     0);
    assert_int_equal(ask("SELECT count(*) FROM hazard WHERE operator ="
                         " 'combine_topk_swa_indices' AND row = 7"),
                     2);
    assert_true(ask("SELECT count(*) FROM hazard WHERE operator = 'sparse_mla_prefill'") > 0);
    assert_int_equal(ask("SELECT count(*) FROM hazard WHERE operator = 'topk_per_row'"), 0);
}

/* Each layer answers for its own; a graph as well, past the rows of its capture size. */
static void one_row_too_many(void **state) {
    (void)state;
    static const char *const policies[] = {"baseline", "safe"};
    broken = ONE_ROW_MORE;
    assert_int_equal(replay(ST_MODE_EAGER, RAGGED, RAGGED, policies, 2), 4);
    assert_int_equal(ask("SELECT count(*) FROM hazard WHERE operator = 'fill' AND row = 6 AND"
                         " column = 0 AND layer IN (1, 3) AND what LIKE"
                         " 'written past the view of top-k indices: rows 6 to 6, 2048 bytes'"),
                     4);
    assert_int_equal(replay(ST_MODE_FULL, RAGGED, RAGGED, policies, 2), 4);
    assert_int_equal(ask("SELECT count(*) FROM hazard WHERE operator = 'fill' AND row = 8"), 4);
    broken = NOT_BROKEN;
    assert_int_equal(replay(ST_MODE_EAGER, RAGGED, RAGGED, policies, 2), 0);
}

/* Nobody who may write the lengths of windows did. */
static void a_write_elsewhere(void **state) {
    (void)state;
    static const char *const policies[] = {"baseline"};
    broken = ELSEWHERE;
    assert_int_equal(replay(ST_MODE_EAGER, RAGGED, RAGGED, policies, 1), 1);
    assert_int_equal(ask("SELECT count(*) FROM hazard WHERE operator = 'swa_indices' AND layer IS"
                         " NULL AND row = -1 AND what = 'written before the view of window lengths:"
                         " rows -1 to -1, 4 bytes, by another operator'"),
                     1);
    broken = NOT_BROKEN;
}

/* argument: only tests whose name matches the pattern */
int main(int argc, char **argv) {
    struct st_error err;
    if (argc > 1)
        cmocka_set_test_filter(argv[1]);
    if (st_backend_find(ST_TEST_BACKEND)->probe(&err) != 0) {
        fprintf(stderr, "skipped: %s\n", err.msg);
        return 77;
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(clean_in_every_mode),
        cmocka_unit_test(an_unpadded_view_is_written_past),
        cmocka_unit_test(an_unpadded_view_spoils_prefill),
        cmocka_unit_test(one_row_too_many),
        cmocka_unit_test(a_write_elsewhere),
    };
    return cmocka_run_group_tests(tests, write_tape, remove_tape);
}
