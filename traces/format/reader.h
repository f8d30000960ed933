/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reading a tape.
 *
 *     struct st_tape *tape;
 *     struct st_cursor *cursor;
 *     const struct st_step *step;
 *     ST_TRY(st_tape_open("x.tape", &tape, err));
 *     ST_TRY(st_cursor_open(tape, ST_READ_BLOCKS, &cursor, err));
 *     while ((rc = st_cursor_next(cursor, &step, err)) == 0)
 *         use(step);
 *     st_cursor_close(cursor);
 *     st_tape_close(tape);
 *
 * Invariants
 *  1. Reading never writes: the file is opened read-only and hostile content is an error.
 *  2. A cursor holds one block of steps, the live requests and the allocator's state: bounded,
 *     whatever the tape's length.
 *  3. A tape and its cursors belong to one thread.
 */
#ifndef ST_FORMAT_READER_H
#define ST_FORMAT_READER_H

#include <stdbool.h>
#include <stdint.h>

#include "traces/base/error.h"
#include "traces/format/header.h"
#include "traces/format/step.h"

struct sqlite3;
struct st_tape;
struct st_cursor;

/* Opens a tape or a result tape.  Refuses what is no tape, and newer formats by name. */
int st_tape_open(const char *path, struct st_tape **tape, struct st_error *err);
/* The same over a database that is open already (the SQL extension); not closed by _close. */
int st_tape_attach(struct sqlite3 *db, struct st_tape **tape, struct st_error *err);
/* What a recorder has committed of a tape that is not finished (writer.h): no seal, no hash. */
int st_tape_open_part(const char *path, struct st_tape **tape, struct st_error *err);
void st_tape_close(struct st_tape *tape);

const char *st_tape_path(const struct st_tape *tape);
const struct st_header *st_tape_header(const struct st_tape *tape);
/* A result tape holds step rows but no arrays: it has no cursor. */
bool st_tape_is_result(const struct st_tape *tape);
int64_t st_tape_step_count(const struct st_tape *tape);
int64_t st_tape_first_step(const struct st_tape *tape); /* 0, or more in a trimmed tape */
struct sqlite3 *st_tape_db(struct st_tape *tape);
/* XXH3-128 of everything that can be read, 32 hex digits: names the tape in its result tapes. */
const char *st_tape_hash(const struct st_tape *tape);

enum {
    /* Appended block ids, at the cost of running the allocator's model. */
    ST_READ_BLOCKS = 1,
    /* Whole block tables too.  Reading in order costs no more than ST_READ_BLOCKS; a seek has to
     * start before the oldest request of the step was admitted. */
    ST_READ_TABLES = 3
};

int st_cursor_open(struct st_tape *tape, unsigned what, struct st_cursor **cursor,
                   struct st_error *err);
void st_cursor_close(struct st_cursor *cursor);

/* The next st_cursor_next() gives this step; ST_ERR_USAGE when the tape has no such step. */
int st_cursor_seek(struct st_cursor *cursor, int64_t step_id, struct st_error *err);
/* 0 and a borrowed step, or ST_DONE after the last one. */
int st_cursor_next(struct st_cursor *cursor, const struct st_step **step, struct st_error *err);

/* The block table of one row of the step last given, its appended ids included: what the runner
 * holds.  *block_id is borrowed until the next call on the cursor.  ST_ERR_USAGE where the table's
 * beginning is not held, which with ST_READ_TABLES it always is. */
int st_cursor_block_table(struct st_cursor *cursor, int32_t group, int32_t row,
                          const int32_t **block_id, int32_t *count, struct st_error *err);

/* slot = block_table[position / block_size] * block_size + position % block_size for each token of
 * the step last given; -1 where the table is too short. slot: [step->token_count].  Needs
 * ST_READ_BLOCKS: the blocks that a step writes to are always held. */
int st_cursor_slot_mapping(struct st_cursor *cursor, int32_t group, int64_t *slot,
                           struct st_error *err);

/* The `check` object of a step as JSON text (borrowed), or NULL when there is none. */
int st_tape_check_json(struct st_tape *tape, int64_t step_id, const char **json,
                       struct st_error *err);

#endif
