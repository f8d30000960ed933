/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the importer remembers of every request of a recording: a hash table by request number.
 *
 * Invariants
 *  1. A finished request stays in the table, so that its number is never taken twice; memory grows
 *     with the number of requests, not of steps.
 *  2. A pointer to an entry is good until the next st_known_add().
 */
#ifndef ST_INTERCHANGE_KNOWN_H
#define ST_INTERCHANGE_KNOWN_H

#include <stddef.h>
#include <stdint.h>

enum st_known_state { ST_KNOWN_RUNNING = 1, ST_KNOWN_PREEMPTED, ST_KNOWN_FINISHED };

struct st_known_request {
    int64_t request_id;
    int64_t scheduled_step; /* the last step that had it in `req`; -1: none yet */
    int32_t next_start;     /* the last start + qlen */
    int8_t state;           /* enum st_known_state; 0: the slot is empty */
    int8_t free_start;      /* new or resumed: any start is good */
    int8_t had_drafts;      /* speculative tokens stood in its last row: some may be rejected */
};

struct st_known {
    struct st_known_request *slot;
    size_t mask; /* slot count - 1; slot NULL: no slots yet */
    size_t count;
};

/* NULL when the number is not known. */
struct st_known_request *st_known_find(const struct st_known *known, int64_t request_id);
/* Adds a number that is not known yet; NULL when memory is out. */
struct st_known_request *st_known_add(struct st_known *known, int64_t request_id);
void st_known_fini(struct st_known *known);

#endif
