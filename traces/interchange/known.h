/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the rules between steps remember of every request of a recording: the live ones in a hash
 * table by request number, and which numbers are used up.
 *
 * Invariants
 *  1. A number is never forgotten, so that it is never taken twice.  Memory grows with the number
 * of live requests and, by a bit each where numbers follow one another, of finished ones.
 *  2. A pointer to an entry is good until the next st_known_add() or st_known_finish().
 */
#ifndef ST_INTERCHANGE_KNOWN_H
#define ST_INTERCHANGE_KNOWN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum st_known_state { ST_KNOWN_RUNNING = 1, ST_KNOWN_PREEMPTED };

struct st_known_request {
    int64_t request_id;
    int64_t scheduled_step; /* the last step that had it in `req`; -1: none yet */
    int32_t next_start;     /* the last start + qlen */
    int8_t state;           /* enum st_known_state; 0: the slot is empty */
    int8_t free_start;      /* new, resumed or replaced: any start is good */
    int8_t had_drafts;      /* speculative tokens stood in its last row: some may be rejected */
};

/* Which of ST_KNOWN_PAGE numbers in a row are finished. */
enum { ST_KNOWN_PAGE = 256 };
struct st_known_page {
    uint64_t at; /* first number / ST_KNOWN_PAGE + 1; 0: the slot is empty */
    uint64_t bit[ST_KNOWN_PAGE / 64];
};

struct st_known {
    struct st_known_request *slot; /* live ones */
    size_t mask;                   /* slot count - 1; slot NULL: no slots yet */
    size_t count;
    struct st_known_page *page;
    size_t page_mask, page_count;
};

/* A live request; NULL when the number is not known or finished. */
struct st_known_request *st_known_find(const struct st_known *known, int64_t request_id);
bool st_known_is_finished(const struct st_known *known, int64_t request_id);
/* Adds a number that is not live yet; NULL when memory is out. */
struct st_known_request *st_known_add(struct st_known *known, int64_t request_id);
/* Uses a number up, whether it was live or not; false when memory is out. */
bool st_known_finish(struct st_known *known, int64_t request_id);
void st_known_fini(struct st_known *known);

#endif
