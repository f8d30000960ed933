/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A small table of texts, printed with aligned columns.
 *
 *     struct st_grid grid;
 *     st_grid_init(&grid, "<>>", "policy", "launches", "skipped");
 *     st_grid_add(&grid, "%s", policy);  (cell by cell, row after row)
 *     rc = st_grid_print(&grid, out, "  ", err);  (prints and frees)
 *
 * With out NULL it frees only.  A failed allocation is remembered and comes out of st_grid_print().
 */
#ifndef ST_ANALYSIS_GRID_H
#define ST_ANALYSIS_GRID_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include "traces/base/error.h"

enum { ST_GRID_MAX_COLUMNS = 12 };

struct st_grid {
    int column_count;
    char align[ST_GRID_MAX_COLUMNS + 1]; /* '<' or '>' */
    int width[ST_GRID_MAX_COLUMNS];
    char **cell;
    size_t cell_count, cell_capacity;
    bool failed;
};

/* One heading per letter of align follows. */
void st_grid_init(struct st_grid *grid, const char *align, ...);
void st_grid_add(struct st_grid *grid, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
int st_grid_print(struct st_grid *grid, FILE *out, const char *indent, struct st_error *err);

/* Figures for people.  Each returns buffer; unknown (ST_UNKNOWN, NaN) is "-". */
enum { ST_FIGURE_BYTES = 40 };
const char *st_figure_count(char *buffer, int64_t count); /* 1,234,567 */
/* 4 digits that mean something: 812.3 ms */
const char *st_figure_time(char *buffer, double time_ns);
const char *st_figure_percent(char *buffer, double share); /* 38.2 % */

#endif
