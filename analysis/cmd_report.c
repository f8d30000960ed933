/* SPDX-License-Identifier: Apache-2.0 */
/*
 * steptape report RESULT.tape: what a run found.
 */
#include <argp.h>
#include <errno.h>
#include <stdlib.h>

#include "analysis/commands.h"
#include "analysis/output.h"
#include "analysis/print.h"
#include "analysis/report.h"
#include "traces/base/log.h"

struct arguments {
    const char *path, *format, *section, *output;
    int64_t run_id;
};

static const struct argp_option options[] = {
    {"run", 'r', "N", 0, "the run to report (default: the last one of the file)", 0},
    {"format", 'f', "table|csv|json|jsonl", 0,
     "a table (default), or data; json is an array of objects, one a row, each with its section",
     0},
    {"section", 's', "run|policy|saving|operator|mode|check|hazard|family|beside", 0,
     "one section alone; csv holds one in any case, policy without this option", 0},
    {"output", 'o', "FILE", 0, "write to FILE, which appears when it is complete; - is stdout", 0},
    {0},
};

static const char doc[] =
    "Print what a run of a result tape found: the launches each policy made and skipped, kernel "
    "and step time, what the first policy costs over the others, and whether the outputs are the "
    "same.\v"
    "Savings are paired step by step: the first policy minus the other, in every step that both "
    "have. Unknown is `-` (csv: empty, json: null), never 0. The sections are SQL files of their "
    "own (analysis/report_*.sql), and run in any SQLite that has loaded steptape.so.\n"
    "\n"
    "Examples:\n"
    "  steptape report x.runs.tape\n"
    "  steptape report x.runs.tape --run 1 --format=csv -o report.csv\n"
    "\n"
    "Exit status: 0 done; 1 failed; 2 wrong command line; 130 interrupted.";

static error_t parse_option(int key, char *value, struct argp_state *state) {
    struct arguments *arguments = state->input;
    enum st_format format;
    struct st_error err;
    char *end;
    switch (key) {
    case 'r':
        errno = 0;
        arguments->run_id = strtoll(value, &end, 10);
        if (!*value || *end || errno || arguments->run_id < 1)
            argp_error(state, "--run: '%s' is no run number (1 or more)", value);
        return 0;
    case 'f':
        if (st_format_parse(value, &format, &err))
            argp_error(state, "%s", err.msg);
        arguments->format = value;
        return 0;
    case 's':
        arguments->section = value;
        return 0;
    case 'o':
        arguments->output = value;
        return 0;
    case ARGP_KEY_ARG:
        if (state->arg_num > 0)
            argp_error(state, "one result tape at a time, not '%s' as well", value);
        arguments->path = value;
        return 0;
    case ARGP_KEY_END:
        if (!arguments->path)
            argp_error(state, "a result tape is needed");
        return 0;
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

static int run_report(int argc, char **argv) {
    static const struct argp argp = {options, parse_option, "RESULT", doc, NULL, NULL, NULL};
    struct arguments arguments = {.format = "table", .run_id = ST_REPORT_LAST_RUN};
    if (argp_parse(&argp, argc, argv, 0, NULL, &arguments))
        return 2;
    st_interrupt_install();
    struct st_error err = {0};
    struct st_output output;
    int rc = st_output_open(&output, arguments.output, &err);
    if (rc == 0) {
        rc = st_report_print_section(arguments.path, arguments.run_id, arguments.format,
                                     arguments.section, output.stream, &err);
        if (rc == 0)
            rc = st_output_close(&output, true, &err);
        else
            st_output_close(&output, false, NULL);
    }
    return rc ? st_command_fail(&err) : 0;
}

const struct st_command st_cmd_report = {
    .name = "report",
    .group = "Ask and compare",
    .synopsis = "what a run found: launches skipped, time saved, outputs compared",
    .run = run_report,
};
