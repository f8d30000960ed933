/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One engine step as the tape holds it: what the scheduler decided, and nothing that it did not.
 *
 * The same struct goes into the writer (traces/format/writer.h) and comes out of a cursor
 * (traces/format/reader.h).  Field names follow the interchange format; units are in the names.
 * Arrays handed out by a cursor are borrowed until the next call on that cursor.
 */
#ifndef ST_FORMAT_STEP_H
#define ST_FORMAT_STEP_H

#include <stdint.h>

/* A time or a size that nobody recorded. NULL in SQL, null in JSON; never 0. */
#define ST_UNKNOWN INT64_MIN

#define ST_MAX_GROUPS 64
#define ST_STEP_ID_MAX ((int64_t)1 << 62) /* so that sums of step numbers stay in range */

enum st_graph_mode {
    ST_GRAPH_MODE_UNKNOWN = -1,
    ST_GRAPH_MODE_NONE = 0,
    ST_GRAPH_MODE_PIECEWISE = 1,
    ST_GRAPH_MODE_FULL = 2
};

/* "NONE", "PIECEWISE", "FULL"; NULL for unknown. */
const char *st_graph_mode_name(enum st_graph_mode mode);

/* A list of request numbers. count -1: the optional key was absent. */
struct st_request_list {
    int32_t count;
    const int64_t *request_id;
};

/* Block ids of all rows of one group: row r owns block_id[offset[r] .. offset[r+1]). */
struct st_row_blocks {
    const int32_t *offset;   /* [request_count + 1] */
    const int32_t *block_id; /* [offset[request_count]] */
};

struct st_step {
    int64_t step_id;
    int64_t start_ns;    /* monotonic; ST_UNKNOWN */
    int64_t duration_ns; /* ST_UNKNOWN */
    enum st_graph_mode graph_mode;
    int64_t padded_token_count;   /* ST_UNKNOWN */
    int64_t padded_request_count; /* ST_UNKNOWN */
    int8_t cpu_starts;            /* 1, 0, or -1: the key was absent, which means 1 */
    int64_t zeroed;               /* ST_UNKNOWN: the key was absent */
    int64_t dropped_before; /* steps that the recorder dropped between the last one and this */

    /* The batch, in batch order. */
    int32_t request_count;
    int64_t token_count;                /* sum of query_len */
    const int64_t *request_id;          /* [request_count] */
    const int32_t *query_len;           /* [request_count] >= 1 */
    const int32_t *num_computed_tokens; /* [request_count] at the start of the step */
    const int32_t *draft;               /* [request_count], or NULL: the key was absent */
    const int32_t *prompt_len;          /* [request_count] prompt length of each row; -1 unknown.
                                           Read only: the writer ignores it, see new_prompt_len */

    /* Events before the step; lists keep the order of the recording. */
    struct st_request_list new_requests; /* first scheduled here */
    const int32_t *new_prompt_len;       /* [new_requests.count] */
    struct st_request_list finished;
    struct st_request_list preempted;
    struct st_request_list resumed;
    struct st_request_list replaced; /* rows whose blocks replace their table; count -1: absent */

    /* Block ids appended in this step; NULL from a cursor that was opened without ST_READ_BLOCKS.
     */
    int32_t group_count;
    const struct st_row_blocks *blocks; /* [group_count] */
};

/* True when the engine had num_computed_tokens on the CPU. */
static inline int st_step_has_cpu_starts(const struct st_step *step) {
    return step->cpu_starts != 0;
}

#endif
