/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The `check` object of a step, where it does not come as part of a line.
 */
#ifndef ST_INTERCHANGE_CHECK_H
#define ST_INTERCHANGE_CHECK_H

#include "traces/base/error.h"

/* By the rules of import.  0 and *compact, the caller's to free: the same object as import stores
 * it, on one line; ST_ERR_INPUT and what is wrong; or ST_ERR_NOMEM. */
int st_check_compact(const char *text, char **compact, struct st_error *err);

#endif
