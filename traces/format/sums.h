/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Sums over the steps of a tape, a row a graph mode: table step_summary.  They follow from the
 * other tables, and spare whoever wants to know what is in a tape the reading of millions of steps.
 */
#ifndef ST_FORMAT_SUMS_H
#define ST_FORMAT_SUMS_H

#include <sqlite3.h>
#include <stdbool.h>
#include <stdint.h>

#include "traces/base/error.h"
#include "traces/format/step.h"
#include "traces/format/writer_i.h"

/* In the order of the table's columns behind graph_mode. */
enum st_sum {
    ST_SUM_STEPS,
    ST_SUM_REQUEST_STEPS,
    ST_SUM_TOKENS,
    ST_SUM_DECODES,
    ST_SUM_PREFILL_TOKENS,
    ST_SUM_PREEMPTED,
    ST_SUM_NEW_REQUESTS,
    ST_SUM_BLOCK_IDS,
    ST_SUM_MAX_REQUESTS,
    ST_SUM_MAX_QUERY_LEN,
    ST_SUM_MAX_SEQ_LEN,
    ST_SUM_BEGIN_NS, /* ST_UNKNOWN when no step says; the next two as well */
    ST_SUM_END_NS,
    ST_SUM_BUSY_NS,
    ST_SUM_C128_CLOSES, /* steps in which a token closes a group of 128 positions */
    ST_SUM_C128_NONE,
    ST_SUM_C128_UNKNOWN, /* the engine had no starts on the CPU */
    ST_SUM_C128_EMPTY,   /* no tokens */
    ST_SUMS
};

enum { ST_SUM_MODES = 4 };

struct st_step_sums {
    int64_t mode[ST_SUM_MODES][ST_SUMS]; /* by graph mode + 1 */
};

void st_sums_init(struct st_step_sums *sums);
/* A step with its block ids; summary is of this step. */
void st_sums_add(struct st_step_sums *sums, const struct st_step *step,
                 const struct st_step_summary *summary);
/* All modes together. */
int64_t st_sums_total(const struct st_step_sums *sums, enum st_sum which);

int st_sums_store(sqlite3 *db, const char *path, const struct st_step_sums *sums,
                  struct st_error *err);
/* *found: whether the tape has the table; those of format 1 have not. */
int st_sums_load(sqlite3 *db, const char *path, struct st_step_sums *sums, bool *found,
                 struct st_error *err);
/* The first column that differs, or NULL. */
const char *st_sums_compare(const struct st_step_sums *a, const struct st_step_sums *b);

#endif
