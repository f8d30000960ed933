/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Loading a model: the file says sizes and layers; the tape's KV groups, where it has them, say
 * block and page sizes; the tape's engine settings win over the file's.
 */
#include "replay/model.h"

#include <errno.h>
#include <jansson.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "replay/embedded.h"
#include "traces/base/log.h"

struct source {
    const char *file; /* for messages */
    json_t *root;
};

/* What a cache is in the tape's groups, and which layers need it. */
static const struct {
    const char *name;
    enum st_member_kind kind;
    int32_t ratio;
    unsigned layers;   /* a bit per enum st_layer_kind */
    int32_t row_bytes; /* least bytes of an entry */
    int64_t window;
} cache_rows[ST_CACHE_COUNT] = {
#define V4 (1u << ST_LAYER_SWA | 1u << ST_LAYER_C4 | 1u << ST_LAYER_C128)
    [ST_CACHE_SWA0] = {"swa/1", ST_MEMBER_SWA, 1, V4, 584, 128},
    [ST_CACHE_SWA1] = {"swa/1", ST_MEMBER_SWA, 1, 0, 584, 128},
    [ST_CACHE_SWA2] = {"swa/1", ST_MEMBER_SWA, 1, 0, 584, 128},
    [ST_CACHE_KV_C4] = {"kv/4", ST_MEMBER_KV, 4, 1u << ST_LAYER_C4, 584, -1},
    [ST_CACHE_KV_C128] = {"kv/128", ST_MEMBER_KV, 128, 1u << ST_LAYER_C128, 584, -1},
    [ST_CACHE_KV_INDEXER] = {"indexer_kv/4", ST_MEMBER_INDEXER_KV, 4, 1u << ST_LAYER_C4, 132, -1},
    [ST_CACHE_STATE_C4] = {"state/4", ST_MEMBER_STATE, 4, 1u << ST_LAYER_C4, 8192, 8},
    [ST_CACHE_STATE_C128] = {"state/128", ST_MEMBER_STATE, 128, 1u << ST_LAYER_C128, 4096, 128},
    [ST_CACHE_STATE_INDEXER] = {"indexer_state/4", ST_MEMBER_INDEXER_STATE, 4, 1u << ST_LAYER_C4,
                                2048, 8},
    [ST_CACHE_DSA] = {"attention/1", ST_MEMBER_ATTENTION, 1, 1u << ST_LAYER_DSA, 656, -1},
#undef V4
};

const char *st_cache_name(enum st_cache_id cache) {
    return cache_rows[cache].name;
}

static int bad(const struct source *src, struct st_error *err, const char *key,
               const char *expected) {
    return ST_FAIL(err, ST_ERR_INPUT, "%s: \"%s\": %s expected", src->file, key, expected);
}

static int get_int(const struct source *src, const json_t *object, const char *key, int64_t min,
                   int64_t max, int64_t *out, struct st_error *err) {
    const json_t *value = json_object_get(object, key);
    if (!json_is_integer(value) || json_integer_value(value) < min ||
        json_integer_value(value) > max) {
        char expected[80];
        snprintf(expected, sizeof expected, "an integer from %lld to %lld", (long long)min,
                 (long long)max);
        return bad(src, err, key, expected);
    }
    *out = json_integer_value(value);
    return 0;
}

static int get_number(const struct source *src, const json_t *object, const char *key, double *out,
                      struct st_error *err) {
    const json_t *value = json_object_get(object, key);
    if (!json_is_number(value) || !(json_number_value(value) > 0) ||
        !isfinite(json_number_value(value)))
        return bad(src, err, key, "a number above 0");
    *out = json_number_value(value);
    return 0;
}

static int get_string(const struct source *src, const char *key, char *out, size_t size,
                      struct st_error *err) {
    const char *text = json_string_value(json_object_get(src->root, key));
    if (!text || !text[0] || strlen(text) >= size)
        return bad(src, err, key, "a short string");
    strcpy(out, text);
    return 0;
}

static int parse_source(const char *file, const char *text, size_t length, struct source *src,
                        struct st_error *err) {
    json_error_t json_err;
    src->file = file;
    src->root = json_loadb(text, length, JSON_REJECT_DUPLICATES, &json_err);
    if (!src->root)
        return ST_FAIL(err, ST_ERR_INPUT, "%s: line %d: %s; a model in JSON expected", file,
                       json_err.line, json_err.text);
    if (json_is_object(src->root))
        return 0;
    json_decref(src->root);
    src->root = NULL;
    return ST_FAIL(err, ST_ERR_INPUT, "%s: a JSON object that describes a model expected", file);
}

static int load_file(const char *path, struct source *src, struct st_error *err) {
    enum { MAX_BYTES = 1 << 20 };
    FILE *file = fopen(path, "rb");
    if (!file)
        return ST_FAIL_NATIVE(err, ST_ERR_INPUT, errno, "%s: %s; a model file expected", path,
                              strerror(errno));
    char *text = malloc(MAX_BYTES);
    int rc;
    if (!text) {
        rc = ST_FAIL_NOMEM(err);
    } else {
        size_t length = fread(text, 1, MAX_BYTES, file);
        if (ferror(file))
            rc = ST_FAIL(err, ST_ERR_IO, "%s: %s", path, strerror(errno));
        else if (length == MAX_BYTES)
            rc = ST_FAIL(err, ST_ERR_INPUT, "%s: larger than 1 MiB; a model file expected", path);
        else
            rc = parse_source(path, text, length, src, err);
    }
    free(text);
    fclose(file);
    return rc;
}

static const char *bundled_names(char *out, size_t size) {
    out[0] = 0;
    for (const struct st_embedded *e = st_embedded_models; e->name; e++) {
        size_t used = strlen(out);
        snprintf(out + used, size - used, "%s%.*s", used ? ", " : "",
                 (int)(strlen(e->name) - strlen(".json")), e->name);
    }
    return out;
}

static int load_bundled(const char *name, struct source *src, struct st_error *err) {
    for (const struct st_embedded *e = st_embedded_models; e->name; e++) {
        size_t length = strlen(e->name) - strlen(".json");
        if (strlen(name) == length && strncmp(name, e->name, length) == 0)
            return parse_source(e->name, e->text, strlen(e->text), src, err);
    }
    char names[512];
    return ST_FAIL(err, ST_ERR_USAGE,
                   "--model: there is no model '%s'; bundled models are %s (a file's name holds a "
                   "'/' or ends in .json)",
                   name, bundled_names(names, sizeof names));
}

static bool same_ratios(const json_t *ratios, const struct st_header *header) {
    if ((int64_t)json_array_size(ratios) != header->compress_ratio_count)
        return false;
    for (int32_t i = 0; i < header->compress_ratio_count; i++)
        if (json_integer_value(json_array_get(ratios, (size_t)i)) != header->compress_ratios[i])
            return false;
    return true;
}

/* What the tape says: the bundled model with these layers, or else the first one of this
 * architecture for its sizes. */
static int load_for_tape(const struct st_header *header, struct source *src, struct st_error *err) {
    struct source same_kind = {NULL, NULL}, first = {NULL, NULL};
    int rc = 0;
    for (const struct st_embedded *e = st_embedded_models; e->name && rc == 0; e++) {
        struct source candidate;
        rc = parse_source(e->name, e->text, strlen(e->text), &candidate, err);
        if (rc != 0)
            break;
        const char *architecture =
            json_string_value(json_object_get(candidate.root, "architecture"));
        bool kind =
            architecture && header->architecture && strcmp(architecture, header->architecture) == 0;
        if (same_ratios(json_object_get(candidate.root, "compress_ratios"), header)) {
            json_decref(same_kind.root);
            same_kind = candidate;
            break;
        }
        if (kind && !same_kind.root)
            same_kind = candidate;
        else if (!first.root)
            first = candidate;
        else
            json_decref(candidate.root);
    }
    if (rc == 0 && !same_kind.root && first.root) {
        st_log(ST_LOG_WARN,
               "no bundled model has the architecture %s: head and cache sizes are those of %s",
               header->architecture ? header->architecture : "(unknown)", first.file);
        same_kind = first;
        first.root = NULL;
    }
    json_decref(first.root);
    *src = same_kind;
    return rc;
}

static bool is_dsa(const json_t *root) {
    const char *attention = json_string_value(json_object_get(root, "attention"));
    return attention && strcmp(attention, "dsa") == 0;
}

/* Another kind would be replayed as V4's, which it is not. */
static int check_attention(const struct source *src, struct st_error *err) {
    const json_t *attention = json_object_get(src->root, "attention");
    if (!attention || is_dsa(src->root))
        return 0;
    if (!json_is_string(attention))
        return bad(src, err, "attention", "\"dsa\", or no such key for DeepSeek-V4's,");
    return ST_FAIL(
        err, ST_ERR_INPUT,
        "%s: \"attention\": there is no kind '%.64s'; \"dsa\" (DeepSeek-V3.2), or no such "
        "key for DeepSeek-V4's, expected",
        src->file, json_string_value(attention));
}

static enum st_layer_kind kind_of_ratio(int64_t ratio, bool dsa) {
    if (dsa)
        return ST_LAYER_DSA;
    return ratio == 128 ? ST_LAYER_C128 : ratio == 4 ? ST_LAYER_C4 : ST_LAYER_SWA;
}

static int set_layers(const struct source *src, const struct st_header *header, bool from_tape,
                      struct st_model *model, struct st_error *err) {
    const json_t *ratios = json_object_get(src->root, "compress_ratios");
    bool dsa = is_dsa(src->root);
    bool recorded = from_tape && !dsa;
    int64_t count = recorded ? header->compress_ratio_count : (int64_t)json_array_size(ratios);
    if (count < 1 || count > ST_MODEL_MAX_LAYERS)
        return bad(src, err, "compress_ratios", "an array of 1 to 256 ratios");
    model->layer_count = (int32_t)count;
    for (int32_t i = 0; i < model->layer_count; i++) {
        const json_t *item = json_array_get(ratios, (size_t)i);
        int64_t ratio = recorded                ? header->compress_ratios[i]
                        : json_is_integer(item) ? json_integer_value(item)
                                                : -1;
        if ((ratio != 0 && ratio != 1 && ratio != 4 && ratio != 128) || (dsa && ratio > 1))
            return bad(src, err, "compress_ratios",
                       dsa ? "0 or 1 for each layer" : "0, 1, 4 or 128 for each layer");
        model->layer_kind[i] = (uint8_t)kind_of_ratio(ratio, dsa);
        model->kind_count[model->layer_kind[i]]++;
    }
    return 0;
}

/* A page as the tape's group has it, where it says. */
static void set_page_bytes(const struct st_group *group, enum st_cache_id id,
                           struct st_model_cache *cache) {
    for (int32_t m = 0; m < group->member_count; m++)
        if (group->members[m].kind == cache_rows[id].kind &&
            group->members[m].ratio == cache_rows[id].ratio && group->members[m].page_bytes > 0)
            cache->page_bytes = group->members[m].page_bytes;
}

/* Layers of the window, in order, to the groups that the tape splits them into: the first group's
 * share first.  The tape does not say which layer is in which; the groups do not differ. */
static void set_swa_groups(const struct st_header *header, struct st_model *model) {
    int32_t group = 0, room = 0, found = 0;
    int32_t share[ST_MAX_SWA_GROUPS] = {0};
    for (int32_t g = 0; g < header->group_count && found < ST_MAX_SWA_GROUPS; g++)
        for (int32_t m = 0; m < header->groups[g].member_count; m++)
            if (header->groups[g].members[m].kind == ST_MEMBER_SWA) {
                share[found] = header->groups[g].members[m].layers;
                model->cache[ST_CACHE_SWA0 + found++].group = g;
                break;
            }
    room = found > 0 ? share[0] : model->layer_count;
    for (int32_t i = 0; i < model->layer_count; i++) {
        if (room == 0 && group + 1 < found)
            room = share[++group];
        model->layer_swa[i] = (uint8_t)group;
        room -= room > 0;
    }
    for (int32_t g = 1; g < found; g++) {
        int32_t tape_group = model->cache[g].group;
        model->cache[g] = model->cache[ST_CACHE_SWA0];
        model->cache[g].group = tape_group;
        model->cache[g].block_size = model->cache[g].entries =
            header->groups[tape_group].block_size;
        set_page_bytes(&header->groups[tape_group], (enum st_cache_id)g, &model->cache[g]);
    }
}

static int32_t group_index(const struct st_header *header, const struct st_group *group) {
    return group ? (int32_t)(group - header->groups) : -1;
}

static const json_t *find_cache(const struct source *src, enum st_cache_id id) {
    const json_t *item;
    size_t i;
    json_array_foreach(json_object_get(src->root, "caches"), i, item) {
        const char *name = json_string_value(json_object_get(item, "kind"));
        if (name && strcmp(name, st_member_kind_name(cache_rows[id].kind)) == 0 &&
            json_integer_value(json_object_get(item, "ratio")) == cache_rows[id].ratio)
            return item;
    }
    return NULL;
}

static int check_page(const struct st_model_cache *cache, enum st_cache_id id,
                      struct st_error *err) {
    const int32_t row_bytes = cache_rows[id].row_bytes;
    if (cache->entries >= 1 && cache->page_bytes >= cache->entries * (int64_t)row_bytes &&
        cache->page_bytes % 4 == 0)
        return 0;
    return ST_FAIL(
        err, ST_ERR_INPUT,
        "%s cache of ratio %d: a page of %lld bytes does not hold %d entries of %d bytes",
        st_member_kind_name(cache_rows[id].kind), cache_rows[id].ratio,
        (long long)cache->page_bytes, cache->entries, row_bytes);
}

static int set_cache(const struct source *src, const struct st_header *header, enum st_cache_id id,
                     struct st_model *model, struct st_error *err) {
    struct st_model_cache *cache = &model->cache[id];
    enum st_member_kind kind = cache_rows[id].kind;
    int32_t ratio = cache_rows[id].ratio;
    const json_t *entry = find_cache(src, id);
    if (!entry) {
        char expected[80];
        snprintf(expected, sizeof expected, "an entry of kind %s and ratio %d",
                 st_member_kind_name(kind), ratio);
        return bad(src, err, "caches", expected);
    }
    int64_t block_size = 0;
    ST_TRY(get_int(src, entry, "block_size", 1, 65536, &block_size, err));
    ST_TRY(get_int(src, entry, "page_bytes", 1, 1 << 30, &cache->page_bytes, err));
    cache->ratio = ratio;
    cache->window = cache_rows[id].window;

    const struct st_group *group = st_header_find_group(header, kind, ratio);
    cache->group = group_index(header, group);
    if (group) {
        block_size = group->block_size;
        set_page_bytes(group, id, cache);
    } else {
        model->allocated_group_count++;
    }
    cache->block_size = (int32_t)block_size;
    bool is_state = kind == ST_MEMBER_STATE || kind == ST_MEMBER_INDEXER_STATE;
    cache->entries = is_state ? cache->block_size : cache->block_size / ratio;
    /* The blocks of a recording serve another model's attention; its pages are that model's. */
    int64_t least = cache->entries * (int64_t)cache_rows[id].row_bytes;
    if (kind == ST_MEMBER_ATTENTION && cache->page_bytes < least)
        cache->page_bytes = least;
    return check_page(cache, id, err);
}

static int set_caches(const struct source *src, const struct st_header *header,
                      struct st_model *model, struct st_error *err) {
    unsigned kinds = 0;
    for (int k = 0; k < ST_LAYER_KINDS; k++)
        kinds |= (model->kind_count[k] > 0) << k;
    for (int id = 0; id < ST_CACHE_COUNT; id++)
        if (cache_rows[id].layers & kinds)
            ST_TRY(set_cache(src, header, (enum st_cache_id)id, model, err));
    if (st_model_has(model, ST_CACHE_SWA0))
        set_swa_groups(header, model);
    for (int id = ST_CACHE_SWA0; id <= ST_CACHE_SWA2; id++)
        if (st_model_has(model, (enum st_cache_id)id))
            ST_TRY(check_page(&model->cache[id], (enum st_cache_id)id, err));
    return 0;
}

static int set_numbers(const struct source *src, struct st_model *model, struct st_error *err) {
    int64_t dsa = is_dsa(src->root), head_dim = 0, rope_dim = 0, heads = 0, topk = 0;
    ST_TRY(get_int(src, src->root, "head_dim", dsa ? 576 : 512, dsa ? 576 : 512, &head_dim, err));
    ST_TRY(get_int(src, src->root, "rope_dim", 64, 64, &rope_dim, err));
    ST_TRY(get_int(src, src->root, "heads", 64, 128, &heads, err));
    if (heads != 64 && heads != 128)
        return bad(src, err, "heads", "64 or 128 (padded, as the kernels take them)");
    ST_TRY(get_int(src, src->root, "index_topk", 128, 8192, &topk, err));
    if (topk % 128 != 0)
        return bad(src, err, "index_topk", "a multiple of 128");
    model->head_dim = (int32_t)head_dim;
    model->rope_dim = (int32_t)rope_dim;
    model->heads = (int32_t)heads;
    model->index_topk = (int32_t)topk;
    model->value_dim = 512;
    model->index_dim = 128;
    model->window = dsa ? 0 : 128;
    ST_TRY(get_number(src, src->root, "rms_eps", &model->rms_eps, err));
    ST_TRY(get_number(src, src->root, "compress_rope_theta", &model->rope_base, err));
    const json_t *scaling = json_object_get(src->root, "rope_scaling");
    model->yarn_factor = 1;
    if (!scaling || json_is_null(scaling))
        return 0;
    ST_TRY(get_number(src, scaling, "factor", &model->yarn_factor, err));
    ST_TRY(get_number(src, scaling, "beta_fast", &model->yarn_beta_fast, err));
    ST_TRY(get_number(src, scaling, "beta_slow", &model->yarn_beta_slow, err));
    return get_int(src, scaling, "original_max_position_embeddings", 1, INT32_MAX,
                   &model->yarn_original_max, err);
}

static int set_engine(const struct source *src, const struct st_header *header,
                      struct st_model *model, struct st_error *err) {
    const struct {
        const char *key;
        int64_t recorded;
        int64_t *out;
    } settings[] = {
        {"max_model_len", header->max_model_len, &model->max_model_len},
        {"max_num_seqs", header->max_num_seqs, &model->max_num_seqs},
        {"max_num_batched_tokens", header->max_num_batched_tokens, &model->max_num_batched_tokens},
        {"num_blocks", header->num_blocks, &model->num_blocks},
    };
    const json_t *engine = json_object_get(src->root, "engine");
    for (size_t i = 0; i < sizeof settings / sizeof settings[0]; i++) {
        if (settings[i].recorded > 0)
            *settings[i].out = settings[i].recorded;
        else
            ST_TRY(get_int(src, engine, settings[i].key, 1, INT32_MAX, settings[i].out, err));
    }
    /* vLLM's default: twice the requests, at most 512. */
    int64_t largest = model->max_num_seqs < 256 ? 2 * model->max_num_seqs : 512;
    if (largest > model->max_num_batched_tokens)
        largest = model->max_num_batched_tokens;
    st_model_default_capture_sizes(model, (int32_t)largest);
    return 0;
}

static int fill(const struct source *src, const struct st_header *header, bool from_tape,
                struct st_model *model, struct st_error *err) {
    ST_TRY(get_string(src, "name", model->name, sizeof model->name, err));
    ST_TRY(get_string(src, "architecture", model->architecture, sizeof model->architecture, err));
    if (from_tape && header->model)
        snprintf(model->name, sizeof model->name, "%s", header->model);
    ST_TRY(check_attention(src, err));
    ST_TRY(set_numbers(src, model, err));
    ST_TRY(set_layers(src, header, from_tape, model, err));
    if (model->kind_count[ST_LAYER_SWA] == model->layer_count)
        return bad(src, err, "compress_ratios", "at least one layer of ratio 4 or 128");
    ST_TRY(set_caches(src, header, model, err));
    return set_engine(src, header, model, err);
}

/* Whether the tape alone says how its layers attend: compressed ones, or an architecture that a
 * bundled model knows as one without. */
static bool header_says(const struct st_header *header) {
    for (int32_t i = 0; i < header->compress_ratio_count; i++)
        if (header->compress_ratios[i] > 1)
            return true;
    bool known = false;
    for (const struct st_embedded *e = st_embedded_models; e->name && header->architecture; e++) {
        json_t *root = json_loads(e->text, 0, NULL);
        const char *architecture = json_string_value(json_object_get(root, "architecture"));
        known = known ||
                (is_dsa(root) && architecture && strcmp(architecture, header->architecture) == 0);
        json_decref(root);
    }
    return known;
}

int st_model_load(const char *name, const struct st_header *header, struct st_model *model,
                  struct st_error *err) {
    struct source src = {NULL, NULL};
    bool from_tape = name == NULL;
    struct st_model result;
    memset(&result, 0, sizeof result);
    if (from_tape && !header_says(header)) {
        char names[512];
        return ST_FAIL(err, ST_ERR_INPUT,
                       "the tape's model (%s, %s) has no compressed layers, so no operator of a "
                       "step is known; say which model to replay it as: --model NAME, one of %s",
                       header->model ? header->model : "not named",
                       header->architecture ? header->architecture : "architecture unknown",
                       bundled_names(names, sizeof names));
    }
    if (from_tape)
        ST_TRY(load_for_tape(header, &src, err));
    else if (strchr(name, '/') || (strlen(name) > 5 && !strcmp(name + strlen(name) - 5, ".json")))
        ST_TRY(load_file(name, &src, err));
    else
        ST_TRY(load_bundled(name, &src, err));
    int rc = fill(&src, header, from_tape, &result, err);
    json_decref(src.root);
    if (rc == 0)
        *model = result;
    return rc;
}

void st_model_default_capture_sizes(struct st_model *model, int32_t max_size) {
    static const int32_t small[] = {1, 2, 4};
    int32_t n = 0;
    for (int i = 0; i < 3 && small[i] <= max_size; i++)
        model->capture_size[n++] = small[i];
    for (int32_t size = 8; size <= max_size && size < 256; size += 8)
        model->capture_size[n++] = size;
    for (int32_t size = 256; size <= max_size && n < ST_MODEL_MAX_CAPTURE_SIZES; size += 16)
        model->capture_size[n++] = size;
    model->capture_size_count = n;
}

int32_t st_model_capture_size(const struct st_model *model, int64_t token_count) {
    for (int32_t i = 0; i < model->capture_size_count; i++)
        if (model->capture_size[i] >= token_count)
            return model->capture_size[i];
    return -1;
}

/* "1+2+4+8": ascending. */
static int set_capture_sizes(struct st_model *model, const char *assignment, const char *list,
                             struct st_error *err) {
    struct st_model result = *model;
    result.capture_size_count = 0;
    for (const char *p = list; *p || p == list; p++) {
        char *end = NULL;
        /* strtol would take a sign or a blank before the digits. */
        long value = *p >= '0' && *p <= '9' ? strtol(p, &end, 10) : 0;
        int32_t n = result.capture_size_count;
        if (value < 1 || value > 4096 || (*end && (*end != '+' || !end[1])) ||
            n == ST_MODEL_MAX_CAPTURE_SIZES || (n > 0 && value <= result.capture_size[n - 1]))
            return ST_FAIL(err, ST_ERR_USAGE,
                           "--set %s: ascending sizes from 1 to 4096 expected, joined by '+'",
                           assignment);
        result.capture_size[n] = (int32_t)value;
        result.capture_size_count++;
        p = end;
        if (!*p)
            break;
    }
    *model = result;
    return 0;
}

int st_model_set(struct st_model *model, const char *assignment, struct st_error *err) {
    static const char sizes[] = "capture_sizes=";
    if (strncmp(assignment, sizes, sizeof sizes - 1) == 0)
        return set_capture_sizes(model, assignment, assignment + sizeof sizes - 1, err);
    const char *equals = strchr(assignment, '=');
    char *end = NULL;
    errno = 0;
    long long value = equals ? strtoll(equals + 1, &end, 10) : 0;
    if (!equals || end == equals + 1 || *end || errno || value < 1 || value > INT32_MAX)
        return ST_FAIL(err, ST_ERR_USAGE, "--set %s: NAME=N with N from 1 to 2147483647 expected",
                       assignment);
    size_t length = (size_t)(equals - assignment);
    const struct {
        const char *name;
        int64_t *out;
    } settings[] = {
        {"max_model_len", &model->max_model_len},
        {"max_num_seqs", &model->max_num_seqs},
        {"max_num_batched_tokens", &model->max_num_batched_tokens},
        {"num_blocks", &model->num_blocks},
    };
    for (size_t i = 0; i < sizeof settings / sizeof settings[0]; i++) {
        if (strlen(settings[i].name) == length &&
            strncmp(assignment, settings[i].name, length) == 0) {
            *settings[i].out = value;
            return 0;
        }
    }
    static const char capture[] = "max_capture_size";
    if (length == sizeof capture - 1 && strncmp(assignment, capture, length) == 0) {
        if (value > 1024)
            return ST_FAIL(err, ST_ERR_USAGE, "--set %s: at most 1024", assignment);
        st_model_default_capture_sizes(model, (int32_t)value);
        return 0;
    }
    return ST_FAIL(err, ST_ERR_USAGE,
                   "--set: there is no setting '%.*s'; settings are max_model_len, max_num_seqs, "
                   "max_num_batched_tokens, num_blocks, max_capture_size, capture_sizes",
                   (int)length, assignment);
}

/* YaRN: dimensions that turn often keep their frequency, slow ones are divided by the factor, a
 * linear ramp between.  mscale is disabled: cosines and sines are not scaled. */
static double inverse_frequency(const struct st_model *model, int32_t pair) {
    const double two_pi = 6.283185307179586476925286766559;
    double dim = model->rope_dim;
    double plain = pow(model->rope_base, -2.0 * pair / dim);
    if (model->yarn_factor <= 1)
        return plain;
    double scale = dim / (2 * log(model->rope_base));
    double low =
        floor(scale * log((double)model->yarn_original_max / (model->yarn_beta_fast * two_pi)));
    double high =
        ceil(scale * log((double)model->yarn_original_max / (model->yarn_beta_slow * two_pi)));
    low = low < 0 ? 0 : low;
    high = high > dim - 1 ? dim - 1 : high;
    if (high == low)
        high += 0.001;
    double ramp = (pair - low) / (high - low);
    ramp = ramp < 0 ? 0 : ramp > 1 ? 1 : ramp;
    return plain / model->yarn_factor * ramp + plain * (1 - ramp);
}

void st_model_cos_sin(const struct st_model *model, int64_t first, int64_t count, float *out) {
    int32_t half = model->rope_dim / 2;
    for (int32_t pair = 0; pair < half; pair++) {
        double frequency = inverse_frequency(model, pair);
        for (int64_t i = 0; i < count; i++) {
            double angle = (double)(first + i) * frequency;
            out[i * model->rope_dim + pair] = (float)cos(angle);
            out[i * model->rope_dim + half + pair] = (float)sin(angle);
        }
    }
}
