/* SPDX-License-Identifier: Apache-2.0 */
#include "analysis/grid.h"

#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include "analysis/print.h"
#include "traces/format/step.h"

static void add_text(struct st_grid *grid, char *text) {
    if (grid->cell_count == grid->cell_capacity) {
        size_t capacity = grid->cell_capacity ? 2 * grid->cell_capacity : 64;
        char **grown = text ? realloc(grid->cell, capacity * sizeof *grown) : NULL;
        if (!grown) {
            free(text);
            text = NULL;
        } else {
            grid->cell = grown;
            grid->cell_capacity = capacity;
        }
    }
    if (!text) {
        grid->failed = true;
        return;
    }
    size_t column = grid->cell_count % (size_t)grid->column_count;
    int width = st_print_width(text);
    if (width > grid->width[column])
        grid->width[column] = width;
    grid->cell[grid->cell_count++] = text;
}

void st_grid_init(struct st_grid *grid, const char *align, ...) {
    memset(grid, 0, sizeof *grid);
    grid->column_count = (int)strlen(align);
    memcpy(grid->align, align, strlen(align) + 1);
    va_list ap;
    va_start(ap, align);
    for (int i = 0; i < grid->column_count; i++)
        add_text(grid, strdup(va_arg(ap, const char *)));
    va_end(ap);
}

void st_grid_add(struct st_grid *grid, const char *format, ...) {
    char *text = NULL;
    va_list ap;
    va_start(ap, format);
    if (vasprintf(&text, format, ap) < 0)
        text = NULL;
    va_end(ap);
    add_text(grid, text);
}

static void print_row(const struct st_grid *grid, size_t row, FILE *out, const char *indent) {
    int owed = 0; /* spaces before the next cell, so that no line ends in spaces */
    fputs(indent, out);
    for (int column = 0; column < grid->column_count; column++) {
        const char *text = grid->cell[row * (size_t)grid->column_count + (size_t)column];
        int pad = grid->width[column] - st_print_width(text);
        if (grid->align[column] == '>')
            owed += pad;
        if (*text) {
            fprintf(out, "%*s%s", owed, "", text);
            owed = 0;
        }
        owed += 2 + (grid->align[column] == '>' ? 0 : pad);
    }
    putc('\n', out);
}

int st_grid_print(struct st_grid *grid, FILE *out, const char *indent, struct st_error *err) {
    if (out && !grid->failed)
        for (size_t row = 0; row < grid->cell_count / (size_t)grid->column_count; row++)
            print_row(grid, row, out, indent);
    for (size_t i = 0; i < grid->cell_count; i++)
        free(grid->cell[i]);
    free(grid->cell);
    bool failed = grid->failed;
    memset(grid, 0, sizeof *grid);
    return failed ? ST_FAIL_NOMEM(err) : 0;
}

const char *st_figure_count(char *buffer, int64_t count) {
    char digits[24];
    if (count == ST_UNKNOWN)
        return strcpy(buffer, "-");
    int length = snprintf(digits, sizeof digits, "%" PRId64, count);
    char *out = buffer;
    for (int i = 0; i < length; i++) {
        *out++ = digits[i];
        int left = length - 1 - i;
        if (left && left % 3 == 0 && digits[i] != '-')
            *out++ = ',';
    }
    *out = 0;
    return buffer;
}

const char *st_figure_time(char *buffer, double time_ns) {
    static const struct {
        double ns;
        const char *name;
    } units[] = {{1e9, "s"}, {1e6, "ms"}, {1e3, "us"}, {1, "ns"}};
    if (isnan(time_ns))
        return strcpy(buffer, "-");
    size_t unit = 0;
    /* 999.96 us would round to 1000 us: the next unit takes over a little earlier. */
    while (unit < 3 && fabs(time_ns) < 0.99995 * units[unit].ns)
        unit++;
    double value = time_ns / units[unit].ns;
    int decimals = fabs(value) < 9.9995 ? 3 : fabs(value) < 99.995 ? 2 : 1;
    if (unit == 3)
        decimals = time_ns == floor(time_ns) ? 0 : 1; /* no digits that no clock has */
    snprintf(buffer, ST_FIGURE_BYTES, "%.*f %s", decimals, value, units[unit].name);
    return buffer;
}

const char *st_figure_percent(char *buffer, double share) {
    if (isnan(share))
        return strcpy(buffer, "-");
    double percent = 100 * fabs(share);
    int decimals = percent == 0 || percent >= 0.995 ? 1 : percent >= 0.0995 ? 2 : 3;
    snprintf(buffer, ST_FIGURE_BYTES, "%.*f %%", decimals, 100 * share);
    return buffer;
}
