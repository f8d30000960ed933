/* SPDX-License-Identifier: Apache-2.0 */
/*
 * For tests of the tape: a small engine that schedules at random, from a seed, and keeps what it
 * did without any of the code under test.
 *
 * Each step is a copy of its own: the arrays that go into the writer, and the block table of every
 * row as a runner would hold it.  The engine is less regular than real ones on purpose: ids that no
 * queue explains, starts that jump, lists in any order.
 */
#ifndef ST_FORMAT_TESTING_H
#define ST_FORMAT_TESTING_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "traces/format/header.h"
#include "traces/format/reader.h"
#include "traces/format/step.h"

struct st_test_random {
    uint64_t state;
};

uint64_t st_test_next(struct st_test_random *random);
/* A value within [low, high]. */
int64_t st_test_within(struct st_test_random *random, int64_t low, int64_t high);
bool st_test_chance(struct st_test_random *random, int percent);

/* Percentages of steps, rows or blocks. */
struct st_test_engine_options {
    uint64_t seed;
    int32_t step_count;
    int64_t first_step;
    int32_t group_count; /* 0 .. 4 */
    int64_t num_blocks;  /* -1: the header does not say */
    int32_t max_running;
    bool free_to_tail, late_window;
    bool lawful; /* by the rules between steps (traces/interchange/rules.h), with `check` objects of
                    the interchange format; else what a tape has to hold all the same */
    int32_t long_start; /* starts of new requests up to this */
    int share, random_id, preempt, draft, reject, shuffle, odd, check;
};

/* Usual values for a seed; half of the seeds switch this or that off. */
void st_test_engine_options_init(struct st_test_engine_options *options, uint64_t seed);

struct st_test_table {
    int32_t count;
    int32_t *id;
};

struct st_test_step {
    struct st_step step;         /* what goes into the writer, and prompt_len for comparison */
    struct st_test_table *table; /* [group_count * request_count], after the step */
    char *check_json;            /* or NULL */
    int32_t decode_count;        /* of the table `step` */
    int64_t prefill_token_count;
    struct st_row_blocks *blocks;
};

struct st_test_recording {
    struct st_header header;
    int32_t step_count;
    struct st_test_step *step;
};

struct st_test_recording *st_test_record(const struct st_test_engine_options *options);
void st_test_recording_destroy(struct st_test_recording *recording);

/* Writes a recording; the error is the writer's. */
int st_test_write(const struct st_test_recording *recording, const char *path,
                  struct st_error *err);

/* A step of one request, 0, and its next token, of which nothing else is known; it borrows memory
 * that the next call writes. */
struct st_step st_test_bare_step(int64_t step_id);

/* NULL when a step that was read is the one that was recorded; else what differs.  what: ST_READ_
 * bits of the cursor. */
const char *st_test_compare(const struct st_test_recording *recording, int64_t step_id,
                            const struct st_step *got, unsigned what);
/* The same for tables and for slot mappings of the step last given. */
const char *st_test_compare_tables(const struct st_test_recording *recording, int64_t step_id,
                                   struct st_cursor *cursor);
const char *st_test_compare_slots(const struct st_test_recording *recording, int64_t step_id,
                                  struct st_cursor *cursor);
const char *st_test_compare_header(const struct st_header *want, const struct st_header *got);

/* "FOLDER/NAME", FOLDER new and of this process, removed with all in it at exit. */
const char *st_test_path(const char *name);
/* Files in that folder. */
int st_test_file_count(void);
/* A teardown: what a test that failed left in the folder is not counted against the next. */
int st_test_empty_folder(void **state);

#endif
