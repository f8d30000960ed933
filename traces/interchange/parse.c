/* SPDX-License-Identifier: Apache-2.0 */
#include "traces/interchange/parse.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "traces/interchange/parse_i.h"

/* The last "key": before the place where the JSON reader stopped, without quotes; "" when none. */
static void key_before(const char *text, size_t length, size_t position, char *out, size_t size) {
    out[0] = 0;
    size_t i = position < length ? position : length;
    for (; i > 2; i--) {
        if (text[i - 1] != ':' || text[i - 2] != '"')
            continue;
        size_t end = i - 2, begin = end;
        while (begin > 0 && text[begin - 1] != '"')
            begin--;
        if (begin > 0)
            st_printable(out, size, text + begin, end - begin);
        return;
    }
}

static int bad_json(struct st_interchange *in, const char *text, size_t length,
                    const json_error_t *json, struct st_error *err) {
    enum json_error_code code = json_error_code(json);
    if (code == json_error_out_of_memory)
        return ST_FAIL_NOMEM(err);
    bool stopped_at_end =
        code == json_error_premature_end_of_input || json->position >= (int)length;
    if (!st_lines_ended(in->lines) && stopped_at_end)
        return st_bad(in, err, ST_PLACE_KEY(""),
                      "the last line is cut off after %zu bytes, a whole JSON object was expected",
                      length);
    char key[48], reason[160];
    st_printable(reason, sizeof reason, json->text, strlen(json->text));
    key_before(text, length, json->position > 0 ? (size_t)json->position : 0, key, sizeof key);
    if (code == json_error_numeric_overflow)
        return st_bad(in, err, ST_PLACE_KEY(key),
                      "column %d: %s, an integer of 64 bits was expected", json->column, reason);
    if (code == json_error_duplicate_key)
        return st_bad(in, err, ST_PLACE_KEY(key), "column %d: %s, each key once was expected",
                      json->column, reason);
    return st_bad(in, err, ST_PLACE_KEY(key), "column %d: not JSON (%s)", json->column, reason);
}

/* One line as JSON; ST_DONE after the last. */
static int next_json(struct st_interchange *in, json_t **root, struct st_error *err) {
    const char *text;
    size_t length;
    json_error_t json;
    in->step_id = -1;
    ST_TRY(st_lines_next(in->lines, &text, &length, err));
    if (length > 0 && text[length - 1] == '\r')
        length--;
    if (length == 0)
        return st_bad(in, err, ST_PLACE_KEY(""), "empty line, a JSON object was expected");
    const char *nul = memchr(text, 0, length); /* the JSON reader takes it for the end */
    if (nul)
        return st_bad(in, err, ST_PLACE_KEY(""), "byte %zu is NUL, JSON text was expected",
                      (size_t)(nul - text) + 1);
    *root = json_loadb(text, length, JSON_REJECT_DUPLICATES, &json);
    return *root ? 0 : bad_json(in, text, length, &json, err);
}

static int read_header(struct st_interchange *in, struct st_error *err) {
    json_t *root;
    int rc = next_json(in, &root, err);
    if (rc == ST_DONE) /* gzip of nothing */
        return ST_FAIL(err, ST_ERR_INPUT,
                       "%s: line 1: empty file, a header {\"kind\":\"steps\",...} was expected",
                       st_lines_name(in->lines));
    ST_TRY(rc);
    rc = st_parse_header(in, root, err);
    json_decref(root);
    ST_TRY(rc);
    st_rules_init(&in->rules, &in->header);
    size_t groups = (size_t)in->header.group_count + 1;
    in->blocks = calloc(groups, sizeof *in->blocks);
    in->offset = calloc(groups, sizeof *in->offset);
    in->block_id = calloc(groups, sizeof *in->block_id);
    return in->blocks && in->offset && in->block_id ? 0 : ST_FAIL_NOMEM(err);
}

static struct st_interchange *create(const struct st_interchange_options *options) {
    struct st_interchange *in = calloc(1, sizeof *in);
    if (in && options)
        in->options = *options;
    return in;
}

static int finish_open(struct st_interchange *in, int rc, struct st_interchange **out,
                       struct st_error *err) {
    if (rc == 0)
        rc = read_header(in, err);
    if (rc) {
        st_interchange_close(in);
        return rc;
    }
    *out = in;
    return 0;
}

int st_interchange_open(const char *path, const struct st_interchange_options *options,
                        struct st_interchange **out, struct st_error *err) {
    struct st_interchange *in = create(options);
    if (!in)
        return ST_FAIL_NOMEM(err);
    int rc = st_lines_open(path, in->options.max_line_bytes, &in->lines, err);
    return finish_open(in, rc, out, err);
}

int st_interchange_open_memory(const char *name, const void *data, size_t size,
                               const struct st_interchange_options *options,
                               struct st_interchange **out, struct st_error *err) {
    struct st_interchange *in = create(options);
    if (!in)
        return ST_FAIL_NOMEM(err);
    int rc = st_lines_open_memory(name, data, size, in->options.max_line_bytes, &in->lines, err);
    return finish_open(in, rc, out, err);
}

void st_interchange_close(struct st_interchange *in) {
    if (!in)
        return;
    st_lines_close(in->lines);
    json_decref(in->header_root);
    free(in->speculative);
    free(in->compress_ratios);
    free(in->members);
    free(in->check_json);
    free(in->request_id.data);
    free(in->query_len.data);
    free(in->num_computed_tokens.data);
    free(in->draft.data);
    free(in->new_id.data);
    free(in->new_prompt_len.data);
    free(in->finished.data);
    free(in->preempted.data);
    free(in->resumed.data);
    free(in->replaced.data);
    for (int32_t g = 0; g < in->header.group_count; g++) {
        if (in->offset)
            free(in->offset[g].data);
        if (in->block_id)
            free(in->block_id[g].data);
    }
    free(in->groups);
    free(in->blocks);
    free(in->offset);
    free(in->block_id);
    st_rules_fini(&in->rules);
    free(in);
}

const struct st_header *st_interchange_header(const struct st_interchange *in) {
    return &in->header;
}

int st_interchange_next(struct st_interchange *in, const struct st_step **step,
                        const char **check_json, struct st_error *err) {
    json_t *root;
    free(in->check_json);
    in->check_json = NULL;
    ST_TRY(next_json(in, &root, err));
    int rc = st_parse_step(in, root, err);
    json_decref(root);
    ST_TRY(rc);
    *step = &in->step;
    *check_json = in->check_json;
    return 0;
}

void st_warn(struct st_interchange *in, enum st_interchange_warning kind, const char *key,
             int64_t times) {
    struct st_warning *warning = &in->warning[kind];
    bool first = warning->count == 0 && times > 0;
    warning->count += times;
    if (!first)
        return;
    warning->first_line = st_lines_number(in->lines);
    snprintf(warning->first_key, sizeof warning->first_key, "%s", key);
}

int64_t st_interchange_warning(struct st_interchange *in, enum st_interchange_warning kind,
                               const char **text) {
    struct st_warning *w = &in->warning[kind];
    if (w->count == 0 || !text)
        return w->count;
    const struct st_header *h = &in->header;
    char what[128];
    switch (kind) {
    case ST_WARN_MAX_NUM_SEQS:
        snprintf(what, sizeof what, "steps with more requests than max_num_seqs (%" PRId64 ")",
                 h->max_num_seqs);
        break;
    case ST_WARN_MAX_NUM_BATCHED_TOKENS:
        snprintf(what, sizeof what,
                 "steps with more tokens than max_num_batched_tokens (%" PRId64 ")",
                 h->max_num_batched_tokens);
        break;
    case ST_WARN_MAX_MODEL_LEN:
        snprintf(what, sizeof what, "rows with start + qlen above max_model_len (%" PRId64 ")",
                 h->max_model_len);
        break;
    case ST_WARN_START_BELOW:
        snprintf(what, sizeof what,
                 "rows that start below the last start + qlen, with no draft to reject");
        break;
    default:
        snprintf(what, sizeof what, "unknown keys left out, the first is %s", w->first_key);
        break;
    }
    snprintf(w->text, sizeof w->text, "line %" PRId64 "%s: %" PRId64 " %s", w->first_line,
             w->count > 1 ? " and later" : "", w->count, what);
    *text = w->text;
    return w->count;
}

int64_t st_interchange_bytes_read(const struct st_interchange *in) {
    return st_lines_bytes_read(in->lines);
}

int64_t st_interchange_bytes_total(const struct st_interchange *in) {
    return st_lines_bytes_total(in->lines);
}
