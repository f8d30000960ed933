/* SPDX-License-Identifier: Apache-2.0 */
#include "traces/format/facts.h"
#include "traces/format/facts_i.h"

#include <inttypes.h>

const char *st_facts_column_name(enum st_facts_column column) {
    static const char *const names[ST_FACTS_COLUMNS] = {
        "snapshot", "flags", "events", "batch", "query_len", "start", "draft", "zeroed",
    };
    return names[column];
}

static void put_request(struct st_bytes *out, const struct st_request *r, int64_t *last_id) {
    st_bytes_put_difference(out, r->request_id, *last_id);
    *last_id = r->request_id;
    st_bytes_put_varint(out, (uint64_t)((int64_t)r->prompt_len + 1));
    st_bytes_put_zigzag(out, r->birth_step);
    st_bytes_put_varint(out, (uint64_t)r->next_start);
    st_bytes_put_zigzag(out, (int64_t)r->next_start - r->last_start);
}

void st_facts_encoder_begin(struct st_facts_encoder *encoder, struct st_requests *requests) {
    for (int c = 0; c < ST_FACTS_COLUMNS; c++)
        encoder->column[c].size = 0;
    for (int l = 0; l < ST_LISTS; l++)
        encoder->last_id[l] = 0;
    struct st_bytes *out = &encoder->column[ST_FACTS_SNAPSHOT];
    int64_t last_id = 0;
    st_bytes_put_varint(out, (uint64_t)requests->running.count);
    st_bytes_put_varint(out, (uint64_t)requests->waiting.count);
    for (int32_t i = 0; i < requests->running.count; i++)
        put_request(out, requests->running.item[i], &last_id);
    for (int32_t i = 0; i < requests->waiting.count; i++)
        put_request(out, requests->waiting.item[i], &last_id);
    /* The batch before the block is part of what the first step is coded against. */
    st_bytes_put_varint(out, (uint64_t)requests->batch.count);
    st_requests_number(requests);
    int32_t expected = 0;
    for (int32_t i = 0; i < requests->batch.count; i++) {
        int32_t order = requests->batch.item[i]->order;
        st_bytes_put_zigzag(out, order - expected);
        expected = order + 1;
    }
}

static void put_list(struct st_facts_encoder *encoder, int list,
                     const struct st_request_list *ids) {
    struct st_bytes *out = &encoder->column[ST_FACTS_EVENTS];
    int32_t absent = list == ST_LIST_REPLACED; /* count -1: the key was absent */
    st_bytes_put_varint(out, (uint64_t)(ids->count + absent));
    for (int32_t i = 0; i < ids->count; i++) {
        st_bytes_put_difference(out, ids->request_id[i], encoder->last_id[list]);
        encoder->last_id[list] = ids->request_id[i];
    }
}

static bool put_events(struct st_facts_encoder *encoder, const struct st_step *step) {
    if (step->finished.count + step->preempted.count + step->resumed.count +
                step->new_requests.count ==
            0 &&
        step->replaced.count < 0)
        return false;
    put_list(encoder, ST_LIST_FINISHED, &step->finished);
    put_list(encoder, ST_LIST_PREEMPTED, &step->preempted);
    put_list(encoder, ST_LIST_RESUMED, &step->resumed);
    put_list(encoder, ST_LIST_NEW, &step->new_requests);
    for (int32_t i = 0; i < step->new_requests.count; i++)
        st_bytes_put_varint(&encoder->column[ST_FACTS_EVENTS],
                            (uint64_t)((int64_t)step->new_prompt_len[i] + 1));
    put_list(encoder, ST_LIST_REPLACED, &step->replaced);
    return true;
}

/* Source of a run of rows: consecutive places of the batch before, or of the running order. */
struct run {
    bool from_order;
    int32_t at;
    int32_t length;
};

static int put_batch(struct st_facts_encoder *encoder, struct st_requests *requests,
                     const struct st_step *step, struct st_error *err) {
    struct st_bytes *out = &encoder->column[ST_FACTS_BATCH];
    struct st_request_vector *running = &requests->running;
    st_requests_number(requests);
    st_bytes_put_varint(out, (uint64_t)step->request_count);
    int32_t expected[2] = {0, 0}; /* in the batch before; in the running order */
    for (int32_t i = 0; i < step->request_count;) {
        struct st_request *r = st_requests_find(requests, step->request_id[i]);
        if (!r || r->waiting)
            return ST_FAIL(err, ST_ERR_INPUT,
                           "step %" PRId64 ": request %" PRId64 " is in the batch but not running",
                           step->step_id, step->request_id[i]);
        struct run run = {r->row < 0, r->row < 0 ? r->order : r->row, 1};
        const struct st_request_vector *source = run.from_order ? running : &requests->batch;
        while (i + run.length < step->request_count && run.at + run.length < source->count) {
            const struct st_request *next = source->item[run.at + run.length];
            if (!next || next->request_id != step->request_id[i + run.length] ||
                (run.from_order && next->row >= 0))
                break;
            run.length++;
        }
        st_bytes_put_varint(out, (uint64_t)run.length << 1 | run.from_order);
        st_bytes_put_zigzag(out, run.at - expected[run.from_order]);
        expected[run.from_order] = run.at + run.length;
        i += run.length;
    }
    st_requests_clear_rows(requests);
    for (int32_t i = 0; i < step->request_count; i++)
        ST_TRY(
            st_requests_set_row(requests, i, st_requests_find(requests, step->request_id[i]), err));
    return ST_OK;
}

static bool same_batch(const struct st_requests *requests, const struct st_step *step) {
    if (requests->batch.count != step->request_count)
        return false;
    for (int32_t i = 0; i < step->request_count; i++) {
        const struct st_request *r = requests->batch.item[i];
        if (!r || r->waiting || r->request_id != step->request_id[i])
            return false;
    }
    return true;
}

/* Rows whose value is not the predicted one: (rows skipped, value).  The list ends the column's
 * part of the step by its count in front. */
static bool put_exceptions(struct st_bytes *out, const struct st_step *step,
                           const struct st_requests *requests, bool starts) {
    int32_t count = 0;
    for (int pass = 0; pass < 2; pass++) {
        int32_t last = -1;
        for (int32_t i = 0; i < step->request_count; i++) {
            int32_t value = starts ? step->num_computed_tokens[i] : step->query_len[i];
            int32_t predicted = starts ? requests->batch.item[i]->next_start
                                       : 1 + (step->draft ? step->draft[i] : 0);
            if (value == predicted)
                continue;
            if (pass) {
                st_bytes_put_varint(out, (uint64_t)(i - last - 1));
                st_bytes_put_zigzag(out, (int64_t)value - predicted);
                last = i;
            } else {
                count++;
            }
        }
        if (!count)
            return false;
        if (!pass)
            st_bytes_put_varint(out, (uint64_t)count);
    }
    return true;
}

int st_facts_encode(struct st_facts_encoder *encoder, struct st_requests *requests,
                    const struct st_step *step, struct st_error *err) {
    unsigned flags = 0;
    if (put_events(encoder, step))
        flags |= ST_FACTS_EVENTS_PRESENT;
    ST_TRY(st_requests_apply_events(requests, step, err));
    if (!same_batch(requests, step)) {
        flags |= ST_FACTS_BATCH_CHANGED;
        ST_TRY(put_batch(encoder, requests, step, err));
    }
    if (step->draft) {
        flags |= ST_FACTS_DRAFT_PRESENT;
        for (int32_t i = 0; i < step->request_count; i++)
            st_bytes_put_varint(&encoder->column[ST_FACTS_DRAFT], (uint64_t)step->draft[i]);
    }
    if (put_exceptions(&encoder->column[ST_FACTS_QUERY_LEN], step, requests, false))
        flags |= ST_FACTS_QUERY_LEN_EXCEPTIONS;
    if (put_exceptions(&encoder->column[ST_FACTS_START], step, requests, true))
        flags |= ST_FACTS_START_EXCEPTIONS;
    if (step->zeroed != ST_UNKNOWN) {
        flags |= ST_FACTS_ZEROED_PRESENT;
        st_bytes_put_varint(&encoder->column[ST_FACTS_ZEROED], (uint64_t)step->zeroed);
    }
    flags |= (step->cpu_starts < 0 ? 0u : step->cpu_starts ? 1u : 2u) << ST_FACTS_CPU_STARTS_SHIFT;
    uint8_t byte = (uint8_t)flags;
    st_bytes_put(&encoder->column[ST_FACTS_FLAGS], &byte, 1);
    return ST_OK;
}

void st_facts_encoder_fini(struct st_facts_encoder *encoder) {
    for (int c = 0; c < ST_FACTS_COLUMNS; c++)
        st_bytes_fini(&encoder->column[c]);
}
