/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reading the interchange format of steps: JSON lines, plain or gzip, one header and then one line
 * a step.
 *
 *     struct st_interchange *in;
 *     ST_TRY(st_interchange_open("steps.jsonl.gz", NULL, &in, err));
 *     st_writer_open("x.tape", st_interchange_header(in), &writer, err);
 *     while ((rc = st_interchange_next(in, &step, &check_json, err)) == 0)
 *         st_writer_add(writer, step, check_json, err);
 *     st_interchange_close(in);
 *
 * Invariants
 *  1. Nothing wrong passes: every key, type, range and every rule between steps is checked before
 *     a step is given out.  An error is one line "FILE: line N: step S: KEY: what is wrong, what
 *     was expected" with ST_ERR_INPUT.  After an error only _close is allowed.
 *  2. An optional key that is absent, or null, is absent in the struct as well (see step.h).
 *  3. Memory is bounded by the longest line, and by the number of requests ever seen.
 */
#ifndef ST_INTERCHANGE_PARSE_H
#define ST_INTERCHANGE_PARSE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "traces/base/error.h"
#include "traces/format/header.h"
#include "traces/format/step.h"

struct st_interchange;

struct st_interchange_options {
    bool ignore_unknown;   /* drop keys that the format does not know instead of refusing them */
    bool no_check;         /* leave `check` objects out; they are still checked */
    size_t max_line_bytes; /* 0: 256 MiB */
};

/* path "-" is standard input.  options may be NULL.  The header is read here. */
int st_interchange_open(const char *path, const struct st_interchange_options *options,
                        struct st_interchange **in, struct st_error *err);
/* Over memory that outlives the object; name stands in messages. */
int st_interchange_open_memory(const char *name, const void *data, size_t size,
                               const struct st_interchange_options *options,
                               struct st_interchange **in, struct st_error *err);
void st_interchange_close(struct st_interchange *in);

const struct st_header *st_interchange_header(const struct st_interchange *in);

/* 0 and a borrowed step (until the next call), or ST_DONE.  *check_json: the `check` object as
 * compact JSON text, its keys in their order; NULL when there is none. */
int st_interchange_next(struct st_interchange *in, const struct st_step **step,
                        const char **check_json, struct st_error *err);

/* What is odd but allowed, counted by kind. */
enum st_interchange_warning {
    ST_WARN_MAX_NUM_SEQS,           /* more requests in a step than max_num_seqs */
    ST_WARN_MAX_NUM_BATCHED_TOKENS, /* more tokens in a step than max_num_batched_tokens */
    ST_WARN_MAX_MODEL_LEN,          /* start + qlen above max_model_len */
    ST_WARN_START_BELOW,            /* a start below the last start + qlen, without drafts */
    ST_WARN_UNKNOWN_KEY,            /* ignored, see ignore_unknown */
    ST_WARN_KINDS
};

/* How often; when more than 0, *text (may be NULL) is one line for people, borrowed from in. */
int64_t st_interchange_warning(struct st_interchange *in, enum st_interchange_warning kind,
                               const char **text);

/* For a progress bar: bytes of the file read so far, and its size (0: unknown). */
int64_t st_interchange_bytes_read(const struct st_interchange *in);
int64_t st_interchange_bytes_total(const struct st_interchange *in);

#endif
