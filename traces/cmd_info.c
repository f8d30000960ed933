/* SPDX-License-Identifier: Apache-2.0 */
/*
 * steptape info: what is in a tape or in a result tape.  Gathered here, printed by info_print.c.
 */
#include <argp.h>
#include <sqlite3.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "traces/base/log.h"
#include "traces/commands.h"
#include "traces/format/db.h"
#include "traces/format/reader.h"
#include "traces/format/sums.h"
#include "traces/info.h"

struct arguments {
    const char *input;
    const char *output; /* NULL: stdout */
    bool json;
};

enum { OPT_FORMAT = 0x100 };

static const char doc[] =
    "Say what is in a tape: the engine and its KV cache groups, steps, requests and tokens, graph "
    "modes, what the file's bytes are, and the history of the file. Of a result tape, its runs."
    "\v"
    "Examples:\n"
    "  steptape info x.tape\n"
    "  steptape info x.tape --format=json | jq .steps.graph_modes\n"
    "\n"
    "The lines 'c128' count steps by whether a token of theirs closes a group of 128 positions. "
    "Where none does, the two c128 compressor kernels have nothing to do. Steps whose starts the "
    "engine did not have on the CPU are counted apart: it could not know.\n"
    "What is not known is '-', and null in JSON.\n"
    "\n"
    "Exit status: 0 done; 1 the tape is damaged, or no tape; 2 wrong command line; 130 "
    "interrupted.";

static const struct argp_option option_list[] = {
    {"format", OPT_FORMAT, "table|json", 0, "Text for people (default), or one JSON object", 0},
    {"output", 'o', "FILE", 0, "Write FILE instead of standard output", 0},
    {0},
};

static error_t parse_option(int key, char *arg, struct argp_state *state) {
    struct arguments *a = state->input;
    switch (key) {
    case OPT_FORMAT:
        a->json = strcmp(arg, "json") == 0;
        if (!a->json && strcmp(arg, "table") != 0)
            argp_error(state, "--format=%s: table or json was expected", arg);
        return 0;
    case 'o':
        a->output = arg;
        return 0;
    default:
        return st_command_parse_tape(key, arg, state, &a->input, "steptape info X.tape");
    }
}

/* A tape of format 1 has no sums: they are made of its steps. */
static int walk_steps(struct st_info *info, struct st_step_sums *sums, struct st_error *err) {
    struct st_cursor *cursor;
    const struct st_step *step;
    struct st_step_summary summary;
    int64_t count = 0;
    int rc;
    ST_TRY(st_cursor_open(info->tape, ST_READ_BLOCKS, &cursor, err));
    while ((rc = st_cursor_next(cursor, &step, err)) == 0) {
        st_step_summarize(step, &summary);
        st_sums_add(sums, step, &summary);
        st_progress("info", ++count, st_tape_step_count(info->tape));
        if (st_interrupted()) {
            rc = ST_FAIL(err, ST_ERR_INTERRUPTED, "%.200s: interrupted", info->path);
            break;
        }
    }
    st_progress_end();
    st_cursor_close(cursor);
    return rc == ST_DONE ? 0 : rc;
}

static int read_sums(struct st_info *info, struct st_error *err) {
    struct st_step_sums sums;
    ST_TRY(st_sums_load(info->db, info->path, &sums, &info->has_sums, err));
    if (!info->has_sums)
        ST_TRY(walk_steps(info, &sums, err));
    const struct {
        int64_t *to;
        enum st_sum from;
    } fields[] = {
        {&info->step_count, ST_SUM_STEPS},
        {&info->begin_ns, ST_SUM_BEGIN_NS},
        {&info->end_ns, ST_SUM_END_NS},
        {&info->busy_ns, ST_SUM_BUSY_NS},
        {&info->request_step_count, ST_SUM_REQUEST_STEPS},
        {&info->token_count, ST_SUM_TOKENS},
        {&info->decode_count, ST_SUM_DECODES},
        {&info->prefill_token_count, ST_SUM_PREFILL_TOKENS},
        {&info->max_request_count, ST_SUM_MAX_REQUESTS},
        {&info->max_query_len, ST_SUM_MAX_QUERY_LEN},
        {&info->max_seq_len, ST_SUM_MAX_SEQ_LEN},
        {&info->preempted_count, ST_SUM_PREEMPTED},
        {&info->request_count, ST_SUM_NEW_REQUESTS},
        {&info->block_id_count, ST_SUM_BLOCK_IDS},
        {&info->c128_closes, ST_SUM_C128_CLOSES},
        {&info->c128_none, ST_SUM_C128_NONE},
        {&info->c128_unknown, ST_SUM_C128_UNKNOWN},
        {&info->c128_empty, ST_SUM_C128_EMPTY},
    };
    for (size_t i = 0; i < sizeof fields / sizeof fields[0]; i++)
        *fields[i].to = st_sums_total(&sums, fields[i].from);
    info->c128_none_full = sums.mode[ST_GRAPH_MODE_FULL + 1][ST_SUM_C128_NONE];
    info->c128_none -= info->c128_none_full;
    info->first_step = info->step_count ? st_tape_first_step(info->tape) : ST_UNKNOWN;
    info->last_step = info->step_count ? info->first_step + info->step_count - 1 : ST_UNKNOWN;
    return ST_OK;
}

static int read_step_facts(struct st_info *info, struct st_error *err) {
    static const char sql[] =
        "SELECT count(*), min(step_id), max(step_id), min(start_ns), max(start_ns + duration_ns),"
        " sum(duration_ns), sum(request_count), sum(token_count), sum(decode_count),"
        " sum(prefill_token_count), max(request_count), max(max_query_len), max(max_seq_len),"
        " sum(preempted_count) FROM step";
    int64_t *const to[] = {&info->step_count,
                           &info->first_step,
                           &info->last_step,
                           &info->begin_ns,
                           &info->end_ns,
                           &info->busy_ns,
                           &info->request_step_count,
                           &info->token_count,
                           &info->decode_count,
                           &info->prefill_token_count,
                           &info->max_request_count,
                           &info->max_query_len,
                           &info->max_seq_len,
                           &info->preempted_count};
    sqlite3_stmt *stmt;
    ST_TRY(st_db_prepare(info->db, info->path, sql, &stmt, err));
    int rc = sqlite3_step(stmt) == SQLITE_ROW ? 0 : st_db_fail(info->db, info->path, err);
    for (int i = 0; rc == 0 && i < (int)(sizeof to / sizeof to[0]); i++)
        *to[i] = st_db_column(stmt, i);
    sqlite3_finalize(stmt);
    return rc;
}

int st_info_each(struct st_info *info, const char *sql,
                 void (*row)(struct sqlite3_stmt *stmt, void *context), void *context,
                 struct st_error *err) {
    sqlite3_stmt *stmt;
    if (sqlite3_prepare_v2(info->db, sql, -1, &stmt, NULL) != SQLITE_OK)
        return 0;
    int rc;
    while ((rc = sqlite3_step(stmt)) == SQLITE_ROW)
        row(stmt, context);
    rc = rc == SQLITE_DONE ? 0 : st_db_fail(info->db, info->path, err);
    sqlite3_finalize(stmt);
    return rc;
}

static int gather(const struct arguments *a, struct st_info *info, struct st_error *err) {
    struct stat st;
    info->path = a->input;
    info->db = st_tape_db(info->tape);
    info->header = st_tape_header(info->tape);
    info->is_result = st_tape_is_result(info->tape);
    info->size_bytes = stat(a->input, &st) == 0 ? (int64_t)st.st_size : ST_UNKNOWN;
    return info->is_result ? read_step_facts(info, err) : read_sums(info, err);
}

static int show(const struct arguments *a, struct st_error *err) {
    struct st_info info = {0};
    struct st_out *out = NULL;
    int rc;
    ST_TRY_OUT(st_tape_open(a->input, &info.tape, err));
    ST_TRY_OUT(gather(a, &info, err));
    ST_TRY_OUT(st_out_open(a->output, &out, err));
    ST_TRY_OUT(a->json ? st_info_print_json(&info, out, err)
                       : st_info_print_table(&info, out, err));
    struct st_out *whole = out;
    out = NULL;
    rc = st_out_finish(whole, err);
out:
    st_out_abort(out);
    st_tape_close(info.tape);
    return rc;
}

static int run(int argc, char **argv) {
    struct arguments a = {0};
    struct st_error err = {0};
    static const struct argp argp = {
        .options = option_list, .parser = parse_option, .args_doc = "X.tape", .doc = doc};
    if (argp_parse(&argp, argc, argv, 0, NULL, &a) != 0)
        return 2;
    st_interrupt_install();
    return show(&a, &err) == 0 ? 0 : st_command_fail(&err);
}

const struct st_command st_cmd_info = {"info", "Tapes", "say what is in a tape", run};
