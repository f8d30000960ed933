/* SPDX-License-Identifier: Apache-2.0 */
/*
 * SQLite, as tapes use it: opening someone's file with care, running statements with errors that
 * name the file, hashing the content.
 */
#ifndef ST_FORMAT_DB_H
#define ST_FORMAT_DB_H

#include <sqlite3.h>
#include <stdbool.h>
#include <stdint.h>

#include "traces/base/error.h"

/* "PATH: MESSAGE" of the database's last error; ST_ERR_IO for a full disk and the like,
 * ST_ERR_CORRUPT for a damaged file. */
int st_db_fail(sqlite3 *db, const char *path, struct st_error *err);

/* What can be said of a file before SQLite opens it: ST_ERR_INPUT when it is no tape. */
int st_db_look(const char *path, struct st_error *err);
/* sqlite3_open_v2() of a file's name, which is never taken for a URI. */
int st_db_open(const char *path, int flags, sqlite3 **db, struct st_error *err);
/* Opens read-only after st_db_look(). */
int st_db_open_tape(const char *path, sqlite3 **db, struct st_error *err);
/* Makes an empty tape under a name beside path that is this process's alone, without a journal.
 * *temporary, the caller's to free, is set as soon as there is a file to remove. */
int st_db_create(const char *path, char **temporary, sqlite3 **db, struct st_error *err);
/* The same under a name of the caller's that must be free, with a rollback journal: what was
 * committed outlives the process. */
int st_db_create_part(const char *path, sqlite3 **db, struct st_error *err);
/* fsync() of a closed file. */
int st_db_sync(const char *path, struct st_error *err);

/* path: of the file, for errors. */
int st_db_execute(sqlite3 *db, const char *path, const char *sql, struct st_error *err);
int st_db_prepare(sqlite3 *db, const char *path, const char *sql, sqlite3_stmt **stmt,
                  struct st_error *err);
/* Whether there is a table of that name: not every tape has all. */
int st_db_has_table(sqlite3 *db, const char *path, const char *table, bool *has,
                    struct st_error *err);
/* Runs a statement that gives no rows and readies it for the next bindings. */
int st_db_insert(sqlite3 *db, const char *path, sqlite3_stmt *stmt, struct st_error *err);

/* The seal: XXH3-128 over all definitions and rows but the seal's own, as 32 hex digits. */
int st_db_content_hash(sqlite3 *db, const char *path, char hash[33], struct st_error *err);

/* Binds by type; ST_UNKNOWN is NULL. */
void st_db_bind(sqlite3_stmt *stmt, int index, int64_t value);
int64_t st_db_column(sqlite3_stmt *stmt, int index);

#endif
