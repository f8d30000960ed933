/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The two forms of `steptape info`: text for people, one JSON object for programs.
 */
#include <inttypes.h>
#include <sqlite3.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "traces/format/db.h"
#include "traces/info.h"
#include "traces/interchange/lines.h"
#include "traces/interchange/print.h"

static const char graph_modes_sql[] =
    "SELECT graph_mode, count(*), sum(token_count) FROM step GROUP BY graph_mode ORDER BY 2 DESC";
static const char graph_mode_sums_sql[] =
    "SELECT graph_mode, step_count, token_count FROM step_summary ORDER BY 2 DESC";
/* What a recorder says of itself; sequence of a note as steps before it. */
static const char recorder_sql[] =
    "SELECT sequence_count, dropped_count, torn_count, recovered, lost_reason, cost_median_ns,"
    " cost_p999_ns, cost_sum_ns, ring_bytes, byte_count, cost_max_ns FROM recorder";
static const char gaps_sql[] =
    "SELECT * FROM (SELECT count(*) AS n, sum(dropped_count), max(dropped_count) FROM step_gap)"
    " WHERE n > 0";
static const char gap_rows_sql[] =
    "SELECT before_step_id, dropped_count FROM step_gap ORDER BY before_step_id LIMIT 1000";
static const char notes_sql[] =
    "SELECT sequence, key, value FROM recorder_note ORDER BY note_id LIMIT 1000";
static const char parts_sql[] =
    "SELECT name, sum(pgsize) FROM dbstat GROUP BY name ORDER BY 2 DESC, 1";
static const char blobs_sql[] = "SELECT sum(length(facts)), sum(length(block_ids)),"
                                " sum(length(keyframe)) FROM step_block";
static const char checks_sql[] = "SELECT count(*), sum(length(check_json)) FROM step_check";
/* The command line as JSON, and as one line for people. */
static const char operations_sql[] =
    "SELECT time / 1000000000, tool, version,"
    " CASE WHEN json_valid(argv) THEN argv ELSE json_quote(argv) END,"
    " CASE WHEN json_valid(argv) THEN (SELECT group_concat(value, ' ') FROM json_each(argv))"
    "  ELSE argv END FROM operation ORDER BY operation_id";
static const char runs_sql[] =
    "SELECT r.run_id, r.backend, r.device, r.model, r.graph_mode, r.tool_version,"
    " (SELECT count(DISTINCT step_id) FROM run_step AS s WHERE s.run_id = r.run_id),"
    " (SELECT group_concat(policy, ' | ') FROM"
    "   (SELECT DISTINCT policy FROM run_step AS s WHERE s.run_id = r.run_id))"
    " FROM run AS r ORDER BY r.run_id";

static const char sources_sql[] = "SELECT DISTINCT tape_hash FROM run";

/* ---- text */

/* 1234567 as 1,234,567; '-' for what is not known.  Eight results may be alive at once. */
static const char *grouped(int64_t value) {
    static _Thread_local char ring[8][40];
    static _Thread_local unsigned turn;
    char plain[24];
    char *to = ring[turn++ % 8], *text = to;
    if (value == ST_UNKNOWN)
        return "-";
    int n = snprintf(plain, sizeof plain, "%" PRId64, value);
    for (int i = 0; i < n; i++) {
        *to++ = plain[i];
        if (plain[i] != '-' && i + 1 < n && (n - i - 1) % 3 == 0)
            *to++ = ',';
    }
    *to = 0;
    return text;
}

static const char *known(int64_t value) {
    return grouped(value < 0 ? ST_UNKNOWN : value);
}

/* A tape's text may be hostile: no terminal gets its control characters.  As grouped(). */
static const char *text_or_dash(const char *text) {
    static _Thread_local char ring[8][1000];
    static _Thread_local unsigned turn;
    if (!text)
        return "-";
    return st_printable(ring[turn++ % 8], sizeof ring[0], text, strlen(text));
}

static const char *yes_no(int8_t value) {
    return value < 0 ? "-" : value ? "yes" : "no";
}

static const char *column_text(sqlite3_stmt *stmt, int i) {
    return (const char *)sqlite3_column_text(stmt, i);
}

static void put_seconds(struct st_out *out, int64_t ns) {
    if (ns == ST_UNKNOWN)
        st_out_string(out, "-");
    else
        st_out_format(out, "%.3f s", (double)ns / 1e9);
}

/* "0 x2, 4 x21, 128 x20": layers by compression ratio, in order of first appearance. */
static void put_ratios(struct st_out *out, const struct st_header *h) {
    if (h->compress_ratio_count <= 0) {
        st_out_string(out, h->compress_ratio_count < 0 ? "-" : "none");
        return;
    }
    bool first = true;
    for (int32_t i = 0; i < h->compress_ratio_count; i++) {
        int32_t count = 0, seen = 0;
        for (int32_t k = 0; k < h->compress_ratio_count; k++) {
            count += h->compress_ratios[k] == h->compress_ratios[i];
            seen += k < i && h->compress_ratios[k] == h->compress_ratios[i];
        }
        if (seen)
            continue;
        st_out_format(out, "%s%d x%d", first ? "" : ", ", h->compress_ratios[i], count);
        first = false;
    }
}

static void put_header(struct st_out *out, const struct st_header *h) {
    st_out_format(out, "engine         %s %s, runner %s, device %s, rank %s\n",
                  text_or_dash(h->engine), text_or_dash(h->engine_version), text_or_dash(h->runner),
                  text_or_dash(h->device), known(h->rank));
    st_out_format(out, "model          %s (%s)\n", text_or_dash(h->model),
                  text_or_dash(h->architecture));
    st_out_string(out, "layers         by compression ratio: ");
    put_ratios(out, h);
    st_out_format(
        out, "\nlimits         max_model_len %s, max_num_seqs %s, max_num_batched_tokens %s\n",
        known(h->max_model_len), known(h->max_num_seqs), known(h->max_num_batched_tokens));
    st_out_format(out,
                  "settings       %s blocks, prefix caching %s, async scheduling %s, speculative "
                  "%s\n",
                  known(h->num_blocks), yes_no(h->prefix_caching), yes_no(h->async_scheduling),
                  h->speculative ? text_or_dash(h->speculative) : "none");
    if (h->scale)
        st_out_format(out, "scale          %s\n", text_or_dash(h->scale));
    for (int32_t g = 0; g < h->group_count; g++) {
        const struct st_group *group = &h->groups[g];
        st_out_format(out, "%-14s %d: %d tokens a block;", g ? "" : "groups", group->group_id,
                      group->block_size);
        for (int32_t m = 0; m < group->member_count; m++) {
            const struct st_member *member = &group->members[m];
            st_out_format(out, "%s %s x%d ratio %d", m ? "," : "",
                          st_member_kind_name(member->kind), member->layers, member->ratio);
            if (member->window >= 0)
                st_out_format(out, " window %" PRId64, member->window);
        }
        st_out_string(out, "\n");
    }
}

static void put_share(struct st_out *out, const char *label, int64_t count, int64_t total,
                      const char *what) {
    st_out_format(out, "%-14s %s (%.1f %%) %s\n", label, grouped(count),
                  total > 0 ? 100.0 * (double)count / (double)total : 0.0, what);
}

struct printer {
    struct st_info *info;
    struct st_out *out;
    int64_t rows;
};

static void text_graph_mode(sqlite3_stmt *stmt, void *context) {
    struct printer *p = context;
    const char *mode = column_text(stmt, 0);
    st_out_format(p->out, "%-14s %s: %s steps, %s tokens\n", p->rows++ ? "" : "graph mode",
                  mode ? text_or_dash(mode) : "not recorded", grouped(st_db_column(stmt, 1)),
                  grouped(st_db_column(stmt, 2)));
}

static void text_part(sqlite3_stmt *stmt, void *context) {
    struct printer *p = context;
    st_out_format(p->out, "%-14s %s: %s bytes\n", p->rows++ ? "" : "pages of",
                  text_or_dash(column_text(stmt, 0)), grouped(st_db_column(stmt, 1)));
}

static void text_blobs(sqlite3_stmt *stmt, void *context) {
    struct printer *p = context;
    st_out_format(p->out, "packed         facts %s, block ids %s, allocator keyframes %s bytes\n",
                  grouped(st_db_column(stmt, 0)), grouped(st_db_column(stmt, 1)),
                  grouped(st_db_column(stmt, 2)));
}

static void text_checks(sqlite3_stmt *stmt, void *context) {
    struct printer *p = context;
    if (st_db_column(stmt, 0) > 0)
        st_out_format(p->out, "checks         %s steps with what the engine held, %s bytes\n",
                      grouped(st_db_column(stmt, 0)), grouped(st_db_column(stmt, 1)));
}

static void text_operation(sqlite3_stmt *stmt, void *context) {
    struct printer *p = context;
    char when[32] = "-";
    int64_t seconds = st_db_column(stmt, 0);
    time_t t = (time_t)seconds;
    struct tm tm;
    if (seconds != ST_UNKNOWN && gmtime_r(&t, &tm))
        strftime(when, sizeof when, "%Y-%m-%dT%H:%M:%SZ", &tm);
    st_out_format(p->out, "%-14s %s %s (%s %s)\n", p->rows++ ? "" : "history", when,
                  text_or_dash(column_text(stmt, 4)), text_or_dash(column_text(stmt, 1)),
                  text_or_dash(column_text(stmt, 2)));
}

static void text_source(sqlite3_stmt *stmt, void *context) {
    struct printer *p = context;
    st_out_format(p->out, "%-14s %s\n", p->rows++ ? "" : "made from hash",
                  text_or_dash(column_text(stmt, 0)));
}

static void text_run(sqlite3_stmt *stmt, void *context) {
    struct printer *p = context;
    st_out_format(p->out,
                  "%-14s %s: %s, device %s, model %s, graph mode %s, %s steps, policies %s\n",
                  p->rows++ ? "" : "runs", grouped(st_db_column(stmt, 0)),
                  text_or_dash(column_text(stmt, 1)), text_or_dash(column_text(stmt, 2)),
                  text_or_dash(column_text(stmt, 3)), text_or_dash(column_text(stmt, 4)),
                  grouped(st_db_column(stmt, 6)), text_or_dash(column_text(stmt, 7)));
}

static void put_steps(struct st_out *out, const struct st_info *info) {
    st_out_format(out, "steps          %s", grouped(info->step_count));
    if (info->step_count > 0)
        st_out_format(out, " (%s to %s)", grouped(info->first_step), grouped(info->last_step));
    st_out_string(out, ", ");
    int64_t elapsed;
    if (info->begin_ns == ST_UNKNOWN || info->end_ns == ST_UNKNOWN ||
        __builtin_sub_overflow(info->end_ns, info->begin_ns, &elapsed))
        elapsed = ST_UNKNOWN;
    put_seconds(out, elapsed);
    st_out_string(out, " from first to last, ");
    put_seconds(out, info->busy_ns);
    st_out_string(out, " in steps\n");
    if (!info->is_result)
        st_out_format(out, "requests       %s; %s preemptions\n", grouped(info->request_count),
                      grouped(info->preempted_count));
    st_out_format(out, "rows           %s request-steps: %s decode; at most %s in a step\n",
                  grouped(info->request_step_count), grouped(info->decode_count),
                  grouped(info->max_request_count));
    st_out_format(out,
                  "tokens         %s, %s of them prefill; longest query %s, longest context %s\n",
                  grouped(info->token_count), grouped(info->prefill_token_count),
                  grouped(info->max_query_len), grouped(info->max_seq_len));
}

static void put_ids(struct st_out *out, const struct st_info *info) {
    st_out_format(out, "block ids      %s appended\n", grouped(info->block_id_count));
}

static void put_c128(struct st_out *out, const struct st_info *info) {
    put_share(out, "c128", info->c128_closes, info->step_count, "steps close a group of 128");
    put_share(out, "", info->c128_none + info->c128_none_full, info->step_count,
              "steps do not: nothing for a c128 compressor to do");
    put_share(out, "", info->c128_none_full, info->step_count,
              "steps do not, and the engine ran them as FULL graphs");
    put_share(out, "", info->c128_unknown, info->step_count,
              "steps had no starts on the CPU: the engine could not know");
    put_share(out, "", info->c128_empty, info->step_count, "steps had no tokens");
}

static int each(struct printer *p, const char *sql, void (*row)(sqlite3_stmt *, void *),
                struct st_error *err) {
    p->rows = 0;
    return st_info_each(p->info, sql, row, p, err);
}

static void put_cost(struct st_out *out, sqlite3_stmt *stmt, int column) {
    double ns = (double)sqlite3_column_int64(stmt, column);
    if (sqlite3_column_type(stmt, column) == SQLITE_NULL)
        st_out_string(out, "-");
    else if (ns < 1e6)
        st_out_format(out, "%.2f us", ns / 1e3);
    else
        st_out_format(out, "%.2f ms", ns / 1e6);
}

static void text_recorder(sqlite3_stmt *stmt, void *context) {
    struct printer *p = context;
    st_out_format(p->out, "recorder       %s steps offered, %s dropped%s%s\n",
                  grouped(st_db_column(stmt, 0)), grouped(st_db_column(stmt, 1)),
                  sqlite3_column_int64(stmt, 2) ? ", one cut off" : "",
                  sqlite3_column_int64(stmt, 3) ? "; the engine ended without closing it" : "");
    if (sqlite3_column_type(stmt, 4) != SQLITE_NULL)
        st_out_format(p->out, "               recording ended early: %s\n",
                      text_or_dash(column_text(stmt, 4)));
    st_out_string(p->out, "               cost a step: ");
    put_cost(p->out, stmt, 5);
    st_out_string(p->out, " (median), ");
    put_cost(p->out, stmt, 6);
    st_out_string(p->out, " (p99.9), ");
    put_cost(p->out, stmt, 10);
    st_out_string(p->out, " (most); in all ");
    put_cost(p->out, stmt, 7);
    st_out_string(p->out, "\n");
}

static void text_gaps(sqlite3_stmt *stmt, void *context) {
    struct printer *p = context;
    st_out_format(p->out, "gaps           %s steps are missing in %s places, at most %s in one\n",
                  grouped(st_db_column(stmt, 1)), grouped(st_db_column(stmt, 0)),
                  grouped(st_db_column(stmt, 2)));
}

static void text_note(sqlite3_stmt *stmt, void *context) {
    struct printer *p = context;
    st_out_format(p->out, "%-14s %s: %s (step %s)\n", p->rows++ ? "" : "notes",
                  text_or_dash(column_text(stmt, 1)), text_or_dash(column_text(stmt, 2)),
                  grouped(st_db_column(stmt, 0)));
}

int st_info_print_table(struct st_info *info, struct st_out *out, struct st_error *err) {
    struct printer p = {.info = info, .out = out};
    st_out_format(out, "file           %s: %s, %s bytes\n", info->path,
                  info->is_result ? "result tape" : "tape", grouped(info->size_bytes));
    if (info->is_result)
        ST_TRY(each(&p, sources_sql, text_source, err));
    else
        st_out_format(out, "hash           %s\n", st_tape_hash(info->tape));
    put_header(out, info->header);
    put_steps(out, info);
    ST_TRY(each(&p, info->has_sums ? graph_mode_sums_sql : graph_modes_sql, text_graph_mode, err));
    if (info->is_result) {
        ST_TRY(each(&p, runs_sql, text_run, err));
    } else {
        put_ids(out, info);
        put_c128(out, info);
        ST_TRY(each(&p, recorder_sql, text_recorder, err));
        ST_TRY(each(&p, gaps_sql, text_gaps, err));
        ST_TRY(each(&p, notes_sql, text_note, err));
    }
    ST_TRY(each(&p, parts_sql, text_part, err));
    if (!info->is_result) {
        ST_TRY(each(&p, blobs_sql, text_blobs, err));
        ST_TRY(each(&p, checks_sql, text_checks, err));
    }
    return each(&p, operations_sql, text_operation, err);
}

/* ---- JSON */

static void json_header(struct st_out *out, const struct st_header *h) {
    st_print_text(out, ",\n \"engine\":", h->engine);
    st_print_text(out, ",\"engine_version\":", h->engine_version);
    st_print_text(out, ",\"runner\":", h->runner);
    st_print_text(out, ",\"device\":", h->device);
    st_print_number(out, ",\"rank\":", h->rank, -1);
    st_print_text(out, ",\n \"model\":", h->model);
    st_print_text(out, ",\"architecture\":", h->architecture);
    st_out_string(out, ",\"compress_ratios\":");
    if (h->compress_ratio_count < 0) {
        st_out_string(out, "null");
    } else {
        st_out_string(out, "[");
        st_out_ints32(out, h->compress_ratios, h->compress_ratio_count);
        st_out_string(out, "]");
    }
    st_print_number(out, ",\n \"max_model_len\":", h->max_model_len, -1);
    st_print_number(out, ",\"max_num_seqs\":", h->max_num_seqs, -1);
    st_print_number(out, ",\"max_num_batched_tokens\":", h->max_num_batched_tokens, -1);
    st_print_number(out, ",\"num_blocks\":", h->num_blocks, -1);
    st_print_bool(out, ",\"prefix_caching\":", h->prefix_caching);
    st_print_bool(out, ",\"async_scheduling\":", h->async_scheduling);
    st_out_string(out, ",\"speculative\":");
    st_out_json(out, h->speculative ? h->speculative : "null");
    st_print_text(out, ",\n \"scale\":", h->scale);
    st_out_string(out, ",\n \"groups\":");
    st_print_groups(out, h, "\n  ");
}

static void json_separate(struct printer *p, const char *gap) {
    st_out_string(p->out, p->rows++ ? "," : "");
    st_out_string(p->out, gap);
}

static void json_graph_mode(sqlite3_stmt *stmt, void *context) {
    struct printer *p = context;
    json_separate(p, "");
    st_print_text(p->out, "{\"graph_mode\":", column_text(stmt, 0));
    st_print_number(p->out, ",\"steps\":", st_db_column(stmt, 1), ST_UNKNOWN);
    st_print_number(p->out, ",\"tokens\":", st_db_column(stmt, 2), ST_UNKNOWN);
    st_out_string(p->out, "}");
}

static void json_part(sqlite3_stmt *stmt, void *context) {
    struct printer *p = context;
    json_separate(p, "");
    st_out_json_string(p->out, column_text(stmt, 0));
    st_print_number(p->out, ":", st_db_column(stmt, 1), ST_UNKNOWN);
}

static void json_blobs(sqlite3_stmt *stmt, void *context) {
    struct printer *p = context;
    st_print_number(p->out, ",\n \"packed_bytes\":{\"facts\":", st_db_column(stmt, 0), ST_UNKNOWN);
    st_print_number(p->out, ",\"block_ids\":", st_db_column(stmt, 1), ST_UNKNOWN);
    st_print_number(p->out, ",\"keyframes\":", st_db_column(stmt, 2), ST_UNKNOWN);
    st_out_string(p->out, "}");
}

static void json_checks(sqlite3_stmt *stmt, void *context) {
    struct printer *p = context;
    st_print_number(p->out, ",\n \"checks\":{\"steps\":", st_db_column(stmt, 0), ST_UNKNOWN);
    st_print_number(p->out, ",\"bytes\":", st_db_column(stmt, 1), ST_UNKNOWN);
    st_out_string(p->out, "}");
}

static void json_operation(sqlite3_stmt *stmt, void *context) {
    struct printer *p = context;
    json_separate(p, "\n  ");
    st_print_number(p->out, "{\"time_unix\":", st_db_column(stmt, 0), ST_UNKNOWN);
    st_print_text(p->out, ",\"tool\":", column_text(stmt, 1));
    st_print_text(p->out, ",\"version\":", column_text(stmt, 2));
    st_out_string(p->out, ",\"argv\":");
    st_out_json(p->out, column_text(stmt, 3) ? column_text(stmt, 3) : "null");
    st_out_string(p->out, "}");
}

static void json_source(sqlite3_stmt *stmt, void *context) {
    struct printer *p = context;
    json_separate(p, "");
    st_out_json_string(p->out, column_text(stmt, 0));
}

static void json_run(sqlite3_stmt *stmt, void *context) {
    struct printer *p = context;
    json_separate(p, "\n  ");
    st_print_number(p->out, "{\"run_id\":", st_db_column(stmt, 0), ST_UNKNOWN);
    st_print_text(p->out, ",\"backend\":", column_text(stmt, 1));
    st_print_text(p->out, ",\"device\":", column_text(stmt, 2));
    st_print_text(p->out, ",\"model\":", column_text(stmt, 3));
    st_print_text(p->out, ",\"graph_mode\":", column_text(stmt, 4));
    st_print_text(p->out, ",\"tool_version\":", column_text(stmt, 5));
    st_print_number(p->out, ",\"steps\":", st_db_column(stmt, 6), ST_UNKNOWN);
    st_print_text(p->out, ",\"policies\":", column_text(stmt, 7));
    st_out_string(p->out, "}");
}

static void json_steps(struct st_out *out, const struct st_info *info) {
    st_print_number(out, ",\n \"steps\":{\"count\":", info->step_count, ST_UNKNOWN);
    st_print_number(out, ",\"first\":", info->first_step, ST_UNKNOWN);
    st_print_number(out, ",\"last\":", info->last_step, ST_UNKNOWN);
    st_print_number(out, ",\"begin_ns\":", info->begin_ns, ST_UNKNOWN);
    st_print_number(out, ",\"end_ns\":", info->end_ns, ST_UNKNOWN);
    st_print_number(out, ",\"busy_ns\":", info->busy_ns, ST_UNKNOWN);
    st_print_number(out, ",\n  \"requests\":", info->is_result ? ST_UNKNOWN : info->request_count,
                    ST_UNKNOWN);
    st_print_number(out, ",\"block_ids\":", info->is_result ? ST_UNKNOWN : info->block_id_count,
                    ST_UNKNOWN);
    st_print_number(out, ",\"preemptions\":", info->preempted_count, ST_UNKNOWN);
    st_print_number(out, ",\"request_steps\":", info->request_step_count, ST_UNKNOWN);
    st_print_number(out, ",\"decodes\":", info->decode_count, ST_UNKNOWN);
    st_print_number(out, ",\"tokens\":", info->token_count, ST_UNKNOWN);
    st_print_number(out, ",\"prefill_tokens\":", info->prefill_token_count, ST_UNKNOWN);
    st_print_number(out, ",\"max_requests\":", info->max_request_count, ST_UNKNOWN);
    st_print_number(out, ",\"max_query_len\":", info->max_query_len, ST_UNKNOWN);
    st_print_number(out, ",\"max_seq_len\":", info->max_seq_len, ST_UNKNOWN);
    if (!info->is_result)
        st_out_format(out,
                      ",\n  \"c128\":{\"closes\":%" PRId64 ",\"closes_none\":%" PRId64
                      ",\"closes_none_in_full\":%" PRId64 ",\"unknown\":%" PRId64
                      ",\"empty\":%" PRId64 "}",
                      info->c128_closes, info->c128_none + info->c128_none_full,
                      info->c128_none_full, info->c128_unknown, info->c128_empty);
}

static void json_recorder(sqlite3_stmt *stmt, void *context) {
    static const char *const keys[] = {"{\"offered\":",
                                       ",\"dropped\":",
                                       ",\"cut_off\":",
                                       ",\"recovered\":",
                                       NULL,
                                       ",\"cost_median_ns\":",
                                       ",\"cost_p999_ns\":",
                                       ",\"cost_sum_ns\":",
                                       ",\"ring_bytes\":",
                                       ",\"bytes\":",
                                       ",\"cost_max_ns\":"};
    struct printer *p = context;
    p->rows++;
    for (int i = 0; i < 11; i++)
        if (keys[i])
            st_print_number(p->out, keys[i], st_db_column(stmt, i), ST_UNKNOWN);
    st_print_text(p->out, ",\"lost_reason\":", column_text(stmt, 4));
    st_out_string(p->out, "}");
}

static void json_gap(sqlite3_stmt *stmt, void *context) {
    struct printer *p = context;
    json_separate(p, "");
    st_print_number(p->out, "{\"before_step\":", st_db_column(stmt, 0), ST_UNKNOWN);
    st_print_number(p->out, ",\"dropped\":", st_db_column(stmt, 1), ST_UNKNOWN);
    st_out_string(p->out, "}");
}

static void json_note(sqlite3_stmt *stmt, void *context) {
    struct printer *p = context;
    json_separate(p, "");
    st_print_number(p->out, "{\"sequence\":", st_db_column(stmt, 0), ST_UNKNOWN);
    st_print_text(p->out, ",\"key\":", column_text(stmt, 1));
    st_print_text(p->out, ",\"value\":", column_text(stmt, 2));
    st_out_string(p->out, "}");
}

/* null: nobody recorded it. */
static int json_recording(struct printer *p, struct st_error *err) {
    if (p->info->is_result)
        return ST_OK;
    st_out_string(p->out, ",\n \"recorder\":");
    ST_TRY(each(p, recorder_sql, json_recorder, err));
    st_out_string(p->out, p->rows ? "" : "null");
    st_out_string(p->out, ",\n \"gaps\":[");
    ST_TRY(each(p, gap_rows_sql, json_gap, err));
    st_out_string(p->out, "],\"notes\":[");
    ST_TRY(each(p, notes_sql, json_note, err));
    st_out_string(p->out, "]");
    return ST_OK;
}

int st_info_print_json(struct st_info *info, struct st_out *out, struct st_error *err) {
    struct printer p = {.info = info, .out = out};
    st_print_text(out, "{\"file\":", info->path);
    st_print_text(out, ",\"kind\":", info->is_result ? "result" : "tape");
    st_print_number(out, ",\"bytes\":", info->size_bytes, ST_UNKNOWN);
    st_print_text(out, ",\"hash\":", info->is_result ? NULL : st_tape_hash(info->tape));
    if (info->is_result) {
        st_out_string(out, ",\"source_hashes\":[");
        ST_TRY(each(&p, sources_sql, json_source, err));
        st_out_string(out, "]");
    }
    json_header(out, info->header);
    json_steps(out, info);
    st_out_string(out, ",\n  \"graph_modes\":[");
    ST_TRY(each(&p, info->has_sums ? graph_mode_sums_sql : graph_modes_sql, json_graph_mode, err));
    st_out_string(out, "]}");
    ST_TRY(json_recording(&p, err));
    if (info->is_result) {
        st_out_string(out, ",\n \"runs\":[");
        ST_TRY(each(&p, runs_sql, json_run, err));
        st_out_string(out, "]");
    }
    st_out_string(out, ",\n \"page_bytes\":{");
    ST_TRY(each(&p, parts_sql, json_part, err));
    st_out_string(out, "}");
    if (!info->is_result) {
        ST_TRY(each(&p, blobs_sql, json_blobs, err));
        ST_TRY(each(&p, checks_sql, json_checks, err));
    }
    st_out_string(out, ",\n \"history\":[");
    ST_TRY(each(&p, operations_sql, json_operation, err));
    st_out_string(out, "]}\n");
    return 0;
}
