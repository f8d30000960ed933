/* SPDX-License-Identifier: Apache-2.0 */
#include "traces/base/command.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "traces/base/log.h"

int st_command_fail(const struct st_error *err) {
    st_log(ST_LOG_ERROR, "%s", err->msg);
    return st_error_exit_status(err->code);
}

/* A number, or -1 when the text is empty; *end is where it stops. */
static bool parse_number(const char *text, const char **end, int64_t *value) {
    *value = -1;
    *end = text;
    if (*text < '0' || *text > '9')
        return true;
    char *stop;
    errno = 0;
    long long n = strtoll(text, &stop, 10);
    *end = stop;
    *value = n;
    return errno == 0;
}

bool st_command_parse_range(const char *text, int64_t *first, int64_t *last) {
    const char *end;
    if (!parse_number(text, &end, first))
        return false;
    if (*end == 0 && *first >= 0) {
        *last = *first; /* one step */
        return true;
    }
    if (strncmp(end, "..", 2) != 0 || !parse_number(end + 2, &end, last) || *end != 0)
        return false;
    return *last < 0 || *last >= *first;
}

error_t st_command_parse_tape(int key, char *arg, struct argp_state *state, const char **tape,
                              const char *usage) {
    switch (key) {
    case ARGP_KEY_ARG:
        if (*tape)
            argp_error(state, "one tape at a time, not '%s' as well", arg);
        *tape = arg;
        return 0;
    case ARGP_KEY_END:
        if (!*tape)
            argp_error(state, "no tape given: %s", usage);
        return 0;
    default:
        return ARGP_ERR_UNKNOWN;
    }
}
