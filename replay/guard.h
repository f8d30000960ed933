/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Guards: memory around outputs that no launch may write.  Under --poison a backend keeps a band
 * before and behind every copy of a buffer that launches write, and between the rows that belong to
 * the step and the end of the array.  It fills them, and compares them after each launch that
 * writes the buffer and after the last one of a step.
 *
 *     st_guards_make(model, buffers, plan, &guards);
 *     for each region of a copy: st_guard_fill(region, base)
 *     ... a launch ...
 *     for each region of the buffers that it writes: if (st_guard_check(region, base, &damage)) ...
 *
 * Invariants
 *  1. Which rows belong to a step follows from its shape and its prefill chunks, never from what a
 *     policy binds: a guard is found changed by comparing.
 *  2. A guard that was found changed is filled again: each launch answers for its own.
 *  3. In FULL the regions of buffers that the graph writes follow from the capture size alone.
 */
#ifndef ST_REPLAY_GUARD_H
#define ST_REPLAY_GUARD_H

#include <stdbool.h>
#include <stdint.h>

#include "replay/buffers.h"
#include "replay/plan.h"

enum {
    ST_GUARD_BYTE = 0xA5,          /* as an index negative: what reads a guard reads nothing */
    ST_GUARD_ALIGNMENT = 256,      /* of a copy and of its bands */
    ST_GUARD_BUFFER_REGIONS = 5,   /* of one buffer, at most */
    ST_GUARD_MOST_BYTES = 1 << 20, /* of one region: further rows are not looked at */
    ST_GUARD_OUTPUTS = 4,          /* buffers that an operator writes, at most */
    ST_GUARD_DAMAGES = 256         /* kept of one step and policy */
};

/* Bytes [begin, end) of each copy of a buffer, counted from its first row; multiples of 4. */
struct st_guard_region {
    enum st_buffer_id buffer;
    int64_t begin, end;
};

struct st_guards {
    struct st_guard_region region[ST_BUF_COUNT * ST_GUARD_BUFFER_REGIONS];
    int32_t first[ST_BUF_COUNT + 1]; /* of buffer id: [first[id], first[id + 1]) */
};

/* What one launch left in one region. */
struct st_guard_damage {
    uint8_t op;          /* enum st_operator; foreign: that whose output the buffer is */
    uint8_t buffer;      /* enum st_buffer_id */
    int16_t layer;       /* -1: metadata; foreign: unknown */
    int32_t foreign;     /* found after the last launch: one of another operator */
    int32_t cut;         /* it went on to the region's far end, and may go on behind it */
    int64_t first, last; /* words that changed, as bytes counted like a region's; both inclusive */
    int64_t words;       /* of 4 bytes, how many changed */
};

/* Bytes before and behind each copy; 0: no launch writes the buffer. */
int64_t st_guard_band(const struct st_model *model, const struct st_buffers *buffers,
                      enum st_buffer_id id);
/* How many copies have guards of their own: of a cache each layer buffer's. */
int32_t st_guard_copies(const struct st_buffers *buffers, enum st_buffer_id id);
/* All regions of a step, whichever policy's plan it is. */
void st_guards_make(const struct st_model *model, const struct st_buffers *buffers,
                    const struct st_plan *plan, struct st_guards *guards);
/* Buffers that a launch writes; returns how many. */
int32_t st_guard_outputs(const struct st_launch *launch, enum st_buffer_id out[ST_GUARD_OUTPUTS]);
/* An operator whose output the buffer is. */
enum st_operator st_guard_owner(enum st_buffer_id id);

/* base: the copy's first row, in host memory. */
void st_guard_fill(const struct st_guard_region *region, void *base);
/* True when a word changed: first, last, words and buffer are set, and the region is as it was. */
bool st_guard_check(const struct st_guard_region *region, void *base,
                    struct st_guard_damage *damage);

/* Row and column of the first word that changed, counted in the buffer's own rows from the view's
 * first one (below 0: before it), and in words what happened. */
void st_guard_describe(const struct st_model *model, const struct st_buffers *buffers,
                       const struct st_guard_damage *damage, int64_t *row, int64_t *column,
                       char *what, size_t size);

#endif
