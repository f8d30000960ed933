/* SPDX-License-Identifier: Apache-2.0 */
/*
 * From a step of the tape to what a backend gets: positions, block tables, slots, padding, and the
 * list of state rows that this replay must rebuild because it did not run the steps that wrote
 * them.
 *
 * Invariants
 *  1. st_input_observe() sees every step of the walk in order, executed or not: it follows requests
 *     that end or move, and feeds the allocator model.
 *  2. After st_input_build() for a step, and its execution, the state rows of its requests up to
 *     their new length are in the caches.
 *  3. KV groups that the tape lacks get block ids from a model of the allocator: first in, first
 *     out, ids from 1, windowed groups give back what fell out of the window.  It must see a tape
 *     from its first step, and gives the same ids every time.
 */
#ifndef ST_REPLAY_INPUT_H
#define ST_REPLAY_INPUT_H

#include <stdbool.h>
#include <stdint.h>

#include "replay/backend.h"
#include "replay/model.h"
#include "traces/base/error.h"
#include "traces/format/reader.h"
#include "traces/format/step.h"

struct st_input;

int st_input_create(const struct st_model *model, const struct st_buffers *buffers,
                    struct st_input **input, struct st_error *err);
void st_input_destroy(struct st_input *input); /* accepts NULL */

int st_input_observe(struct st_input *input, const struct st_step *step, struct st_error *err);
/* cursor: stands at this step; NULL when all groups are allocated.  forget: see st_step_input.  out
 * borrows until the next call. */
int st_input_build(struct st_input *input, struct st_cursor *cursor, const struct st_step *step,
                   const struct st_step_shape *shape, bool forget, struct st_step_input *out,
                   struct st_error *err);

/* A step that was built: ST_ERR_INPUT when two of its tokens go to one slot of a cache that is
 * written here.  What the slot holds then is what was written last, which no two runs need to agree
 * on. */
int st_input_check(struct st_input *input, const struct st_step *step, struct st_error *err);

#endif
