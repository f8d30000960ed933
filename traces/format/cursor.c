/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Cursors.  A cursor stands in one block of steps; `position` is the step that comes next.
 *
 * A seek starts at a block: the one that holds the step when block ids are not asked for, else the
 * last one with a keyframe, else (whole tables) the last one with a keyframe before the oldest
 * request of the step was born.  Where the cursor stands already may be nearer.
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "traces/format/blocks.h"
#include "traces/format/db.h"
#include "traces/format/facts.h"
#include "traces/format/reader_i.h"

struct st_cursor {
    struct st_tape *tape;
    unsigned what;
    sqlite3_stmt *block_stmt, *step_stmt;
    sqlite3_stmt *gap_stmt;      /* NULL: a tape of format 1 */
    int64_t gap_step, gap_count; /* the next gap that lies ahead; gap_step INT64_MAX: none */
    struct st_requests requests;
    struct st_facts_decoder facts;
    struct st_blocks_model model;
    struct st_bytes id_bytes;
    struct st_bytes_reader id_column[ST_BLOCKS_COLUMNS];
    bool started;      /* the state below is set */
    bool ended;        /* no block of steps comes after this one */
    bool given;        /* a step is out: its requests move on at the next call */
    int64_t position;  /* the step that comes next, or that is out */
    int64_t block_end; /* the step after the block it stands in */
    struct st_step step;
};

static bool with_blocks(const struct st_cursor *c) {
    return c->what & ST_READ_BLOCKS;
}

/* Puts the place into an error that came from below. */
static int at_step(const struct st_cursor *c, int rc, struct st_error *err) {
    if (rc < 0 && err) {
        char message[sizeof err->msg];
        snprintf(message, sizeof message, "%s: step %" PRId64 ": %.400s", c->tape->path,
                 c->position, err->msg);
        memcpy(err->msg, message, sizeof message);
    }
    return rc;
}

/* Opens a block of the row that block_stmt stands on.  from_snapshot: forget what was before. */
static int open_block(struct st_cursor *c, bool from_snapshot, struct st_error *err) {
    sqlite3_stmt *stmt = c->block_stmt;
    int64_t first = sqlite3_column_int64(stmt, 0), count = sqlite3_column_int64(stmt, 1);
    if (count < 1 || count > INT32_MAX || first < 0 || first > INT64_MAX - INT32_MAX ||
        (!from_snapshot && first != c->block_end))
        return ST_FAIL(err, ST_ERR_CORRUPT, "the blocks of steps are not consecutive");
    ST_TRY(st_facts_decoder_begin(&c->facts, sqlite3_column_blob(stmt, 2),
                                  (size_t)sqlite3_column_bytes(stmt, 2), err));
    if (from_snapshot)
        ST_TRY(st_facts_decode_snapshot(&c->facts, &c->requests, err));
    if (with_blocks(c)) {
        bool keyframe = sqlite3_column_type(stmt, 4) != SQLITE_NULL;
        ST_TRY(st_columns_unpack(sqlite3_column_blob(stmt, 3),
                                 (size_t)sqlite3_column_bytes(stmt, 3), &c->id_bytes, c->id_column,
                                 ST_BLOCKS_COLUMNS, err));
        st_blocks_begin(&c->model, c->id_column);
        if (keyframe && from_snapshot)
            ST_TRY(st_blocks_get_keyframe(&c->model, &c->requests, sqlite3_column_blob(stmt, 4),
                                          (size_t)sqlite3_column_bytes(stmt, 4), err));
        else if (keyframe)
            ST_TRY(st_blocks_pass_keyframe(&c->model, &c->requests, err));
    }
    c->block_end = first + count;
    return ST_OK;
}

static int next_gap(struct st_cursor *c, struct st_error *err) {
    c->gap_step = INT64_MAX;
    int rc = c->gap_stmt ? sqlite3_step(c->gap_stmt) : SQLITE_DONE;
    if (rc != SQLITE_ROW)
        return rc == SQLITE_DONE ? ST_OK : st_db_fail(c->tape->db, c->tape->path, err);
    c->gap_step = sqlite3_column_int64(c->gap_stmt, 0);
    c->gap_count = sqlite3_column_int64(c->gap_stmt, 1);
    if (c->gap_count < 1 || c->gap_count > ST_STEP_ID_MAX)
        return ST_FAIL(err, ST_ERR_CORRUPT, "table step_gap: a count is out of range");
    return ST_OK;
}

/* Starts anew at the block whose first step is given. */
static int start_at(struct st_cursor *c, int64_t first, struct st_error *err) {
    c->started = c->given = c->ended = false;
    st_requests_clear(&c->requests);
    if (with_blocks(c)) {
        st_blocks_model_fini(&c->model);
        ST_TRY(st_blocks_model_init(&c->model, st_tape_header(c->tape),
                                    (unsigned)c->tape->stored->allocator_model, err));
    }
    sqlite3_reset(c->block_stmt);
    sqlite3_reset(c->step_stmt);
    sqlite3_bind_int64(c->block_stmt, 1, first);
    sqlite3_bind_int64(c->step_stmt, 1, first);
    int rc = sqlite3_step(c->block_stmt);
    if (rc == SQLITE_DONE)
        return ST_DONE;
    if (rc != SQLITE_ROW)
        return st_db_fail(c->tape->db, c->tape->path, err);
    c->position = sqlite3_column_int64(c->block_stmt, 0);
    if (c->gap_stmt) {
        sqlite3_reset(c->gap_stmt);
        sqlite3_bind_int64(c->gap_stmt, 1, c->position);
    }
    ST_TRY(next_gap(c, err));
    ST_TRY(open_block(c, true, err));
    c->started = true;
    return ST_OK;
}

int st_cursor_open(struct st_tape *tape, unsigned what, struct st_cursor **cursor,
                   struct st_error *err) {
    if (st_tape_is_result(tape))
        return ST_FAIL(err, ST_ERR_INPUT,
                       "%s: a result tape holds no arrays of steps; open the tape it came from",
                       tape->path);
    struct st_cursor *c = calloc(1, sizeof *c);
    if (!c)
        return ST_FAIL_NOMEM(err);
    c->tape = tape;
    c->what = what;
    int32_t groups = st_tape_header(tape)->group_count;
    st_requests_init(&c->requests, with_blocks(c) ? groups : 0);
    int rc =
        st_db_prepare(c->tape->db, c->tape->path,
                      "SELECT first_step, step_count, facts, block_ids, keyframe FROM step_block"
                      " WHERE first_step >= ? ORDER BY first_step",
                      &c->block_stmt, err);
    if (!rc)
        rc = st_db_prepare(c->tape->db, c->tape->path,
                           "SELECT step_id, start_ns, duration_ns, graph_mode, padded_token_count,"
                           " padded_request_count FROM step WHERE step_id >= ? ORDER BY step_id",
                           &c->step_stmt, err);
    bool has_gaps = false;
    if (!rc)
        rc = st_db_has_table(c->tape->db, c->tape->path, "step_gap", &has_gaps, err);
    if (!rc && has_gaps)
        rc = st_db_prepare(c->tape->db, c->tape->path,
                           "SELECT before_step_id, dropped_count FROM step_gap"
                           " WHERE before_step_id >= ? ORDER BY before_step_id",
                           &c->gap_stmt, err);
    if (rc)
        st_cursor_close(c);
    else
        *cursor = c;
    return rc;
}

void st_cursor_close(struct st_cursor *c) {
    if (!c)
        return;
    sqlite3_finalize(c->block_stmt);
    sqlite3_finalize(c->step_stmt);
    sqlite3_finalize(c->gap_stmt);
    st_requests_fini(&c->requests);
    st_facts_decoder_fini(&c->facts);
    st_blocks_model_fini(&c->model);
    st_bytes_fini(&c->id_bytes);
    free(c);
}

static enum st_graph_mode parse_mode(const char *name) {
    if (!name)
        return ST_GRAPH_MODE_UNKNOWN;
    return name[0] == 'F'   ? ST_GRAPH_MODE_FULL
           : name[0] == 'P' ? ST_GRAPH_MODE_PIECEWISE
                            : ST_GRAPH_MODE_NONE;
}

static int read_row(struct st_cursor *c, struct st_error *err) {
    int rc = sqlite3_step(c->step_stmt);
    if (rc != SQLITE_ROW && rc != SQLITE_DONE)
        return st_db_fail(c->tape->db, c->tape->path, err);
    if (rc == SQLITE_DONE || sqlite3_column_int64(c->step_stmt, 0) != c->position)
        return ST_FAIL(err, ST_ERR_CORRUPT, "the row of table step is missing");
    c->step.step_id = c->position;
    c->step.start_ns = st_db_column(c->step_stmt, 1);
    c->step.duration_ns = st_db_column(c->step_stmt, 2);
    c->step.graph_mode = parse_mode((const char *)sqlite3_column_text(c->step_stmt, 3));
    c->step.padded_token_count = st_db_column(c->step_stmt, 4);
    c->step.padded_request_count = st_db_column(c->step_stmt, 5);
    c->step.dropped_before = 0;
    if (c->gap_step == c->position) {
        c->step.dropped_before = c->gap_count;
        ST_TRY(next_gap(c, err));
    }
    return ST_OK;
}

static int next_block(struct st_cursor *c, struct st_error *err) {
    /* SQLite would start a finished statement anew. */
    int rc = c->ended ? SQLITE_DONE : sqlite3_step(c->block_stmt);
    c->ended = rc == SQLITE_DONE;
    if (c->ended)
        return ST_DONE;
    if (rc != SQLITE_ROW)
        return st_db_fail(c->tape->db, c->tape->path, err);
    return open_block(c, false, err);
}

static int advance(struct st_cursor *c, struct st_error *err) {
    if (c->given) {
        st_requests_advance(&c->requests, &c->step);
        c->position++;
        c->given = false;
    }
    if (c->position == c->block_end)
        ST_TRY(next_block(c, err));
    ST_TRY(read_row(c, err));
    c->step.blocks = NULL;
    c->step.group_count = 0;
    ST_TRY(st_facts_decode(&c->facts, &c->requests, &c->step, err));
    if (with_blocks(c))
        ST_TRY(st_blocks_decode(&c->model, &c->requests, &c->step, c->id_column, err));
    c->given = true;
    return ST_OK;
}

int st_cursor_next(struct st_cursor *c, const struct st_step **step, struct st_error *err) {
    int rc = c->started ? ST_OK : start_at(c, c->tape->first_step, err);
    if (!rc)
        rc = advance(c, err);
    if (rc < 0)
        c->started = false;
    if (!rc)
        *step = &c->step;
    return at_step(c, rc, err);
}

/* First step of the last block at or before a step; with a keyframe, or the tape's first. */
static int find_block(struct st_cursor *c, int64_t step_id, bool keyframe, int64_t *first,
                      struct st_error *err) {
    sqlite3_stmt *stmt;
    ST_TRY(st_db_prepare(c->tape->db, c->tape->path,
                         keyframe ? "SELECT first_step FROM step_block WHERE first_step <= ? AND"
                                    " keyframe IS NOT NULL ORDER BY first_step DESC LIMIT 1"
                                  : "SELECT first_step FROM step_block WHERE first_step <= ?"
                                    " ORDER BY first_step DESC LIMIT 1",
                         &stmt, err));
    sqlite3_bind_int64(stmt, 1, step_id);
    int rc = sqlite3_step(stmt);
    *first = rc == SQLITE_ROW ? sqlite3_column_int64(stmt, 0) : c->tape->first_step;
    sqlite3_finalize(stmt);
    return rc == SQLITE_ROW || rc == SQLITE_DONE ? ST_OK
                                                 : st_db_fail(c->tape->db, c->tape->path, err);
}

/* When the oldest request that lives in a step got its present table.  Those that are not in its
 * batch count too: reading on from there comes to them. */
static int oldest_birth(struct st_cursor *c, int64_t step_id, int64_t *birth,
                        struct st_error *err) {
    struct st_cursor *facts;
    const struct st_step *step;
    ST_TRY(st_cursor_open(c->tape, 0, &facts, err));
    int rc = st_cursor_seek(facts, step_id, err);
    if (!rc)
        rc = st_cursor_next(facts, &step, err);
    *birth = step_id;
    if (!rc) {
        /* Without block ids nobody applied what the step replaces: its tables are born here. */
        const struct st_request_vector *live[] = {&facts->requests.running,
                                                  &facts->requests.waiting};
        for (int v = 0; v < 2; v++)
            for (int32_t i = 0; i < live[v]->count; i++)
                if (live[v]->item[i]->birth_step < *birth)
                    *birth = live[v]->item[i]->birth_step;
    }
    st_cursor_close(facts);
    return rc;
}

int st_cursor_seek(struct st_cursor *c, int64_t step_id, struct st_error *err) {
    const struct st_tape *tape = c->tape;
    if (step_id < tape->first_step || step_id - tape->first_step >= tape->step_count)
        return ST_FAIL(err, ST_ERR_USAGE,
                       "%s: no step %" PRId64 ", the tape has %" PRId64 " to %" PRId64, tape->path,
                       step_id, tape->first_step, tape->first_step + tape->step_count - 1);
    int64_t next = c->position + (c->given ? 1 : 0);
    if (c->started && next == step_id)
        return ST_OK;
    int64_t first, need = step_id;
    if (c->what == ST_READ_TABLES)
        ST_TRY(oldest_birth(c, step_id, &need, err));
    ST_TRY(find_block(c, need, with_blocks(c), &first, err));
    bool behind = c->started && next <= step_id;
    /* What lives there lived where the cursor started, or was born since: its tables are whole. */
    int rc = behind && next > first ? ST_OK : start_at(c, first, err);
    while (!rc && c->position + (c->given ? 1 : 0) < step_id)
        rc = advance(c, err);
    if (rc < 0)
        c->started = false;
    if (rc == ST_DONE)
        rc = ST_FAIL(err, ST_ERR_CORRUPT, "the step is in no block");
    return at_step(c, rc, err);
}

/* What is held of a row's table: whole, or from its base on. */
static int held_table(struct st_cursor *c, int32_t group, int32_t row,
                      const struct st_table **table, struct st_error *err) {
    if (!c->given || !with_blocks(c) || group < 0 || group >= c->model.group_count || row < 0 ||
        row >= c->step.request_count)
        return ST_FAIL(err, ST_ERR_USAGE, "%s: no block table of group %d, row %d here",
                       c->tape->path, group, row);
    *table = &c->requests.batch.item[row]->tables[group];
    return ST_OK;
}

static int fail_not_held(const struct st_cursor *c, struct st_error *err) {
    return ST_FAIL(err, ST_ERR_USAGE, "%s: whole block tables need ST_READ_TABLES", c->tape->path);
}

int st_cursor_block_table(struct st_cursor *c, int32_t group, int32_t row, const int32_t **block_id,
                          int32_t *count, struct st_error *err) {
    const struct st_table *table = NULL;
    ST_TRY(held_table(c, group, row, &table, err));
    if (table->base)
        return fail_not_held(c, err);
    *block_id = table->id;
    *count = table->count;
    return ST_OK;
}

int st_cursor_slot_mapping(struct st_cursor *c, int32_t group, int64_t *slot,
                           struct st_error *err) {
    for (int32_t row = 0; row < c->step.request_count; row++) {
        const struct st_table *table = NULL;
        ST_TRY(held_table(c, group, row, &table, err));
        int32_t size = c->model.block_size[group];
        int32_t position = c->step.num_computed_tokens[row];
        int32_t ordinal = position / size, offset = position % size;
        if (ordinal < table->base)
            return fail_not_held(c, err);
        const int32_t *id = table->id;
        for (int32_t k = 0; k < c->step.query_len[row]; k++) {
            *slot++ =
                ordinal < table->count ? (int64_t)id[ordinal - table->base] * size + offset : -1;
            if (++offset == size) {
                offset = 0;
                ordinal++;
            }
        }
    }
    return ST_OK;
}
