/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What `steptape info` knows of a tape, and how it prints it.  ST_UNKNOWN: not known.
 */
#ifndef ST_TRACES_INFO_H
#define ST_TRACES_INFO_H

#include <stdbool.h>
#include <stdint.h>

#include "traces/base/error.h"
#include "traces/format/reader.h"
#include "traces/interchange/out.h"

struct sqlite3;
struct sqlite3_stmt;

struct st_info {
    const char *path;
    struct st_tape *tape;
    struct sqlite3 *db;
    const struct st_header *header;
    bool is_result;
    bool has_sums; /* the tape has them by graph mode */
    int64_t size_bytes;

    /* From the step rows. */
    int64_t step_count, first_step, last_step;
    int64_t begin_ns, end_ns; /* start of the first step, end of the last */
    int64_t busy_ns;          /* sum over the steps */
    int64_t request_step_count, token_count, decode_count, prefill_token_count;
    int64_t max_request_count, max_query_len, max_seq_len, preempted_count;

    /* From the arrays: not of a result tape. */
    int64_t request_count, block_id_count;
    /* Steps by the c128 predicate: they sum up to step_count. */
    int64_t c128_closes, c128_none, c128_none_full, c128_unknown, c128_empty;
};

/* Calls row for each row of a statement; none when this SQLite or this file lacks the table. */
int st_info_each(struct st_info *info, const char *sql,
                 void (*row)(struct sqlite3_stmt *stmt, void *context), void *context,
                 struct st_error *err);

int st_info_print_table(struct st_info *info, struct st_out *out, struct st_error *err);
int st_info_print_json(struct st_info *info, struct st_out *out, struct st_error *err);

#endif
