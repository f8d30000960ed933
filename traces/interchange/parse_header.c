/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Line 1 of the interchange format: the engine, its limits and its KV cache groups.
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "traces/interchange/parse_i.h"

enum { FORMAT_VERSION = 1, MAX_MEMBERS = 4096 };

enum {
    KEY_KIND,
    KEY_VERSION,
    KEY_ENGINE,
    KEY_ENGINE_VERSION,
    KEY_RUNNER,
    KEY_DEVICE,
    KEY_MODEL,
    KEY_ARCHITECTURE,
    KEY_COMPRESS_RATIOS,
    KEY_MAX_MODEL_LEN,
    KEY_MAX_NUM_SEQS,
    KEY_MAX_NUM_BATCHED_TOKENS,
    KEY_NUM_BLOCKS,
    KEY_PREFIX_CACHING,
    KEY_ASYNC_SCHEDULING,
    KEY_SPECULATIVE,
    KEY_RANK,
    KEY_CLOCK,
    KEY_SCALE,
    KEY_GROUPS,
    KEY_COUNT
};

static const struct st_key header_keys[KEY_COUNT] = {
    {"kind", true},
    {"version", true},
    {"engine", false},
    {"engine_version", false},
    {"runner", false},
    {"device", false},
    {"model", false},
    {"architecture", false},
    {"compress_ratios", false},
    {"max_model_len", false},
    {"max_num_seqs", false},
    {"max_num_batched_tokens", false},
    {"num_blocks", false},
    {"prefix_caching", false},
    {"async_scheduling", false},
    {"speculative", false},
    {"rank", false},
    {"clock", false},
    {"scale", false},
    {"groups", true},
};

/* Before all else: a newer version has keys that this one calls unknown. */
static int check_kind_and_version(struct st_interchange *in, json_t *root, struct st_error *err) {
    if (!json_is_object(root))
        return st_bad(in, err, ST_PLACE_KEY(""),
                      "is %s, a header {\"kind\":\"steps\",...} was expected", st_json_type(root));
    json_t *kind = json_object_get(root, "kind");
    if (!kind)
        return st_bad(in, err, ST_PLACE_KEY("kind"),
                      "missing, a header {\"kind\":\"steps\",...} was expected");
    if (!json_is_string(kind))
        return st_bad(in, err, ST_PLACE_KEY("kind"), "is %s, \"steps\" was expected",
                      st_json_type(kind));
    if (strcmp(json_string_value(kind), "steps") != 0) {
        char printable[48];
        st_printable(printable, sizeof printable, json_string_value(kind),
                     json_string_length(kind));
        return st_bad(in, err, ST_PLACE_KEY("kind"), "is \"%s\", \"steps\" was expected",
                      printable);
    }
    json_t *version = json_object_get(root, "version");
    if (!json_is_integer(version))
        return st_bad(in, err, ST_PLACE_KEY("version"), "is %s, the integer %d was expected",
                      st_json_type(version), FORMAT_VERSION);
    if (json_integer_value(version) != FORMAT_VERSION)
        return st_bad(in, err, ST_PLACE_KEY("version"),
                      "is %" JSON_INTEGER_FORMAT ", this steptape reads version %d",
                      json_integer_value(version), FORMAT_VERSION);
    return 0;
}

enum { NAME_BYTES = 96 };

/* "groups[0].members[1]" and "kind": the place "groups[0].members[1].kind", its text in name. */
static struct st_place inside(char name[NAME_BYTES], const char *where, const char *key) {
    snprintf(name, NAME_BYTES, "%.60s.%.30s", where, key);
    return ST_PLACE_KEY(name);
}

static int parse_member(struct st_interchange *in, json_t *object, const char *where,
                        struct st_member *member, struct st_error *err) {
    enum { KIND, LAYERS, RATIO, WINDOW, PAGE_BYTES, COUNT };
    static const struct st_key keys[COUNT] = {
        {"kind", true}, {"layers", true}, {"ratio", true}, {"window", false}, {"page_bytes", false},
    };
    json_t *value[COUNT];
    ST_TRY(st_take_keys(in, object, where, keys, COUNT, value, err));
    char name[NAME_BYTES];
    const char *kind;
    ST_TRY(st_take_string(in, value[KIND], inside(name, where, keys[KIND].name), &kind, err));
    int k = ST_MEMBER_SWA;
    while (k <= ST_MEMBER_ATTENTION && strcmp(st_member_kind_name(k), kind) != 0)
        k++;
    if (k > ST_MEMBER_ATTENTION) {
        char printable[32];
        st_printable(printable, sizeof printable, kind, strlen(kind));
        return st_bad(in, err, inside(name, where, keys[KIND].name),
                      "is \"%s\"; swa, kv, indexer_kv, state, indexer_state or attention was "
                      "expected",
                      printable);
    }
    member->kind = k;
    int64_t n;
    ST_TRY(st_take_int(in, value[LAYERS], inside(name, where, keys[LAYERS].name), 0, INT32_MAX, -1,
                       &n, err));
    member->layers = (int32_t)n;
    ST_TRY(st_take_int(in, value[RATIO], inside(name, where, keys[RATIO].name), 0, INT32_MAX, -1,
                       &n, err));
    member->ratio = (int32_t)n;
    ST_TRY(st_take_int(in, value[WINDOW], inside(name, where, keys[WINDOW].name), 0, INT64_MAX, -1,
                       &member->window, err));
    return st_take_int(in, value[PAGE_BYTES], inside(name, where, keys[PAGE_BYTES].name), 0,
                       INT64_MAX, -1, &member->page_bytes, err);
}

/* *member points at where the group's members go and is moved behind them. */
static int parse_group(struct st_interchange *in, json_t *object, size_t index,
                       struct st_member **member, struct st_error *err) {
    enum { ID, BLOCK_SIZE, MEMBERS, COUNT };
    static const struct st_key keys[COUNT] = {
        {"id", true}, {"block_size", true}, {"members", true}};
    json_t *value[COUNT];
    char where[48], name[NAME_BYTES];
    snprintf(where, sizeof where, "groups[%zu]", index);
    ST_TRY(st_take_keys(in, object, where, keys, COUNT, value, err));
    struct st_group *group = &in->groups[index];
    int64_t n;
    snprintf(name, sizeof name, "%s.id", where);
    ST_TRY(st_take_int(in, value[ID], ST_PLACE_KEY(name), 0, INT32_MAX, -1, &n, err));
    if (n != (int64_t)index) /* `blocks` goes by position, and so does everybody after us */
        return st_bad(in, err, ST_PLACE_KEY(name),
                      "is %" PRId64 ", %zu was expected: ids are consecutive from 0", n, index);
    group->group_id = (int32_t)n;
    snprintf(name, sizeof name, "%s.block_size", where);
    ST_TRY(st_take_int(in, value[BLOCK_SIZE], ST_PLACE_KEY(name), 1, INT32_MAX, -1, &n, err));
    group->block_size = (int32_t)n;
    group->members = *member;
    group->member_count = (int32_t)json_array_size(value[MEMBERS]);
    if (group->member_count == 0) {
        snprintf(name, sizeof name, "%s.members", where);
        return st_bad(in, err, ST_PLACE_KEY(name), "is empty, at least one member was expected");
    }
    for (int32_t i = 0; i < group->member_count; i++) {
        snprintf(name, sizeof name, "%s.members[%d]", where, i);
        ST_TRY(parse_member(in, json_array_get(value[MEMBERS], (size_t)i), name, (*member)++, err));
    }
    return 0;
}

static int parse_groups(struct st_interchange *in, json_t *list, struct st_error *err) {
    if (!json_is_array(list))
        return st_bad(in, err, ST_PLACE_KEY("groups"), "is %s, a list was expected",
                      st_json_type(list));
    size_t count = json_array_size(list), member_count = 0;
    if (count > ST_MAX_GROUPS)
        return st_bad(in, err, ST_PLACE_KEY("groups"), "holds %zu groups, at most %d was expected",
                      count, ST_MAX_GROUPS);
    for (size_t i = 0; i < count; i++) {
        json_t *members = json_object_get(json_array_get(list, i), "members");
        if (members && !json_is_array(members)) {
            char name[48];
            snprintf(name, sizeof name, "groups[%zu].members", i);
            return st_bad(in, err, ST_PLACE_KEY(name), "is %s, a list was expected",
                          st_json_type(members));
        }
        member_count += json_array_size(members);
    }
    if (member_count > MAX_MEMBERS)
        return st_bad(in, err, ST_PLACE_KEY("groups"), "hold %zu members, at most %d was expected",
                      member_count, MAX_MEMBERS);
    in->groups = calloc(count ? count : 1, sizeof *in->groups);
    in->members = calloc(member_count ? member_count : 1, sizeof *in->members);
    if (!in->groups || !in->members)
        return ST_FAIL_NOMEM(err);
    struct st_member *member = in->members;
    for (size_t i = 0; i < count; i++)
        ST_TRY(parse_group(in, json_array_get(list, i), i, &member, err));
    in->header.groups = in->groups;
    in->header.group_count = (int32_t)count;
    return 0;
}

static int parse_compress_ratios(struct st_interchange *in, json_t *list, struct st_error *err) {
    in->header.compress_ratio_count = -1;
    if (!list)
        return 0;
    if (!json_is_array(list))
        return st_bad(in, err, ST_PLACE_KEY("compress_ratios"), "is %s, a list was expected",
                      st_json_type(list));
    size_t count = json_array_size(list);
    in->compress_ratios = calloc(count ? count : 1, sizeof *in->compress_ratios);
    if (!in->compress_ratios)
        return ST_FAIL_NOMEM(err);
    for (size_t i = 0; i < count; i++) {
        int64_t n;
        ST_TRY(st_take_int(in, json_array_get(list, i), ST_PLACE_AT("compress_ratios", (int64_t)i),
                           0, INT32_MAX, -1, &n, err));
        in->compress_ratios[i] = (int32_t)n;
    }
    in->header.compress_ratios = in->compress_ratios;
    in->header.compress_ratio_count = (int32_t)count;
    return 0;
}

static int parse_clock(struct st_interchange *in, json_t *object, struct st_error *err) {
    enum { MONOTONIC, REALTIME, COUNT };
    static const struct st_key keys[COUNT] = {{"monotonic_ns", false}, {"realtime_ns", false}};
    json_t *value[COUNT] = {NULL, NULL};
    if (object)
        ST_TRY(st_take_keys(in, object, "clock", keys, COUNT, value, err));
    ST_TRY(st_take_int(in, value[MONOTONIC], ST_PLACE_KEY("clock.monotonic_ns"), INT64_MIN + 1,
                       INT64_MAX, ST_UNKNOWN, &in->header.clock_monotonic_ns, err));
    return st_take_int(in, value[REALTIME], ST_PLACE_KEY("clock.realtime_ns"), INT64_MIN + 1,
                       INT64_MAX, ST_UNKNOWN, &in->header.clock_realtime_ns, err);
}

static int parse_strings(struct st_interchange *in, json_t **value, struct st_error *err) {
    struct st_header *h = &in->header;
    const struct {
        int key;
        const char **to;
    } strings[] = {
        {KEY_ENGINE, &h->engine}, {KEY_ENGINE_VERSION, &h->engine_version},
        {KEY_RUNNER, &h->runner}, {KEY_DEVICE, &h->device},
        {KEY_MODEL, &h->model},   {KEY_ARCHITECTURE, &h->architecture},
        {KEY_SCALE, &h->scale},
    };
    for (size_t i = 0; i < sizeof strings / sizeof strings[0]; i++)
        ST_TRY(st_take_string(in, value[strings[i].key],
                              ST_PLACE_KEY(header_keys[strings[i].key].name), strings[i].to, err));
    if (h->device && strcmp(h->device, "cuda") != 0 && strcmp(h->device, "cpu") != 0 &&
        strcmp(h->device, "none") != 0) {
        char printable[48];
        st_printable(printable, sizeof printable, h->device, strlen(h->device));
        return st_bad(in, err, ST_PLACE_KEY("device"), "is \"%s\"; cuda, cpu or none was expected",
                      printable);
    }
    json_t *speculative = value[KEY_SPECULATIVE];
    if (!speculative)
        return 0;
    if (!json_is_object(speculative))
        return st_bad(in, err, ST_PLACE_KEY("speculative"), "is %s, an object or null was expected",
                      st_json_type(speculative));
    h->speculative = in->speculative = json_dumps(speculative, JSON_COMPACT);
    return in->speculative ? 0 : ST_FAIL_NOMEM(err);
}

int st_parse_header(struct st_interchange *in, json_t *root, struct st_error *err) {
    json_t *value[KEY_COUNT];
    ST_TRY(check_kind_and_version(in, root, err));
    ST_TRY(st_take_keys(in, root, "", header_keys, KEY_COUNT, value, err));
    struct st_header *h = &in->header;
    const struct {
        int key;
        int64_t *to;
        int64_t min, max;
    } integers[] = {
        {KEY_MAX_MODEL_LEN, &h->max_model_len, 1, INT64_MAX},
        {KEY_MAX_NUM_SEQS, &h->max_num_seqs, 1, INT64_MAX},
        {KEY_MAX_NUM_BATCHED_TOKENS, &h->max_num_batched_tokens, 1, INT64_MAX},
        {KEY_NUM_BLOCKS, &h->num_blocks, 0, (int64_t)INT32_MAX + 1},
        {KEY_RANK, &h->rank, 0, INT64_MAX},
    };
    ST_TRY(parse_strings(in, value, err));
    for (size_t i = 0; i < sizeof integers / sizeof integers[0]; i++)
        ST_TRY(st_take_int(in, value[integers[i].key],
                           ST_PLACE_KEY(header_keys[integers[i].key].name), integers[i].min,
                           integers[i].max, -1, integers[i].to, err));
    ST_TRY(st_take_bool(in, value[KEY_PREFIX_CACHING], ST_PLACE_KEY("prefix_caching"),
                        &h->prefix_caching, err));
    ST_TRY(st_take_bool(in, value[KEY_ASYNC_SCHEDULING], ST_PLACE_KEY("async_scheduling"),
                        &h->async_scheduling, err));
    ST_TRY(parse_compress_ratios(in, value[KEY_COMPRESS_RATIOS], err));
    ST_TRY(parse_clock(in, value[KEY_CLOCK], err));
    ST_TRY(parse_groups(in, value[KEY_GROUPS], err));
    in->header_root = json_incref(root);
    return 0;
}
