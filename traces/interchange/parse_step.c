/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A line of the interchange format that holds a step: its values, and then the rules between this
 * step and those before it.
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "traces/interchange/parse_i.h"

enum {
    KEY_STEP,
    KEY_T_NS,
    KEY_DUR_NS,
    KEY_MODE,
    KEY_PADDED_TOKENS,
    KEY_PADDED_REQS,
    KEY_REQ,
    KEY_QLEN,
    KEY_START,
    KEY_CPU_STARTS,
    KEY_NEW,
    KEY_PROMPT_LEN,
    KEY_FINISHED,
    KEY_PREEMPTED,
    KEY_RESUMED,
    KEY_DRAFT,
    KEY_BLOCKS,
    KEY_REPLACE,
    KEY_CHECK,
    KEY_ZEROED,
    KEY_DROPPED,
    KEY_COUNT
};

static const struct st_key step_keys[KEY_COUNT] = {
    {"step", true},           {"t_ns", false},        {"dur_ns", false}, {"mode", false},
    {"padded_tokens", false}, {"padded_reqs", false}, {"req", true},     {"qlen", true},
    {"start", true},          {"cpu_starts", false},  {"new", true},     {"prompt_len", true},
    {"finished", true},       {"preempted", true},    {"resumed", true}, {"draft", false},
    {"blocks", true},         {"replace", false},     {"check", false},  {"zeroed", false},
    {"dropped", false},
};

static int check_list(struct st_interchange *in, json_t *list, struct st_place place,
                      struct st_error *err) {
    if (!json_is_array(list))
        return st_bad(in, err, place, "is %s, a list was expected", st_json_type(list));
    if (json_array_size(list) > INT32_MAX)
        return st_bad(in, err, place, "holds more than 2^31 - 1 values");
    return 0;
}

/* A list of as many integers of min..max as there are requests. */
static int take_row_values(struct st_interchange *in, json_t *list, const char *key, int64_t min,
                           int64_t max, struct st_array *to, struct st_error *err) {
    ST_TRY(check_list(in, list, ST_PLACE_KEY(key), err));
    size_t count = json_array_size(list);
    if (count != (size_t)in->step.request_count)
        return st_bad(in, err, ST_PLACE_KEY(key), "holds %zu values, %d was expected, as in req",
                      count, in->step.request_count);
    ST_TRY(st_array_reserve(to, count * sizeof(int32_t), err));
    int32_t *values = to->data;
    for (size_t i = 0; i < count; i++) {
        int64_t n;
        ST_TRY(st_take_int(in, json_array_get(list, i), ST_PLACE_AT(key, (int64_t)i), min, max, 0,
                           &n, err));
        values[i] = (int32_t)n;
    }
    return 0;
}

static int take_requests(struct st_interchange *in, json_t *list, const char *key,
                         struct st_array *to, int32_t *count, struct st_error *err) {
    ST_TRY(check_list(in, list, ST_PLACE_KEY(key), err));
    size_t n = json_array_size(list);
    ST_TRY(st_array_reserve(to, n * sizeof(int64_t), err));
    int64_t *values = to->data;
    for (size_t i = 0; i < n; i++)
        ST_TRY(st_take_int(in, json_array_get(list, i), ST_PLACE_AT(key, (int64_t)i), 0, INT64_MAX,
                           0, &values[i], err));
    *count = (int32_t)n;
    return 0;
}

static int take_request_list(struct st_interchange *in, json_t *list, const char *key,
                             struct st_array *to, struct st_request_list *out,
                             struct st_error *err) {
    ST_TRY(take_requests(in, list, key, to, &out->count, err));
    out->request_id = to->data;
    return 0;
}

/* Block ids are most of a recording: the good path is short. */
static int take_ids(struct st_interchange *in, json_t *list, int32_t group, int32_t row,
                    int32_t *to, struct st_error *err) {
    size_t count = json_array_size(list);
    for (size_t i = 0; i < count; i++) {
        json_t *value = json_array_get(list, i);
        int64_t n = json_integer_value(value); /* 0 for what is no integer */
        if (n < 0 || n > INT32_MAX || !json_is_integer(value))
            ST_TRY(st_take_int(in, value, ST_PLACE("blocks", {group, row, (int64_t)i}), 0,
                               INT32_MAX, 0, &n, err));
        to[i] = (int32_t)n;
    }
    return 0;
}

static int take_group_blocks(struct st_interchange *in, json_t *rows, int32_t group,
                             struct st_error *err) {
    ST_TRY(check_list(in, rows, ST_PLACE_AT("blocks", group), err));
    size_t count = json_array_size(rows);
    if (count != (size_t)in->step.request_count)
        return st_bad(in, err, ST_PLACE_AT("blocks", group),
                      "holds %zu lists, %d was expected, as in req", count, in->step.request_count);
    ST_TRY(st_array_reserve(&in->offset[group], (count + 1) * sizeof(int32_t), err));
    int32_t *offset = in->offset[group].data;
    size_t total = 0;
    offset[0] = 0;
    for (size_t row = 0; row < count; row++) {
        json_t *ids = json_array_get(rows, row);
        struct st_place place = ST_PLACE("blocks", {group, (int64_t)row, -1});
        ST_TRY(check_list(in, ids, place, err));
        size_t size = json_array_size(ids);
        if (size > INT32_MAX - total)
            return st_bad(in, err, place, "brings the group above 2^31 - 1 block ids");
        ST_TRY(st_array_reserve(&in->block_id[group], (total + size) * sizeof(int32_t), err));
        ST_TRY(take_ids(in, ids, group, (int32_t)row, (int32_t *)in->block_id[group].data + total,
                        err));
        total += size;
        offset[row + 1] = (int32_t)total;
    }
    in->blocks[group].offset = offset;
    in->blocks[group].block_id = in->block_id[group].data;
    return 0;
}

static int take_blocks(struct st_interchange *in, json_t *groups, struct st_error *err) {
    ST_TRY(check_list(in, groups, ST_PLACE_KEY("blocks"), err));
    size_t count = json_array_size(groups);
    if (count != (size_t)in->header.group_count)
        return st_bad(in, err, ST_PLACE_KEY("blocks"),
                      "holds %zu groups, %d was expected, as in the header", count,
                      in->header.group_count);
    for (size_t g = 0; g < count; g++)
        ST_TRY(take_group_blocks(in, json_array_get(groups, g), (int32_t)g, err));
    in->step.group_count = (int32_t)count;
    in->step.blocks = in->blocks;
    return 0;
}

/* What the members may hold is the engine's own business, as far as it is lists of numbers: only
 * the outermost type is looked at. */
static int take_check(struct st_interchange *in, json_t *check, struct st_error *err) {
    json_t *value[ST_CHECK_KEYS];
    if (!check)
        return 0;
    ST_TRY(st_take_keys(in, check, "check", st_check_keys, ST_CHECK_KEYS, value, err));
    for (int i = 0; i < ST_CHECK_KEYS; i++) {
        char name[40];
        snprintf(name, sizeof name, "check.%s", st_check_keys[i].name);
        if (value[i])
            ST_TRY(check_list(in, value[i], ST_PLACE_KEY(name), err));
    }
    if (in->options.no_check)
        return 0;
    if (in->options.ignore_unknown) {
        const char *key;
        json_t *member;
        void *next;
        json_object_foreach_safe(check, next, key, member) {
            if (st_find_key(st_check_keys, ST_CHECK_KEYS, key) == ST_CHECK_KEYS)
                json_object_del(check, key);
        }
    }
    in->check_json = json_dumps(check, JSON_COMPACT);
    return in->check_json ? 0 : ST_FAIL_NOMEM(err);
}

static int take_mode(struct st_interchange *in, json_t *value, struct st_error *err) {
    const char *name;
    in->step.graph_mode = ST_GRAPH_MODE_UNKNOWN;
    ST_TRY(st_take_string(in, value, ST_PLACE_KEY("mode"), &name, err));
    if (!name)
        return 0;
    for (int mode = ST_GRAPH_MODE_NONE; mode <= ST_GRAPH_MODE_FULL; mode++) {
        if (strcmp(st_graph_mode_name(mode), name) == 0) {
            in->step.graph_mode = mode;
            return 0;
        }
    }
    char printable[32];
    st_printable(printable, sizeof printable, name, strlen(name));
    return st_bad(in, err, ST_PLACE_KEY("mode"),
                  "is \"%s\"; NONE, PIECEWISE, FULL or null was expected", printable);
}

static int take_numbers(struct st_interchange *in, json_t **value, struct st_error *err) {
    struct st_step *step = &in->step;
    ST_TRY(st_take_int(in, value[KEY_T_NS], ST_PLACE_KEY("t_ns"), INT64_MIN + 1, INT64_MAX,
                       ST_UNKNOWN, &step->start_ns, err));
    ST_TRY(st_take_int(in, value[KEY_DUR_NS], ST_PLACE_KEY("dur_ns"), 0, INT64_MAX, ST_UNKNOWN,
                       &step->duration_ns, err));
    ST_TRY(st_take_int(in, value[KEY_PADDED_TOKENS], ST_PLACE_KEY("padded_tokens"), 0, INT32_MAX,
                       ST_UNKNOWN, &step->padded_token_count, err));
    ST_TRY(st_take_int(in, value[KEY_PADDED_REQS], ST_PLACE_KEY("padded_reqs"), 0, INT32_MAX,
                       ST_UNKNOWN, &step->padded_request_count, err));
    ST_TRY(st_take_int(in, value[KEY_ZEROED], ST_PLACE_KEY("zeroed"), 0, INT64_MAX - 1, ST_UNKNOWN,
                       &step->zeroed, err));
    ST_TRY(st_take_int(in, value[KEY_DROPPED], ST_PLACE_KEY("dropped"), 0, ST_STEP_ID_MAX, 0,
                       &step->dropped_before, err));
    ST_TRY(st_take_bool(in, value[KEY_CPU_STARTS], ST_PLACE_KEY("cpu_starts"), &step->cpu_starts,
                        err));
    return take_mode(in, value[KEY_MODE], err);
}

static int take_rows(struct st_interchange *in, json_t **value, struct st_error *err) {
    struct st_step *step = &in->step;
    ST_TRY(take_requests(in, value[KEY_REQ], "req", &in->request_id, &step->request_count, err));
    ST_TRY(take_row_values(in, value[KEY_QLEN], "qlen", 1, INT32_MAX, &in->query_len, err));
    ST_TRY(take_row_values(in, value[KEY_START], "start", 0, INT32_MAX, &in->num_computed_tokens,
                           err));
    step->request_id = in->request_id.data;
    step->query_len = in->query_len.data;
    step->num_computed_tokens = in->num_computed_tokens.data;
    step->draft = NULL;
    if (value[KEY_DRAFT]) {
        ST_TRY(take_row_values(in, value[KEY_DRAFT], "draft", 0, INT32_MAX - 1, &in->draft, err));
        step->draft = in->draft.data;
    }
    step->token_count = 0;
    for (int32_t i = 0; i < step->request_count; i++) {
        int64_t end = (int64_t)step->num_computed_tokens[i] + step->query_len[i];
        if (end > INT32_MAX)
            return st_bad(in, err, ST_PLACE_AT("start", i),
                          "start + qlen is %" PRId64 ", less than 2^31 was expected", end);
        step->token_count += step->query_len[i];
    }
    return 0;
}

static int take_events(struct st_interchange *in, json_t **value, struct st_error *err) {
    struct st_step *step = &in->step;
    ST_TRY(take_request_list(in, value[KEY_NEW], "new", &in->new_id, &step->new_requests, err));
    json_t *lengths = value[KEY_PROMPT_LEN];
    ST_TRY(check_list(in, lengths, ST_PLACE_KEY("prompt_len"), err));
    size_t count = json_array_size(lengths);
    if (count != (size_t)step->new_requests.count)
        return st_bad(in, err, ST_PLACE_KEY("prompt_len"),
                      "holds %zu values, %d was expected, as in new", count,
                      step->new_requests.count);
    ST_TRY(st_array_reserve(&in->new_prompt_len, count * sizeof(int32_t), err));
    int32_t *prompt_len = in->new_prompt_len.data;
    for (size_t i = 0; i < count; i++) {
        int64_t n;
        json_t *length = json_array_get(lengths, i);
        ST_TRY(st_take_int(in, json_is_null(length) ? NULL : length,
                           ST_PLACE_AT("prompt_len", (int64_t)i), 0, INT32_MAX, -1, &n, err));
        prompt_len[i] = (int32_t)n;
    }
    step->new_prompt_len = prompt_len;
    ST_TRY(take_request_list(in, value[KEY_FINISHED], "finished", &in->finished, &step->finished,
                             err));
    ST_TRY(take_request_list(in, value[KEY_PREEMPTED], "preempted", &in->preempted,
                             &step->preempted, err));
    ST_TRY(take_request_list(in, value[KEY_RESUMED], "resumed", &in->resumed, &step->resumed, err));
    step->replaced = (struct st_request_list){-1, NULL};
    if (value[KEY_REPLACE])
        ST_TRY(take_request_list(in, value[KEY_REPLACE], "replace", &in->replaced, &step->replaced,
                                 err));
    return 0;
}

/* ---- rules between steps */

static int apply_rules(struct st_interchange *in, struct st_error *err) {
    const struct st_step *step = &in->step;
    struct st_rules_odd odd;
    struct st_rules_fault fault;
    int rc = st_rules_step(&in->rules, step, &odd, &fault);
    if (rc == ST_ERR_NOMEM)
        return ST_FAIL_NOMEM(err);
    if (rc)
        return st_bad(in, err, ST_PLACE_KEY(fault.place), "%s", fault.what);
    st_warn(in, ST_WARN_START_BELOW, "start", odd.start_below);
    st_warn(in, ST_WARN_MAX_MODEL_LEN, "start", odd.beyond_model_len);
    if (in->header.max_num_seqs >= 0 && step->request_count > in->header.max_num_seqs)
        st_warn(in, ST_WARN_MAX_NUM_SEQS, "req", 1);
    if (in->header.max_num_batched_tokens >= 0 &&
        step->token_count > in->header.max_num_batched_tokens)
        st_warn(in, ST_WARN_MAX_NUM_BATCHED_TOKENS, "qlen", 1);
    return 0;
}

int st_parse_step(struct st_interchange *in, json_t *root, struct st_error *err) {
    json_t *value[KEY_COUNT];
    if (!json_is_object(root))
        return st_bad(in, err, ST_PLACE_KEY(""),
                      "is %s, a step {\"step\":%" PRId64 ",...} was "
                      "expected",
                      st_json_type(root), in->next_step_id);
    ST_TRY(st_take_int(in, json_object_get(root, "step"), ST_PLACE_KEY("step"), 0, INT64_MAX, 0,
                       &in->step.step_id, err));
    if (json_object_get(root, "step")) {
        if (in->step.step_id != in->next_step_id)
            return st_bad(in, err, ST_PLACE_KEY("step"),
                          "is %" PRId64 ", %" PRId64 " was expected: steps are consecutive from 0",
                          in->step.step_id, in->next_step_id);
        in->step_id = in->step.step_id;
    }
    ST_TRY(st_take_keys(in, root, "", step_keys, KEY_COUNT, value, err));
    ST_TRY(take_rows(in, value, err));
    ST_TRY(take_numbers(in, value, err));
    ST_TRY(take_events(in, value, err));
    ST_TRY(take_blocks(in, value[KEY_BLOCKS], err));
    ST_TRY(apply_rules(in, err));
    ST_TRY(take_check(in, value[KEY_CHECK], err));
    in->next_step_id++;
    return 0;
}
