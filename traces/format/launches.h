/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Recorded launches in a tape: the tables launch_*, made from the stream of the engine's process
 * when the recording is finished.  A tape without launches has no such table.
 *
 *     struct st_launches *launches;
 *     rc = st_launches_open(db, path, &launches, err);             ST_DONE: it has none
 *     ST_TRY(st_launches_step(launches, step_id, &list, &count, err));
 *     for (i = 0; i < count; i++)
 *         use(&list[i], st_launches_site(launches, list[i].site));
 *     st_launches_close(launches);
 *
 * Holds all sites, and a few decoded blocks.  One thread.
 */
#ifndef ST_FORMAT_LAUNCHES_H
#define ST_FORMAT_LAUNCHES_H

#include <stdbool.h>
#include <stdint.h>

#include "traces/base/error.h"
#include "traces/format/launch_code.h"

struct sqlite3;
struct st_launches;

/* The tables, with comments; nothing when they are there. */
int st_launches_create(struct sqlite3 *db, const char *path, struct st_error *err);
/* Copies them from another database; nothing when they are there, or when that one has none. */
int st_launches_copy(struct sqlite3 *db, const char *path, struct sqlite3 *from,
                     const char *from_path, struct st_error *err);

/* What came in. */
struct st_launches_imported {
    int64_t launches, steps; /* steps: of the tape, with counts or launches */
    int64_t elsewhere;       /* launches of steps that the tape does not have */
    int64_t missing;         /* kernels that were called and have no record */
    int64_t torn_bytes;      /* at the end of the stream: a chunk that was being written */
    bool ended;              /* the process ended by itself */
};
/*
 * Adds a stream to a tape that is being written (before its seal), after all steps and the rows of
 * step_gap, by which the recorder's numbers become steps.  Everything is decoded and checked; what
 * cannot be is ST_ERR_CORRUPT, and the tables are left with what came before it.
 * path: of the tape, for errors.
 */
int st_launches_import(struct sqlite3 *db, const char *path, const char *stream,
                       struct st_launches_imported *imported, struct st_error *err);

int st_launches_open(struct sqlite3 *db, const char *path, struct st_launches **launches,
                     struct st_error *err);
void st_launches_close(struct st_launches *launches);
/* NULL: there is none of that number. */
const struct st_launch_site *st_launches_site(const struct st_launches *launches, int64_t number);
/* Index of its family (launch_family.h). */
int32_t st_launches_family(const struct st_launches *launches, int64_t number);
/* The launches of a step, in the order of their calls; none of a step that has none.  Borrowed
 * until the next call; sites are numbered as st_launches_site() takes them. */
int st_launches_step(struct st_launches *launches, int64_t step_id,
                     const struct st_launch_record **list, int64_t *count, struct st_error *err);
/* Decodes everything; the first damage is named. */
int st_launches_verify(struct st_launches *launches, struct st_error *err);

#endif
