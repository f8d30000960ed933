/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the virtual tables of a connection share: the tape and the pool of readers.
 */
#include "analysis/sql.h"
#include "analysis/sql_i.h"

#include <stdlib.h>

#include "traces/format/schema.h"

/* Decoding this many steps is cheaper than a seek. */
#define NEAR_STEPS 4
/* Idle readers beyond this many are closed: a self-join of four tables keeps its decoders. */
#define IDLE_READERS 4

static int64_t pragma_integer(sqlite3 *db, const char *sql) {
    sqlite3_stmt *statement;
    int64_t value = 0;
    if (sqlite3_prepare_v2(db, sql, -1, &statement, NULL) != SQLITE_OK)
        return 0;
    if (sqlite3_step(statement) == SQLITE_ROW)
        value = sqlite3_column_int64(statement, 0);
    sqlite3_finalize(statement);
    return value;
}

/* Says what a database is when it is no tape with arrays; a stock sqlite3 opens anything. */
static int attach(struct st_sql *sql, struct st_error *err) {
    const char *path = sqlite3_db_filename(sql->db, "main");
    if (!path || !*path)
        path = "the database";
    if (pragma_integer(sql->db, "PRAGMA main.application_id") != ST_APPLICATION_ID)
        return ST_FAIL(err, ST_ERR_INPUT, "%s is no tape", path);
    int64_t version = pragma_integer(sql->db, "PRAGMA main.user_version");
    if (version > ST_FORMAT_VERSION)
        return ST_FAIL(err, ST_ERR_VERSION,
                       "%s is a tape of format version %lld, this extension reads up to %d", path,
                       (long long)version, ST_FORMAT_VERSION);
    struct st_tape *tape;
    ST_TRY(st_tape_attach(sql->db, &tape, err));
    if (st_tape_is_result(tape)) {
        st_tape_close(tape);
        return ST_FAIL(err, ST_ERR_INPUT,
                       "%s is a result tape, which holds no arrays: ask the tape that was replayed",
                       path);
    }
    sql->tape = tape;
    return 0;
}

int st_sql_use(struct st_sql *sql, struct st_error *err) {
    if (!sql->tape)
        ST_TRY(attach(sql, err));
    sql->vtab_count++;
    return 0;
}

static void free_reader(struct st_sql_reader *reader) {
    st_cursor_close(reader->cursor);
    free(reader);
}

void st_sql_unuse(struct st_sql *sql) {
    if (--sql->vtab_count > 0)
        return;
    while (sql->readers) {
        struct st_sql_reader *reader = sql->readers;
        sql->readers = reader->next;
        free_reader(reader);
    }
    st_tape_close(sql->tape);
    sql->tape = NULL;
}

void st_sql_drop(struct st_sql *sql) {
    if (--sql->module_count == 0)
        free(sql);
}

/* How much decoding lies between a reader and a step; lower is better. */
static int64_t distance(const struct st_sql_reader *reader, int64_t step_id) {
    if (reader->step && reader->step->step_id == step_id)
        return -1;
    if (reader->next_step_id <= step_id)
        return step_id - reader->next_step_id;
    return INT64_MAX;
}

/* Closes idle readers that are too many. */
static void trim_pool(struct st_sql *sql) {
    int idle = 0;
    for (struct st_sql_reader **link = &sql->readers; *link;) {
        struct st_sql_reader *reader = *link;
        if (!reader->busy && ++idle > IDLE_READERS) {
            *link = reader->next;
            free_reader(reader);
        } else {
            link = &reader->next;
        }
    }
}

int st_sql_reader_take(struct st_sql *sql, unsigned what, int64_t step_id,
                       struct st_sql_reader **reader, struct st_error *err) {
    struct st_sql_reader *best = NULL;
    for (struct st_sql_reader *r = sql->readers; r; r = r->next)
        if (!r->busy && r->what == what &&
            (!best || distance(r, step_id) < distance(best, step_id)))
            best = r;
    if (!best) {
        trim_pool(sql);
        best = calloc(1, sizeof *best);
        if (!best)
            return ST_FAIL_NOMEM(err);
        best->what = what;
        best->next_step_id = st_tape_first_step(sql->tape);
        int rc = st_cursor_open(sql->tape, what, &best->cursor, err);
        if (rc) {
            free(best);
            return rc;
        }
        best->next = sql->readers;
        sql->readers = best;
    }
    best->busy = true;
    *reader = best;
    return 0;
}

void st_sql_reader_give(struct st_sql_reader *reader) {
    if (reader)
        reader->busy = false;
}

int st_sql_reader_move(struct st_sql_reader *reader, int64_t step_id, struct st_error *err) {
    if (reader->step && reader->step->step_id == step_id)
        return 0;
    reader->step = NULL;
    int64_t ahead = step_id - reader->next_step_id;
    if (ahead < 0 || ahead > NEAR_STEPS) {
        ST_TRY(st_cursor_seek(reader->cursor, step_id, err));
        reader->next_step_id = step_id;
    }
    const struct st_step *step;
    do {
        int rc = st_cursor_next(reader->cursor, &step, err);
        if (rc) {
            reader->next_step_id = INT64_MAX; /* position lost: seek next time */
            return rc == ST_DONE ? ST_FAIL(err, ST_ERR_CORRUPT, "step %lld is missing in the tape",
                                           (long long)step_id)
                                 : rc;
        }
        reader->next_step_id = step->step_id + 1;
    } while (step->step_id < step_id);
    reader->step = step;
    return 0;
}

int st_sql_code(const struct st_error *err) {
    switch (err->code) {
    case ST_ERR_NOMEM:
        return SQLITE_NOMEM;
    case ST_ERR_INTERRUPTED:
        return SQLITE_INTERRUPT;
    case ST_ERR_CORRUPT:
        return SQLITE_CORRUPT;
    case ST_ERR_IO:
        return SQLITE_IOERR;
    default:
        return SQLITE_ERROR;
    }
}

int st_sql_vtab_fail(sqlite3_vtab *vtab, const struct st_error *err) {
    sqlite3_free(vtab->zErrMsg);
    vtab->zErrMsg = sqlite3_mprintf("%s", err->msg);
    return st_sql_code(err);
}

int st_sql_register(struct sqlite3 *db, struct st_error *err) {
    struct st_sql *sql = calloc(1, sizeof *sql);
    if (!sql)
        return ST_FAIL_NOMEM(err);
    sql->db = db;
    sql->module_count = 1; /* held until all are registered */
    int rc = st_sql_register_step_tables(sql);
    if (rc == SQLITE_OK)
        rc = st_sql_register_launch(sql);
    st_sql_drop(sql);
    if (rc == SQLITE_OK)
        rc = st_sql_register_aggregates(db);
    if (rc != SQLITE_OK)
        return ST_FAIL_NATIVE(err, ST_ERR_NATIVE, rc, "cannot register the SQL extension: %s",
                              sqlite3_errmsg(db));
    return 0;
}
