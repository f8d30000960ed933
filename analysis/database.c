/* SPDX-License-Identifier: Apache-2.0 */
#include "analysis/database.h"

#include <sqlite3.h>
#include <string.h>

#include "analysis/sql.h"
#include "traces/base/log.h"
#include "traces/format/db.h"

/* Virtual machine instructions between two looks at Ctrl-C. */
#define INTERRUPT_INTERVAL 10000

static int on_progress(void *unused) {
    (void)unused;
    return st_interrupted();
}

static void defend(sqlite3 *db) {
    /* Beyond what st_db_open_tape() did. */
    sqlite3_db_config(db, SQLITE_DBCONFIG_ENABLE_LOAD_EXTENSION, 0, NULL);
    sqlite3_db_config(db, SQLITE_DBCONFIG_ENABLE_TRIGGER, 0, NULL);
    sqlite3_limit(db, SQLITE_LIMIT_LENGTH, 256 << 20);
    sqlite3_limit(db, SQLITE_LIMIT_TRIGGER_DEPTH, 1);
    sqlite3_progress_handler(db, INTERRUPT_INTERVAL, on_progress, NULL);
    sqlite3_exec(db, "PRAGMA query_only = ON; PRAGMA temp_store = MEMORY", NULL, NULL, NULL);
}

int st_database_open(const char *path, struct sqlite3 **db, struct st_error *err) {
    ST_TRY(st_db_open_tape(path, db, err));
    defend(*db);
    int rc = st_sql_register(*db, err);
    if (rc) {
        sqlite3_close(*db);
        *db = NULL;
    }
    return rc;
}

static int fail_prepare(sqlite3 *db, int native, struct st_error *err) {
    if (native == SQLITE_INTERRUPT)
        return ST_FAIL_NATIVE(err, ST_ERR_INTERRUPTED, native, "interrupted");
#if SQLITE_VERSION_NUMBER >= 3038000
    int offset = sqlite3_error_offset(db);
    if (offset >= 0)
        return ST_FAIL_NATIVE(err, ST_ERR_NATIVE, native, "SQL, character %d: %s", offset + 1,
                              sqlite3_errmsg(db));
#endif
    return ST_FAIL_NATIVE(err, ST_ERR_NATIVE, native, "SQL: %s", sqlite3_errmsg(db));
}

int st_database_prepare(struct sqlite3 *db, const char *sql, struct sqlite3_stmt **statement,
                        struct st_error *err) {
    const char *tail;
    sqlite3_stmt *more = NULL;
    *statement = NULL;
    int native = sqlite3_prepare_v2(db, sql, -1, statement, &tail);
    if (native != SQLITE_OK)
        return fail_prepare(db, native, err);
    if (!*statement)
        return ST_FAIL(err, ST_ERR_USAGE, "there is no SQL statement in the text");
    int rc = 0;
    /* Comments and semicolons may follow; whatever else does is a second statement. */
    while (rc == 0 && *tail) {
        native = sqlite3_prepare_v2(db, tail, -1, &more, &tail);
        if (native != SQLITE_OK || more)
            rc = ST_FAIL(err, ST_ERR_NATIVE,
                         "SQL, character %d: one statement at a time, text follows the first",
                         (int)strlen(sqlite3_sql(*statement)) + 1);
        sqlite3_finalize(more);
        more = NULL;
    }
    if (rc == 0 && !sqlite3_stmt_readonly(*statement))
        rc = ST_FAIL(err, ST_ERR_NATIVE, "SQL: the statement would write; a query only reads");
    if (rc) {
        sqlite3_finalize(*statement);
        *statement = NULL;
    }
    return rc;
}
