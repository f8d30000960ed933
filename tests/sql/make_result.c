/* SPDX-License-Identifier: Apache-2.0 */
/*
 * make_result OUT.tape <FIXTURE.sql: a result tape with the layout that replay writes, filled by
 * SQL.
 */
#include <sqlite3.h>
#include <stdio.h>
#include <stdlib.h>

#include "traces/format/result_schema.h"
#include "traces/format/schema.h"

static int execute(sqlite3 *db, const char *what, const char *sql) {
    if (sqlite3_exec(db, sql, NULL, NULL, NULL) == SQLITE_OK)
        return 0;
    fprintf(stderr, "make_result: %s: %s\n", what, sqlite3_errmsg(db));
    return 1;
}

int main(int argc, char **argv) {
    enum { MAX_BYTES = 1 << 20 };
    sqlite3 *db = NULL;
    char pragmas[100], *fixture = malloc(MAX_BYTES + 1);
    if (argc != 2 || !fixture || sqlite3_open(argv[1], &db) != SQLITE_OK) {
        fprintf(stderr, "usage: make_result OUT.tape <FIXTURE.sql\n");
        return 2;
    }
    fixture[fread(fixture, 1, MAX_BYTES, stdin)] = 0;
    snprintf(pragmas, sizeof pragmas, "PRAGMA application_id = %d; PRAGMA user_version = %d",
             ST_APPLICATION_ID, ST_FORMAT_VERSION);
    int rc = execute(db, "pragmas", pragmas) || execute(db, "schema", st_schema_common_sql) ||
             execute(db, "schema", st_result_schema_sql) ||
             execute(db, "views", st_result_views_sql) || execute(db, "fixture", fixture);
    free(fixture);
    return sqlite3_close(db) != SQLITE_OK || rc;
}
