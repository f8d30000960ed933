/* SPDX-License-Identifier: Apache-2.0 */
#include "replay/engine.h"

#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "replay/model.h"
#include "replay/plan.h"
#include "traces/base/log.h"
#include "traces/format/launch_family.h"
#include "traces/format/launches.h"
#include "traces/format/reader.h"
#include "traces/format/result.h"

enum { MODES = 4, MAX_OPERATORS = 64, MAX_FAMILIES = 64 };

struct family_sum {
    int64_t launches, untimed, kernel_ns;
};

struct engine {
    const struct st_replay_options *options;
    struct st_tape *tape;
    struct st_launches *launches;
    struct st_result *result;
    struct st_model model;
    char no_plan[256]; /* why there is none; "" */
    struct st_plan plan;
    int64_t first_step, last_step;
    /* Operators of the run: steptape's, then one for each opaque family. */
    const char *operator_name[MAX_OPERATORS];
    int32_t operator_count;
    int32_t operator_of[MAX_FAMILIES]; /* by family */
    struct family_sum sum[MODES][MAX_FAMILIES];
    int64_t mode_steps[MODES], mode_step_ns[MODES], mode_timed[MODES];
    int64_t recorded_steps, silent_steps; /* with recorded launches; without */
};

/* What one step launched. */
struct counts {
    int32_t launches[MAX_OPERATORS], zero[MAX_OPERATORS];
    int64_t kernel_ns[MAX_OPERATORS], total_ns;
};

static void name_operators(struct engine *e) {
    for (int op = 0; op < ST_OP_COUNT; op++)
        e->operator_name[e->operator_count++] = st_operator_name((enum st_operator)op);
    for (int32_t f = 0; f < st_launch_family_count(); f++) {
        const struct st_launch_family *family = st_launch_family_at(f);
        int32_t op = family->op ? st_operator_find(family->op) : -1;
        if (op < 0) { /* opaque; an operator that this version has not */
            op = e->operator_count;
            e->operator_name[e->operator_count++] = family->family;
        }
        e->operator_of[f] = op;
    }
}

static int load_plan(struct engine *e, struct st_error *err) {
    struct st_error inner = {0};
    int rc = st_model_load(e->options->model, st_tape_header(e->tape), &e->model, &inner);
    if (rc && e->options->model)
        return ST_FAIL_NATIVE(err, rc, inner.native, "%s", inner.msg);
    if (rc)
        snprintf(e->no_plan, sizeof e->no_plan, "%.255s", inner.msg);
    for (int32_t i = 0; !rc && i < e->options->set_count; i++)
        ST_TRY(st_model_set(&e->model, e->options->set[i], err));
    return 0;
}

static int open_launches(struct engine *e, struct st_error *err) {
    int rc = st_launches_open(st_tape_db(e->tape), e->options->tape_path, &e->launches, err);
    if (rc == ST_DONE)
        return ST_FAIL(err, ST_ERR_INPUT,
                       "%s: holds no recorded launches; `steptape record --launches=node` records "
                       "them",
                       e->options->tape_path);
    return rc;
}

static int begin_run(struct engine *e, int64_t *run_id, struct st_error *err) {
    const struct st_replay_options *o = e->options;
    const char *policy[ST_MAX_POLICIES + 1] = {ST_ENGINE_POLICY};
    const struct st_header *header = st_tape_header(e->tape);
    bool planned = !e->no_plan[0];
    for (int32_t p = 0; p < o->policy_count; p++)
        policy[1 + p] = o->policy[p].name;
    const struct st_result_facts facts = {
        .backend = ST_ENGINE_BACKEND,
        .device = header->device,
        .model = planned ? e->model.name : header->model,
        .graph_mode = st_mode_request_name(ST_MODE_TAPE),
        .passes = "recorded",
        .layer_count = planned ? e->model.layer_count : 0,
        .policy_count = 1 + (planned ? o->policy_count : 0),
        .policy = policy,
        .operator_count = e->operator_count,
        .operator_name = e->operator_name,
    };
    return st_result_run(e->result, &facts, run_id, err);
}

/* ---- steps */

static int mode_index(const struct st_step *step) {
    return step->graph_mode >= 0 && step->graph_mode < MODES - 1 ? (int)step->graph_mode
                                                                 : MODES - 1;
}

static int count_step(struct engine *e, const struct st_step *step, struct counts *c,
                      bool *recorded, struct st_error *err) {
    const struct st_launch_record *list;
    int64_t count;
    int mode = mode_index(step);
    memset(c, 0, sizeof *c);
    ST_TRY(st_launches_step(e->launches, step->step_id, &list, &count, err));
    *recorded = count > 0;
    for (int64_t i = 0; i < count; i++) {
        int32_t family = st_launches_family(e->launches, list[i].site);
        const struct st_launch_site *site = st_launches_site(e->launches, list[i].site);
        struct family_sum *sum = &e->sum[mode][family];
        int32_t op = e->operator_of[family];
        if (site->kind == ST_LAUNCH_API)
            continue; /* the host's side of a launch that is counted already */
        sum->launches++;
        sum->untimed += !st_launch_is_timed(&list[i]);
        st_launch_add_time(&sum->kernel_ns, &list[i]);
        c->launches[op]++;
        st_launch_add_time(&c->kernel_ns[op], &list[i]);
        st_launch_add_time(&c->total_ns, &list[i]);
    }
    return 0;
}

static int store_recorded(struct engine *e, const struct st_step *step, const struct counts *c,
                          struct st_error *err) {
    int mode = mode_index(step);
    const struct st_result_step row = {
        .step_id = step->step_id,
        .policy = 0,
        .graph_mode = step->graph_mode,
        .padded_token_count =
            (int32_t)(step->padded_token_count == ST_UNKNOWN ? step->token_count
                                                             : step->padded_token_count),
        .launches = c->launches,
        .skipped = c->zero, /* what an engine did is what it did */
        .could_skip = c->zero,
        .step_ns = step->duration_ns,
        .kernel_ns = c->total_ns,
        .predicate_ps = ST_UNKNOWN,
        .op_kernel_ns = c->kernel_ns,
    };
    e->mode_steps[mode]++;
    if (step->duration_ns != ST_UNKNOWN) {
        e->mode_timed[mode]++;
        e->mode_step_ns[mode] =
            (int64_t)((uint64_t)e->mode_step_ns[mode] + (uint64_t)step->duration_ns);
    }
    return st_result_step(e->result, &row, err);
}

static int store_plans(struct engine *e, const struct st_step *step, struct counts *c,
                       struct st_error *err) {
    struct st_step_shape shape;
    st_step_shape_make(&e->model, step, ST_MODE_TAPE, &shape);
    for (int32_t p = 0; p < e->options->policy_count; p++) {
        int32_t skipped[MAX_OPERATORS] = {0}, could[MAX_OPERATORS] = {0};
        ST_TRY(st_plan_make(&e->model, step, &shape, &e->options->policy[p], e->options->ops_mask,
                            false, &e->plan, err));
        memset(c->launches, 0, sizeof c->launches);
        memcpy(c->launches, e->plan.launches, ST_OP_COUNT * sizeof c->launches[0]);
        memcpy(skipped, e->plan.skipped, ST_OP_COUNT * sizeof skipped[0]);
        memcpy(could, e->plan.could_skip, ST_OP_COUNT * sizeof could[0]);
        const struct st_result_step row = {.step_id = step->step_id,
                                           .policy = 1 + p,
                                           .graph_mode = shape.mode,
                                           .padded_token_count = shape.padded_token_count,
                                           .launches = c->launches,
                                           .skipped = skipped,
                                           .could_skip = could,
                                           .step_ns = ST_UNKNOWN,
                                           .kernel_ns = ST_UNKNOWN,
                                           .predicate_ps = ST_UNKNOWN};
        ST_TRY(st_result_step(e->result, &row, err));
    }
    return 0;
}

static int walk(struct engine *e, struct st_error *err) {
    struct st_cursor *cursor = NULL;
    const struct st_step *step;
    struct counts counts;
    int rc;
    ST_TRY(st_cursor_open(e->tape, 0, &cursor, err));
    rc = st_cursor_seek(cursor, e->first_step, err);
    while (rc == 0 && (rc = st_cursor_next(cursor, &step, err)) == 0) {
        bool recorded = false;
        if (step->step_id > e->last_step)
            break;
        if (st_interrupted()) {
            rc = ST_FAIL(err, ST_ERR_INTERRUPTED, "interrupted; no run was stored");
            break;
        }
        st_progress("engine", step->step_id - e->first_step, e->last_step - e->first_step + 1);
        rc = count_step(e, step, &counts, &recorded, err);
        e->recorded_steps += recorded;
        e->silent_steps += !recorded;
        if (rc == 0 && recorded)
            rc = store_recorded(e, step, &counts, err);
        if (rc == 0 && recorded && !e->no_plan[0])
            rc = store_plans(e, step, &counts, err);
    }
    st_progress_end();
    st_cursor_close(cursor);
    return rc == ST_DONE ? 0 : rc;
}

/* ---- the end of the run */

static int store_families(struct engine *e, struct st_error *err) {
    for (int mode = 0; mode < MODES; mode++) {
        for (int32_t f = 0; f < st_launch_family_count(); f++) {
            const struct family_sum *sum = &e->sum[mode][f];
            const struct st_launch_family *family = st_launch_family_at(f);
            if (sum->launches == 0)
                continue;
            const struct st_result_family row = {
                .graph_mode = mode == MODES - 1 ? ST_GRAPH_MODE_UNKNOWN : (enum st_graph_mode)mode,
                .family = family->family,
                .op = family->op,
                .steps = e->mode_steps[mode],
                .step_ns =
                    e->mode_timed[mode] == e->mode_steps[mode] ? e->mode_step_ns[mode] : ST_UNKNOWN,
                .launches = sum->launches,
                .untimed = sum->untimed,
                .kernel_ns = sum->kernel_ns,
            };
            ST_TRY(st_result_family(e->result, &row, err));
        }
    }
    return 0;
}

static int store_options(struct engine *e, struct st_error *err) {
    json_t *root = json_object();
    json_object_set_new(root, "first_step", json_integer(e->first_step));
    json_object_set_new(root, "last_step", json_integer(e->last_step));
    json_object_set_new(root, "steps", json_integer(e->recorded_steps));
    json_object_set_new(root, "steps_without_launches", json_integer(e->silent_steps));
    json_object_set_new(root, "no_plan", e->no_plan[0] ? json_string(e->no_plan) : json_null());
    char *text = json_dumps(root, JSON_COMPACT);
    json_decref(root);
    int rc = text ? st_result_run_end(e->result, ST_UNKNOWN, text, err) : ST_FAIL_NOMEM(err);
    free(text);
    return rc;
}

static int run(struct engine *e, struct st_replay_outcome *outcome, struct st_error *err) {
    const struct st_replay_options *o = e->options;
    ST_TRY(st_tape_open(o->tape_path, &e->tape, err));
    if (st_tape_is_result(e->tape))
        return ST_FAIL(err, ST_ERR_INPUT, "%s: is a result tape; the tape it came from expected",
                       o->tape_path);
    if (o->pass_mask || o->poison || o->device || o->shard_count > 1)
        return ST_FAIL(err, ST_ERR_USAGE,
                       "--backend engine: takes no --pass, --poison, --device or --shard: nothing "
                       "is executed");
    name_operators(e);
    ST_TRY(open_launches(e, err));
    ST_TRY(load_plan(e, err));
    ST_TRY(st_replay_range(o, e->tape, &e->first_step, &e->last_step, err));
    ST_TRY(st_replay_result_path(o, outcome->result_path, sizeof outcome->result_path, err));
    ST_TRY(st_result_open(outcome->result_path, e->tape, &e->result, err));
    ST_TRY(begin_run(e, &outcome->run_id, err));
    ST_TRY(walk(e, err));
    if (e->recorded_steps == 0)
        return ST_FAIL(err, ST_ERR_INPUT, "%s: none of these steps has recorded launches",
                       o->tape_path);
    ST_TRY(store_families(e, err));
    ST_TRY(st_result_launches(e->result, e->tape, err));
    ST_TRY(store_options(e, err));
    ST_TRY(st_result_operation(e->result, o->argc, o->argv, err));
    struct st_result *result = e->result;
    e->result = NULL; /* gone, whatever _finish says */
    if (e->no_plan[0])
        st_log(ST_LOG_INFO, "no plan beside it: %s", e->no_plan);
    return st_result_finish(result, err);
}

int st_engine_run(const struct st_replay_options *options, struct st_replay_outcome *outcome,
                  struct st_error *err) {
    struct engine *e = calloc(1, sizeof *e);
    if (!e)
        return ST_FAIL_NOMEM(err);
    memset(outcome, 0, sizeof *outcome);
    e->options = options;
    int rc = run(e, outcome, err);
    st_result_abort(e->result);
    st_launches_close(e->launches);
    st_tape_close(e->tape);
    st_plan_fini(&e->plan);
    free(e);
    return rc;
}
