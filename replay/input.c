/* SPDX-License-Identifier: Apache-2.0 */
#include "replay/input.h"

#include <stdlib.h>
#include <string.h>

#include "replay/blocks.h"
#include "replay/generator.h"

enum { CACHE_STATE_C128, CACHE_KV_C128, CACHE_KV_C4, CACHE_COUNT };
enum { BUCKETS = 4096 };

/* A request that is known to this walk. */
struct live {
    struct live *next;
    int64_t request_id;
    int64_t state_until; /* positions [128-window, state_until) are in the state cache */
    struct st_block_row row[CACHE_COUNT];
};

struct table {
    const struct st_model_cache *cache; /* NULL: the model has none */
    bool allocated;
    struct st_block_pool pool;
    int32_t stride;
    int32_t *block_id;     /* [max_requests][stride] */
    int32_t *first_column; /* [max_requests] */
};

struct st_input {
    const struct st_model *model;
    struct st_input_limits limits;
    struct live *bucket[BUCKETS];
    struct table table[CACHE_COUNT];
    int32_t *query_start_loc, *seq_len, *token_to_request;
    int64_t *position, *state_slot, *kv_slot_c128, *kv_slot_c4;
    int64_t *rebuild_request_id, *rebuild_position, *rebuild_slot;
};

/* ---- life and death */

static const struct st_model_cache *cache_of(const struct st_model *model, int which) {
    switch (which) {
    case CACHE_STATE_C128:
        return model->has_c128 ? &model->state_c128 : NULL;
    case CACHE_KV_C128:
        return model->has_c128 ? &model->kv_c128 : NULL;
    default:
        return model->has_c4 ? &model->kv_c4 : NULL;
    }
}

static int create_table(struct st_input *input, int which, struct st_error *err) {
    struct table *table = &input->table[which];
    table->cache = cache_of(input->model, which);
    if (!table->cache)
        return 0;
    int64_t stride = input->limits.max_seq_len / table->cache->block_size + 1;
    table->stride = (int32_t)stride;
    table->allocated = table->cache->group < 0;
    table->block_id = calloc((size_t)input->limits.max_requests * (size_t)stride, sizeof(int32_t));
    table->first_column = calloc((size_t)input->limits.max_requests, sizeof(int32_t));
    if (!table->block_id || !table->first_column)
        return ST_FAIL_NOMEM(err);
    if (table->allocated)
        return st_block_pool_init(&table->pool, input->model->num_blocks, err);
    return 0;
}

static void *array(int64_t count, size_t size) {
    return calloc((size_t)(count > 0 ? count : 1), size);
}

int st_input_create(const struct st_model *model, const struct st_input_limits *limits,
                    struct st_input **out, struct st_error *err) {
    struct st_input *input = calloc(1, sizeof *input);
    if (!input)
        return ST_FAIL_NOMEM(err);
    input->model = model;
    input->limits = *limits;
    if (input->limits.max_requests < 1)
        input->limits.max_requests = 1;
    int64_t tokens = limits->max_tokens, requests = input->limits.max_requests;
    int rc = 0;
    for (int i = 0; i < CACHE_COUNT; i++)
        ST_TRY_OUT(create_table(input, i, err));
    input->query_start_loc = array(requests + 1, sizeof(int32_t));
    input->seq_len = array(requests, sizeof(int32_t));
    input->token_to_request = array(tokens, sizeof(int32_t));
    input->position = array(tokens, sizeof(int64_t));
    input->state_slot = array(tokens, sizeof(int64_t));
    input->kv_slot_c128 = array(tokens, sizeof(int64_t));
    input->kv_slot_c4 = array(tokens, sizeof(int64_t));
    input->rebuild_request_id = array(requests * 128, sizeof(int64_t));
    input->rebuild_position = array(requests * 128, sizeof(int64_t));
    input->rebuild_slot = array(requests * 128, sizeof(int64_t));
    if (!input->query_start_loc || !input->seq_len || !input->token_to_request ||
        !input->position || !input->state_slot || !input->kv_slot_c128 || !input->kv_slot_c4 ||
        !input->rebuild_request_id || !input->rebuild_position || !input->rebuild_slot)
        rc = ST_FAIL_NOMEM(err);
out:
    if (rc != 0)
        st_input_destroy(input);
    else
        *out = input;
    return rc;
}

static void free_live(struct st_input *input, struct live *live) {
    for (int i = 0; i < CACHE_COUNT; i++)
        if (input->table[i].allocated)
            st_block_row_fini(&live->row[i], &input->table[i].pool);
    free(live);
}

void st_input_destroy(struct st_input *input) {
    if (!input)
        return;
    for (int b = 0; b < BUCKETS; b++) {
        for (struct live *live = input->bucket[b], *next; live; live = next) {
            next = live->next;
            free_live(input, live);
        }
    }
    for (int i = 0; i < CACHE_COUNT; i++) {
        st_block_pool_fini(&input->table[i].pool);
        free(input->table[i].block_id);
        free(input->table[i].first_column);
    }
    free(input->query_start_loc);
    free(input->seq_len);
    free(input->token_to_request);
    free(input->position);
    free(input->state_slot);
    free(input->kv_slot_c128);
    free(input->kv_slot_c4);
    free(input->rebuild_request_id);
    free(input->rebuild_position);
    free(input->rebuild_slot);
    free(input);
}

/* ---- requests */

static struct live **find_place(struct st_input *input, int64_t request_id) {
    struct live **place =
        &input->bucket[st_gen_mix((uint64_t)request_id + ST_GEN_GOLDEN) % BUCKETS];
    while (*place && (*place)->request_id != request_id)
        place = &(*place)->next;
    return place;
}

static int get_live(struct st_input *input, int64_t request_id, struct live **out,
                    struct st_error *err) {
    struct live **place = find_place(input, request_id);
    if (!*place) {
        *place = calloc(1, sizeof **place);
        if (!*place)
            return ST_FAIL_NOMEM(err);
        (*place)->request_id = request_id;
    }
    *out = *place;
    return 0;
}

static void forget_list(struct st_input *input, const struct st_request_list *list) {
    for (int32_t i = 0; i < list->count; i++) {
        struct live **place = find_place(input, list->request_id[i]);
        struct live *live = *place;
        if (!live)
            continue;
        *place = live->next;
        free_live(input, live);
    }
}

static int allocate_row(struct st_input *input, const struct st_step *step, int32_t row,
                        struct st_error *err) {
    struct live *live = NULL;
    ST_TRY(get_live(input, step->request_id[row], &live, err));
    int64_t start = step->num_computed_tokens[row], end = start + step->query_len[row];
    for (int i = 0; i < CACHE_COUNT; i++) {
        struct table *table = &input->table[i];
        if (!table->allocated)
            continue;
        int32_t size = table->cache->block_size;
        if (table->cache->window > 0 && start > table->cache->window)
            st_block_row_release(&live->row[i], &table->pool,
                                 (int32_t)((start - table->cache->window) / size));
        ST_TRY(st_block_row_extend(&live->row[i], &table->pool, (int32_t)((end + size - 1) / size),
                                   err));
    }
    return 0;
}

int st_input_observe(struct st_input *input, const struct st_step *step, struct st_error *err) {
    forget_list(input, &step->finished);
    forget_list(input, &step->preempted);
    forget_list(input, &step->resumed);
    forget_list(input, &step->replaced);
    if (input->model->allocated_group_count == 0)
        return 0;
    for (int32_t row = 0; row < step->request_count; row++)
        ST_TRY(allocate_row(input, step, row, err));
    return 0;
}

/* ---- one step */

static void fill_batch(struct st_input *input, const struct st_step *step,
                       const struct st_step_shape *shape) {
    int32_t token = 0;
    for (int32_t row = 0; row < step->request_count; row++) {
        input->query_start_loc[row] = token;
        input->seq_len[row] = step->num_computed_tokens[row] + step->query_len[row];
        for (int32_t i = 0; i < step->query_len[row]; i++, token++) {
            input->position[token] = (int64_t)step->num_computed_tokens[row] + i;
            input->token_to_request[token] = row;
        }
    }
    for (int32_t row = step->request_count; row < shape->padded_request_count; row++) {
        input->query_start_loc[row] = token;
        input->seq_len[row] = 0;
    }
    input->query_start_loc[shape->padded_request_count] = token;
    for (; token < shape->padded_token_count; token++) {
        input->position[token] = 0;
        input->token_to_request[token] = 0;
        input->state_slot[token] = -1;
    }
}

/* Ids of one row from the first column that a launch of this step can read: the group of 128 in
 * which the step starts. */
static int fill_row(struct st_input *input, struct table *table, struct st_cursor *cursor,
                    const struct st_step *step, int32_t row, struct st_error *err) {
    const int32_t *source = NULL;
    int32_t count = 0, size = table->cache->block_size;
    if (table->allocated) {
        struct live *live = NULL;
        ST_TRY(get_live(input, step->request_id[row], &live, err));
        source = live->row[table - input->table].block_id;
        count = live->row[table - input->table].count;
    } else {
        ST_TRY(st_cursor_block_table(cursor, table->cache->group, row, &source, &count, err));
    }
    int64_t start = step->num_computed_tokens[row], end = start + step->query_len[row];
    int32_t first = (int32_t)((start & ~(int64_t)127) / size);
    int32_t last = (int32_t)((end + size - 1) / size);
    int32_t *ids = table->block_id + (int64_t)row * table->stride;
    for (int32_t column = first; column < last; column++) {
        int32_t id = column < count ? source[column] : 0;
        if (id < 0 || id >= input->model->num_blocks)
            return ST_FAIL(err, ST_ERR_INPUT, "step %lld: block %d is not below num_blocks = %lld",
                           (long long)step->step_id, id, (long long)input->model->num_blocks);
        ids[column] = id;
    }
    table->first_column[row] = first;
    return 0;
}

static int fill_tables(struct st_input *input, struct st_cursor *cursor, const struct st_step *step,
                       struct st_error *err) {
    for (int i = 0; i < CACHE_COUNT; i++) {
        struct table *table = &input->table[i];
        for (int32_t row = 0; table->cache && row < step->request_count; row++)
            ST_TRY(fill_row(input, table, cursor, step, row, err));
    }
    return 0;
}

/* Block 0 is the null block: nothing is stored there. */
static int64_t slot_of(const struct table *table, int32_t row, int64_t entry, int32_t size) {
    int32_t id = table->block_id[(int64_t)row * table->stride + entry / size];
    return id > 0 ? (int64_t)id * size + entry % size : -1;
}

static void fill_slots(struct st_input *input, const struct st_step *step) {
    const struct table *state = &input->table[CACHE_STATE_C128];
    const struct table *kv_c128 = &input->table[CACHE_KV_C128];
    const struct table *kv_c4 = &input->table[CACHE_KV_C4];
    for (int64_t t = 0; t < step->token_count; t++) {
        int64_t position = input->position[t];
        int32_t row = input->token_to_request[t];
        if (state->cache)
            input->state_slot[t] = slot_of(state, row, position, state->cache->block_size);
        if (kv_c128->cache) {
            /* The operator clamps ids to 0 and up; id 0 gives slots of page 0. */
            int32_t n = kv_c128->cache->entries;
            int64_t entry = position / 128;
            int32_t id = kv_c128->block_id[(int64_t)row * kv_c128->stride + entry / n];
            input->kv_slot_c128[t] =
                position % 128 == 127 ? (int64_t)id * n + entry % n : (int64_t)-1;
        }
        if (kv_c4->cache) {
            int32_t n = kv_c4->cache->entries;
            int64_t entry = position / 4;
            int32_t id = kv_c4->block_id[(int64_t)row * kv_c4->stride + entry / n];
            input->kv_slot_c4[t] = position % 4 == 3 ? (int64_t)id * n + entry % n : (int64_t)-1;
        }
    }
}

static int fill_rebuild(struct st_input *input, const struct st_step *step,
                        struct st_step_input *out, struct st_error *err) {
    const struct table *state = &input->table[CACHE_STATE_C128];
    out->rebuild_count = 0;
    for (int32_t row = 0; state->cache && row < step->request_count; row++) {
        struct live *live = NULL;
        ST_TRY(get_live(input, step->request_id[row], &live, err));
        int64_t start = step->num_computed_tokens[row];
        if (live->state_until < start) {
            for (int64_t p = start & ~(int64_t)127; p < start; p++) {
                int64_t slot = slot_of(state, row, p, state->cache->block_size);
                if (slot < 0)
                    continue;
                input->rebuild_request_id[out->rebuild_count] = step->request_id[row];
                input->rebuild_position[out->rebuild_count] = p;
                input->rebuild_slot[out->rebuild_count++] = slot;
            }
        }
        live->state_until = start + step->query_len[row];
    }
    return 0;
}

static void forget_state(struct st_input *input) {
    for (int b = 0; b < BUCKETS; b++)
        for (struct live *live = input->bucket[b]; live; live = live->next)
            live->state_until = 0;
}

static struct st_block_table borrow(const struct table *table, int32_t rows) {
    struct st_block_table out = {table->block_id, table->first_column, rows, table->stride};
    return out;
}

int st_input_build(struct st_input *input, struct st_cursor *cursor, const struct st_step *step,
                   const struct st_step_shape *shape, bool forget, struct st_step_input *out,
                   struct st_error *err) {
    if (forget)
        forget_state(input);
    memset(out, 0, sizeof *out);
    fill_batch(input, step, shape);
    ST_TRY(fill_tables(input, cursor, step, err));
    fill_slots(input, step);
    ST_TRY(fill_rebuild(input, step, out, err));
    out->step_id = step->step_id;
    out->shape = *shape;
    out->request_id = step->request_id;
    out->query_start_loc = input->query_start_loc;
    out->seq_len = input->seq_len;
    out->position = input->position;
    out->token_to_request = input->token_to_request;
    out->state_slot = input->table[CACHE_STATE_C128].cache ? input->state_slot : NULL;
    out->state_c128 = borrow(&input->table[CACHE_STATE_C128], shape->padded_request_count);
    out->kv_c128 = borrow(&input->table[CACHE_KV_C128], shape->padded_request_count);
    out->kv_c4 = borrow(&input->table[CACHE_KV_C4], shape->padded_request_count);
    out->forget = forget;
    out->rebuild_request_id = input->rebuild_request_id;
    out->rebuild_position = input->rebuild_position;
    out->rebuild_slot = input->rebuild_slot;
    return 0;
}

const int64_t *st_input_kv_slots(const struct st_input *input, int32_t ratio) {
    if (ratio == 128)
        return input->table[CACHE_KV_C128].cache ? input->kv_slot_c128 : NULL;
    return input->table[CACHE_KV_C4].cache ? input->kv_slot_c4 : NULL;
}
