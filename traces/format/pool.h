/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A model of an engine's block pool: the queue of free blocks that ids are taken from.
 *
 * An engine's allocator is deterministic: which id a request gets follows from which blocks were
 * given back before, and in what order.  The tape therefore stores only where this model is wrong
 * (traces/format/blocks.h).  The model follows the queue of vLLM's BlockPool: blocks are taken
 * from the head; blocks given back go to the head (or, in older versions, to the tail), each call
 * in its own order; blocks that the prefix cache still knows go to the tail instead.
 *
 * Invariants
 *  1. Block 0 is the null block: it is never in the queue and never counted.
 *  2. A block is in the queue if and only if its use count is 0.
 *  3. Ids from `limit` on (num_blocks where it is known, else ST_POOL_UNKNOWN) are not modelled:
 *     they are never in the queue.
 */
#ifndef ST_FORMAT_POOL_H
#define ST_FORMAT_POOL_H

#include <stdbool.h>
#include <stdint.h>

#include "traces/base/error.h"

#define ST_POOL_LIMIT (1 << 24)   /* the largest pool that is modelled */
#define ST_POOL_UNKNOWN (1 << 20) /* how far a pool grows whose size nobody told */

/* Arrays rather than an array of structs: taking follows `next` alone, and one array of a usual
 * pool fits the L2 cache. */
struct st_pool {
    int32_t *next, *previous; /* the queue; entry 0 is the sentinel of the ring */
    int32_t *use_count;       /* -1: an id that was never seen and is in no queue */
    uint32_t *freed_at;       /* the pool's clock when a block was given back */
    int32_t size;             /* ids below this are modelled */
    int32_t limit;            /* what size may grow to */
    int32_t free_count;
    uint32_t clock;
    bool free_to_tail;
    int32_t skip_hint; /* where the last skipped block went; 0: nowhere */
    uint32_t skip_hint_freed_at;
};

/* A queue of 1 .. num_blocks-1 in order (num_blocks < 1: unknown, an empty queue). */
int st_pool_init(struct st_pool *pool, int64_t num_blocks, bool free_to_tail, struct st_error *err);
void st_pool_fini(struct st_pool *pool);

/* The block that would be taken next; 0 when the queue is empty. */
static inline int32_t st_pool_head(const struct st_pool *pool) {
    return pool->next[0];
}

static inline bool st_pool_models(const struct st_pool *pool, int32_t id) {
    return id > 0 && id < pool->size;
}

/* Takes the first count blocks, which must be there. */
static inline void st_pool_take(struct st_pool *pool, int32_t *id, int32_t count) {
    int32_t at = pool->next[0];
    for (int32_t i = 0; i < count; i++) {
        id[i] = at;
        pool->use_count[at] = 1;
        at = pool->next[at];
    }
    pool->next[0] = at;
    pool->previous[at] = 0;
    pool->free_count -= count;
}

/* Takes a block wherever it is: out of the queue, or one more user of a block in use. */
int st_pool_take_id(struct st_pool *pool, int32_t id, struct st_error *err);

/* Gives back ids[count-1] .. ids[0], in that order, as one call of the engine does. */
void st_pool_give_back(struct st_pool *pool, const int32_t *ids, int32_t count);

/* The first `count` blocks turn out to be cached ones: they move to where the tail has blocks that
 * were given back at the same time. */
void st_pool_skip(struct st_pool *pool, int32_t count);

/* Places before id in the queue, or -1 when that is more than limit. */
int32_t st_pool_distance(const struct st_pool *pool, int32_t id, int32_t limit);

/* Empties the queue and forgets every block; then the queue is refilled by st_pool_append(). */
void st_pool_reset(struct st_pool *pool);
/* Forgets all but the queue and its order: users, and when a block was given back. */
void st_pool_keep_queue(struct st_pool *pool);
int st_pool_append(struct st_pool *pool, int32_t id, struct st_error *err);

#endif
