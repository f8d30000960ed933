/* SPDX-License-Identifier: Apache-2.0 */
/*
 * steptape import: steps that were recorded elsewhere, in the interchange format, become a tape.
 */
#include <argp.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "traces/base/log.h"
#include "traces/commands.h"
#include "traces/format/writer.h"
#include "traces/interchange/parse.h"
#include "traces/target.h"

enum { OPT_NO_CHECK = 0x100, OPT_IGNORE_UNKNOWN, OPT_FORCE };

struct arguments {
    const char *input;
    const char *output;
    bool force;
    struct st_interchange_options options;
};

struct totals {
    int64_t steps, requests, rows, ids;
};

static const char doc[] =
    "Make a tape from steps that were recorded elsewhere.\n"
    "\n"
    "STEPS is a file of JSON lines, plain or gzip (told by its content), or - for standard input: "
    "one header line, then one line a step. Everything in it is checked; the first fault is named "
    "with its line, step and key, and no tape is written."
    "\v"
    "Examples:\n"
    "  steptape import steps.jsonl.gz -o x.tape\n"
    "  xz -dc steps.jsonl.xz | steptape import - -o x.tape\n"
    "  steptape import --no-check steps.jsonl -o small.tape\n"
    "\n"
    "X.tape takes its name only when it is whole. A tape of that name is replaced; any other file "
    "is not, unless --force is given.\n"
    "\n"
    "Exit status: 0 done; 1 the recording is wrong or could not be read, or the tape could not be "
    "written; 2 wrong command line; 130 interrupted.";

static const struct argp_option option_list[] = {
    {"output", 'o', "X.tape", 0, "The tape to write (required)", 0},
    {"no-check", OPT_NO_CHECK, NULL, 0,
     "Leave out the check objects: what the engine itself held, kept to test reconstruction", 0},
    {"ignore-unknown", OPT_IGNORE_UNKNOWN, NULL, 0,
     "Leave out keys that the format does not know, and count them, instead of refusing them", 0},
    {"force", OPT_FORCE, NULL, 0, "Replace X.tape even when it is no tape", 0},
    {0},
};

static error_t parse_option(int key, char *arg, struct argp_state *state) {
    struct arguments *a = state->input;
    switch (key) {
    case 'o':
        a->output = arg;
        return 0;
    case OPT_NO_CHECK:
        a->options.no_check = true;
        return 0;
    case OPT_IGNORE_UNKNOWN:
        a->options.ignore_unknown = true;
        return 0;
    case OPT_FORCE:
        a->force = true;
        return 0;
    case ARGP_KEY_ARG:
        if (a->input)
            argp_error(state, "one recording at a time, not '%s' as well", arg);
        a->input = arg;
        return 0;
    case ARGP_KEY_END:
        if (!a->input)
            argp_error(state, "no recording given: steptape import STEPS.jsonl -o X.tape");
        if (!a->output)
            argp_error(state, "no tape to write: -o X.tape is missing");
        if (strcmp(a->output, "-") == 0)
            argp_error(state, "a tape is a database and cannot go to standard output; -o X.tape");
        return 0;
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

static void count(struct totals *totals, const struct st_step *step) {
    totals->steps++;
    totals->requests += step->new_requests.count;
    totals->rows += step->request_count;
    for (int32_t g = 0; g < step->group_count; g++)
        totals->ids += step->blocks[g].offset[step->request_count];
}

static int copy_steps(struct st_interchange *in, struct st_writer *writer, struct totals *totals,
                      struct st_error *err) {
    const struct st_step *step;
    const char *check_json;
    int rc;
    while ((rc = st_interchange_next(in, &step, &check_json, err)) == 0) {
        if (st_interrupted())
            return ST_FAIL(err, ST_ERR_INTERRUPTED, "interrupted; no tape was written");
        ST_TRY(st_writer_add(writer, step, check_json, err));
        count(totals, step);
        st_progress("import", st_interchange_bytes_read(in), st_interchange_bytes_total(in));
    }
    return rc == ST_DONE ? 0 : rc;
}

static void print_warnings(struct st_interchange *in, const char *input) {
    for (int kind = 0; kind < ST_WARN_KINDS; kind++) {
        const char *text;
        if (st_interchange_warning(in, kind, &text) > 0)
            st_log(ST_LOG_WARN, "%s: %s", input, text);
    }
}

static int import(const struct arguments *a, int argc, char **argv, struct st_error *err) {
    struct st_interchange *in = NULL;
    struct st_writer *writer = NULL;
    struct totals totals = {0};
    struct stat st;
    int rc;
    ST_TRY_OUT(st_target_check(a->output, a->input, "the recording", a->force, err));
    ST_TRY_OUT(st_interchange_open(a->input, &a->options, &in, err));
    ST_TRY_OUT(st_writer_open(a->output, st_interchange_header(in), &writer, err));
    ST_TRY_OUT(st_writer_operation(writer, argc, argv, err));
    ST_TRY_OUT(copy_steps(in, writer, &totals, err));
    struct st_writer *whole = writer;
    writer = NULL;
    ST_TRY_OUT(st_writer_finish(whole, err));
    st_progress_end();
    print_warnings(in, strcmp(a->input, "-") == 0 ? "standard input" : a->input);
    long long bytes = stat(a->output, &st) == 0 ? (long long)st.st_size : 0;
    st_log(ST_LOG_INFO,
           "%s: %" PRId64 " steps, %" PRId64 " requests, %" PRId64 " request-steps, %" PRId64
           " block ids, %lld bytes",
           a->output, totals.steps, totals.requests, totals.rows, totals.ids, bytes);
out:
    st_writer_abort(writer);
    st_interchange_close(in);
    st_progress_end();
    return rc;
}

static int run(int argc, char **argv) {
    struct arguments a = {0};
    struct st_error err = {0};
    static const struct argp argp = {.options = option_list,
                                     .parser = parse_option,
                                     .args_doc = "STEPS|- -o X.tape",
                                     .doc = doc};
    /* In order: argv stays as typed, for the tape's history. */
    if (argp_parse(&argp, argc, argv, ARGP_IN_ORDER, NULL, &a) != 0)
        return 2;
    st_interrupt_install();
    return import(&a, argc, argv, &err) == 0 ? 0 : st_command_fail(&err);
}

const struct st_command st_cmd_import = {
    "import", "Tapes", "make a tape from steps recorded elsewhere (JSON lines)", run};
