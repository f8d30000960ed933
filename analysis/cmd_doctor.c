/* SPDX-License-Identifier: Apache-2.0 */
/*
 * steptape doctor: what this machine can do, and why it cannot do the rest.
 */
#include <argp.h>
#include <stdlib.h>
#include <string.h>

#include "analysis/commands.h"
#include "analysis/doctor.h"
#include "analysis/grid.h"
#include "analysis/output.h"
#include "analysis/print.h"

enum { DETAIL_COLUMNS = 80 };

struct arguments {
    enum st_format format;
    const char *output;
};

static const struct argp_option options[] = {
    {"format", 'f', "table|json|jsonl", 0,
     "a table (default), or data; json is an array of objects: what, status, detail", 0},
    {"output", 'o', "FILE", 0, "write to FILE, which appears when it is complete; - is stdout", 0},
    {0},
};

static const char doc[] =
    "Say what this machine can do: versions, driver, GPUs, CUPTI and the backends that follow, and "
    "for what is missing, why and what to do. The exit status is 0 whatever is found.";

static error_t parse_option(int key, char *value, struct argp_state *state) {
    struct arguments *arguments = state->input;
    struct st_error err;
    switch (key) {
    case 'f':
        if (st_format_parse(value, &arguments->format, &err) || arguments->format == ST_FORMAT_CSV)
            argp_error(state, "--format: '%s' is none of table, json, jsonl", value);
        return 0;
    case 'o':
        arguments->output = value;
        return 0;
    case ARGP_KEY_ARG:
        argp_error(state, "there is nothing to be given, not '%s'", value);
        return 0;
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

static void print_json(const struct st_doctor *doctor, bool lines, FILE *out) {
    for (int i = 0; i < doctor->count; i++) {
        const struct st_finding *finding = &doctor->finding[i];
        fputs(lines ? "{\"what\":" : i ? ",\n{\"what\":" : "[{\"what\":", out);
        st_print_json_string(out, finding->what, strlen(finding->what));
        fputs(",\"status\":", out);
        st_print_json_string(out, finding->status, strlen(finding->status));
        fputs(",\"detail\":", out);
        st_print_json_string(out, finding->detail, strlen(finding->detail));
        fputs(lines ? "}\n" : "}", out);
    }
    if (!lines)
        fputs("]\n", out);
}

/* Adds text in rows of at most DETAIL_COLUMNS, broken at spaces; the first row has the other cells.
 */
static void add_wrapped(struct st_grid *grid, const struct st_finding *finding) {
    const char *at = finding->detail;
    bool first = true;
    do {
        size_t length = strlen(at), row = length;
        if (length > DETAIL_COLUMNS) {
            row = DETAIL_COLUMNS;
            while (row > 0 && at[row] != ' ')
                row--;
            if (row == 0)
                row = DETAIL_COLUMNS;
        }
        bool is_info = strcmp(finding->status, "info") == 0;
        st_grid_add(grid, "%s", first ? finding->what : "");
        st_grid_add(grid, "%s", first && !is_info ? finding->status : "");
        st_grid_add(grid, "%.*s", (int)row, at);
        at += row + strspn(at + row, " ");
        first = false;
    } while (*at);
}

static int print_table(const struct st_doctor *doctor, FILE *out, struct st_error *err) {
    struct st_grid grid;
    st_grid_init(&grid, "<<<", "what", "here", "detail");
    for (int i = 0; i < doctor->count; i++)
        add_wrapped(&grid, &doctor->finding[i]);
    return st_grid_print(&grid, out, "", err);
}

static int run_doctor(int argc, char **argv) {
    static const struct argp argp = {options, parse_option, NULL, doc, NULL, NULL, NULL};
    struct arguments arguments = {0};
    if (argp_parse(&argp, argc, argv, 0, NULL, &arguments))
        return 2;
    struct st_error err = {0};
    struct st_output output;
    struct st_doctor doctor;
    int rc = st_output_open(&output, arguments.output, &err);
    if (rc == 0) {
        st_doctor_examine(&doctor, getenv("CUDA_HOME"));
        if (arguments.format == ST_FORMAT_TABLE)
            rc = print_table(&doctor, output.stream, &err);
        else
            print_json(&doctor, arguments.format == ST_FORMAT_JSONL, output.stream);
        if (rc == 0)
            rc = st_output_close(&output, true, &err);
        else
            st_output_close(&output, false, NULL);
    }
    return rc ? st_command_fail(&err) : 0;
}

const struct st_command st_cmd_doctor = {
    .name = "doctor",
    .group = "Ask and compare",
    .synopsis = "what this machine can do, and why it cannot do the rest",
    .run = run_doctor,
};
