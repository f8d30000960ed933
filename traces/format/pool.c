/* SPDX-License-Identifier: Apache-2.0 */
#include "traces/format/pool.h"

#include <stdlib.h>
#include <string.h>

/* How far st_pool_skip() looks for a block's place.  Both sides stop alike, so it only costs
 * accuracy. */
#define SKIP_WALK_LIMIT 4096

static void insert_after(struct st_pool *pool, int32_t at, int32_t id) {
    struct st_pool_block *block = pool->block;
    block[id].previous = at;
    block[id].next = block[at].next;
    block[block[at].next].previous = id;
    block[at].next = id;
    pool->free_count++;
}

int st_pool_reserve(struct st_pool *pool, int32_t id, struct st_error *err) {
    if (id < pool->size || id >= ST_POOL_LIMIT)
        return ST_OK;
    int32_t size = pool->size ? pool->size : 1024;
    while (size <= id)
        size = size > ST_POOL_LIMIT / 2 ? ST_POOL_LIMIT : size * 2;
    struct st_pool_block *block = realloc(pool->block, (size_t)size * sizeof *block);
    if (!block)
        return ST_FAIL_NOMEM(err);
    for (int32_t i = pool->size; i < size; i++)
        block[i] = (struct st_pool_block){0, 0, -1, 0};
    pool->block = block;
    pool->size = size;
    return ST_OK;
}

int st_pool_init(struct st_pool *pool, int64_t num_blocks, bool free_to_tail,
                 struct st_error *err) {
    memset(pool, 0, sizeof *pool);
    pool->free_to_tail = free_to_tail;
    int32_t size = num_blocks < 1 || num_blocks > ST_POOL_LIMIT ? 1 : (int32_t)num_blocks;
    pool->block = calloc((size_t)size, sizeof *pool->block);
    if (!pool->block)
        return ST_FAIL_NOMEM(err);
    pool->size = size;
    for (int32_t id = 1; id < size; id++)
        insert_after(pool, pool->block[0].previous, id);
    return ST_OK;
}

void st_pool_fini(struct st_pool *pool) {
    free(pool->block);
    memset(pool, 0, sizeof *pool);
}

void st_pool_reset(struct st_pool *pool) {
    for (int32_t i = 0; i < pool->size; i++)
        pool->block[i] = (struct st_pool_block){0, 0, i ? -1 : 0, 0};
    pool->free_count = 0;
    pool->clock = 0;
}

int st_pool_append(struct st_pool *pool, int32_t id, struct st_error *err) {
    ST_TRY(st_pool_reserve(pool, id, err));
    if (!st_pool_models(pool, id) || pool->block[id].use_count >= 0)
        return ST_FAIL(err, ST_ERR_CORRUPT, "block %d cannot join the free queue", id);
    pool->block[id].use_count = 0;
    insert_after(pool, pool->block[0].previous, id);
    return ST_OK;
}

int st_pool_take_id(struct st_pool *pool, int32_t id, struct st_error *err) {
    ST_TRY(st_pool_reserve(pool, id, err));
    if (!st_pool_models(pool, id))
        return ST_OK;
    struct st_pool_block *b = &pool->block[id];
    if (b->use_count == 0)
        st_pool_unlink(pool, id);
    b->use_count = b->use_count < 0 ? 1 : b->use_count + 1;
    return ST_OK;
}

void st_pool_give_back(struct st_pool *pool, const int32_t *ids, int32_t count) {
    struct st_pool_block *block = pool->block;
    int32_t at = pool->free_to_tail ? block[0].previous : 0;
    for (int32_t i = count - 1; i >= 0; i--) {
        int32_t id = ids[i];
        if (!st_pool_models(pool, id) || block[id].use_count <= 0 || --block[id].use_count > 0)
            continue;
        block[id].freed_at = ++pool->clock;
        insert_after(pool, at, id);
        at = id;
    }
}

void st_pool_skip(struct st_pool *pool, int32_t count) {
    struct st_pool_block *block = pool->block;
    for (; count > 0 && pool->free_count > 0; count--) {
        int32_t id = st_pool_head(pool);
        st_pool_unlink(pool, id);
        int32_t at = block[0].previous;
        for (int walked = 0; at && walked < SKIP_WALK_LIMIT; walked++) {
            if (block[at].freed_at <= block[id].freed_at)
                break;
            at = block[at].previous;
        }
        insert_after(pool, at ? at : block[0].previous, id);
    }
}

int32_t st_pool_distance(const struct st_pool *pool, int32_t id, int32_t limit) {
    int32_t distance = 0;
    for (int32_t at = st_pool_head(pool); at && distance <= limit; at = pool->block[at].next) {
        if (at == id)
            return distance;
        distance++;
    }
    return -1;
}
