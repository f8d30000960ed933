/* SPDX-License-Identifier: Apache-2.0 */
#include "traces/format/blocks.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

/* Events of column EVENTS: varint(ids since the last event), varint(size << 2 | kind). */
enum { EVENT_NULLS, EVENT_SKIP, EVENT_IDS };

/* A cached block that stands in front is passed over; farther away, the id is written out. */
#define SKIP_LIMIT 4096

#define CORRUPT(err, what)                                                                         \
    ST_FAIL((err), ST_ERR_CORRUPT, "the block ids of a block of steps are damaged (%s)", (what))

/* One pass over a step, in either direction. */
struct walk {
    struct st_blocks_model *model;
    struct st_requests *requests;
    const struct st_step *step;
    struct st_bytes *out;       /* encoding */
    struct st_bytes_reader *in; /* decoding */
    int32_t next_preempted;
    struct st_error *err;
    int64_t ids; /* taken in this step */
};

static int32_t group_window(const struct st_group *group) {
    int64_t window = 0;
    for (int32_t m = 0; m < group->member_count; m++) {
        if (group->members[m].window < 1 || group->members[m].window > INT32_MAX / 2)
            return 0;
        if (group->members[m].window > window)
            window = group->members[m].window;
    }
    return (int32_t)window;
}

int st_blocks_model_init(struct st_blocks_model *model, const struct st_header *header,
                         unsigned kind, struct st_error *err) {
    memset(model, 0, sizeof *model);
    model->model = kind;
    model->group_count = header->group_count;
    for (int32_t g = 0; g < header->group_count; g++) {
        model->block_size[g] = header->groups[g].block_size;
        model->window[g] = group_window(&header->groups[g]);
    }
    return st_pool_init(&model->pool, header->num_blocks, kind & ST_MODEL_FREE_TO_TAIL, err);
}

void st_blocks_model_fini(struct st_blocks_model *model) {
    st_pool_fini(&model->pool);
    free(model->offsets);
    free(model->ids);
    memset(model, 0, sizeof *model);
}

static int64_t next_gap(struct st_bytes_reader *in) {
    return in->at < in->end ? st_bytes_get_within(in, 0, INT64_MAX) : INT64_MAX;
}

void st_blocks_begin(struct st_blocks_model *model, struct st_bytes_reader *column) {
    model->last_id = 0;
    model->gap = column ? next_gap(&column[ST_BLOCKS_EVENTS]) : 0;
    model->count_gap = column ? next_gap(&column[ST_BLOCKS_COUNTS]) : 0;
}

static void give_back(struct st_blocks_model *model, struct st_table *table, int32_t upto) {
    if (upto <= table->freed)
        return;
    st_pool_give_back(&model->pool, table->id + (table->freed - table->base), upto - table->freed);
    table->freed = upto;
}

static void give_back_all(struct st_blocks_model *model, struct st_request *request) {
    for (int32_t g = 0; g < model->group_count; g++)
        give_back(model, &request->tables[g], request->tables[g].count);
}

static int32_t blocks_needed(const struct st_blocks_model *model, const struct st_table *table,
                             int g, int32_t end) {
    int64_t blocks = ((int64_t)end + model->block_size[g] - 1) / model->block_size[g];
    return blocks > table->count ? (int32_t)(blocks - table->count) : 0;
}

static void free_windows(struct st_blocks_model *model, struct st_request *r, int32_t start) {
    for (int32_t g = 0; g < model->group_count; g++) {
        int32_t window = model->window[g];
        if (!window || start < window)
            continue;
        int32_t upto = (start - window + 1) / model->block_size[g];
        give_back(model, &r->tables[g], upto < r->tables[g].count ? upto : r->tables[g].count);
    }
}

/* From which token count on the request needs attention again. */
static void set_thresholds(const struct st_blocks_model *model, struct st_request *r) {
    int64_t alloc_at = INT32_MAX, free_at = INT32_MAX;
    for (int32_t g = 0; g < model->group_count; g++) {
        int64_t full = (int64_t)r->tables[g].count * model->block_size[g];
        if (full < alloc_at)
            alloc_at = full;
        if (!model->window[g])
            continue;
        int64_t at =
            ((int64_t)r->tables[g].freed + 1) * model->block_size[g] + model->window[g] - 1;
        if (at < free_at)
            free_at = at;
    }
    r->alloc_at = (int32_t)alloc_at;
    r->free_at = (int32_t)free_at;
}

/* ---- taking ids: encoding */

static void put_event(struct walk *w, int kind, int32_t size) {
    st_bytes_put_varint(&w->out[ST_BLOCKS_EVENTS], (uint64_t)w->model->gap);
    st_bytes_put_varint(&w->out[ST_BLOCKS_EVENTS], (uint64_t)size << 2 | (unsigned)kind);
    w->model->gap = 0;
}

static int32_t encode_nulls(struct walk *w, const int32_t *id, int32_t count) {
    int32_t n = 1;
    while (n < count && id[n] == 0)
        n++;
    put_event(w, EVENT_NULLS, n);
    return n;
}

/* A run of ids written out: all that the prefix cache gave, or one that the queue does not explain.
 */
static int encode_ids(struct walk *w, const int32_t *id, int32_t count, int32_t *taken) {
    int32_t n = 0;
    while (n < count && id[n] != 0) {
        ST_TRY(st_pool_take_id(&w->model->pool, id[n], w->err));
        n++;
    }
    put_event(w, EVENT_IDS, n);
    for (int32_t i = 0; i < n; i++) {
        st_bytes_put_zigzag(&w->out[ST_BLOCKS_IDS], (int64_t)id[i] - w->model->last_id - 1);
        w->model->last_id = id[i];
    }
    *taken = n;
    return ST_OK;
}

/* True when the queue's head is id after the cached blocks before it were passed over. */
static bool encode_skip(struct walk *w, int32_t id) {
    struct st_pool *pool = &w->model->pool;
    if (!st_pool_models(pool, id) || pool->use_count[id] != 0)
        return false;
    int32_t distance = st_pool_distance(pool, id, SKIP_LIMIT);
    if (distance < 1)
        return false;
    put_event(w, EVENT_SKIP, distance);
    st_pool_skip(pool, distance);
    return st_pool_head(pool) == id;
}

/* The first `prefix` ids are of tokens that were computed before the request came: the prefix cache
 * gave them, not the queue. */
static int encode_take(struct walk *w, const int32_t *id, int32_t count, int32_t prefix) {
    struct st_pool *pool = &w->model->pool;
    for (int32_t i = 0; i < count;) {
        int32_t taken = 1;
        if (id[i] == 0) {
            taken = encode_nulls(w, id + i, count - i);
        } else if (id[i] == st_pool_head(pool) || (i >= prefix && encode_skip(w, id[i]))) {
            int32_t head;
            st_pool_take(pool, &head, 1);
            w->model->gap++;
        } else {
            ST_TRY(encode_ids(w, id + i, i < prefix ? prefix - i : 1, &taken));
        }
        i += taken;
    }
    return ST_OK;
}

/* ---- taking ids: decoding */

static int decode_event(struct walk *w, int32_t *id, int32_t count, int32_t *taken) {
    struct st_pool *pool = &w->model->pool;
    uint64_t head = st_bytes_get_varint(&w->in[ST_BLOCKS_EVENTS]);
    int kind = (int)(head & 3);
    uint64_t size = head >> 2;
    *taken = 0;
    if (w->in[ST_BLOCKS_EVENTS].bad || size < 1 || size > INT32_MAX ||
        (kind != EVENT_SKIP && size > (uint64_t)count) || kind > EVENT_IDS)
        return CORRUPT(w->err, "events");
    if (kind == EVENT_SKIP) {
        st_pool_skip(pool, (int32_t)size < SKIP_LIMIT ? (int32_t)size : SKIP_LIMIT);
    } else if (kind == EVENT_NULLS) {
        memset(id, 0, size * sizeof *id);
        *taken = (int32_t)size;
    } else {
        for (uint64_t i = 0; i < size; i++) {
            int64_t value = st_bytes_get_difference(&w->in[ST_BLOCKS_IDS], w->model->last_id + 1);
            if (w->in[ST_BLOCKS_IDS].bad || value < 1 || value > INT32_MAX)
                return CORRUPT(w->err, "ids");
            ST_TRY(st_pool_take_id(pool, (int32_t)value, w->err));
            id[i] = (int32_t)value;
            w->model->last_id = value;
        }
        *taken = (int32_t)size;
    }
    w->model->gap = next_gap(&w->in[ST_BLOCKS_EVENTS]);
    return ST_OK;
}

static int decode_take(struct walk *w, int32_t *id, int32_t count) {
    struct st_pool *pool = &w->model->pool;
    for (int32_t i = 0; i < count;) {
        if (w->model->gap == 0) {
            int32_t taken;
            ST_TRY(decode_event(w, id + i, count - i, &taken));
            i += taken;
            continue;
        }
        int32_t run = count - i;
        if (run > w->model->gap)
            run = (int32_t)w->model->gap;
        if (run > pool->free_count)
            return CORRUPT(w->err, "the queue of free blocks runs dry");
        st_pool_take(pool, id + i, run);
        w->model->gap -= run;
        i += run;
    }
    return ST_OK;
}

/* ---- counts that the tokens do not explain */

static void encode_counts(struct walk *w, const int32_t *needed, const struct st_row_blocks *blocks,
                          int32_t row) {
    struct st_bytes *out = &w->out[ST_BLOCKS_COUNTS];
    bool same = true;
    for (int32_t g = 0; g < w->model->group_count; g++)
        same &= needed[g] == blocks[g].offset[row + 1] - blocks[g].offset[row];
    if (same) {
        w->model->count_gap++;
        return;
    }
    st_bytes_put_varint(out, (uint64_t)w->model->count_gap);
    for (int32_t g = 0; g < w->model->group_count; g++)
        st_bytes_put_zigzag(out, (int64_t)(blocks[g].offset[row + 1] - blocks[g].offset[row]) -
                                     needed[g]);
    w->model->count_gap = 0;
}

static int decode_counts(struct walk *w, int32_t *needed) {
    if (w->model->count_gap-- > 0)
        return ST_OK;
    for (int32_t g = 0; g < w->model->group_count; g++) {
        int64_t count = st_bytes_get_difference(&w->in[ST_BLOCKS_COUNTS], needed[g]);
        if (w->in[ST_BLOCKS_COUNTS].bad || count < 0 || count > ST_STEP_IDS_LIMIT)
            return CORRUPT(w->err, "counts");
        needed[g] = (int32_t)count;
    }
    w->model->count_gap = next_gap(&w->in[ST_BLOCKS_COUNTS]);
    return ST_OK;
}

/* ---- the walk */

/* Blocks of preempted requests come back one request at a time, when the queue is too short for
 * what is to be taken: the scheduler preempts for just that reason. */
static void preempt_for(struct walk *w, int64_t needed) {
    const struct st_request_vector *preempted = &w->requests->preempted;
    while (w->next_preempted < preempted->count && w->model->pool.free_count < needed) {
        struct st_request *r = preempted->item[w->next_preempted++];
        if (r->waiting) /* not resumed in this very step */
            give_back_all(w->model, r);
    }
}

static int handle_request(struct walk *w, struct st_request *r, int32_t start, int32_t end) {
    struct st_blocks_model *model = w->model;
    int32_t needed[ST_MAX_GROUPS];
    int64_t total = 0;
    free_windows(model, r, model->model & ST_MODEL_LATE_WINDOW ? r->last_start : start);
    for (int32_t g = 0; g < model->group_count; g++)
        total += needed[g] = blocks_needed(model, &r->tables[g], g, end);
    preempt_for(w, total);
    if (w->out)
        encode_counts(w, needed, w->step->blocks, r->row);
    else
        ST_TRY(decode_counts(w, needed));
    r->touched_step = w->step->step_id;
    for (int32_t g = 0; g < model->group_count; g++) {
        struct st_table *table = &r->tables[g];
        if (w->out)
            needed[g] = w->step->blocks[g].offset[r->row + 1] - w->step->blocks[g].offset[r->row];
        table->added = needed[g];
        if (!needed[g])
            continue;
        w->ids += needed[g];
        if (w->ids > ST_STEP_IDS_LIMIT)
            return ST_FAIL(w->err, ST_ERR_INPUT,
                           "step %" PRId64 ": more than %d block ids in one step", w->step->step_id,
                           ST_STEP_IDS_LIMIT);
        ST_TRY(st_table_reserve(w->requests, table, needed[g], w->err));
        int32_t *id = table->id + (table->count - table->base);
        if (w->out) {
            memcpy(id, w->step->blocks[g].block_id + w->step->blocks[g].offset[r->row],
                   (size_t)needed[g] * sizeof *id);
            int64_t prefix = start / model->block_size[g] - table->count;
            if (prefix > needed[g])
                prefix = needed[g];
            ST_TRY(encode_take(w, id, needed[g], (int32_t)prefix));
        } else {
            ST_TRY(decode_take(w, id, needed[g]));
        }
        table->count += needed[g];
    }
    set_thresholds(model, r);
    return ST_OK;
}

/* Rows whose table is replaced, or that took blocks without needing any, are rare; the encoder
 * looks at all of them, the decoder is told by column COUNTS. */
static bool took_blocks(const struct st_step *step, int32_t groups, int32_t row) {
    for (int32_t g = 0; g < groups; g++)
        if (step->blocks[g].offset[row + 1] != step->blocks[g].offset[row])
            return true;
    return false;
}

static int walk_step(struct walk *w) {
    struct st_requests *requests = w->requests;
    const struct st_step *step = w->step;
    bool late = w->model->model & ST_MODEL_LATE_WINDOW;
    for (int32_t i = 0; i < requests->finished.count; i++)
        give_back_all(w->model, requests->finished.item[i]);
    for (int32_t i = 0; i < step->replaced.count; i++) {
        struct st_request *r = st_requests_find(requests, step->replaced.request_id[i]);
        if (!r)
            return ST_FAIL(w->err, ST_ERR_INPUT,
                           "step %" PRId64 ": the table of unknown request %" PRId64
                           " is to be replaced",
                           step->step_id, step->replaced.request_id[i]);
        give_back_all(w->model, r);
        st_request_replace_table(requests, r, step->step_id);
    }
    for (int32_t i = 0; i < requests->running.count; i++) {
        struct st_request *r = requests->running.item[i];
        if (r->row < 0)
            continue;
        int32_t start = step->num_computed_tokens[r->row];
        int32_t end = start + step->query_len[r->row];
        bool due = end > r->alloc_at || (late ? r->last_start : start) >= r->free_at;
        if (!due && (w->out ? !took_blocks(step, w->model->group_count, r->row)
                            : w->model->count_gap > 0)) {
            w->model->count_gap += w->out ? 1 : -1;
            continue;
        }
        ST_TRY(handle_request(w, r, start, end));
    }
    preempt_for(w, INT64_MAX);
    return ST_OK;
}

int st_blocks_encode(struct st_blocks_model *model, struct st_requests *requests,
                     const struct st_step *step, struct st_bytes *column, struct st_error *err) {
    struct walk w = {model, requests, step, column, NULL, 0, err, 0};
    return walk_step(&w);
}

static int gather_rows(struct st_blocks_model *model, const struct st_requests *requests,
                       struct st_step *step, struct st_error *err) {
    int32_t rows = step->request_count;
    if (rows + 1 > model->offset_capacity) {
        free(model->offsets);
        model->offset_capacity = 0;
        model->offsets =
            malloc((size_t)(2 * rows + 1) * (size_t)model->group_count * sizeof *model->offsets);
        if (!model->offsets)
            return ST_FAIL_NOMEM(err);
        model->offset_capacity = 2 * rows + 1;
    }
    int64_t total = 0;
    for (int32_t g = 0; g < model->group_count; g++) {
        int32_t *offset = model->offsets + (int64_t)g * model->offset_capacity;
        int64_t at = 0;
        offset[0] = 0;
        for (int32_t i = 0; i < rows; i++) {
            const struct st_request *r = requests->batch.item[i];
            at += r->touched_step == step->step_id ? r->tables[g].added : 0;
            offset[i + 1] = (int32_t)at;
        }
        total += at;
    }
    if (total >= model->id_capacity) {
        free(model->ids);
        model->id_capacity = 0;
        model->ids = malloc(((size_t)total * 2 + 1) * sizeof *model->ids);
        if (!model->ids)
            return ST_FAIL_NOMEM(err);
        model->id_capacity = total * 2 + 1;
    }
    int32_t *id = model->ids;
    for (int32_t g = 0; g < model->group_count; g++) {
        int32_t *offset = model->offsets + (int64_t)g * model->offset_capacity;
        model->rows[g] = (struct st_row_blocks){offset, id};
        for (int32_t i = 0; i < rows && offset[rows]; i++) {
            int32_t added = offset[i + 1] - offset[i];
            const struct st_table *table = &requests->batch.item[i]->tables[g];
            if (added)
                memcpy(id + offset[i], table->id + (table->count - added - table->base),
                       (size_t)added * sizeof *id);
        }
        id += offset[rows];
    }
    step->group_count = model->group_count;
    step->blocks = model->rows;
    return ST_OK;
}

int st_blocks_decode(struct st_blocks_model *model, struct st_requests *requests,
                     struct st_step *step, struct st_bytes_reader *column, struct st_error *err) {
    struct walk w = {model, requests, step, NULL, column, 0, err, 0};
    ST_TRY(walk_step(&w));
    return gather_rows(model, requests, step, err);
}
