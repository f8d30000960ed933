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

/* key is text in front of the value, `,"a":`; what is unknown is null. */
void st_print_number(struct st_out *out, const char *key, int64_t value, int64_t unknown);
void st_print_bool(struct st_out *out, const char *key, int8_t value);
void st_print_text(struct st_out *out, const char *key, const char *text);
/* The groups of the header, a JSON array; gap stands in front of each. */
void st_print_groups(struct st_out *out, const struct st_header *header, const char *gap);

/* Line 1.  What is unknown is null. */
void st_print_header(struct st_out *out, const struct st_header *header);
/* One step with its block ids.  Optional keys that were absent stay absent.  check_json: text of
 * the `check` object, or NULL. */
void st_print_step(struct st_out *out, const struct st_step *step, const char *check_json);

#endif
