/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The pass `verify`: every consumed output of every executed step, compared between policies by row
 * hash, and a sample of rows with the CPU reference.
 *
 * Which rows are consumed follows from the tape, never from the plan: a policy that wrongly leaves
 * a launch out shows as rows that differ.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#include "replay/generator.h"
#include "replay/reference.h"
#include "replay/replay_i.h"
#include "traces/base/log.h"

enum { STORED_HAZARDS = 1000, SAVE_WORDS = 1024, ENTRY_BYTES = 584 };

struct verify {
    int64_t *slot;  /* rows of one output */
    int32_t *token; /* the token of each row */
    uint64_t *hash[ST_MAX_POLICIES];
    uint8_t *bytes;                    /* read_rows: [max_tokens] slot mappings, or a few rows */
    struct st_layer_parameters *layer; /* [buffer_count], filled when first needed */
    bool *layer_filled;
    XXH3_state_t *digest[ST_MAX_POLICIES];
    int64_t touched_bytes; /* cache bytes written since the caches were forgotten */
};

/* One output of a step: which rows, of which operator and layer. */
struct output {
    enum st_operator op;
    int32_t ordinal; /* c128 layer; slot mapping: ratio */
    int32_t layer;   /* model's number; -1: metadata */
    int32_t count;
};

/* ---- hazards */

static int add_hazard(struct st_replay *replay, const struct st_walk_step *at, int32_t policy,
                      const struct output *output, int64_t row, int64_t column, const char *what,
                      struct st_error *err) {
    replay->hazard_count++;
    if (replay->hazards_stored >= STORED_HAZARDS)
        return 0;
    replay->hazards_stored++;
    struct st_result_hazard hazard = {
        .step_id = at->step->step_id,
        .policy = policy,
        .layer = output->layer,
        .operator_index = (int32_t)output->op,
        .row = row,
        .column = column,
        .what = what,
    };
    return st_result_hazard(replay->result, &hazard, err);
}

/* The element of a row that holds a byte. */
static int64_t column_of(enum st_operator op, int32_t byte) {
    if (op == ST_OP_COMPRESSED_SLOT_MAPPING)
        return 0;
    if (op == ST_OP_SAVE_PARTIAL_STATES)
        return byte / 4;
    if (byte < 448)
        return byte;
    return byte < 576 ? 448 + (byte - 448) / 2 : (int64_t)(byte - 576) * 64;
}

static void describe(const struct output *output, const uint8_t *mine, const uint8_t *theirs,
                     int32_t byte, const char *whose, char *out, size_t size) {
    if (output->op == ST_OP_COMPRESSED_SLOT_MAPPING) {
        int64_t a, b;
        memcpy(&a, mine, 8);
        memcpy(&b, theirs, 8);
        snprintf(out, size, "slot %lld, %s has %lld", (long long)a, whose, (long long)b);
    } else if (output->op == ST_OP_SAVE_PARTIAL_STATES) {
        float a, b;
        memcpy(&a, mine + byte / 4 * 4, 4);
        memcpy(&b, theirs + byte / 4 * 4, 4);
        snprintf(out, size, "state %.9g, %s has %.9g", (double)a, whose, (double)b);
    } else {
        snprintf(out, size, "byte %d of the entry is 0x%02x, %s has 0x%02x", byte, mine[byte],
                 whose, theirs[byte]);
    }
}

/* ---- policies against the first policy */

static int32_t first_difference(const uint8_t *a, const uint8_t *b, int32_t size) {
    for (int32_t i = 0; i < size; i++)
        if (a[i] != b[i])
            return i;
    return -1;
}

static int report_difference(struct st_replay *replay, const struct st_walk_step *at,
                             struct verify *v, const struct output *output, int32_t policy,
                             int32_t first, struct st_error *err) {
    uint8_t mine[4 * SAVE_WORDS], theirs[4 * SAVE_WORDS];
    struct st_output_rows rows = {output->op, output->ordinal, policy, 1, v->slot + first};
    ST_TRY(replay->ops->read_rows(replay->backend, &rows, mine, err));
    rows.policy = 0;
    ST_TRY(replay->ops->read_rows(replay->backend, &rows, theirs, err));
    int32_t byte = first_difference(mine, theirs, st_output_row_bytes(output->op));
    char what[160] = "row hashes differ";
    if (byte >= 0)
        describe(output, mine, theirs, byte, replay->options->policy[0].name, what, sizeof what);
    return add_hazard(replay, at, policy, output, v->token[first],
                      byte < 0 ? -1 : column_of(output->op, byte), what, err);
}

static int compare_policies(struct st_replay *replay, const struct st_walk_step *at,
                            struct verify *v, const struct output *output, struct st_error *err) {
    for (int32_t p = 0; p < replay->options->policy_count; p++) {
        struct st_output_rows rows = {output->op, output->ordinal, p, output->count, v->slot};
        ST_TRY(replay->ops->hash_rows(replay->backend, &rows, v->hash[p], err));
        XXH3_64bits_update(v->digest[p], v->hash[p], (size_t)output->count * sizeof(uint64_t));
        struct st_verify_counts *counts = &replay->verify[p][output->op];
        counts->rows += output->count;
        int32_t first = -1;
        for (int32_t i = 0; p > 0 && i < output->count; i++) {
            if (v->hash[p][i] == v->hash[0][i])
                continue;
            counts->rows_differing++;
            if (first < 0)
                first = i;
        }
        if (first >= 0)
            ST_TRY(report_difference(replay, at, v, output, p, first, err));
    }
    return 0;
}

/* ---- against the reference */

static const struct st_layer_parameters *layer_of(struct verify *v, int32_t buffer) {
    if (!v->layer_filled[buffer]) {
        st_layer_parameters_fill(&v->layer[buffer], buffer);
        v->layer_filled[buffer] = true;
    }
    return &v->layer[buffer];
}

static int check_mapping(struct st_replay *replay, const struct st_walk_step *at, struct verify *v,
                         const struct output *output, struct st_error *err) {
    const int64_t *expected = st_input_kv_slots(at->input, output->ordinal);
    for (int32_t p = 0; p < replay->options->policy_count; p++) {
        struct st_verify_counts *counts = &replay->verify[p][output->op];
        struct st_output_rows rows = {output->op, output->ordinal, p, output->count, v->slot};
        ST_TRY(replay->ops->read_rows(replay->backend, &rows, v->bytes, err));
        const int64_t *got = (const int64_t *)(const void *)v->bytes;
        counts->reference_rows += output->count;
        for (int32_t i = 0; i < output->count; i++) {
            if (got[i] == expected[i])
                continue;
            char what[160];
            if (counts->reference_differing++ == 0) {
                snprintf(what, sizeof what, "slot %lld, the CPU reference has %lld",
                         (long long)got[i], (long long)expected[i]);
                ST_TRY(add_hazard(replay, at, p, output, i, 0, what, err));
            }
        }
    }
    return 0;
}

static int check_save_row(struct st_replay *replay, const struct st_walk_step *at, struct verify *v,
                          const struct output *output, int32_t policy, int32_t row,
                          const struct st_step_input *input, struct st_error *err) {
    float expected[SAVE_WORDS];
    uint8_t got[4 * SAVE_WORDS];
    struct st_verify_counts *counts = &replay->verify[policy][output->op];
    int32_t token = v->token[row];
    st_reference_state_row(layer_of(v, output->ordinal),
                           input->request_id[input->token_to_request[token]],
                           input->position[token], expected);
    struct st_output_rows rows = {output->op, output->ordinal, policy, 1, v->slot + row};
    ST_TRY(replay->ops->read_rows(replay->backend, &rows, got, err));
    counts->reference_rows++;
    int32_t byte = first_difference(got, (const uint8_t *)expected, sizeof got);
    if (byte < 0)
        return 0;
    char what[160];
    counts->reference_differing++;
    describe(output, got, (const uint8_t *)expected, byte, "the CPU reference", what, sizeof what);
    return add_hazard(replay, at, policy, output, token, column_of(output->op, byte), what, err);
}

static int check_entry_row(struct st_replay *replay, const struct st_walk_step *at,
                           struct verify *v, const struct output *output, int32_t row,
                           const struct st_step_input *input, struct st_error *err) {
    uint8_t expected[ENTRY_BYTES], got[ENTRY_BYTES];
    float values[512];
    int32_t token = v->token[row];
    ST_TRY(st_reference_entry(&replay->model, layer_of(v, output->ordinal),
                              input->request_id[input->token_to_request[token]],
                              input->position[token], expected, values, err));
    for (int32_t p = 0; p < replay->options->policy_count; p++) {
        struct st_output_rows rows = {output->op, output->ordinal, p, 1, v->slot + row};
        struct st_verify_counts *counts = &replay->verify[p][output->op];
        struct st_entry_difference difference;
        ST_TRY(replay->ops->read_rows(replay->backend, &rows, got, err));
        st_reference_compare_entry(got, expected, values, &difference);
        counts->reference_rows++;
        counts->rounding_bytes += difference.rounding_bytes;
        if (difference.first_column < 0)
            continue;
        counts->reference_differing++;
        /* Of the bytes that differ, one that rounding does not explain. */
        int32_t byte = first_difference(got, expected, ENTRY_BYTES);
        for (int32_t i = byte; i < ENTRY_BYTES; i++)
            if (got[i] != expected[i] && column_of(output->op, i) == difference.first_column) {
                byte = i;
                break;
            }
        char what[160];
        describe(output, got, expected, byte, "the CPU reference", what, sizeof what);
        ST_TRY(add_hazard(replay, at, p, output, token, difference.first_column, what, err));
    }
    return 0;
}

/* A few rows of the step, spread by a hash so that no position or batch row is favoured. */
static int check_sample(struct st_replay *replay, const struct st_walk_step *at, struct verify *v,
                        const struct output *output, const struct st_step_input *input,
                        struct st_error *err) {
    for (int32_t k = 0; k < replay->sample_rows && k < output->count; k++) {
        uint64_t pick = st_gen_mix((uint64_t)at->step->step_id * 64 + (uint64_t)k +
                                   (uint64_t)output->ordinal * ST_GEN_GOLDEN);
        int32_t row = (int32_t)(pick % (uint64_t)output->count);
        if (output->op == ST_OP_COMPRESS_NORM_ROPE_STORE) {
            ST_TRY(check_entry_row(replay, at, v, output, row, input, err));
            continue;
        }
        for (int32_t p = 0; p < replay->options->policy_count; p++)
            ST_TRY(check_save_row(replay, at, v, output, p, row, input, err));
    }
    return 0;
}

/* ---- one step */

static void begin_digest(struct st_replay *replay, struct verify *v) {
    for (int32_t p = 0; p < replay->options->policy_count; p++)
        XXH3_64bits_reset(v->digest[p]);
}

static int end_digest(struct st_replay *replay, const struct st_walk_step *at, struct verify *v,
                      enum st_operator op, int64_t rows, struct st_error *err) {
    for (int32_t p = 0; p < replay->options->policy_count; p++) {
        replay->verify[p][op].steps++;
        ST_TRY(st_result_digest(replay->result, at->step->step_id, p, (int32_t)op, rows,
                                XXH3_64bits_digest(v->digest[p]), err));
    }
    return 0;
}

static bool wanted(const struct st_replay *replay, enum st_operator op) {
    return st_operator_wanted(replay->options->ops_mask, op);
}

static int verify_mapping(struct st_replay *replay, const struct st_walk_step *at, struct verify *v,
                          struct st_error *err) {
    static const int32_t ratios[] = {4, 128};
    int64_t rows = 0;
    begin_digest(replay, v);
    for (int i = 0; i < 2; i++) {
        if (!st_input_kv_slots(at->input, ratios[i]))
            continue;
        struct output output = {ST_OP_COMPRESSED_SLOT_MAPPING, ratios[i], -1,
                                at->shape.token_count};
        for (int32_t t = 0; t < output.count; t++) {
            v->slot[t] = t;
            v->token[t] = t;
        }
        rows += output.count;
        ST_TRY(compare_policies(replay, at, v, &output, err));
        ST_TRY(check_mapping(replay, at, v, &output, err));
    }
    return end_digest(replay, at, v, ST_OP_COMPRESSED_SLOT_MAPPING, rows, err);
}

/* Tokens whose row an operator must have written, and where. */
static int32_t consumed_rows(const struct st_walk_step *at, const struct st_step_input *input,
                             enum st_operator op, struct verify *v) {
    const int64_t *kv_slot = st_input_kv_slots(at->input, 128);
    int32_t n = 0;
    for (int32_t t = 0; t < at->shape.token_count; t++) {
        if (input->state_slot[t] < 0)
            continue;
        if (op == ST_OP_SAVE_PARTIAL_STATES) {
            v->slot[n] = input->state_slot[t];
        } else {
            if (kv_slot[t] < 0)
                continue;
            v->slot[n] = kv_slot[t];
        }
        v->token[n++] = t;
    }
    return n;
}

static int verify_layers(struct st_replay *replay, const struct st_walk_step *at,
                         const struct st_step_input *input, enum st_operator op, struct verify *v,
                         struct st_error *err) {
    int32_t count = consumed_rows(at, input, op, v);
    int64_t rows = 0;
    begin_digest(replay, v);
    for (int32_t i = 0; i < replay->info.buffer_count; i++) {
        struct output output = {op, i, replay->model.c128_layer[i], count};
        rows += count;
        ST_TRY(compare_policies(replay, at, v, &output, err));
        /* Buffers take turns, so that a sample per step is one of all layers over the run. */
        if (i == (int32_t)(at->step->step_id % replay->info.buffer_count))
            ST_TRY(check_sample(replay, at, v, &output, input, err));
    }
    return end_digest(replay, at, v, op, rows, err);
}

static bool in_sample(const struct st_replay *replay, int64_t index) {
    return replay->sample_stride <= 1 || index / 2 % replay->sample_stride == 0;
}

static int verify_step(struct st_replay *replay, const struct st_walk_step *at, void *user,
                       struct st_error *err) {
    struct verify *v = user;
    if (at->shape.request_count == 0 || !in_sample(replay, at->index))
        return 0;
    int64_t bytes = (int64_t)at->shape.token_count * 4 * SAVE_WORDS *
                    replay->options->policy_count * replay->info.buffer_count;
    int64_t limit = replay->ops->forget_bytes;
    bool forget = limit > 0 && v->touched_bytes + bytes > limit;
    v->touched_bytes = forget ? bytes : v->touched_bytes + bytes;

    struct st_step_input input;
    ST_TRY(st_input_build(at->input, at->cursor, at->step, &at->shape, forget, &input, err));
    ST_TRY(replay->ops->prepare(replay->backend, &input, err));
    for (int32_t p = 0; p < replay->options->policy_count; p++) {
        struct st_step_result result;
        st_plan_make(&replay->model, &at->shape, &replay->options->policy[p],
                     replay->options->ops_mask, replay->plan[p]);
        ST_TRY(replay->ops->launch(replay->backend, replay->plan[p], p, err));
        ST_TRY(replay->ops->sync(replay->backend, &result, err));
    }
    replay->verify_steps++;
    replay->verify_tokens += at->shape.token_count;
    if (wanted(replay, ST_OP_COMPRESSED_SLOT_MAPPING))
        ST_TRY(verify_mapping(replay, at, v, err));
    if (!replay->model.has_c128)
        return 0;
    if (wanted(replay, ST_OP_SAVE_PARTIAL_STATES))
        ST_TRY(verify_layers(replay, at, &input, ST_OP_SAVE_PARTIAL_STATES, v, err));
    if (wanted(replay, ST_OP_COMPRESS_POOL) && wanted(replay, ST_OP_COMPRESS_NORM_ROPE_STORE))
        ST_TRY(verify_layers(replay, at, &input, ST_OP_COMPRESS_NORM_ROPE_STORE, v, err));
    return 0;
}

/* ---- the pass */

static void verify_fini(struct verify *v) {
    free(v->slot);
    free(v->token);
    free(v->bytes);
    free(v->layer);
    free(v->layer_filled);
    for (int i = 0; i < ST_MAX_POLICIES; i++) {
        free(v->hash[i]);
        XXH3_freeState(v->digest[i]);
    }
}

static int verify_init(struct verify *v, const struct st_replay *replay, struct st_error *err) {
    size_t tokens = (size_t)replay->survey.limits.max_tokens + 1;
    size_t buffers = (size_t)replay->info.buffer_count + 1;
    memset(v, 0, sizeof *v);
    v->slot = calloc(tokens, sizeof *v->slot);
    v->token = calloc(tokens, sizeof *v->token);
    v->bytes = calloc(tokens, 8);
    v->layer = calloc(buffers, sizeof *v->layer);
    v->layer_filled = calloc(buffers, sizeof *v->layer_filled);
    bool ok = v->slot && v->token && v->bytes && v->layer && v->layer_filled;
    for (int32_t p = 0; p < replay->options->policy_count; p++) {
        v->hash[p] = calloc(tokens, sizeof *v->hash[p]);
        v->digest[p] = XXH3_createState();
        ok = ok && v->hash[p] && v->digest[p];
    }
    return ok ? 0 : ST_FAIL_NOMEM(err);
}

static int store_counts(struct st_replay *replay, struct st_error *err) {
    for (int32_t p = 0; p < replay->options->policy_count; p++) {
        for (int op = 0; op < ST_OP_COUNT; op++) {
            const struct st_verify_counts *c = &replay->verify[p][op];
            if (c->steps == 0)
                continue;
            struct st_result_check check = {
                .policy = p,
                .operator_index = op,
                .steps = c->steps,
                .rows = c->rows,
                .rows_differing = c->rows_differing,
                .reference_rows = c->reference_rows,
                .reference_differing = c->reference_differing,
                .rounding_bytes = c->rounding_bytes,
            };
            ST_TRY(st_result_check(replay->result, &check, err));
        }
    }
    return 0;
}

int st_replay_pass_verify(struct st_replay *replay, struct st_error *err) {
    struct verify v;
    int rc = verify_init(&v, replay, err);
    if (rc == 0)
        rc = st_replay_walk(replay, true, "verify", verify_step, &v, err);
    verify_fini(&v);
    if (rc == 0 && replay->sample_stride > 1)
        st_log(ST_LOG_INFO,
               "verify took %lld of %lld steps (%lld of %lld tokens); --sample-tokens 0 takes all",
               (long long)replay->verify_steps, (long long)replay->survey.step_count,
               (long long)replay->verify_tokens, (long long)replay->survey.token_count);
    return rc != 0 ? rc : store_counts(replay, err);
}
