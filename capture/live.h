/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The requests that live in a recording, as the engine's thread keeps them: what the tape knows of
 * each, what the engine has done since, and how much of its block tables is recorded.
 *
 * As long as every step is recorded the two agree after each step, and the lists of a step go into
 * the ring as they come.  After a dropped step they differ for some: these are `dirty`, and the
 * next step that is recorded gets its lists from the difference, and the ids that came meanwhile.
 *
 * Invariants
 *  1. All memory is taken by st_live_init(); nothing else here allocates.
 *  2. Rows of the last batch are cached by row: cell[g][row] is in force, not count[] of its slot.
 */
#ifndef ST_CAPTURE_LIVE_H
#define ST_CAPTURE_LIVE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "traces/base/error.h"

enum st_live_state { ST_LIVE_ABSENT, ST_LIVE_RUNNING, ST_LIVE_WAITING, ST_LIVE_FINISHED };

struct st_live_request {
    int64_t request_id;
    int32_t prompt_len;
    int8_t engine, tape; /* enum st_live_state */
    bool replace;        /* its next ids replace what the tape has of its tables */
    int32_t row;         /* in the cached batch; -1 */
    int32_t dirty_at;    /* place in dirty[]; -1 */
    bool carried;        /* ids of dropped steps are in its lanes */
    int32_t next_free;
};

/* Ids of dropped steps, of one request and group: chunks in order. */
struct st_live_chunk {
    int32_t next;
    int32_t id[15];
};

struct st_live_lane {
    int32_t count; /* ids */
    int32_t first, last;
};

struct st_live {
    int32_t capacity, group_count;
    bool has_tables; /* a step came with block tables: until then no cells move with their rows */
    struct st_live_request *slot; /* [capacity] */
    int32_t free_slot;
    int32_t *cells; /* [capacity][group_count]: cells recorded of each table */
    int32_t *index; /* open addressing: slot or -1 */
    uint32_t mask;

    int32_t *dirty; /* [2 * capacity] slots in order of their first change, -1 where one has gone */
    int32_t dirty_count, dirty_live;

    struct st_live_lane *lane;   /* [capacity][group_count] */
    struct st_live_chunk *chunk; /* [chunk_capacity] */
    int32_t chunk_capacity, free_chunk;

    /* The last batch. */
    int32_t row_count;
    int64_t *row_id;   /* [capacity]; -1: look the row up anew */
    int32_t *row_slot; /* [capacity] */
    int32_t *row_cell; /* [group_count][capacity] */
    int32_t *changed;  /* [capacity] scratch */
    void *memory;
    size_t memory_size;
};

int st_live_init(struct st_live *live, int32_t capacity, int32_t group_count, size_t lane_bytes,
                 struct st_error *err);
void st_live_fini(struct st_live *live);

/* What a step brings, in the order of the step: each marks the request dirty.  NULL, or what is
 * wrong with it. */
const char *st_live_finish(struct st_live *live, int64_t request_id);
const char *st_live_preempt(struct st_live *live, int64_t request_id);
const char *st_live_resume(struct st_live *live, int64_t request_id);
const char *st_live_add(struct st_live *live, int64_t request_id, int32_t prompt_len);
const char *st_live_replace(struct st_live *live, int64_t request_id);

/* Makes the rows of a batch the cached ones.  NULL, or what is wrong with row *bad. */
const char *st_live_set_batch(struct st_live *live, const int64_t *request_id, int32_t count,
                              int32_t *bad);

/* Keeps ids of a step that is dropped; false: the lane is full. */
bool st_live_carry(struct st_live *live, int32_t slot, int32_t group, const int32_t *id,
                   int32_t count);

static inline const struct st_live_lane *st_live_lane(const struct st_live *live, int32_t slot,
                                                      int32_t group) {
    return &live->lane[(int64_t)slot * live->group_count + group];
}

/* Copies what is carried to `to`; gives where the next goes. */
int32_t *st_live_copy_lane(const struct st_live *live, int32_t slot, int32_t group, int32_t *to);

/* The step was recorded: the tape knows what the engine did.  all: its lists were the engine's own;
 * else those that follow from the dirty requests, of which a new, a resumed and a replaced one wait
 * for a step that has a row of theirs. */
void st_live_settle(struct st_live *live, bool all);

static inline int32_t *st_live_row_cells(struct st_live *live, int32_t group) {
    return live->row_cell + (int64_t)group * live->capacity;
}

#endif
