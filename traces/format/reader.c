/* SPDX-License-Identifier: Apache-2.0 */
#include "traces/format/reader.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "traces/format/db.h"
#include "traces/format/header_store.h"
#include "traces/format/reader_i.h"
#include "traces/format/result_schema.h"

/* Views, virtual tables and generated columns could compute for ever. */
static int check_tables(struct st_tape *tape, struct st_error *err) {
    const char *sql =
        "SELECT s.name FROM sqlite_schema AS s WHERE lower(s.name) IN"
        " ('tape','kv_group','step','operation','step_block','step_check','seal',"
        "'step_summary','recorder','recorder_note','step_gap','launch_capture','launch_event',"
        "'launch_name','launch_site','launch_step','launch_block',"
        "'_result','run','_policy','_operator','_shape','_run_step',"
        "'_operator_time','_sample','_hazard','_check','_digest','predicate_cost',"
        "'_family')"
        " AND (s.type <> 'table' OR coalesce(s.rootpage, 0) < 1 OR EXISTS"
        " (SELECT 1 FROM pragma_table_xinfo(s.name) AS x WHERE x.hidden <> 0))";
    sqlite3_stmt *stmt;
    ST_TRY(st_db_prepare(tape->db, tape->path, sql, &stmt, err));
    int rc = sqlite3_step(stmt);
    if (rc == SQLITE_ROW)
        rc = ST_FAIL(err, ST_ERR_CORRUPT, "%s: %.64s is not a table of the tape format", tape->path,
                     sqlite3_column_text(stmt, 0));
    else
        rc = rc == SQLITE_DONE ? ST_OK : st_db_fail(tape->db, tape->path, err);
    sqlite3_finalize(stmt);
    return rc;
}

/* The same for the views of a result tape: they are the format's own, word for word. */
static int check_views(struct st_tape *tape, struct st_error *err) {
    const char *sql =
        "SELECT name, sql FROM sqlite_schema WHERE lower(name) IN ('run_step','run_sample',"
        "'launch_count','hazard','run_check','run_digest')";
    sqlite3_stmt *stmt;
    ST_TRY(st_db_prepare(tape->db, tape->path, sql, &stmt, err));
    int rc = ST_OK, row;
    while (!rc && (row = sqlite3_step(stmt)) == SQLITE_ROW) {
        const char *view = (const char *)sqlite3_column_text(stmt, 1);
        const char *found = view ? strstr(st_result_views_sql, view) : NULL;
        if (!found || strncmp(found, "CREATE VIEW ", 12) != 0 || found[strlen(view)] != ';')
            rc = ST_FAIL(err, ST_ERR_CORRUPT, "%s: %.64s is not a view of the tape format",
                         tape->path, sqlite3_column_text(stmt, 0));
    }
    if (!rc && row != SQLITE_DONE)
        rc = st_db_fail(tape->db, tape->path, err);
    sqlite3_finalize(stmt);
    return rc;
}

static int load(struct st_tape *tape, struct st_error *err) {
    ST_TRY(check_tables(tape, err));
    ST_TRY(check_views(tape, err));
    ST_TRY(st_header_load(tape->db, tape->path, &tape->stored, err));
    /* Step ids of a tape are consecutive, which spares counting millions; a result tape may hold
     * some steps of many. */
    const char *sql = tape->stored->is_result
                          ? "SELECT count(*), min(step_id) FROM step"
                          : "SELECT 1 + (SELECT max(step_id) FROM step) -"
                            " (SELECT min(step_id) FROM step), (SELECT min(step_id) FROM step)";
    sqlite3_stmt *stmt;
    ST_TRY(st_db_prepare(tape->db, tape->path, sql, &stmt, err));
    int rc = sqlite3_step(stmt) == SQLITE_ROW ? ST_OK : st_db_fail(tape->db, tape->path, err);
    if (!rc) {
        tape->step_count = sqlite3_column_int64(stmt, 0);
        tape->first_step = sqlite3_column_int64(stmt, 1);
    }
    sqlite3_finalize(stmt);
    if (!rc && (tape->first_step < 0 || tape->first_step > ST_STEP_ID_MAX || tape->step_count < 0 ||
                tape->step_count > ST_STEP_ID_MAX))
        rc = ST_FAIL(err, ST_ERR_CORRUPT, "%s: table step: step number %" PRId64 " is out of range",
                     tape->path, tape->first_step);
    if (rc || tape->stored->is_result || tape->part)
        return rc;
    ST_TRY(st_db_prepare(tape->db, tape->path, "SELECT hash FROM seal", &stmt, err));
    int row = sqlite3_step(stmt);
    const unsigned char *hash = row == SQLITE_ROW ? sqlite3_column_text(stmt, 0) : NULL;
    if (hash && sqlite3_column_bytes(stmt, 0) == 32)
        memcpy(tape->hash, hash, 32);
    else if ((row != SQLITE_ROW && row != SQLITE_DONE) || sqlite3_errcode(tape->db) == SQLITE_NOMEM)
        rc = st_db_fail(tape->db, tape->path, err);
    else
        rc = ST_FAIL(err, ST_ERR_CORRUPT,
                     "%s: the seal is missing; what a recorder left unfinished is for `steptape "
                     "recover`",
                     tape->path);
    sqlite3_finalize(stmt);
    return rc;
}

static int create(sqlite3 *db, const char *path, bool owned, bool part, struct st_tape **tape,
                  struct st_error *err) {
    struct st_tape *t = calloc(1, sizeof *t);
    if (!t) {
        if (owned)
            sqlite3_close(db);
        return ST_FAIL_NOMEM(err);
    }
    t->db = db;
    t->owned = owned;
    t->part = part;
    t->path = strdup(path);
    int rc = t->path ? load(t, err) : ST_FAIL_NOMEM(err);
    if (rc)
        st_tape_close(t);
    else
        *tape = t;
    return rc;
}

int st_tape_open(const char *path, struct st_tape **tape, struct st_error *err) {
    sqlite3 *db;
    ST_TRY(st_db_open_tape(path, &db, err));
    return create(db, path, true, false, tape, err);
}

int st_tape_open_part(const char *path, struct st_tape **tape, struct st_error *err) {
    sqlite3 *db;
    ST_TRY(st_db_open_tape(path, &db, err));
    return create(db, path, true, true, tape, err);
}

int st_tape_attach(sqlite3 *db, struct st_tape **tape, struct st_error *err) {
    const char *path = sqlite3_db_filename(db, "main");
    return create(db, path && *path ? path : "(memory)", false, false, tape, err);
}

void st_tape_close(struct st_tape *tape) {
    if (!tape)
        return;
    st_stored_header_destroy(tape->stored);
    free(tape->check_json.data);
    if (tape->owned)
        sqlite3_close(tape->db);
    free(tape->path);
    free(tape);
}

const char *st_tape_path(const struct st_tape *tape) {
    return tape->path;
}

const struct st_header *st_tape_header(const struct st_tape *tape) {
    return &tape->stored->header;
}

bool st_tape_is_result(const struct st_tape *tape) {
    return tape->stored->is_result;
}

int64_t st_tape_step_count(const struct st_tape *tape) {
    return tape->step_count;
}

int64_t st_tape_first_step(const struct st_tape *tape) {
    return tape->first_step;
}

sqlite3 *st_tape_db(struct st_tape *tape) {
    return tape->db;
}

const char *st_tape_hash(const struct st_tape *tape) {
    return tape->hash;
}

int st_tape_check_json(struct st_tape *tape, int64_t step_id, const char **json,
                       struct st_error *err) {
    sqlite3_stmt *stmt;
    ST_TRY(st_db_prepare(tape->db, tape->path,
                         "SELECT check_json FROM step_check WHERE step_id = ?", &stmt, err));
    sqlite3_bind_int64(stmt, 1, step_id);
    int rc = sqlite3_step(stmt);
    if (rc == SQLITE_ROW) {
        struct st_error reason = {0};
        rc = st_bytes_inflate(&tape->check_json, sqlite3_column_blob(stmt, 0),
                              (size_t)sqlite3_column_bytes(stmt, 0), (size_t)1 << 30, &reason);
        if (rc)
            rc = ST_FAIL_NATIVE(err, rc, reason.native, "%s: step %" PRId64 ": check: %s",
                                tape->path, step_id, reason.msg);
        if (!rc && memchr(tape->check_json.data, 0, tape->check_json.size))
            rc = ST_FAIL(err, ST_ERR_CORRUPT, "%s: step %" PRId64 ": the check object is damaged",
                         tape->path, step_id);
        if (!rc) {
            tape->check_json.data[tape->check_json.size] = 0; /* inflate leaves room for it */
            *json = (const char *)tape->check_json.data;
        }
    } else {
        rc = rc == SQLITE_DONE ? ST_OK : st_db_fail(tape->db, tape->path, err);
        *json = NULL;
    }
    sqlite3_finalize(stmt);
    return rc;
}
