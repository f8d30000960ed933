/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The pass `verify`: every consumed output of every executed step, compared between policies by row
 * hash, and a sample of rows with the CPU reference.
 *
 * Which rows are consumed follows from the step, never from the policy: a plan's observations stand
 * where a consumer reads, whatever was launched before them.  A policy that wrongly leaves a launch
 * out shows as rows that differ.  Steps are planned in full whatever --ops says, so that every
 * operator has its inputs; --ops says which outputs are compared.
 */
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#include "replay/verify_i.h"
#include "traces/base/log.h"

enum { STORED_HAZARDS = 1000, WHAT_BYTES = 160 };

struct verify {
    uint64_t *hash[ST_MAX_POLICIES]; /* of one observation */
    uint64_t *dense;                 /* those of rows that exist */
    struct st_row mine, theirs;
    int32_t room;
    XXH3_state_t *digest[ST_MAX_POLICIES][ST_OP_COUNT];
    int64_t digest_rows[ST_MAX_POLICIES][ST_OP_COUNT];
    bool observed[ST_OP_COUNT]; /* in this step */
    struct st_verify_reference *reference;
    int64_t touched_bytes; /* cache bytes written since the caches were forgotten */
};

/* ---- hazards */

static int store_hazard(struct st_replay *replay, const struct st_result_hazard *hazard,
                        struct st_error *err) {
    replay->hazard_count++;
    if (replay->hazards_stored >= STORED_HAZARDS)
        return 0;
    replay->hazards_stored++;
    return st_result_hazard(replay->result, hazard, err);
}

int st_verify_hazard(struct st_replay *replay, const struct st_observation *o, int32_t policy,
                     int32_t row, int64_t column, const char *what, struct st_error *err) {
    bool of_request = o->launch->view == ST_VIEW_GATHER_LENS;
    struct st_result_hazard hazard = {
        .step_id = o->at->step->step_id,
        .policy = policy,
        .layer = o->launch->layer,
        .operator_index = o->launch->observed,
        .row = (of_request ? o->launch->first_request : o->launch->first_token) + row,
        .column = column,
        .what = what,
    };
    return store_hazard(replay, &hazard, err);
}

int st_verify_read(struct st_replay *replay, const struct st_observation *o, int32_t policy,
                   int32_t row, int32_t room, struct st_row *out, struct st_error *err) {
    return replay->ops->read_row(replay->backend, replay->plan[policy], policy, o->number, row,
                                 out->bytes, room, &out->length, err);
}

/* ---- policies against the first policy */

static int report_difference(struct st_replay *replay, struct verify *v,
                             const struct st_observation *o, int32_t policy, int32_t row,
                             struct st_error *err) {
    char what[WHAT_BYTES] = "row hashes differ";
    ST_TRY(st_verify_read(replay, o, policy, row, v->room, &v->mine, err));
    ST_TRY(st_verify_read(replay, o, 0, row, v->room, &v->theirs, err));
    int64_t column = st_row_difference(o->launch, &v->mine, &v->theirs,
                                       replay->options->policy[0].name, what, sizeof what);
    return st_verify_hazard(replay, o, policy, row, column, what, err);
}

/* One layer for each buffer: runs with as many buffers compare. */
static void add_to_digest(const struct st_replay *replay, struct verify *v,
                          const struct st_observation *o, int32_t policy) {
    int op = o->launch->observed;
    int64_t rows = 0;
    if (o->launch->ordinal >= replay->info.buffers.layer_buffers)
        return;
    for (int32_t i = 0; i < o->count; i++)
        if (v->hash[policy][i] != 0)
            v->dense[rows++] = v->hash[policy][i];
    XXH3_64bits_update(v->digest[policy][op], v->dense, (size_t)rows * sizeof *v->dense);
    v->digest_rows[policy][op] += rows;
}

static int compare_policies(struct st_replay *replay, struct verify *v,
                            const struct st_observation *o, struct st_error *err) {
    for (int32_t p = 0; p < replay->options->policy_count; p++) {
        ST_TRY(replay->ops->hashes(replay->backend, replay->plan[p], p, o->number, o->count,
                                   v->hash[p], err));
        add_to_digest(replay, v, o, p);
        struct st_verify_counts *counts = &replay->verify[p][o->launch->observed];
        int32_t first = -1;
        for (int32_t i = 0; i < o->count; i++) {
            counts->rows += v->hash[p][i] != 0;
            if (v->hash[p][i] == v->hash[0][i])
                continue;
            counts->rows_differing++;
            first = first < 0 ? i : first;
        }
        if (first >= 0)
            ST_TRY(report_difference(replay, v, o, p, first, err));
    }
    return 0;
}

/* ---- guards */

/* What this policy's launches wrote where nobody may: no other policy is needed to tell. */
static int report_damages(struct st_replay *replay, const struct st_walk_step *at, int32_t policy,
                          struct st_error *err) {
    const struct st_guard_damage *damage = NULL;
    int64_t lost = 0;
    if (!replay->options->poison || !replay->ops->damages)
        return 0;
    int32_t count = replay->ops->damages(replay->backend, policy, &damage, &lost);
    for (int32_t i = 0; i < count; i++) {
        if (!st_operator_wanted(replay->options->ops_mask, (enum st_operator)damage[i].op))
            continue;
        char what[WHAT_BYTES];
        struct st_result_hazard hazard = {.step_id = at->step->step_id,
                                          .policy = policy,
                                          .layer = damage[i].layer,
                                          .operator_index = damage[i].op,
                                          .what = what};
        st_guard_describe(&replay->model, &replay->info.buffers, &damage[i], &hazard.row,
                          &hazard.column, what, sizeof what);
        ST_TRY(store_hazard(replay, &hazard, err));
    }
    replay->hazard_count += lost;
    return 0;
}

/* ---- one step */

static void begin_digests(const struct st_replay *replay, struct verify *v) {
    memset(v->digest_rows, 0, sizeof v->digest_rows);
    memset(v->observed, 0, sizeof v->observed);
    for (int32_t p = 0; p < replay->options->policy_count; p++)
        for (int op = 0; op < ST_OP_COUNT; op++)
            XXH3_64bits_reset(v->digest[p][op]);
}

static int end_digests(struct st_replay *replay, const struct st_walk_step *at,
                       const struct verify *v, struct st_error *err) {
    for (int op = 0; op < ST_OP_COUNT; op++) {
        for (int32_t p = 0; v->observed[op] && p < replay->options->policy_count; p++) {
            replay->verify[p][op].steps++;
            ST_TRY(st_result_digest(replay->result, at->step->step_id, p, op, v->digest_rows[p][op],
                                    XXH3_64bits_digest(v->digest[p][op]), err));
        }
    }
    return 0;
}

static int compare_step(struct st_replay *replay, const struct st_walk_step *at,
                        const struct st_step_input *input, struct verify *v, struct st_error *err) {
    const struct st_plan *plan = replay->plan[0];
    struct st_observation o = {at, input, NULL, 0, 0, v->hash};
    begin_digests(replay, v);
    for (int32_t i = 0; i < plan->launch_count; i++) {
        const struct st_launch *launch = &plan->launch[i];
        if (launch->op != ST_OP_OBSERVE)
            continue;
        o.launch = launch;
        o.count = launch->view == ST_VIEW_GATHER_LENS ? launch->request_count : launch->token_count;
        if (st_operator_wanted(replay->options->ops_mask, (enum st_operator)launch->observed)) {
            v->observed[launch->observed] = true;
            ST_TRY(compare_policies(replay, v, &o, err));
            ST_TRY(st_verify_reference_check(replay, v->reference, &o, err));
        }
        o.number++;
    }
    return end_digests(replay, at, v, err);
}

static int run_policies(struct st_replay *replay, const struct st_walk_step *at,
                        struct st_error *err) {
    for (int32_t p = 0; p < replay->options->policy_count; p++) {
        struct st_step_result result;
        ST_TRY(st_plan_make(&replay->model, at->step, &at->shape, &replay->options->policy[p], 0,
                            true, replay->plan[p], err));
        if (replay->plan[p]->observation_count != replay->plan[0]->observation_count)
            return ST_FAIL(err, ST_ERR_USAGE, "step %lld: %s and %s are observed differently",
                           (long long)at->step->step_id, replay->options->policy[p].name,
                           replay->options->policy[0].name);
        ST_TRY(replay->ops->launch(replay->backend, replay->plan[p], p, err));
        ST_TRY(replay->ops->sync(replay->backend, &result, err));
        ST_TRY(report_damages(replay, at, p, err));
    }
    return 0;
}

static bool in_sample(const struct st_replay *replay, int64_t index) {
    return replay->sample_stride <= 1 || index / 2 % replay->sample_stride == 0;
}

/* What a step's tokens leave in the state caches of all policies and layer buffers; pages of
 * entries are few beside them. */
static int64_t state_bytes(const struct st_replay *replay, const struct st_walk_step *at) {
    static const enum st_cache_id states[] = {ST_CACHE_STATE_C4, ST_CACHE_STATE_C128,
                                              ST_CACHE_STATE_INDEXER};
    int64_t row = 0;
    for (int i = 0; i < 3; i++)
        if (st_model_has(&replay->model, states[i]))
            row += replay->model.cache[states[i]].page_bytes /
                   replay->model.cache[states[i]].block_size;
    return at->shape.token_count * row * replay->options->policy_count *
           replay->info.buffers.layer_buffers;
}

static int verify_step(struct st_replay *replay, const struct st_walk_step *at, void *user,
                       struct st_error *err) {
    struct verify *v = user;
    if (at->shape.request_count == 0 || !in_sample(replay, at->index))
        return 0;
    int64_t bytes = state_bytes(replay, at), limit = replay->ops->forget_bytes;
    bool forget = limit > 0 && v->touched_bytes + bytes > limit;
    v->touched_bytes = forget ? bytes : v->touched_bytes + bytes;

    struct st_step_input input;
    ST_TRY(st_input_build(at->input, at->cursor, at->step, &at->shape, forget, &input, err));
    ST_TRY(st_input_check(at->input, at->step, err));
    ST_TRY(replay->ops->prepare(replay->backend, &input, err));
    ST_TRY(run_policies(replay, at, err));
    ST_TRY(st_verify_reference_step(replay, v->reference, at, &input, err));
    replay->verify_steps++;
    replay->verify_tokens += at->shape.token_count;
    return compare_step(replay, at, &input, v, err);
}

/* ---- the pass */

static void verify_fini(struct verify *v) {
    for (int p = 0; p < ST_MAX_POLICIES; p++) {
        free(v->hash[p]);
        for (int op = 0; op < ST_OP_COUNT; op++)
            XXH3_freeState(v->digest[p][op]);
    }
    free(v->dense);
    free(v->mine.bytes);
    free(v->theirs.bytes);
    st_verify_reference_close(v->reference);
}

static int verify_init(struct verify *v, struct st_replay *replay, struct st_error *err) {
    const struct st_buffers *buffers = &replay->info.buffers;
    size_t rows = (size_t)buffers->max_tokens + (size_t)buffers->max_requests;
    memset(v, 0, sizeof *v);
    v->room = st_row_room(&replay->model, buffers);
    v->dense = calloc(rows, sizeof *v->dense);
    v->mine.bytes = malloc((size_t)v->room);
    v->theirs.bytes = malloc((size_t)v->room);
    bool ok = v->dense && v->mine.bytes && v->theirs.bytes;
    for (int32_t p = 0; p < replay->options->policy_count; p++) {
        v->hash[p] = calloc(rows, sizeof *v->hash[p]);
        ok = ok && v->hash[p];
        for (int op = 0; op < ST_OP_COUNT; op++)
            ok = (v->digest[p][op] = XXH3_createState()) && ok;
    }
    return ok ? st_verify_reference_open(replay, &v->reference, err) : ST_FAIL_NOMEM(err);
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
