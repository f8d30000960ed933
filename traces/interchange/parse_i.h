/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Private to traces/interchange: the parser's state, and how it takes values out of JSON.
 */
#ifndef ST_INTERCHANGE_PARSE_I_H
#define ST_INTERCHANGE_PARSE_I_H

#include <jansson.h>

#include "traces/interchange/lines.h"
#include "traces/interchange/parse.h"
#include "traces/interchange/rules.h"

/* Where a value stands: "blocks[1][0][7]"; index -1: no more. */
struct st_place {
    const char *key;
    int64_t index[3];
};
#define ST_PLACE(...) ((struct st_place){__VA_ARGS__})
#define ST_PLACE_KEY(name) ((struct st_place){(name), {-1, -1, -1}})
#define ST_PLACE_AT(name, i) ((struct st_place){(name), {(i), -1, -1}})

/* A growing array. */
struct st_array {
    void *data;
    size_t capacity; /* bytes */
};

struct st_warning {
    int64_t count;
    int64_t first_line;
    char first_key[64];
    char text[256];
};

struct st_interchange {
    struct st_lines *lines;
    struct st_interchange_options options;
    int64_t step_id; /* of the line at hand; -1: not known */

    struct st_header header;
    json_t *header_root; /* strings of the header live here */
    char *speculative;
    int32_t *compress_ratios;
    struct st_group *groups;
    struct st_member *members;

    int64_t next_step_id;
    struct st_rules rules;
    struct st_step step;
    char *check_json;
    struct st_array request_id, query_len, num_computed_tokens, draft;
    struct st_array new_id, new_prompt_len, finished, preempted, resumed, replaced;
    struct st_row_blocks *blocks;       /* [group_count] */
    struct st_array *offset, *block_id; /* [group_count] */
    struct st_warning warning[ST_WARN_KINDS];
};

/* A key that an object may hold. */
struct st_key {
    const char *name;
    bool required;
};

/* Members of a `check` object. */
enum { ST_CHECK_KEYS = 5 };
extern const struct st_key st_check_keys[ST_CHECK_KEYS];

/* Where a key stands among keys; key_count: nowhere. */
size_t st_find_key(const struct st_key *keys, size_t key_count, const char *name);

/* Raises "FILE: line N: step S: PLACE: MESSAGE". */
int st_bad(struct st_interchange *in, struct st_error *err, struct st_place place, const char *fmt,
           ...) __attribute__((format(printf, 4, 5)));

/* Puts the values of object's keys into value[key_count]; NULL where a key is absent or null.
 * An unknown key, and a required one that is missing, is an error.  where: "" or "groups[0]". */
int st_take_keys(struct st_interchange *in, json_t *object, const char *where,
                 const struct st_key *keys, size_t key_count, json_t **value, struct st_error *err);

/* value NULL gives *out = absent.  Bounds are inclusive. */
int st_take_int(struct st_interchange *in, json_t *value, struct st_place place, int64_t min,
                int64_t max, int64_t absent, int64_t *out, struct st_error *err);
int st_take_bool(struct st_interchange *in, json_t *value, struct st_place place, int8_t *out,
                 struct st_error *err);
int st_take_string(struct st_interchange *in, json_t *value, struct st_place place,
                   const char **out, struct st_error *err);
/* "a string", for messages. */
const char *st_json_type(const json_t *value);

/* Makes room for bytes; what was there stays. */
int st_array_reserve(struct st_array *array, size_t bytes, struct st_error *err);

int st_parse_header(struct st_interchange *in, json_t *root, struct st_error *err);
int st_parse_step(struct st_interchange *in, json_t *root, struct st_error *err);
/* times 0: nothing is odd. */
void st_warn(struct st_interchange *in, enum st_interchange_warning kind, const char *key,
             int64_t times);

#endif
