/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reading a tape by columns, many steps a call: what a binding of another language needs.
 *
 *     struct steptape_tape *tape;
 *     const struct steptape_tape_steps *steps;
 *     char message[512];
 *     steptape_tape_open("x.tape", &tape, message, sizeof message);
 *     steptape_tape_seek(tape, steptape_tape_first_step(tape), STEPTAPE_TAPE_BLOCKS, message,
 *                        sizeof message);
 *     while ((rc = steptape_tape_read(tape, 1024, &steps, message, sizeof message)) == 0)
 *         use(steps);
 *     steptape_tape_close(tape);
 *
 * Functions return 0, STEPTAPE_TAPE_END after the last step, or a negative number and one line in
 * message.  A tape belongs to one thread.  Memory is bounded by one call's steps, whatever the
 * tape's length: a call gives fewer steps than asked for once they hold STEPTAPE_TAPE_MAX_VALUES.
 */
#ifndef STEPTAPE_TAPE_H
#define STEPTAPE_TAPE_H

#include <stddef.h>
#include <stdint.h>

#include "steptape/capture.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { STEPTAPE_TAPE_END = 1 };

#define STEPTAPE_TAPE_MAX_VALUES (8 << 20)

/* What to read beside rows and events. */
enum {
    STEPTAPE_TAPE_BLOCKS = 1, /* block ids that a step appended */
    STEPTAPE_TAPE_TABLES = 2, /* whole block tables */
    STEPTAPE_TAPE_SLOTS = 4   /* slot of each token: block * block_size + position % block_size;
                                 -1 where the table is too short */
};

struct steptape_tape;

/* Ids of list s are value[offset[s]] up to value[offset[s + 1]], not included. */
struct steptape_tape_list {
    const int64_t *offset; /* [step_count + 1] */
    const int64_t *value;  /* [offset[step_count]] */
};

/* The same of a KV cache group: a list a row, or for slots one number a token. */
struct steptape_tape_group {
    const int64_t *offset; /* [row_count + 1]; NULL when it was not asked for */
    const int32_t *block_id;
    const int64_t *slot; /* [token_count]; NULL when it was not asked for */
};

struct steptape_tape_steps {
    uint32_t struct_size;
    int32_t step_count;
    int32_t group_count;
    int32_t has_draft; /* 1: some step has speculative tokens */
    /* [step_count]; STEPTAPE_UNKNOWN where the tape does not know */
    const int64_t *step_id, *start_ns, *duration_ns;
    const int64_t *padded_token_count, *padded_request_count, *zeroed_count;
    const int32_t *graph_mode; /* -1 unknown, 0 NONE, 1 PIECEWISE, 2 FULL */
    const int32_t *cpu_starts; /* 1, 0; -1 not said, which means 1 */
    /* Rows of all steps one after another: step s has rows row_offset[s] up to row_offset[s + 1];
     * its tokens, of slots, are token_offset[s] up to token_offset[s + 1]. */
    const int64_t *row_offset, *token_offset; /* [step_count + 1] */
    const int64_t *request_id;
    const int32_t *query_len, *num_computed_tokens;
    const int32_t *prompt_len; /* -1 unknown */
    const int32_t *draft;      /* -1: the step does not say; NULL without has_draft */
    struct steptape_tape_list new_requests, finished, preempted, resumed, replaced;
    const int32_t *new_prompt_len;                       /* as new_requests.value */
    const struct steptape_tape_group *appended, *tables; /* [group_count] */
};

/* Opens a tape for reading: nothing is written.  message may be NULL. */
STEPTAPE_API int steptape_tape_open(const char *path, struct steptape_tape **tape, char *message,
                                    size_t message_size);
/* NULL is allowed. */
STEPTAPE_API void steptape_tape_close(struct steptape_tape *tape);

/* Line 1 of the interchange format: the engine and its settings.  The tape's. */
STEPTAPE_API const char *steptape_tape_header(const struct steptape_tape *tape);
/* XXH3-128 of all that can be read, 32 hex digits.  The tape's. */
STEPTAPE_API const char *steptape_tape_hash(const struct steptape_tape *tape);
STEPTAPE_API int64_t steptape_tape_step_count(const struct steptape_tape *tape);
STEPTAPE_API int64_t steptape_tape_first_step(const struct steptape_tape *tape);

/* The next read begins with this step and gives `what` (STEPTAPE_TAPE_ bits); negative where the
 * tape has no such step. */
STEPTAPE_API int steptape_tape_seek(struct steptape_tape *tape, int64_t step_id, unsigned what,
                                    char *message, size_t message_size);

/* The next steps, at most max_steps, borrowed until the next call on the tape. */
STEPTAPE_API int steptape_tape_read(struct steptape_tape *tape, int32_t max_steps,
                                    const struct steptape_tape_steps **steps, char *message,
                                    size_t message_size);

/* The `check` object of a step as JSON text, borrowed until the next call; *json NULL: it has
 * none. */
STEPTAPE_API int steptape_tape_check(struct steptape_tape *tape, int64_t step_id, const char **json,
                                     char *message, size_t message_size);

#ifdef __cplusplus
}
#endif

#endif
