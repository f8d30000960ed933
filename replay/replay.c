/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One run, from options to a row of table run: look at the tape, open the result, let each pass
 * walk the steps, store what was planned and measured.
 */
#include "replay/replay.h"

#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "replay/predicate_cost.h"
#include "replay/replay_i.h"
#include "traces/base/log.h"

enum { DEFAULT_REPEAT = 5, DEFAULT_SAMPLE_ROWS = 2 };
enum { CPU_SAMPLE_TOKENS = 131072, CPU_ATTENTION_ROWS = 8192, CPU_STEP_ROWS = 8 };
enum { MAX_BATCH = 65536 };

void st_replay_options_init(struct st_replay_options *options) {
    memset(options, 0, sizeof *options);
    options->first_step = options->last_step = -1;
    options->sample_tokens = options->sample_rows = -1;
}

/* ---- what there is to do */

/* Whether some policy selects for more rows than there are tokens. */
static bool pads_rows(const struct st_replay_options *options) {
    for (int32_t p = 0; p < options->policy_count; p++)
        if (options->policy[p].value[ST_SWITCH_TOPK_ROWS] != ST_TOPK_ROWS_FLAT)
            return true;
    return false;
}

static void note_limits(const struct st_model *model, struct st_survey *survey, bool pads,
                        const struct st_walk_step *at) {
    struct st_limits *l = &survey->limits;
    if (at->shape.padded_token_count > l->max_tokens)
        l->max_tokens = at->shape.padded_token_count;
    if (at->shape.padded_request_count > l->max_requests)
        l->max_requests = at->shape.padded_request_count;
    for (int32_t i = 0; i < at->step->request_count; i++) {
        int64_t length = (int64_t)at->step->num_computed_tokens[i] + at->step->query_len[i];
        if (length > l->max_seq_len)
            l->max_seq_len = length;
    }
    int64_t logits = st_plan_logits(model, at->step, &at->shape);
    if (pads) { /* rows of padding read no score, and lie beside scores all the same */
        int64_t rows = st_step_padded_rows(&at->shape), padded = rows * st_logits_stride(model);
        if (rows > l->max_topk_rows)
            l->max_topk_rows = rows;
        logits = padded > logits ? padded : logits;
    }
    if (logits > l->max_logits)
        l->max_logits = logits;
    l->uses_full = l->uses_full || at->shape.mode == ST_GRAPH_MODE_FULL;
}

static bool is_set(const struct st_replay_options *options, const char *name) {
    size_t length = strlen(name);
    for (int32_t i = 0; i < options->set_count; i++)
        if (strncmp(options->set[i], name, length) == 0 && options->set[i][length] == '=')
            return true;
    return false;
}

/* An engine cannot have run such a step with these settings.  What the user says is refused; a tape
 * that contradicts itself is replayed, and the run says so. */
static int check_step_size(struct st_replay *replay, const struct st_walk_step *at,
                           struct st_error *err) {
    const struct {
        const char *name, *what;
        int64_t limit, size;
    } sizes[] = {
        {"max_num_batched_tokens", "tokens", replay->model.max_num_batched_tokens,
         at->step->token_count},
        {"max_num_seqs", "requests", replay->model.max_num_seqs, at->step->request_count},
    };
    bool above = false;
    for (int i = 0; i < 2; i++) {
        if (sizes[i].size <= sizes[i].limit)
            continue;
        above = true;
        if (is_set(replay->options, sizes[i].name))
            return ST_FAIL(err, ST_ERR_INPUT,
                           "step %lld: %lld %s are more than %s = %lld (see --set)",
                           (long long)at->step->step_id, (long long)sizes[i].size, sizes[i].what,
                           sizes[i].name, (long long)sizes[i].limit);
    }
    if (above && replay->survey.above_settings_count++ == 0)
        replay->survey.first_above_settings_step = at->step->step_id;
    return 0;
}

static int survey_step(struct st_replay *replay, const struct st_walk_step *at, void *user,
                       struct st_error *err) {
    (void)user;
    struct st_survey *survey = &replay->survey;
    survey->step_count++;
    survey->token_count += at->shape.token_count;
    survey->empty_count += at->shape.request_count == 0;
    survey->full_count += at->shape.mode == ST_GRAPH_MODE_FULL;
    survey->piecewise_count += at->shape.mode == ST_GRAPH_MODE_PIECEWISE;
    survey->above_largest_count += at->shape.above_largest;
    survey->mode_unknown_count += at->shape.mode_unknown;
    survey->no_cpu_starts_count += !st_step_has_cpu_starts(at->step);
    if (at->step->token_count > INT32_MAX / 4)
        return ST_FAIL(err, ST_ERR_INPUT, "step %lld: %lld tokens are more than a step can have",
                       (long long)at->step->step_id, (long long)at->step->token_count);
    ST_TRY(check_step_size(replay, at, err));
    note_limits(&replay->model, survey, pads_rows(replay->options), at);
    return 0;
}

int st_replay_range(const struct st_replay_options *o, const struct st_tape *tape,
                    int64_t *first_step, int64_t *last_step, struct st_error *err) {
    int64_t first = st_tape_first_step(tape);
    int64_t last = first + st_tape_step_count(tape) - 1;
    if (last < first)
        return ST_FAIL(err, ST_ERR_INPUT, "%s: the tape has no steps", o->tape_path);
    *first_step = o->first_step >= 0 ? o->first_step : first;
    *last_step = o->last_step >= 0 ? o->last_step : last;
    if (*first_step > *last_step || *first_step < first || *last_step > last)
        return ST_FAIL(err, ST_ERR_USAGE, "--steps: the tape has steps %lld to %lld",
                       (long long)first, (long long)last);
    return 0;
}

/* Lists, tables and slot mappings are as large as the engine's settings allow: what no engine can
 * be set to would only use up the memory of the machine. */
static int check_settings(const struct st_replay *replay, struct st_error *err) {
    const struct st_model *m = &replay->model;
    const struct {
        const char *name;
        int64_t value;
        bool is_set;
    } sizes[] = {
        {"max_model_len", m->max_model_len, true},
        {"max_num_batched_tokens", m->max_num_batched_tokens, true},
        {"num_blocks", m->num_blocks, true},
        {"padded_tokens", replay->survey.limits.max_tokens, false},
        {"rows of topk-rows", replay->survey.limits.max_topk_rows, false},
    };
    const int64_t most = INT64_C(1) << 24;
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++)
        if (sizes[i].value > most)
            return ST_FAIL(err, ST_ERR_INPUT,
                           "%s: %s = %lld is more than a step can be replayed with, %lld%s",
                           replay->options->tape_path, sizes[i].name, (long long)sizes[i].value,
                           (long long)most, sizes[i].is_set ? " (see --set)" : "");
    return 0;
}

static int survey_tape(struct st_replay *replay, struct st_error *err) {
    const struct st_replay_options *o = replay->options;
    struct st_survey *survey = &replay->survey;
    ST_TRY(check_settings(replay, err)); /* before anything is computed with them */
    ST_TRY(st_replay_walk(replay, false, NULL, survey_step, NULL, err));
    if (survey->step_count == 0)
        return ST_FAIL(err, ST_ERR_USAGE, "--shard %d/%d: no steps fall to this shard", o->shard,
                       o->shard_count);
    if (survey->limits.max_seq_len > replay->model.max_model_len)
        return ST_FAIL(err, ST_ERR_INPUT,
                       "%s: a context of %lld tokens is longer than max_model_len = %lld (see "
                       "--set)",
                       o->tape_path, (long long)survey->limits.max_seq_len,
                       (long long)replay->model.max_model_len);
    ST_TRY(check_settings(replay, err));
    return 0;
}

static int load_model(struct st_replay *replay, struct st_error *err) {
    const struct st_replay_options *o = replay->options;
    struct st_error inner = {0};
    int rc = st_model_load(o->model, st_tape_header(replay->tape), &replay->model, &inner);
    if (rc != 0 && !o->model)
        return ST_FAIL(err, rc, "%s: %s", o->tape_path, inner.msg);
    if (rc != 0)
        return ST_FAIL(err, rc, "%s", inner.msg);
    for (int32_t i = 0; i < o->set_count; i++)
        ST_TRY(st_model_set(&replay->model, o->set[i], err));
    const struct st_model *m = &replay->model;
    for (int c = ST_CACHE_STATE_C4; c <= ST_CACHE_STATE_INDEXER; c++) {
        int32_t size = m->cache[c].block_size;
        if (st_model_has(m, (enum st_cache_id)c) && (size & (size - 1)) != 0)
            return ST_FAIL(err, ST_ERR_INPUT,
                           "state cache: %d tokens a block, a power of two expected", size);
    }
    return 0;
}

/* Once nothing about the input can fail any more: an error is one line. */
static void log_notes(const struct st_replay *replay) {
    const struct st_survey *survey = &replay->survey;
    const struct st_model *m = &replay->model;
    if (m->allocated_group_count > 0 && replay->ops->needs_blocks)
        st_log(ST_LOG_INFO,
               "the tape lacks %d of the KV groups of %s: their blocks come from the allocator "
               "model",
               m->allocated_group_count, m->name);
    if (survey->above_largest_count)
        st_log(ST_LOG_INFO, "steps larger than the largest capture size %d, which run eager: %lld",
               m->capture_size_count ? m->capture_size[m->capture_size_count - 1] : 0,
               (long long)survey->above_largest_count);
    if (survey->above_settings_count)
        st_log(ST_LOG_WARN,
               "steps with more tokens or requests than the engine's settings (first: step %lld): "
               "%lld",
               (long long)survey->first_above_settings_step,
               (long long)survey->above_settings_count);
    if (survey->mode_unknown_count)
        st_log(ST_LOG_INFO, "steps that did not record their graph mode, which run eager: %lld",
               (long long)survey->mode_unknown_count);
}

static int choose_passes(struct st_replay *replay, unsigned *mask, struct st_error *err) {
    const struct st_replay_options *o = replay->options;
    *mask = o->pass_mask ? o->pass_mask : replay->ops->default_pass_mask;
    for (int p = 0; p < ST_PASS_KINDS; p++)
        if ((*mask >> p & 1u) && !(replay->ops->pass_mask >> p & 1u))
            return ST_FAIL(err, ST_ERR_USAGE, "--pass %s: backend %s does not do it",
                           st_pass_name((enum st_pass)p), replay->ops->name);
    if (o->poison && !(*mask >> ST_PASS_VERIFY & 1u))
        return ST_FAIL(err, ST_ERR_USAGE, "--poison: only with --pass verify");
    return 0;
}

/* Steps that the cpu backend can take in a few minutes: of tokens, and of rows of attention, of
 * which a step computes some in every kind of layers. */
static int64_t default_stride(const struct st_replay *replay) {
    const struct st_survey *s = &replay->survey;
    int64_t kinds = 0, rows;
    for (int k = 0; k < ST_LAYER_KINDS; k++)
        kinds += replay->model.kind_count[k] > 0;
    rows = s->step_count * 2 * kinds * replay->options->policy_count * CPU_STEP_ROWS;
    int64_t tokens = (s->token_count + CPU_SAMPLE_TOKENS - 1) / CPU_SAMPLE_TOKENS;
    rows = (rows + CPU_ATTENTION_ROWS - 1) / CPU_ATTENTION_ROWS;
    return tokens > rows ? tokens : rows;
}

static void choose_sample(struct st_replay *replay) {
    const struct st_replay_options *o = replay->options;
    int64_t limit = o->sample_tokens;
    replay->sample_rows = o->sample_rows < 0 ? DEFAULT_SAMPLE_ROWS : o->sample_rows;
    replay->sample_stride = 1;
    if (limit < 0 && strcmp(replay->ops->name, "cpu") == 0)
        replay->sample_stride = default_stride(replay);
    else if (limit > 0 && replay->survey.token_count > limit)
        replay->sample_stride = (replay->survey.token_count + limit - 1) / limit;
}

/* ---- what a run says of itself */

static json_t *strings(const char *const *text, int32_t count) {
    json_t *array = json_array();
    for (int32_t i = 0; i < count; i++)
        json_array_append_new(array, json_string(text[i]));
    return array;
}

static json_t *allocated_groups(const struct st_model *m) {
    json_t *array = json_array();
    for (int c = 0; c < ST_CACHE_COUNT; c++)
        if (st_model_has(m, (enum st_cache_id)c) && m->cache[c].group < 0)
            json_array_append_new(array, json_string(st_cache_name((enum st_cache_id)c)));
    return array;
}

static json_t *operators(unsigned mask) {
    json_t *array = json_array();
    for (int op = 0; op < ST_OP_COUNT; op++)
        if (st_operator_wanted(mask, (enum st_operator)op))
            json_array_append_new(array, json_string(st_operator_name((enum st_operator)op)));
    return array;
}

static void add_counter(json_t *object, const char *name, int64_t value) {
    json_object_set_new(object, name, value < 0 ? json_null() : json_integer(value));
}

static void add_survey(const struct st_survey *s, json_t *root) {
    const struct {
        const char *name;
        int64_t count;
    } facts[] = {
        {"steps", s->step_count},
        {"tokens", s->token_count},
        {"steps_without_requests", s->empty_count},
        {"steps_full", s->full_count},
        {"steps_piecewise", s->piecewise_count},
        {"steps_above_largest_capture", s->above_largest_count},
        {"steps_mode_unknown", s->mode_unknown_count},
        {"steps_above_settings", s->above_settings_count},
        {"steps_without_cpu_starts", s->no_cpu_starts_count},
    };
    for (size_t i = 0; i < sizeof facts / sizeof facts[0]; i++)
        json_object_set_new(root, facts[i].name, json_integer(facts[i].count));
}

static void add_verify(const struct st_replay *replay, json_t *root) {
    json_object_set_new(root, "verify_steps", json_integer(replay->verify_steps));
    json_object_set_new(root, "verify_tokens", json_integer(replay->verify_tokens));
    json_object_set_new(root, "reference_rows_per_step", json_integer(replay->sample_rows));
    json_object_set_new(root, "reference_steps", json_integer(replay->reference_steps));
    json_object_set_new(root, "poison", json_boolean(replay->options->poison));
    json_object_set_new(root, "hazards", json_integer(replay->hazard_count));
    json_object_set_new(root, "hazards_not_stored",
                        json_integer(replay->hazard_count - replay->hazards_stored));
}

/* What a policy's memory takes, and how much of it is the workspace of sparse prefill. */
static void add_memory(const struct st_replay *replay, unsigned pass_mask, json_t *root) {
    const int64_t *bytes = replay->info.buffers.bytes;
    json_t *buffers = json_object(), *sets = json_object();
    for (int p = 0; p < ST_PASS_KINDS; p++) {
        const char *name = st_pass_name((enum st_pass)p);
        if ((pass_mask >> p & 1u) && replay->pass_buffers[p] > 0)
            json_object_set_new(buffers, name, json_integer(replay->pass_buffers[p]));
        if ((pass_mask >> p & 1u) && replay->pass_set_bytes[p] > 0)
            json_object_set_new(sets, name, json_integer(replay->pass_set_bytes[p]));
    }
    json_object_set_new(root, "layer_buffers", buffers);
    json_object_set_new(root, "policy_bytes", sets);
    if (bytes[ST_BUF_KV_WORKSPACE] > 0) /* 0: simulated, nothing is reserved */
        json_object_set_new(root, "workspace_bytes",
                            json_integer(bytes[ST_BUF_KV_WORKSPACE] + bytes[ST_BUF_COMBINED] +
                                         bytes[ST_BUF_COMBINED_LENS]));
}

/* Freed by the caller. */
static char *options_text(const struct st_replay *replay, unsigned pass_mask) {
    const struct st_replay_options *o = replay->options;
    json_t *root = json_object();
    json_object_set_new(root, "first_step", json_integer(replay->first_step));
    json_object_set_new(root, "last_step", json_integer(replay->last_step));
    if (o->shard_count > 1) {
        json_object_set_new(root, "shard", json_integer(o->shard));
        json_object_set_new(root, "shards", json_integer(o->shard_count));
    }
    add_survey(&replay->survey, root);
    json_object_set_new(root, "model_from", json_string(o->model ? "option" : "tape"));
    json_object_set_new(root, "allocated_groups", allocated_groups(&replay->model));
    json_object_set_new(root, "max_model_len", json_integer(replay->model.max_model_len));
    json_object_set_new(root, "num_blocks", json_integer(replay->model.num_blocks));
    json_object_set_new(root, "set", strings(o->set, o->set_count));
    json_object_set_new(root, "ops", operators(o->ops_mask));
    json_object_set_new(root, "device_set", strings(o->device_set, o->device_set_count));
    if (pass_mask >> ST_PASS_TIME & 1u)
        json_object_set_new(root, "repeat", json_integer(replay->repeat));
    if (pass_mask >> ST_PASS_VERIFY & 1u)
        add_verify(replay, root);
    add_memory(replay, pass_mask, root);
    add_counter(root, "launches_issued", replay->counters.launches);
    add_counter(root, "graph_launches", replay->counters.graph_launches);
    add_counter(root, "graphs_captured", replay->counters.graphs);
    add_counter(root, "graph_bytes", replay->counters.graph_bytes);
    add_counter(root, "capture_ns", replay->counters.capture_ns);
    add_counter(root, "profiler_records_dropped", replay->counters.dropped);
    char *text = json_dumps(root, JSON_COMPACT);
    json_decref(root);
    return text;
}

static void pass_names(unsigned mask, char *out, size_t size) {
    out[0] = 0;
    for (int p = 0; p < ST_PASS_KINDS; p++) {
        if (!(mask >> p & 1u))
            continue;
        size_t used = strlen(out);
        snprintf(out + used, size - used, "%s%s", used ? "," : "", st_pass_name((enum st_pass)p));
    }
}

static int begin_run(struct st_replay *replay, unsigned pass_mask, int64_t *run_id,
                     struct st_error *err) {
    const struct st_replay_options *o = replay->options;
    const char *policy[ST_MAX_POLICIES], *op[ST_OP_COUNT];
    char passes[64];
    pass_names(pass_mask, passes, sizeof passes);
    for (int32_t p = 0; p < o->policy_count; p++)
        policy[p] = o->policy[p].name;
    for (int i = 0; i < ST_OP_COUNT; i++)
        op[i] = st_operator_name((enum st_operator)i);
    struct st_result_facts facts = {
        .backend = replay->ops->name,
        .device = replay->info.device,
        .model = replay->model.name,
        .graph_mode = st_mode_request_name(o->mode),
        .passes = passes,
        .error_note = replay->info.simulated ? replay->info.error_note : NULL,
        .simulated = replay->info.simulated,
        .buffer_count = replay->info.buffers.layer_buffers,
        .layer_count = replay->model.layer_count,
        .policy_count = o->policy_count,
        .policy = policy,
        .operator_count = ST_OP_COUNT,
        .operator_name = op,
    };
    ST_TRY(st_result_run(replay->result, &facts, run_id, err));
    int32_t buffers = replay->info.buffers.layer_buffers, most = 0;
    for (int k = 0; k < ST_LAYER_KINDS; k++)
        most = replay->model.kind_count[k] > most ? replay->model.kind_count[k] : most;
    if (buffers > 0 && pass_mask != 1u << ST_PASS_COUNT && buffers < most)
        st_log(ST_LOG_INFO, "up to %d layers of a kind share %d sets of buffers", most, buffers);
    return 0;
}

/* ---- storing */

static bool has_rule(const struct st_policy *policy, const struct st_step_shape *shape) {
    return st_policy_c128_launch(policy, shape->padded_token_count) == ST_C128_LAUNCH_SKIP_EMPTY;
}

/* costs: [MAX_BATCH + 1] by batch size; samples 0: not measured. */
static int predicate_cost(struct st_replay *replay, struct st_predicate_cost *costs,
                          const struct st_step *step, int64_t *ps, struct st_error *err) {
    int32_t n = step->request_count < MAX_BATCH ? step->request_count : MAX_BATCH;
    struct st_predicate_cost *cost = &costs[n];
    if (cost->samples == 0) {
        st_predicate_measure(step->num_computed_tokens, step->query_len, step->request_count, cost);
        ST_TRY(st_result_predicate(replay->result, n, cost->median_ps, cost->p10_ps, cost->p90_ps,
                                   cost->samples, err));
    }
    *ps = cost->median_ps;
    return 0;
}

static int store_step(struct st_replay *replay, const struct st_walk_step *at, void *user,
                      struct st_error *err) {
    const struct st_replay_options *o = replay->options;
    for (int32_t p = 0; p < o->policy_count; p++) {
        struct st_plan *plan = replay->plan[p];
        const struct st_measured *m = st_replay_measured(replay, at->index, p);
        ST_TRY(st_plan_make(&replay->model, at->step, &at->shape, &o->policy[p], o->ops_mask, false,
                            plan, err));
        struct st_result_step row = {
            .step_id = at->step->step_id,
            .policy = p,
            .graph_mode = at->shape.mode,
            .padded_token_count = at->shape.padded_token_count,
            .launches = plan->launches,
            .skipped = plan->skipped,
            .could_skip = plan->could_skip,
            .step_ns = m->step_ns,
            .kernel_ns = m->kernel_ns,
            .predicate_ps = ST_UNKNOWN,
            .op_kernel_ns = m->op_kernel_ns,
        };
        if (has_rule(&o->policy[p], &at->shape) && at->shape.request_count > 0 &&
            st_step_has_cpu_starts(at->step))
            ST_TRY(predicate_cost(replay, user, at->step, &row.predicate_ps, err));
        ST_TRY(st_result_step(replay->result, &row, err));
    }
    return 0;
}

/* The mean difference to the first policy that the paired samples would show at 95 % two-sided and
 * 80 % power: (1.96 + 0.84) standard errors. */
static int64_t noise_floor_ns(const struct st_replay *replay) {
    if (replay->info.simulated || replay->paired_freedom == 0)
        return ST_UNKNOWN;
    double variance = replay->paired_square_sum / (double)replay->paired_freedom;
    return (int64_t)ceil(2.8 * sqrt(variance / (double)replay->paired_count));
}

static int store_run(struct st_replay *replay, unsigned pass_mask, struct st_error *err) {
    struct st_predicate_cost *costs = calloc(MAX_BATCH + 1, sizeof *costs);
    if (!costs)
        return ST_FAIL_NOMEM(err);
    int rc = st_replay_walk(replay, false, "store", store_step, costs, err);
    free(costs);
    if (rc != 0)
        return rc;
    char *text = options_text(replay, pass_mask);
    rc = st_result_run_end(replay->result, noise_floor_ns(replay), text, err);
    free(text);
    return rc;
}

/* ---- the run */

static int run_passes(struct st_replay *replay, unsigned pass_mask, int64_t *run_id,
                      struct st_error *err) {
    /* Times first: what a profiler leaves behind in the process cannot touch them. */
    static const struct {
        enum st_pass pass;
        int (*run)(struct st_replay *, struct st_error *);
    } passes[] = {
        {ST_PASS_TIME, st_replay_pass_time},
        {ST_PASS_COUNT, st_replay_pass_count},
        {ST_PASS_VERIFY, st_replay_pass_verify},
    };
    bool begun = false;
    for (size_t i = 0; i < sizeof passes / sizeof passes[0]; i++) {
        if (!(pass_mask >> passes[i].pass & 1u))
            continue;
        ST_TRY(st_replay_open_backend(replay, passes[i].pass, err));
        if (replay->info.simulated)
            replay->repeat = 1; /* the same every time */
        if (!begun)
            ST_TRY(begin_run(replay, pass_mask, run_id, err));
        begun = true;
        ST_TRY(passes[i].run(replay, err));
        st_replay_close_backend(replay);
    }
    return store_run(replay, pass_mask, err);
}

static int allocate(struct st_replay *replay, struct st_error *err) {
    int32_t policies = replay->options->policy_count;
    size_t count = (size_t)replay->survey.step_count * (size_t)policies;
    for (int32_t p = 0; p < policies; p++)
        if (!(replay->plan[p] = calloc(1, sizeof *replay->plan[p])))
            return ST_FAIL_NOMEM(err);
    replay->measured = malloc(count * sizeof *replay->measured);
    if (!replay->measured)
        return ST_FAIL_NOMEM(err);
    for (size_t i = 0; i < count; i++) {
        replay->measured[i].step_ns = replay->measured[i].kernel_ns = ST_UNKNOWN;
        for (int op = 0; op < ST_OP_COUNT; op++)
            replay->measured[i].op_kernel_ns[op] = ST_UNKNOWN;
    }
    return 0;
}

int st_replay_result_path(const struct st_replay_options *o, char *out, size_t size,
                          struct st_error *err) {
    int length;
    if (o->result_path) {
        length = snprintf(out, size, "%s", o->result_path);
    } else {
        size_t stem = strlen(o->tape_path);
        if (stem > 5 && strcmp(o->tape_path + stem - 5, ".tape") == 0)
            stem -= 5;
        length = snprintf(out, size, "%.*s.runs.tape", (int)stem, o->tape_path);
    }
    if (length < 1 || (size_t)length >= size)
        return ST_FAIL(err, ST_ERR_USAGE, "-o: the path is empty or too long");
    return 0;
}

static int run(struct st_replay *replay, struct st_replay_outcome *outcome, struct st_error *err) {
    const struct st_replay_options *o = replay->options;
    unsigned pass_mask = 0;
    ST_TRY(st_tape_open(o->tape_path, &replay->tape, err));
    if (st_tape_is_result(replay->tape))
        return ST_FAIL(err, ST_ERR_INPUT, "%s: is a result tape; the tape it came from expected",
                       o->tape_path);
    ST_TRY(choose_passes(replay, &pass_mask, err));
    ST_TRY(load_model(replay, err));
    ST_TRY(st_replay_range(replay->options, replay->tape, &replay->first_step, &replay->last_step,
                           err));
    ST_TRY(replay->ops->probe(err));
    ST_TRY(survey_tape(replay, err));
    replay->repeat = o->repeat > 0 ? o->repeat : DEFAULT_REPEAT;
    choose_sample(replay);
    ST_TRY(allocate(replay, err));
    ST_TRY(st_replay_result_path(o, outcome->result_path, sizeof outcome->result_path, err));
    ST_TRY(st_result_open(outcome->result_path, replay->tape, &replay->result, err));
    log_notes(replay);
    ST_TRY(run_passes(replay, pass_mask, &outcome->run_id, err));
    ST_TRY(st_result_operation(replay->result, o->argc, o->argv, err));
    struct st_result *result = replay->result;
    replay->result = NULL; /* gone, whatever _finish says */
    ST_TRY(st_result_finish(result, err));
    outcome->hazard_count = replay->hazard_count;
    return 0;
}

static void free_plan(struct st_plan *plan) {
    if (plan)
        st_plan_fini(plan);
    free(plan);
}

/* What is wrong in a step is found far from where the tape's name is known. */
static int name_tape(const char *path, int rc, struct st_error *err) {
    if (rc != ST_ERR_INPUT || !err || strncmp(err->msg, "step ", 5) != 0)
        return rc;
    struct st_error plain = *err;
    return ST_FAIL_NATIVE(err, plain.code, plain.native, "%s: %s", path, plain.msg);
}

int st_replay_run(const struct st_replay_options *options, struct st_replay_outcome *outcome,
                  struct st_error *err) {
    struct st_replay *replay = calloc(1, sizeof *replay);
    if (!replay)
        return ST_FAIL_NOMEM(err);
    memset(outcome, 0, sizeof *outcome);
    replay->options = options;
    replay->ops = options->ops ? options->ops : st_backend_find(options->backend);
    int rc = replay->ops ? run(replay, outcome, err)
                         : ST_FAIL(err, ST_ERR_USAGE,
                                   "--backend: there is no backend '%s'; backends are cpu, sim, "
                                   "cuda, engine",
                                   options->backend);
    st_progress_end();
    st_replay_close_backend(replay);
    st_result_abort(replay->result);
    st_tape_close(replay->tape);
    for (int32_t p = 0; p < ST_MAX_POLICIES; p++)
        free_plan(replay->plan[p]);
    free(replay->measured);
    free(replay);
    return name_tape(options->tape_path, rc, err);
}
