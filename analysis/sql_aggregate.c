/* SPDX-License-Identifier: Apache-2.0 */
/*
 * percentile(value, p) and median(value).
 *
 * NULLs are left out; no value at all gives NULL.  p is in 0..100 and the same for all rows;
 * between two ranks the result is interpolated linearly, as SQLite's own percentile() of later
 * versions does. Deterministic: the result depends on the set of values only.
 */
#include "analysis/sql_i.h"

#include <math.h>
#include <stdlib.h>

struct values {
    double *value;
    int64_t count, capacity;
    double percent;
};

static void fail(sqlite3_context *context, struct values *values, const char *message) {
    free(values->value);
    *values = (struct values){0};
    sqlite3_result_error(context, message, -1);
}

static bool add(struct values *values, double value) {
    if (values->count == values->capacity) {
        int64_t capacity = values->capacity ? 2 * values->capacity : 64;
        double *grown = realloc(values->value, (size_t)capacity * sizeof *grown);
        if (!grown)
            return false;
        values->value = grown;
        values->capacity = capacity;
    }
    values->value[values->count++] = value;
    return true;
}

static void percentile_step(sqlite3_context *context, int argc, sqlite3_value **argv) {
    struct values *values = sqlite3_aggregate_context(context, sizeof *values);
    if (!values) {
        sqlite3_result_error_nomem(context);
        return;
    }
    double percent = 50;
    if (argc == 2) {
        int type = sqlite3_value_numeric_type(argv[1]);
        percent = sqlite3_value_double(argv[1]);
        if ((type != SQLITE_INTEGER && type != SQLITE_FLOAT) || percent < 0 || percent > 100) {
            fail(context, values, "percentile: the second argument is not a number in 0..100");
            return;
        }
    }
    if (values->count && percent != values->percent) {
        fail(context, values, "percentile: the second argument is not the same for all rows");
        return;
    }
    values->percent = percent;
    int type = sqlite3_value_numeric_type(argv[0]);
    if (type == SQLITE_NULL)
        return;
    if (type != SQLITE_INTEGER && type != SQLITE_FLOAT) {
        fail(context, values, "percentile: the first argument is not a number");
        return;
    }
    if (!add(values, sqlite3_value_double(argv[0]))) {
        fail(context, values, "out of memory");
        sqlite3_result_error_nomem(context);
    }
}

static int compare(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static void percentile_final(sqlite3_context *context) {
    struct values *values = sqlite3_aggregate_context(context, 0);
    if (!values || values->count == 0) {
        if (values)
            free(values->value);
        return; /* NULL */
    }
    qsort(values->value, (size_t)values->count, sizeof *values->value, compare);
    double rank = values->percent / 100 * (double)(values->count - 1);
    int64_t low = (int64_t)floor(rank);
    double result = values->value[low];
    if (low + 1 < values->count && rank > (double)low)
        result += (values->value[low + 1] - result) * (rank - (double)low);
    free(values->value);
    sqlite3_result_double(context, result);
}

int st_sql_register_aggregates(sqlite3 *db) {
    int flags = SQLITE_UTF8 | SQLITE_DETERMINISTIC | SQLITE_INNOCUOUS;
    int rc = sqlite3_create_function_v2(db, "percentile", 2, flags, NULL, NULL, percentile_step,
                                        percentile_final, NULL);
    if (rc == SQLITE_OK)
        rc = sqlite3_create_function_v2(db, "median", 1, flags, NULL, NULL, percentile_step,
                                        percentile_final, NULL);
    return rc;
}
