/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The CUDA backend on hand-made steps: needs a GPU (exit 77 without one).
 *
 * A small batch walks over boundaries.  What the backend leaves is compared with the CPU backend's,
 * and between graph modes and ways of skipping bit by bit; launches and times are looked at.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "replay/backend.h"
#include "replay/bind.h"
#include "replay/digest.h"
#include "replay/input.h"
#include "replay/reference.h"
#include "replay/testing.h"
#include "steptape/kernels.h"

enum { REQUESTS = 4, STEPS = 6, CHUNK = 30, TOKENS = 128, ROOM = 1 << 18, MAX_LENGTH = 4096 };

/* always, and every way of doing without the pair */
static const char *const skips[] = {
    "baseline",
    "baseline,c128-launch=skip-empty",
    "baseline,c128-launch=skip-empty,graph-skip=variant",
    "baseline,c128-launch=skip-empty,graph-skip=node-disable",
    "baseline,c128-launch=skip-empty,graph-skip=conditional",
    "baseline,c128-launch=compact",
};
enum { SKIPS = sizeof skips / sizeof skips[0] };

struct rig {
    struct st_model model;
    struct st_policy policy[ST_MAX_POLICIES];
    struct st_plan plan[ST_MAX_POLICIES], other;
    int32_t policies;
    unsigned ops;
    bool observe;
    struct st_input *input;
    struct st_backend *cuda, *cpu;
    struct st_backend_info info;
    struct st_step step;
    struct st_step_input in;
    int64_t request_id[REQUESTS];
    int32_t start[REQUESTS], query_len[REQUESTS];
    uint8_t *mine, *theirs;
};

/* Operators that this build has: plans of the others cannot run. */
static unsigned operators(void) {
    unsigned mask = 0;
    for (int op = 0; op < ST_OP_COUNT; op++)
        if (op == ST_OP_GRAPH_CONDITION || st_operator_kernel((enum st_operator)op))
            mask |= 1u << op;
    return mask;
}

static void load_model(struct rig *rig, const char *model) {
    /* A tape that says nothing: settings and block ids are the model's own. */
    const struct st_header header = {.compress_ratio_count = -1,
                                     .max_model_len = -1,
                                     .max_num_seqs = -1,
                                     .max_num_batched_tokens = -1,
                                     .num_blocks = -1,
                                     .prefix_caching = -1,
                                     .async_scheduling = -1};
    ST_ASSERT_OK(st_model_load(model, &header, &rig->model, &ok_err));
    ST_ASSERT_OK(st_model_set(&rig->model, "num_blocks=512", &ok_err));
    ST_ASSERT_OK(st_model_set(&rig->model, "max_num_batched_tokens=128", &ok_err));
    ST_ASSERT_OK(st_model_set(&rig->model, "max_num_seqs=64", &ok_err));
    ST_ASSERT_OK(st_model_set(&rig->model, "max_model_len=65536", &ok_err));
}

static void rig_open(struct rig *rig, const char *model, enum st_pass pass, unsigned ops,
                     bool poison, const char *const *policy, int32_t policies) {
    /* Positions at a boundary in the third step; the last one may prefill. */
    static const int32_t start[REQUESTS] = {125, 400, 300, 100};
    memset(rig, 0, sizeof *rig);
    load_model(rig, model);
    rig->policies = policies;
    rig->ops = ops;
    rig->observe = pass == ST_PASS_VERIFY;
    for (int32_t p = 0; p < policies; p++)
        ST_ASSERT_OK(st_policy_parse(policy[p], &rig->policy[p], &ok_err));
    for (int32_t i = 0; i < REQUESTS; i++) {
        rig->request_id[i] = 70 + i;
        rig->start[i] = start[i];
    }
    struct st_backend_config config = {
        .model = &rig->model,
        .limits = {.max_tokens = TOKENS,
                   .max_requests = 64,
                   .max_seq_len = MAX_LENGTH,
                   .max_logits = TOKENS * st_logits_stride(&rig->model),
                   .uses_full = true},
        .pass = pass,
        .policy_count = policies,
        .ops_mask = ops == operators() ? 0 : ops,
        .poison = poison,
        .max_rebuild = 64 * 127,
        .layer_buffers = 2,
        .sample_tokens = TOKENS,
        .cupti_path = getenv("STEPTAPE_CUPTI"),
        .cuda_home = getenv("CUDA_HOME"),
    };
    ST_ASSERT_OK(st_backend_cuda.open(&config, &rig->cuda, &rig->info, &ok_err));
    assert_true(strlen(rig->info.device) > 0);
    assert_true(rig->info.set_bytes > 0);
    ST_ASSERT_OK(st_input_create(&rig->model, &rig->info.buffers, &rig->input, &ok_err));
    if (pass == ST_PASS_VERIFY) {
        struct st_backend_info info;
        config.layer_buffers = rig->info.buffers.layer_buffers;
        ST_ASSERT_OK(st_backend_cpu.open(&config, &rig->cpu, &info, &ok_err));
    }
    rig->mine = malloc(ROOM);
    rig->theirs = malloc(ROOM);
    assert_true(rig->mine && rig->theirs);
}

static void rig_close(struct rig *rig) {
    st_backend_cuda.close(rig->cuda);
    st_backend_cpu.close(rig->cpu);
    st_input_destroy(rig->input);
    for (int p = 0; p < ST_MAX_POLICIES; p++)
        st_plan_fini(&rig->plan[p]);
    st_plan_fini(&rig->other);
    free(rig->mine);
    free(rig->theirs);
}

/* The next step of the walk: decodes, with a chunk of prefill where `prefill` says so. */
static void rig_step(struct rig *rig, int number, enum st_mode_request mode, bool prefill) {
    struct st_step *step = &rig->step;
    memset(step, 0, sizeof *step);
    step->step_id = number;
    step->graph_mode = ST_GRAPH_MODE_UNKNOWN;
    step->padded_token_count = step->padded_request_count = ST_UNKNOWN;
    step->cpu_starts = -1;
    step->request_count = REQUESTS;
    for (int i = 0; i < REQUESTS; i++) {
        rig->start[i] += number > 0 ? rig->query_len[i] : 0;
        rig->query_len[i] = prefill && i == REQUESTS - 1 ? CHUNK : 1;
        step->token_count += rig->query_len[i];
    }
    step->request_id = rig->request_id;
    step->query_len = rig->query_len;
    step->num_computed_tokens = rig->start;
    step->replaced.count = -1;
    struct st_step_shape shape;
    st_step_shape_make(&rig->model, step, mode, &shape);
    ST_ASSERT_OK(st_input_observe(rig->input, step, &ok_err));
    ST_ASSERT_OK(st_input_build(rig->input, NULL, step, &shape, false, &rig->in, &ok_err));
    ST_ASSERT_OK(st_backend_cuda.prepare(rig->cuda, &rig->in, &ok_err));
    for (int32_t p = 0; p < rig->policies; p++)
        ST_ASSERT_OK(st_plan_make(&rig->model, step, &shape, &rig->policy[p], rig->ops,
                                  rig->observe, &rig->plan[p], &ok_err));
}

static void run(struct rig *rig, int32_t p, struct st_step_result *result) {
    ST_ASSERT_OK(st_backend_cuda.launch(rig->cuda, &rig->plan[p], p, &ok_err));
    ST_ASSERT_OK(st_backend_cuda.sync(rig->cuda, result, &ok_err));
}

static void hashes(struct rig *rig, int32_t p, int32_t number, int32_t count, uint64_t *out) {
    ST_ASSERT_OK(st_backend_cuda.hashes(rig->cuda, &rig->plan[p], p, number, count, out, &ok_err));
}

static int32_t row_count(const struct st_launch *launch) {
    return launch->view == ST_VIEW_GATHER_LENS ? launch->request_count : launch->token_count;
}

/* ---- against the CPU backend */

static bool is_list(int view) {
    return view == ST_VIEW_SWA_INDICES || view == ST_VIEW_C128A_DECODE ||
           view == ST_VIEW_C128A_PREFILL || view == ST_VIEW_TOPK || view == ST_VIEW_GLOBAL_TOPK ||
           view == ST_VIEW_COMBINED;
}

/* What read_row gives has the hash that was taken of it. */
static void check_bytes(struct rig *rig, int32_t p, const struct st_launch *launch, int32_t number,
                        int32_t row, uint64_t expected, int32_t *length) {
    ST_ASSERT_OK(st_backend_cuda.read_row(rig->cuda, &rig->plan[p], p, number, row, rig->mine, ROOM,
                                          length, &ok_err));
    const uint32_t *word = (const uint32_t *)(const void *)rig->mine;
    uint32_t words = (uint32_t)*length / 4, listed = is_list(launch->view) ? words - 1 : words;
    uint64_t hash = st_digest_row(word, listed);
    if (listed < words)
        hash += st_digest_word(word[listed], ST_DIGEST_LENGTH);
    assert_true(hash == expected);
}

static void compare_output(const struct rig *rig, int32_t length) {
    const uint16_t *a = (const uint16_t *)(const void *)rig->mine;
    const uint16_t *b = (const uint16_t *)(const void *)rig->theirs;
    for (int32_t head = 0; head < length / 2; head += 512) {
        float largest = 0;
        for (int32_t d = head; d < head + 512; d++)
            largest = fmaxf(largest, fabsf(steptape_bf16_to_float(b[d])));
        for (int32_t d = head; d < head + 512; d++) {
            float x = steptape_bf16_to_float(a[d]), y = steptape_bf16_to_float(b[d]);
            if (!(fabsf(x - y) <= 0x1p-6f * fabsf(y) + 0x1p-7f * largest) &&
                !(isnan(x) && isnan(y)))
                fail_msg("output %d is %g, the reference has %g", d, (double)x, (double)y);
        }
    }
}

static void compare_entry(const struct rig *rig, const struct st_launch *launch, int32_t row) {
    static struct st_layer_parameters parameters;
    static const enum st_cache_id states[ST_CACHE_COUNT] = {
        [ST_CACHE_KV_C4] = ST_CACHE_STATE_C4,
        [ST_CACHE_KV_C128] = ST_CACHE_STATE_C128,
        [ST_CACHE_KV_INDEXER] = ST_CACHE_STATE_INDEXER};
    const int64_t *position = rig->in.host.at[ST_BUF_POSITION];
    const int64_t *id = rig->in.host.at[ST_BUF_REQUEST_ID];
    const int32_t *owner = rig->in.host.at[ST_BUF_TOKEN_TO_REQ];
    int32_t token = launch->first_token + row;
    uint8_t entry[584];
    float values[512];
    struct st_entry_difference difference;
    st_layer_parameters_fill(&parameters, states[launch->cache], launch->ordinal);
    ST_ASSERT_OK(st_reference_entry(&rig->model, &parameters, id[owner[token]], position[token],
                                    entry, values, &ok_err));
    if (launch->cache == ST_CACHE_KV_INDEXER)
        st_reference_compare_key(rig->mine, entry, &difference);
    else
        st_reference_compare_entry(rig->mine, entry, values, &difference);
    if (difference.first_column >= 0)
        fail_msg("entry of position %d: channel %d differs from the reference",
                 (int)position[token], difference.first_column);
}

static void compare_row(struct rig *rig, int32_t p, const struct st_launch *launch, int32_t number,
                        int32_t row, uint64_t mine, uint64_t theirs) {
    int32_t length, other;
    check_bytes(rig, p, launch, number, row, mine, &length);
    if (launch->view == ST_VIEW_ENTRY) {
        compare_entry(rig, launch, row);
    } else if (launch->view == ST_VIEW_OUT) {
        ST_ASSERT_OK(st_backend_cpu.read_row(rig->cpu, &rig->plan[p], p, number, row, rig->theirs,
                                             ROOM, &other, &ok_err));
        assert_int_equal(length, other);
        compare_output(rig, length);
    } else if (mine != theirs) {
        fail_msg("%s, layer %d, row %d differs from the reference",
                 st_operator_name((enum st_operator)launch->observed), launch->layer, row);
    }
}

/* Lists of padded tokens are nobody's: the cpu backend does not make them. */
static void compare_with_cpu(struct rig *rig, int32_t p) {
    uint64_t mine[TOKENS], theirs[TOKENS];
    int32_t number = 0, rows = 0;
    const struct st_plan *plan = &rig->plan[p];
    for (int32_t i = 0; i < plan->launch_count; i++) {
        const struct st_launch *launch = &plan->launch[i];
        if (launch->op != ST_OP_OBSERVE)
            continue;
        int32_t count = row_count(launch);
        hashes(rig, p, number, count, mine);
        ST_ASSERT_OK(st_backend_cpu.hashes(rig->cpu, plan, p, number, count, theirs, &ok_err));
        for (int32_t row = 0; row < count; row++) {
            if (launch->view != ST_VIEW_GATHER_LENS &&
                launch->first_token + row >= plan->shape.token_count)
                break;
            bool exact = launch->view != ST_VIEW_ENTRY && launch->view != ST_VIEW_OUT;
            if (theirs[row] == 0 || (exact && mine[row] == theirs[row] && row % 16 != 0))
                continue;
            compare_row(rig, p, launch, number, row, mine[row], theirs[row]);
            rows++;
        }
        number++;
    }
    assert_int_equal(number, plan->observation_count);
    assert_true(rows >= 4);
}

static void walk_beside(const char *model, enum st_mode_request mode, bool poison) {
    static const char *const policies[] = {"safe", "corrected"};
    struct rig rig;
    struct st_step_result result;
    rig_open(&rig, model, ST_PASS_VERIFY, operators(), poison, policies, 2);
    for (int number = 0; number < 4; number++) {
        rig_step(&rig, number, mode, mode != ST_MODE_FULL && number == 1);
        ST_ASSERT_OK(st_backend_cpu.prepare(rig.cpu, &rig.in, &ok_err));
        for (int32_t p = 0; p < 2; p++) {
            run(&rig, p, &result);
            ST_ASSERT_OK(st_backend_cpu.launch(rig.cpu, &rig.plan[p], p, &ok_err));
            compare_with_cpu(&rig, p);
        }
    }
    rig_close(&rig);
}

static void agrees_eager(void **state) {
    (void)state;
    walk_beside("deepseek-v4-tiny", ST_MODE_EAGER, false);
}

static void agrees_full_poisoned(void **state) {
    (void)state;
    walk_beside("deepseek-v4-tiny", ST_MODE_FULL, true);
}

static void agrees_eager_poisoned(void **state) {
    (void)state;
    walk_beside("deepseek-v4-tiny", ST_MODE_EAGER, true);
}

/* ---- between modes and ways of skipping */

static uint64_t digest_of(struct rig *rig, int32_t p) {
    uint64_t row[TOKENS], digest = 0;
    int32_t number = 0;
    for (int32_t i = 0; i < rig->plan[p].launch_count; i++) {
        const struct st_launch *launch = &rig->plan[p].launch[i];
        if (launch->op != ST_OP_OBSERVE)
            continue;
        int32_t count = row_count(launch);
        hashes(rig, p, number++, count, row);
        for (int32_t k = 0; k < count; k++)
            digest = st_gen_mix(digest ^ row[k]) + ST_GEN_GOLDEN;
    }
    return digest;
}

/* Of all steps, the digest of every policy; all policies of a step must agree. */
static void digest_steps(const char *model, enum st_mode_request mode, bool poison,
                         uint64_t digest[STEPS], struct st_backend_counters *counters) {
    struct rig rig;
    struct st_step_result result;
    rig_open(&rig, model, ST_PASS_VERIFY, operators(), poison, skips, SKIPS);
    for (int number = 0; number < STEPS; number++) {
        rig_step(&rig, number, mode, false);
        assert_int_equal(rig.in.shape.padded_token_count, REQUESTS);
        for (int32_t p = 0; p < SKIPS; p++)
            run(&rig, p, &result);
        digest[number] = digest_of(&rig, 0);
        for (int32_t p = 1; p < SKIPS; p++)
            if (digest_of(&rig, p) != digest[number])
                fail_msg("step %d: %s and %s differ", number, skips[p], skips[0]);
    }
    st_backend_cuda.counters(rig.cuda, counters);
    rig_close(&rig);
}

static void same_bits_however(const char *model, bool poison) {
    uint64_t eager[STEPS], full[STEPS];
    struct st_backend_counters counters;
    digest_steps(model, ST_MODE_EAGER, poison, eager, &counters);
    assert_int_equal(counters.graphs, 0);
    digest_steps(model, ST_MODE_FULL, poison, full, &counters);
    assert_int_equal(counters.graphs, SKIPS + 1); /* variant has two */
    assert_int_equal(counters.graph_launches, SKIPS * STEPS);
    assert_true(counters.capture_ns > 0);
    for (int i = 0; i < STEPS; i++)
        assert_true(eager[i] == full[i]);
}

static void same_bits(void **state) {
    (void)state;
    same_bits_however("deepseek-v4-tiny", false);
}

static void same_bits_poisoned(void **state) {
    (void)state;
    same_bits_however("deepseek-v4-tiny", true);
}

/* Many layers take turns in two buffers: what one wrote is what the next expects to find. */
static void same_bits_shared(void **state) {
    (void)state;
    same_bits_however("deepseek-v4-flash", false);
}

/* A packed row stride is not what a graph was captured with. */
static void finds_a_stale_stride(void **state) {
    (void)state;
    static const char *const policies[] = {"baseline", "baseline,topk-width=packed",
                                           "baseline,topk-width=strided"};
    struct rig rig;
    struct st_step_result result;
    rig_open(&rig, "deepseek-v4-tiny", ST_PASS_VERIFY, operators(), true, policies, 3);
    assert_int_equal(rig.info.buffers.c128a_capacity, 512); /* the lists of these steps: 128 */
    for (int number = 0; number < 2; number++) {
        rig_step(&rig, number, ST_MODE_FULL, false);
        for (int32_t p = 0; p < 3; p++)
            run(&rig, p, &result);
        assert_true(digest_of(&rig, 0) != digest_of(&rig, 1));
        assert_true(digest_of(&rig, 0) == digest_of(&rig, 2));
    }
    rig_close(&rig);
}

/* Past their length, rows of a reused buffer hold indices of NaN rows. */
static void finds_stale_indices(void **state) {
    (void)state;
    static const char *const policies[] = {"baseline", "baseline,combine-buffer=reuse",
                                           "baseline,combine-buffer=reseed",
                                           "baseline,combine-buffer=tail"};
    struct rig rig;
    struct st_step_result result;
    rig_open(&rig, "deepseek-v4-tiny", ST_PASS_VERIFY, operators(), true, policies, 4);
    rig_step(&rig, 0, ST_MODE_EAGER, true);
    for (int32_t p = 0; p < 4; p++)
        run(&rig, p, &result);
    assert_true(digest_of(&rig, 0) != digest_of(&rig, 1));
    assert_true(digest_of(&rig, 0) == digest_of(&rig, 2));
    assert_true(digest_of(&rig, 0) == digest_of(&rig, 3));
    rig_close(&rig);
}

static void refuses_what_was_not_captured(void **state) {
    (void)state;
    struct rig rig;
    struct st_step_result result;
    rig_open(&rig, "deepseek-v4-tiny", ST_PASS_VERIFY, operators(), false, skips, 1);
    rig_step(&rig, 0, ST_MODE_FULL, false);
    run(&rig, 0, &result);
    struct st_error err;
    for (int32_t i = 0; i < rig.plan[0].launch_count; i++)
        if (rig.plan[0].launch[i].op == ST_OP_SAVE_PARTIAL_STATES)
            rig.plan[0].launch[i].token_count--;
    assert_int_equal(st_backend_cuda.launch(rig.cuda, &rig.plan[0], 0, &err), ST_ERR_MISMATCH);
    assert_non_null(strstr(err.msg, "captured"));
    rig_close(&rig);
}

/* ---- launches and times */

/* CUPTI finds the plan, also inside graphs; where it is not installed nothing is claimed. */
static void count_steps(const char *model, unsigned ops, enum st_mode_request mode) {
    struct rig rig;
    bool counted = false;
    rig_open(&rig, model, ST_PASS_COUNT, ops, false, skips, SKIPS);
    for (int number = 0; number < 4; number++) {
        rig_step(&rig, number, mode, mode != ST_MODE_FULL && number == 1);
        for (int32_t p = 0; p < SKIPS; p++) {
            const struct st_plan *plan = &rig.plan[p];
            struct st_step_result result;
            run(&rig, p, &result);
            counted = result.launches[0] >= 0;
            for (int op = 0; op < ST_OP_COUNT; op++)
                if (result.launches[op] != (counted ? plan->launches[op] : -1))
                    fail_msg("step %d, %s: %s: %d launches, planned %d", number, skips[p],
                             st_operator_name((enum st_operator)op), result.launches[op],
                             plan->launches[op]);
            assert_int_equal(result.other_launches, 0);
            int32_t planned = 0;
            for (int op = 0; op < ST_OP_COUNT; op++)
                planned += plan->launches[op];
            assert_true(counted ? (result.kernel_ns > 0) == (planned > 0)
                                : result.kernel_ns == ST_UNKNOWN);
        }
    }
    if (!counted)
        print_message("no CUPTI: nothing was counted\n");
    rig_close(&rig);
}

static void counts(void **state) {
    (void)state;
    const unsigned pair = 1u << ST_OP_COMPRESS_POOL | 1u << ST_OP_COMPRESS_NORM_ROPE_STORE;
    count_steps("deepseek-v4-flash", operators(), ST_MODE_EAGER);
    count_steps("deepseek-v4-flash", operators(), ST_MODE_FULL);
    count_steps("deepseek-v4-tiny", pair, ST_MODE_FULL);
    count_steps("deepseek-v4-tiny", 1u << ST_OP_SAVE_PARTIAL_STATES, ST_MODE_EAGER);
}

static void times(void **state) {
    (void)state;
    for (int mode = ST_MODE_EAGER; mode <= ST_MODE_FULL; mode++) {
        struct rig rig;
        rig_open(&rig, "deepseek-v4-tiny", ST_PASS_TIME, operators(), false, skips, SKIPS);
        for (int number = 0; number < 4; number++) {
            rig_step(&rig, number, (enum st_mode_request)mode, false);
            for (int i = 0; i < 2 * SKIPS; i++) {
                struct st_step_result result;
                run(&rig, i % SKIPS, &result);
                assert_true(result.step_ns > 1000 && result.step_ns < 100000000);
                assert_true(result.host_ns > 100 && result.host_ns < 100000000);
                assert_int_equal(result.launches[0], -1);
            }
        }
        rig_close(&rig);
    }
}

/* V3.2: no compressors, no window. */
static void walks_v32(void **state) {
    (void)state;
    walk_beside("deepseek-v3.2", ST_MODE_FULL, true);
}

/* argument: only tests whose name matches the pattern */
int main(int argc, char **argv) {
    struct st_error err;
    if (argc > 1)
        cmocka_set_test_filter(argv[1]);
    if (st_backend_cuda.probe(&err) != 0) {
        fprintf(stderr, "skipped: %s\n", err.msg);
        return 77;
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(agrees_eager),
        cmocka_unit_test(agrees_full_poisoned),
        cmocka_unit_test(agrees_eager_poisoned),
        cmocka_unit_test(walks_v32),
        cmocka_unit_test(same_bits),
        cmocka_unit_test(same_bits_poisoned),
        cmocka_unit_test(same_bits_shared),
        cmocka_unit_test(finds_a_stale_stride),
        cmocka_unit_test(finds_stale_indices),
        cmocka_unit_test(refuses_what_was_not_captured),
        cmocka_unit_test(counts),
        cmocka_unit_test(times),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
