/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Somebody's tape, opened to be asked: read-only, with the SQL extension, and with SQLite's
 * defences up (hostile schemas run nothing, statements are limited, Ctrl-C ends a query).
 */
#ifndef ST_ANALYSIS_DATABASE_H
#define ST_ANALYSIS_DATABASE_H

#include "traces/base/error.h"

struct sqlite3;
struct sqlite3_stmt;

/* Refuses what is no tape.  sqlite3_close() it. */
int st_database_open(const char *path, struct sqlite3 **db, struct st_error *err);
/* Prepares the one statement of sql; ST_ERR_USAGE when there is none, and an error when there are
 * more, or when it would write.  Errors name the place in the text where SQLite knows it. */
int st_database_prepare(struct sqlite3 *db, const char *sql, struct sqlite3_stmt **statement,
                        struct st_error *err);

#endif
