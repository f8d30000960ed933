/* SPDX-License-Identifier: Apache-2.0 */
#include "replay/allocator.h"

#include <stdlib.h>

int st_block_pool_init(struct st_block_pool *pool, int64_t block_count, struct st_error *err) {
    pool->capacity = block_count - 1;
    pool->head = 0;
    pool->count = pool->capacity;
    pool->free_id = malloc((size_t)(pool->capacity > 0 ? pool->capacity : 1) * sizeof(int32_t));
    if (!pool->free_id)
        return ST_FAIL_NOMEM(err);
    for (int64_t i = 0; i < pool->capacity; i++)
        pool->free_id[i] = (int32_t)(i + 1); /* block 0 is the null block */
    return 0;
}

void st_block_pool_fini(struct st_block_pool *pool) {
    free(pool->free_id);
    pool->free_id = NULL;
}

static void give_back(struct st_block_pool *pool, int32_t block_id) {
    pool->free_id[(pool->head + pool->count) % pool->capacity] = block_id;
    pool->count++;
}

int st_block_row_extend(struct st_block_row *row, struct st_block_pool *pool, int32_t wanted,
                        struct st_error *err) {
    if (wanted > row->capacity) {
        int32_t capacity = wanted + wanted / 2 + 8;
        int32_t *grown = realloc(row->block_id, (size_t)capacity * sizeof *grown);
        if (!grown)
            return ST_FAIL_NOMEM(err);
        row->block_id = grown;
        row->capacity = capacity;
    }
    while (row->count < wanted) {
        if (pool->count == 0)
            return ST_FAIL(
                err, ST_ERR_INPUT,
                "the allocator model ran out of its %lld blocks; give it more with --set "
                "num_blocks=N",
                (long long)pool->capacity + 1);
        row->block_id[row->count++] = pool->free_id[pool->head];
        pool->head = (pool->head + 1) % pool->capacity;
        pool->count--;
    }
    return 0;
}

void st_block_row_release(struct st_block_row *row, struct st_block_pool *pool, int32_t below) {
    for (; row->released < below && row->released < row->count; row->released++)
        give_back(pool, row->block_id[row->released]);
}

void st_block_row_fini(struct st_block_row *row, struct st_block_pool *pool) {
    st_block_row_release(row, pool, row->count);
    free(row->block_id);
    row->block_id = NULL;
    row->count = row->capacity = row->released = 0;
}
