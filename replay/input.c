/* SPDX-License-Identifier: Apache-2.0 */
#include "replay/input.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "replay/allocator.h"
#include "replay/generator.h"
#include "replay/plan_i.h"

enum { BUCKETS = 4096 };

/* A request that is known to this walk. */
struct live {
    struct live *next;
    int64_t request_id;
    int64_t state_until; /* positions that a compressor can need, below this, have their state */
    struct st_block_row row[ST_CACHE_COUNT];
};

/* What a row stores in one block: offsets first .. end. */
struct stored {
    int32_t block_id, first, end, row, ordinal;
};

/* Whose state a slot holds; end: position + 1, 0 where nobody wrote. */
struct holder {
    int64_t request_id, end;
};

struct st_input {
    const struct st_model *model;
    struct st_buffers buffers;
    struct live *bucket[BUCKETS];
    struct st_block_pool pool[ST_CACHE_COUNT]; /* of the caches that the tape has no group for */
    struct st_frame host;
    int32_t *first_column[ST_CACHE_COUNT];
    struct st_rebuild *rebuild[ST_CACHE_COUNT];
    struct holder *written[ST_CACHE_COUNT]; /* of the state caches, a slot each */
    bool *mixed[ST_CACHE_COUNT];
    struct stored *stored; /* scratch of st_input_check() */
    size_t stored_capacity;
    struct st_plan chunks; /* nothing but how the indexer's prefill is cut */
};

static bool has(const struct st_input *input, int cache) {
    return st_model_has(input->model, (enum st_cache_id)cache);
}

static bool is_allocated(const struct st_input *input, int cache) {
    return has(input, cache) && input->model->cache[cache].group < 0;
}

static bool is_state(int cache) {
    return cache == ST_CACHE_STATE_C4 || cache == ST_CACHE_STATE_C128 ||
           cache == ST_CACHE_STATE_INDEXER;
}

static bool is_compressed(int cache) {
    return cache == ST_CACHE_KV_C4 || cache == ST_CACHE_KV_C128 || cache == ST_CACHE_KV_INDEXER;
}

/* First position that a compressor looks at for a token at `start`: its own group, and in ratio 4
 * the group before. */
static int64_t first_state(const struct st_model_cache *cache, int64_t start) {
    int64_t group = start - start % cache->ratio;
    if (cache->ratio == 4)
        group -= cache->ratio;
    return group > 0 ? group : 0;
}

static int32_t *table_row(const struct st_input *input, int cache, int32_t row) {
    int32_t *table = input->host.at[st_buffer_of_table((enum st_cache_id)cache)];
    return table + row * input->buffers.table_stride[cache];
}

static int64_t *slots(const struct st_input *input, enum st_buffer_id id, int cache) {
    int64_t *all = input->host.at[id];
    return all + (int64_t)cache * input->buffers.max_tokens;
}

/* ---- life and death */

/* Tables are as wide as the longest context of the model: only what is used becomes memory. */
static int reserve_arrays(struct st_input *input, struct st_error *err) {
    for (int id = 0; id < ST_BUF_COUNT; id++) {
        size_t bytes = (size_t)input->buffers.bytes[id];
        if (st_buffer_scope((enum st_buffer_id)id) != ST_SCOPE_INPUT || bytes == 0)
            continue;
        void *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE,
                            MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (memory == MAP_FAILED)
            return ST_FAIL(err, ST_ERR_NOMEM, "no address space for %zu bytes of %s", bytes,
                           st_buffer_name((enum st_buffer_id)id));
        input->host.at[id] = memory;
    }
    return 0;
}

static int create_cache(struct st_input *input, int cache, struct st_error *err) {
    size_t requests = (size_t)input->buffers.max_requests;
    if (!has(input, cache))
        return 0;
    input->first_column[cache] = calloc(requests, sizeof(int32_t));
    if (!input->first_column[cache])
        return ST_FAIL_NOMEM(err);
    if (is_state(cache)) {
        size_t most = requests * (size_t)(2 * input->model->cache[cache].ratio);
        input->rebuild[cache] = calloc(most, sizeof(struct st_rebuild));
        input->written[cache] =
            calloc((size_t)input->model->num_blocks * (size_t)input->model->cache[cache].block_size,
                   sizeof(struct holder));
        input->mixed[cache] = calloc((size_t)input->buffers.max_tokens, sizeof(bool));
        if (!input->rebuild[cache] || !input->written[cache] || !input->mixed[cache])
            return ST_FAIL_NOMEM(err);
    }
    if (is_allocated(input, cache))
        return st_block_pool_init(&input->pool[cache], input->model->num_blocks, err);
    return 0;
}

int st_input_create(const struct st_model *model, const struct st_buffers *buffers,
                    struct st_input **out, struct st_error *err) {
    struct st_input *input = calloc(1, sizeof *input);
    if (!input)
        return ST_FAIL_NOMEM(err);
    input->model = model;
    input->buffers = *buffers;
    int rc = reserve_arrays(input, err);
    for (int c = 0; rc == 0 && c < ST_CACHE_COUNT; c++)
        rc = create_cache(input, c, err);
    if (rc != 0)
        st_input_destroy(input);
    else
        *out = input;
    return rc;
}

static void free_live(struct st_input *input, struct live *live) {
    for (int c = 0; c < ST_CACHE_COUNT; c++)
        if (is_allocated(input, c))
            st_block_row_fini(&live->row[c], &input->pool[c]);
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
    for (int c = 0; c < ST_CACHE_COUNT; c++) {
        st_block_pool_fini(&input->pool[c]);
        free(input->first_column[c]);
        free(input->rebuild[c]);
        free(input->written[c]);
        free(input->mixed[c]);
    }
    free(input->stored);
    for (int id = 0; id < ST_BUF_COUNT; id++)
        if (input->host.at[id])
            munmap(input->host.at[id], (size_t)input->buffers.bytes[id]);
    st_plan_fini(&input->chunks);
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
    for (int c = 0; c < ST_CACHE_COUNT; c++) {
        const struct st_model_cache *cache = &input->model->cache[c];
        if (!is_allocated(input, c))
            continue;
        int32_t size = cache->block_size;
        if (cache->window > 0 && start > cache->window)
            st_block_row_release(&live->row[c], &input->pool[c],
                                 (int32_t)((start - cache->window) / size));
        struct st_error inner = {0};
        int rc = st_block_row_extend(&live->row[c], &input->pool[c],
                                     (int32_t)((end + size - 1) / size), &inner);
        if (rc != 0)
            return ST_FAIL(err, rc, "step %lld: %s: %s", (long long)step->step_id,
                           st_cache_name((enum st_cache_id)c), inner.msg);
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

/* ---- tokens and requests of one step */

static void set_lengths(const struct st_input *input, int32_t token, int64_t length) {
    static const struct {
        enum st_buffer_id id;
        int32_t ratio;
    } lists[] = {{ST_BUF_LEN_C4, 4}, {ST_BUF_LEN_C128, 128}, {ST_BUF_LEN_DSA, 1}};
    for (int i = 0; i < 3; i++) {
        int32_t *out = input->host.at[lists[i].id];
        if (out)
            out[token] = (int32_t)(length / lists[i].ratio);
    }
}

static void fill_batch(struct st_input *input, const struct st_step *step,
                       const struct st_step_shape *shape) {
    int32_t *start = input->host.at[ST_BUF_QUERY_START_LOC],
            *length = input->host.at[ST_BUF_SEQ_LEN];
    int32_t *owner = input->host.at[ST_BUF_TOKEN_TO_REQ], token = 0;
    int64_t *position = input->host.at[ST_BUF_POSITION], *id = input->host.at[ST_BUF_REQUEST_ID];
    for (int32_t row = 0; row < step->request_count; row++) {
        start[row] = token;
        length[row] = step->num_computed_tokens[row] + step->query_len[row];
        id[row] = step->request_id[row];
        for (int32_t i = 0; i < step->query_len[row]; i++, token++) {
            position[token] = (int64_t)step->num_computed_tokens[row] + i;
            owner[token] = row;
            set_lengths(input, token, position[token] + 1);
        }
    }
    for (int32_t row = step->request_count; row < shape->padded_request_count; row++) {
        start[row] = token;
        length[row] = 0;
        id[row] = 0;
    }
    start[shape->padded_request_count] = token;
    for (; token < shape->padded_token_count; token++) {
        position[token] = 0;
        owner[token] = 0;
        set_lengths(input, token, 0);
    }
}

/* Lengths of a selection's rows when every decode has as many: those of padding are empty. */
static void fill_padded_lengths(struct st_input *input, const struct st_step_shape *shape) {
    int32_t *out = input->host.at[ST_BUF_LEN_PADDED];
    const int32_t *dsa = input->host.at[ST_BUF_LEN_DSA], *c4 = input->host.at[ST_BUF_LEN_C4];
    int64_t rows = input->buffers.bytes[ST_BUF_LEN_PADDED] / 4;
    for (int64_t r = 0; out && r < rows; r++)
        out[r] = r < shape->decode_token_count ? (dsa ? dsa : c4)[r] : 0;
}

/* Columns of the indexer's scores that each token may choose from: a decode has a row of its own,
 * the requests of a chunk stand side by side. */
static int fill_score_rows(struct st_input *input, const struct st_step *step,
                           const struct st_step_shape *shape, struct st_error *err) {
    int32_t *first = input->host.at[ST_BUF_ROW_START], *last = input->host.at[ST_BUF_ROW_END];
    const int32_t *start = input->host.at[ST_BUF_QUERY_START_LOC];
    const int32_t *c4 = input->host.at[ST_BUF_LEN_C4], *dsa = input->host.at[ST_BUF_LEN_DSA];
    const int32_t *length = dsa ? dsa : c4;
    if (!first || !length)
        return 0;
    for (int32_t t = 0; t < shape->padded_token_count; t++) {
        first[t] = 0;
        last[t] = length[t];
    }
    int rc = st_plan_chunks(input->model, step, shape, &input->chunks);
    if (rc != 0)
        return ST_FAIL(err, rc, "step %lld: its prefill cannot be cut in chunks",
                       (long long)step->step_id);
    for (int32_t i = input->chunks.first_index_chunk; i < input->chunks.chunk_count; i++) {
        const struct st_chunk *chunk = &input->chunks.chunk[i];
        int32_t column = 0, end = chunk->first_token + chunk->token_count;
        for (int32_t k = 0; k < chunk->plan.req_count; k++) {
            int32_t row = chunk->plan.first_req + k;
            for (int32_t t = start[row]; t < start[row + 1]; t++) {
                if (t < chunk->first_token || t >= end)
                    continue;
                first[t] = column;
                last[t] = column + length[t];
            }
            int32_t seq_len = step->num_computed_tokens[row] + step->query_len[row];
            column += dsa ? seq_len : seq_len / 4;
        }
    }
    return 0;
}

/* ---- tables and slots of one step */

/* First position whose block a launch of this step may look up. */
static int64_t first_position(const struct st_input *input, int cache, int64_t start) {
    const struct st_model_cache *c = &input->model->cache[cache];
    if (is_state(cache))
        return first_state(c, start);
    if (cache <= ST_CACHE_SWA2)
        return start > c->window - 1 ? start - (c->window - 1) : 0;
    return 0;
}

static int fill_row(struct st_input *input, int c, struct st_cursor *cursor,
                    const struct st_step *step, int32_t row, struct st_error *err) {
    const struct st_model_cache *cache = &input->model->cache[c];
    const int32_t *source = NULL;
    int32_t count = 0, size = cache->block_size;
    if (is_allocated(input, c)) {
        struct live *live = NULL;
        ST_TRY(get_live(input, step->request_id[row], &live, err));
        source = live->row[c].block_id;
        count = live->row[c].count;
    } else {
        ST_TRY(st_cursor_block_table(cursor, cache->group, row, &source, &count, err));
    }
    int64_t start = step->num_computed_tokens[row], end = start + step->query_len[row];
    int32_t first = (int32_t)(first_position(input, c, start) / size);
    int32_t last = (int32_t)((end + size - 1) / size);
    int32_t *ids = table_row(input, c, row);
    for (int32_t column = first; column < last; column++) {
        int32_t id = column < count ? source[column] : 0;
        if (id < 0 || id >= input->model->num_blocks)
            return ST_FAIL(err, ST_ERR_INPUT, "step %lld: block %d is not below num_blocks = %lld",
                           (long long)step->step_id, id, (long long)input->model->num_blocks);
        ids[column] = id;
    }
    input->first_column[c][row] = first;
    return 0;
}

/* Block 0 is the null block: nothing is stored there. */
static int64_t slot_of(const struct st_input *input, int cache, int32_t row, int64_t position) {
    int32_t size = input->model->cache[cache].block_size;
    int32_t id = table_row(input, cache, row)[position / size];
    return id > 0 ? (int64_t)id * size + position % size : -1;
}

/* Where the entry of a group goes, found in the block of the token that closes it.  The operator
 * looks the same up by the group's number; it gives slots of page 0 for the null block. */
static int64_t entry_slot_of(const struct st_input *input, int cache, int32_t row,
                             int64_t position) {
    const struct st_model_cache *c = &input->model->cache[cache];
    if ((position + 1) % c->ratio != 0)
        return -1;
    int64_t id = table_row(input, cache, row)[position / c->block_size];
    return id * c->entries + position % c->block_size / c->ratio;
}

static void fill_slots(struct st_input *input, const struct st_step_shape *shape, int cache) {
    const int64_t *position = input->host.at[ST_BUF_POSITION];
    const int32_t *owner = input->host.at[ST_BUF_TOKEN_TO_REQ];
    int64_t *slot = slots(input, ST_BUF_SLOT, cache);
    int64_t *expected = slots(input, ST_BUF_EXPECTED_SLOT, cache);
    for (int32_t t = 0; t < shape->padded_token_count; t++) {
        bool real = t < shape->token_count;
        slot[t] = real ? slot_of(input, cache, owner[t], position[t]) : -1;
        expected[t] =
            real && is_compressed(cache) ? entry_slot_of(input, cache, owner[t], position[t]) : -1;
    }
}

/* ---- state that earlier steps wrote */

static void rebuild_row(struct st_input *input, int cache, const struct st_step *step, int32_t row,
                        struct st_step_input *out) {
    int64_t start = step->num_computed_tokens[row];
    for (int64_t p = first_state(&input->model->cache[cache], start); p < start; p++) {
        int64_t slot = slot_of(input, cache, row, p);
        if (slot >= 0)
            input->rebuild[cache][out->rebuild_count[cache]++] =
                (struct st_rebuild){step->request_id[row], p, slot};
    }
}

static int fill_rebuild(struct st_input *input, const struct st_step *step,
                        struct st_step_input *out, struct st_error *err) {
    for (int32_t row = 0; row < step->request_count; row++) {
        struct live *live = NULL;
        ST_TRY(get_live(input, step->request_id[row], &live, err));
        int64_t start = step->num_computed_tokens[row];
        for (int c = 0; c < ST_CACHE_COUNT; c++)
            if (live->state_until < start && is_state(c) && has(input, c))
                rebuild_row(input, c, step, row, out);
        live->state_until = start + step->query_len[row];
    }
    return 0;
}

/* A shared prefix holds the state of whoever wrote it last: its owner, or a request that this
 * replay rebuilt it for.  In an engine they are the same; here each has values of its own.  They
 * are of the same position: what else a slot holds there is an error that the reference shows. */
static void find_mixed(struct st_input *input, int cache, const struct st_step_shape *shape,
                       const struct st_step *step, struct st_step_input *out) {
    const struct st_model_cache *c = &input->model->cache[cache];
    const int64_t *position = input->host.at[ST_BUF_POSITION];
    const int32_t *owner = input->host.at[ST_BUF_TOKEN_TO_REQ];
    const int64_t *slot = slots(input, ST_BUF_SLOT, cache);
    struct holder *written = input->written[cache];
    bool *mixed = input->mixed[cache];
    for (int32_t i = 0; i < out->rebuild_count[cache]; i++) {
        const struct st_rebuild *lost = &input->rebuild[cache][i];
        written[lost->slot] = (struct holder){lost->request_id, lost->position + 1};
    }
    for (int32_t t = 0; t < shape->token_count; t++)
        if (slot[t] >= 0)
            written[slot[t]] = (struct holder){step->request_id[owner[t]], position[t] + 1};
    for (int32_t t = 0; t < shape->token_count; t++) {
        mixed[t] = false;
        if ((position[t] + 1) % c->ratio != 0)
            continue;
        for (int64_t p = first_state(c, position[t]); p <= position[t] && !mixed[t]; p++) {
            int64_t at = slot_of(input, cache, owner[t], p);
            mixed[t] = at >= 0 && written[at].end == p + 1 &&
                       written[at].request_id != step->request_id[owner[t]];
        }
    }
    out->mixed[cache] = mixed;
}

static void forget_state(struct st_input *input) {
    for (int b = 0; b < BUCKETS; b++)
        for (struct live *live = input->bucket[b]; live; live = live->next)
            live->state_until = 0;
}

int st_input_build(struct st_input *input, struct st_cursor *cursor, const struct st_step *step,
                   const struct st_step_shape *shape, bool forget, struct st_step_input *out,
                   struct st_error *err) {
    if (forget)
        forget_state(input);
    memset(out, 0, sizeof *out);
    fill_batch(input, step, shape);
    fill_padded_lengths(input, shape);
    ST_TRY(fill_score_rows(input, step, shape, err));
    for (int c = 0; c < ST_CACHE_COUNT; c++) {
        if (!has(input, c))
            continue;
        for (int32_t row = 0; row < step->request_count; row++)
            ST_TRY(fill_row(input, c, cursor, step, row, err));
        fill_slots(input, shape, c);
        out->first_column[c] = input->first_column[c];
        out->rebuild[c] = input->rebuild[c];
    }
    ST_TRY(fill_rebuild(input, step, out, err));
    for (int c = 0; c < ST_CACHE_COUNT; c++)
        if (is_state(c) && has(input, c))
            find_mixed(input, c, shape, step, out);
    out->step_id = step->step_id;
    out->shape = *shape;
    out->host = input->host;
    out->forget = forget;
    return 0;
}

/* ---- tokens that are stored in one place */

static int compare_stored(const void *a, const void *b) {
    const struct stored *x = a, *y = b;
    if (x->block_id != y->block_id)
        return x->block_id < y->block_id ? -1 : 1;
    if (x->first != y->first)
        return x->first < y->first ? -1 : 1;
    return x->row != y->row ? (x->row < y->row ? -1 : 1)
                            : (x->ordinal > y->ordinal) - (x->ordinal < y->ordinal);
}

static int reserve_stored(struct st_input *input, size_t count, struct st_error *err) {
    if (count < input->stored_capacity)
        return 0;
    void *grown = realloc(input->stored, 2 * count * sizeof *input->stored);
    if (!grown)
        return ST_FAIL_NOMEM(err);
    input->stored = grown;
    input->stored_capacity = 2 * count;
    return 0;
}

static int list_stored(struct st_input *input, int cache, const struct st_step *step, size_t *count,
                       struct st_error *err) {
    int32_t size = input->model->cache[cache].block_size;
    *count = 0;
    for (int32_t row = 0; row < step->request_count; row++) {
        int32_t start = step->num_computed_tokens[row], end = start + step->query_len[row];
        for (int32_t at = start; at < end;) {
            int32_t next = (at / size + 1) * size < end ? (at / size + 1) * size : end;
            int32_t id = table_row(input, cache, row)[at / size];
            ST_TRY(reserve_stored(input, *count + 1, err));
            if (id > 0)
                input->stored[(*count)++] =
                    (struct stored){id, at % size, at % size + next - at, row, at / size};
            at = next;
        }
    }
    return 0;
}

static int check_cache(struct st_input *input, int cache, const struct st_step *step,
                       struct st_error *err) {
    size_t count;
    ST_TRY(list_stored(input, cache, step, &count, err));
    if (count > 1)
        qsort(input->stored, count, sizeof *input->stored, compare_stored);
    for (size_t i = 1; i < count; i++) {
        const struct stored *a = &input->stored[i - 1], *b = &input->stored[i];
        if (a->block_id != b->block_id || a->end <= b->first)
            continue;
        return ST_FAIL(
            err, ST_ERR_INPUT,
            "step %lld, request %lld, group %d: stores tokens in block %d (entry %d of its "
            "table), and so does request %lld (entry %d): what is there cannot be "
            "compared; leave the step out, or the pass verify",
            (long long)step->step_id, (long long)step->request_id[b->row],
            input->model->cache[cache].group, b->block_id, b->ordinal,
            (long long)step->request_id[a->row], a->ordinal);
    }
    return 0;
}

int st_input_check(struct st_input *input, const struct st_step *step, struct st_error *err) {
    for (int c = 0; c < ST_CACHE_COUNT; c++)
        if (has(input, c) && !is_allocated(input, c) && (is_state(c) || is_compressed(c)))
            ST_TRY(check_cache(input, c, step, err));
    return 0;
}
