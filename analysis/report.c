/* SPDX-License-Identifier: Apache-2.0 */
#include "analysis/report.h"

#include <inttypes.h>
#include <math.h>
#include <sqlite3.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "analysis/database.h"
#include "analysis/print.h"
#include "analysis/report_i.h"
#include "traces/base/embedded.h"
#include "traces/format/reader.h"
#include "traces/format/step.h"

/* The questions, one SQL file a section, made into C by st_embed() in CMakeLists.txt. */
extern const struct st_embedded st_embedded_reports[];

static const struct {
    const char *name, *file;
} sections[ST_REPORT_SECTION_COUNT] = {
    [ST_REPORT_RUN] = {"run", "report_run.sql"},
    [ST_REPORT_POLICY] = {"policy", "report_policy.sql"},
    [ST_REPORT_SAVING] = {"saving", "report_saving.sql"},
    [ST_REPORT_OPERATOR] = {"operator", "report_operator.sql"},
    [ST_REPORT_MODE] = {"mode", "report_mode.sql"},
    [ST_REPORT_CHECK] = {"check", "report_check.sql"},
    [ST_REPORT_HAZARD] = {"hazard", "report_hazard.sql"},
    [ST_REPORT_FAMILY] = {"family", "report_family.sql"},
    [ST_REPORT_BESIDE] = {"beside", "report_beside.sql"},
};

const char *st_report_section_names(void) {
    return "run, policy, saving, operator, mode, check, hazard, family, beside";
}

int st_report_prepare(const struct st_report *report, enum st_report_section section,
                      struct sqlite3_stmt **statement, struct st_error *err) {
    const char *sql = st_embedded_find(st_embedded_reports, sections[section].file);
    int rc = sqlite3_prepare_v2(report->db, sql, -1, statement, NULL);
    if (rc != SQLITE_OK)
        return ST_FAIL_NATIVE(err, ST_ERR_CORRUPT, rc, "%s: report section %s: %s", report->path,
                              sections[section].name, sqlite3_errmsg(report->db));
    sqlite3_bind_int64(*statement, sqlite3_bind_parameter_index(*statement, ":run"),
                       report->run_id);
    return 0;
}

int st_report_next(struct sqlite3_stmt *statement, struct st_error *err) {
    int rc = sqlite3_step(statement);
    if (rc == SQLITE_ROW)
        return 0;
    return rc == SQLITE_DONE ? ST_DONE : st_sql_statement_error(statement, rc, err);
}

/* -1: none, or NULL in this row. */
static int find_column(struct sqlite3_stmt *statement, const char *name) {
    for (int i = 0; i < sqlite3_column_count(statement); i++)
        if (strcmp(sqlite3_column_name(statement, i), name) == 0)
            return sqlite3_column_type(statement, i) == SQLITE_NULL ? -1 : i;
    return -1;
}

int64_t st_report_integer(struct sqlite3_stmt *statement, const char *name) {
    int column = find_column(statement, name);
    return column < 0 ? ST_UNKNOWN : sqlite3_column_int64(statement, column);
}

double st_report_real(struct sqlite3_stmt *statement, const char *name) {
    int column = find_column(statement, name);
    return column < 0 ? NAN : sqlite3_column_double(statement, column);
}

const char *st_report_text(struct sqlite3_stmt *statement, const char *name) {
    int column = find_column(statement, name);
    return column < 0 ? NULL : (const char *)sqlite3_column_text(statement, column);
}

/* First value of the first row; ST_UNKNOWN when there is none. */
static int64_t ask_integer(sqlite3 *db, const char *sql) {
    sqlite3_stmt *statement;
    int64_t value = ST_UNKNOWN;
    if (sqlite3_prepare_v2(db, sql, -1, &statement, NULL) != SQLITE_OK)
        return value;
    if (sqlite3_step(statement) == SQLITE_ROW && sqlite3_column_type(statement, 0) != SQLITE_NULL)
        value = sqlite3_column_int64(statement, 0);
    sqlite3_finalize(statement);
    return value;
}

/* Resolves ST_REPORT_LAST_RUN and refuses runs that are not there. */
static int find_run(struct st_report *report, struct st_error *err) {
    int64_t last = ask_integer(report->db, "SELECT max(run_id) FROM main.run");
    if (last == ST_UNKNOWN)
        return ST_FAIL(err, ST_ERR_INPUT,
                       "%s: holds no run; `steptape replay` makes one from a tape and writes it to "
                       "a result tape (X.runs.tape)",
                       report->path);
    if (report->run_id == ST_REPORT_LAST_RUN) {
        report->run_id = last;
        return 0;
    }
    char sql[80];
    snprintf(sql, sizeof sql, "SELECT run_id FROM main.run WHERE run_id = %" PRId64,
             report->run_id);
    if (ask_integer(report->db, sql) == ST_UNKNOWN)
        return ST_FAIL(err, ST_ERR_INPUT, "%s: there is no run %" PRId64 "; the last is %" PRId64,
                       report->path, report->run_id, last);
    return 0;
}

static void find_backend(struct st_report *report) {
    char sql[120];
    snprintf(sql, sizeof sql,
             "SELECT 1 FROM main.run WHERE run_id = %" PRId64 " AND backend = 'engine'",
             report->run_id);
    report->recorded = ask_integer(report->db, sql) == 1;
}

static int print_rows(const struct st_report *report, enum st_report_section section,
                      enum st_format format, FILE *out, struct st_error *err) {
    sqlite3_stmt *statement = NULL;
    ST_TRY(st_report_prepare(report, section, &statement, err));
    int rc = st_print_statement(statement, format, out, err);
    sqlite3_finalize(statement);
    return rc;
}

/* All sections in one array; every object names its section. */
static int print_json(const struct st_report *report, bool lines, FILE *out, struct st_error *err) {
    bool first = true;
    if (!lines)
        putc('[', out);
    for (int section = 0; section < ST_REPORT_SECTION_COUNT; section++) {
        sqlite3_stmt *statement = NULL;
        int rc;
        if (section >= ST_REPORT_FAMILY && !report->recorded)
            continue;
        ST_TRY(st_report_prepare(report, (enum st_report_section)section, &statement, err));
        while ((rc = st_report_next(statement, err)) == 0) {
            if (!first)
                fputs(lines ? "\n" : ",\n", out);
            first = false;
            st_print_json_row(statement, "section", sections[section].name, out);
        }
        sqlite3_finalize(statement);
        if (rc != ST_DONE)
            return rc;
    }
    fputs(lines ? "\n" : "]\n", out);
    return 0;
}

/* Names and notes in the table are a file's text. */
static int print_table(const struct st_report *report, FILE *out, struct st_error *err) {
    char *text = NULL;
    size_t size = 0;
    FILE *buffer = open_memstream(&text, &size);
    if (!buffer)
        return ST_FAIL_NOMEM(err);
    int rc = st_report_print_table(report, buffer, err);
    if (fclose(buffer) != 0 && rc == 0)
        rc = ST_FAIL_NOMEM(err);
    if (rc == 0)
        st_print_safe(out, text, size, true);
    free(text);
    return rc;
}

static int print_report(const struct st_report *report, const char *format_name,
                        const char *section_name, FILE *out, struct st_error *err) {
    enum st_format format = ST_FORMAT_TABLE;
    int section = ST_REPORT_POLICY;
    ST_TRY(st_format_parse(format_name, &format, err));
    if (section_name) {
        for (section = 0; section < ST_REPORT_SECTION_COUNT; section++)
            if (strcmp(section_name, sections[section].name) == 0)
                break;
        if (section == ST_REPORT_SECTION_COUNT)
            return ST_FAIL(err, ST_ERR_USAGE, "--section: '%s' is none of %s", section_name,
                           st_report_section_names());
    }
    if (section >= ST_REPORT_FAMILY && !report->recorded)
        return ST_FAIL(err, ST_ERR_USAGE,
                       "--section: only runs of backend engine have '%s', and run %" PRId64
                       " is none",
                       section_name, report->run_id);
    if (section_name || format == ST_FORMAT_CSV)
        return print_rows(report, (enum st_report_section)section, format, out, err);
    if (format == ST_FORMAT_TABLE)
        return print_table(report, out, err);
    return print_json(report, format == ST_FORMAT_JSONL, out, err);
}

/* The tables and views that are asked must be the format's own: others could compute for ever. */
static int check_definitions(const char *path, struct st_error *err) {
    struct st_tape *tape = NULL;
    ST_TRY(st_tape_open(path, &tape, err));
    st_tape_close(tape);
    return 0;
}

/* What SQLite says of a figure (an overflow of a damaged file) does not name the file. */
static int name_file(const char *path, int rc, struct st_error *err) {
    if (rc == 0 || !err || err->code == ST_ERR_USAGE || err->code == ST_ERR_IO ||
        strncmp(err->msg, path, strlen(path)) == 0)
        return rc;
    struct st_error plain = *err;
    return ST_FAIL_NATIVE(err, plain.code, plain.native, "%s: %s", path, plain.msg);
}

int st_report_print_section(const char *path, int64_t run_id, const char *format,
                            const char *section, FILE *out, struct st_error *err) {
    struct st_report report = {.path = path, .run_id = run_id};
    ST_TRY(check_definitions(path, err));
    ST_TRY(st_database_open(path, &report.db, err));
    int rc = find_run(&report, err);
    if (rc == 0)
        find_backend(&report);
    if (rc == 0)
        rc = print_report(&report, format, section, out, err);
    sqlite3_close(report.db);
    return name_file(path, rc, err);
}

int st_report_print(const char *path, int64_t run_id, FILE *out, struct st_error *err) {
    return st_report_print_section(path, run_id, "table", NULL, out, err);
}
