/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Entry point of steptape.so for SQLite:
 *
 *     $ sqlite3 X.tape
 *     sqlite> .load ./steptape
 *     sqlite> SELECT count(*) FROM request_step;
 */
#include <sqlite3ext.h>
SQLITE_EXTENSION_INIT1

#include "analysis/sql.h"

int sqlite3_steptape_init(sqlite3 *db, char **error_message, const sqlite3_api_routines *api);

__attribute__((visibility("default"))) int sqlite3_steptape_init(sqlite3 *db, char **error_message,
                                                                 const sqlite3_api_routines *api) {
    SQLITE_EXTENSION_INIT2(api);
    struct st_error err;
    if (st_sql_register(db, &err) == 0)
        return SQLITE_OK;
    *error_message = sqlite3_mprintf("%s", err.msg);
    return SQLITE_ERROR;
}
