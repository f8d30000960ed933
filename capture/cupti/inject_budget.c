/* SPDX-License-Identifier: Apache-2.0 */
#include "capture/cupti/inject_budget.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { SETTLED_WINDOWS = 8 }; /* length of a window with capture, once it is within budget */

static void begin_window(struct st_inject_budget *b, bool on, int64_t now_ns) {
    b->on = on;
    b->window_begin_ns = now_ns;
    b->step_count = 0;
    b->launches = 0;
}

void st_budget_restart(struct st_inject_budget *b, int32_t level, int64_t now_ns) {
    b->level = level;
    b->settled = false;
    b->pair_count = 0;
    b->last_on_ns = b->last_off_ns = b->last_launches = NAN;
    begin_window(b, true, now_ns);
}

void st_budget_init(struct st_inject_budget *b, double limit, int64_t window_ns,
                    int64_t window_steps, int32_t level, int64_t now_ns) {
    memset(b, 0, sizeof *b);
    b->limit = limit;
    b->window_ns = window_ns;
    b->window_steps = window_steps < ST_BUDGET_WINDOW_MAX ? window_steps : ST_BUDGET_WINDOW_MAX;
    st_budget_restart(b, level, now_ns);
}

void st_budget_add(struct st_inject_budget *b, const struct st_launch_step *s) {
    if (b->limit <= 0 || s->changed || s->level != (b->on ? b->level : ST_LEVEL_OFF) ||
        s->start_ns < b->window_begin_ns || s->duration_ns <= 0)
        return;
    /* Of a longer window, the last steps. */
    b->duration_ns[b->step_count % ST_BUDGET_WINDOW_MAX] = s->duration_ns;
    b->step_count++;
    if (s->kernel_launches > 0)
        b->launches += s->kernel_launches;
    if (s->graph_launches > 0)
        b->launches += s->graph_kernels > 0 ? s->graph_kernels : s->graph_launches;
}

static int by_value(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

static double median_of(const double *value, int64_t count) {
    double sorted[ST_BUDGET_WINDOW_MAX];
    if (count <= 0)
        return NAN;
    memcpy(sorted, value, (size_t)count * sizeof *sorted);
    qsort(sorted, (size_t)count, sizeof *sorted, by_value);
    return (sorted[(count - 1) / 2] + sorted[count / 2]) / 2;
}

static double median_step(const struct st_inject_budget *b) {
    double value[ST_BUDGET_WINDOW_MAX];
    int64_t count = b->step_count < ST_BUDGET_WINDOW_MAX ? b->step_count : ST_BUDGET_WINDOW_MAX;
    for (int64_t i = 0; i < count; i++)
        value[i] = (double)b->duration_ns[i];
    return median_of(value, count);
}

/* A window without lies between two with: whatever drifts evenly cancels. */
static void add_pair(struct st_inject_budget *b, double on_ns) {
    double around_ns = (b->last_on_ns + on_ns) / 2;
    double cost_ns = around_ns - b->last_off_ns;
    int64_t k = b->pair_count++ % ST_BUDGET_PAIRS;
    b->cost_ns[k] = cost_ns;
    b->share[k] = cost_ns / b->last_off_ns;
    b->per_launch[k] = b->last_launches > 0 ? cost_ns / b->last_launches : NAN;
}

static void end_window(struct st_inject_budget *b) {
    double median_ns = median_step(b);
    if (!b->on) {
        b->last_off_ns = median_ns;
        return;
    }
    if (!isnan(b->last_off_ns) && !isnan(b->last_on_ns))
        add_pair(b, median_ns);
    b->last_off_ns = NAN;
    b->last_on_ns = median_ns;
    b->last_launches = (double)b->launches / (double)b->step_count;
}

void st_budget_estimate(const struct st_inject_budget *b, struct st_budget_estimate *e) {
    double spread[ST_BUDGET_PAIRS];
    int64_t n = b->pair_count < ST_BUDGET_PAIRS ? b->pair_count : ST_BUDGET_PAIRS;
    e->pairs = b->pair_count;
    e->share = median_of(b->share, n);
    e->ns_per_step = median_of(b->cost_ns, n);
    e->ns_per_launch = median_of(b->per_launch, n);
    for (int64_t i = 0; i < n; i++)
        spread[i] = fabs(b->share[i] - e->share);
    /* A median's error is 1.25 times a mean's; 1.48 makes a deviation of a median deviation. */
    e->share_error =
        n < ST_BUDGET_PAIRS_MIN ? NAN : 1.96 * 1.25 * 1.48 * median_of(spread, n) / sqrt((double)n);
}

enum st_budget_advice st_budget_look(struct st_inject_budget *b, int64_t now_ns) {
    if (b->limit <= 0)
        return ST_BUDGET_STAY;
    int64_t length = b->on && b->settled ? SETTLED_WINDOWS : 1;
    if (b->step_count < length * b->window_steps ||
        now_ns - b->window_begin_ns < length * b->window_ns)
        return ST_BUDGET_STAY;
    bool was_on = b->on;
    struct st_budget_estimate e;
    end_window(b);
    st_budget_estimate(b, &e);
    if (was_on && b->pair_count >= ST_BUDGET_PAIRS_MIN) {
        if (e.share - e.share_error > b->limit)
            return ST_BUDGET_STEP_DOWN;
        b->settled = e.share + e.share_error <= b->limit;
    }
    begin_window(b, !was_on, now_ns);
    return was_on ? ST_BUDGET_TURN_OFF : ST_BUDGET_TURN_ON;
}
