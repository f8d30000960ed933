/* SPDX-License-Identifier: Apache-2.0 */
/*
 * launch: single launches.
 *
 * Of a result tape that holds runs of backend `engine`, the recorded launches of those runs; of a
 * tape, its recorded launches, whose run_id is NULL: they are no run yet.  Elsewhere `launch`
 * exists and is empty, so that a query written for one tape runs on all.
 */
#include "analysis/sql_i.h"

#include <stdlib.h>
#include <string.h>

#include "traces/format/db.h"
#include "traces/format/launch_family.h"
#include "traces/format/launches.h"

static const char schema[] = "CREATE TABLE launch(run_id INTEGER, policy TEXT, step_id INTEGER, "
                             "ordinal INTEGER, operator TEXT, graph_node INTEGER, grid INTEGER, "
                             "block INTEGER, start_ns INTEGER, duration_ns INTEGER)";
enum column {
    RUN_ID,
    POLICY,
    STEP_ID,
    ORDINAL,
    OPERATOR,
    GRAPH_NODE,
    GRID,
    BLOCK,
    START_NS,
    DURATION_NS,
};

struct launch_vtab {
    sqlite3_vtab base;
    sqlite3 *db;
    struct st_launches *launches; /* opened at the first use */
};

struct launch_cursor {
    sqlite3_vtab_cursor base;
    sqlite3_stmt *statement; /* the steps whose launches are listed */
    bool at_end;
    struct st_launch_record *list; /* of the step; a copy: cursors share st_launches */
    int64_t count, at;
    sqlite3_int64 rowid;
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

static int launch_disconnect(sqlite3_vtab *base) {
    struct launch_vtab *vtab = (struct launch_vtab *)base;
    st_launches_close(vtab->launches);
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

/* The plan holds WHERE terms of run and step, one a line; SQLite checks all terms again. */
static int launch_best_index(sqlite3_vtab *vtab, sqlite3_index_info *info) {
    (void)vtab;
    sqlite3_str *terms = sqlite3_str_new(NULL);
    int argument_count = 0;
    info->estimatedCost = 1e6;
    for (int i = 0; i < info->nConstraint; i++) {
        const struct sqlite3_index_constraint *constraint = &info->aConstraint[i];
        const char *op = operator_text(constraint->op);
        bool run = constraint->iColumn == RUN_ID;
        if (!constraint->usable || !op || !(run || constraint->iColumn == STEP_ID))
            continue;
        argument_count++;
        sqlite3_str_appendf(terms, "%s %s ?%d\n", run ? "run_id" : "step_id", op, argument_count);
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
    free(cursor->list);
    sqlite3_free(cursor);
    return SQLITE_OK;
}

static int fail(struct launch_cursor *cursor, int rc) {
    const struct launch_vtab *vtab = (const struct launch_vtab *)cursor->base.pVtab;
    sqlite3_free(cursor->base.pVtab->zErrMsg);
    cursor->base.pVtab->zErrMsg = sqlite3_mprintf("launch: %s", sqlite3_errmsg(vtab->db));
    return rc;
}

/* The launches of the step that the statement stands on. */
static int take_step(struct launch_cursor *cursor) {
    struct launch_vtab *vtab = (struct launch_vtab *)cursor->base.pVtab;
    const struct st_launch_record *list;
    struct st_error err = {0};
    cursor->at = cursor->count = 0;
    int rc = st_launches_step(vtab->launches, sqlite3_column_int64(cursor->statement, 1), &list,
                              &cursor->count, &err);
    if (rc)
        return st_sql_vtab_fail(&vtab->base, &err);
    void *copy = realloc(cursor->list, ((size_t)cursor->count + 1) * sizeof *cursor->list);
    if (!copy)
        return SQLITE_NOMEM;
    cursor->list = copy;
    if (cursor->count)
        memcpy(cursor->list, list, (size_t)cursor->count * sizeof *list);
    return SQLITE_OK;
}

static int advance(struct launch_cursor *cursor) {
    cursor->rowid++;
    if (++cursor->at < cursor->count)
        return SQLITE_OK;
    for (;;) {
        int rc = sqlite3_step(cursor->statement);
        cursor->at_end = rc != SQLITE_ROW;
        if (rc == SQLITE_DONE)
            return SQLITE_OK;
        if (rc != SQLITE_ROW)
            return fail(cursor, rc);
        rc = take_step(cursor);
        if (rc != SQLITE_OK || cursor->count)
            return rc;
    }
}

/* A tape has no run_id to ask for. */
static void add_terms(sqlite3_str *sql, const char *plan, bool is_result) {
    const char *separator = "WHERE";
    for (const char *line = plan; line && *line;) {
        size_t length = strcspn(line, "\n");
        if (is_result || strncmp(line, "run_id ", 7) != 0) {
            sqlite3_str_appendf(sql, " %s %.*s", separator, (int)length, line);
            separator = "AND";
        }
        line += length + (line[length] != 0);
    }
}

static char *make_sql(bool is_result, const char *plan) {
    sqlite3_str *sql = sqlite3_str_new(NULL);
    if (is_result)
        sqlite3_str_appendall(sql, "SELECT run_id, step_id FROM (SELECT s.run_id, s.step_id FROM "
                                   "main._run_step AS s JOIN main.run AS r USING (run_id) WHERE "
                                   "r.backend = 'engine' AND s.policy_id = 0)");
    else
        sqlite3_str_appendall(sql, "SELECT NULL, step_id FROM main.launch_step");
    add_terms(sql, plan, is_result);
    sqlite3_str_appendall(sql, " ORDER BY 1, 2");
    return sqlite3_str_finish(sql);
}

/* SQLITE_DONE: there are no launches. */
static int open_launches(struct launch_vtab *vtab) {
    struct st_error err = {0};
    const char *path = sqlite3_db_filename(vtab->db, "main");
    if (vtab->launches)
        return SQLITE_OK;
    int rc =
        st_launches_open(vtab->db, path && *path ? path : "the database", &vtab->launches, &err);
    if (rc == ST_DONE)
        return SQLITE_DONE;
    return rc ? st_sql_vtab_fail(&vtab->base, &err) : SQLITE_OK;
}

static int launch_filter(sqlite3_vtab_cursor *base, int plan_number, const char *plan, int argc,
                         sqlite3_value **argv) {
    (void)plan_number;
    struct launch_cursor *cursor = (struct launch_cursor *)base;
    struct launch_vtab *vtab = (struct launch_vtab *)base->pVtab;
    cursor->at_end = true;
    cursor->at = cursor->count = 0;
    sqlite3_finalize(cursor->statement);
    cursor->statement = NULL;
    int rc = open_launches(vtab);
    if (rc != SQLITE_OK)
        return rc == SQLITE_DONE ? SQLITE_OK : rc;
    struct st_error err = {0};
    bool is_result;
    if (st_db_has_table(vtab->db, "launch", "_run_step", &is_result, &err))
        return st_sql_vtab_fail(&vtab->base, &err);
    char *sql = make_sql(is_result, plan);
    if (!sql)
        return SQLITE_NOMEM;
    rc = sqlite3_prepare_v2(vtab->db, sql, -1, &cursor->statement, NULL);
    sqlite3_free(sql);
    /* A term that was left out has no parameter. */
    for (int i = 0; rc == SQLITE_OK && i < argc; i++)
        if (i < sqlite3_bind_parameter_count(cursor->statement))
            rc = sqlite3_bind_value(cursor->statement, i + 1, argv[i]);
    return rc == SQLITE_OK ? advance(cursor) : fail(cursor, rc);
}

static int launch_next(sqlite3_vtab_cursor *base) {
    return advance((struct launch_cursor *)base);
}

static int launch_eof(sqlite3_vtab_cursor *base) {
    return ((struct launch_cursor *)base)->at_end;
}

static sqlite3_int64 product(const int32_t size[3]) {
    return (sqlite3_int64)((uint64_t)size[0] * (uint64_t)size[1] * (uint64_t)size[2]);
}

/* NULL where it has none, or where it is not known. */
static void result_unless(sqlite3_context *context, bool missing, sqlite3_int64 value) {
    if (!missing)
        sqlite3_result_int64(context, value);
}

static int launch_column(sqlite3_vtab_cursor *base, sqlite3_context *context, int column) {
    const struct launch_cursor *cursor = (const struct launch_cursor *)base;
    const struct launch_vtab *vtab = (const struct launch_vtab *)cursor->base.pVtab;
    const struct st_launch_record *l = &cursor->list[cursor->at];
    const struct st_launch_site *site = st_launches_site(vtab->launches, l->site);
    const struct st_launch_family *family =
        st_launch_family_at(st_launches_family(vtab->launches, l->site));
    bool untimed = l->start_ns == 0 || l->end_ns == 0;
    switch ((enum column)column) {
    case RUN_ID:
        sqlite3_result_value(context, sqlite3_column_value(cursor->statement, 0));
        break;
    case POLICY:
        sqlite3_result_text(context, "recorded", -1, SQLITE_STATIC);
        break;
    case STEP_ID:
        sqlite3_result_value(context, sqlite3_column_value(cursor->statement, 1));
        break;
    case ORDINAL:
        sqlite3_result_int64(context, cursor->at);
        break;
    case OPERATOR:
        sqlite3_result_text(context, family->op ? family->op : family->family, -1, SQLITE_STATIC);
        break;
    case GRAPH_NODE:
        result_unless(context, site->graph_node_id == 0, (sqlite3_int64)site->graph_node_id);
        break;
    case GRID:
        result_unless(context, site->kind != ST_LAUNCH_KERNEL, product(site->grid));
        break;
    case BLOCK:
        result_unless(context, site->kind != ST_LAUNCH_KERNEL, product(site->block));
        break;
    case START_NS:
        result_unless(context, untimed, l->start_ns);
        break;
    case DURATION_NS:
        result_unless(context, !st_launch_is_timed(l),
                      st_launch_is_timed(l) ? l->end_ns - l->start_ns : 0);
        break;
    }
    return SQLITE_OK;
}

static int launch_rowid(sqlite3_vtab_cursor *base, sqlite3_int64 *rowid) {
    *rowid = ((struct launch_cursor *)base)->rowid;
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
