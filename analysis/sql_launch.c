/* SPDX-License-Identifier: Apache-2.0 */
/*
 * launch: single launches of the runs of a result tape.
 *
 * Launches are kept on request only.  A tape that has them holds a table or view `_launch` with
 * this table's columns, and every constraint is handed on to it; elsewhere `launch` exists and is
 * empty, so that a query written for one result tape runs on all.
 */
#include "analysis/sql_i.h"

#include <stdlib.h>
#include <string.h>

static const char schema[] = "CREATE TABLE launch(run_id INTEGER, policy TEXT, step_id INTEGER, "
                             "ordinal INTEGER, operator TEXT, graph_node INTEGER, grid INTEGER, "
                             "block INTEGER, start_ns INTEGER, duration_ns INTEGER, "
                             "PRIMARY KEY(run_id, policy, step_id, ordinal)) WITHOUT ROWID";
static const char *const columns[] = {"run_id",     "policy", "step_id", "ordinal",  "operator",
                                      "graph_node", "grid",   "block",   "start_ns", "duration_ns"};
enum { COLUMN_COUNT = sizeof columns / sizeof columns[0] };

struct launch_vtab {
    sqlite3_vtab base;
    sqlite3 *db;
};

struct launch_cursor {
    sqlite3_vtab_cursor base;
    sqlite3_stmt *statement; /* NULL: the tape has no single launches */
    bool at_end;
};

static int launch_connect(sqlite3 *db, void *aux, int argc, const char *const *argv,
                          sqlite3_vtab **out, char **message) {
    (void)aux, (void)argc, (void)argv, (void)message;
    int rc = sqlite3_declare_vtab(db, schema);
    if (rc != SQLITE_OK)
        return rc;
    sqlite3_vtab_config(db, SQLITE_VTAB_INNOCUOUS);
    struct launch_vtab *vtab = sqlite3_malloc(sizeof *vtab);
    if (!vtab)
        return SQLITE_NOMEM;
    memset(vtab, 0, sizeof *vtab);
    vtab->db = db;
    *out = &vtab->base;
    return SQLITE_OK;
}

static int launch_disconnect(sqlite3_vtab *vtab) {
    sqlite3_free(vtab);
    return SQLITE_OK;
}

static const char *operator_text(unsigned char op) {
    switch (op) {
    case SQLITE_INDEX_CONSTRAINT_EQ:
        return "=";
    case SQLITE_INDEX_CONSTRAINT_GT:
        return ">";
    case SQLITE_INDEX_CONSTRAINT_GE:
        return ">=";
    case SQLITE_INDEX_CONSTRAINT_LT:
        return "<";
    case SQLITE_INDEX_CONSTRAINT_LE:
        return "<=";
    default:
        return NULL;
    }
}

/* The plan is the end of the inner statement: its WHERE terms. */
static int launch_best_index(sqlite3_vtab *vtab, sqlite3_index_info *info) {
    (void)vtab;
    sqlite3_str *terms = sqlite3_str_new(NULL);
    int argument_count = 0;
    info->estimatedCost = 1e6;
    for (int i = 0; i < info->nConstraint; i++) {
        const struct sqlite3_index_constraint *constraint = &info->aConstraint[i];
        const char *op = operator_text(constraint->op);
        if (!constraint->usable || !op || constraint->iColumn < 0)
            continue;
        argument_count++;
        sqlite3_str_appendf(terms, " %s %s %s ?%d", argument_count == 1 ? "WHERE" : "AND",
                            columns[constraint->iColumn], op, argument_count);
        info->aConstraintUsage[i].argvIndex = argument_count;
        info->estimatedCost /= constraint->op == SQLITE_INDEX_CONSTRAINT_EQ ? 20 : 3;
    }
    info->estimatedRows = (sqlite3_int64)info->estimatedCost + 1;
    int rc = sqlite3_str_errcode(terms);
    info->idxStr = sqlite3_str_finish(terms);
    info->needToFreeIdxStr = 1;
    return rc;
}

static int launch_open(sqlite3_vtab *vtab, sqlite3_vtab_cursor **out) {
    (void)vtab;
    struct launch_cursor *cursor = sqlite3_malloc(sizeof *cursor);
    if (!cursor)
        return SQLITE_NOMEM;
    memset(cursor, 0, sizeof *cursor);
    *out = &cursor->base;
    return SQLITE_OK;
}

static int launch_close(sqlite3_vtab_cursor *base) {
    struct launch_cursor *cursor = (struct launch_cursor *)base;
    sqlite3_finalize(cursor->statement);
    sqlite3_free(cursor);
    return SQLITE_OK;
}

static int advance(struct launch_cursor *cursor) {
    const struct launch_vtab *vtab = (const struct launch_vtab *)cursor->base.pVtab;
    int rc = sqlite3_step(cursor->statement);
    cursor->at_end = rc != SQLITE_ROW;
    if (rc == SQLITE_ROW || rc == SQLITE_DONE)
        return SQLITE_OK;
    sqlite3_free(cursor->base.pVtab->zErrMsg);
    cursor->base.pVtab->zErrMsg = sqlite3_mprintf("launch: %s", sqlite3_errmsg(vtab->db));
    return rc;
}

static int has_launches(sqlite3 *db, bool *answer) {
    sqlite3_stmt *statement;
    int rc = sqlite3_prepare_v2(db, "SELECT 1 FROM main.sqlite_schema WHERE name = '_launch'", -1,
                                &statement, NULL);
    if (rc != SQLITE_OK)
        return rc;
    *answer = sqlite3_step(statement) == SQLITE_ROW;
    return sqlite3_finalize(statement);
}

static int launch_filter(sqlite3_vtab_cursor *base, int plan_number, const char *plan, int argc,
                         sqlite3_value **argv) {
    (void)plan_number;
    struct launch_cursor *cursor = (struct launch_cursor *)base;
    struct launch_vtab *vtab = (struct launch_vtab *)base->pVtab;
    bool found = false;
    cursor->at_end = true;
    sqlite3_finalize(cursor->statement);
    cursor->statement = NULL;
    int rc = has_launches(vtab->db, &found);
    if (rc != SQLITE_OK || !found)
        return rc;
    char *sql = sqlite3_mprintf("SELECT run_id, policy, step_id, ordinal, operator, graph_node, "
                                "grid, block, start_ns, duration_ns FROM main._launch%s",
                                plan ? plan : "");
    if (!sql)
        return SQLITE_NOMEM;
    rc = sqlite3_prepare_v2(vtab->db, sql, -1, &cursor->statement, NULL);
    sqlite3_free(sql);
    for (int i = 0; rc == SQLITE_OK && i < argc; i++)
        rc = sqlite3_bind_value(cursor->statement, i + 1, argv[i]);
    if (rc == SQLITE_OK)
        return advance(cursor);
    sqlite3_free(base->pVtab->zErrMsg);
    base->pVtab->zErrMsg = sqlite3_mprintf("launch: %s", sqlite3_errmsg(vtab->db));
    return rc;
}

static int launch_next(sqlite3_vtab_cursor *base) {
    return advance((struct launch_cursor *)base);
}

static int launch_eof(sqlite3_vtab_cursor *base) {
    return ((struct launch_cursor *)base)->at_end;
}

static int launch_column(sqlite3_vtab_cursor *base, sqlite3_context *context, int column) {
    const struct launch_cursor *cursor = (const struct launch_cursor *)base;
    if (column < COLUMN_COUNT)
        sqlite3_result_value(context, sqlite3_column_value(cursor->statement, column));
    return SQLITE_OK;
}

static int launch_rowid(sqlite3_vtab_cursor *base, sqlite3_int64 *rowid) {
    (void)base;
    *rowid = 0; /* the table is WITHOUT ROWID */
    return SQLITE_OK;
}

static const sqlite3_module launch_module = {
    .iVersion = 0,
    .xConnect = launch_connect,
    .xBestIndex = launch_best_index,
    .xDisconnect = launch_disconnect,
    .xOpen = launch_open,
    .xClose = launch_close,
    .xFilter = launch_filter,
    .xNext = launch_next,
    .xEof = launch_eof,
    .xColumn = launch_column,
    .xRowid = launch_rowid,
};

int st_sql_register_launch(struct st_sql *sql) {
    return sqlite3_create_module_v2(sql->db, "launch", &launch_module, NULL, NULL);
}
