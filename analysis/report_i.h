/* SPDX-License-Identifier: Apache-2.0 */
/* Private to the report: its sections, and rows read by column name. */
#ifndef ST_ANALYSIS_REPORT_I_H
#define ST_ANALYSIS_REPORT_I_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include "traces/base/error.h"

struct sqlite3;
struct sqlite3_stmt;

enum st_report_section {
    ST_REPORT_RUN,
    ST_REPORT_POLICY,
    ST_REPORT_SAVING,
    ST_REPORT_OPERATOR,
    ST_REPORT_MODE,
    ST_REPORT_CHECK,
    ST_REPORT_HAZARD,
    ST_REPORT_FAMILY, /* this and the next: of runs of backend `engine` alone */
    ST_REPORT_BESIDE,
    ST_REPORT_SECTION_COUNT
};

struct st_report {
    struct sqlite3 *db;
    const char *path;
    int64_t run_id;
    bool recorded; /* a run of backend `engine` */
};

int st_report_prepare(const struct st_report *report, enum st_report_section section,
                      struct sqlite3_stmt **statement, struct st_error *err);
/* 0: a row, ST_DONE: no more. */
int st_report_next(struct sqlite3_stmt *statement, struct st_error *err);

/* A column of the current row by name; ST_UNKNOWN, NaN and NULL for NULL. */
int64_t st_report_integer(struct sqlite3_stmt *statement, const char *name);
double st_report_real(struct sqlite3_stmt *statement, const char *name);
const char *st_report_text(struct sqlite3_stmt *statement, const char *name);

/* report_engine.c: what follows the head of a run of backend `engine` */
int st_report_print_engine(const struct st_report *report, FILE *out, struct st_error *err);
/* report_table.c */
int st_report_print_table(const struct st_report *report, FILE *out, struct st_error *err);

#endif
