/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Facts of a block of steps: batches, query lengths, starts, events; everything but block ids.
 *
 * Each column of the block is a byte string of its own; all of them are packed together by zlib.
 * A step is coded against what the requests' state predicts: the same batch in the same order, one
 * token a request (one more for each draft token), starting where the last step ended.  A decode
 * step of 256 requests that goes as predicted takes one byte before zlib.
 *
 * A block begins with a snapshot of the live requests, so that reading can start at any block.
 * FORMAT.md has the grammar.
 */
#ifndef ST_FORMAT_FACTS_H
#define ST_FORMAT_FACTS_H

#include "traces/base/bytes.h"
#include "traces/base/error.h"
#include "traces/format/requests.h"
#include "traces/format/step.h"

enum st_facts_column {
    ST_FACTS_SNAPSHOT,
    ST_FACTS_FLAGS,
    ST_FACTS_EVENTS,
    ST_FACTS_BATCH,
    ST_FACTS_QUERY_LEN,
    ST_FACTS_START,
    ST_FACTS_DRAFT,
    ST_FACTS_ZEROED,
    ST_FACTS_COLUMNS
};

const char *st_facts_column_name(enum st_facts_column column);

enum {
    ST_LIST_FINISHED,
    ST_LIST_PREEMPTED,
    ST_LIST_RESUMED,
    ST_LIST_NEW,
    ST_LIST_REPLACED,
    ST_LISTS
};

struct st_facts_encoder {
    struct st_bytes column[ST_FACTS_COLUMNS];
    int64_t last_id[ST_LISTS];
};

/* Empties the columns and writes the snapshot. */
void st_facts_encoder_begin(struct st_facts_encoder *encoder, struct st_requests *requests);
/* Codes one step and moves `requests` to it (events applied, rows set). */
int st_facts_encode(struct st_facts_encoder *encoder, struct st_requests *requests,
                    const struct st_step *step, struct st_error *err);
void st_facts_encoder_fini(struct st_facts_encoder *encoder);

struct st_facts_decoder {
    struct st_bytes raw;
    struct st_bytes_reader column[ST_FACTS_COLUMNS];
    int64_t last_id[ST_LISTS];
    /* Arrays of the step handed out. */
    int64_t *request_id;
    int32_t *query_len, *start, *draft, *prompt_len;
    int32_t row_capacity;
    int64_t *list[ST_LISTS];
    int32_t list_capacity[ST_LISTS];
    int32_t *new_prompt_len;
};

/* data stays the caller's and is not needed afterwards. */
int st_facts_decoder_begin(struct st_facts_decoder *decoder, const void *data, size_t size,
                           struct st_error *err);
/* Fills `requests` from the snapshot of the block just begun. */
int st_facts_decode_snapshot(struct st_facts_decoder *decoder, struct st_requests *requests,
                             struct st_error *err);
/* Decodes the next step (step->step_id is the caller's) and moves `requests` to it. */
int st_facts_decode(struct st_facts_decoder *decoder, struct st_requests *requests,
                    struct st_step *step, struct st_error *err);
void st_facts_decoder_fini(struct st_facts_decoder *decoder);

#endif
