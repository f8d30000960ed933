/* SPDX-License-Identifier: Apache-2.0 */
/* The report of a run of backend `engine`: what an engine launched, for a person. */
#include <inttypes.h>
#include <math.h>
#include <sqlite3.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include "analysis/grid.h"
#include "analysis/report_i.h"
#include "traces/format/step.h"

static const char *or_dash(const char *text) {
    return text && *text ? text : "-";
}

static const char *number(char *text, double value) {
    if (isnan(value))
        snprintf(text, ST_FIGURE_BYTES, "-");
    else
        snprintf(text, ST_FIGURE_BYTES, "%.1f", value);
    return text;
}

/* One table a graph mode; row: the mode's first, and after the call the next mode's first. */
static int print_mode(sqlite3_stmt *row, int *rc, FILE *out, struct st_error *err) {
    struct st_grid grid;
    char text[ST_FIGURE_BYTES], mode[16], steps[ST_FIGURE_BYTES], all[ST_FIGURE_BYTES];
    double known = 0, opaque = 0;
    int64_t untimed = 0;
    snprintf(mode, sizeof mode, "%.15s", or_dash(st_report_text(row, "graph_mode")));
    st_figure_count(steps, st_report_integer(row, "steps"));
    number(all, st_report_real(row, "all_launches_per_step"));
    st_grid_init(&grid, "<<>>>>", "family", "operator", "a step", "a launch", "of kernels",
                 "of the step");
    do {
        const char *op = st_report_text(row, "operator");
        double share = st_report_real(row, "kernel_share");
        st_grid_add(&grid, "%s", or_dash(st_report_text(row, "family")));
        st_grid_add(&grid, "%s", op ? op : "(opaque)");
        st_grid_add(&grid, "%s", number(text, st_report_real(row, "launches_per_step")));
        st_grid_add(&grid, "%s", st_figure_time(text, st_report_real(row, "kernel_ns_per_launch")));
        st_grid_add(&grid, "%s", st_figure_percent(text, share));
        st_grid_add(&grid, "%s", st_figure_percent(text, st_report_real(row, "step_share")));
        if (!isnan(share))
            *(op ? &known : &opaque) += share;
        untimed += st_report_integer(row, "untimed");
        *rc = st_report_next(row, err);
    } while (*rc == 0 && strcmp(mode, or_dash(st_report_text(row, "graph_mode"))) == 0);
    fprintf(out, "\n%s: %s launches a step, over %s steps\n", mode, all, steps);
    int printed = st_grid_print(&grid, out, "  ", err);
    fprintf(out, "  steptape knows %s", st_figure_percent(text, known));
    fprintf(out, " of this kernel time, %s is opaque\n", st_figure_percent(text, opaque));
    if (untimed)
        fprintf(out, "  note: %s launches have no time\n", st_figure_count(text, untimed));
    return printed;
}

static int print_families(const struct st_report *report, FILE *out, struct st_error *err) {
    sqlite3_stmt *row = NULL;
    ST_TRY(st_report_prepare(report, ST_REPORT_FAMILY, &row, err));
    int rc = st_report_next(row, err), printed = 0;
    while (rc == 0 && printed == 0)
        printed = print_mode(row, &rc, out, err);
    sqlite3_finalize(row);
    return rc == ST_DONE || rc == 0 ? printed : rc;
}

static int print_beside(const struct st_report *report, FILE *out, struct st_error *err) {
    struct st_grid grid;
    sqlite3_stmt *row = NULL;
    char text[ST_FIGURE_BYTES], mode[16] = "";
    bool any = false;
    int rc;
    ST_TRY(st_report_prepare(report, ST_REPORT_BESIDE, &row, err));
    st_grid_init(&grid, "<<>>", "graph mode", "operator", "recorded a step", "the plan's");
    while ((rc = st_report_next(row, err)) == 0) {
        const char *name = or_dash(st_report_text(row, "graph_mode"));
        const char *policy = or_dash(st_report_text(row, "policy"));
        st_grid_add(&grid, "%s", strcmp(name, mode) == 0 ? "" : name);
        snprintf(mode, sizeof mode, "%.15s", name);
        st_grid_add(&grid, "%s", or_dash(st_report_text(row, "operator")));
        st_grid_add(&grid, "%s", number(text, st_report_real(row, "recorded_per_step")));
        st_grid_add(&grid, "%s (%s)", number(text, st_report_real(row, "planned_per_step")),
                    policy);
        any = true;
    }
    sqlite3_finalize(row);
    if (any)
        putc('\n', out);
    int printed = st_grid_print(&grid, any ? out : NULL, "", err);
    return rc == ST_DONE ? printed : rc;
}

/* What a reader has to know before he believes the counts and the times. */
static void print_losses(const struct st_report *report, FILE *out) {
    static const struct {
        const char *sql, *text;
    } losses[] = {
        {"SELECT sum(missing) FROM main.launch_capture", "kernels were called and have no record"},
        {"SELECT sum(dropped) FROM main.launch_capture", "records were dropped"},
        {"SELECT sum(unattributed) FROM main.launch_capture", "records are of no known step"},
        {"SELECT count(*) FROM main.launch_step WHERE level = 'off'",
         "steps ran in windows without capture"},
        {"SELECT count(*) FROM main.launch_step WHERE level IN ('graph', 'node', 'full')",
         "steps ran with CUPTI attached: graphs were launched more slowly, and steps took longer, "
         "than without"},
    };
    char text[ST_FIGURE_BYTES];
    for (size_t i = 0; i < sizeof losses / sizeof losses[0]; i++) {
        sqlite3_stmt *statement = NULL;
        if (sqlite3_prepare_v2(report->db, losses[i].sql, -1, &statement, NULL) == SQLITE_OK &&
            sqlite3_step(statement) == SQLITE_ROW && sqlite3_column_int64(statement, 0) > 0)
            fprintf(out, "note: %s %s\n", st_figure_count(text, sqlite3_column_int64(statement, 0)),
                    losses[i].text);
        sqlite3_finalize(statement);
    }
}

int st_report_print_engine(const struct st_report *report, FILE *out, struct st_error *err) {
    print_losses(report, out);
    ST_TRY(print_families(report, out, err));
    return print_beside(report, out, err);
}
