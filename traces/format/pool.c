/* SPDX-License-Identifier: Apache-2.0 */
#include "traces/format/pool.h"

#include <stdlib.h>
#include <string.h>

/* How far one call of st_pool_skip() looks for the places of its blocks.  Both sides stop alike, so
 * it only costs accuracy; without it a hostile tape of a few bytes would keep us busy for hours. */
#define SKIP_WALK_LIMIT 16384

static void insert_after(struct st_pool *pool, int32_t at, int32_t id) {
    int32_t after = pool->next[at];
    pool->previous[id] = at;
    pool->next[id] = after;
    pool->previous[after] = id;
    pool->next[at] = id;
    pool->free_count++;
}

static void unlink_block(struct st_pool *pool, int32_t id) {
    pool->next[pool->previous[id]] = pool->next[id];
    pool->previous[pool->next[id]] = pool->previous[id];
    pool->free_count--;
}

/* What was there when there is no memory for more. */
static void *grow(void *array, int32_t size, bool *failed) {
    void *grown = realloc(array, (size_t)size * sizeof(int32_t));
    *failed |= !grown;
    return grown ? grown : array;
}

static void forget(struct st_pool *pool, int32_t from, int32_t to) {
    for (int32_t i = from; i < to; i++) {
        pool->next[i] = pool->previous[i] = 0;
        pool->use_count[i] = i ? -1 : 0;
        pool->freed_at[i] = 0;
    }
}

static int resize(struct st_pool *pool, int32_t size, struct st_error *err) {
    bool failed = false;
    pool->next = grow(pool->next, size, &failed);
    pool->previous = grow(pool->previous, size, &failed);
    pool->use_count = grow(pool->use_count, size, &failed);
    pool->freed_at = grow(pool->freed_at, size, &failed);
    if (failed)
        return ST_FAIL_NOMEM(err);
    forget(pool, pool->size, size);
    pool->size = size;
    return ST_OK;
}

/* Room for an id in a pool whose size nobody told. */
static int reserve(struct st_pool *pool, int32_t id, struct st_error *err) {
    if (id < pool->size || id >= pool->limit)
        return ST_OK;
    int32_t size = pool->size < 1024 ? 1024 : pool->size;
    while (size <= id)
        size *= 2;
    return resize(pool, size < pool->limit ? size : pool->limit, err);
}

int st_pool_init(struct st_pool *pool, int64_t num_blocks, bool free_to_tail,
                 struct st_error *err) {
    memset(pool, 0, sizeof *pool);
    pool->free_to_tail = free_to_tail;
    bool known = num_blocks >= 1 && num_blocks <= ST_POOL_LIMIT;
    pool->limit = known ? (int32_t)num_blocks : ST_POOL_UNKNOWN;
    ST_TRY(resize(pool, known ? (int32_t)num_blocks : 1, err));
    for (int32_t id = 1; id < pool->size; id++) {
        pool->use_count[id] = 0;
        insert_after(pool, pool->previous[0], id);
    }
    return ST_OK;
}

void st_pool_fini(struct st_pool *pool) {
    free(pool->next);
    free(pool->previous);
    free(pool->use_count);
    free(pool->freed_at);
    memset(pool, 0, sizeof *pool);
}

void st_pool_reset(struct st_pool *pool) {
    pool->free_count = pool->skip_hint = 0;
    pool->clock = 0;
    forget(pool, 0, pool->size);
}

void st_pool_keep_queue(struct st_pool *pool) {
    pool->skip_hint = 0;
    pool->clock = 0;
    memset(pool->freed_at, 0, (size_t)pool->size * sizeof *pool->freed_at);
    for (int32_t i = 1; i < pool->size; i++)
        pool->use_count[i] = pool->use_count[i] == 0 ? 0 : -1;
}

int st_pool_append(struct st_pool *pool, int32_t id, struct st_error *err) {
    ST_TRY(reserve(pool, id, err));
    if (!st_pool_models(pool, id) || pool->use_count[id] >= 0)
        return ST_FAIL(err, ST_ERR_CORRUPT, "block %d cannot join the free queue", id);
    pool->use_count[id] = 0;
    insert_after(pool, pool->previous[0], id);
    return ST_OK;
}

int st_pool_take_id(struct st_pool *pool, int32_t id, struct st_error *err) {
    ST_TRY(reserve(pool, id, err));
    if (!st_pool_models(pool, id))
        return ST_OK;
    if (pool->use_count[id] == 0)
        unlink_block(pool, id);
    pool->use_count[id] = pool->use_count[id] < 0 ? 1 : pool->use_count[id] + 1;
    return ST_OK;
}

void st_pool_give_back(struct st_pool *pool, const int32_t *ids, int32_t count) {
    int32_t at = pool->free_to_tail ? pool->previous[0] : 0;
    int32_t after = pool->next[at];
    uint32_t clock = pool->clock;
    for (int32_t i = count - 1; i >= 0; i--) {
        int32_t id = ids[i];
        if (!st_pool_models(pool, id) || pool->use_count[id] <= 0 || --pool->use_count[id] > 0)
            continue;
        pool->freed_at[id] = ++clock;
        pool->previous[id] = at;
        pool->next[at] = id;
        at = id;
    }
    pool->next[at] = after;
    pool->previous[after] = at;
    pool->free_count += (int32_t)(clock - pool->clock);
    pool->clock = clock;
}

/* Blocks at the tail stand in the order in which they were given back.  The search starts where the
 * last one went, as skipped blocks come in runs. */
static int32_t place_in_tail(const struct st_pool *pool, uint32_t freed_at, int *steps_left) {
    int32_t at = pool->skip_hint;
    if (!at || pool->use_count[at] != 0 || pool->freed_at[at] != pool->skip_hint_freed_at)
        at = pool->previous[0];
    while (at && pool->freed_at[at] > freed_at && --*steps_left > 0)
        at = pool->previous[at];
    while (at && pool->next[at] && pool->freed_at[pool->next[at]] <= freed_at && --*steps_left > 0)
        at = pool->next[at];
    return at ? at : pool->previous[0];
}

void st_pool_skip(struct st_pool *pool, int32_t count) {
    int steps_left = SKIP_WALK_LIMIT;
    for (; count > 0 && pool->free_count > 1; count--) {
        int32_t id = st_pool_head(pool);
        unlink_block(pool, id);
        if (pool->skip_hint == id)
            pool->skip_hint = 0;
        insert_after(pool, place_in_tail(pool, pool->freed_at[id], &steps_left), id);
        pool->skip_hint = id;
        pool->skip_hint_freed_at = pool->freed_at[id];
    }
}

int32_t st_pool_distance(const struct st_pool *pool, int32_t id, int32_t limit) {
    int32_t distance = 0;
    for (int32_t at = st_pool_head(pool); at && distance <= limit; at = pool->next[at]) {
        if (at == id)
            return distance;
        distance++;
    }
    return -1;
}
