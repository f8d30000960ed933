/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Whole replays of a made-up tape on the cpu and sim backends, and what a broken backend looks
 * like.
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
#include "replay/replay.h"
#include "replay/testing.h"
#include "traces/format/reader.h"

#define SKIP "baseline,c128-launch=skip-empty"
#define PAIR "operator IN ('compress_pool', 'compress_norm_rope_store')"

static char folder[] = "/tmp/steptape-replay-XXXXXX";
static char tape[64], dense[64];

static int make_tapes(void **state) {
    (void)state;
    struct st_error err = {0};
    if (!mkdtemp(folder))
        return -1;
    snprintf(tape, sizeof tape, "%s/x.tape", folder);
    snprintf(dense, sizeof dense, "%s/dense.tape", folder);
    if (st_testing_write_tape(tape, st_testing_header(), &err) != 0 ||
        st_testing_write_tape(dense, st_testing_dense_header(), &err) != 0) {
        fprintf(stderr, "%s\n", err.msg);
        return -1;
    }
    return 0;
}

static int remove_tapes(void **state) {
    (void)state;
    char command[96];
    snprintf(command, sizeof command, "rm -r %s", folder);
    return system(command);
}

static void options_for(struct st_replay_options *o, const char *backend, char *result,
                        const char *name) {
    st_replay_options_init(o);
    sprintf(result, "%s/%s.tape", folder, name);
    remove(result);
    o->tape_path = tape;
    o->backend = backend;
    o->result_path = result;
    ST_ASSERT_OK(st_policy_parse("baseline", &o->policy[0], &ok_err));
    ST_ASSERT_OK(st_policy_parse(SKIP, &o->policy[1], &ok_err));
    o->policy_count = 2;
    o->mode = ST_MODE_EAGER;
    o->sample_tokens = 0;
}

/* Everything but attention, which takes most of the time. */
static unsigned cheap_ops(void) {
    unsigned all = (1u << ST_OP_COUNT) - 1;
    return all & ~(1u << ST_OP_SPARSE_MLA_DECODE | 1u << ST_OP_SPARSE_MLA_PREFILL);
}

static void compare_with(struct st_replay_options *o, const char *policy, int64_t first,
                         int64_t last) {
    ST_ASSERT_OK(st_policy_parse(policy, &o->policy[1], &ok_err));
    o->policy_count = 2;
    o->first_step = first;
    o->last_step = last;
    o->pass_mask = 1u << ST_PASS_VERIFY;
    o->poison = true;
}

static int64_t ask(const char *path, const char *sql) {
    sqlite3 *db = NULL;
    sqlite3_stmt *stmt = NULL;
    assert_int_equal(sqlite3_open_v2(path, &db, SQLITE_OPEN_READONLY, NULL), SQLITE_OK);
    if (sqlite3_prepare_v2(db, sql, -1, &stmt, NULL) != SQLITE_OK)
        fail_msg("%s: %s", sql, sqlite3_errmsg(db));
    assert_int_equal(sqlite3_step(stmt), SQLITE_ROW);
    int64_t value =
        sqlite3_column_type(stmt, 0) == SQLITE_NULL ? -999 : sqlite3_column_int64(stmt, 0);
    sqlite3_finalize(stmt);
    sqlite3_close(db);
    return value;
}

/* Counted from the tape's own arrays, by positions. */
static int64_t quiet_steps(enum st_graph_mode but_not) {
    struct st_tape *t = NULL;
    struct st_cursor *c = NULL;
    const struct st_step *s;
    int64_t n = 0;
    ST_ASSERT_OK(st_tape_open(tape, &t, &ok_err));
    ST_ASSERT_OK(st_cursor_open(t, 0, &c, &ok_err));
    while (st_cursor_next(c, &s, NULL) == 0) {
        int closes = 0;
        for (int32_t i = 0; i < s->request_count; i++)
            for (int32_t k = 0; k < s->query_len[i]; k++)
                closes |= (s->num_computed_tokens[i] + k) % 128 == 127;
        n += s->request_count > 0 && !closes && s->cpu_starts != 0 && s->graph_mode != but_not;
    }
    st_cursor_close(c);
    st_tape_close(t);
    return n;
}

static void outputs_are_the_same(void **state) {
    (void)state;
    struct st_replay_options o;
    struct st_replay_outcome outcome;
    char result[96];
    options_for(&o, "cpu", result, "same");
    ST_ASSERT_OK(st_policy_parse("safe", &o.policy[2], &ok_err));
    o.policy_count = 3;
    o.poison = true;
    o.ops_mask = cheap_ops();
    ST_ASSERT_OK(st_replay_run(&o, &outcome, &ok_err));
    assert_int_equal(outcome.hazard_count, 0);
    assert_int_equal(ask(result, "SELECT count(*) FROM hazard"), 0);
    assert_true(ask(result, "SELECT sum(rows) FROM run_check") > 50000);
    assert_int_equal(ask(result, "SELECT count(DISTINCT operator) FROM run_check"), 10);
    assert_true(ask(result, "SELECT min(rows) FROM run_check") > 10);
    assert_true(ask(result, "SELECT min(reference_rows) FROM run_check WHERE operator LIKE '%com%'"
                            " AND operator NOT LIKE 'combine%' OR operator LIKE 'save%'") > 10);
    assert_int_equal(ask(result, "SELECT sum(reference_differing + rounding_bytes) FROM run_check"),
                     0);
    assert_int_equal(ask(result, "SELECT kernel_ns IS NULL FROM run_step LIMIT 1"), 1);
    int64_t want = quiet_steps(ST_GRAPH_MODE_UNKNOWN);
    assert_true(want > 20);
    assert_int_equal(ask(result, "SELECT sum(skipped) FROM launch_count WHERE policy = '" SKIP "'"),
                     2 * want);
    assert_int_equal(ask(result, "SELECT sum(skipped) FROM launch_count WHERE policy = 'baseline'"),
                     0);
    assert_int_equal(
        ask(result, "SELECT count(*) FROM run_step WHERE step_id = 3 AND launches = 0"), 3);
}

/* Chunked prefill beside decodes, then decodes alone, in the modes that the engine runs them in. */
static void attention_is_the_same(void **state) {
    (void)state;
    struct st_replay_options o;
    struct st_replay_outcome outcome;
    char result[96];
    static const int64_t range[][2] = {{212, 213}, {214, 216}};
    int64_t full = 0;
    for (int i = 0; i < 2; i++) {
        options_for(&o, "cpu", result, "attention");
        compare_with(&o, "safe", range[i][0], range[i][1]);
        o.mode = ST_MODE_FULL_AND_PIECEWISE;
        ST_ASSERT_OK(st_replay_run(&o, &outcome, &ok_err));
        assert_int_equal(outcome.hazard_count, 0);
        assert_true(ask(result, "SELECT sum(rows) FROM run_check WHERE operator LIKE 'sparse%'") >
                    2 * 4 * 2 * 4);
        full += ask(result, "SELECT count(*) FROM run_step WHERE graph_mode = 'FULL'");
    }
    assert_int_equal(full, 3 * 2);
}

static void packed_lists_are_a_hazard_in_full_alone(void **state) {
    (void)state;
    struct st_replay_options o;
    struct st_replay_outcome outcome;
    char result[96];
    options_for(&o, "cpu", result, "packed");
    compare_with(&o, "baseline,topk-width=packed", 214, 216);
    /* Rows for contexts of the tape's own 4,096 tokens are as short as rows can be. */
    static const char *const set[] = {"max_model_len=65536"};
    o.set = set;
    o.set_count = 1;
    o.mode = ST_MODE_FULL;
    ST_ASSERT_OK(st_replay_run(&o, &outcome, &ok_err));
    assert_true(outcome.hazard_count > 0);
    assert_true(ask(result, "SELECT count(*) FROM hazard WHERE layer IS NULL AND operator ="
                            " 'c128a_topk_metadata' AND row = 1 AND what LIKE 'index %'") > 0);
    assert_true(ask(result, "SELECT count(*) FROM hazard WHERE layer = 2 AND operator ="
                            " 'sparse_mla_decode' AND row > 0 AND what LIKE 'output nan%'") > 0);
    assert_int_equal(ask(result, "SELECT count(*) FROM hazard WHERE row = 0"), 0);
    o.mode = ST_MODE_EAGER;
    ST_ASSERT_OK(st_replay_run(&o, &outcome, &ok_err));
    assert_int_equal(outcome.hazard_count, 0);
    ST_ASSERT_OK(st_policy_parse("baseline,topk-width=strided", &o.policy[1], &ok_err));
    o.mode = ST_MODE_FULL;
    ST_ASSERT_OK(st_replay_run(&o, &outcome, &ok_err));
    assert_int_equal(outcome.hazard_count, 0);
}

static void stale_lists_are_a_hazard(void **state) {
    (void)state;
    struct st_replay_options o;
    struct st_replay_outcome outcome;
    char result[96];
    options_for(&o, "cpu", result, "stale");
    compare_with(&o, "baseline,combine-buffer=reuse", 212, 213);
    ST_ASSERT_OK(st_replay_run(&o, &outcome, &ok_err));
    assert_true(outcome.hazard_count > 0);
    assert_int_equal(ask(result, "SELECT count(*) FROM hazard WHERE operator <>"
                                 " 'sparse_mla_prefill' OR what NOT LIKE 'output nan%'"),
                     0);
    static const char *const without[] = {"baseline,combine-buffer=tail",
                                          "baseline,combine-buffer=reseed"};
    for (int i = 0; i < 2; i++) {
        ST_ASSERT_OK(st_policy_parse(without[i], &o.policy[1], &ok_err));
        ST_ASSERT_OK(st_replay_run(&o, &outcome, &ok_err));
        assert_int_equal(outcome.hazard_count, 0);
    }
}

/* Requests side by side in one array of scores: the second's rows begin at another column. */
static void absolute_columns_are_a_hazard(void **state) {
    (void)state;
    struct st_replay_options o;
    struct st_replay_outcome outcome;
    char result[96];
    options_for(&o, "cpu", result, "absolute");
    compare_with(&o, "baseline,topk-select=library", 152, 152);
    o.ops_mask = cheap_ops();
    ST_ASSERT_OK(st_replay_run(&o, &outcome, &ok_err));
    assert_true(ask(result, "SELECT count(*) FROM hazard WHERE operator = 'topk_per_row' AND"
                            " row >= 200 AND what LIKE 'index %baseline has 0'") > 0);
    assert_int_equal(ask(result, "SELECT count(*) FROM hazard WHERE operator NOT IN"
                                 " ('topk_per_row', 'combine_topk_swa_indices')"),
                     0);
    ST_ASSERT_OK(st_policy_parse("baseline,topk-select=fast", &o.policy[1], &ok_err));
    ST_ASSERT_OK(st_replay_run(&o, &outcome, &ok_err));
    assert_int_equal(outcome.hazard_count, 0);
}

/* V3.2: no window, no compressor, the best of all tokens. */
static void the_best_of_all_tokens(void **state) {
    (void)state;
    struct st_replay_options o;
    struct st_replay_outcome outcome;
    char result[96];
    options_for(&o, "cpu", result, "dsa");
    compare_with(&o, "safe", 153, 154);
    o.tape_path = dense;
    o.model = "deepseek-v3.2";
    o.sample_rows = 4;
    ST_ASSERT_OK(st_replay_run(&o, &outcome, &ok_err));
    assert_int_equal(outcome.hazard_count, 0);
    assert_int_equal(ask(result, "SELECT count(*) FROM run_check WHERE policy = 'safe'"), 5);
    assert_true(ask(result, "SELECT min(rows) FROM run_check") >= 2 * 2);
    ST_ASSERT_OK(st_policy_parse("baseline,combine-buffer=reuse", &o.policy[1], &ok_err));
    ST_ASSERT_OK(st_replay_run(&o, &outcome, &ok_err));
    assert_true(outcome.hazard_count > 0);
}

static void tape_mode_counts_what_full_prevents(void **state) {
    (void)state;
    struct st_replay_options o;
    struct st_replay_outcome outcome;
    char result[96];
    options_for(&o, "sim", result, "mode");
    o.mode = ST_MODE_TAPE;
    ST_ASSERT_OK(st_replay_run(&o, &outcome, &ok_err));
    int64_t all = quiet_steps(ST_GRAPH_MODE_UNKNOWN), outside = quiet_steps(ST_GRAPH_MODE_FULL);
    assert_int_equal(ask(result, "SELECT sum(skipped) FROM launch_count WHERE " PAIR), 2 * outside);
    assert_int_equal(
        ask(result,
            "SELECT sum(could_skip) FROM run_step WHERE graph_mode = 'FULL' AND step_id <> 7"),
        2 * (all - outside));
    assert_int_equal(ask(result, "SELECT simulated FROM run"), 1);
    assert_int_equal(ask(result, "SELECT sim_error IS NULL FROM run"), 1);
    assert_int_equal(ask(result, "SELECT count(*) FROM run_sample"),
                     ask(result, "SELECT count(*) FROM run_step WHERE launches > 0"));
    assert_true(ask(result, "SELECT count(*) FROM run_step WHERE policy = '" SKIP "' AND"
                            " predicate_ns > 0") > 20);
    assert_int_equal(ask(result,
                         "SELECT count(predicate_ns) FROM run_step WHERE policy = 'baseline'"
                         " OR step_id = 7"),
                     0);
}

static struct st_backend_ops broken;
static int64_t mixed_tokens;

static int count_mixed(struct st_backend *b, const struct st_step_input *input,
                       struct st_error *err) {
    for (int c = 0; c < ST_CACHE_COUNT; c++)
        for (int32_t t = 0; input->mixed[c] && t < input->shape.token_count; t++)
            mixed_tokens += input->mixed[c][t];
    return st_backend_cpu.prepare(b, input, err);
}

/* State that earlier steps wrote is rebuilt: a step's outputs do not depend on where a replay
 * began.  Attention is not among them: it reads entries of long ago, for which the generator stands
 * in until a compressor writes them. */
static void middle_equals_whole(void **state) {
    (void)state;
    struct st_replay_options o;
    struct st_replay_outcome outcome;
    char whole[96], middle[96], shard[96];
    options_for(&o, "cpu", whole, "whole");
    o.ops_mask = cheap_ops();
    ST_ASSERT_OK(st_replay_run(&o, &outcome, &ok_err));
    broken = st_backend_cpu;
    broken.prepare = count_mixed;
    mixed_tokens = 0;
    options_for(&o, "cpu", middle, "middle");
    o.ops_mask = cheap_ops();
    o.ops = &broken;
    o.first_step = 77;
    o.last_step = 140;
    ST_ASSERT_OK(st_replay_run(&o, &outcome, &ok_err));
    options_for(&o, "cpu", shard, "shard");
    o.ops_mask = cheap_ops();
    o.shard = 2;
    o.shard_count = 3;
    o.ops = &broken;
    ST_ASSERT_OK(st_replay_run(&o, &outcome, &ok_err));
    assert_int_equal(mixed_tokens, 0); /* no requests share a block: nothing is excused */
    const char *const others[] = {middle, shard};
    for (int i = 0; i < 2; i++) {
        char sql[512];
        snprintf(sql, sizeof sql, "SELECT count(DISTINCT step_id) FROM run_digest");
        assert_true(ask(others[i], sql) >= 64);
        sqlite3 *db = NULL;
        sqlite3_stmt *stmt = NULL;
        snprintf(sql, sizeof sql, "ATTACH '%s' AS other", others[i]);
        assert_int_equal(sqlite3_open(whole, &db), SQLITE_OK);
        assert_int_equal(sqlite3_exec(db, sql, NULL, NULL, NULL), SQLITE_OK);
        assert_int_equal(
            sqlite3_prepare_v2(db,
                               "SELECT sum(a.digest <> b.digest OR a.rows <> b.rows), count(*)"
                               " FROM main.run_digest AS a JOIN other.run_digest AS b"
                               " USING (policy, step_id, operator)",
                               -1, &stmt, NULL),
            SQLITE_OK);
        assert_int_equal(sqlite3_step(stmt), SQLITE_ROW);
        assert_int_equal(sqlite3_column_int64(stmt, 0), 0);
        assert_true(sqlite3_column_int64(stmt, 1) >= 64 * 2 * 7);
        sqlite3_finalize(stmt);
        sqlite3_close(db);
    }
}

static void lacking_groups_are_allocated(void **state) {
    (void)state;
    struct st_replay_options o;
    struct st_replay_outcome outcome;
    struct st_error err = {0};
    char result[96];
    options_for(&o, "cpu", result, "dense-runs");
    o.tape_path = dense;
    assert_int_equal(st_replay_run(&o, &outcome, &err), ST_ERR_INPUT);
    assert_non_null(strstr(err.msg, dense));
    assert_int_equal(access(result, F_OK), -1);
    o.model = "deepseek-v4-tiny";
    o.first_step = 90;
    o.ops_mask = cheap_ops();
    ST_ASSERT_OK(st_replay_run(&o, &outcome, &ok_err));
    assert_int_equal(outcome.hazard_count, 0);
    assert_int_equal(ask(result,
                         "SELECT json_array_length(json_extract(options, '$.allocated_groups'))"
                         " FROM run"),
                     7);
    assert_int_equal(ask(result, "SELECT sum(reference_differing) FROM run_check"), 0);
}

static void runs_are_appended_to_their_tape_only(void **state) {
    (void)state;
    struct st_replay_options o;
    struct st_replay_outcome outcome;
    struct st_error err = {0};
    char result[96];
    options_for(&o, "sim", result, "append");
    ST_ASSERT_OK(st_replay_run(&o, &outcome, &ok_err));
    ST_ASSERT_OK(st_replay_run(&o, &outcome, &ok_err));
    assert_int_equal(outcome.run_id, 2);
    assert_int_equal(ask(result, "SELECT count(*) FROM run"), 2);
    assert_int_equal(ask(result, "SELECT count(DISTINCT total) FROM (SELECT run_id, sum(step_ns) AS"
                                 " total FROM run_step GROUP BY run_id, policy) WHERE total > 0"),
                     2); /* two policies; both runs alike */
    o.tape_path = dense;
    o.model = "deepseek-v4-tiny";
    assert_int_equal(st_replay_run(&o, &outcome, &err), ST_ERR_INPUT);
    assert_non_null(strstr(err.msg, "another tape"));
    o.tape_path = result;
    assert_int_equal(st_replay_run(&o, &outcome, &err), ST_ERR_INPUT);
    o.tape_path = tape;
    o.model = NULL;
    o.result_path = tape;
    assert_int_equal(st_replay_run(&o, &outcome, &err), ST_ERR_INPUT);
    assert_int_equal(ask(result, "SELECT count(*) FROM run"), 2);
}

/* ---- a backend that goes wrong */

static int32_t broken_launches;

/* Leaves out the stores of the second policy in every third step. */
static int leave_out(struct st_backend *b, const struct st_plan *plan, int32_t policy,
                     struct st_error *err) {
    static struct st_launch left[4096];
    if (policy == 0 || broken_launches++ % 3)
        return st_backend_cpu.launch(b, plan, policy, err);
    struct st_plan less = *plan;
    less.launch_count = 0;
    less.launch = left;
    for (int32_t i = 0; i < plan->launch_count && less.launch_count < 4096; i++)
        if (plan->launch[i].op != ST_OP_COMPRESS_NORM_ROPE_STORE)
            left[less.launch_count++] = plan->launch[i];
    return st_backend_cpu.launch(b, &less, policy, err);
}

static void a_missing_launch_is_a_hazard(void **state) {
    (void)state;
    struct st_replay_options o;
    struct st_replay_outcome outcome;
    char result[96];
    broken = st_backend_cpu;
    broken.launch = leave_out;
    options_for(&o, "cpu", result, "broken");
    o.ops = &broken;
    o.pass_mask = 1u << ST_PASS_VERIFY;
    o.ops_mask = cheap_ops();
    ST_ASSERT_OK(st_replay_run(&o, &outcome, &ok_err));
    assert_true(outcome.hazard_count > 5);
    assert_true(ask(result, "SELECT count(*) FROM hazard WHERE policy = '" SKIP "' AND"
                            " operator = 'compress_norm_rope_store' AND layer = 2 AND row >= 0 AND"
                            " column >= 0 AND what LIKE '%baseline has%'") > 2);
    assert_int_equal(ask(result, "SELECT count(*) FROM hazard WHERE policy = 'baseline'"), 0);
}

static void a_wrong_count_fails_the_run(void **state) {
    (void)state;
    struct st_replay_options o;
    struct st_replay_outcome outcome;
    struct st_error err = {0};
    char result[96];
    broken = st_backend_cpu;
    broken.launch = leave_out;
    options_for(&o, "cpu", result, "miscount");
    o.ops = &broken;
    o.pass_mask = 1u << ST_PASS_COUNT;
    assert_int_equal(st_replay_run(&o, &outcome, &err), ST_ERR_MISMATCH);
    assert_non_null(strstr(err.msg, "compress_norm_rope_store"));
    assert_int_equal(access(result, F_OK), -1);
}

/* ---- a device beside the CPU reference: the cpu backend under another name */

static int32_t spoilt_rows;

/* The first row of every observation is off in its eighth value. */
static int spoil_hashes(struct st_backend *b, const struct st_plan *plan, int32_t policy,
                        int32_t observation, int32_t count, uint64_t *hash, struct st_error *err) {
    int rc = st_backend_cpu.hashes(b, plan, policy, observation, count, hash, err);
    if (hash[0] != 0 && count > 1)
        hash[0]++;
    return rc;
}

static int spoil_row(struct st_backend *b, const struct st_plan *plan, int32_t policy,
                     int32_t observation, int32_t row, void *bytes, int32_t size, int32_t *length,
                     struct st_error *err) {
    int rc = st_backend_cpu.read_row(b, plan, policy, observation, row, bytes, size, length, err);
    static const uint16_t far = 0x4780; /* 65,536 */
    memcpy((uint8_t *)bytes + 14, &far, sizeof far);
    spoilt_rows++;
    return rc;
}

static void a_device_is_compared_with_the_cpu(void **state) {
    (void)state;
    struct st_replay_options o;
    struct st_replay_outcome outcome;
    char result[96];
    broken = st_backend_cpu;
    broken.name = "device";
    options_for(&o, "cpu", result, "beside");
    compare_with(&o, "safe", 212, 214);
    o.ops = &broken;
    ST_ASSERT_OK(st_replay_run(&o, &outcome, &ok_err));
    assert_int_equal(outcome.hazard_count, 0);
    assert_true(ask(result, "SELECT min(reference_rows) FROM run_check WHERE policy = 'baseline'") >
                0);
    assert_int_equal(ask(result, "SELECT sum(reference_differing) FROM run_check"), 0);
    assert_int_equal(ask(result, "SELECT json_extract(options, '$.reference_steps') FROM run"), 3);

    broken.hashes = spoil_hashes;
    broken.read_row = spoil_row;
    spoilt_rows = 0;
    o.ops_mask = 1u << ST_OP_SPARSE_MLA_DECODE | 1u << ST_OP_SPARSE_MLA_PREFILL;
    o.policy_count = 1;
    remove(result);
    ST_ASSERT_OK(st_replay_run(&o, &outcome, &ok_err));
    assert_true(spoilt_rows > 0);
    assert_int_equal(ask(result, "SELECT count(*) FROM hazard WHERE operator LIKE 'sparse_mla%' AND"
                                 " column = 7 AND what LIKE 'output %the CPU reference has%'"),
                     outcome.hazard_count);
    assert_int_equal(outcome.hazard_count, spoilt_rows);
}

/* ---- a backend whose times are known */

static int32_t order[100000];
static int32_t order_count;
static int64_t scripted_ns;

static int open_real(const struct st_backend_config *config, struct st_backend **backend,
                     struct st_backend_info *info, struct st_error *err) {
    int rc = st_backend_sim.open(config, backend, info, err);
    info->simulated = false;
    return rc;
}

static int note_order(struct st_backend *b, const struct st_plan *plan, int32_t policy,
                      struct st_error *err) {
    /* 1000 ns and 900 ns, each with +-10 ns of noise in turn. */
    scripted_ns = (policy ? 900 : 1000) + (order_count / 2 % 2 ? 10 : -10) * (policy ? 1 : -1);
    order[order_count++] = policy;
    return st_backend_sim.launch(b, plan, policy, err);
}

static int give_scripted(struct st_backend *b, struct st_step_result *result,
                         struct st_error *err) {
    int rc = st_backend_sim.sync(b, result, err);
    result->step_ns = scripted_ns;
    return rc;
}

static void policies_take_turns(void **state) {
    (void)state;
    struct st_replay_options o;
    struct st_replay_outcome outcome;
    char result[96];
    broken = st_backend_sim;
    broken.open = open_real;
    broken.launch = note_order;
    broken.sync = give_scripted;
    options_for(&o, "sim", result, "turns");
    o.ops = &broken;
    o.first_step = 10;
    o.last_step = 29;
    o.repeat = 4;
    order_count = 0;
    ST_ASSERT_OK(st_replay_run(&o, &outcome, &ok_err));
    assert_int_equal(order_count, 20 * 2 * (1 + 4)); /* one warm-up each */
    int32_t first_is_baseline = 0;
    for (int32_t i = 0; i < order_count; i += 2) {
        assert_int_equal(order[i] + order[i + 1], 1); /* always as a pair */
        first_is_baseline += i % 10 != 0 && order[i] == 0;
        if (i % 10 >= 4)
            assert_int_equal(order[i], 1 - order[i - 2]); /* A B, B A, A B, ... */
    }
    assert_int_equal(first_is_baseline, 20 * 4 / 2);
    assert_int_equal(ask(result, "SELECT count(*) FROM run_sample"), 20 * 2 * 4);
    assert_int_equal(ask(result, "SELECT max(step_ns) FROM run_step WHERE policy = 'baseline'"),
                     1000);
    assert_int_equal(ask(result, "SELECT min(step_ns) FROM run_step WHERE policy = '" SKIP "'"),
                     900);
    /* Pairs differ by -120 or -80: sd 20.0 (4 samples a step: 23.1), 80 pairs, 2.8 standard errors.
     */
    assert_int_equal(ask(result, "SELECT noise_floor_ns FROM run"), 8);
    assert_int_equal(ask(result, "SELECT count(kernel_ns) FROM run_step"), 0);
}

static void bad_requests(void **state) {
    (void)state;
    struct st_replay_options o;
    struct st_replay_outcome outcome;
    struct st_error err = {0};
    char result[96];
    options_for(&o, "gpu", result, "bad");
    assert_int_equal(st_replay_run(&o, &outcome, &err), ST_ERR_USAGE);
    options_for(&o, "sim", result, "bad");
    o.pass_mask = 1u << ST_PASS_VERIFY;
    assert_int_equal(st_replay_run(&o, &outcome, &err), ST_ERR_USAGE);
    options_for(&o, "sim", result, "bad");
    o.first_step = 100000;
    assert_int_equal(st_replay_run(&o, &outcome, &err), ST_ERR_USAGE);
    options_for(&o, "sim", result, "bad");
    o.shard = 900;
    o.shard_count = 1000;
    assert_int_equal(st_replay_run(&o, &outcome, &err), ST_ERR_USAGE);
    options_for(&o, "sim", result, "bad");
    const char *set[] = {"max_model_len=64"};
    o.set = set;
    o.set_count = 1;
    assert_int_equal(st_replay_run(&o, &outcome, &err), ST_ERR_INPUT);
    assert_int_equal(access(result, F_OK), -1);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(outputs_are_the_same),
        cmocka_unit_test(attention_is_the_same),
        cmocka_unit_test(packed_lists_are_a_hazard_in_full_alone),
        cmocka_unit_test(stale_lists_are_a_hazard),
        cmocka_unit_test(absolute_columns_are_a_hazard),
        cmocka_unit_test(the_best_of_all_tokens),
        cmocka_unit_test(tape_mode_counts_what_full_prevents),
        cmocka_unit_test(middle_equals_whole),
        cmocka_unit_test(lacking_groups_are_allocated),
        cmocka_unit_test(runs_are_appended_to_their_tape_only),
        cmocka_unit_test(a_missing_launch_is_a_hazard),
        cmocka_unit_test(a_wrong_count_fails_the_run),
        cmocka_unit_test(a_device_is_compared_with_the_cpu),
        cmocka_unit_test(policies_take_turns),
        cmocka_unit_test(bad_requests),
    };
    return cmocka_run_group_tests(tests, make_tapes, remove_tapes);
}
