/* SPDX-License-Identifier: Apache-2.0 */
/*
 * steptape anonymize: a copy of a tape that does not say whose it is, and what the copy still says.
 */
#include <argp.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "traces/anonymize.h"
#include "traces/base/log.h"
#include "traces/commands.h"
#include "traces/interchange/out.h"
#include "traces/target.h"

enum {
    OPT_KEEP_MODEL = 0x100,
    OPT_KEEP_TIMES,
    OPT_KEEP_KERNELS,
    OPT_KEEP_CHECK,
    OPT_DROP_UNKNOWN,
    OPT_FORCE,
    OPT_FORMAT
};

struct arguments {
    const char *input, *output;
    bool force, json;
    struct st_anonymize_options options;
};

static const char doc[] =
    "Copy a tape without what says whose it is, and print what the copy still says, column by "
    "column.\n"
    "\n"
    "A tape holds no prompt, no token and no weight to begin with. The copy leaves out the model's "
    "name, clocks, the history of the file with its command lines and paths, what the recorder "
    "said, check objects, and free text; request numbers are counted from 0, starts from the first "
    "step, and the time of the copy is its day. Lengths, durations, block ids and settings stay: "
    "without them there is nothing to replay."
    "\v"
    "Examples:\n"
    "  steptape anonymize x.tape -o share.tape\n"
    "  steptape anonymize --keep-model x.tape -o share.tape --format=json >share.json\n"
    "\n"
    "The list on standard output is read from the copy. 'is': what was done; 'tells': nothing; "
    "model, its shape; setup, settings that together few may share; traffic, which who has a log "
    "of "
    "the same requests can match; identity, which only an option keeps. What this program does not "
    "know, a table of a later format or of your own, is refused by name.\n"
    "Digests of the verify pass follow request numbers, so they differ from those of X.tape.\n"
    "\n"
    "Exit status: 0 done; 1 the tape is damaged, holds what is not known here, or the copy could "
    "not be written; 2 wrong command line; 130 interrupted.";

static const struct argp_option option_list[] = {
    {"output", 'o', "OUT.tape", 0, "The copy to write (required)", 0},
    {"format", OPT_FORMAT, "table|json", 0,
     "The list as text for people (default), or as an array of objects, one a column", 0},
    {"keep-model", OPT_KEEP_MODEL, NULL, 0, "Keep the model's name and architecture as they are",
     0},
    {"keep-times", OPT_KEEP_TIMES, NULL, 0, "Keep clocks and starts as they are", 0},
    {"keep-kernels", OPT_KEEP_KERNELS, NULL, 0,
     "Keep names of kernels as they are, not only a number and the family", 0},
    {"keep-check", OPT_KEEP_CHECK, NULL, 0,
     "Keep the check objects: arrays that the engine itself held, kept to test reconstruction", 0},
    {"drop-unknown", OPT_DROP_UNKNOWN, NULL, 0,
     "Leave out tables and columns that are not known here, and count them, instead of refusing",
     0},
    {"force", OPT_FORCE, NULL, 0, "Replace OUT.tape even when it is no tape", 0},
    {0},
};

static error_t parse_option(int key, char *arg, struct argp_state *state) {
    struct arguments *a = state->input;
    switch (key) {
    case 'o':
        a->output = arg;
        return 0;
    case OPT_FORMAT:
        a->json = strcmp(arg, "json") == 0;
        if (!a->json && strcmp(arg, "table") != 0)
            argp_error(state, "--format=%s: table or json was expected", arg);
        return 0;
    case OPT_KEEP_MODEL:
        a->options.keep_model = true;
        return 0;
    case OPT_KEEP_TIMES:
        a->options.keep_times = true;
        return 0;
    case OPT_KEEP_KERNELS:
        a->options.keep_kernels = true;
        return 0;
    case OPT_KEEP_CHECK:
        a->options.keep_check = true;
        return 0;
    case OPT_DROP_UNKNOWN:
        a->options.drop_unknown = true;
        return 0;
    case OPT_FORCE:
        a->force = true;
        return 0;
    case ARGP_KEY_SUCCESS:
        if (!a->output)
            argp_error(state, "no tape to write: -o OUT.tape is missing");
        if (strcmp(a->output, "-") == 0)
            argp_error(state, "a tape is a database and cannot go to standard output; -o OUT.tape");
        return 0;
    default:
        return st_command_parse_tape(key, arg, state, &a->input,
                                     "steptape anonymize X.tape -o OUT.tape");
    }
}

/* ---- the list */

struct list {
    const struct arguments *arguments;
    struct st_out *out;
    bool begun;
    struct st_private_content *row; /* for the table: widths come first */
    int count;
    bool failed;
};

static bool is_kept(const struct arguments *a, const struct st_private_column *column) {
    return (column->keep == ST_KEEP_MODEL && a->options.keep_model) ||
           (column->keep == ST_KEEP_TIMES && a->options.keep_times) ||
           (column->keep == ST_KEEP_KERNELS && a->options.keep_kernels) ||
           (column->keep == ST_KEEP_CHECK && a->options.keep_check);
}

static const char *treatment(const struct list *list, const struct st_private_column *column) {
    return is_kept(list->arguments, column) ? "kept" : column->treatment;
}

/* Times that are kept tell when it was, names of kernels may tell whose they are. */
static const char *tells(const struct list *list, const struct st_private_column *column) {
    return (column->keep == ST_KEEP_TIMES || column->keep == ST_KEEP_KERNELS) &&
                   is_kept(list->arguments, column)
               ? "identity"
               : column->tells;
}

static void print_value(struct st_out *out, const struct st_private_content *content,
                        const char *value) {
    if (!content->count)
        st_out_string(out, "null");
    else if (content->is_text)
        st_out_json_string(out, value);
    else
        st_out_string(out, value);
}

static void print_json(const struct st_private_content *content, void *user) {
    struct list *list = user;
    const struct st_private_column *column = content->column;
    const struct {
        const char *key, *text;
    } texts[] = {
        {"{\"table\":", column->table},       {",\"column\":", column->column},
        {",\"part\":", column->part},         {",\"is\":", treatment(list, column)},
        {",\"tells\":", tells(list, column)}, {",\"holds\":", column->holds},
    };
    st_out_string(list->out, list->begun ? ",\n" : "[");
    list->begun = true;
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        st_out_string(list->out, texts[i].key);
        st_out_json_string(list->out, texts[i].text);
    }
    st_out_format(list->out, ",\"values\":%" PRId64 ",\"least\":", content->count);
    print_value(list->out, content, content->least);
    st_out_string(list->out, ",\"greatest\":");
    print_value(list->out, content, content->greatest);
    st_out_string(list->out, "}");
}

static void keep_row(const struct st_private_content *content, void *user) {
    struct list *list = user;
    void *row = realloc(list->row, (size_t)(list->count + 1) * sizeof *list->row);
    if (!row) {
        list->failed = true;
        return;
    }
    list->row = row;
    list->row[list->count++] = *content;
}

enum { CELLS = 6, CELL_BYTES = 160 };
static const char *const headings[CELLS] = {"column", "values", "from .. to",
                                            "is",     "tells",  "holds"};

static void fill_cells(const struct list *list, const struct st_private_content *row,
                       char cell[CELLS][CELL_BYTES]) {
    const struct st_private_column *c = row->column;
    bool single = strcmp(row->least, row->greatest) == 0;
    if (c->part)
        snprintf(cell[0], CELL_BYTES, "  %s", c->part);
    else
        snprintf(cell[0], CELL_BYTES, "%s.%s", c->table, c->column);
    snprintf(cell[1], CELL_BYTES, "%" PRId64, row->count);
    snprintf(cell[2], CELL_BYTES, "%.60s%s%.60s", row->least, single ? "" : " .. ",
             single ? "" : row->greatest);
    snprintf(cell[3], CELL_BYTES, "%s", treatment(list, c));
    snprintf(cell[4], CELL_BYTES, "%s", tells(list, c));
    snprintf(cell[5], CELL_BYTES, "%s", c->holds);
}

static void print_table(const struct list *list) {
    int width[CELLS];
    char cell[CELLS][CELL_BYTES];
    for (int c = 0; c < CELLS; c++)
        width[c] = (int)strlen(headings[c]);
    for (int pass = 0; pass < 2; pass++) {
        for (int i = pass ? -1 : 0; i < list->count; i++) {
            if (i >= 0 && !list->row[i].count)
                continue;
            if (i >= 0)
                fill_cells(list, &list->row[i], cell);
            for (int c = 0; c < CELLS; c++) {
                const char *text = i < 0 ? headings[c] : cell[c];
                if (!pass && (int)strlen(text) > width[c])
                    width[c] = (int)strlen(text);
                else if (pass)
                    st_out_format(list->out, c == 1 ? "%*s%s" : "%-*s%s",
                                  c == CELLS - 1 ? 0 : width[c], text,
                                  c == CELLS - 1 ? "\n" : "  ");
            }
        }
    }
    const char *gap = "empty: ";
    for (int i = 0; i < list->count; i++)
        if (!list->row[i].count && !list->row[i].column->part) {
            st_out_format(list->out, "%s%s.%s", gap, list->row[i].column->table,
                          list->row[i].column->column);
            gap = ", ";
        }
    st_out_string(list->out, "\n");
}

static int print_list(const struct arguments *a, struct st_error *err) {
    struct list list = {.arguments = a};
    struct st_tape *tape = NULL;
    int rc;
    ST_TRY_OUT(st_tape_open(a->output, &tape, err));
    ST_TRY_OUT(st_out_open(NULL, &list.out, err));
    rc = st_private_inspect(tape, a->json ? print_json : keep_row, &list, err);
    st_progress_end();
    if (!rc && list.failed)
        rc = ST_FAIL_NOMEM(err);
    if (rc)
        goto out;
    if (a->json)
        st_out_string(list.out, "]\n");
    else
        print_table(&list);
    struct st_out *whole = list.out;
    list.out = NULL;
    rc = st_out_finish(whole, err);
out:
    st_out_abort(list.out);
    st_tape_close(tape);
    free(list.row);
    return rc;
}

static int anonymize(const struct arguments *a, struct st_error *err) {
    struct st_tape *tape = NULL;
    struct st_writer *writer = NULL;
    struct st_anonymize_left_out left_out;
    int rc;
    ST_TRY_OUT(st_target_check(a->output, a->input, "the tape", a->force, err));
    ST_TRY_OUT(st_tape_open(a->input, &tape, err));
    ST_TRY_OUT(st_anonymize(tape, a->output, &a->options, &writer, &left_out, err));
    struct st_writer *whole = writer;
    writer = NULL;
    ST_TRY_OUT(st_writer_finish(whole, err));
    st_progress_end();
    st_log(ST_LOG_INFO,
           "%s: %" PRId64 " steps; left out: %" PRId64 " rows of history, %" PRId64
           " notes of the recorder, %" PRId64 " check objects, %" PRId64
           " tables or columns that are not known",
           a->output, st_tape_step_count(tape), left_out.operations, left_out.notes,
           left_out.checks, left_out.unknown);
    rc = print_list(a, err);
out:
    st_progress_end();
    st_writer_abort(writer);
    st_tape_close(tape);
    return rc;
}

static int run(int argc, char **argv) {
    struct arguments a = {0};
    struct st_error err = {0};
    static const struct argp argp = {.options = option_list,
                                     .parser = parse_option,
                                     .args_doc = "X.tape -o OUT.tape",
                                     .doc = doc};
    if (argp_parse(&argp, argc, argv, 0, NULL, &a) != 0)
        return 2;
    st_interrupt_install();
    return anonymize(&a, &err) == 0 ? 0 : st_command_fail(&err);
}

const struct st_command st_cmd_anonymize = {"anonymize", "Tapes",
                                            "copy a tape without what says whose it is", run};
