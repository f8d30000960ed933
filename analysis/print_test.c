/* SPDX-License-Identifier: Apache-2.0 */
/* Unit tests of what is printed: rows in each format, figures, grids. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>
#include <math.h>
#include <sqlite3.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "analysis/grid.h"
#include "analysis/print.h"
#include "traces/format/step.h"

/* The rows of a query in a format, allocated. */
static char *print(const char *sql, enum st_format format) {
    sqlite3 *db;
    sqlite3_stmt *statement;
    struct st_error err = {0};
    char *text = NULL;
    size_t size = 0;
    FILE *out = open_memstream(&text, &size);
    assert_non_null(out);
    assert_int_equal(sqlite3_open(":memory:", &db), SQLITE_OK);
    assert_int_equal(sqlite3_prepare_v2(db, sql, -1, &statement, NULL), SQLITE_OK);
    if (st_print_statement(statement, format, out, &err))
        fail_msg("%s", err.msg);
    fclose(out);
    sqlite3_finalize(statement);
    sqlite3_close(db);
    return text;
}

static void check(const char *sql, enum st_format format, const char *want) {
    char *text = print(sql, format);
    assert_string_equal(text, want);
    free(text);
}

static void test_json(void **state) {
    (void)state;
    check("SELECT NULL AS a, 1 AS b, 2.0 AS c, 'x\"\\' || char(10, 1) AS d, x'00ff' AS e",
          ST_FORMAT_JSON,
          "[{\"a\":null,\"b\":1,\"c\":2.0,\"d\":\"x\\\"\\\\\\n\\u0001\",\"e\":\"00ff\"}]\n");
    check("SELECT 1 AS a WHERE 0", ST_FORMAT_JSON, "[]\n");
    check("SELECT 1 AS a WHERE 0", ST_FORMAT_JSONL, "");
    check("SELECT 1 AS a, 2 AS a, 3 AS a", ST_FORMAT_JSONL, "{\"a\":1,\"a:1\":2,\"a:2\":3}\n");
    check("VALUES (1), (2)", ST_FORMAT_JSON, "[{\"column1\":1},\n{\"column1\":2}]\n");
    check("SELECT 0.1 + 0.2 AS a, 9e999 AS b, -9e999 AS c, 0.1 AS d", ST_FORMAT_JSONL,
          "{\"a\":0.30000000000000004,\"b\":1e999,\"c\":-1e999,\"d\":0.1}\n");
    /* What is no UTF-8: a lone byte, an overlong form, a surrogate. */
    check("SELECT CAST(x'61ff62' AS TEXT) AS a, CAST(x'c080' AS TEXT) AS b, "
          "CAST(x'eda080' AS TEXT) AS c, CAST(x'e282ac' AS TEXT) AS d",
          ST_FORMAT_JSONL,
          "{\"a\":\"a\\ufffdb\",\"b\":\"\\ufffd\\ufffd\",\"c\":\"\\ufffd\\ufffd\\ufffd\","
          "\"d\":\"\xe2\x82\xac\"}\n");
}

static void test_csv(void **state) {
    (void)state;
    check("SELECT NULL AS \"a,b\", '' AS c, 'say \"x\"' AS d, 'p' || char(13) AS e, 7 AS f",
          ST_FORMAT_CSV, "\"a,b\",c,d,e,f\n,\"\",\"say \"\"x\"\"\",\"p\r\",7\n");
    check("SELECT 1 AS a WHERE 0", ST_FORMAT_CSV, "a\n");
}

static void test_table(void **state) {
    (void)state;
    check("SELECT 'ab' AS name, 5 AS n UNION ALL SELECT 'c', 123", ST_FORMAT_TABLE,
          "name    n\n----  ---\nab      5\nc     123\n");
    check("SELECT NULL AS a, char(27) || '[31m' AS b", ST_FORMAT_TABLE,
          "a  b\n-  --------\n-  \\x1b[31m\n");
    check("SELECT char(155) AS a, char(160) AS b", ST_FORMAT_TABLE,
          "a         b\n--------  -\n\\xc2\\x9b  \xc2\xa0\n");
    check("SELECT 1 AS a WHERE 0", ST_FORMAT_TABLE, "a\n-\n");
    /* More rows than the widths are taken from. */
    char *text = print("WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n LIMIT 5000) "
                       "SELECT i FROM n",
                       ST_FORMAT_TABLE);
    assert_non_null(strstr(text, "\n2000\n2001\n"));
    assert_non_null(strstr(text, "\n5000\n"));
    free(text);
}

static void test_figures(void **state) {
    (void)state;
    char text[ST_FIGURE_BYTES];
    assert_string_equal(st_figure_count(text, 0), "0");
    assert_string_equal(st_figure_count(text, 999), "999");
    assert_string_equal(st_figure_count(text, 1000), "1,000");
    assert_string_equal(st_figure_count(text, -123456), "-123,456");
    assert_string_equal(st_figure_count(text, 1234567890123), "1,234,567,890,123");
    assert_string_equal(st_figure_count(text, ST_UNKNOWN), "-");
    assert_string_equal(st_figure_time(text, 0), "0 ns");
    assert_string_equal(st_figure_time(text, 12.25), "12.2 ns");
    assert_string_equal(st_figure_time(text, 999), "999 ns");
    assert_string_equal(st_figure_time(text, 999.99), "1.000 us");
    assert_string_equal(st_figure_time(text, 1234), "1.234 us");
    assert_string_equal(st_figure_time(text, 999996), "1.000 ms");
    assert_string_equal(st_figure_time(text, -45678901), "-45.68 ms");
    assert_string_equal(st_figure_time(text, 123.4e9), "123.4 s");
    assert_string_equal(st_figure_time(text, NAN), "-");
    assert_string_equal(st_figure_percent(text, 0.382), "38.2 %");
    assert_string_equal(st_figure_percent(text, 0.00223), "0.22 %");
    assert_string_equal(st_figure_percent(text, 0.000223), "0.022 %");
    assert_string_equal(st_figure_percent(text, 0), "0.0 %");
    assert_string_equal(st_figure_percent(text, NAN), "-");
}

static void test_grid(void **state) {
    (void)state;
    struct st_grid grid;
    char *text = NULL;
    size_t size = 0;
    FILE *out = open_memstream(&text, &size);
    assert_non_null(out);
    st_grid_init(&grid, "<>", "name", "n");
    st_grid_add(&grid, "%s", "a");
    st_grid_add(&grid, "%d", 12);
    st_grid_add(&grid, "%s", "long name");
    st_grid_add(&grid, "%s", "");
    assert_int_equal(st_grid_print(&grid, out, "  ", NULL), 0);
    fclose(out);
    assert_string_equal(text, "  name        n\n  a          12\n  long name\n");
    free(text);
}

static void test_format_names(void **state) {
    (void)state;
    enum st_format format;
    struct st_error err;
    assert_int_equal(st_format_parse("jsonl", &format, &err), 0);
    assert_int_equal(format, ST_FORMAT_JSONL);
    assert_int_equal(st_format_parse("JSON", &format, &err), ST_ERR_USAGE);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_json),  cmocka_unit_test(test_csv),
        cmocka_unit_test(test_table), cmocka_unit_test(test_figures),
        cmocka_unit_test(test_grid),  cmocka_unit_test(test_format_names),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
