/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Writing a tape.  The file grows under a temporary name beside the target and takes its name in
 * st_writer_finish(): no reader ever sees half a tape.
 */
#ifndef ST_FORMAT_WRITER_H
#define ST_FORMAT_WRITER_H

#include <stdbool.h>
#include <stdint.h>

#include "traces/base/error.h"
#include "traces/format/header.h"
#include "traces/format/step.h"

struct st_writer;

int st_writer_open(const char *path, const struct st_header *header, struct st_writer **writer,
                   struct st_error *err);
/* Steps come in order, step_id consecutive.  check_json: text of the `check` object, or NULL.
 * The step is copied. */
int st_writer_add(struct st_writer *writer, const struct st_step *step, const char *check_json,
                  struct st_error *err);
/* Row of the `operation` table: what made this file. */
int st_writer_operation(struct st_writer *writer, int argc, char **argv, struct st_error *err);
/* For rows of tables that have no call here; before st_writer_finish(). */
struct sqlite3 *st_writer_db(struct st_writer *writer);
/* Rounds the times that the file holds of itself (tape.created, operation.time) down to a multiple
 * of unit_ns; those it had are overwritten, not only freed. */
int st_writer_round_times(struct st_writer *writer, int64_t unit_ns, struct st_error *err);
/* Writes what is buffered, hashes, syncs, renames.  The writer is gone afterwards, also on error.
 */
int st_writer_finish(struct st_writer *writer, struct st_error *err);
/* Removes the temporary file. Accepts NULL. */
void st_writer_abort(struct st_writer *writer);

/* ---- a tape that is being recorded
 *
 * The file has its name from the start, and every block of steps is committed when it is full: a
 * process that is killed leaves all of them.  Until the seal it is no tape, but
 * st_tape_open_part() reads it. */

/* part: must not exist. */
int st_writer_open_part(const char *part, const struct st_header *header, struct st_writer **writer,
                        struct st_error *err);
/* Ends the block being filled and commits it. */
int st_writer_commit(struct st_writer *writer, struct st_error *err);
/* Steps added so far that a kill would leave. */
int64_t st_writer_committed(const struct st_writer *writer);
/* As st_writer_finish(), but the file keeps its name; also on error it stays. */
int st_writer_seal(struct st_writer *writer, struct st_error *err);
/* Closes; the file stays as far as it was committed.  Accepts NULL. */
void st_writer_leave(struct st_writer *writer);

/* ---- what the recorder says of itself: rows of the tables `recorder`, `recorder_note`,
 * `step_gap`. */

struct st_recorder_facts {
    int64_t sequence_count;  /* steps offered to the recorder */
    int64_t dropped_count;   /* of these, not taken */
    bool recovered;          /* from the files of a process that did not close its recording */
    int64_t torn_count;      /* steps that were being copied when it ended: 0 or 1 */
    const char *lost_reason; /* why recording ended before the engine did; NULL: it did not */
    int64_t ring_bytes, byte_count; /* of the ring; copied into it */
    int64_t cost_sum_ns, cost_median_ns, cost_p999_ns, cost_max_ns; /* ST_UNKNOWN */
};
int st_writer_recorder(struct st_writer *writer, const struct st_recorder_facts *facts,
                       struct st_error *err);
/* sequence: the recorder's count of steps when this was said. */
int st_writer_note(struct st_writer *writer, int64_t sequence, const char *key, const char *value,
                   struct st_error *err);
/* The launches of a stream (launches.h), after all steps and gaps. */
struct st_launches_imported;
int st_writer_launches(struct st_writer *writer, const char *stream,
                       struct st_launches_imported *imported, struct st_error *err);
/* Steps that were dropped after the last one of the tape: step_id is one more than that.  Those
 * between two steps are the later one's dropped_before. */
int st_writer_gap(struct st_writer *writer, int64_t step_id, int64_t dropped, struct st_error *err);

#endif
