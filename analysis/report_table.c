/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The report for a person: what is compared, what it saves, whether it is safe; then the tables
 * behind it.
 */
#include "analysis/report_i.h"

#include <inttypes.h>
#include <math.h>
#include <sqlite3.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "analysis/grid.h"
#include "traces/format/step.h"

/* Hazards printed in full; the rest is a count. */
#define HAZARDS_SHOWN 5
#define MAX_POLICIES 16
#define COLUMNS 100
#define LABEL_BYTES 25
/* Where the effect of a line begins, behind the two figures it comes from. */
#define EFFECT_COLUMN 41

struct policy {
    char *name;
    char label[LABEL_BYTES]; /* the name, or "#1" for one that is too long for a column */
    int64_t steps, launches, skipped, could_skip, could_skip_full_graph, could_skip_no_cpu_starts;
    int64_t kernel_ns, step_ns;
    double predicate_ns;
    bool kernel_partial, step_partial; /* measured in some of the steps only */
    int64_t rows, rows_differing, reference_rows, reference_differing, rounding_bytes; /* checked */
    int64_t hazards, verified_steps;
    double saved_step_ns, saved_step_error_ns, saved_step_share; /* against the first policy */
};

struct facts {
    bool simulated, verified;
    int64_t steps;
    double noise_floor_ns;
    int policy_count;
    struct policy policy[MAX_POLICIES];
};

static double unknown_to_nan(int64_t value) {
    return value == ST_UNKNOWN ? NAN : (double)value;
}

static void free_facts(struct facts *facts) {
    for (int i = 0; i < facts->policy_count; i++)
        free(facts->policy[i].name);
}

static struct policy *find_policy(struct facts *facts, const char *name) {
    for (int i = 0; name && i < facts->policy_count; i++)
        if (strcmp(facts->policy[i].name, name) == 0)
            return &facts->policy[i];
    return NULL;
}

/* ---- reading */

/* A hostile file can have NULL anywhere. */
static bool has_text(sqlite3_stmt *row, const char *column, const char *want) {
    const char *text = st_report_text(row, column);
    return text && strcmp(text, want) == 0;
}

typedef int (*row_function)(struct facts *facts, sqlite3_stmt *row, struct st_error *err);

static int for_each_row(const struct st_report *report, enum st_report_section section,
                        row_function function, struct facts *facts, struct st_error *err) {
    sqlite3_stmt *statement = NULL;
    ST_TRY(st_report_prepare(report, section, &statement, err));
    int rc;
    while ((rc = st_report_next(statement, err)) == 0)
        if ((rc = function(facts, statement, err)) != 0)
            break;
    sqlite3_finalize(statement);
    return rc == ST_DONE ? 0 : rc;
}

static int read_policy(struct facts *facts, sqlite3_stmt *row, struct st_error *err) {
    if (facts->policy_count == MAX_POLICIES)
        return ST_FAIL(err, ST_ERR_CORRUPT, "the run has more than %d policies", MAX_POLICIES);
    struct policy *policy = &facts->policy[facts->policy_count];
    const char *name = st_report_text(row, "policy");
    policy->name = strdup(name ? name : "-");
    if (!policy->name)
        return ST_FAIL_NOMEM(err);
    if (strlen(policy->name) < sizeof policy->label)
        strcpy(policy->label, policy->name);
    else
        snprintf(policy->label, sizeof policy->label, "#%d", facts->policy_count);
    facts->policy_count++;
    policy->steps = st_report_integer(row, "steps");
    policy->launches = st_report_integer(row, "launches");
    policy->skipped = st_report_integer(row, "skipped");
    policy->could_skip = st_report_integer(row, "could_skip");
    policy->could_skip_full_graph = st_report_integer(row, "could_skip_full_graph");
    policy->could_skip_no_cpu_starts = st_report_integer(row, "could_skip_no_cpu_starts");
    policy->kernel_ns = st_report_integer(row, "kernel_ns");
    policy->step_ns = st_report_integer(row, "step_ns");
    policy->kernel_partial = st_report_integer(row, "kernel_steps") < policy->steps;
    policy->step_partial = st_report_integer(row, "step_steps") < policy->steps;
    policy->predicate_ns = st_report_real(row, "predicate_ns");
    policy->saved_step_ns = policy->saved_step_error_ns = policy->saved_step_share = NAN;
    return 0;
}

static int read_saving(struct facts *facts, sqlite3_stmt *row, struct st_error *err) {
    (void)err;
    struct policy *policy = find_policy(facts, st_report_text(row, "policy"));
    if (!policy || !has_text(row, "measure", "step") || !has_text(row, "subset", "all"))
        return 0;
    policy->saved_step_ns = st_report_real(row, "saved_ns");
    policy->saved_step_error_ns = st_report_real(row, "saved_error_ns");
    policy->saved_step_share = st_report_real(row, "saved_share");
    return 0;
}

static int read_check(struct facts *facts, sqlite3_stmt *row, struct st_error *err) {
    (void)err;
    struct policy *policy = find_policy(facts, st_report_text(row, "policy"));
    facts->verified = true;
    if (!policy)
        return 0;
    int64_t steps = st_report_integer(row, "steps");
    if (steps > policy->verified_steps)
        policy->verified_steps = steps;
    policy->rows += st_report_integer(row, "rows");
    policy->rows_differing += st_report_integer(row, "rows_differing");
    policy->reference_rows += st_report_integer(row, "reference_rows");
    policy->reference_differing += st_report_integer(row, "reference_differing");
    policy->rounding_bytes += st_report_integer(row, "rounding_bytes");
    return 0;
}

static int read_hazard(struct facts *facts, sqlite3_stmt *row, struct st_error *err) {
    (void)err;
    struct policy *policy = find_policy(facts, st_report_text(row, "policy"));
    if (policy)
        policy->hazards++;
    return 0;
}

/* ---- the head */

static const char *or_dash(const char *text) {
    return text && *text ? text : "-";
}

/* "$ steptape replay ...", continued on the next line before an option where it gets too long. */
static void print_command(const char *command, FILE *out) {
    int column = fprintf(out, "$ ");
    while (*command) {
        size_t length = strcspn(command, " ");
        /* An option and its value stay together. */
        if (command[0] == '-' && command[length] == ' ' && command[length + 1] != '-')
            length += 1 + strcspn(command + length + 1, " ");
        if (column + (int)length > COLUMNS - 2) {
            fputs("\\\n    ", out);
            column = 4;
        }
        column += fprintf(out, "%.*s", (int)length, command);
        command += length;
        if (*command == ' ')
            command += 1, column += fprintf(out, " ");
    }
    putc('\n', out);
}

/* What a reader has to know before he believes the figures; nothing when there is nothing. */
static void print_notes(sqlite3_stmt *row, FILE *out) {
    static const struct {
        const char *column, *text;
    } notes[] = {
        {"steps_above_largest_capture", "ran eager: above the largest capture size"},
        {"steps_mode_unknown", "ran eager: the tape does not know their graph mode"},
        {"steps_without_cpu_starts", "without starts on the CPU: no rule can skip there"},
    };
    char text[ST_FIGURE_BYTES];
    for (size_t i = 0; i < sizeof notes / sizeof notes[0]; i++) {
        int64_t count = st_report_integer(row, notes[i].column);
        if (count != ST_UNKNOWN && count > 0)
            fprintf(out, "note: %s step%s %s\n", st_figure_count(text, count),
                    count == 1 ? "" : "s", notes[i].text);
    }
    if (st_report_text(row, "allocated_groups"))
        fprintf(out, "note: KV groups that the tape lacks, made by the allocator model: %s\n",
                st_report_text(row, "allocated_groups"));
    int64_t dropped = st_report_integer(row, "profiler_records_dropped");
    if (dropped != ST_UNKNOWN && dropped > 0)
        fprintf(out, "note: %s profiler records were dropped: kernel times are too low\n",
                st_figure_count(text, dropped));
}

static int print_head(const struct st_report *report, struct facts *facts, FILE *out,
                      struct st_error *err) {
    char steps[ST_FIGURE_BYTES], tokens[ST_FIGURE_BYTES], floor_text[ST_FIGURE_BYTES];
    sqlite3_stmt *row = NULL;
    ST_TRY(st_report_prepare(report, ST_REPORT_RUN, &row, err));
    int rc = st_report_next(row, err);
    if (rc) {
        sqlite3_finalize(row);
        return rc < 0 ? rc : ST_FAIL(err, ST_ERR_CORRUPT, "%s: the run is gone", report->path);
    }
    facts->simulated = st_report_integer(row, "simulated") == 1;
    facts->steps = st_report_integer(row, "steps");
    facts->noise_floor_ns = st_report_real(row, "noise_floor_ns");
    const char *backend = or_dash(st_report_text(row, "backend"));
    const char *device = st_report_text(row, "device");
    if (!device)
        device = "device unknown";
    size_t prefix = strlen(backend);
    if (strncmp(device, backend, prefix) == 0 && strncmp(device + prefix, ": ", 2) == 0)
        device += prefix + 2; /* "sim: NVIDIA H200": said already */
    fprintf(out, "Run %" PRId64 ": %s on %s, graph mode %s\n%s\n", report->run_id,
            or_dash(st_report_text(row, "model")), backend,
            or_dash(st_report_text(row, "graph_mode")), device);
    if (facts->simulated) {
        double error = st_report_real(row, "sim_error");
        fprintf(out, "SIMULATED, no kernel ran: %s",
                st_report_text(row, "error_note") ? st_report_text(row, "error_note")
                                                  : "the error is not known");
        if (isnan(error))
            putc('\n', out);
        else
            fprintf(out, "; error %.0f %%\n", 100 * error);
    }
    fprintf(out, "%s steps", st_figure_count(steps, facts->steps));
    if (facts->steps > 0 && st_report_integer(row, "first_step") != ST_UNKNOWN)
        fprintf(out, " (%" PRId64 "..%" PRId64 ")", st_report_integer(row, "first_step"),
                st_report_integer(row, "last_step"));
    fprintf(out, ", %s tokens", st_figure_count(tokens, st_report_integer(row, "tokens")));
    if (st_report_text(row, "tape_file"))
        fprintf(out, " of %s", st_report_text(row, "tape_file"));
    fprintf(out, "; passes %s\n", or_dash(st_report_text(row, "passes")));
    int64_t layers = st_report_integer(row, "layers");
    int64_t buffers = st_report_integer(row, "layer_buffers");
    if (layers != ST_UNKNOWN) {
        fprintf(out, "%" PRId64 " layer%s", layers, layers == 1 ? "" : "s");
        if (buffers != ST_UNKNOWN)
            fprintf(out, " in %" PRId64 " buffer%s a kind", buffers, buffers == 1 ? "" : "s");
        fputs("; ", out);
    }
    fprintf(out, "noise floor %s%s\n", st_figure_time(floor_text, facts->noise_floor_ns),
            isnan(facts->noise_floor_ns) ? "" : " a step");
    fprintf(out, "steptape %s", or_dash(st_report_text(row, "tool_version")));
    if (st_report_text(row, "commit_id"))
        fprintf(out, " (commit %s)", st_report_text(row, "commit_id"));
    fprintf(out, ", %s\n", or_dash(st_report_text(row, "created")));
    print_notes(row, out);
    if (st_report_text(row, "command"))
        print_command(st_report_text(row, "command"), out);
    sqlite3_finalize(row);
    return 0;
}

/* ---- what a policy saves */

/* "  label       first -> second             effect" */
static void print_line(FILE *out, const char *label, const char *first, const char *second,
                       const char *effect, ...) __attribute__((format(printf, 5, 6)));

static void print_line(FILE *out, const char *label, const char *first, const char *second,
                       const char *effect, ...) {
    int width = fprintf(out, "  %-13s", label);
    if (first)
        width += fprintf(out, "%s -> %s", first, second);
    fprintf(out, "%*s", width < EFFECT_COLUMN ? EFFECT_COLUMN - width : 2, "");
    va_list ap;
    va_start(ap, effect);
    vfprintf(out, effect, ap);
    va_end(ap);
    putc('\n', out);
}

static void print_launches(const struct policy *first, const struct policy *policy, FILE *out) {
    char a[ST_FIGURE_BYTES], b[ST_FIGURE_BYTES], c[ST_FIGURE_BYTES], d[ST_FIGURE_BYTES];
    double share = first->launches > 0 && policy->skipped != ST_UNKNOWN
                       ? (double)policy->skipped / (double)first->launches
                       : NAN;
    print_line(out, "launches", st_figure_count(a, first->launches),
               st_figure_count(b, policy->launches), "%s skipped (%s)",
               st_figure_count(c, policy->skipped), st_figure_percent(d, share));
    if (policy->could_skip == ST_UNKNOWN || policy->could_skip == 0) {
        print_line(out, "", NULL, NULL, "%s more could have been",
                   policy->could_skip == 0 ? "none" : "-");
        return;
    }
    print_line(out, "", NULL, NULL,
               "%s more could have been:", st_figure_count(a, policy->could_skip));
    if (policy->could_skip_full_graph > 0)
        print_line(out, "", NULL, NULL, "  %s are held by FULL graphs",
                   st_figure_count(b, policy->could_skip_full_graph));
    if (policy->could_skip_no_cpu_starts > 0)
        print_line(out, "", NULL, NULL, "  %s in steps without starts on the CPU",
                   st_figure_count(c, policy->could_skip_no_cpu_starts));
}

static void print_unmeasured(const char *label, FILE *out) {
    print_line(out, label, "-", "-", "not measured");
}

/* The row is one of report_saving.sql, over all steps. */
static void print_saving(const struct facts *facts, sqlite3_stmt *row, FILE *out) {
    char a[ST_FIGURE_BYTES], b[ST_FIGURE_BYTES], c[ST_FIGURE_BYTES], d[ST_FIGURE_BYTES];
    bool is_step = has_text(row, "measure", "step");
    double saved = st_report_real(row, "saved_ns"), error = st_report_real(row, "saved_error_ns");
    char uncertainty[ST_FIGURE_BYTES + 8] = "";
    if (!isnan(error))
        snprintf(uncertainty, sizeof uncertainty, " +- %s", st_figure_time(a, error));
    print_line(out, is_step ? "step time" : "kernel time",
               st_figure_time(a, st_report_real(row, "first_ns")),
               st_figure_time(b, st_report_real(row, "policy_ns")), "%s %s%s (%s)",
               saved < 0 ? "costs" : "saves", st_figure_time(c, fabs(saved)), uncertainty,
               st_figure_percent(d, fabs(st_report_real(row, "saved_share"))));
    int64_t pairs = st_report_integer(row, "pairs");
    if (pairs < facts->steps)
        print_line(out, "", NULL, NULL, "measured in %s of %s steps", st_figure_count(a, pairs),
                   st_figure_count(b, facts->steps));
}

static void print_host_time(const struct policy *policy, double saved_step_ns, FILE *out) {
    char a[ST_FIGURE_BYTES], b[ST_FIGURE_BYTES];
    if (isnan(policy->predicate_ns)) {
        print_line(out, "host time", NULL, NULL, "- (no rule was timed)");
        return;
    }
    if (isnan(saved_step_ns)) {
        print_line(out, "host time", NULL, NULL, "the rule takes %s",
                   st_figure_time(a, policy->predicate_ns));
        return;
    }
    double net = saved_step_ns - policy->predicate_ns;
    print_line(out, "host time", NULL, NULL, "the rule takes %s; net %s %s",
               st_figure_time(a, policy->predicate_ns), net < 0 ? "cost" : "saving",
               st_figure_time(b, fabs(net)));
}

static bool is_different(const struct policy *policy) {
    return policy->rows_differing > 0 || policy->hazards > 0;
}

static void print_verdict(const struct facts *facts, const struct policy *policy, FILE *out) {
    char a[ST_FIGURE_BYTES], b[ST_FIGURE_BYTES];
    if (!facts->verified) {
        print_line(out, "outputs", NULL, NULL, "- (not compared: no verify pass)");
        return;
    }
    if (is_different(policy))
        print_line(out, "outputs", NULL, NULL, "DIFFER in %s of %s rows: see hazards below",
                   st_figure_count(a, policy->rows_differing), st_figure_count(b, policy->rows));
    else if (policy->verified_steps == facts->steps)
        print_line(out, "outputs", NULL, NULL, "identical in all %s rows of all steps",
                   st_figure_count(a, policy->rows));
    else
        print_line(out, "outputs", NULL, NULL, "identical in all %s rows of %s steps",
                   st_figure_count(a, policy->rows), st_figure_count(b, policy->verified_steps));
    if (policy->reference_differing > 0)
        print_line(out, "", NULL, NULL, "WRONG against the CPU reference in %s of %s rows",
                   st_figure_count(a, policy->reference_differing),
                   st_figure_count(b, policy->reference_rows));
    else if (policy->reference_rows > 0)
        print_line(out, "", NULL, NULL, "and as the CPU reference has them in %s rows",
                   st_figure_count(a, policy->reference_rows));
    const struct policy *first = &facts->policy[0];
    if (first->reference_differing > 0)
        print_line(out, "", NULL, NULL, "%s itself is WRONG in %s of %s rows", first->name,
                   st_figure_count(a, first->reference_differing),
                   st_figure_count(b, first->reference_rows));
    if (policy->rounding_bytes > 0)
        print_line(out, "", NULL, NULL, "(%s fp8 bytes on a rounding boundary)",
                   st_figure_count(a, policy->rounding_bytes));
}

/* A row of report_saving.sql over a part of the steps. */
static void add_spread(struct st_grid *grid, const struct facts *facts, const struct policy *policy,
                       sqlite3_stmt *row) {
    static const char *const columns[] = {"median_ns", "p25_ns", "p75_ns", "low_ns", "high_ns"};
    char text[ST_FIGURE_BYTES];
    bool is_step = has_text(row, "measure", "step");
    bool skips = has_text(row, "subset", "skipping");
    st_grid_add(grid, "%s time, %s", is_step ? "step" : "kernel",
                skips                 ? "where it skips"
                : policy->skipped > 0 ? "elsewhere"
                                      : "every step");
    st_grid_add(grid, "%s", st_figure_count(text, st_report_integer(row, "pairs")));
    for (size_t i = 0; i < sizeof columns / sizeof columns[0]; i++)
        st_grid_add(grid, "%s", st_figure_time(text, st_report_real(row, columns[i])));
    bool in_noise = is_step && fabs(st_report_real(row, "median_ns")) < facts->noise_floor_ns;
    st_grid_add(grid, "%s", in_noise ? "noise" : "");
}

static int print_savings(const struct st_report *report, const struct facts *facts,
                         const struct policy *policy, struct st_grid *spread, FILE *out,
                         struct st_error *err) {
    bool has_kernel = false;
    double saved_step_ns = NAN;
    sqlite3_stmt *row = NULL;
    int rc;
    ST_TRY(st_report_prepare(report, ST_REPORT_SAVING, &row, err));
    while ((rc = st_report_next(row, err)) == 0) {
        if (!has_text(row, "policy", policy->name))
            continue;
        if (!has_text(row, "subset", "all")) {
            add_spread(spread, facts, policy, row);
            continue;
        }
        if (has_text(row, "measure", "kernel")) {
            has_kernel = true;
        } else {
            saved_step_ns = st_report_real(row, "saved_ns");
            if (!has_kernel)
                print_unmeasured("kernel time", out);
        }
        print_saving(facts, row, out);
    }
    sqlite3_finalize(row);
    if (rc != ST_DONE)
        return rc;
    if (!has_kernel && isnan(saved_step_ns))
        print_unmeasured("kernel time", out);
    if (isnan(saved_step_ns))
        print_unmeasured("step time", out);
    print_host_time(policy, saved_step_ns, out);
    return 0;
}

/* The first places where this policy's outputs differ. */
static int print_hazards(const struct st_report *report, const struct policy *policy, FILE *out,
                         struct st_error *err) {
    struct st_grid grid;
    sqlite3_stmt *row = NULL;
    char text[ST_FIGURE_BYTES];
    static const char *const numbers[] = {"step_id", "layer", "row", "column"};
    int64_t count = 0;
    int rc;
    ST_TRY(st_report_prepare(report, ST_REPORT_HAZARD, &row, err));
    st_grid_init(&grid, "<>>>><", "hazard in", "step", "layer", "row", "column", "what");
    while ((rc = st_report_next(row, err)) == 0) {
        const char *name = st_report_text(row, "policy");
        if (!name || strcmp(name, policy->name) != 0 || ++count > HAZARDS_SHOWN)
            continue;
        st_grid_add(&grid, "%s", or_dash(st_report_text(row, "operator")));
        for (int i = 0; i < 4; i++) {
            int64_t value = st_report_integer(row, numbers[i]);
            if (value == ST_UNKNOWN)
                st_grid_add(&grid, "-");
            else
                st_grid_add(&grid, "%" PRId64, value);
        }
        st_grid_add(&grid, "%s", or_dash(st_report_text(row, "what")));
    }
    sqlite3_finalize(row);
    if (count)
        putc('\n', out);
    int printed = st_grid_print(&grid, count ? out : NULL, "  ", err);
    if (count > HAZARDS_SHOWN)
        fprintf(out, "  and %s more (--section=hazard)\n",
                st_figure_count(text, count - HAZARDS_SHOWN));
    return rc == ST_DONE ? printed : rc;
}

/* The answer in one line. */
static void print_conclusion(const struct facts *facts, const struct policy *policy, FILE *out) {
    char text[ST_FIGURE_BYTES];
    const struct policy *first = &facts->policy[0];
    double saved = policy->saved_step_ns, error = policy->saved_step_error_ns;
    double skipped = first->launches > 0 && policy->skipped != ST_UNKNOWN
                         ? (double)policy->skipped / (double)first->launches
                         : NAN;
    fprintf(out, "=> skips %s of these launches", st_figure_percent(text, skipped));
    if (isnan(saved))
        fputs(", time not measured", out);
    else if (saved == 0 || (!isnan(error) && fabs(saved) <= error))
        fputs(", no difference of time beyond the noise", out);
    else
        fprintf(out, "%s %s %s of their time", facts->simulated ? ", simulated:" : " and",
                saved < 0 ? "costs" : "saves",
                st_figure_percent(text, fabs(policy->saved_step_share)));
    fprintf(out, "; outputs %s\n",
            !facts->verified       ? "not compared"
            : is_different(policy) ? "DIFFER"
                                   : "identical");
}

static int print_comparison(const struct st_report *report, const struct facts *facts,
                            const struct policy *policy, FILE *out, struct st_error *err) {
    const struct policy *first = &facts->policy[0];
    struct st_grid spread;
    st_grid_init(&spread, "<>>>>>><", "saved a step", "steps", "median", "p25", "p75", "95 % from",
                 "to", "");
    size_t heading_cells = spread.cell_count;
    fprintf(out, "\n%s against %s\n", policy->name, first->name);
    print_conclusion(facts, policy, out);
    print_launches(first, policy, out);
    int rc = print_savings(report, facts, policy, &spread, out, err);
    if (rc == 0)
        print_verdict(facts, policy, out);
    bool has_spread = rc == 0 && spread.cell_count > heading_cells;
    if (has_spread)
        putc('\n', out);
    int printed = st_grid_print(&spread, has_spread ? out : NULL, "  ", err);
    if (rc == 0)
        rc = printed;
    return rc ? rc : print_hazards(report, policy, out, err);
}

/* ---- the tables behind it */

static const char *time_cell(char *buffer, int64_t time_ns, bool partial) {
    st_figure_time(buffer, unknown_to_nan(time_ns));
    if (partial && time_ns != ST_UNKNOWN)
        strcat(buffer, "*");
    return buffer;
}

static int print_policies(struct facts *facts, FILE *out, struct st_error *err) {
    struct st_grid grid;
    char text[ST_FIGURE_BYTES];
    bool partial = false;
    st_grid_init(&grid, "<>>>>>>>", "policy", "steps", "launches", "skipped", "could skip",
                 "kernel time", "step time", "rule");
    for (int i = 0; i < facts->policy_count; i++) {
        const struct policy *policy = &facts->policy[i];
        st_grid_add(&grid, "%s", policy->label);
        st_grid_add(&grid, "%s", st_figure_count(text, policy->steps));
        st_grid_add(&grid, "%s", st_figure_count(text, policy->launches));
        st_grid_add(&grid, "%s", st_figure_count(text, policy->skipped));
        st_grid_add(&grid, "%s", st_figure_count(text, policy->could_skip));
        st_grid_add(&grid, "%s", time_cell(text, policy->kernel_ns, policy->kernel_partial));
        st_grid_add(&grid, "%s", time_cell(text, policy->step_ns, policy->step_partial));
        st_grid_add(&grid, "%s", st_figure_time(text, policy->predicate_ns));
        partial = partial || (policy->kernel_partial && policy->kernel_ns != ST_UNKNOWN) ||
                  (policy->step_partial && policy->step_ns != ST_UNKNOWN);
    }
    putc('\n', out);
    ST_TRY(st_grid_print(&grid, out, "", err));
    for (int i = 0; i < facts->policy_count; i++)
        if (strcmp(facts->policy[i].name, facts->policy[i].label) != 0)
            fprintf(out, "%s = %s\n", facts->policy[i].label, facts->policy[i].name);
    if (partial)
        fputs("* sum over the steps that were measured\n", out);
    return 0;
}

static const char *label_of(struct facts *facts, sqlite3_stmt *row) {
    const struct policy *policy = find_policy(facts, st_report_text(row, "policy"));
    return policy ? policy->label : "-";
}

static int print_operators(const struct st_report *report, struct facts *facts, FILE *out,
                           struct st_error *err) {
    struct st_grid grid;
    sqlite3_stmt *row = NULL;
    char text[ST_FIGURE_BYTES], last[80] = "";
    int rc;
    ST_TRY(st_report_prepare(report, ST_REPORT_OPERATOR, &row, err));
    st_grid_init(&grid, "<<>>>>>", "operator", "policy", "launches", "skipped", "could skip",
                 "kernel time", "a launch");
    while ((rc = st_report_next(row, err)) == 0) {
        const char *name = or_dash(st_report_text(row, "operator"));
        st_grid_add(&grid, "%s", strcmp(name, last) == 0 ? "" : name);
        snprintf(last, sizeof last, "%s", name);
        st_grid_add(&grid, "%s", label_of(facts, row));
        st_grid_add(&grid, "%s", st_figure_count(text, st_report_integer(row, "launches")));
        st_grid_add(&grid, "%s", st_figure_count(text, st_report_integer(row, "skipped")));
        st_grid_add(&grid, "%s", st_figure_count(text, st_report_integer(row, "could_skip")));
        st_grid_add(&grid, "%s", st_figure_time(text, st_report_real(row, "kernel_ns")));
        st_grid_add(&grid, "%s", st_figure_time(text, st_report_real(row, "kernel_ns_per_launch")));
    }
    sqlite3_finalize(row);
    putc('\n', out);
    int printed = st_grid_print(&grid, out, "", err);
    return rc == ST_DONE ? printed : rc;
}

static int print_modes(const struct st_report *report, struct facts *facts, FILE *out,
                       struct st_error *err) {
    struct st_grid grid;
    sqlite3_stmt *row = NULL;
    char text[ST_FIGURE_BYTES], last[16] = "";
    int rc;
    ST_TRY(st_report_prepare(report, ST_REPORT_MODE, &row, err));
    st_grid_init(&grid, "<<>>>>>>", "graph mode", "policy", "steps", "launches", "skipped",
                 "could skip", "kernel saved", "step saved");
    while ((rc = st_report_next(row, err)) == 0) {
        const char *name = or_dash(st_report_text(row, "graph_mode"));
        st_grid_add(&grid, "%s", strcmp(name, last) == 0 ? "" : name);
        snprintf(last, sizeof last, "%s", name);
        st_grid_add(&grid, "%s", label_of(facts, row));
        st_grid_add(&grid, "%s", st_figure_count(text, st_report_integer(row, "steps")));
        st_grid_add(&grid, "%s", st_figure_count(text, st_report_integer(row, "launches")));
        st_grid_add(&grid, "%s", st_figure_count(text, st_report_integer(row, "skipped")));
        st_grid_add(&grid, "%s", st_figure_count(text, st_report_integer(row, "could_skip")));
        st_grid_add(&grid, "%s", st_figure_time(text, st_report_real(row, "saved_kernel_ns")));
        st_grid_add(&grid, "%s", st_figure_time(text, st_report_real(row, "saved_step_ns")));
    }
    sqlite3_finalize(row);
    putc('\n', out);
    int printed = st_grid_print(&grid, out, "", err);
    return rc == ST_DONE ? printed : rc;
}

int st_report_print_table(const struct st_report *report, FILE *out, struct st_error *err) {
    struct facts facts = {0};
    int rc = print_head(report, &facts, out, err);
    if (rc || report->recorded)
        return rc ? rc : st_report_print_engine(report, out, err);
    if (rc == 0)
        rc = for_each_row(report, ST_REPORT_POLICY, read_policy, &facts, err);
    if (rc == 0)
        rc = for_each_row(report, ST_REPORT_SAVING, read_saving, &facts, err);
    if (rc == 0)
        rc = for_each_row(report, ST_REPORT_CHECK, read_check, &facts, err);
    if (rc == 0)
        rc = for_each_row(report, ST_REPORT_HAZARD, read_hazard, &facts, err);
    for (int i = 1; rc == 0 && i < facts.policy_count; i++)
        rc = print_comparison(report, &facts, &facts.policy[i], out, err);
    if (rc == 0)
        rc = print_policies(&facts, out, err);
    if (rc == 0)
        rc = print_operators(report, &facts, out, err);
    if (rc == 0)
        rc = print_modes(report, &facts, out, err);
    free_facts(&facts);
    return rc;
}
