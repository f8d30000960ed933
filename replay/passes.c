/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Walking the steps of a replay, and the passes `time` and `count`.
 */
#include <stdlib.h>
#include <string.h>

#include "replay/replay_i.h"
#include "traces/base/log.h"

/* ---- walking */

static bool in_shard(const struct st_replay *replay, int64_t step_id) {
    const struct st_replay_options *o = replay->options;
    if (o->shard_count <= 1)
        return true;
    return (step_id - replay->first_step) / ST_SHARD_SLICE % o->shard_count == o->shard - 1;
}

static int walk_steps(struct st_replay *replay, struct st_walk_step *at, const char *title,
                      st_walk_fn *visit, void *user, struct st_error *err) {
    int64_t total = replay->last_step - replay->first_step + 1;
    int rc;
    while ((rc = st_cursor_next(at->cursor, &at->step, err)) == 0) {
        if (st_interrupted())
            return ST_FAIL(err, ST_ERR_INTERRUPTED, "interrupted; no run was stored");
        if (at->input)
            ST_TRY(st_input_observe(at->input, at->step, err));
        int64_t step_id = at->step->step_id;
        if (step_id > replay->last_step)
            break;
        if (step_id < replay->first_step || !in_shard(replay, step_id))
            continue;
        if (title)
            st_progress(title, step_id - replay->first_step, total);
        st_step_shape_make(&replay->model, at->step, replay->options->mode, &at->shape);
        ST_TRY(visit(replay, at, user, err));
        at->index++;
    }
    return rc < 0 ? rc : 0;
}

int st_replay_walk(struct st_replay *replay, bool inputs, const char *title, st_walk_fn *visit,
                   void *user, struct st_error *err) {
    struct st_walk_step at;
    memset(&at, 0, sizeof at);
    bool from_tape = false; /* whether any group's ids are in the tape */
    int64_t start = replay->first_step;
    int rc = 0;
    if (inputs) {
        const struct st_model *m = &replay->model;
        for (int c = 0; c < ST_CACHE_COUNT; c++)
            from_tape =
                from_tape || (st_model_has(m, (enum st_cache_id)c) && m->cache[c].group >= 0);
        if (m->allocated_group_count > 0) /* the allocator model must see every step */
            start = st_tape_first_step(replay->tape);
        ST_TRY(st_input_create(m, &replay->info.buffers, &at.input, err));
    }
    ST_TRY_OUT(st_cursor_open(replay->tape, from_tape ? ST_READ_TABLES : 0, &at.cursor, err));
    ST_TRY_OUT(st_cursor_seek(at.cursor, start, err));
    rc = walk_steps(replay, &at, title, visit, user, err);
out:
    st_progress_end();
    st_cursor_close(at.cursor);
    st_input_destroy(at.input);
    return rc;
}

/* ---- the backend of a pass */

int st_replay_open_backend(struct st_replay *replay, enum st_pass pass, struct st_error *err) {
    const struct st_replay_options *o = replay->options;
    const struct st_survey *survey = &replay->survey;
    struct st_backend_config config;
    memset(&config, 0, sizeof config);
    config.model = &replay->model;
    config.pass = pass;
    config.policy_count = o->policy_count;
    config.ops_mask = o->ops_mask;
    config.poison = o->poison;
    config.limits = survey->limits;
    /* At most the group of 128 that a request's next token is in. */
    config.max_rebuild = (int64_t)survey->limits.max_requests * 127;
    config.layer_buffers = o->buffers;
    config.sample_tokens = o->sample_rows;
    config.device = o->device;
    config.device_set_count = o->device_set_count;
    config.device_set = o->device_set;
    config.cupti_path = o->cupti_path;
    config.cuda_home = o->cuda_home;
    ST_TRY(replay->ops->open(&config, &replay->backend, &replay->info, err));
    replay->pass_buffers[pass] = replay->info.buffers.layer_buffers;
    replay->pass_set_bytes[pass] = replay->info.set_bytes;
    return 0;
}

void st_replay_close_backend(struct st_replay *replay) {
    if (!replay->backend)
        return;
    struct st_backend_counters c = {-1, -1, -1, -1, -1, -1}, *all = &replay->counters;
    if (replay->ops->counters)
        replay->ops->counters(replay->backend, &c);
    int64_t *const sum[] = {&all->launches,    &all->graph_launches, &all->graphs,
                            &all->graph_bytes, &all->capture_ns,     &all->dropped};
    const int64_t one[] = {c.launches,    c.graph_launches, c.graphs,
                           c.graph_bytes, c.capture_ns,     c.dropped};
    for (int i = 0; i < 6; i++)
        *sum[i] = one[i] < 0 || *sum[i] < 0 ? -1 : *sum[i] + one[i];
    replay->ops->close(replay->backend);
    replay->backend = NULL;
}

static int make_plans(struct st_replay *replay, const struct st_walk_step *at,
                      struct st_error *err) {
    for (int32_t p = 0; p < replay->options->policy_count; p++)
        ST_TRY(st_plan_make(&replay->model, at->step, &at->shape, &replay->options->policy[p],
                            replay->options->ops_mask, false, replay->plan[p], err));
    return 0;
}

static int prepare_step(struct st_replay *replay, const struct st_walk_step *at,
                        struct st_error *err) {
    struct st_step_input input;
    ST_TRY(make_plans(replay, at, err));
    if (at->input) {
        ST_TRY(st_input_build(at->input, at->cursor, at->step, &at->shape, false, &input, err));
    } else {
        memset(&input, 0, sizeof input);
        input.step_id = at->step->step_id;
        input.shape = at->shape;
    }
    return replay->ops->prepare(replay->backend, &input, err);
}

/* ---- time */

static int compare_ns(const void *a, const void *b) {
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return x < y ? -1 : x > y;
}

/* One sample that is not known leaves the median unknown. */
static int64_t median_ns(const int64_t *sample, int32_t count, int64_t *scratch) {
    memcpy(scratch, sample, (size_t)count * sizeof *scratch);
    qsort(scratch, (size_t)count, sizeof *scratch, compare_ns);
    if (scratch[0] == ST_UNKNOWN)
        return ST_UNKNOWN;
    return count % 2 ? scratch[count / 2] : (scratch[count / 2 - 1] + scratch[count / 2] + 1) / 2;
}

/* Spread of the paired differences of one step around their own mean. */
static void add_noise(struct st_replay *replay, const int64_t *sample) {
    int32_t n = replay->repeat;
    for (int32_t i = 0; i < n * replay->options->policy_count; i++)
        if (n < 2 || sample[i] == ST_UNKNOWN)
            return;
    for (int32_t p = 1; p < replay->options->policy_count; p++) {
        double mean = 0, square = 0;
        for (int32_t r = 0; r < n; r++)
            mean += (double)(sample[p * n + r] - sample[r]) / n;
        for (int32_t r = 0; r < n; r++) {
            double d = (double)(sample[p * n + r] - sample[r]) - mean;
            square += d * d;
        }
        replay->paired_square_sum += square;
        replay->paired_freedom += n - 1;
        replay->paired_count += n;
    }
}

static int run_policy(struct st_replay *replay, int32_t policy, struct st_step_result *result,
                      struct st_error *err) {
    ST_TRY(replay->ops->launch(replay->backend, replay->plan[policy], policy, err));
    return replay->ops->sync(replay->backend, result, err);
}

static int time_step(struct st_replay *replay, const struct st_walk_step *at, void *user,
                     struct st_error *err) {
    int32_t policies = replay->options->policy_count, repeat = replay->repeat;
    int64_t *sample = user; /* [policy][repeat] of this step, then room for one policy */
    struct st_step_result result;
    if (at->shape.request_count == 0)
        return 0;
    ST_TRY(prepare_step(replay, at, err));
    /* Not timed: captures graphs, loads modules, touches what is cold. */
    for (int32_t p = policies - 1; p >= 0 && !replay->info.simulated; p--)
        ST_TRY(run_policy(replay, p, &result, err));
    for (int32_t r = 0; r < repeat; r++) {
        bool backwards = (at->index + r) % 2 != 0; /* A B, B A, A B, ... */
        for (int32_t i = 0; i < policies; i++) {
            int32_t p = backwards ? policies - 1 - i : i;
            ST_TRY(run_policy(replay, p, &result, err));
            sample[p * repeat + r] = result.step_ns;
            if (result.step_ns != ST_UNKNOWN)
                ST_TRY(st_result_sample(replay->result, at->step->step_id, p, "time", r,
                                        result.step_ns, err));
            struct st_measured *m = st_replay_measured(replay, at->index, p);
            if (replay->info.simulated) { /* a simulation knows its kernels' times as well */
                m->kernel_ns = result.kernel_ns;
                memcpy(m->op_kernel_ns, result.op_kernel_ns, sizeof m->op_kernel_ns);
            }
        }
    }
    for (int32_t p = 0; p < policies; p++)
        st_replay_measured(replay, at->index, p)->step_ns =
            median_ns(sample + p * repeat, repeat, sample + policies * repeat);
    add_noise(replay, sample);
    return 0;
}

int st_replay_pass_time(struct st_replay *replay, struct st_error *err) {
    size_t count = (size_t)(replay->options->policy_count + 1) * (size_t)replay->repeat;
    int64_t *sample = calloc(count, sizeof *sample);
    if (!sample)
        return ST_FAIL_NOMEM(err);
    int rc = st_replay_walk(replay, replay->ops->needs_blocks, "time", time_step, sample, err);
    free(sample);
    return rc;
}

/* ---- count */

static int check_counts(struct st_replay *replay, const struct st_walk_step *at, int32_t policy,
                        const struct st_step_result *result, struct st_error *err) {
    const struct st_plan *plan = replay->plan[policy];
    for (int op = 0; op < ST_OP_COUNT; op++)
        if (result->launches[op] >= 0 && result->launches[op] != plan->launches[op])
            return ST_FAIL(err, ST_ERR_MISMATCH,
                           "step %lld, policy %s: %s: the plan has %d launches, %d were observed",
                           (long long)at->step->step_id, replay->options->policy[policy].name,
                           st_operator_name((enum st_operator)op), plan->launches[op],
                           result->launches[op]);
    if (result->other_launches > 0)
        return ST_FAIL(err, ST_ERR_MISMATCH,
                       "step %lld, policy %s: %d launches were observed that no operator makes",
                       (long long)at->step->step_id, replay->options->policy[policy].name,
                       result->other_launches);
    return 0;
}

static int count_step(struct st_replay *replay, const struct st_walk_step *at, void *user,
                      struct st_error *err) {
    (void)user;
    if (at->shape.request_count == 0)
        return 0;
    ST_TRY(prepare_step(replay, at, err));
    for (int32_t i = 0; i < replay->options->policy_count; i++) {
        int32_t p = at->index % 2 ? replay->options->policy_count - 1 - i : i;
        struct st_step_result result;
        ST_TRY(run_policy(replay, p, &result, err));
        ST_TRY(check_counts(replay, at, p, &result, err));
        struct st_measured *m = st_replay_measured(replay, at->index, p);
        m->kernel_ns = result.kernel_ns;
        memcpy(m->op_kernel_ns, result.op_kernel_ns, sizeof m->op_kernel_ns);
    }
    return 0;
}

int st_replay_pass_count(struct st_replay *replay, struct st_error *err) {
    return st_replay_walk(replay, replay->ops->needs_blocks, "count", count_step, NULL, err);
}
