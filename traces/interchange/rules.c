/* SPDX-License-Identifier: Apache-2.0 */
#include "traces/interchange/rules.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

void st_rules_init(struct st_rules *rules, const struct st_header *header) {
    memset(rules, 0, sizeof *rules);
    rules->num_blocks = header->num_blocks;
    rules->max_model_len = header->max_model_len;
}

void st_rules_fini(struct st_rules *rules) {
    st_known_fini(&rules->known);
}

__attribute__((format(printf, 4, 5))) static int bad(struct st_rules_fault *fault, const char *key,
                                                     int32_t index, const char *fmt, ...) {
    va_list ap;
    snprintf(fault->place, sizeof fault->place, "%s[%d]", key, index);
    va_start(ap, fmt);
    vsnprintf(fault->what, sizeof fault->what, fmt, ap);
    va_end(ap);
    return ST_ERR_INPUT;
}

static int end_requests(struct st_rules *rules, const struct st_step *step,
                        struct st_rules_fault *fault) {
    const struct st_request_list *list = &step->preempted;
    for (int32_t i = 0; i < list->count; i++) {
        int64_t id = list->request_id[i];
        struct st_known_request *request = st_known_find(&rules->known, id);
        if (!request && st_known_is_finished(&rules->known, id))
            return bad(fault, "preempted", i, "request %" PRId64 " is finished already", id);
        if (!request)
            return bad(fault, "preempted", i, "request %" PRId64 " was never scheduled", id);
        if (request->state != ST_KNOWN_RUNNING)
            return bad(fault, "preempted", i, "request %" PRId64 " is preempted already", id);
        request->state = ST_KNOWN_PREEMPTED;
    }
    list = &step->finished;
    for (int32_t i = 0; i < list->count; i++) {
        int64_t id = list->request_id[i];
        if (st_known_is_finished(&rules->known, id))
            return bad(fault, "finished", i, "request %" PRId64 " is finished already", id);
        /* One that was aborted while it waited was never scheduled; its number is taken all the
         * same. */
        if (!st_known_finish(&rules->known, id))
            return ST_ERR_NOMEM;
    }
    return ST_OK;
}

static int begin_requests(struct st_rules *rules, const struct st_step *step,
                          struct st_rules_fault *fault) {
    const struct st_request_list *list = &step->new_requests;
    for (int32_t i = 0; i < list->count; i++) {
        int64_t id = list->request_id[i];
        if (st_known_find(&rules->known, id) || st_known_is_finished(&rules->known, id))
            return bad(fault, "new", i,
                       "request %" PRId64 " was seen before; a number names one request", id);
        struct st_known_request *request = st_known_add(&rules->known, id);
        if (!request)
            return ST_ERR_NOMEM;
        request->free_start = 1;
    }
    list = &step->resumed;
    for (int32_t i = 0; i < list->count; i++) {
        int64_t id = list->request_id[i];
        struct st_known_request *request = st_known_find(&rules->known, id);
        if (!request || request->state != ST_KNOWN_PREEMPTED)
            return bad(fault, "resumed", i,
                       "request %" PRId64 " is %s, a preempted one was expected", id,
                       request                                   ? "running"
                       : st_known_is_finished(&rules->known, id) ? "finished"
                                                                 : "not known");
        request->state = ST_KNOWN_RUNNING;
        request->free_start = 1;
    }
    /* One that was preempted and came back with no step between is told by its new table alone. */
    list = &step->replaced;
    for (int32_t i = 0; i < list->count; i++) {
        struct st_known_request *request = st_known_find(&rules->known, list->request_id[i]);
        if (request)
            request->free_start = 1;
    }
    return ST_OK;
}

static int run_row(struct st_rules *rules, const struct st_step *step, int32_t row,
                   struct st_rules_odd *odd, struct st_rules_fault *fault) {
    int64_t id = step->request_id[row];
    int32_t start = step->num_computed_tokens[row];
    struct st_known_request *request = st_known_find(&rules->known, id);
    if (!request && st_known_is_finished(&rules->known, id))
        return bad(fault, "req", row, "request %" PRId64 " is scheduled after it finished", id);
    if (!request)
        return bad(fault, "req", row, "request %" PRId64 " is neither known nor in new", id);
    if (request->state == ST_KNOWN_PREEMPTED)
        return bad(fault, "req", row,
                   "request %" PRId64 " is preempted, it was expected in resumed as well", id);
    if (request->scheduled_step == step->step_id)
        return bad(fault, "req", row, "request %" PRId64 " stands twice in this step", id);
    /* What dropped steps computed is not known. */
    if (request->scheduled_step < rules->gap_step)
        request->free_start = 1;
    if (!request->free_start && start > request->next_start)
        return bad(fault, "start", row,
                   "is %d, at most %d was expected: the last start + qlen of request %" PRId64,
                   start, request->next_start, id);
    if (!request->free_start && start < request->next_start && !request->had_drafts)
        odd->start_below++;
    request->scheduled_step = step->step_id;
    request->next_start = start + step->query_len[row];
    request->free_start = 0;
    request->had_drafts = step->draft && step->draft[row] > 0;
    if (rules->max_model_len >= 0 && request->next_start > rules->max_model_len)
        odd->beyond_model_len++;
    return ST_OK;
}

/* Each request of a list must stand in req of this step. */
static int check_scheduled(struct st_rules *rules, const struct st_step *step,
                           const struct st_request_list *list, const char *key,
                           struct st_rules_fault *fault) {
    for (int32_t i = 0; i < list->count; i++) {
        const struct st_known_request *request = st_known_find(&rules->known, list->request_id[i]);
        if (!request || request->scheduled_step != step->step_id)
            return bad(fault, key, i,
                       "request %" PRId64 " is not in req of this step, as was expected",
                       list->request_id[i]);
    }
    return ST_OK;
}

/* What ended before the step has no row in it. */
static int check_not_scheduled(struct st_rules *rules, const struct st_step *step,
                               struct st_rules_fault *fault) {
    const struct st_request_list *list = &step->preempted;
    for (int32_t i = 0; i < list->count; i++) {
        const struct st_known_request *request = st_known_find(&rules->known, list->request_id[i]);
        if (request && request->scheduled_step == step->step_id)
            return bad(fault, "preempted", i,
                       "request %" PRId64 " is in req of the same step, that was not expected",
                       list->request_id[i]);
    }
    return ST_OK;
}

/* The ids of all rows lie one behind another: one loop, and the row only for who reads it. */
static int check_blocks(const struct st_rules *rules, const struct st_step *step,
                        struct st_rules_fault *fault) {
    if (rules->num_blocks < 0 || rules->num_blocks > INT32_MAX)
        return ST_OK;
    for (int32_t g = 0; g < step->group_count; g++) {
        const struct st_row_blocks *blocks = &step->blocks[g];
        int32_t row = 0, i = blocks->offset[0], end = blocks->offset[step->request_count];
        while (i < end && blocks->block_id[i] < rules->num_blocks)
            i++;
        if (i == end)
            continue;
        while (blocks->offset[row + 1] <= i)
            row++;
        bad(fault, "blocks", g, "is %d, less than num_blocks (%" PRId64 ") was expected",
            blocks->block_id[i], rules->num_blocks);
        snprintf(fault->place, sizeof fault->place, "blocks[%d][%d][%d]", g, row,
                 i - blocks->offset[row]);
        return ST_ERR_INPUT;
    }
    return ST_OK;
}

int st_rules_step(struct st_rules *rules, const struct st_step *step, struct st_rules_odd *odd,
                  struct st_rules_fault *fault) {
    *odd = (struct st_rules_odd){0};
    if (step->dropped_before)
        rules->gap_step = step->step_id;
    int rc = check_blocks(rules, step, fault);
    if (!rc)
        rc = end_requests(rules, step, fault);
    if (!rc)
        rc = begin_requests(rules, step, fault);
    for (int32_t row = 0; !rc && row < step->request_count; row++)
        rc = run_row(rules, step, row, odd, fault);
    if (!rc)
        rc = check_not_scheduled(rules, step, fault);
    if (!rc)
        rc = check_scheduled(rules, step, &step->new_requests, "new", fault);
    if (!rc)
        rc = check_scheduled(rules, step, &step->resumed, "resumed", fault);
    if (!rc)
        rc = check_scheduled(rules, step, &step->replaced, "replace", fault);
    return rc;
}
