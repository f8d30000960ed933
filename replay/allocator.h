/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A model of a block allocator for one KV group: first in, first out, ids 1 .. block_count - 1.
 * Deterministic: the same requests in the same order get the same ids.
 */
#ifndef ST_REPLAY_ALLOCATOR_H
#define ST_REPLAY_ALLOCATOR_H

#include <stdint.h>

#include "traces/base/error.h"

struct st_block_pool {
    int32_t *free_id; /* ring */
    int64_t capacity, head, count;
};

/* Blocks of one request in one group. */
struct st_block_row {
    int32_t *block_id;
    int32_t count, capacity;
    int32_t released; /* blocks below this one fell out of the window */
};

int st_block_pool_init(struct st_block_pool *pool, int64_t block_count, struct st_error *err);
void st_block_pool_fini(struct st_block_pool *pool);
/* Makes the row `wanted` blocks long. */
int st_block_row_extend(struct st_block_row *row, struct st_block_pool *pool, int32_t wanted,
                        struct st_error *err);
/* Gives back blocks [released, below). */
void st_block_row_release(struct st_block_row *row, struct st_block_pool *pool, int32_t below);
/* Gives back everything. */
void st_block_row_fini(struct st_block_row *row, struct st_block_pool *pool);

#endif
