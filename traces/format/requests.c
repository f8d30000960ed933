/* SPDX-License-Identifier: Apache-2.0 */
#include "traces/format/requests.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

void st_requests_init(struct st_requests *requests, int32_t group_count) {
    memset(requests, 0, sizeof *requests);
    requests->group_count = group_count;
}

static void destroy(struct st_requests *requests, struct st_request *request) {
    for (int32_t g = 0; request->tables && g < requests->group_count; g++) {
        requests->table_entries -= request->tables[g].capacity;
        free(request->tables[g].id);
    }
    free(request->tables);
    free(request);
}

/* Frees what finished in this step and forgets the preempted list. */
static void release(struct st_requests *requests) {
    for (int32_t i = 0; i < requests->finished.count; i++)
        destroy(requests, requests->finished.item[i]);
    requests->finished.count = 0;
    requests->preempted.count = 0;
}

void st_requests_clear(struct st_requests *requests) {
    release(requests);
    struct st_request *request, *next;
    HASH_ITER(hh, requests->by_id, request, next) {
        HASH_DEL(requests->by_id, request);
        destroy(requests, request);
    }
    requests->running.count = requests->waiting.count = requests->batch.count = 0;
}

void st_requests_fini(struct st_requests *requests) {
    st_requests_clear(requests);
    free(requests->running.item);
    free(requests->waiting.item);
    free(requests->batch.item);
    free(requests->finished.item);
    free(requests->preempted.item);
    memset(requests, 0, sizeof *requests);
}

struct st_request *st_requests_find(struct st_requests *requests, int64_t request_id) {
    struct st_request *request = NULL;
    HASH_FIND(hh, requests->by_id, &request_id, sizeof request_id, request);
    return request;
}

int st_request_vector_push(struct st_request_vector *vector, struct st_request *request,
                           struct st_error *err) {
    if (vector->count == vector->capacity) {
        int32_t capacity = vector->capacity ? vector->capacity * 2 : 64;
        void *item = realloc(vector->item, (size_t)capacity * sizeof *vector->item);
        if (!item)
            return ST_FAIL_NOMEM(err);
        vector->item = item;
        vector->capacity = capacity;
    }
    vector->item[vector->count++] = request;
    return ST_OK;
}

/* Takes out those that have finished or belong to the other list: all of a step in one pass, as
 * many may leave at once. */
static void remove_gone(struct st_request_vector *vector, bool waiting) {
    int32_t kept = 0;
    for (int32_t i = 0; i < vector->count; i++)
        if (!vector->item[i]->finished && vector->item[i]->waiting == waiting)
            vector->item[kept++] = vector->item[i];
    vector->count = kept;
}

int st_requests_create(struct st_requests *requests, int64_t request_id,
                       struct st_request **created, struct st_error *err) {
    if (HASH_COUNT(requests->by_id) >= ST_REQUESTS_LIMIT)
        return ST_FAIL(err, ST_ERR_INPUT, "more than %d requests at one time", ST_REQUESTS_LIMIT);
    struct st_request *request = calloc(1, sizeof *request);
    if (!request)
        return ST_FAIL_NOMEM(err);
    if (requests->group_count) {
        request->tables = calloc((size_t)requests->group_count, sizeof *request->tables);
        if (!request->tables) {
            free(request);
            return ST_FAIL_NOMEM(err);
        }
    }
    request->request_id = request_id;
    request->row = -1;
    request->touched_step = -1;
    HASH_ADD(hh, requests->by_id, request_id, sizeof request->request_id, request);
    if (!request->hh.tbl) { /* no memory for the hash: uthash undid it */
        destroy(requests, request);
        return ST_FAIL_NOMEM(err);
    }
    *created = request;
    return ST_OK;
}

/* A finished request leaves the lists but keeps its tables until release(): the
 * allocator model still has to take its blocks back. */
static int finish(struct st_requests *requests, struct st_request *request, struct st_error *err) {
    if (request->row >= 0 && request->row < requests->batch.count)
        requests->batch.item[request->row] = NULL;
    request->row = -1;
    request->finished = true;
    HASH_DEL(requests->by_id, request);
    int rc = st_request_vector_push(&requests->finished, request, err);
    if (rc)
        destroy(requests, request);
    return rc;
}

static int compare_order(const void *a, const void *b) {
    const struct st_request *x = *(struct st_request *const *)a;
    const struct st_request *y = *(struct st_request *const *)b;
    return (x->order > y->order) - (x->order < y->order);
}

void st_requests_number(struct st_requests *requests) {
    for (int32_t i = 0; i < requests->running.count; i++)
        requests->running.item[i]->order = i;
}

void st_request_replace_table(struct st_requests *requests, struct st_request *request,
                              int64_t step_id) {
    request->birth_step = step_id;
    request->alloc_at = request->free_at = 0;
    for (int32_t g = 0; g < requests->group_count; g++) {
        struct st_table *table = &request->tables[g];
        table->base = table->count = table->freed = 0;
    }
}

static int apply_gone(struct st_requests *requests, const struct st_step *step,
                      struct st_error *err) {
    if (step->finished.count > 0) {
        st_requests_number(requests);
        for (int32_t i = 0; i < step->finished.count; i++) {
            struct st_request *r = st_requests_find(requests, step->finished.request_id[i]);
            if (r)
                ST_TRY(finish(requests, r, err));
        }
        /* The engine frees them as it walks its running list, whatever order it reports. */
        if (requests->finished.count > 1)
            qsort(requests->finished.item, (size_t)requests->finished.count,
                  sizeof *requests->finished.item, compare_order);
    }
    for (int32_t i = 0; i < step->preempted.count; i++) {
        struct st_request *r = st_requests_find(requests, step->preempted.request_id[i]);
        if (!r || r->waiting)
            continue;
        r->waiting = true;
        ST_TRY(st_request_vector_push(&requests->waiting, r, err));
        ST_TRY(st_request_vector_push(&requests->preempted, r, err));
    }
    if (step->finished.count > 0 || step->preempted.count > 0)
        remove_gone(&requests->running, false);
    if (step->finished.count > 0)
        remove_gone(&requests->waiting, true);
    return ST_OK;
}

int st_requests_apply_events(struct st_requests *requests, const struct st_step *step,
                             struct st_error *err) {
    ST_TRY(apply_gone(requests, step, err));
    for (int32_t i = 0; i < step->resumed.count; i++) {
        struct st_request *r = st_requests_find(requests, step->resumed.request_id[i]);
        if (!r || !r->waiting)
            return ST_FAIL(err, ST_ERR_INPUT,
                           "step %" PRId64 ": request %" PRId64 " is resumed but was not preempted",
                           step->step_id, step->resumed.request_id[i]);
        r->waiting = false;
        r->next_start = 0;
        r->last_start = 0;
        ST_TRY(st_request_vector_push(&requests->running, r, err));
    }
    if (step->resumed.count > 0)
        remove_gone(&requests->waiting, true);
    for (int32_t i = 0; i < step->new_requests.count; i++) {
        int64_t id = step->new_requests.request_id[i];
        if (st_requests_find(requests, id))
            return ST_FAIL(err, ST_ERR_INPUT,
                           "step %" PRId64 ": request %" PRId64 " is new but already known",
                           step->step_id, id);
        struct st_request *r = NULL;
        ST_TRY(st_requests_create(requests, id, &r, err));
        r->prompt_len = step->new_prompt_len[i];
        r->birth_step = step->step_id;
        ST_TRY(st_request_vector_push(&requests->running, r, err));
    }
    return ST_OK;
}

int st_requests_set_row(struct st_requests *requests, int32_t row, struct st_request *request,
                        struct st_error *err) {
    if (request->row >= 0)
        return ST_FAIL(err, ST_ERR_INPUT, "request %" PRId64 " stands twice in one batch",
                       request->request_id);
    request->row = row;
    return st_request_vector_push(&requests->batch, request, err);
}

void st_requests_clear_rows(struct st_requests *requests) {
    for (int32_t i = 0; i < requests->batch.count; i++)
        if (requests->batch.item[i])
            requests->batch.item[i]->row = -1;
    requests->batch.count = 0;
}

void st_requests_advance(struct st_requests *requests, const struct st_step *step) {
    for (int32_t i = 0; i < step->request_count; i++) {
        struct st_request *request = requests->batch.item[i];
        request->last_start = step->num_computed_tokens[i];
        request->next_start = step->num_computed_tokens[i] + step->query_len[i];
    }
    release(requests);
}

int st_table_reserve(struct st_requests *requests, struct st_table *table, int32_t more,
                     struct st_error *err) {
    int64_t need = (int64_t)table->count - table->base + more;
    if (need <= table->capacity)
        return ST_OK;
    int64_t capacity = table->capacity ? table->capacity : 8;
    while (capacity < need)
        capacity *= 2;
    if (requests->table_entries + capacity - table->capacity > ST_TABLES_LIMIT)
        return ST_FAIL(err, ST_ERR_INPUT, "block tables of more than %d entries", ST_TABLES_LIMIT);
    int32_t *id = realloc(table->id, (size_t)capacity * sizeof *id);
    if (!id)
        return ST_FAIL_NOMEM(err);
    requests->table_entries += capacity - table->capacity;
    table->id = id;
    table->capacity = (int32_t)capacity;
    return ST_OK;
}
