/* SPDX-License-Identifier: Apache-2.0 */
#include "analysis/print.h"

#include <inttypes.h>
#include <sqlite3.h>
#include <stdlib.h>
#include <string.h>

#include "traces/base/log.h"
#include "traces/base/utf8.h"

/* A table's widths come from its first rows; what follows is printed as it comes, so that memory
 * stays bounded whatever a query returns. */
#define TABLE_SAMPLE_ROWS 2000

int st_format_parse(const char *name, enum st_format *format, struct st_error *err) {
    static const char *const names[] = {"table", "csv", "json", "jsonl"};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
        if (strcmp(name, names[i]) == 0) {
            *format = (enum st_format)i;
            return 0;
        }
    return ST_FAIL(err, ST_ERR_USAGE, "--format: '%s' is none of table, csv, json, jsonl", name);
}

int st_sql_statement_error(struct sqlite3_stmt *statement, int rc, struct st_error *err) {
    sqlite3 *db = sqlite3_db_handle(statement);
    if (rc == SQLITE_INTERRUPT || st_interrupted())
        return ST_FAIL_NATIVE(err, ST_ERR_INTERRUPTED, rc, "interrupted");
    if (rc == SQLITE_NOMEM)
        return ST_FAIL_NOMEM(err);
    return ST_FAIL_NATIVE(err, ST_ERR_NATIVE, rc, "%s", sqlite3_errmsg(db));
}

/* ---- values */

static void format_real(char *text, size_t size, double value) {
    for (int digits = 15; digits <= 17; digits++) {
        snprintf(text, size, "%.*g", digits, value);
        if (strtod(text, NULL) == value)
            break;
    }
    if (!strpbrk(text, ".eEnN") && strlen(text) + 2 < size) /* nN: inf, nan */
        strcat(text, ".0");
}

static void print_hex(FILE *out, const unsigned char *bytes, int count) {
    for (int i = 0; i < count; i++)
        fprintf(out, "%02x", bytes[i]);
}

void st_print_json_string(FILE *out, const char *text, size_t length) {
    const unsigned char *at = (const unsigned char *)text, *end = at + length;
    putc('"', out);
    while (at < end) {
        size_t sequence = st_utf8_length((const char *)at, (size_t)(end - at));
        if (sequence == 0) {
            fputs("\\ufffd", out);
            at++;
        } else if (*at == '"' || *at == '\\') {
            putc('\\', out);
            putc(*at++, out);
        } else if (*at == '\n' || *at == '\t' || *at == '\r') {
            putc('\\', out);
            putc(*at == '\n' ? 'n' : *at == '\t' ? 't' : 'r', out);
            at++;
        } else if (*at < 0x20 || *at == 0x7f) {
            fprintf(out, "\\u%04x", *at++);
        } else {
            fwrite(at, 1, sequence, out);
            at += sequence;
        }
    }
    putc('"', out);
}

static void print_json_value(FILE *out, sqlite3_stmt *statement, int column) {
    char text[40];
    switch (sqlite3_column_type(statement, column)) {
    case SQLITE_INTEGER:
        fprintf(out, "%" PRId64, (int64_t)sqlite3_column_int64(statement, column));
        break;
    case SQLITE_FLOAT:
        format_real(text, sizeof text, sqlite3_column_double(statement, column));
        /* JSON has no infinity; this reads as one. */
        fputs(text[0] == 'i' ? "1e999" : text[0] == '-' && text[1] == 'i' ? "-1e999" : text, out);
        break;
    case SQLITE_TEXT:
        st_print_json_string(out, (const char *)sqlite3_column_text(statement, column),
                             (size_t)sqlite3_column_bytes(statement, column));
        break;
    case SQLITE_BLOB:
        putc('"', out);
        print_hex(out, sqlite3_column_blob(statement, column),
                  sqlite3_column_bytes(statement, column));
        putc('"', out);
        break;
    default:
        fputs("null", out);
    }
}

static void print_csv_text(FILE *out, const char *text, size_t length) {
    bool quote = length == 0 || text[0] == ' ' || text[length - 1] == ' ';
    for (size_t i = 0; i < length && !quote; i++)
        quote = strchr("\",\r\n", text[i]) || text[i] == 0;
    if (!quote) {
        fwrite(text, 1, length, out);
        return;
    }
    putc('"', out);
    for (size_t i = 0; i < length; i++) {
        if (text[i] == '"')
            putc('"', out);
        putc(text[i], out);
    }
    putc('"', out);
}

static void print_csv_value(FILE *out, sqlite3_stmt *statement, int column) {
    char text[40];
    switch (sqlite3_column_type(statement, column)) {
    case SQLITE_INTEGER:
        fprintf(out, "%" PRId64, (int64_t)sqlite3_column_int64(statement, column));
        break;
    case SQLITE_FLOAT:
        format_real(text, sizeof text, sqlite3_column_double(statement, column));
        fputs(text, out);
        break;
    case SQLITE_TEXT:
        print_csv_text(out, (const char *)sqlite3_column_text(statement, column),
                       (size_t)sqlite3_column_bytes(statement, column));
        break;
    case SQLITE_BLOB:
        print_hex(out, sqlite3_column_blob(statement, column),
                  sqlite3_column_bytes(statement, column));
        break;
    default: /* nothing */
        break;
    }
}

/* ---- tables */

void st_print_safe(FILE *out, const char *text, size_t length, bool is_layout) {
    const unsigned char *at = (const unsigned char *)text, *end = at + length;
    while (at < end) {
        size_t sequence = st_utf8_length((const char *)at, (size_t)(end - at));
        bool is_c1 = sequence == 2 && at[0] == 0xc2 && at[1] < 0xa0;
        if (*at == '\n' && is_layout) {
            putc(*at++, out);
        } else if (sequence == 0 || is_c1 || *at < 0x20 || *at == 0x7f) {
            fprintf(out, *at == '\n' ? "\\n" : *at == '\t' ? "\\t" : "\\x%02x", *at);
            at++;
        } else {
            fwrite(at, 1, sequence, out);
            at += sequence;
        }
    }
}

/* A value as a table cell, allocated. */
static char *table_cell(sqlite3_stmt *statement, int column) {
    char *text = NULL;
    size_t size = 0;
    FILE *out = open_memstream(&text, &size);
    if (!out)
        return NULL;
    int type = sqlite3_column_type(statement, column);
    if (type == SQLITE_NULL) {
        putc('-', out);
    } else if (type != SQLITE_TEXT) {
        print_csv_value(out, statement, column);
    } else {
        st_print_safe(out, (const char *)sqlite3_column_text(statement, column),
                      (size_t)sqlite3_column_bytes(statement, column), false);
    }
    if (fclose(out) != 0) {
        free(text);
        return NULL;
    }
    return text;
}

int st_print_width(const char *text) {
    int width = 0;
    for (; *text; text++)
        width += ((unsigned char)*text & 0xc0) != 0x80; /* all but continuation bytes */
    return width;
}

struct table_printer {
    FILE *out;
    int column_count;
    int *width;
    bool *right; /* a column of numbers */
    char **cell; /* rows that wait for the widths */
    int64_t row_count;
};

static void print_cell(const struct table_printer *printer, int column, const char *text) {
    int pad = printer->width[column] - st_print_width(text);
    if (pad < 0)
        pad = 0;
    bool last = column == printer->column_count - 1;
    if (column)
        fputs("  ", printer->out);
    if (printer->right[column])
        fprintf(printer->out, "%*s%s", pad, "", text);
    else
        fprintf(printer->out, "%s%*s", text, last ? 0 : pad, "");
}

static void print_table_head(const struct table_printer *printer, sqlite3_stmt *statement) {
    for (int column = 0; column < printer->column_count; column++)
        print_cell(printer, column, sqlite3_column_name(statement, column));
    putc('\n', printer->out);
    for (int column = 0; column < printer->column_count; column++) {
        if (column)
            fputs("  ", printer->out);
        for (int i = 0; i < printer->width[column]; i++)
            putc('-', printer->out);
    }
    putc('\n', printer->out);
}

/* Prints and frees the rows that wait. */
static void flush_table(struct table_printer *printer) {
    for (int64_t row = 0; row < printer->row_count; row++) {
        for (int column = 0; column < printer->column_count; column++) {
            char *text = printer->cell[row * printer->column_count + column];
            print_cell(printer, column, text);
            free(text);
        }
        putc('\n', printer->out);
    }
    printer->row_count = 0;
}

static int add_table_row(struct table_printer *printer, sqlite3_stmt *statement, bool measure,
                         struct st_error *err) {
    char **row = printer->cell + printer->row_count * printer->column_count;
    for (int column = 0; column < printer->column_count; column++) {
        int type = sqlite3_column_type(statement, column);
        row[column] = table_cell(statement, column);
        if (!row[column]) {
            while (column-- > 0)
                free(row[column]);
            return ST_FAIL_NOMEM(err);
        }
        if (!measure)
            continue;
        int width = st_print_width(row[column]);
        if (width > printer->width[column])
            printer->width[column] = width;
        if (type == SQLITE_TEXT || type == SQLITE_BLOB)
            printer->right[column] = false;
    }
    printer->row_count++;
    return 0;
}

static int print_table(sqlite3_stmt *statement, FILE *out, struct st_error *err) {
    int column_count = sqlite3_column_count(statement);
    size_t columns = (size_t)column_count;
    struct table_printer printer = {.out = out, .column_count = column_count};
    printer.width = calloc(columns, sizeof *printer.width);
    printer.right = calloc(columns, sizeof *printer.right);
    printer.cell = calloc(columns * TABLE_SAMPLE_ROWS, sizeof *printer.cell);
    bool headed = false;
    int rc = 0, step = SQLITE_DONE;
    if (!printer.width || !printer.right || !printer.cell) {
        rc = ST_FAIL_NOMEM(err);
        goto out;
    }
    for (int column = 0; column < column_count; column++) {
        printer.width[column] = st_print_width(sqlite3_column_name(statement, column));
        printer.right[column] = true;
    }
    while ((step = sqlite3_step(statement)) == SQLITE_ROW) {
        ST_TRY_OUT(add_table_row(&printer, statement, !headed, err));
        if (headed || printer.row_count == TABLE_SAMPLE_ROWS) {
            if (!headed)
                print_table_head(&printer, statement);
            headed = true;
            flush_table(&printer);
        }
    }
    if (step != SQLITE_DONE)
        rc = st_sql_statement_error(statement, step, err);
    else if (!headed)
        print_table_head(&printer, statement);
out:
    if (printer.cell && rc == 0)
        flush_table(&printer);
    for (int64_t i = 0; i < printer.row_count * column_count; i++)
        free(printer.cell[i]);
    free(printer.width);
    free(printer.right);
    free(printer.cell);
    return rc;
}

/* ---- CSV and JSON */

static int print_csv(sqlite3_stmt *statement, FILE *out, struct st_error *err) {
    int column_count = sqlite3_column_count(statement), step;
    for (int column = 0; column < column_count; column++) {
        const char *name = sqlite3_column_name(statement, column);
        if (column)
            putc(',', out);
        print_csv_text(out, name, strlen(name));
    }
    putc('\n', out);
    while ((step = sqlite3_step(statement)) == SQLITE_ROW) {
        for (int column = 0; column < column_count; column++) {
            if (column)
                putc(',', out);
            print_csv_value(out, statement, column);
        }
        putc('\n', out);
    }
    return step == SQLITE_DONE ? 0 : st_sql_statement_error(statement, step, err);
}

static void print_json_name(FILE *out, sqlite3_stmt *statement, int column) {
    const char *name = sqlite3_column_name(statement, column);
    int same = 0;
    for (int i = 0; i < column; i++)
        same += strcmp(sqlite3_column_name(statement, i), name) == 0;
    if (!same) {
        st_print_json_string(out, name, strlen(name));
        return;
    }
    char *unique = sqlite3_mprintf("%s:%d", name, same);
    if (!unique)
        return; /* SQLite is out of memory: the next step of the statement says so */
    st_print_json_string(out, unique, strlen(unique));
    sqlite3_free(unique);
}

void st_print_json_row(struct sqlite3_stmt *statement, const char *head, const char *head_value,
                       FILE *out) {
    int column_count = sqlite3_column_count(statement);
    putc('{', out);
    if (head) {
        st_print_json_string(out, head, strlen(head));
        putc(':', out);
        st_print_json_string(out, head_value, strlen(head_value));
    }
    for (int column = 0; column < column_count; column++) {
        if (column || head)
            putc(',', out);
        print_json_name(out, statement, column);
        putc(':', out);
        print_json_value(out, statement, column);
    }
    putc('}', out);
}

static int print_json(sqlite3_stmt *statement, bool lines, FILE *out, struct st_error *err) {
    int step;
    bool first = true;
    if (!lines)
        putc('[', out);
    while ((step = sqlite3_step(statement)) == SQLITE_ROW) {
        if (!lines && !first)
            fputs(",\n", out);
        first = false;
        st_print_json_row(statement, NULL, NULL, out);
        if (lines)
            putc('\n', out);
    }
    if (step != SQLITE_DONE)
        return st_sql_statement_error(statement, step, err);
    if (!lines)
        fputs("]\n", out);
    return 0;
}

int st_print_statement(struct sqlite3_stmt *statement, enum st_format format, FILE *out,
                       struct st_error *err) {
    switch (format) {
    case ST_FORMAT_CSV:
        return print_csv(statement, out, err);
    case ST_FORMAT_JSON:
        return print_json(statement, false, out, err);
    case ST_FORMAT_JSONL:
        return print_json(statement, true, out, err);
    default:
        return print_table(statement, out, err);
    }
}
