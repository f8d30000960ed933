/* SPDX-License-Identifier: Apache-2.0 */
/*
 * steptape query X.tape "SQL": SQL over a tape, the extension's tables included.
 */
#include <argp.h>
#include <errno.h>
#include <sqlite3.h>
#include <stdlib.h>
#include <string.h>

#include "analysis/commands.h"
#include "analysis/database.h"
#include "analysis/output.h"
#include "analysis/print.h"
#include "traces/base/log.h"

#define MAX_PARAMETERS 64
#define MAX_SQL_BYTES (1 << 20)

struct arguments {
    const char *tape, *sql, *output;
    enum st_format format;
    int parameter_count;
    char *parameter[MAX_PARAMETERS]; /* name=value */
};

static const struct argp_option options[] = {
    {"format", 'f', "table|csv|json|jsonl", 0,
     "a table (default), or data; json is an array of objects, one a row", 0},
    {"output", 'o', "FILE", 0, "write to FILE, which appears when it is complete; - is stdout", 0},
    {"param", 'p', "NAME=VALUE", 0,
     "bind :NAME of the statement; a VALUE that is a number is bound as one. May be repeated", 0},
    {0},
};

static const char doc[] =
    "Run one SQL statement on a tape or a result tape.\v"
    "Beside the tables of the file (step, kv_group; run, run_step, launch_count, ...) there are\n"
    "  request_step (step_id, row, request_id, query_len, num_computed_tokens,\n"
    "                prompt_len)\n"
    "  block_table  (step_id, group_id, row, ordinal, block_id)\n"
    "  slot_mapping (step_id, group_id, token, position, slot)\n"
    "  launch       (run_id, policy, step_id, ordinal, operator, graph_node,\n"
    "                grid, block, start_ns, duration_ns)\n"
    "and the aggregates median(x) and percentile(x, 0..100). A condition on step_id, group_id, "
    "row, token or ordinal narrows what is decoded. SQL - reads the text from stdin.\n"
    "\n"
    "Example:\n"
    "  steptape query x.tape 'SELECT graph_mode, count(*) FROM step GROUP BY 1'\n"
    "\n"
    "Exit status: 0 done; 1 failed; 2 wrong command line; 130 interrupted.";

static error_t parse_option(int key, char *value, struct argp_state *state) {
    struct arguments *arguments = state->input;
    struct st_error err;
    switch (key) {
    case 'f':
        if (st_format_parse(value, &arguments->format, &err))
            argp_error(state, "%s", err.msg);
        return 0;
    case 'o':
        arguments->output = value;
        return 0;
    case 'p':
        if (!strchr(value, '=') || value[0] == '=')
            argp_error(state, "--param: '%s' is not NAME=VALUE", value);
        if (arguments->parameter_count == MAX_PARAMETERS)
            argp_error(state, "--param: at most %d", MAX_PARAMETERS);
        arguments->parameter[arguments->parameter_count++] = value;
        return 0;
    case ARGP_KEY_ARG:
        if (state->arg_num == 0)
            arguments->tape = value;
        else if (state->arg_num == 1)
            arguments->sql = value;
        else
            argp_error(state, "one statement only; quote it: \"%s %s ...\"", arguments->sql, value);
        return 0;
    case ARGP_KEY_END:
        if (!arguments->sql)
            argp_error(state, "a tape and an SQL statement are needed");
        return 0;
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

static int read_stdin(char **text, struct st_error *err) {
    char *buffer = malloc(MAX_SQL_BYTES + 2);
    if (!buffer)
        return ST_FAIL_NOMEM(err);
    size_t size = fread(buffer, 1, MAX_SQL_BYTES + 1, stdin);
    int rc = 0;
    if (ferror(stdin))
        rc = ST_FAIL_NATIVE(err, ST_ERR_IO, errno, "standard input: %s", strerror(errno));
    else if (size > MAX_SQL_BYTES)
        rc = ST_FAIL(err, ST_ERR_INPUT, "standard input: more than %d bytes of SQL", MAX_SQL_BYTES);
    else if (memchr(buffer, 0, size))
        rc = ST_FAIL(err, ST_ERR_INPUT, "standard input: SQL text was expected, not binary data");
    if (rc) {
        free(buffer);
        return rc;
    }
    buffer[size] = 0;
    *text = buffer;
    return 0;
}

/* Binds a value as the narrowest type that it is: integer, real, text. */
static int bind_value(sqlite3_stmt *statement, int index, const char *value) {
    char *end;
    errno = 0;
    long long integer = strtoll(value, &end, 10);
    if (*value && !*end && errno == 0)
        return sqlite3_bind_int64(statement, index, integer);
    double real = strtod(value, &end);
    if (*value && !*end && strspn(value, "+-.0123456789eE") == strlen(value))
        return sqlite3_bind_double(statement, index, real);
    return sqlite3_bind_text(statement, index, value, -1, SQLITE_STATIC);
}

static int bind_parameters(sqlite3_stmt *statement, const struct arguments *arguments,
                           struct st_error *err) {
    bool used[MAX_PARAMETERS] = {false};
    for (int index = 1; index <= sqlite3_bind_parameter_count(statement); index++) {
        const char *name = sqlite3_bind_parameter_name(statement, index);
        if (!name)
            return ST_FAIL(err, ST_ERR_USAGE, "SQL: parameters need names: write :NAME, not ?");
        int found = -1;
        for (int i = 0; i < arguments->parameter_count; i++) {
            size_t length =
                (size_t)(strchr(arguments->parameter[i], '=') - arguments->parameter[i]);
            if (strlen(name + 1) == length && !strncmp(name + 1, arguments->parameter[i], length))
                found = i;
        }
        if (found < 0)
            return ST_FAIL(err, ST_ERR_USAGE, "SQL: %s has no value; give --param %s=VALUE", name,
                           name + 1);
        used[found] = true;
        int rc = bind_value(statement, index, strchr(arguments->parameter[found], '=') + 1);
        if (rc != SQLITE_OK)
            return st_sql_statement_error(statement, rc, err);
    }
    for (int i = 0; i < arguments->parameter_count; i++)
        if (!used[i])
            return ST_FAIL(err, ST_ERR_USAGE, "--param %s: no such parameter in the statement",
                           arguments->parameter[i]);
    return 0;
}

static int query(const struct arguments *arguments, const char *sql, struct st_error *err) {
    sqlite3 *db = NULL;
    sqlite3_stmt *statement = NULL;
    struct st_output output = {0};
    int rc;
    ST_TRY_OUT(st_database_open(arguments->tape, &db, err));
    ST_TRY_OUT(st_database_prepare(db, sql, &statement, err));
    ST_TRY_OUT(bind_parameters(statement, arguments, err));
    ST_TRY_OUT(st_output_open(&output, arguments->output, err));
    rc = st_print_statement(statement, arguments->format, output.stream, err);
out:
    if (rc == 0)
        rc = st_output_close(&output, true, err);
    else
        st_output_close(&output, false, NULL);
    sqlite3_finalize(statement);
    sqlite3_close(db);
    return rc;
}

static int run_query(int argc, char **argv) {
    static const struct argp argp = {options, parse_option, "TAPE SQL", doc, NULL, NULL, NULL};
    struct arguments arguments = {0};
    if (argp_parse(&argp, argc, argv, 0, NULL, &arguments))
        return 2;
    st_interrupt_install();
    struct st_error err = {0};
    char *text = NULL;
    int rc = strcmp(arguments.sql, "-") == 0 ? read_stdin(&text, &err) : 0;
    if (rc == 0)
        rc = query(&arguments, text ? text : arguments.sql, &err);
    free(text);
    if (rc == 0)
        return 0;
    /* One line, with the file in front; messages of the tape's reader have it already. */
    size_t length = strlen(arguments.tape);
    if (strncmp(err.msg, arguments.tape, length) == 0 || err.code == ST_ERR_USAGE ||
        err.code == ST_ERR_IO)
        return st_command_fail(&err);
    struct st_error named;
    ST_FAIL_NATIVE(&named, err.code, err.native, "%s: %s", arguments.tape, err.msg);
    return st_command_fail(&named);
}

const struct st_command st_cmd_query = {
    .name = "query",
    .group = "Ask and compare",
    .synopsis = "SQL over a tape, its arrays and its results",
    .run = run_query,
};
