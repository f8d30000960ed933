/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Rows of the pass `verify` against the CPU reference.
 *
 * How it works
 *  - Slots, state rows and entries are computed alone, from the generator (replay/reference.h): of
 *    any backend's rows, with no cache and no earlier step.
 *  - What comes after them, lists and attention, is what the cpu backend gives: it runs the first
 *    policy's plan of the same step beside a device, with one layer buffer, and its sampled rows
 *    are compared.  It follows a replay from its first step for so many tokens, because its caches
 *    must have seen what the device's have.  Index lists are the same to the bit; attention is
 * within a tolerance.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "replay/digest.h"
#include "replay/verify_i.h"

enum { REFERENCE_TOKENS = 65536, WHAT_BYTES = 160, COMPRESSORS = 3 };

static const char whose[] = "the CPU reference";

struct st_verify_reference {
    struct st_backend *cpu; /* NULL: the backend under test is it, or its tokens are used up */
    bool ran;               /* in this step */
    struct st_plan plan;    /* of the first policy */
    int32_t buffers, room;
    struct st_layer_parameters *layer; /* [buffers][COMPRESSORS] */
    bool *filled;
    int32_t *picked; /* rows that exist */
    uint64_t *hash;
    struct st_row mine, theirs;
};

/* ---- life and death */

static int open_cpu(struct st_replay *replay, struct st_verify_reference *r, struct st_error *err) {
    const struct st_replay_options *o = replay->options;
    struct st_backend_info info;
    struct st_backend_config config;
    memset(&config, 0, sizeof config);
    config.model = &replay->model;
    config.limits = replay->survey.limits;
    config.pass = ST_PASS_VERIFY;
    config.policy_count = 1;
    config.poison = o->poison;
    config.layer_buffers = 1;
    config.ops_mask = o->ops_mask;
    config.sample_tokens = o->sample_rows;
    return st_backend_cpu.open(&config, &r->cpu, &info, err);
}

int st_verify_reference_open(struct st_replay *replay, struct st_verify_reference **out,
                             struct st_error *err) {
    struct st_verify_reference *r = calloc(1, sizeof *r);
    if (!r)
        return ST_FAIL_NOMEM(err);
    const struct st_buffers *buffers = &replay->info.buffers;
    size_t rows = (size_t)buffers->max_tokens + (size_t)buffers->max_requests;
    r->buffers = buffers->layer_buffers;
    r->room = st_row_room(&replay->model, buffers);
    r->layer = calloc((size_t)r->buffers * COMPRESSORS, sizeof *r->layer);
    r->filled = calloc((size_t)r->buffers * COMPRESSORS, sizeof *r->filled);
    r->picked = calloc(rows, sizeof *r->picked);
    r->hash = calloc(rows, sizeof *r->hash);
    r->mine.bytes = malloc((size_t)r->room);
    r->theirs.bytes = malloc((size_t)r->room);
    int rc = 0;
    if (!r->layer || !r->filled || !r->picked || !r->hash || !r->mine.bytes || !r->theirs.bytes)
        rc = ST_FAIL_NOMEM(err);
    else if (strcmp(replay->ops->name, st_backend_cpu.name) != 0 && replay->sample_rows > 0)
        rc = open_cpu(replay, r, err);
    if (rc != 0)
        st_verify_reference_close(r);
    else
        *out = r;
    return rc;
}

void st_verify_reference_close(struct st_verify_reference *r) {
    if (!r)
        return;
    st_backend_cpu.close(r->cpu);
    st_plan_fini(&r->plan);
    free(r->layer);
    free(r->filled);
    free(r->picked);
    free(r->hash);
    free(r->mine.bytes);
    free(r->theirs.bytes);
    free(r);
}

/* ---- one row */

static int add_difference(struct st_replay *replay, const struct st_observation *o, int32_t policy,
                          int32_t row, int64_t column, const char *what, struct st_error *err) {
    struct st_verify_counts *counts = &replay->verify[policy][o->launch->observed];
    counts->reference_differing++;
    return st_verify_hazard(replay, o, policy, row, column, what, err);
}

/* Bits must be the same.  theirs: r->theirs. */
static int check_bits(struct st_replay *replay, struct st_verify_reference *r,
                      const struct st_observation *o, int32_t policy, int32_t row,
                      struct st_error *err) {
    char what[WHAT_BYTES] = "row hashes differ";
    ST_TRY(st_verify_read(replay, o, policy, row, r->room, &r->mine, err));
    int64_t column = st_row_difference(o->launch, &r->mine, &r->theirs, whose, what, sizeof what);
    return add_difference(replay, o, policy, row, column, what, err);
}

static bool is_same(const struct st_row *row, uint64_t hash) {
    return st_digest_row((const uint32_t *)(const void *)row->bytes, (uint32_t)row->length / 4) ==
           hash;
}

/* ---- computed alone */

static const struct st_layer_parameters *parameters(struct st_verify_reference *r,
                                                    enum st_cache_id cache, int32_t buffer) {
    static const enum st_cache_id states[COMPRESSORS] = {ST_CACHE_STATE_C4, ST_CACHE_STATE_C128,
                                                         ST_CACHE_STATE_INDEXER};
    int which = cache == ST_CACHE_STATE_C4 || cache == ST_CACHE_KV_C4       ? 0
                : cache == ST_CACHE_STATE_C128 || cache == ST_CACHE_KV_C128 ? 1
                                                                            : 2;
    int32_t at = buffer * COMPRESSORS + which;
    if (!r->filled[at]) {
        st_layer_parameters_fill(&r->layer[at], states[which], buffer);
        r->filled[at] = true;
    }
    return &r->layer[at];
}

static int check_slots(struct st_replay *replay, struct st_verify_reference *r,
                       const struct st_observation *o, struct st_error *err) {
    const int64_t *expected = o->input->host.at[ST_BUF_EXPECTED_SLOT];
    expected +=
        (int64_t)o->launch->cache * replay->info.buffers.max_tokens + o->launch->first_token;
    r->theirs.length = 8;
    for (int32_t p = 0; p < replay->options->policy_count; p++) {
        struct st_verify_counts *counts = &replay->verify[p][o->launch->observed];
        bool told = false;
        for (int32_t i = 0; i < o->count; i++) {
            memcpy(r->theirs.bytes, &expected[i], 8);
            counts->reference_rows++;
            if (is_same(&r->theirs, o->hash[p][i]))
                continue;
            if (told)
                counts->reference_differing++;
            else
                ST_TRY(check_bits(replay, r, o, p, i, err));
            told = true;
        }
    }
    return 0;
}

static void token_of(const struct st_observation *o, int32_t row, int64_t *request_id,
                     int64_t *position) {
    int32_t token = o->launch->first_token + row;
    const int32_t *owner = o->input->host.at[ST_BUF_TOKEN_TO_REQ];
    const int64_t *id = o->input->host.at[ST_BUF_REQUEST_ID];
    *request_id = id[owner[token]];
    *position = ((const int64_t *)o->input->host.at[ST_BUF_POSITION])[token];
}

static int check_state(struct st_replay *replay, struct st_verify_reference *r,
                       const struct st_observation *o, int32_t row, struct st_error *err) {
    const struct st_layer_parameters *p =
        parameters(r, (enum st_cache_id)o->launch->cache, o->launch->ordinal);
    int64_t request_id, position;
    token_of(o, row, &request_id, &position);
    st_reference_state_row(p, request_id, position, (float *)(void *)r->theirs.bytes);
    r->theirs.length = 4 * 2 * p->width;
    for (int32_t policy = 0; policy < replay->options->policy_count; policy++) {
        replay->verify[policy][o->launch->observed].reference_rows++;
        if (!is_same(&r->theirs, o->hash[policy][row]))
            ST_TRY(check_bits(replay, r, o, policy, row, err));
    }
    return 0;
}

static int check_entry(struct st_replay *replay, struct st_verify_reference *r,
                       const struct st_observation *o, int32_t row, struct st_error *err) {
    const struct st_layer_parameters *p =
        parameters(r, (enum st_cache_id)o->launch->cache, o->launch->ordinal);
    float values[512];
    int64_t request_id, position;
    bool is_key = p->kv == ST_CACHE_KV_INDEXER;
    token_of(o, row, &request_id, &position);
    ST_TRY(
        st_reference_entry(&replay->model, p, request_id, position, r->theirs.bytes, values, err));
    r->theirs.length = is_key ? 132 : STEPTAPE_KV_ENTRY_BYTES;
    for (int32_t policy = 0; policy < replay->options->policy_count; policy++) {
        struct st_verify_counts *counts = &replay->verify[policy][o->launch->observed];
        struct st_entry_difference difference;
        counts->reference_rows++;
        if (is_same(&r->theirs, o->hash[policy][row]))
            continue;
        ST_TRY(st_verify_read(replay, o, policy, row, r->room, &r->mine, err));
        if (is_key)
            st_reference_compare_key(r->mine.bytes, r->theirs.bytes, &difference);
        else
            st_reference_compare_entry(r->mine.bytes, r->theirs.bytes, values, &difference);
        counts->rounding_bytes += difference.rounding_bytes;
        if (difference.first_column < 0)
            continue;
        char what[WHAT_BYTES] = "the entry differs";
        st_row_describe(o->launch, &r->mine, &r->theirs, difference.first_column, whose, what,
                        sizeof what);
        ST_TRY(add_difference(replay, o, policy, row, difference.first_column, what, err));
    }
    return 0;
}

/* Without a state slot nothing is pooled, whatever the slot of the entry says; and what is pooled
 * from a prefix that requests share is of more than one. */
static bool is_pooled(const struct st_replay *replay, const struct st_observation *o, int32_t row) {
    static const enum st_cache_id states[ST_CACHE_COUNT] = {
        [ST_CACHE_KV_C4] = ST_CACHE_STATE_C4,
        [ST_CACHE_KV_C128] = ST_CACHE_STATE_C128,
        [ST_CACHE_KV_INDEXER] = ST_CACHE_STATE_INDEXER};
    const int64_t *slot = o->input->host.at[ST_BUF_SLOT];
    enum st_cache_id state = states[o->launch->cache];
    int32_t token = o->launch->first_token + row;
    return slot[(int64_t)state * replay->info.buffers.max_tokens + token] >= 0 &&
           !o->input->mixed[state][token];
}

/* A few rows of the step, spread by a hash so that no position or batch row is favoured.  Buffers
 * take turns, so that a sample per step is one of all layers over the run. */
static int check_sample(struct st_replay *replay, struct st_verify_reference *r,
                        const struct st_observation *o, struct st_error *err) {
    int32_t turns = replay->model.kind_count[o->launch->kind], n = 0;
    turns = turns < r->buffers ? turns : r->buffers;
    if (o->launch->ordinal != (int32_t)(o->at->step->step_id % turns))
        return 0;
    bool is_entry = o->launch->view == ST_VIEW_ENTRY;
    for (int32_t i = 0; i < o->count; i++)
        if (o->hash[0][i] != 0 && (!is_entry || is_pooled(replay, o, i)))
            r->picked[n++] = i;
    for (int32_t k = 0; k < replay->sample_rows && k < n; k++) {
        uint64_t pick = st_gen_mix((uint64_t)o->at->step->step_id * 64 + (uint64_t)k +
                                   (uint64_t)o->launch->ordinal * ST_GEN_GOLDEN);
        int32_t row = r->picked[pick % (uint64_t)n];
        ST_TRY(is_entry ? check_entry(replay, r, o, row, err)
                        : check_state(replay, r, o, row, err));
    }
    return 0;
}

/* ---- beside the cpu backend */

int st_verify_reference_step(struct st_replay *replay, struct st_verify_reference *r,
                             const struct st_walk_step *at, const struct st_step_input *input,
                             struct st_error *err) {
    struct st_step_result result;
    r->ran = false;
    if (!r->cpu)
        return 0;
    if (replay->reference_tokens + at->shape.token_count > REFERENCE_TOKENS) {
        st_backend_cpu.close(r->cpu);
        r->cpu = NULL;
        return 0;
    }
    ST_TRY(st_backend_cpu.prepare(r->cpu, input, err));
    ST_TRY(st_plan_make(&replay->model, at->step, &at->shape, &replay->options->policy[0], 0, true,
                        &r->plan, err));
    ST_TRY(st_backend_cpu.launch(r->cpu, &r->plan, 0, err));
    ST_TRY(st_backend_cpu.sync(r->cpu, &result, err));
    r->ran = true;
    replay->reference_steps++;
    replay->reference_tokens += at->shape.token_count;
    return 0;
}

/* Sums of tensor cores in fp32, keys and weights rounded to bf16, against double: a few units of
 * bf16 of the value, and of the largest of its head. */
static int64_t output_difference(const struct st_row *mine, const struct st_row *theirs) {
    enum { VALUE_DIM = 512 };
    int32_t count = theirs->length / 2;
    if (mine->length != theirs->length)
        return 0;
    for (int32_t head = 0; head < count; head += VALUE_DIM) {
        float a[VALUE_DIM], b[VALUE_DIM], largest = 0;
        for (int32_t d = 0; d < VALUE_DIM; d++) {
            uint16_t bits[2];
            memcpy(&bits[0], mine->bytes + 2 * (head + d), 2);
            memcpy(&bits[1], theirs->bytes + 2 * (head + d), 2);
            a[d] = steptape_bf16_to_float(bits[0]);
            b[d] = steptape_bf16_to_float(bits[1]);
            largest = fmaxf(largest, fabsf(b[d]));
        }
        for (int32_t d = 0; d < VALUE_DIM; d++)
            if (!(fabsf(a[d] - b[d]) <= 0x1p-6f * fabsf(b[d]) + 0x1p-7f * largest) &&
                !(isnan(a[d]) && isnan(b[d])))
                return head + d;
    }
    return -1;
}

static int check_output(struct st_replay *replay, struct st_verify_reference *r,
                        const struct st_observation *o, int32_t row, struct st_error *err) {
    char what[WHAT_BYTES] = "the output differs";
    ST_TRY(st_verify_read(replay, o, 0, row, r->room, &r->mine, err));
    int64_t column = output_difference(&r->mine, &r->theirs);
    if (column < 0)
        return 0;
    st_row_describe(o->launch, &r->mine, &r->theirs, column, whose, what, sizeof what);
    return add_difference(replay, o, 0, row, column, what, err);
}

static int check_beside(struct st_replay *replay, struct st_verify_reference *r,
                        const struct st_observation *o, struct st_error *err) {
    ST_TRY(st_backend_cpu.hashes(r->cpu, &r->plan, 0, o->number, o->count, r->hash, err));
    for (int32_t i = 0; i < o->count; i++) {
        if (r->hash[i] == 0)
            continue;
        replay->verify[0][o->launch->observed].reference_rows++;
        if (r->hash[i] == o->hash[0][i])
            continue;
        ST_TRY(st_backend_cpu.read_row(r->cpu, &r->plan, 0, o->number, i, r->theirs.bytes, r->room,
                                       &r->theirs.length, err));
        if (o->launch->view == ST_VIEW_OUT)
            ST_TRY(check_output(replay, r, o, i, err));
        else
            ST_TRY(check_bits(replay, r, o, 0, i, err));
    }
    return 0;
}

int st_verify_reference_check(struct st_replay *replay, struct st_verify_reference *r,
                              const struct st_observation *o, struct st_error *err) {
    switch ((enum st_view)o->launch->view) {
    case ST_VIEW_KV_SLOT:
        return check_slots(replay, r, o, err);
    case ST_VIEW_STATE:
    case ST_VIEW_ENTRY:
        return o->launch->ordinal < r->buffers ? check_sample(replay, r, o, err) : 0;
    default:
        return r->ran && o->launch->ordinal < 1 ? check_beside(replay, r, o, err) : 0;
    }
}
