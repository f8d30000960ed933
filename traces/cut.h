/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Steps from the middle of a tape as a recording of their own: numbered from 0, and each request
 * new, with all that its tables hold, in the first step that has a row of it.
 */
#ifndef ST_TRACES_CUT_H
#define ST_TRACES_CUT_H

#include "traces/base/error.h"
#include "traces/format/reader.h"
#include "traces/format/step.h"

struct st_cut;

int st_cut_create(int32_t group_count, struct st_cut **cut, struct st_error *err);
void st_cut_destroy(struct st_cut *cut); /* accepts NULL */

/* The step that the cursor (of ST_READ_TABLES) has just given; *out borrows from it until the next
 * call.  What happened before the first one, and events of requests that have had no row since, are
 * left out. */
int st_cut_step(struct st_cut *cut, struct st_cursor *cursor, const struct st_step *step,
                struct st_step *out, struct st_error *err);

#endif
