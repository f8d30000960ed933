/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Private to the recorder: what the engine's thread and the writer thread share, and what is of one
 * of them alone.
 */
#ifndef ST_CAPTURE_RECORDER_I_H
#define ST_CAPTURE_RECORDER_I_H

#include <pthread.h>
#include <stdatomic.h>

#include "steptape/capture.h"
#include "capture/live.h"
#include "capture/place.h"
#include "capture/ring.h"
#include "traces/interchange/parse.h"

/* The rows of a group that got ids in the step at hand: from[i] .. to[i] of row[i]'s table, or of
 * block_id.  Three arrays: what was stored a moment ago as parts is not to be loaded as a whole. */
struct st_step_entries {
    int32_t *row, *from, *to;
    int32_t count;
};

struct steptape_recorder {
    /* The engine's thread. */
    struct st_ring ring;
    struct st_live live;
    int32_t group_count;
    uint64_t sequence, recorded, dropped, bytes, cost_sum_ns, cost_max_ns;
    int off; /* enum steptape_recorder_status that every step gets, or 0 */
    int (*take_step)(struct steptape_recorder *r, const struct steptape_step *step);
    struct st_step_entries entries[ST_MAX_GROUPS]; /* of the groups, one behind the other in */
    struct st_step_entries entry_pool;             /* [group_count * live.capacity] */
    const _Atomic int *mine; /* 1 in the process that opened it, 0 in its forks */

    /* Both, through the ring's head. */
    _Atomic int stop;    /* close(): write the rest and end */
    _Atomic int refused; /* the writer was given a step that no tape may hold */

    /* The writer thread. */
    pthread_t thread;
    bool has_thread;
    struct st_place place;
    struct st_interchange *header; /* owns what header says */
    struct st_drain *drain;
    struct st_error error; /* why it failed */

    void *entry_memory;
    size_t entry_size;
};

/* Ends recording for the engine's thread; the reason goes into the ring and to get_stats. */
int st_recorder_turn_off(struct steptape_recorder *r, int status, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));

/* One step into the ring: STEPTAPE_RECORDER_OK, _DROPPED, or the status it is off with.  The second
 * is for processors with AVX2. */
int st_take_step(struct steptape_recorder *r, const struct steptape_step *step);
int st_take_step_avx2(struct steptape_recorder *r, const struct steptape_step *step);

#endif
