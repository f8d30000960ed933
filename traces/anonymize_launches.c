/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The tables launch_* of a copy.  A block of launches is coded against the start of its first one,
 * so that its head alone holds a time (LAUNCHES.md).
 */
#include <ctype.h>
#include <inttypes.h>
#include <sqlite3.h>
#include <stdio.h>
#include <string.h>

#include "traces/anonymize.h"
#include "traces/base/bytes.h"
#include "traces/base/log.h"
#include "traces/format/db.h"
#include "traces/format/launch_family.h"
#include "traces/format/launches.h"

#define KNOWN_LEVEL "CASE WHEN level IN ('off', 'count', 'graph', 'node', 'full') THEN level END"

/* Of each table what goes in and how; ?1 is what is taken off times. */
static const struct {
    const char *select, *insert;
} tables[] = {
    {"SELECT capture_id, NULL, " KNOWN_LEVEL
     ", CASE WHEN counted_by IN ('hooks', 'CUPTI callbacks') THEN counted_by END, cupti_version,"
     " NULL, started_ns - ?1, ended, torn_bytes, first_name, first_site, kernel_launches,"
     " graph_launches, records, dropped, untimed, reversed, unattributed, other, steps_lost,"
     " elsewhere, missing, budget_ppm, cost_ppm, cost_error_ppm, cost_launch_ps, NULL"
     " FROM launch_capture ORDER BY 1",
     "INSERT INTO launch_capture VALUES(?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?)"},
    {"SELECT event_id, capture_id, time_ns - ?1,"
     " CASE WHEN what IN ('error', 'window', 'over budget', 'level') THEN what ELSE 'other' END,"
     " " KNOWN_LEVEL ", NULL, cost_ppm, cost_error_ppm, cost_step_ns, cost_launch_ps"
     " FROM launch_event ORDER BY 1",
     "INSERT INTO launch_event VALUES(?,?,?,?,?,?,?,?,?,?)"},
    /* The system's number of a thread is the host's: they are counted. */
    {"SELECT site_id, kind, name_id, graph_id, graph_node_id, grid_x, grid_y, grid_z, block_x,"
     " block_y, block_z, shared_bytes, CASE kind WHEN 'api' THEN dense_rank() OVER"
     " (PARTITION BY kind ORDER BY stream_id) - 1 ELSE stream_id END, device_id"
     " FROM launch_site WHERE ?1 IS NOT NULL ORDER BY 1",
     "INSERT INTO launch_site VALUES(?,?,?,?,?,?,?,?,?,?,?,?,?,?)"},
    {"SELECT step_id, sequence, " KNOWN_LEVEL ", changed, start_ns - ?1, duration_ns,"
     " kernel_launches, graph_launches, graph_kernels, records, untimed, kernel_ns"
     " FROM launch_step ORDER BY 1",
     "INSERT INTO launch_step VALUES(?,?,?,?,?,?,?,?,?,?,?,?)"},
};

struct copy {
    struct st_tape *tape;
    const char *output;
    sqlite3 *to;
    sqlite3_stmt *select, *insert;
};

static int has_launches(struct st_tape *tape, bool *has, struct st_error *err) {
    return st_db_has_table(st_tape_db(tape), st_tape_path(tape), "launch_block", has, err);
}

static int fail_input(struct st_tape *tape, struct st_error *err) {
    return st_db_fail(st_tape_db(tape), st_tape_path(tape), err);
}

/* ---- the first time */

static void lower(int64_t *first, int64_t time) {
    if (time != ST_UNKNOWN && (*first == ST_UNKNOWN || time < *first))
        *first = time;
}

/* Launches are not in the order of their starts. */
static int lower_by_blocks(struct st_tape *tape, struct st_launch_decoder *decoder,
                           sqlite3_stmt *blocks, int64_t sites, int64_t *first,
                           struct st_error *err) {
    struct st_launch_record launch;
    int row, rc;
    while ((row = sqlite3_step(blocks)) == SQLITE_ROW) {
        if (st_interrupted())
            return ST_FAIL(err, ST_ERR_INTERRUPTED, "interrupted; no tape was written");
        ST_TRY(st_launch_decoder_begin(decoder, sqlite3_column_blob(blocks, 0),
                                       (size_t)sqlite3_column_bytes(blocks, 0), sites, err));
        while ((rc = st_launch_decoder_next(decoder, &launch, err)) == ST_OK)
            if (launch.start_ns)
                lower(first, launch.start_ns);
        if (rc != ST_DONE)
            return rc;
    }
    return row == SQLITE_DONE ? ST_OK : fail_input(tape, err);
}

static int lower_by_rows(struct st_tape *tape, int64_t *first, int64_t *sites,
                         struct st_error *err) {
    sqlite3_stmt *stmt;
    ST_TRY(st_db_prepare(st_tape_db(tape), st_tape_path(tape),
                         "SELECT (SELECT count(*) FROM launch_site),"
                         " (SELECT min(started_ns) FROM launch_capture),"
                         " (SELECT min(time_ns) FROM launch_event),"
                         " (SELECT min(start_ns) FROM launch_step)",
                         &stmt, err));
    int rc = sqlite3_step(stmt) == SQLITE_ROW ? ST_OK : fail_input(tape, err);
    *sites = sqlite3_column_int64(stmt, 0);
    for (int c = 1; c < 4; c++)
        lower(first, st_db_column(stmt, c));
    sqlite3_finalize(stmt);
    return rc;
}

int st_anonymize_find_first(struct st_tape *tape, int64_t *first, struct st_error *err) {
    struct st_launch_decoder *decoder = NULL;
    struct st_launches *launches = NULL;
    sqlite3_stmt *blocks = NULL;
    int64_t sites;
    bool has;
    int rc;
    ST_TRY(has_launches(tape, &has, err));
    if (!has)
        return ST_OK;
    /* Damage is named with its table before anything is copied. */
    ST_TRY(st_launches_open(st_tape_db(tape), st_tape_path(tape), &launches, err));
    st_launches_close(launches);
    ST_TRY(lower_by_rows(tape, first, &sites, err));
    ST_TRY_OUT(st_launch_decoder_create(&decoder, err));
    ST_TRY_OUT(st_db_prepare(st_tape_db(tape), st_tape_path(tape),
                             "SELECT columns FROM launch_block", &blocks, err));
    ST_TRY_OUT(lower_by_blocks(tape, decoder, blocks, sites, first, err));
    /* A launch that starts at 0 would be one without a time. */
    if (*first != ST_UNKNOWN && *first > INT64_MIN + 2)
        --*first;
out:
    sqlite3_finalize(blocks);
    st_launch_decoder_destroy(decoder);
    return rc;
}

/* ---- rows */

static int insert(struct copy *c, struct st_error *err) {
    return st_db_insert(c->to, c->output, c->insert, err);
}

static int begin(struct copy *c, const char *select, const char *into, struct st_error *err) {
    ST_TRY(st_db_prepare(st_tape_db(c->tape), st_tape_path(c->tape), select, &c->select, err));
    return st_db_prepare(c->to, c->output, into, &c->insert, err);
}

static void end(struct copy *c) {
    sqlite3_finalize(c->select);
    sqlite3_finalize(c->insert);
    c->select = c->insert = NULL;
}

static int copy_rows(struct copy *c, int64_t base, struct st_error *err) {
    int row;
    sqlite3_bind_int64(c->select, 1, base);
    while ((row = sqlite3_step(c->select)) == SQLITE_ROW) {
        for (int i = 0; i < sqlite3_column_count(c->select); i++)
            if (sqlite3_bind_value(c->insert, i + 1, sqlite3_column_value(c->select, i)))
                return ST_FAIL_NOMEM(err);
        ST_TRY(insert(c, err));
    }
    return row == SQLITE_DONE ? ST_OK : fail_input(c->tape, err);
}

/* "cudaLaunchKernel", "cuGraphLaunch". */
static bool is_cuda_call(const char *name) {
    if (strncmp(name, "cu", 2) != 0 || strlen(name) > 64)
        return false;
    while (isalnum((unsigned char)*name) || *name == '_')
        name++;
    return !*name;
}

static int copy_names(struct copy *c, bool keep, struct st_error *err) {
    int row;
    while ((row = sqlite3_step(c->select)) == SQLITE_ROW) {
        char reduced[160];
        int64_t number = sqlite3_column_int64(c->select, 0);
        const char *name = (const char *)sqlite3_column_text(c->select, 1);
        bool of_kernel = sqlite3_column_int(c->select, 2) != 0;
        const char *word = name && of_kernel ? st_launch_family_word(name) : NULL;
        if (!name)
            return ST_FAIL_NOMEM(err);
        if (!keep && *name && (of_kernel || !is_cuda_call(name))) {
            snprintf(reduced, sizeof reduced, "%s_%" PRId64 "%s%.100s",
                     of_kernel ? "kernel" : "call", number, word ? "_" : "", word ? word : "");
            name = reduced;
        }
        sqlite3_bind_int64(c->insert, 1, number);
        if (sqlite3_bind_text(c->insert, 2, name, -1, SQLITE_TRANSIENT))
            return ST_FAIL_NOMEM(err);
        ST_TRY(insert(c, err));
    }
    return row == SQLITE_DONE ? ST_OK : fail_input(c->tape, err);
}

/* The head anew, the packed columns as they are. */
static int move_block(struct copy *c, const uint8_t *data, size_t size, int64_t base,
                      struct st_bytes *moved, struct st_error *err) {
    struct st_bytes_reader r = {data, data + size, size == 0};
    struct st_launch_block head;
    ST_TRY(st_launch_block_head(data, size, &head, err));
    st_bytes_get_varint(&r);
    for (int i = 0; i < 3; i++)
        st_bytes_get_zigzag(&r);
    if (head.first_start_ns && /* 0: none of its launches has a time */
        __builtin_sub_overflow(head.first_start_ns, base, &head.first_start_ns))
        return ST_FAIL(err, ST_ERR_CORRUPT, "%s: table launch_block: a time is out of range",
                       st_tape_path(c->tape));
    moved->size = 0;
    st_bytes_put_varint(moved, (uint64_t)head.count);
    st_bytes_put_zigzag(moved, head.first_sequence);
    st_bytes_put_zigzag(moved, head.last_sequence);
    st_bytes_put_zigzag(moved, head.first_start_ns);
    st_bytes_put(moved, r.at, (size_t)(r.end - r.at));
    return moved->failed ? ST_FAIL_NOMEM(err) : ST_OK;
}

static int copy_blocks(struct copy *c, int64_t base, struct st_bytes *moved, struct st_error *err) {
    int row;
    while ((row = sqlite3_step(c->select)) == SQLITE_ROW) {
        if (st_interrupted())
            return ST_FAIL(err, ST_ERR_INTERRUPTED, "interrupted; no tape was written");
        for (int i = 0; i < 5; i++)
            sqlite3_bind_value(c->insert, i + 1, sqlite3_column_value(c->select, i));
        ST_TRY(move_block(c, sqlite3_column_blob(c->select, 5),
                          (size_t)sqlite3_column_bytes(c->select, 5), base, moved, err));
        sqlite3_bind_blob64(c->insert, 6, moved->data, moved->size, SQLITE_STATIC);
        ST_TRY(insert(c, err));
    }
    return row == SQLITE_DONE ? ST_OK : fail_input(c->tape, err);
}

int st_anonymize_launches(struct st_tape *tape, const char *output,
                          const struct st_anonymize_options *options, int64_t base,
                          struct st_writer *writer, struct st_error *err) {
    struct copy c = {.tape = tape, .output = output, .to = st_writer_db(writer)};
    struct st_bytes moved = {0};
    bool has;
    int rc;
    ST_TRY(has_launches(tape, &has, err));
    if (!has)
        return ST_OK;
    ST_TRY_OUT(st_launches_create(c.to, output, err));
    for (size_t i = 0; i < sizeof tables / sizeof *tables; i++) {
        ST_TRY_OUT(begin(&c, tables[i].select, tables[i].insert, err));
        ST_TRY_OUT(copy_rows(&c, base, err));
        end(&c);
    }
    ST_TRY_OUT(
        begin(&c,
              "SELECT name_id, name, name_id IN (SELECT name_id FROM launch_site WHERE kind ="
              " 'kernel') FROM launch_name ORDER BY 1",
              "INSERT INTO launch_name VALUES(?,?)", err));
    ST_TRY_OUT(copy_names(&c, options->keep_kernels, err));
    end(&c);
    ST_TRY_OUT(begin(&c,
                     "SELECT block_id, capture_id, first_sequence, last_sequence, launches, columns"
                     " FROM launch_block ORDER BY 1",
                     "INSERT INTO launch_block VALUES(?,?,?,?,?,?)", err));
    rc = copy_blocks(&c, base, &moved, err);
out:
    end(&c);
    st_bytes_fini(&moved);
    return rc;
}
