/* SPDX-License-Identifier: Apache-2.0 */
/*
 * From the ring to a tape: what the writer thread and `recover` share.
 */
#ifndef ST_CAPTURE_DRAIN_H
#define ST_CAPTURE_DRAIN_H

#include <stdint.h>

#include "capture/ring.h"
#include "traces/base/error.h"
#include "traces/format/header.h"
#include "traces/format/writer.h"
#include "traces/interchange/rules.h"

/* Key of the note that stands for a `check` object that was left out: what was wrong with it. */
#define ST_DRAIN_CHECK_NOTE "check left out"

struct st_drain {
    struct st_writer *writer;
    struct st_rules rules;
    bool refused; /* a step said what none may say: the steps before it make a tape */
    int32_t group_count;
    int64_t next_step;     /* number of the step that is written next */
    int64_t next_sequence; /* number that its record has when none was dropped */
    int64_t dropped;       /* in the gaps so far */
    int64_t torn;          /* steps cut off by the end of the process; st_drain_finish() sets it */
    struct st_ring_scratch scratch;
    char *folder; /* of the part: where the streams of launches are */
};

/* What the tape says of its engine: what the engine gave, with the ring's clock where it gave none.
 */
struct st_header st_drain_header(const struct st_header *given, const struct st_ring_head *head);
/* part: the tape to make; it must not exist. */
int st_drain_open(struct st_drain *drain, const char *part, const struct st_header *header,
                  struct st_error *err);
/* The file stays, as far as it was committed. */
void st_drain_close(struct st_drain *drain);

/* Writes a step and counts it; step_id is next_step.  ST_ERR_INPUT and `refused`: nothing of it was
 * written; it and all behind it count as dropped. */
int st_drain_step(struct st_drain *drain, const struct st_step *step, const char *check_json,
                  struct st_error *err);
/* The step of a record.  One that was written already is passed over. */
int st_drain_record(struct st_drain *drain, const struct st_ring_record *record,
                    struct st_error *err);

/* What the ring's head and its notes say of the recording, then the seal; the drain is closed
 * afterwards, also on error.  ring NULL: it is lost.
 * reason: why the recording ended early, or NULL. */
int st_drain_finish(struct st_drain *drain, const struct st_ring_file *ring, bool recovered,
                    const char *reason, struct st_error *err);

#endif
