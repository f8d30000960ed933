/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Keyframes: the queue of free blocks and the live part of every block table.
 *
 * Entries that a window has left behind are not in a keyframe: taking and giving back does not need
 * them, and rows of a long context hold hundreds of thousands.  Who needs whole tables starts at
 * the keyframe before the request's birth.
 */
#include "traces/format/blocks.h"

#include <stdlib.h>

enum { KEY_QUEUE, KEY_COUNTS, KEY_IDS, KEY_COLUMNS };

#define CORRUPT(err, what) ST_FAIL((err), ST_ERR_CORRUPT, "a keyframe is damaged (%s)", (what))

static struct st_request *nth(const struct st_requests *requests, int32_t i) {
    int32_t running = requests->running.count;
    return i < running ? requests->running.item[i] : requests->waiting.item[i - running];
}

static int32_t live_count(const struct st_requests *requests) {
    return requests->running.count + requests->waiting.count;
}

/* How many entries of tables use each block; the pool counts none before. */
static int count_users(struct st_blocks_model *model, const struct st_requests *requests,
                       struct st_error *err) {
    for (int32_t i = 0; i < live_count(requests); i++)
        for (int32_t g = 0; g < model->group_count; g++) {
            const struct st_table *t = &nth(requests, i)->tables[g];
            for (int32_t k = t->freed; k < t->count; k++)
                if (t->id[k - t->base])
                    ST_TRY(st_pool_take_id(&model->pool, t->id[k - t->base], err));
        }
    return ST_OK;
}

static void put_tables(const struct st_blocks_model *model, const struct st_requests *requests,
                       struct st_bytes *column) {
    int64_t last = 0;
    for (int32_t i = 0; i < live_count(requests); i++)
        for (int32_t g = 0; g < model->group_count; g++) {
            const struct st_table *t = &nth(requests, i)->tables[g];
            st_bytes_put_varint(&column[KEY_COUNTS], (uint64_t)t->count);
            st_bytes_put_varint(&column[KEY_COUNTS], (uint64_t)(t->count - t->freed));
            for (int32_t k = t->freed; k < t->count; k++) {
                st_bytes_put_difference(&column[KEY_IDS], t->id[k - t->base], last);
                last = t->id[k - t->base];
            }
        }
}

/* Who comes by goes on as one does who starts here: users are those that the tables tell, and when
 * a block was given back is forgotten. */
int st_blocks_pass_keyframe(struct st_blocks_model *model, const struct st_requests *requests,
                            struct st_error *err) {
    st_pool_keep_queue(&model->pool);
    return count_users(model, requests, err);
}

int st_blocks_put_keyframe(struct st_blocks_model *model, struct st_requests *requests,
                           struct st_bytes *out, struct st_error *err) {
    struct st_bytes column[KEY_COLUMNS] = {{0}};
    const struct st_pool *pool = &model->pool;
    int32_t last = 0;
    st_bytes_put_varint(&column[KEY_QUEUE], (uint64_t)pool->free_count);
    for (int32_t id = st_pool_head(pool); id; id = pool->next[id]) {
        st_bytes_put_zigzag(&column[KEY_QUEUE], (int64_t)id - last);
        last = id;
    }
    put_tables(model, requests, column);
    int rc = st_columns_pack(column, KEY_COLUMNS, out, err);
    for (int c = 0; c < KEY_COLUMNS; c++)
        st_bytes_fini(&column[c]);
    return rc ? rc : st_blocks_pass_keyframe(model, requests, err);
}

static int get_table(struct st_requests *requests, struct st_table *table,
                     struct st_bytes_reader *column, int64_t *last, struct st_error *err) {
    int64_t count = st_bytes_get_within(&column[KEY_COUNTS], 0, INT32_MAX / 4);
    int64_t live = st_bytes_get_within(&column[KEY_COUNTS], 0, count);
    if (live > column[KEY_IDS].end - column[KEY_IDS].at)
        return CORRUPT(err, "a table");
    table->base = table->count = table->freed = (int32_t)(count - live);
    ST_TRY(st_table_reserve(requests, table, (int32_t)live, err));
    for (int64_t k = 0; k < live; k++) {
        *last = st_bytes_get_difference(&column[KEY_IDS], *last);
        if (column[KEY_IDS].bad || *last < 0 || *last > INT32_MAX)
            return CORRUPT(err, "an id");
        table->id[k] = (int32_t)*last;
    }
    table->count = (int32_t)count;
    return ST_OK;
}

int st_blocks_get_keyframe(struct st_blocks_model *model, struct st_requests *requests,
                           const void *data, size_t size, struct st_error *err) {
    struct st_bytes scratch = {0};
    struct st_bytes_reader column[KEY_COLUMNS];
    int32_t *queue = NULL;
    int64_t last = 0, count = 0;
    int rc;
    ST_TRY_OUT(st_columns_unpack(data, size, &scratch, column, KEY_COLUMNS, err));
    count =
        st_bytes_get_within(&column[KEY_QUEUE], 0, column[KEY_QUEUE].end - column[KEY_QUEUE].at);
    queue = malloc(((size_t)count + 1) * sizeof *queue);
    if (!queue) {
        rc = ST_FAIL_NOMEM(err);
        goto out;
    }
    for (int64_t i = 0; i < count; i++) {
        last = st_bytes_get_difference(&column[KEY_QUEUE], last);
        if (column[KEY_QUEUE].bad || last < 1 || last >= ST_POOL_LIMIT) {
            rc = CORRUPT(err, "the queue");
            goto out;
        }
        queue[i] = (int32_t)last;
    }
    last = 0;
    for (int32_t i = 0; i < live_count(requests); i++)
        for (int32_t g = 0; g < model->group_count; g++)
            ST_TRY_OUT(get_table(requests, &nth(requests, i)->tables[g], column, &last, err));
    st_pool_reset(&model->pool);
    rc = count_users(model, requests, err);
    for (int64_t i = 0; i < count && !rc; i++)
        rc = st_pool_append(&model->pool, queue[i], err);
out:
    free(queue);
    st_bytes_fini(&scratch);
    return rc;
}
