/* SPDX-License-Identifier: Apache-2.0 */
/* From a stream of launches to the tables of a tape. */
#include "traces/format/launches.h"

#include <inttypes.h>
#include <math.h>
#include <sqlite3.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "traces/format/db.h"
#include "traces/format/launch_stream.h"
#include "traces/format/step.h"

static const char schema[] =
    "CREATE TABLE IF NOT EXISTS launch_capture( -- a process whose launches were recorded\n"
    "  capture_id INTEGER PRIMARY KEY,\n"
    "  pid INTEGER, level TEXT, -- level asked for: count, graph, node, full\n"
    "  counted_by TEXT, -- hooks, CUPTI callbacks\n"
    "  cupti_version INTEGER, cupti TEXT, -- NULL: not opened\n"
    "  started_ns INTEGER, -- monotonic\n"
    "  ended INTEGER NOT NULL, -- 1: the process ended by itself; 0: what it had written by then\n"
    "  torn_bytes INTEGER NOT NULL, -- of a chunk that was being written\n"
    "  first_name INTEGER NOT NULL, first_site INTEGER NOT NULL, -- its numbers begin there\n"
    "  kernel_launches INTEGER, graph_launches INTEGER, -- calls, counted where they were made\n"
    "  records INTEGER, -- launches that CUPTI gave\n"
    "  dropped INTEGER, -- records that it had no room for, or that were lost\n"
    "  untimed INTEGER, reversed INTEGER, -- records without times; that end before they start\n"
    "  unattributed INTEGER, -- records whose call was not seen: their step is not known\n"
    "  other INTEGER, -- records that could not be read\n"
    "  steps_lost INTEGER, -- steps whose counts were lost\n"
    "  elsewhere INTEGER NOT NULL, -- launches of steps that this tape does not have\n"
    "  missing INTEGER, -- kernels that were called in steps at level node or full and have no "
    "record\n"
    "  budget_ppm INTEGER, -- of a step's time that capture might cost; NULL: no limit\n"
    "  cost_ppm INTEGER, cost_error_ppm INTEGER, -- as measured last, half width of its 95 % "
    "interval; NULL: not measured\n"
    "  cost_launch_ps INTEGER,\n"
    "  note TEXT\n"
    ") STRICT;\n"
    "CREATE TABLE IF NOT EXISTS launch_event( -- what the capture said of itself\n"
    "  event_id INTEGER PRIMARY KEY,\n"
    "  capture_id INTEGER NOT NULL,\n"
    "  time_ns INTEGER, -- monotonic\n"
    "  what TEXT NOT NULL, -- error, window, over budget, level\n"
    "  level TEXT, text TEXT,\n"
    "  cost_ppm INTEGER, cost_error_ppm INTEGER, cost_step_ns INTEGER, cost_launch_ps INTEGER\n"
    ") STRICT;\n"
    "CREATE TABLE IF NOT EXISTS launch_name( -- kernels, as the compiler mangled them\n"
    "  name_id INTEGER PRIMARY KEY,\n"
    "  name TEXT NOT NULL\n"
    ") STRICT;\n"
    "CREATE TABLE IF NOT EXISTS launch_site( -- what repeats of a launch; those of one graph are "
    "its template\n"
    "  site_id INTEGER PRIMARY KEY,\n"
    "  kind TEXT NOT NULL, -- kernel, graph, memcpy, memset, api\n"
    "  name_id INTEGER NOT NULL,\n"
    "  graph_id INTEGER, graph_node_id INTEGER, -- NULL: launched alone\n"
    "  grid_x INTEGER NOT NULL, grid_y INTEGER NOT NULL, grid_z INTEGER NOT NULL,\n"
    "  block_x INTEGER NOT NULL, block_y INTEGER NOT NULL, block_z INTEGER NOT NULL,\n"
    "  shared_bytes INTEGER NOT NULL, -- static and dynamic\n"
    "  stream_id INTEGER NOT NULL, device_id INTEGER NOT NULL -- api: the thread, 0\n"
    ") STRICT;\n"
    "CREATE TABLE IF NOT EXISTS launch_step( -- a step's launches, counted twice\n"
    "  step_id INTEGER PRIMARY KEY,\n"
    "  sequence INTEGER NOT NULL, -- the recorder's number of it\n"
    "  level TEXT, changed INTEGER, -- level it ran at; 1: that changed meanwhile\n"
    "  start_ns INTEGER, duration_ns INTEGER, -- between its marks, monotonic\n"
    "  kernel_launches INTEGER, graph_launches INTEGER, -- calls; NULL: not counted\n"
    "  graph_kernels INTEGER, -- kernels of those graphs; NULL: not known\n"
    "  records INTEGER NOT NULL, -- kernels that were recorded, in graphs and alone\n"
    "  untimed INTEGER NOT NULL, -- of these, without times\n"
    "  kernel_ns INTEGER NOT NULL -- sum of their durations\n"
    ") STRICT;\n"
    "CREATE TABLE IF NOT EXISTS launch_block( -- launches, packed; LAUNCHES.md has the grammar\n"
    "  block_id INTEGER PRIMARY KEY,\n"
    "  capture_id INTEGER NOT NULL,\n"
    "  first_sequence INTEGER, last_sequence INTEGER, -- NULL: none of them is in a step\n"
    "  launches INTEGER NOT NULL,\n"
    "  columns BLOB NOT NULL\n"
    ") STRICT;\n";

static const char *const tables[] = {"launch_capture", "launch_event", "launch_name",
                                     "launch_site",    "launch_step",  "launch_block"};

enum { TABLES = sizeof tables / sizeof tables[0] };

enum statement { ADD_EVENT, ADD_NAME, ADD_SITE, ADD_COUNTS, ADD_RECORDS, ADD_BLOCK, STATEMENTS };

static const char *const statement_sql[STATEMENTS] = {
    [ADD_EVENT] = "INSERT INTO launch_event(capture_id, time_ns, what, level, text, cost_ppm,"
                  " cost_error_ppm, cost_step_ns, cost_launch_ps)"
                  " VALUES(?1,?2,?3,?4,?5,?6,?7,?8,?9)",
    [ADD_NAME] = "INSERT INTO launch_name VALUES(?1,?2)",
    [ADD_SITE] = "INSERT INTO launch_site VALUES(?1,?2,?3,?4,?5,?6,?7,?8,?9,?10,?11,?12,?13,?14)",
    /* Two threads may mark one step: their launches add up. */
    [ADD_COUNTS] = "INSERT INTO launch_step VALUES(?1,?2,?3,?4,?5,?6,?7,?8,?9,0,0,0)"
                   " ON CONFLICT(step_id) DO UPDATE SET level = coalesce(level, ?3),"
                   " changed = max(coalesce(changed, 0), ?4), start_ns = coalesce(start_ns, ?5),"
                   " duration_ns = coalesce(duration_ns, ?6),"
                   " kernel_launches = coalesce(kernel_launches, 0) + ?7,"
                   " graph_launches = coalesce(graph_launches, 0) + ?8,"
                   " graph_kernels = CASE WHEN level IS NULL THEN ?9 ELSE graph_kernels + ?9 END",
    [ADD_RECORDS] = "INSERT INTO launch_step(step_id, sequence, records, untimed, kernel_ns)"
                    " VALUES(?1,?2,?3,?4,?5) ON CONFLICT(step_id) DO UPDATE SET"
                    " records = records + ?3, untimed = untimed + ?4, kernel_ns = kernel_ns + ?5",
    [ADD_BLOCK] = "INSERT INTO launch_block(capture_id, first_sequence, last_sequence, launches,"
                  " columns) VALUES(?1,?2,?3,?4,?5)",
};

/* Steps that the recorder dropped, by its numbers. */
struct gap {
    int64_t first, count;
    int64_t dropped; /* in all gaps up to this one */
};

/* A step's launches in one block. */
struct sum {
    int64_t sequence, records, untimed, kernel_ns;
};

struct import {
    sqlite3 *db;
    const char *path, *stream;
    sqlite3_stmt *statement[STATEMENTS];
    int64_t capture_id, first_name, first_site, names, sites;
    int64_t first_step, last_step; /* of the tape */
    struct gap *gap;
    int64_t gaps;
    int32_t *kind; /* of each site of this stream */
    int64_t kind_room;
    struct st_launch_decoder *decoder;
    struct sum *sum; /* open addressing, [sum_room] */
    size_t sum_room, sum_count;
    struct st_launches_imported result;
};

int st_launches_create(struct sqlite3 *db, const char *path, struct st_error *err) {
    return st_db_execute(db, path, schema, err);
}

static int query_integer(sqlite3 *db, const char *path, const char *sql, int64_t *value,
                         struct st_error *err) {
    sqlite3_stmt *stmt;
    ST_TRY(st_db_prepare(db, path, sql, &stmt, err));
    int rc = sqlite3_step(stmt) == SQLITE_ROW ? 0 : st_db_fail(db, path, err);
    *value = sqlite3_column_int64(stmt, 0);
    sqlite3_finalize(stmt);
    return rc;
}

/* By the names of the columns: a tape may lack some that were added later. */
static char *insert_all(const char *table, sqlite3_stmt *read) {
    sqlite3_str *sql = sqlite3_str_new(NULL);
    int columns = sqlite3_column_count(read);
    sqlite3_str_appendf(sql, "INSERT INTO main.%s(", table);
    for (int i = 0; i < columns; i++)
        sqlite3_str_appendf(sql, "%s\"%w\"", i ? "," : "", sqlite3_column_name(read, i));
    sqlite3_str_appendall(sql, ") VALUES(");
    for (int i = 0; i < columns; i++)
        sqlite3_str_appendall(sql, i ? ",?" : "?");
    sqlite3_str_appendall(sql, ")");
    return sqlite3_str_finish(sql);
}

static int copy_table(sqlite3 *db, const char *path, sqlite3 *from, const char *from_path,
                      const char *table, struct st_error *err) {
    sqlite3_stmt *read = NULL, *write = NULL;
    char select[96];
    snprintf(select, sizeof select, "SELECT * FROM main.%s ORDER BY 1", table);
    ST_TRY(st_db_prepare(from, from_path, select, &read, err));
    int columns = sqlite3_column_count(read), row = SQLITE_DONE;
    char *insert = insert_all(table, read);
    int rc = insert ? st_db_prepare(db, path, insert, &write, err) : ST_FAIL_NOMEM(err);
    while (rc == 0 && (row = sqlite3_step(read)) == SQLITE_ROW) {
        for (int i = 0; i < columns; i++)
            sqlite3_bind_value(write, i + 1, sqlite3_column_value(read, i));
        rc = st_db_insert(db, path, write, err);
    }
    if (rc == 0 && row != SQLITE_DONE)
        rc = st_db_fail(from, from_path, err);
    sqlite3_free(insert);
    sqlite3_finalize(read);
    sqlite3_finalize(write);
    return rc;
}

int st_launches_copy(struct sqlite3 *db, const char *path, struct sqlite3 *from,
                     const char *from_path, struct st_error *err) {
    bool there, source;
    ST_TRY(st_db_has_table(db, path, "launch_block", &there, err));
    ST_TRY(st_db_has_table(from, from_path, "launch_block", &source, err));
    if (there || !source)
        return 0;
    ST_TRY(st_launches_create(db, path, err));
    for (int i = 0; i < TABLES; i++)
        ST_TRY(copy_table(db, path, from, from_path, tables[i], err));
    return 0;
}

/* ---- the recorder's numbers and the tape's */

static int load_gaps(struct import *in, struct st_error *err) {
    sqlite3_stmt *stmt;
    int64_t room = 0;
    ST_TRY(query_integer(in->db, in->path, "SELECT coalesce(min(step_id), 0) FROM step",
                         &in->first_step, err));
    ST_TRY(query_integer(in->db, in->path, "SELECT coalesce(max(step_id), -1) FROM step",
                         &in->last_step, err));
    ST_TRY(query_integer(in->db, in->path, "SELECT count(*) FROM step_gap", &room, err));
    in->gap = calloc((size_t)room + 1, sizeof *in->gap);
    if (!in->gap)
        return ST_FAIL_NOMEM(err);
    ST_TRY(st_db_prepare(
        in->db, in->path,
        "SELECT before_step_id, dropped_count FROM step_gap ORDER BY before_step_id", &stmt, err));
    int64_t dropped = 0;
    while (in->gaps < room && sqlite3_step(stmt) == SQLITE_ROW) {
        int64_t first = sqlite3_column_int64(stmt, 0) + dropped, count;
        count = sqlite3_column_int64(stmt, 1);
        dropped += count;
        in->gap[in->gaps++] = (struct gap){first, count, dropped};
    }
    sqlite3_finalize(stmt);
    return 0;
}

/* -1: the tape does not have that step. */
static int64_t step_of(const struct import *in, int64_t sequence) {
    int64_t low = 0, high = in->gaps; /* gaps that begin up to it */
    while (low < high) {
        int64_t middle = low + (high - low) / 2;
        if (in->gap[middle].first <= sequence)
            low = middle + 1;
        else
            high = middle;
    }
    const struct gap *before = low ? &in->gap[low - 1] : NULL;
    if (before && sequence < before->first + before->count)
        return -1;
    int64_t step = sequence - (before ? before->dropped : 0);
    return step >= in->first_step && step <= in->last_step ? step : -1;
}

/* ---- definitions */

static void bind_text(sqlite3_stmt *stmt, int index, const char *text) {
    if (text)
        sqlite3_bind_text(stmt, index, text, -1, SQLITE_TRANSIENT);
}

static int on_name(void *user, int64_t number, const char *name, size_t size,
                   struct st_error *err) {
    struct import *in = user;
    sqlite3_stmt *stmt = in->statement[ADD_NAME];
    sqlite3_bind_int64(stmt, 1, in->first_name + number);
    sqlite3_bind_text(stmt, 2, name, (int)strnlen(name, size), SQLITE_TRANSIENT);
    return st_db_insert(in->db, in->path, stmt, err);
}

static int on_site(void *user, int64_t number, const struct st_launch_site *s, int64_t name,
                   struct st_error *err) {
    struct import *in = user;
    sqlite3_stmt *stmt = in->statement[ADD_SITE];
    if (number == in->kind_room) {
        int64_t room = in->kind_room ? 2 * in->kind_room : 1024;
        void *p = realloc(in->kind, (size_t)room * sizeof *in->kind);
        if (!p)
            return ST_FAIL_NOMEM(err);
        in->kind = p;
        in->kind_room = room;
    }
    in->kind[number] = s->kind;
    sqlite3_bind_int64(stmt, 1, in->first_site + number);
    sqlite3_bind_text(stmt, 2, st_launch_kind_name(s->kind), -1, SQLITE_STATIC);
    sqlite3_bind_int64(stmt, 3, in->first_name + name);
    if (s->graph_id)
        sqlite3_bind_int64(stmt, 4, s->graph_id);
    if (s->graph_node_id)
        sqlite3_bind_int64(stmt, 5, (int64_t)s->graph_node_id);
    for (int d = 0; d < 3; d++) {
        sqlite3_bind_int(stmt, 6 + d, s->grid[d]);
        sqlite3_bind_int(stmt, 9 + d, s->block[d]);
    }
    sqlite3_bind_int(stmt, 12, s->shared_bytes);
    sqlite3_bind_int64(stmt, 13, s->stream_id);
    sqlite3_bind_int64(stmt, 14, s->device_id);
    return st_db_insert(in->db, in->path, stmt, err);
}

/* ---- launches */

static struct sum *find_sum(struct import *in, int64_t sequence) {
    size_t k = (size_t)((uint64_t)sequence * UINT64_C(0x9e3779b97f4a7c15) >> 32);
    for (k &= in->sum_room - 1;; k = (k + 1) & (in->sum_room - 1))
        if (in->sum[k].sequence == sequence || in->sum[k].records < 0)
            return &in->sum[k];
}

static int sums_room(struct import *in, struct st_error *err) {
    if (2 * (in->sum_count + 1) <= in->sum_room)
        return 0;
    struct sum *old = in->sum;
    size_t old_room = in->sum_room;
    in->sum_room = old_room ? 2 * old_room : 1024;
    in->sum = malloc(in->sum_room * sizeof *in->sum);
    if (!in->sum) {
        in->sum = old;
        in->sum_room = old_room;
        return ST_FAIL_NOMEM(err);
    }
    for (size_t i = 0; i < in->sum_room; i++)
        in->sum[i] = (struct sum){.sequence = -1, .records = -1};
    for (size_t i = 0; i < old_room; i++)
        if (old[i].records >= 0)
            *find_sum(in, old[i].sequence) = old[i];
    free(old);
    return 0;
}

static int add_launch(struct import *in, const struct st_launch_record *l, struct st_error *err) {
    in->result.launches++;
    if (l->sequence < 0 || in->kind[l->site] != ST_LAUNCH_KERNEL)
        return 0;
    ST_TRY(sums_room(in, err));
    struct sum *s = find_sum(in, l->sequence);
    if (s->records < 0) {
        *s = (struct sum){.sequence = l->sequence};
        in->sum_count++;
    }
    s->records++;
    s->untimed += l->start_ns == 0 || l->end_ns == 0;
    st_launch_add_time(&s->kernel_ns, l);
    return 0;
}

static int store_sums(struct import *in, struct st_error *err) {
    int rc = 0;
    for (size_t i = 0; i < in->sum_room; i++) {
        struct sum *s = &in->sum[i];
        if (s->records < 0)
            continue;
        int64_t step = step_of(in, s->sequence);
        if (step < 0) {
            in->result.elsewhere += s->records;
        } else if (rc == 0) {
            sqlite3_stmt *stmt = in->statement[ADD_RECORDS];
            sqlite3_bind_int64(stmt, 1, step);
            sqlite3_bind_int64(stmt, 2, s->sequence);
            sqlite3_bind_int64(stmt, 3, s->records);
            sqlite3_bind_int64(stmt, 4, s->untimed);
            sqlite3_bind_int64(stmt, 5, s->kernel_ns);
            rc = st_db_insert(in->db, in->path, stmt, err);
        }
        *s = (struct sum){.sequence = -1, .records = -1};
    }
    in->sum_count = 0;
    return rc;
}

static int add_block(struct import *in, const uint8_t *data, size_t size, struct st_error *err) {
    struct st_launch_block head;
    struct st_launch_record launch;
    int rc;
    ST_TRY(st_launch_block_head(data, size, &head, err));
    ST_TRY(st_launch_decoder_begin(in->decoder, data, size, in->sites, err));
    while ((rc = st_launch_decoder_next(in->decoder, &launch, err)) == 0)
        ST_TRY(add_launch(in, &launch, err));
    if (rc != ST_DONE)
        return rc;
    ST_TRY(store_sums(in, err));
    sqlite3_stmt *stmt = in->statement[ADD_BLOCK];
    sqlite3_bind_int64(stmt, 1, in->capture_id);
    if (head.first_sequence >= 0) {
        sqlite3_bind_int64(stmt, 2, head.first_sequence);
        sqlite3_bind_int64(stmt, 3, head.last_sequence);
    }
    sqlite3_bind_int64(stmt, 4, head.count);
    sqlite3_bind_blob64(stmt, 5, data, size, SQLITE_TRANSIENT);
    return st_db_insert(in->db, in->path, stmt, err);
}

/* ---- steps and texts */

static void bind_count(sqlite3_stmt *stmt, int index, int64_t value) {
    if (value >= 0)
        sqlite3_bind_int64(stmt, index, value);
}

static int add_steps(struct import *in, const uint8_t *data, size_t size, struct st_error *err) {
    struct st_launch_step *step = NULL;
    int64_t count;
    ST_TRY(st_chunk_read_steps(data, size, &step, &count, err));
    int rc = 0;
    for (int64_t i = 0; i < count && rc == 0; i++) {
        const struct st_launch_step *s = &step[i];
        int64_t step_id = step_of(in, s->sequence);
        sqlite3_stmt *stmt = in->statement[ADD_COUNTS];
        if (step_id < 0)
            continue;
        sqlite3_bind_int64(stmt, 1, step_id);
        sqlite3_bind_int64(stmt, 2, s->sequence);
        sqlite3_bind_text(stmt, 3, st_launch_level_name(s->level), -1, SQLITE_STATIC);
        sqlite3_bind_int(stmt, 4, s->changed);
        sqlite3_bind_int64(stmt, 5, s->start_ns);
        sqlite3_bind_int64(stmt, 6, s->duration_ns);
        bind_count(stmt, 7, s->kernel_launches);
        bind_count(stmt, 8, s->graph_launches);
        bind_count(stmt, 9, s->graph_kernels);
        rc = st_db_insert(in->db, in->path, stmt, err);
    }
    free(step);
    return rc;
}

/* In a unit that makes it whole: a real has not the same text in every SQLite, and the seal is over
 * texts.  NULL: there is no such number. */
static void bind_scaled(sqlite3_stmt *stmt, int index, const uint8_t *data, size_t size,
                        const char *key, double unit) {
    char value[64], *end;
    if (!st_chunk_read_text(data, size, key, value, sizeof value))
        return;
    double number = strtod(value, &end) * unit;
    if (end != value && !*end && fabs(number) < 1e15)
        sqlite3_bind_int64(stmt, index, llround(number));
}

static void bind_integer(sqlite3_stmt *stmt, int index, const uint8_t *data, size_t size,
                         const char *key) {
    int64_t value = st_chunk_read_integer(data, size, key, ST_UNKNOWN);
    st_db_bind(stmt, index, value);
}

static void bind_key(sqlite3_stmt *stmt, int index, const uint8_t *data, size_t size,
                     const char *key) {
    char value[1024];
    bind_text(stmt, index, st_chunk_read_text(data, size, key, value, sizeof value));
}

static int add_event(struct import *in, const uint8_t *data, size_t size, struct st_error *err) {
    sqlite3_stmt *stmt = in->statement[ADD_EVENT];
    sqlite3_bind_int64(stmt, 1, in->capture_id);
    bind_integer(stmt, 2, data, size, "t_ns");
    sqlite3_bind_text(stmt, 3, "?", -1, SQLITE_STATIC);
    bind_key(stmt, 3, data, size, "what");
    bind_key(stmt, 4, data, size, "level");
    bind_key(stmt, 5, data, size, "text");
    bind_scaled(stmt, 6, data, size, "cost_share", 1e6);
    bind_scaled(stmt, 7, data, size, "cost_share_error", 1e6);
    bind_scaled(stmt, 8, data, size, "cost_step_ns", 1);
    bind_scaled(stmt, 9, data, size, "cost_launch_ns", 1e3);
    ST_TRY(st_db_insert(in->db, in->path, stmt, err));
    ST_TRY(st_db_prepare(in->db, in->path,
                         "UPDATE launch_capture SET cost_ppm = coalesce(?2, cost_ppm),"
                         " cost_error_ppm = coalesce(?3, cost_error_ppm),"
                         " cost_launch_ps = coalesce(?4, cost_launch_ps) WHERE capture_id = ?1",
                         &stmt, err));
    sqlite3_bind_int64(stmt, 1, in->capture_id);
    bind_scaled(stmt, 2, data, size, "cost_share", 1e6);
    bind_scaled(stmt, 3, data, size, "cost_share_error", 1e6);
    bind_scaled(stmt, 4, data, size, "cost_launch_ns", 1e3);
    int rc = st_db_insert(in->db, in->path, stmt, err);
    sqlite3_finalize(stmt);
    return rc;
}

static int add_head(struct import *in, const uint8_t *data, size_t size, struct st_error *err) {
    static const char sql[] =
        "UPDATE launch_capture SET pid = ?2, level = ?3, counted_by = ?4, cupti_version = ?5,"
        " cupti = ?6, started_ns = ?7, budget_ppm = ?8, note = ?9 WHERE capture_id = ?1";
    sqlite3_stmt *stmt;
    ST_TRY(st_db_prepare(in->db, in->path, sql, &stmt, err));
    sqlite3_bind_int64(stmt, 1, in->capture_id);
    bind_integer(stmt, 2, data, size, "pid");
    bind_key(stmt, 3, data, size, "asked");
    bind_key(stmt, 4, data, size, "counted_by");
    bind_integer(stmt, 5, data, size, "cupti_version");
    bind_key(stmt, 6, data, size, "cupti");
    bind_integer(stmt, 7, data, size, "started_ns");
    bind_scaled(stmt, 8, data, size, "budget", 1e6);
    bind_key(stmt, 9, data, size, "note");
    int rc = st_db_insert(in->db, in->path, stmt, err);
    sqlite3_finalize(stmt);
    return rc;
}

/* Those of a stream's last chunk of that kind stay. */
static int add_totals(struct import *in, const uint8_t *data, size_t size, struct st_error *err) {
    static const char *const keys[] = {"kernel_launches", "graph_launches", "records",
                                       "dropped",         "untimed",        "reversed",
                                       "unattributed",    "other",          "steps_lost"};
    static const char sql[] =
        "UPDATE launch_capture SET kernel_launches = ?2, graph_launches = ?3, records = ?4,"
        " dropped = ?5, untimed = ?6, reversed = ?7, unattributed = ?8, other = ?9,"
        " steps_lost = ?10 WHERE capture_id = ?1";
    sqlite3_stmt *stmt;
    if (size == 0)
        return 0;
    ST_TRY(st_db_prepare(in->db, in->path, sql, &stmt, err));
    sqlite3_bind_int64(stmt, 1, in->capture_id);
    for (int i = 0; i < (int)(sizeof keys / sizeof keys[0]); i++)
        bind_integer(stmt, 2 + i, data, size, keys[i]);
    int rc = st_db_insert(in->db, in->path, stmt, err);
    sqlite3_finalize(stmt);
    return rc;
}

/* ---- the stream */

static int add_chunk(struct import *in, int32_t type, const uint8_t *data, size_t size,
                     struct st_error *err) {
    const struct st_launch_definitions to = {in, on_name, on_site};
    switch (type) {
    case ST_CHUNK_HEAD:
        return add_head(in, data, size, err);
    case ST_CHUNK_DEFINITIONS:
        return st_launch_read_definitions(data, size, &in->names, &in->sites, &to, err);
    case ST_CHUNK_LAUNCHES:
        return add_block(in, data, size, err);
    case ST_CHUNK_STEPS:
        return add_steps(in, data, size, err);
    case ST_CHUNK_NOTE:
        return add_event(in, data, size, err);
    case ST_CHUNK_TOTALS:
    case ST_CHUNK_END:
        in->result.ended = type == ST_CHUNK_END;
        return add_totals(in, data, size, err);
    default:
        return ST_FAIL(err, ST_ERR_CORRUPT, "a chunk of kind %d", type);
    }
}

static int begin(struct import *in, struct st_error *err) {
    ST_TRY(st_launches_create(in->db, in->path, err));
    ST_TRY(load_gaps(in, err));
    ST_TRY(query_integer(in->db, in->path, "SELECT coalesce(max(name_id) + 1, 0) FROM launch_name",
                         &in->first_name, err));
    ST_TRY(query_integer(in->db, in->path, "SELECT coalesce(max(site_id) + 1, 0) FROM launch_site",
                         &in->first_site, err));
    char sql[192];
    snprintf(sql, sizeof sql,
             "INSERT INTO launch_capture(ended, torn_bytes, first_name, first_site, elsewhere)"
             " VALUES(0, 0, %" PRId64 ", %" PRId64 ", 0)",
             in->first_name, in->first_site);
    ST_TRY(st_db_execute(in->db, in->path, sql, err));
    in->capture_id = sqlite3_last_insert_rowid(in->db);
    for (int i = 0; i < STATEMENTS; i++)
        ST_TRY(st_db_prepare(in->db, in->path, statement_sql[i], &in->statement[i], err));
    return st_launch_decoder_create(&in->decoder, err);
}

static int end(struct import *in, struct st_error *err) {
    char sql[320];
    /* Where calls and records both are whole. */
    ST_TRY(
        query_integer(in->db, in->path,
                      "SELECT coalesce(sum(max(0, kernel_launches + graph_kernels - records)), 0)"
                      " FROM launch_step WHERE level IN ('node', 'full') AND changed = 0"
                      " AND kernel_launches IS NOT NULL AND graph_kernels IS NOT NULL",
                      &in->result.missing, err));
    snprintf(sql, sizeof sql,
             "UPDATE launch_capture SET ended = %d, missing = %" PRId64 ", torn_bytes = %" PRId64
             ", elsewhere = %" PRId64 " WHERE capture_id = %" PRId64,
             in->result.ended, in->result.missing, in->result.torn_bytes, in->result.elsewhere,
             in->capture_id);
    ST_TRY(st_db_execute(in->db, in->path, sql, err));
    return query_integer(in->db, in->path, "SELECT count(*) FROM launch_step", &in->result.steps,
                         err);
}

int st_launches_import(struct sqlite3 *db, const char *path, const char *stream_path,
                       struct st_launches_imported *imported, struct st_error *err) {
    struct import in = {.db = db, .path = path, .stream = stream_path};
    struct st_launch_stream *stream = NULL;
    struct st_error reason = {0};
    const uint8_t *data;
    size_t size;
    int32_t type;
    int rc = 0;
    ST_TRY_OUT(st_launch_stream_open(stream_path, &stream, err));
    ST_TRY_OUT(begin(&in, err));
    while ((rc = st_launch_stream_next(stream, &type, &data, &size, &reason)) == 0 &&
           (rc = add_chunk(&in, type, data, size, &reason)) == 0)
        ;
    if (rc == ST_DONE)
        rc = 0;
    else
        rc = ST_FAIL_NATIVE(err, rc, reason.native, "%s: %s", stream_path, reason.msg);
    in.result.torn_bytes = st_launch_stream_torn(stream);
    int ended = end(&in, rc ? NULL : err);
    rc = rc ? rc : ended;
    if (imported)
        *imported = in.result;
out:
    st_launch_stream_close(stream);
    for (int i = 0; i < STATEMENTS; i++)
        sqlite3_finalize(in.statement[i]);
    st_launch_decoder_destroy(in.decoder);
    free(in.gap);
    free(in.kind);
    free(in.sum);
    return rc;
}
