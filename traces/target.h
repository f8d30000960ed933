/* SPDX-License-Identifier: Apache-2.0 */
/* Whether a tape may be written to a name. */
#ifndef ST_TRACES_TARGET_H
#define ST_TRACES_TARGET_H

#include <stdbool.h>

#include "traces/base/error.h"

/* A slip of the hand (-o steps.jsonl) costs nobody their recording: only a tape, or an empty file,
 * is replaced, and never the input.  what: the input in words, "the recording".  force: replace
 * any other regular file too. */
int st_target_check(const char *output, const char *input, const char *what, bool force,
                    struct st_error *err);

#endif
