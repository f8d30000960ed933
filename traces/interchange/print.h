/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Writing the interchange format of steps.  What parse.h gives, this prints: the same facts, keys
 * in the order of the format's description, no white space.
 */
#ifndef ST_INTERCHANGE_PRINT_H
#define ST_INTERCHANGE_PRINT_H

#include "traces/format/header.h"
#include "traces/format/step.h"
#include "traces/interchange/out.h"

/* Line 1.  What is unknown is null. */
void st_print_header(struct st_out *out, const struct st_header *header);
/* One step with its block ids.  Optional keys that were absent stay absent.  check_json: text of
 * the `check` object, or NULL. */
void st_print_step(struct st_out *out, const struct st_step *step, const char *check_json);

#endif
