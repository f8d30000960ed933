/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Every column that a tape can have: what anonymize does to it and what it tells afterwards.
 *
 * A column that is new in the format belongs here as well, or tapes that use it are refused.
 */
#include <inttypes.h>
#include <sqlite3.h>
#include <stdio.h>
#include <string.h>

#include "traces/anonymize.h"
#include "traces/base/log.h"
#include "traces/format/db.h"

#define COLUMN(table, column, treatment, tells, holds)                                             \
    { table, column, NULL, treatment, tells, holds, ST_KEEP_NEVER }
#define OPTION(table, column, treatment, tells, holds, keep)                                       \
    { table, column, NULL, treatment, tells, holds, keep }
#define PART(table, column, part, treatment, tells, holds)                                         \
    { table, column, part, treatment, tells, holds, ST_KEEP_NEVER }

const struct st_private_column st_private_columns[] = {
    COLUMN("tape", "format_version", "new", "nothing", "format of the file"),
    COLUMN("tape", "kind", "new", "nothing", "'tape'"),
    COLUMN("tape", "engine", "reduced", "nothing", "a public engine's name, or nothing"),
    COLUMN("tape", "engine_version", "reduced", "setup", "up to three numbers of it"),
    COLUMN("tape", "runner", "reduced", "nothing", "V1 or V2"),
    COLUMN("tape", "device", "reduced", "nothing", "cuda, cpu or none"),
    OPTION("tape", "model", "removed", "identity", "name or path of the model", ST_KEEP_MODEL),
    OPTION("tape", "architecture", "reduced", "model", "a public architecture, or nothing",
           ST_KEEP_MODEL),
    COLUMN("tape", "compress_ratios", "kept", "model", "a compression ratio a layer"),
    COLUMN("tape", "max_model_len", "kept", "setup", "setting of the engine"),
    COLUMN("tape", "max_num_seqs", "kept", "setup", "setting of the engine"),
    COLUMN("tape", "max_num_batched_tokens", "kept", "setup", "setting of the engine"),
    COLUMN("tape", "num_blocks", "kept", "setup",
           "blocks of the cache: follow from the GPU's room"),
    COLUMN("tape", "prefix_caching", "kept", "nothing", "1 or 0"),
    COLUMN("tape", "async_scheduling", "kept", "nothing", "1 or 0"),
    COLUMN("tape", "speculative", "reduced", "setup", "public method, number of tokens"),
    COLUMN("tape", "rank", "kept", "setup", "rank of the process"),
    OPTION("tape", "clock_monotonic_ns", "removed", "identity", "clock since the host's start",
           ST_KEEP_TIMES),
    OPTION("tape", "clock_realtime_ns", "removed", "identity", "the same moment by date",
           ST_KEEP_TIMES),
    COLUMN("tape", "scale", "reduced", "nothing", "that lengths or time were scaled, not how"),
    OPTION("tape", "created", "new", "nothing", "day on which this copy was made", ST_KEEP_TIMES),
    COLUMN("tape", "recorder_cost_ns", "kept", "nothing", "what recording cost the engine"),
    COLUMN("tape", "allocator_model", "new", "nothing", "how block ids are coded"),
    COLUMN("tape", "source_hash", "removed", "identity", "of result tapes"),
    COLUMN("kv_group", "group_id", "kept", "nothing", "number of the group"),
    COLUMN("kv_group", "block_size", "kept", "model", "tokens a block"),
    COLUMN("kv_group", "member", "kept", "nothing", "number of the member"),
    COLUMN("kv_group", "kind", "kept", "model", "kind of cache"),
    COLUMN("kv_group", "layers", "kept", "model", "layers of that kind"),
    COLUMN("kv_group", "ratio", "kept", "model", "tokens an entry"),
    COLUMN("kv_group", "window", "kept", "model", "tokens of a sliding window"),
    COLUMN("kv_group", "page_bytes", "kept", "model", "bytes a block"),
    COLUMN("step", "step_id", "kept", "nothing", "number of the step"),
    OPTION("step", "start_ns", "relative", "traffic",
           "time since the first of this column and of launches", ST_KEEP_TIMES),
    COLUMN("step", "duration_ns", "kept", "traffic", "how long it took"),
    COLUMN("step", "request_count", "kept", "traffic", "size of the batch"),
    COLUMN("step", "token_count", "kept", "traffic", "tokens of the batch"),
    COLUMN("step", "decode_count", "kept", "traffic", "rows that decode"),
    COLUMN("step", "prefill_token_count", "kept", "traffic", "tokens of the others"),
    COLUMN("step", "max_query_len", "kept", "traffic", "longest query"),
    COLUMN("step", "max_seq_len", "kept", "traffic", "longest context"),
    COLUMN("step", "graph_mode", "kept", "nothing", "NONE, PIECEWISE or FULL"),
    COLUMN("step", "padded_token_count", "kept", "setup", "size that the engine ran"),
    COLUMN("step", "padded_request_count", "kept", "setup", "size that the engine ran"),
    COLUMN("step", "preempted_count", "kept", "traffic", "requests put off"),
    COLUMN("operation", "operation_id", "new", "nothing", "one row: this copy; older ones removed"),
    COLUMN("operation", "tool", "new", "nothing", "steptape"),
    COLUMN("operation", "version", "new", "nothing", "of the steptape that copied"),
    COLUMN("operation", "source_commit", "new", "nothing", "of the steptape that copied"),
    COLUMN("operation", "argv", "new", "nothing", "its options, without names of files"),
    OPTION("operation", "time", "new", "nothing", "day of the copy", ST_KEEP_TIMES),
    COLUMN("step_block", "first_step", "kept", "nothing", "number of a step"),
    COLUMN("step_block", "step_count", "kept", "nothing", "steps of the block"),
    COLUMN("step_block", "facts", "new", "traffic", "packed; bytes a block. In it:"),
    PART("step_block", "facts", "request numbers", "renumbered", "traffic",
         "which rows are one request"),
    PART("step_block", "facts", "prompt lengths", "kept", "traffic", "tokens of a prompt"),
    PART("step_block", "facts", "query lengths", "kept", "traffic", "tokens scheduled"),
    PART("step_block", "facts", "starts", "kept", "traffic", "tokens computed before"),
    PART("step_block", "facts", "draft tokens", "kept", "traffic", "how many, of a row"),
    PART("step_block", "facts", "zeroed blocks", "kept", "traffic", "how many, of a step"),
    COLUMN("step_block", "block_ids", "new", "traffic", "packed; bytes a block. In it:"),
    PART("step_block", "block_ids", "block ids", "kept", "traffic",
         "places in the cache: which requests share a prefix"),
    COLUMN("step_block", "keyframe", "new", "traffic", "packed; bytes: the same ids again"),
    OPTION("step_check", "step_id", "removed", "nothing", "number of a step", ST_KEEP_CHECK),
    OPTION("step_check", "check_json", "removed", "traffic",
           "packed; bytes: arrays of numbers that the engine held", ST_KEEP_CHECK),
    COLUMN("step_summary", "graph_mode", "new", "nothing", "sums over the steps above, by mode"),
    COLUMN("step_summary", "step_count", "new", "traffic", "steps"),
    COLUMN("step_summary", "request_step_count", "new", "traffic", "rows of all batches"),
    COLUMN("step_summary", "token_count", "new", "traffic", "tokens"),
    COLUMN("step_summary", "decode_count", "new", "traffic", "rows that decode"),
    COLUMN("step_summary", "prefill_token_count", "new", "traffic", "tokens of the others"),
    COLUMN("step_summary", "preempted_count", "new", "traffic", "requests put off"),
    COLUMN("step_summary", "request_count", "new", "traffic", "requests"),
    COLUMN("step_summary", "block_id_count", "new", "traffic", "block ids"),
    COLUMN("step_summary", "max_request_count", "new", "traffic", "largest batch"),
    COLUMN("step_summary", "max_query_len", "new", "traffic", "longest query"),
    COLUMN("step_summary", "max_seq_len", "new", "traffic", "longest context"),
    OPTION("step_summary", "begin_ns", "relative", "traffic", "as start_ns of step", ST_KEEP_TIMES),
    OPTION("step_summary", "end_ns", "relative", "traffic", "as start_ns of step", ST_KEEP_TIMES),
    COLUMN("step_summary", "busy_ns", "new", "traffic", "sum of durations"),
    COLUMN("step_summary", "c128_closes", "new", "traffic", "steps that close a group of 128"),
    COLUMN("step_summary", "c128_none", "new", "traffic", "steps that do not"),
    COLUMN("step_summary", "c128_unknown", "new", "traffic", "steps without starts"),
    COLUMN("step_summary", "c128_empty", "new", "traffic", "steps without tokens"),
    COLUMN("recorder", "sequence_count", "kept", "nothing", "steps offered"),
    COLUMN("recorder", "dropped_count", "kept", "nothing", "steps dropped"),
    COLUMN("recorder", "torn_count", "kept", "nothing", "steps cut off by the end"),
    COLUMN("recorder", "recovered", "kept", "nothing", "1: the recording was not closed"),
    COLUMN("recorder", "lost_reason", "reduced", "nothing", "that it ended early, not why"),
    COLUMN("recorder", "ring_bytes", "kept", "nothing", "size of the ring"),
    COLUMN("recorder", "byte_count", "kept", "nothing", "bytes through the ring"),
    COLUMN("recorder", "cost_sum_ns", "kept", "nothing", "what recording cost"),
    COLUMN("recorder", "cost_median_ns", "kept", "nothing", "of one step"),
    COLUMN("recorder", "cost_p999_ns", "kept", "nothing", "of one step"),
    COLUMN("recorder", "cost_max_ns", "kept", "nothing", "of one step"),
    COLUMN("recorder_note", "note_id", "removed", "nothing", "number of a note"),
    COLUMN("recorder_note", "sequence", "removed", "nothing", "when the plug-in said it"),
    COLUMN("recorder_note", "key", "removed", "identity", "what it said"),
    COLUMN("recorder_note", "value", "removed", "identity", "what it said"),
    COLUMN("step_gap", "before_step_id", "kept", "nothing", "where steps were dropped"),
    COLUMN("step_gap", "dropped_count", "kept", "nothing", "how many"),
    COLUMN("launch_capture", "capture_id", "kept", "nothing", "number of a process"),
    COLUMN("launch_capture", "pid", "removed", "identity", "number of the process on its host"),
    COLUMN("launch_capture", "level", "kept", "nothing", "count, graph, node or full"),
    COLUMN("launch_capture", "counted_by", "kept", "nothing", "hooks or CUPTI callbacks"),
    COLUMN("launch_capture", "cupti_version", "kept", "setup", "version of CUPTI's API"),
    COLUMN("launch_capture", "cupti", "removed", "identity", "path of CUPTI"),
    OPTION("launch_capture", "started_ns", "relative", "nothing", "when capture began",
           ST_KEEP_TIMES),
    COLUMN("launch_capture", "ended", "kept", "nothing", "1: the process ended by itself"),
    COLUMN("launch_capture", "torn_bytes", "kept", "nothing", "of a chunk cut off"),
    COLUMN("launch_capture", "first_name", "kept", "nothing", "number of a name"),
    COLUMN("launch_capture", "first_site", "kept", "nothing", "number of a site"),
    COLUMN("launch_capture", "kernel_launches", "kept", "traffic", "how many"),
    COLUMN("launch_capture", "graph_launches", "kept", "traffic", "how many"),
    COLUMN("launch_capture", "records", "kept", "traffic", "how many"),
    COLUMN("launch_capture", "dropped", "kept", "nothing", "how many"),
    COLUMN("launch_capture", "untimed", "kept", "nothing", "how many"),
    COLUMN("launch_capture", "reversed", "kept", "nothing", "how many"),
    COLUMN("launch_capture", "unattributed", "kept", "nothing", "how many"),
    COLUMN("launch_capture", "missing", "kept", "nothing", "how many"),
    COLUMN("launch_capture", "other", "kept", "nothing", "how many"),
    COLUMN("launch_capture", "steps_lost", "kept", "nothing", "how many"),
    COLUMN("launch_capture", "elsewhere", "kept", "nothing", "how many"),
    COLUMN("launch_capture", "budget_ppm", "kept", "nothing", "what capture might cost"),
    COLUMN("launch_capture", "cost_ppm", "kept", "nothing", "what it cost"),
    COLUMN("launch_capture", "cost_error_ppm", "kept", "nothing", "what it cost"),
    COLUMN("launch_capture", "cost_launch_ps", "kept", "nothing", "what it cost"),
    COLUMN("launch_capture", "note", "removed", "identity", "what it said"),
    COLUMN("launch_event", "event_id", "kept", "nothing", "number of an event"),
    COLUMN("launch_event", "capture_id", "kept", "nothing", "number of a process"),
    OPTION("launch_event", "time_ns", "relative", "nothing", "when", ST_KEEP_TIMES),
    COLUMN("launch_event", "what", "reduced", "nothing",
           "error, window, over budget, level, other"),
    COLUMN("launch_event", "level", "kept", "nothing", "count, graph, node or full"),
    COLUMN("launch_event", "text", "removed", "identity", "what it said"),
    COLUMN("launch_event", "cost_ppm", "kept", "nothing", "what capture cost"),
    COLUMN("launch_event", "cost_error_ppm", "kept", "nothing", "what capture cost"),
    COLUMN("launch_event", "cost_step_ns", "kept", "nothing", "what capture cost"),
    COLUMN("launch_event", "cost_launch_ps", "kept", "nothing", "what capture cost"),
    COLUMN("launch_name", "name_id", "kept", "nothing", "number of a kernel"),
    OPTION("launch_name", "name", "reduced", "model",
           "number and family of a kernel; names of CUDA's calls", ST_KEEP_KERNELS),
    COLUMN("launch_site", "site_id", "kept", "nothing", "number of a site"),
    COLUMN("launch_site", "kind", "kept", "nothing", "kernel, graph, memcpy, memset, api"),
    COLUMN("launch_site", "name_id", "kept", "model", "which kernel"),
    COLUMN("launch_site", "graph_id", "kept", "nothing", "number of a graph"),
    COLUMN("launch_site", "graph_node_id", "kept", "nothing", "number of its node"),
    COLUMN("launch_site", "grid_x", "kept", "model", "size of the launch"),
    COLUMN("launch_site", "grid_y", "kept", "model", "size of the launch"),
    COLUMN("launch_site", "grid_z", "kept", "model", "size of the launch"),
    COLUMN("launch_site", "block_x", "kept", "model", "size of the launch"),
    COLUMN("launch_site", "block_y", "kept", "model", "size of the launch"),
    COLUMN("launch_site", "block_z", "kept", "model", "size of the launch"),
    COLUMN("launch_site", "shared_bytes", "kept", "model", "size of the launch"),
    COLUMN("launch_site", "stream_id", "reduced", "nothing", "number of a stream, or of a thread"),
    COLUMN("launch_site", "device_id", "kept", "setup", "number of a GPU"),
    COLUMN("launch_step", "step_id", "kept", "nothing", "number of a step"),
    COLUMN("launch_step", "sequence", "kept", "nothing", "number of a step, dropped ones counted"),
    COLUMN("launch_step", "level", "kept", "nothing", "count, graph, node or full"),
    COLUMN("launch_step", "changed", "kept", "nothing", "1: the level changed"),
    OPTION("launch_step", "start_ns", "relative", "traffic", "when the step began", ST_KEEP_TIMES),
    COLUMN("launch_step", "duration_ns", "kept", "traffic", "how long it took"),
    COLUMN("launch_step", "kernel_launches", "kept", "model", "how many"),
    COLUMN("launch_step", "graph_launches", "kept", "model", "how many"),
    COLUMN("launch_step", "graph_kernels", "kept", "model", "how many"),
    COLUMN("launch_step", "records", "kept", "model", "how many"),
    COLUMN("launch_step", "untimed", "kept", "nothing", "how many"),
    COLUMN("launch_step", "kernel_ns", "kept", "traffic", "time of its kernels"),
    COLUMN("launch_block", "block_id", "kept", "nothing", "number of a block"),
    COLUMN("launch_block", "capture_id", "kept", "nothing", "number of a process"),
    COLUMN("launch_block", "first_sequence", "kept", "nothing", "number of a step"),
    COLUMN("launch_block", "last_sequence", "kept", "nothing", "number of a step"),
    COLUMN("launch_block", "launches", "kept", "traffic", "how many"),
    OPTION("launch_block", "columns", "relative", "traffic",
           "packed; bytes a block: site, call, step, start, duration, bytes of each launch",
           ST_KEEP_TIMES),
    COLUMN("seal", "hash", "new", "nothing", "of all of the above"),
    {NULL, NULL, NULL, NULL, NULL, NULL, ST_KEEP_NEVER},
};

enum { COLUMNS = sizeof st_private_columns / sizeof *st_private_columns - 1 };

const struct st_private_column *st_private_find(const char *table, const char *column) {
    for (const struct st_private_column *c = st_private_columns; c->table; c++)
        if (strcmp(c->table, table) == 0 && strcmp(c->column, column) == 0)
            return c;
    return NULL;
}

static bool is_table(const char *name) {
    for (const struct st_private_column *c = st_private_columns; c->table; c++)
        if (strcmp(c->table, name) == 0)
            return true;
    return false;
}

/* ---- what is not known */

/* Whether a query gives a row; sql is freed. */
static int has_row(struct st_tape *tape, char *sql, bool *has, struct st_error *err) {
    sqlite3_stmt *stmt;
    if (!sql)
        return ST_FAIL_NOMEM(err);
    int rc = st_db_prepare(st_tape_db(tape), st_tape_path(tape), sql, &stmt, err);
    sqlite3_free(sql);
    ST_TRY(rc);
    int row = sqlite3_step(stmt);
    *has = row == SQLITE_ROW;
    if (row != SQLITE_ROW && row != SQLITE_DONE)
        rc = st_db_fail(st_tape_db(tape), st_tape_path(tape), err);
    sqlite3_finalize(stmt);
    return rc;
}

int st_private_find_unknown(struct st_tape *tape, char *name, size_t size, int64_t *count,
                            struct st_error *err) {
    sqlite3 *db = st_tape_db(tape);
    sqlite3_stmt *stmt;
    const char *path = st_tape_path(tape);
    *count = 0;
    name[0] = 0;
    /* rootpage 0: a virtual table, which is not asked. */
    ST_TRY(st_db_prepare(db, path,
                         "SELECT t.name, x.name, coalesce(t.rootpage, 0) FROM sqlite_schema AS t,"
                         " pragma_table_xinfo(t.name) AS x WHERE t.type = 'table' AND"
                         " t.name NOT LIKE 'sqlite\\_%' ESCAPE '\\' ORDER BY t.name, x.cid",
                         &stmt, err));
    int rc = ST_OK, row = SQLITE_DONE;
    while (!rc && (row = sqlite3_step(stmt)) == SQLITE_ROW) {
        const char *table = (const char *)sqlite3_column_text(stmt, 0);
        const char *column = (const char *)sqlite3_column_text(stmt, 1);
        bool known = table && is_table(table), has = true;
        if (!table || !column || st_private_find(table, column))
            continue;
        if (sqlite3_column_int64(stmt, 2) > 0)
            rc = has_row(tape,
                         known ? sqlite3_mprintf("SELECT 1 FROM \"%w\" WHERE \"%w\" IS NOT NULL"
                                                 " LIMIT 1",
                                                 table, column)
                               : sqlite3_mprintf("SELECT 1 FROM \"%w\" LIMIT 1", table),
                         &has, err);
        if (!rc && has && ++*count == 1)
            snprintf(name, size, "%s%s%s", table, known ? "." : "", known ? column : "");
    }
    if (!rc && row != SQLITE_DONE)
        rc = st_db_fail(db, path, err);
    sqlite3_finalize(stmt);
    return rc;
}

/* ---- what there is */

struct range {
    int64_t count, least, greatest;
};

enum { NUMBERS, PROMPTS, QUERIES, STARTS, DRAFTS, ZEROED, BLOCK_IDS, PARTS };

static const char *const part_names[PARTS] = {"request numbers", "prompt lengths", "query lengths",
                                              "starts",          "draft tokens",   "zeroed blocks",
                                              "block ids"};

static void take(struct range *range, int64_t value) {
    if (!range->count || value < range->least)
        range->least = value;
    if (!range->count || value > range->greatest)
        range->greatest = value;
    range->count++;
}

static void take32(struct range *range, const int32_t *value, int64_t count) {
    for (int64_t i = 0; i < count; i++)
        take(range, value[i]);
}

static void take_list(struct range *range, const struct st_request_list *list) {
    for (int32_t i = 0; i < list->count; i++)
        take(range, list->request_id[i]);
}

static void take_step(struct range part[PARTS], const struct st_step *step) {
    const struct st_request_list batch = {step->request_count, step->request_id};
    const struct st_request_list *const lists[] = {&batch,          &step->new_requests,
                                                   &step->finished, &step->preempted,
                                                   &step->resumed,  &step->replaced};
    for (size_t i = 0; i < sizeof lists / sizeof *lists; i++)
        take_list(&part[NUMBERS], lists[i]);
    for (int32_t i = 0; i < step->new_requests.count; i++)
        if (step->new_prompt_len[i] >= 0)
            take(&part[PROMPTS], step->new_prompt_len[i]);
    take32(&part[QUERIES], step->query_len, step->request_count);
    take32(&part[STARTS], step->num_computed_tokens, step->request_count);
    if (step->draft)
        take32(&part[DRAFTS], step->draft, step->request_count);
    if (step->zeroed != ST_UNKNOWN)
        take(&part[ZEROED], step->zeroed);
    for (int32_t g = 0; g < step->group_count; g++)
        take32(&part[BLOCK_IDS], step->blocks[g].block_id,
               step->blocks[g].offset[step->request_count]);
}

static int take_steps(struct st_tape *tape, struct range part[PARTS], struct st_error *err) {
    struct st_cursor *cursor;
    const struct st_step *step;
    int64_t done = 0, total = st_tape_step_count(tape);
    ST_TRY(st_cursor_open(tape, ST_READ_BLOCKS, &cursor, err));
    int rc;
    while ((rc = st_cursor_next(cursor, &step, err)) == ST_OK) {
        if (st_interrupted()) {
            rc = ST_FAIL(err, ST_ERR_INTERRUPTED, "interrupted");
            break;
        }
        take_step(part, step);
        st_progress("read back", ++done, total);
    }
    st_cursor_close(cursor);
    return rc == ST_DONE ? ST_OK : rc;
}

static void copy_text(char to[ST_PRIVATE_TEXT], const unsigned char *text) {
    snprintf(to, ST_PRIVATE_TEXT, "%s", text ? (const char *)text : "");
}

static int query_column(struct st_tape *tape, struct st_private_content *content,
                        struct st_error *err) {
    const struct st_private_column *c = content->column;
    sqlite3_stmt *stmt;
    bool there;
    ST_TRY(st_db_has_table(st_tape_db(tape), st_tape_path(tape), c->table, &there, err));
    if (!there)
        return ST_OK; /* not every tape has launches */
    char *sql = sqlite3_mprintf(
        "SELECT count(v), min(v), max(v), max(typeof(v) = 'text') FROM (SELECT CASE typeof(\"%w\")"
        " WHEN 'blob' THEN length(\"%w\") ELSE \"%w\" END AS v FROM \"%w\")",
        c->column, c->column, c->column, c->table);
    if (!sql)
        return ST_FAIL_NOMEM(err);
    int rc = st_db_prepare(st_tape_db(tape), st_tape_path(tape), sql, &stmt, err);
    sqlite3_free(sql);
    ST_TRY(rc);
    if (sqlite3_step(stmt) == SQLITE_ROW) {
        content->count = sqlite3_column_int64(stmt, 0);
        copy_text(content->least, sqlite3_column_text(stmt, 1));
        copy_text(content->greatest, sqlite3_column_text(stmt, 2));
        content->is_text = sqlite3_column_int(stmt, 3) != 0;
    } else {
        rc = st_db_fail(st_tape_db(tape), st_tape_path(tape), err);
    }
    sqlite3_finalize(stmt);
    return rc;
}

static void put_range(struct st_private_content *content, const struct range part[PARTS]) {
    for (int i = 0; i < PARTS; i++)
        if (strcmp(part_names[i], content->column->part) == 0 && part[i].count) {
            content->count = part[i].count;
            snprintf(content->least, ST_PRIVATE_TEXT, "%" PRId64, part[i].least);
            snprintf(content->greatest, ST_PRIVATE_TEXT, "%" PRId64, part[i].greatest);
        }
}

int st_private_inspect(struct st_tape *tape,
                       void (*each)(const struct st_private_content *content, void *user),
                       void *user, struct st_error *err) {
    char name[160];
    int64_t unknown;
    struct range part[PARTS] = {{0}};
    ST_TRY(st_private_find_unknown(tape, name, sizeof name, &unknown, err));
    if (unknown)
        return ST_FAIL(err, ST_ERR_UNSUPPORTED, "%s: %s is not known here", st_tape_path(tape),
                       name);
    ST_TRY(take_steps(tape, part, err));
    for (int i = 0; i < COLUMNS; i++) {
        struct st_private_content content = {.column = &st_private_columns[i]};
        if (content.column->part)
            put_range(&content, part);
        else
            ST_TRY(query_column(tape, &content, err));
        each(&content, user);
    }
    return ST_OK;
}
