/* SPDX-License-Identifier: Apache-2.0 */
#include "traces/interchange/check.h"

#include <string.h>

#include "traces/interchange/parse_i.h"

const struct st_key st_check_keys[ST_CHECK_KEYS] = {
    {"query_start_loc", false}, {"positions", false},    {"seq_lens", false},
    {"block_table", false},     {"slot_mapping", false},
};

static int find_fault(json_t *check, struct st_error *err) {
    const char *key;
    json_t *member;
    if (!json_is_object(check))
        return ST_FAIL(err, ST_ERR_INPUT, "is %s, an object was expected", st_json_type(check));
    json_object_foreach(check, key, member) {
        char printable[48];
        st_printable(printable, sizeof printable, key, strlen(key));
        if (st_find_key(st_check_keys, ST_CHECK_KEYS, key) == ST_CHECK_KEYS)
            return ST_FAIL(err, ST_ERR_INPUT, "%s: unknown key", printable);
        if (!json_is_array(member) && !json_is_null(member))
            return ST_FAIL(err, ST_ERR_INPUT, "%s: is %s, a list was expected", printable,
                           st_json_type(member));
    }
    return ST_OK;
}

int st_check_compact(const char *text, char **compact, struct st_error *err) {
    json_error_t json;
    json_t *check = json_loads(text, JSON_REJECT_DUPLICATES | JSON_DECODE_ANY, &json);
    if (!check && json_error_code(&json) == json_error_out_of_memory)
        return ST_FAIL_NOMEM(err);
    if (!check) {
        char reason[160];
        st_printable(reason, sizeof reason, json.text, strlen(json.text));
        return ST_FAIL(err, ST_ERR_INPUT, "column %d: not JSON (%s)", json.column, reason);
    }
    int rc = find_fault(check, err);
    if (!rc && !(*compact = json_dumps(check, JSON_COMPACT)))
        rc = ST_FAIL_NOMEM(err);
    json_decref(check);
    return rc;
}
