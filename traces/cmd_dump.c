/* SPDX-License-Identifier: Apache-2.0 */
/*
 * steptape dump: a tape as JSON lines, the interchange format of steps.
 */
#include <argp.h>
#include <inttypes.h>
#include <string.h>

#include "traces/base/log.h"
#include "traces/commands.h"
#include "traces/cut.h"
#include "traces/format/reader.h"
#include "traces/interchange/print.h"

struct arguments {
    const char *input;
    const char *output;  /* NULL: stdout */
    int64_t first, last; /* -1: not given */
    bool cut;
};

enum { OPT_CUT = 1000 };

static const char doc[] =
    "Print a tape as JSON lines: a header, then one line a step.\n"
    "\n"
    "This is the format that import reads, with the same facts that were imported, check objects "
    "included."
    "\v"
    "Examples:\n"
    "  steptape dump x.tape | head -n 1 | python3 -m json.tool\n"
    "  steptape dump x.tape --steps 100..199 -o part.jsonl\n"
    "  steptape dump x.tape --steps ..9 | jq -c '[.step, .mode]'\n"
    "  steptape dump x.tape --steps 100..199 --cut | steptape import - -o part.tape\n"
    "\n"
    "With --steps the steps keep their numbers. A dump that does not begin at step 0 is a part of "
    "a recording, for reading: import refuses it, since what its requests held before is not in "
    "it. With --cut the steps are numbered from 0 and each request is new, with all the blocks "
    "that it holds, in the first step that schedules it: import makes a tape of that.\n"
    "\n"
    "Exit status: 0 done; 1 the tape is damaged, or the output could not be written; 2 wrong "
    "command line; 130 interrupted.";

static const struct argp_option option_list[] = {
    {"steps", 's', "A..B", 0, "Only steps A to B, both included; either end may be left out", 0},
    {"cut", OPT_CUT, NULL, 0, "Make the steps a recording of their own, for import", 0},
    {"output", 'o', "FILE", 0, "Write FILE instead of standard output", 0},
    {0},
};

static error_t parse_option(int key, char *arg, struct argp_state *state) {
    struct arguments *a = state->input;
    switch (key) {
    case 's':
        if (!st_command_parse_range(arg, &a->first, &a->last))
            argp_error(state, "--steps %s: A..B was expected, as in 100..199, ..9 or 100..", arg);
        return 0;
    case 'o':
        a->output = arg;
        return 0;
    case OPT_CUT:
        a->cut = true;
        return 0;
    default:
        return st_command_parse_tape(key, arg, state, &a->input, "steptape dump X.tape");
    }
}

/* cut NULL: the steps as they are. */
static int print_steps(struct st_tape *tape, struct st_cursor *cursor, struct st_cut *cut,
                       int64_t last, struct st_out *out, struct st_error *err) {
    const struct st_step *step;
    struct st_step own;
    const char *check_json;
    int rc;
    while ((rc = st_cursor_next(cursor, &step, err)) == 0) {
        if (last >= 0 && step->step_id > last)
            return 0;
        if (st_interrupted())
            return ST_FAIL(err, ST_ERR_INTERRUPTED, "interrupted");
        ST_TRY(st_tape_check_json(tape, step->step_id, &check_json, err));
        if (cut)
            ST_TRY(st_cut_step(cut, cursor, step, &own, err));
        st_print_step(out, cut ? &own : step, check_json);
        if (st_out_failed(out))
            return 0; /* st_out_finish() says why */
        if (step->step_id == last)
            return 0;
    }
    return rc == ST_DONE ? 0 : rc;
}

static int seek(const struct arguments *a, struct st_tape *tape, struct st_cursor *cursor,
                struct st_error *err) {
    int64_t first = st_tape_first_step(tape), end = first + st_tape_step_count(tape);
    int64_t from = a->first < 0 ? first : a->first;
    if (a->first < 0 && a->last < 0)
        return 0;
    if (from < first || from >= end || (a->last >= 0 && a->last < first))
        return ST_FAIL(err, ST_ERR_USAGE,
                       "%.200s: --steps lies outside the tape, which holds %" PRId64
                       " steps from number %" PRId64,
                       a->input, end - first, first);
    if (a->last >= end)
        st_log(ST_LOG_WARN, "%s: ends at step %" PRId64, a->input, end - 1);
    return st_cursor_seek(cursor, from, err);
}

static int dump(const struct arguments *a, struct st_error *err) {
    struct st_tape *tape = NULL;
    struct st_cursor *cursor = NULL;
    struct st_cut *cut = NULL;
    struct st_out *out = NULL;
    int rc;
    ST_TRY_OUT(st_tape_open(a->input, &tape, err));
    if (a->cut)
        ST_TRY_OUT(st_cut_create(st_tape_header(tape)->group_count, &cut, err));
    ST_TRY_OUT(st_cursor_open(tape, cut ? ST_READ_TABLES : ST_READ_BLOCKS, &cursor, err));
    ST_TRY_OUT(seek(a, tape, cursor, err));
    ST_TRY_OUT(st_out_open(a->output, &out, err));
    st_print_header(out, st_tape_header(tape));
    ST_TRY_OUT(print_steps(tape, cursor, cut, a->last, out, err));
    struct st_out *whole = out;
    out = NULL;
    rc = st_out_finish(whole, err);
out:
    st_out_abort(out);
    st_cut_destroy(cut);
    st_cursor_close(cursor);
    st_tape_close(tape);
    return rc;
}

static int run(int argc, char **argv) {
    struct arguments a = {.first = -1, .last = -1};
    struct st_error err = {0};
    static const struct argp argp = {
        .options = option_list, .parser = parse_option, .args_doc = "X.tape", .doc = doc};
    if (argp_parse(&argp, argc, argv, 0, NULL, &a) != 0)
        return 2;
    st_interrupt_install();
    return dump(&a, &err) == 0 ? 0 : st_command_fail(&err);
}

const struct st_command st_cmd_dump = {"dump", "Tapes",
                                       "print a tape as JSON lines, the format import reads", run};
