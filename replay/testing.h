/* SPDX-License-Identifier: Apache-2.0 */
/* For the tests of replay/: made-up headers, steps and tapes. */
#ifndef ST_REPLAY_TESTING_H
#define ST_REPLAY_TESTING_H

#include "traces/base/error.h"
#include "traces/format/header.h"
#include "traces/format/step.h"

/* Fails the test with the error's message. */
#define ST_ASSERT_OK(call)                                                                         \
    do {                                                                                           \
        struct st_error ok_err = {.msg = ""};                                                      \
        int ok_rc = (call);                                                                        \
        if (ok_rc != 0)                                                                            \
            fail_msg("%s: %d: %s", #call, ok_rc, ok_err.msg);                                      \
    } while (0)

/* DeepSeek-V4 of 4 layers (0, 4, 128, 4), groups as vLLM makes them, 2,000 blocks of 8 requests. */
const struct st_header *st_testing_header(void);
/* A dense model: no compressed layers, one group. */
const struct st_header *st_testing_dense_header(void);

/*
 * Writes a tape: 12 requests with prompts of 40 to 700 tokens in chunks of at most 200 a step, then
 * 150 decodes each; 4 in a batch; the request of a row is preempted and resumed once.  Every step's
 * mode is FULL when all rows are decodes, else NONE; step 7 has no starts on the CPU; one step is
 * empty.
 */
int st_testing_write_tape(const char *path, const struct st_header *header, struct st_error *err);

#endif
