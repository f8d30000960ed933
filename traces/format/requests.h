/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The live requests of a recording: what writer and reader both know when a step begins.
 *
 * Coding works because both sides move this state through the same function,
 * st_requests_apply_events(), and predict the next step from it.
 *
 * Invariants
 *  1. A request is in `running` (scheduler order: order of admission) or in `waiting` (preempted).
 *  2. row is the request's row in the batch of the current step, or -1.
 *  3. tables exist only when the owner asked for them (group_count > 0).
 */
#ifndef ST_FORMAT_REQUESTS_H
#define ST_FORMAT_REQUESTS_H

#include <stdbool.h>
#include <stdint.h>

/* Memory that runs out is an error of ours, not the end of the process. */
#define HASH_NONFATAL_OOM 1
#include <uthash.h>

#include "traces/base/error.h"
#include "traces/format/step.h"

/* Beyond what any engine does: what a hostile tape may make us hold. */
#define ST_REQUESTS_LIMIT (1 << 17) /* live requests */
#define ST_TABLES_LIMIT (1 << 28)   /* entries of all tables together */
#define ST_STEP_IDS_LIMIT (1 << 25) /* block ids appended in one step */

/* The block table of one request in one group.  Ordinals below `base` are not held: a cursor that
 * started in the middle does not know ids that were freed before. */
struct st_table {
    int32_t *id; /* [count - base] */
    int32_t base;
    int32_t count;    /* entries, those below base included */
    int32_t freed;    /* entries below this were given back to the pool */
    int32_t capacity; /* of id */
    int32_t added;    /* entries appended in the current step */
};

struct st_request {
    int64_t request_id;
    int64_t birth_step; /* first step of its present table */
    int32_t prompt_len; /* -1: unknown */
    int32_t next_start; /* num_computed_tokens expected next */
    int32_t last_start; /* of the last step it was scheduled in */
    int32_t row;
    int32_t order; /* index in running, set by st_requests_number() */
    bool waiting, finished;
    int32_t alloc_at;     /* no group needs a block before this many tokens */
    int32_t free_at;      /* no group frees a block before this start */
    int64_t touched_step; /* tables[].added belong to this step */
    struct st_table *tables;
    UT_hash_handle hh;
};

struct st_request_vector {
    struct st_request **item;
    int32_t count;
    int32_t capacity;
};

struct st_requests {
    struct st_request *by_id; /* uthash */
    struct st_request_vector running;
    struct st_request_vector waiting;
    struct st_request_vector batch; /* rows of the current step; NULL where one has finished */
    struct st_request_vector
        finished; /* of the current step, in running order, tables still held */
    struct st_request_vector preempted; /* of the current step, blocks not yet given back */
    int32_t group_count;                /* 0: without tables */
    int64_t table_entries;              /* reserved in all tables */
};

void st_requests_init(struct st_requests *requests, int32_t group_count);
void st_requests_fini(struct st_requests *requests);
/* Forgets every request. */
void st_requests_clear(struct st_requests *requests);

struct st_request *st_requests_find(struct st_requests *requests, int64_t request_id);
int st_requests_create(struct st_requests *requests, int64_t request_id,
                       struct st_request **request, struct st_error *err);
int st_request_vector_push(struct st_request_vector *vector, struct st_request *request,
                           struct st_error *err);

/* Finished, preempted, resumed, new and replaced requests of a step, before its batch is known.
 * Keeps finished ones, and the list of preempted ones, until st_requests_advance(). */
int st_requests_apply_events(struct st_requests *requests, const struct st_step *step,
                             struct st_error *err);
/* Forgets the table of a request: what follows is a new one. */
void st_request_replace_table(struct st_requests *requests, struct st_request *request,
                              int64_t step_id);
/* Appends a row to the batch, which st_requests_clear_rows() emptied before. */
int st_requests_set_row(struct st_requests *requests, int32_t row, struct st_request *request,
                        struct st_error *err);
void st_requests_clear_rows(struct st_requests *requests);
/* The step is over: positions move on, finished requests are freed. */
void st_requests_advance(struct st_requests *requests, const struct st_step *step);
/* Writes each running request's index into its `order`. */
void st_requests_number(struct st_requests *requests);

/* Room for more entries in one of the requests' tables. */
int st_table_reserve(struct st_requests *requests, struct st_table *table, int32_t more,
                     struct st_error *err);

#endif
