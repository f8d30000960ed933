/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tapes from what recordings left behind.
 */
#ifndef ST_CAPTURE_RECOVER_H
#define ST_CAPTURE_RECOVER_H

#include <stdint.h>

#include "traces/base/error.h"

struct st_recovered {
    const char *tape; /* its path; NULL: nothing was left to make a tape of */
    int64_t steps, dropped;
    int64_t torn;       /* steps being copied when the engine ended */
    const char *reason; /* why less is there than was recorded, or NULL */
};

/* Called for each recording of a folder that was dealt with. */
typedef void st_recovered_fn(const struct st_recovered *recovered, void *user);

/*
 * Every recording in PATH.recording that no live process holds.  The first error ends it; files of
 * what could not be recovered stay.  ST_DONE: there is no such folder, or nothing in it.
 */
int st_recover(const char *path, st_recovered_fn *each, void *user, struct st_error *err);

#endif
