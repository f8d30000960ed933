/* SPDX-License-Identifier: Apache-2.0 */
#include "traces/format/facts.h"
#include "traces/format/facts_i.h"

#include <inttypes.h>
#include <stdlib.h>

#define CORRUPT(err, what)                                                                         \
    ST_FAIL((err), ST_ERR_CORRUPT, "the facts of a block of steps are damaged (%s)", (what))

int st_facts_decoder_begin(struct st_facts_decoder *decoder, const void *data, size_t size,
                           struct st_error *err) {
    for (int l = 0; l < ST_LISTS; l++)
        decoder->last_id[l] = 0;
    return st_columns_unpack(data, size, &decoder->raw, decoder->column, ST_FACTS_COLUMNS, err);
}

static int get_request(struct st_bytes_reader *in, struct st_requests *requests, int64_t *last_id,
                       bool waiting, struct st_error *err) {
    *last_id = st_bytes_get_difference(in, *last_id);
    if (st_requests_find(requests, *last_id))
        return CORRUPT(err, "a request stands twice in the snapshot");
    struct st_request *r = NULL;
    ST_TRY(st_requests_create(requests, *last_id, &r, err));
    r->waiting = waiting;
    r->prompt_len = (int32_t)(st_bytes_get_within(in, 0, (int64_t)INT32_MAX + 1) - 1);
    r->birth_step = st_bytes_get_zigzag(in);
    r->next_start = (int32_t)st_bytes_get_within(in, 0, INT32_MAX);
    int64_t back = st_bytes_get_zigzag(in);
    if (back > r->next_start || back < (int64_t)r->next_start - INT32_MAX)
        in->bad = true;
    else
        r->last_start = (int32_t)(r->next_start - back);
    return st_request_vector_push(waiting ? &requests->waiting : &requests->running, r, err);
}

int st_facts_decode_snapshot(struct st_facts_decoder *decoder, struct st_requests *requests,
                             struct st_error *err) {
    struct st_bytes_reader *in = &decoder->column[ST_FACTS_SNAPSHOT];
    int64_t last_id = 0;
    int64_t limit = in->end - in->at;
    st_requests_clear(requests);
    int64_t running = st_bytes_get_within(in, 0, limit);
    int64_t waiting = st_bytes_get_within(in, 0, limit);
    for (int64_t i = 0; i < running + waiting && !in->bad; i++)
        ST_TRY(get_request(in, requests, &last_id, i >= running, err));
    int64_t batch = st_bytes_get_within(in, 0, limit);
    int64_t order = 0;
    for (int64_t i = 0; i < batch && !in->bad; i++) {
        order = st_bytes_get_difference(in, order);
        if (order < 0 || order >= requests->running.count)
            return CORRUPT(err, "a row of the snapshot's batch");
        ST_TRY(st_requests_set_row(requests, (int32_t)i, requests->running.item[order++], err));
    }
    return in->bad ? CORRUPT(err, "snapshot") : ST_OK;
}

static int reserve_rows(struct st_facts_decoder *decoder, int32_t count, struct st_error *err) {
    /* Arrays exist from the first step on, also of one without rows: NULL means absent. */
    if (decoder->row_capacity > 0 && count <= decoder->row_capacity)
        return ST_OK;
    int32_t capacity = count + count / 2 + 64;
    free(decoder->request_id);
    free(decoder->query_len);
    decoder->request_id = malloc((size_t)capacity * sizeof *decoder->request_id);
    decoder->query_len = malloc((size_t)capacity * 4 * sizeof *decoder->query_len);
    decoder->row_capacity = decoder->request_id && decoder->query_len ? capacity : 0;
    if (!decoder->row_capacity)
        return ST_FAIL_NOMEM(err);
    decoder->start = decoder->query_len + capacity;
    decoder->draft = decoder->start + capacity;
    decoder->prompt_len = decoder->draft + capacity;
    return ST_OK;
}

static int get_list(struct st_facts_decoder *decoder, int list, struct st_request_list *ids,
                    struct st_error *err) {
    struct st_bytes_reader *in = &decoder->column[ST_FACTS_EVENTS];
    int64_t count = st_bytes_get_within(in, 0, in->end - in->at + 1);
    if (list == ST_LIST_REPLACED)
        count--;
    if (count > decoder->list_capacity[list]) {
        int64_t *grown = realloc(decoder->list[list], (size_t)count * sizeof *grown);
        if (!grown)
            return ST_FAIL_NOMEM(err);
        decoder->list[list] = grown;
        decoder->list_capacity[list] = (int32_t)count;
    }
    int64_t id = decoder->last_id[list];
    for (int64_t i = 0; i < count; i++)
        decoder->list[list][i] = id = st_bytes_get_difference(in, id);
    decoder->last_id[list] = id;
    ids->count = (int32_t)count;
    ids->request_id = decoder->list[list];
    return ST_OK;
}

static int get_events(struct st_facts_decoder *decoder, struct st_step *step,
                      struct st_error *err) {
    struct st_bytes_reader *in = &decoder->column[ST_FACTS_EVENTS];
    ST_TRY(get_list(decoder, ST_LIST_FINISHED, &step->finished, err));
    ST_TRY(get_list(decoder, ST_LIST_PREEMPTED, &step->preempted, err));
    ST_TRY(get_list(decoder, ST_LIST_RESUMED, &step->resumed, err));
    ST_TRY(get_list(decoder, ST_LIST_NEW, &step->new_requests, err));
    if (step->new_requests.count) {
        int32_t *grown =
            realloc(decoder->new_prompt_len, (size_t)step->new_requests.count * sizeof *grown);
        if (!grown)
            return ST_FAIL_NOMEM(err);
        decoder->new_prompt_len = grown;
        for (int32_t i = 0; i < step->new_requests.count; i++)
            grown[i] = (int32_t)(st_bytes_get_within(in, 0, (int64_t)INT32_MAX + 1) - 1);
    }
    step->new_prompt_len = decoder->new_prompt_len;
    ST_TRY(get_list(decoder, ST_LIST_REPLACED, &step->replaced, err));
    return in->bad ? CORRUPT(err, "events") : ST_OK;
}

/* Rows come from the batch before or from the running order; the old rows are needed until the
 * last run is read, so the new batch is gathered beside it. */
static int get_batch(struct st_facts_decoder *decoder, struct st_requests *requests,
                     struct st_error *err) {
    struct st_bytes_reader *in = &decoder->column[ST_FACTS_BATCH];
    struct st_request_vector old = requests->batch;
    struct st_request_vector gathered = {0};
    int64_t expected[2] = {0, 0};
    int rc = ST_OK;
    int64_t count = st_bytes_get_within(in, 0, requests->running.count);
    while (gathered.count < count && !rc) {
        uint64_t head = st_bytes_get_varint(in);
        bool from_order = head & 1;
        int64_t length = (int64_t)(head >> 1);
        const struct st_request_vector *source = from_order ? &requests->running : &old;
        int64_t at = st_bytes_get_difference(in, expected[from_order]);
        if (in->bad || length < 1 || length > count - gathered.count || at < 0 ||
            at > source->count - length) {
            rc = CORRUPT(err, "batch");
            break;
        }
        for (int64_t k = 0; k < length && !rc; k++)
            rc = source->item[at + k] && !source->item[at + k]->waiting
                     ? st_request_vector_push(&gathered, source->item[at + k], err)
                     : CORRUPT(err, "a row of a request that is gone");
        expected[from_order] = at + length;
    }
    st_requests_clear_rows(requests);
    for (int32_t i = 0; i < gathered.count && !rc; i++)
        rc = st_requests_set_row(requests, i, gathered.item[i], err);
    free(gathered.item);
    return rc;
}

static int get_exceptions(struct st_bytes_reader *in, int32_t *value, int32_t rows, int32_t low,
                          struct st_error *err) {
    int64_t count = st_bytes_get_within(in, 0, rows);
    int64_t row = -1;
    for (int64_t i = 0; i < count; i++) {
        row += 1 + st_bytes_get_within(in, 0, rows);
        int64_t difference = st_bytes_get_zigzag(in);
        if (in->bad || row >= rows || difference < -(int64_t)INT32_MAX || difference > INT32_MAX)
            return CORRUPT(err, "exceptions");
        int64_t sum = value[row] + difference;
        if (sum < low || sum > INT32_MAX)
            return CORRUPT(err, "a value out of range");
        value[row] = (int32_t)sum;
    }
    return in->bad ? CORRUPT(err, "exceptions") : ST_OK;
}

static int get_rows(struct st_facts_decoder *decoder, const struct st_requests *requests,
                    unsigned flags, struct st_step *step, struct st_error *err) {
    int32_t rows = requests->batch.count;
    struct st_request *const *batch = requests->batch.item;
    ST_TRY(reserve_rows(decoder, rows, err));
    for (int32_t i = 0; i < rows; i++) {
        decoder->request_id[i] = batch[i]->request_id;
        decoder->start[i] = batch[i]->next_start;
        decoder->prompt_len[i] = batch[i]->prompt_len;
        decoder->query_len[i] = 1;
    }
    if (flags & ST_FACTS_DRAFT_PRESENT)
        for (int32_t i = 0; i < rows; i++) {
            decoder->draft[i] =
                (int32_t)st_bytes_get_within(&decoder->column[ST_FACTS_DRAFT], 0, INT32_MAX - 1);
            decoder->query_len[i] = 1 + decoder->draft[i];
        }
    if (flags & ST_FACTS_QUERY_LEN_EXCEPTIONS)
        ST_TRY(
            get_exceptions(&decoder->column[ST_FACTS_QUERY_LEN], decoder->query_len, rows, 1, err));
    if (flags & ST_FACTS_START_EXCEPTIONS)
        ST_TRY(get_exceptions(&decoder->column[ST_FACTS_START], decoder->start, rows, 0, err));
    int64_t tokens = 0;
    for (int32_t i = 0; i < rows; i++) {
        if ((int64_t)decoder->start[i] + decoder->query_len[i] > INT32_MAX)
            return CORRUPT(err, "a position out of range");
        tokens += decoder->query_len[i];
    }
    step->request_count = rows;
    step->token_count = tokens;
    step->request_id = decoder->request_id;
    step->query_len = decoder->query_len;
    step->num_computed_tokens = decoder->start;
    step->prompt_len = decoder->prompt_len;
    step->draft = flags & ST_FACTS_DRAFT_PRESENT ? decoder->draft : NULL;
    return ST_OK;
}

int st_facts_decode(struct st_facts_decoder *decoder, struct st_requests *requests,
                    struct st_step *step, struct st_error *err) {
    struct st_bytes_reader *in = &decoder->column[ST_FACTS_FLAGS];
    if (in->at >= in->end)
        return CORRUPT(err, "fewer steps than the block should hold");
    unsigned flags = *in->at++;
    static const struct st_request_list none = {0, NULL};
    step->finished = step->preempted = step->resumed = step->new_requests = none;
    step->replaced = (struct st_request_list){-1, NULL};
    step->new_prompt_len = NULL;
    if (flags & ST_FACTS_EVENTS_PRESENT) {
        ST_TRY(get_events(decoder, step, err));
        ST_TRY(st_requests_apply_events(requests, step, err));
    }
    if (flags & ST_FACTS_BATCH_CHANGED)
        ST_TRY(get_batch(decoder, requests, err));
    for (int32_t i = 0; i < requests->batch.count; i++)
        if (!requests->batch.item[i] || requests->batch.item[i]->waiting)
            return CORRUPT(err, "a row of a request that is gone");
    ST_TRY(get_rows(decoder, requests, flags, step, err));
    step->zeroed = ST_UNKNOWN;
    if (flags & ST_FACTS_ZEROED_PRESENT)
        step->zeroed = st_bytes_get_within(&decoder->column[ST_FACTS_ZEROED], 0, INT64_MAX - 1);
    unsigned cpu_starts = flags >> ST_FACTS_CPU_STARTS_SHIFT;
    if (cpu_starts > 2)
        return CORRUPT(err, "flags");
    step->cpu_starts = (int8_t)(cpu_starts == 0 ? -1 : cpu_starts == 1);
    for (int c = 0; c < ST_FACTS_COLUMNS; c++)
        if (decoder->column[c].bad)
            return CORRUPT(err, st_facts_column_name((enum st_facts_column)c));
    return ST_OK;
}

void st_facts_decoder_fini(struct st_facts_decoder *decoder) {
    st_bytes_fini(&decoder->raw);
    free(decoder->request_id);
    free(decoder->query_len);
    free(decoder->new_prompt_len);
    for (int l = 0; l < ST_LISTS; l++)
        free(decoder->list[l]);
}
