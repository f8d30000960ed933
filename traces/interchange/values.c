/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Taking typed values out of JSON, with messages that say where they stood.
 */
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "traces/interchange/parse_i.h"

static void print_place(char *out, size_t size, const struct st_place *place) {
    int n = snprintf(out, size, "%s", place->key);
    for (int i = 0; i < 3 && place->index[i] >= 0 && n >= 0 && (size_t)n < size; i++)
        n += snprintf(out + n, size - (size_t)n, "[%" PRId64 "]", place->index[i]);
}

int st_bad(struct st_interchange *in, struct st_error *err, struct st_place place, const char *fmt,
           ...) {
    char where[96], step[32] = "", message[240];
    print_place(where, sizeof where, &place);
    if (in->step_id >= 0)
        snprintf(step, sizeof step, "step %" PRId64 ": ", in->step_id);
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(message, sizeof message, fmt, ap);
    va_end(ap);
    return ST_FAIL(err, ST_ERR_INPUT, "%s: line %" PRId64 ": %s%s%s%s", st_lines_name(in->lines),
                   st_lines_number(in->lines), step, where, where[0] ? ": " : "", message);
}

const char *st_json_type(const json_t *value) {
    if (!value)
        return "missing";
    switch (json_typeof(value)) {
    case JSON_OBJECT:
        return "an object";
    case JSON_ARRAY:
        return "a list";
    case JSON_STRING:
        return "a string";
    case JSON_INTEGER:
        return "an integer";
    case JSON_REAL:
        return "a fraction";
    case JSON_TRUE:
        return "true";
    case JSON_FALSE:
        return "false";
    default:
        return "null";
    }
}

size_t st_find_key(const struct st_key *keys, size_t key_count, const char *name) {
    size_t i = 0;
    while (i < key_count && strcmp(keys[i].name, name) != 0)
        i++;
    return i;
}

int st_take_keys(struct st_interchange *in, json_t *object, const char *where,
                 const struct st_key *keys, size_t key_count, json_t **value,
                 struct st_error *err) {
    memset(value, 0, key_count * sizeof *value);
    if (!json_is_object(object))
        return st_bad(in, err, ST_PLACE_KEY(where), "is %s, an object was expected",
                      st_json_type(object));
    char name[80];
    const char *dot = where[0] ? "." : "";
    const char *key;
    json_t *member;
    bool is_null[32] = {false};
    json_object_foreach(object, key, member) {
        size_t i = st_find_key(keys, key_count, key);
        if (i < key_count) {
            if (json_is_null(member))
                is_null[i] = true;
            else
                value[i] = member;
            continue;
        }
        char printable[48];
        st_printable(printable, sizeof printable, key, strlen(key));
        snprintf(name, sizeof name, "%s%s%s", where, dot, printable);
        if (!in->options.ignore_unknown)
            return st_bad(in, err, ST_PLACE_KEY(name),
                          "unknown key; --ignore-unknown leaves such keys out");
        st_warn(in, ST_WARN_UNKNOWN_KEY, name, 1);
    }
    for (size_t i = 0; i < key_count; i++) {
        if (!keys[i].required || value[i])
            continue;
        snprintf(name, sizeof name, "%s%s%s", where, dot, keys[i].name);
        return st_bad(in, err, ST_PLACE_KEY(name),
                      is_null[i] ? "is null, a value was expected"
                                 : "missing, the key must be there");
    }
    return 0;
}

int st_take_int(struct st_interchange *in, json_t *value, struct st_place place, int64_t min,
                int64_t max, int64_t absent, int64_t *out, struct st_error *err) {
    if (!value) {
        *out = absent;
        return 0;
    }
    if (!json_is_integer(value))
        return st_bad(in, err, place, "is %s, an integer was expected", st_json_type(value));
    int64_t n = json_integer_value(value);
    if (n < min && max == INT64_MAX)
        return st_bad(in, err, place, "is %" PRId64 ", at least %" PRId64 " was expected", n, min);
    if (n < min || n > max)
        return st_bad(in, err, place, "is %" PRId64 ", %" PRId64 " to %" PRId64 " was expected", n,
                      min, max);
    *out = n;
    return 0;
}

int st_take_bool(struct st_interchange *in, json_t *value, struct st_place place, int8_t *out,
                 struct st_error *err) {
    if (value && !json_is_boolean(value))
        return st_bad(in, err, place, "is %s, true or false was expected", st_json_type(value));
    *out = value ? (int8_t)json_is_true(value) : -1;
    return 0;
}

int st_take_string(struct st_interchange *in, json_t *value, struct st_place place,
                   const char **out, struct st_error *err) {
    if (value && !json_is_string(value))
        return st_bad(in, err, place, "is %s, a string was expected", st_json_type(value));
    *out = value ? json_string_value(value) : NULL;
    return 0;
}

int st_array_reserve(struct st_array *array, size_t bytes, struct st_error *err) {
    if (bytes <= array->capacity && array->data)
        return 0;
    size_t capacity = array->capacity ? array->capacity : 256;
    while (capacity < bytes)
        capacity *= 2;
    void *data = realloc(array->data, capacity);
    if (!data)
        return ST_FAIL_NOMEM(err);
    array->data = data;
    array->capacity = capacity;
    return 0;
}
