/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Private to the SQL extension: one st_sql per connection, shared by its virtual tables.
 *
 * Invariants
 *  1. The tape is attached while at least one virtual table is connected.  SQLite disconnects them
 *     before it looks for statements left open, so closing the connection always works.
 *  2. A reader (a decoder with its position) belongs to one virtual-table cursor at a time; between
 *     uses it waits in the pool with its position.
 */
#ifndef ST_ANALYSIS_SQL_I_H
#define ST_ANALYSIS_SQL_I_H

#include <stdbool.h>
#include <stdint.h>

#include "analysis/sqlite_api.h"
#include "traces/format/reader.h"

struct st_sql_reader {
    struct st_sql_reader *next;
    struct st_cursor *cursor;
    const struct st_step *step; /* given last and still valid; NULL: none */
    int64_t next_step_id;       /* what st_cursor_next() would give */
    unsigned what;
    bool busy;
};

struct st_sql {
    sqlite3 *db;
    int module_count; /* modules that point here; the last one frees it */
    int vtab_count;   /* connected virtual tables */
    struct st_tape *tape;
    struct st_sql_reader *readers;
};

/* Attaches the tape at the first use. */
int st_sql_use(struct st_sql *sql, struct st_error *err);
void st_sql_unuse(struct st_sql *sql);
/* What SQLite calls when a module goes: frees sql with its last module. */
void st_sql_drop(struct st_sql *sql);

/* Takes the reader of the pool that stands best for step_id, or a new one. */
int st_sql_reader_take(struct st_sql *sql, unsigned what, int64_t step_id,
                       struct st_sql_reader **reader, struct st_error *err);
void st_sql_reader_give(struct st_sql_reader *reader);
/* Sets reader->step to that step, which the tape has. */
int st_sql_reader_move(struct st_sql_reader *reader, int64_t step_id, struct st_error *err);

/* SQLite's result code for an error. */
int st_sql_code(const struct st_error *err);
/* Puts the message where SQLite looks for it and returns the result code. */
int st_sql_vtab_fail(sqlite3_vtab *vtab, const struct st_error *err);

/* sql_step.c: request_step, block_table, slot_mapping; sql_launch.c: launch.  Each adds its modules
 * to sql->module_count. */
int st_sql_register_step_tables(struct st_sql *sql);
int st_sql_register_launch(struct st_sql *sql);
/* sql_aggregate.c: percentile, median. */
int st_sql_register_aggregates(sqlite3 *db);

#endif
