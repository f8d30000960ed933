/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Is a tape whole?  The seal is compared with a hash of all that can be read, SQLite's own
 * structure is checked, every block is decoded, and the step rows are compared with the arrays.
 */
#ifndef ST_FORMAT_VERIFY_H
#define ST_FORMAT_VERIFY_H

#include <stdint.h>

#include "traces/base/error.h"

struct st_verify_report {
    int64_t step_count, request_step_count, block_id_count, check_count;
    int64_t run_count; /* of a result tape */
};

/* ST_ERR_CORRUPT and what is wrong first, or 0 and the counts. */
int st_tape_verify(const char *path, struct st_verify_report *report, struct st_error *err);

#endif
