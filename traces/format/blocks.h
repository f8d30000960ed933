/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Block ids: what the model of the allocator does not predict.
 *
 * For every step both sides walk the running requests in scheduler order.  Each gives back the
 * blocks that left its windows, then takes what its tokens need, group by group, from the head of
 * the queue (traces/format/pool.h).  A preempted request gives its blocks back when the queue runs
 * short, as the scheduler does.  Stored are only
 *   - rows that took another number of blocks than their tokens need (column COUNTS), and
 *   - where the id taken is not the head of the queue (column EVENTS): a run of null blocks, blocks
 *     skipped because the prefix cache holds them, or ids written out (column IDS).
 * A keyframe holds the queue and the tables' live part, so that reading can start there.
 */
#ifndef ST_FORMAT_BLOCKS_H
#define ST_FORMAT_BLOCKS_H

#include "traces/base/bytes.h"
#include "traces/format/header.h"
#include "traces/format/pool.h"
#include "traces/format/requests.h"

enum st_blocks_column { ST_BLOCKS_COUNTS, ST_BLOCKS_EVENTS, ST_BLOCKS_IDS, ST_BLOCKS_COLUMNS };

/* How the engine differs from the common case; one value a tape. */
enum {
    ST_MODEL_FREE_TO_TAIL = 1, /* blocks given back join the tail of the queue */
    ST_MODEL_LATE_WINDOW = 2,  /* windows are freed by the step before (async scheduling) */
    ST_MODEL_COUNT = 4
};

struct st_blocks_model {
    struct st_pool pool;
    unsigned model; /* ST_MODEL_ bits */
    int32_t group_count;
    int32_t block_size[ST_MAX_GROUPS];
    int32_t window[ST_MAX_GROUPS]; /* 0: keeps every block */
    /* Position in the columns of this block of steps.  Encoding: ids since the last event, requests
     * since the last count; decoding: those left before the next. */
    int64_t gap, count_gap;
    int64_t last_id; /* ids are written as differences */
    /* The appended ids of the step last handled, in batch order. */
    struct st_row_blocks rows[ST_MAX_GROUPS];
    int32_t *offsets;
    int32_t offset_capacity;
    int32_t *ids;
    int64_t id_capacity;
};

int st_blocks_model_init(struct st_blocks_model *model, const struct st_header *header,
                         unsigned kind, struct st_error *err);
void st_blocks_model_fini(struct st_blocks_model *model);

/* Each block of steps counts its gaps anew.  column: what st_blocks_decode() will read, NULL when
 * encoding. */
void st_blocks_begin(struct st_blocks_model *model, struct st_bytes_reader *column);
/* Codes the blocks of a step, after st_facts_encode() and before st_requests_advance(). */
int st_blocks_encode(struct st_blocks_model *model, struct st_requests *requests,
                     const struct st_step *step, struct st_bytes *column, struct st_error *err);
/* The other way; points step->blocks at the rows' appended ids. */
int st_blocks_decode(struct st_blocks_model *model, struct st_requests *requests,
                     struct st_step *step, struct st_bytes_reader *column, struct st_error *err);

/* The state at the start of a block of steps.  Writing one also sets the writer's own state to what
 * a reader that starts there will have. */
int st_blocks_put_keyframe(struct st_blocks_model *model, struct st_requests *requests,
                           struct st_bytes *out, struct st_error *err);
/* A reader that comes by a keyframe takes the same step. */
int st_blocks_pass_keyframe(struct st_blocks_model *model, const struct st_requests *requests,
                            struct st_error *err);
int st_blocks_get_keyframe(struct st_blocks_model *model, struct st_requests *requests,
                           const void *data, size_t size, struct st_error *err);

#endif
