/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What launch capture costs, from inside: windows of steps with and without capture alternate, and
 * the median step of each window without is compared with those around it.
 *
 * Pure arithmetic: the worker feeds ended steps in and does what it is told.
 */
#ifndef ST_CUPTI_INJECT_BUDGET_H
#define ST_CUPTI_INJECT_BUDGET_H

#include <stdbool.h>
#include <stdint.h>

#include "traces/format/launch_stream.h"

enum { ST_BUDGET_WINDOW_MAX = 512, ST_BUDGET_PAIRS = 16, ST_BUDGET_PAIRS_MIN = 6 };

struct st_budget_estimate {
    double share, share_error; /* of a step's time, with half width of its 95 % interval; NaN */
    double ns_per_step, ns_per_launch;
    int64_t pairs;
};

struct st_inject_budget {
    double limit; /* share; 0: no budget, always capturing */
    int64_t window_ns, window_steps;
    bool on;       /* this window captures */
    int32_t level; /* enum st_launch_level of windows that do */
    bool settled;  /* within budget: fewer windows without */
    int64_t window_begin_ns, step_count, launches;
    int64_t duration_ns[ST_BUDGET_WINDOW_MAX];
    double last_on_ns, last_off_ns, last_launches; /* medians; NaN: no such window yet */
    double share[ST_BUDGET_PAIRS], cost_ns[ST_BUDGET_PAIRS], per_launch[ST_BUDGET_PAIRS];
    int64_t pair_count;
};

enum st_budget_advice {
    ST_BUDGET_STAY,
    ST_BUDGET_TURN_OFF,  /* a window without capture begins */
    ST_BUDGET_TURN_ON,   /* a window with capture begins */
    ST_BUDGET_STEP_DOWN, /* over the limit: capture less, then st_budget_restart() */
};

void st_budget_init(struct st_inject_budget *budget, double limit, int64_t window_ns,
                    int64_t window_steps, int32_t level, int64_t now_ns);
/* A new level: what was learned of the old one is forgotten. */
void st_budget_restart(struct st_inject_budget *budget, int32_t level, int64_t now_ns);
/* An ended step; those that ran at another level, or while it changed, do not count. */
void st_budget_add(struct st_inject_budget *budget, const struct st_launch_step *step);
enum st_budget_advice st_budget_look(struct st_inject_budget *budget, int64_t now_ns);
void st_budget_estimate(const struct st_inject_budget *budget, struct st_budget_estimate *estimate);

#endif
