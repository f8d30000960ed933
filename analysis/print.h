/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Rows of a query as text: aligned table, CSV (RFC 4180, "\n" line ends), JSON (an array of
 * objects, one a row) or JSON lines.
 *
 * Unknown stays unknown: NULL is `-` in a table, an empty field in CSV (an empty string is `""`),
 * null in JSON.  Blobs are hex digits.  Reals are written with the fewest digits that read back as
 * the same number.  Columns of one name get ":1", ":2" behind it in JSON.
 */
#ifndef ST_ANALYSIS_PRINT_H
#define ST_ANALYSIS_PRINT_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include "traces/base/error.h"

struct sqlite3_stmt;

enum st_format { ST_FORMAT_TABLE, ST_FORMAT_CSV, ST_FORMAT_JSON, ST_FORMAT_JSONL };

/* ST_ERR_USAGE for a name that is none. */
int st_format_parse(const char *name, enum st_format *format, struct st_error *err);

/* Steps the prepared statement to its end and prints its rows.  Fails with what
 * st_sql_statement_error() says. */
int st_print_statement(struct sqlite3_stmt *statement, enum st_format format, FILE *out,
                       struct st_error *err);

/* One row as a JSON object, e.g. with a first member ("section", "run"); head NULL: none. */
void st_print_json_row(struct sqlite3_stmt *statement, const char *head, const char *head_value,
                       FILE *out);
void st_print_json_string(FILE *out, const char *text, size_t length);
/* Text for people: control characters, which would drive the terminal, and what is no UTF-8 are
 * written as \xNN.  is_layout: line ends stay what they are. */
void st_print_safe(FILE *out, const char *text, size_t length, bool is_layout);
/* Spaces that a UTF-8 text takes in a terminal, control characters counted as printed. */
int st_print_width(const char *text);

/* The message of a failed step, prepared for one line; code by SQLite's. */
int st_sql_statement_error(struct sqlite3_stmt *statement, int rc, struct st_error *err);

#endif
