/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The CUDA backend against the CPU's, step by step: needs a GPU (exit 77 without one).
 *
 * A small batch walks through boundaries, eagerly and in FULL graphs; what both backends stored is
 * compared row by row: slot mappings and saved states bit by bit, stored entries as numbers.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "replay/backend.h"
#include "replay/digest.h"
#include "replay/input.h"
#include "replay/reference.h"
#include "steptape/kernels.h"

enum { REQUESTS = 5, STEPS = 6 };
enum { PAIR = 1 << ST_OP_COMPRESS_POOL | 1 << ST_OP_COMPRESS_NORM_ROPE_STORE };
#define TINY "deepseek-v4-tiny"

struct rig {
    struct st_model model;
    struct st_policy policy[2];
    struct st_input *input;
    struct st_backend *cuda, *cpu;
    int32_t buffers;
    unsigned ops;
    int64_t request_id[REQUESTS];
    int32_t start[REQUESTS], query_len[REQUESTS];
};

#define OK(call)                                                                                   \
    do {                                                                                           \
        struct st_error ok_err_ = {.msg = ""};                                                     \
        int ok_rc_ = call;                                                                         \
        if (ok_rc_ != 0)                                                                           \
            fail_msg("%s: %d: %s", #call, ok_rc_, ok_err_.msg);                                    \
    } while (0)

static void rig_open(struct rig *rig, const char *model, int32_t buffers, unsigned ops,
                     enum st_pass pass, bool poison) {
    memset(rig, 0, sizeof *rig);
    /* A tape that says nothing: settings and block ids are the model's own. */
    const struct st_header header = {.compress_ratio_count = -1,
                                     .max_model_len = -1,
                                     .max_num_seqs = -1,
                                     .max_num_batched_tokens = -1,
                                     .num_blocks = -1,
                                     .prefix_caching = -1,
                                     .async_scheduling = -1};
    OK(st_model_load(model, &header, &rig->model, &ok_err_));
    OK(st_model_set(&rig->model, "num_blocks=512", &ok_err_));
    OK(st_policy_parse("baseline", &rig->policy[0], &ok_err_));
    OK(st_policy_parse("upstream", &rig->policy[1], &ok_err_));
    OK(st_model_set(&rig->model, "max_num_batched_tokens=512", &ok_err_));
    OK(st_model_set(&rig->model, "max_num_seqs=64", &ok_err_));
    rig->ops = ops;
    struct st_input_limits limits = {512, 64, 2048};
    OK(st_input_create(&rig->model, &limits, &rig->input, &ok_err_));
    struct st_backend_config config = {
        .model = &rig->model,
        .pass = pass,
        .policy_count = 2,
        .ops_mask = ops,
        .buffer_count = buffers,
        .poison = poison,
        .max_tokens = 512,
        .max_requests = 64,
        .max_seq_len = 2048,
        .max_blocks_per_row = 2048 / 8 + 1,
        .num_blocks = rig->model.num_blocks,
        .max_rebuild = 64 * 128,
        .uses_full = true,
        .cupti_path = getenv("STEPTAPE_CUPTI"),
        .cuda_home = getenv("CUDA_HOME"),
    };
    struct st_backend_info info;
    OK(st_backend_cuda.open(&config, &rig->cuda, &info, &ok_err_));
    assert_true(strlen(info.device) > 0);
    rig->buffers = info.buffer_count;
    assert_int_equal(rig->buffers, buffers > 0 ? buffers : rig->model.c128_layer_count);
    if (pass == ST_PASS_VERIFY) {
        config.buffer_count = info.buffer_count;
        OK(st_backend_cpu.open(&config, &rig->cpu, &info, &ok_err_));
    }
    /* Starts in the middle (state is rebuilt), before, on and behind boundaries. */
    static const int32_t start[REQUESTS] = {0, 125, 127, 256, 1000};
    for (int i = 0; i < REQUESTS; i++) {
        rig->request_id[i] = 70 + i;
        rig->start[i] = start[i];
        rig->query_len[i] = 1;
    }
}

static void rig_close(struct rig *rig) {
    st_backend_cuda.close(rig->cuda);
    st_backend_cpu.close(rig->cpu);
    st_input_destroy(rig->input);
}

/* The next step of the walk: decodes, with a chunk of prefill in step 2. */
static void rig_step(struct rig *rig, int number, enum st_mode_request mode, struct st_step *step,
                     struct st_step_input *in) {
    memset(step, 0, sizeof *step);
    step->step_id = number;
    step->graph_mode = ST_GRAPH_MODE_UNKNOWN;
    step->padded_token_count = step->padded_request_count = ST_UNKNOWN;
    step->cpu_starts = -1;
    step->request_count = REQUESTS;
    for (int i = 0; i < REQUESTS; i++) {
        rig->start[i] += number > 0 ? rig->query_len[i] : 0;
        rig->query_len[i] = number == 2 && i == 0 ? 300 : 1;
        step->token_count += rig->query_len[i];
    }
    step->request_id = rig->request_id;
    step->query_len = rig->query_len;
    step->num_computed_tokens = rig->start;
    step->new_requests.count = step->finished.count = step->preempted.count = step->resumed.count =
        0;
    step->replaced.count = -1;
    struct st_step_shape shape;
    st_step_shape_make(&rig->model, step, mode, &shape);
    OK(st_input_observe(rig->input, step, &ok_err_));
    OK(st_input_build(rig->input, NULL, step, &shape, false, in, &ok_err_));
}

static void rig_launch(struct rig *rig, const struct st_backend_ops *ops, struct st_backend *b,
                       const struct st_step_input *in, int policy, struct st_plan *plan,
                       struct st_step_result *result) {
    (void)rig;
    st_plan_make(&rig->model, &in->shape, &rig->policy[policy], rig->ops, plan);
    OK(ops->launch(b, plan, policy, &ok_err_));
    OK(ops->sync(b, result, &ok_err_));
}

static void *read_back(const struct st_backend_ops *ops, struct st_backend *b,
                       const struct st_output_rows *rows) {
    uint8_t *bytes = calloc((size_t)rows->count, (size_t)st_output_row_bytes(rows->op));
    uint64_t *hash = calloc((size_t)rows->count, sizeof *hash);
    assert_non_null(bytes);
    assert_non_null(hash);
    OK(ops->read_rows(b, rows, bytes, &ok_err_));
    OK(ops->hash_rows(b, rows, hash, &ok_err_));
    for (int32_t i = 0; i < rows->count; i++) {
        int32_t size = st_output_row_bytes(rows->op);
        uint32_t words[1024];
        memcpy(words, bytes + (size_t)i * (size_t)size, (size_t)size);
        assert_true(hash[i] == st_digest_row(words, (uint32_t)size / 4));
    }
    free(hash);
    return bytes;
}

static void compare_exact(struct rig *rig, const struct st_output_rows *rows) {
    void *a = read_back(&st_backend_cuda, rig->cuda, rows);
    void *b = read_back(&st_backend_cpu, rig->cpu, rows);
    assert_memory_equal(a, b, (size_t)rows->count * (size_t)st_output_row_bytes(rows->op));
    free(a);
    free(b);
}

/* Stored entries against the reference of each group alone; returns the bytes that differ, all of
 * which must be explained by a value on a rounding boundary. */
static int compare_entries(struct rig *rig, const struct st_step_input *in,
                           const struct st_output_rows *rows, const int32_t *token) {
    static struct st_layer_parameters parameters;
    st_layer_parameters_fill(&parameters, rows->ordinal);
    uint8_t *stored = read_back(&st_backend_cuda, rig->cuda, rows);
    int differing = 0;
    for (int32_t i = 0; i < rows->count; i++) {
        uint8_t entry[584];
        float values[512];
        struct st_entry_difference difference;
        int64_t request_id = in->request_id[in->token_to_request[token[i]]];
        OK(st_reference_entry(&rig->model, &parameters, request_id, in->position[token[i]], entry,
                              values, &ok_err_));
        st_reference_compare_entry(stored + 584 * i, entry, values, &difference);
        if (difference.first_column >= 0)
            fail_msg("entry of position %d: channel %d differs from the reference",
                     (int)in->position[token[i]], difference.first_column);
        assert_int_equal(difference.differing_bytes, difference.rounding_bytes);
        differing += difference.differing_bytes;
    }
    free(stored);
    return differing;
}

static int compare_step(struct rig *rig, const struct st_step_input *in, int policy,
                        bool pair_ran) {
    int64_t tokens[512], save[512], store[512];
    int32_t count = in->shape.token_count, saved = 0, stored = 0, closing[512];
    const int64_t *kv_slot = st_input_kv_slots(rig->input, 128);
    for (int32_t t = 0; t < count; t++) {
        tokens[t] = t;
        if (in->state_slot[t] >= 0)
            save[saved++] = in->state_slot[t];
        if (kv_slot[t] >= 0) {
            closing[stored] = t;
            store[stored++] = kv_slot[t];
        }
    }
    struct st_output_rows rows = {ST_OP_COMPRESSED_SLOT_MAPPING, 4, policy, count, tokens};
    compare_exact(rig, &rows);
    rows.ordinal = 128;
    compare_exact(rig, &rows);
    int64_t *slots = read_back(&st_backend_cuda, rig->cuda, &rows);
    assert_memory_equal(slots, kv_slot, (size_t)count * 8);
    free(slots);
    int differing = 0;
    for (int32_t layer = 0; layer < rig->buffers; layer++) {
        rows = (struct st_output_rows){ST_OP_SAVE_PARTIAL_STATES, layer, policy, saved, save};
        compare_exact(rig, &rows);
        rows =
            (struct st_output_rows){ST_OP_COMPRESS_NORM_ROPE_STORE, layer, policy, stored, store};
        if (pair_ran && stored > 0)
            differing += compare_entries(rig, in, &rows, closing);
    }
    return differing;
}

static void walk(const char *model, int32_t buffers, unsigned ops, enum st_mode_request mode,
                 bool poison) {
    struct rig rig;
    rig_open(&rig, model, buffers, ops, ST_PASS_VERIFY, poison);
    int differing = 0, sizes = 0;
    int32_t size[STEPS];
    for (int number = 0; number < STEPS; number++) {
        struct st_step step;
        struct st_step_input in;
        rig_step(&rig, number, mode, &step, &in);
        int known = in.shape.mode != ST_GRAPH_MODE_FULL;
        for (int i = 0; i < sizes; i++)
            known |= size[i] == in.shape.padded_token_count;
        if (!known)
            size[sizes++] = in.shape.padded_token_count;
        OK(st_backend_cuda.prepare(rig.cuda, &in, &ok_err_));
        OK(st_backend_cpu.prepare(rig.cpu, &in, &ok_err_));
        for (int policy = 0; policy < 2; policy++) {
            static struct st_plan plan;
            struct st_step_result result;
            rig_launch(&rig, &st_backend_cuda, rig.cuda, &in, policy, &plan, &result);
            rig_launch(&rig, &st_backend_cpu, rig.cpu, &in, policy, &plan, &result);
            differing += compare_step(&rig, &in, policy, plan.launches[ST_OP_COMPRESS_POOL] > 0);
        }
    }
    struct st_backend_counters counters;
    st_backend_cuda.counters(rig.cuda, &counters);
    assert_int_equal(counters.graphs, 2 * sizes); /* once a policy and capture size */
    assert_true(sizes > 0 || mode != ST_MODE_FULL);
    print_message("stored bytes that differ from the reference, on a rounding boundary: %d\n",
                  differing);
    rig_close(&rig);
}

static void agrees_eager(void **state) {
    (void)state;
    walk(TINY, 0, 0, ST_MODE_EAGER, false);
}

static void agrees_full(void **state) {
    (void)state;
    walk(TINY, 0, 0, ST_MODE_FULL, false);
}

static void agrees_poisoned(void **state) {
    (void)state;
    walk(TINY, 0, 0, ST_MODE_FULL, true);
}

/* 20 layers take turns in 3 buffers: what one wrote is what the next expects to find. */
static void agrees_shared(void **state) {
    (void)state;
    walk("deepseek-v4-flash", 3, 0, ST_MODE_FULL, false);
}

/* What --ops leaves out runs in preparation. */
static void agrees_in_part(void **state) {
    (void)state;
    walk(TINY, 0, PAIR, ST_MODE_EAGER, true);
}

/* CUPTI finds the plan, also inside graphs; where it is not installed nothing is claimed. */
static void counts(void **state) {
    (void)state;
    for (int i = 0; i < 4; i++) {
        int mode = i % 2 ? ST_MODE_FULL : ST_MODE_EAGER;
        struct rig rig;
        rig_open(&rig, "deepseek-v4-flash", 2, i < 2 ? 0 : PAIR, ST_PASS_COUNT, false);
        for (int number = 0; number < STEPS; number++) {
            struct st_step step;
            struct st_step_input in;
            rig_step(&rig, number, (enum st_mode_request)mode, &step, &in);
            OK(st_backend_cuda.prepare(rig.cuda, &in, &ok_err_));
            for (int policy = 0; policy < 2; policy++) {
                static struct st_plan plan;
                struct st_step_result result;
                rig_launch(&rig, &st_backend_cuda, rig.cuda, &in, policy, &plan, &result);
                bool counted = result.launches[0] >= 0;
                for (int op = 0; op < ST_OP_COUNT; op++)
                    assert_int_equal(result.launches[op], counted ? plan.launches[op] : -1);
                assert_int_equal(result.other_launches, 0);
                assert_true(counted ? (result.kernel_ns > 0) == (plan.launch_count > 0)
                                    : result.kernel_ns == ST_UNKNOWN);
            }
        }
        rig_close(&rig);
    }
}

static void times(void **state) {
    (void)state;
    for (int mode = ST_MODE_EAGER; mode <= ST_MODE_FULL; mode++) {
        struct rig rig;
        rig_open(&rig, TINY, 0, 0, ST_PASS_TIME, false);
        for (int number = 0; number < STEPS; number++) {
            struct st_step step;
            struct st_step_input in;
            rig_step(&rig, number, (enum st_mode_request)mode, &step, &in);
            OK(st_backend_cuda.prepare(rig.cuda, &in, &ok_err_));
            for (int i = 0; i < 4; i++) {
                static struct st_plan plan;
                struct st_step_result result;
                rig_launch(&rig, &st_backend_cuda, rig.cuda, &in, i % 2, &plan, &result);
                assert_true(result.step_ns > 1000 && result.step_ns < 100000000);
                assert_int_equal(result.launches[0], -1);
            }
        }
        rig_close(&rig);
    }
}

int main(void) {
    struct st_error err;
    if (st_backend_cuda.probe(&err) != 0) {
        fprintf(stderr, "skipped: %s\n", err.msg);
        return 77;
    }
    const struct CMUnitTest tests[] = {cmocka_unit_test(agrees_eager),
                                       cmocka_unit_test(agrees_full),
                                       cmocka_unit_test(agrees_poisoned),
                                       cmocka_unit_test(agrees_shared),
                                       cmocka_unit_test(agrees_in_part),
                                       cmocka_unit_test(counts),
                                       cmocka_unit_test(times)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
