/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Buffered output of text to standard output, a file or memory, with a fast printer of integers.
 *
 *     struct st_out *out;
 *     ST_TRY(st_out_open("x.jsonl", &out, err));
 *     st_out_string(out, "{\"step\":");
 *     st_out_int(out, 17);
 *     ST_TRY(st_out_finish(out, err));
 *
 * Invariants
 *  1. A regular file grows under a temporary name beside the target and takes its name in
 *     st_out_finish(): nobody sees half of it.  A device or a pipe is written directly.
 *  2. Put functions return nothing; the first error is kept, later output is thrown away, and
 *     st_out_finish() tells.  A long loop may look at st_out_failed().
 */
#ifndef ST_INTERCHANGE_OUT_H
#define ST_INTERCHANGE_OUT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "traces/base/error.h"

struct st_out;

/* path NULL or "-": standard output. */
int st_out_open(const char *path, struct st_out **out, struct st_error *err);
/* Collects in memory; see st_out_memory(). */
int st_out_open_memory(struct st_out **out, struct st_error *err);

void st_out_bytes(struct st_out *out, const char *data, size_t size);
void st_out_string(struct st_out *out, const char *text);
void st_out_int(struct st_out *out, int64_t value);
void st_out_ints32(struct st_out *out, const int32_t *values, int64_t count); /* 1,2,3 */
void st_out_ints64(struct st_out *out, const int64_t *values, int64_t count);
/* "text" with JSON's escapes, and U+FFFD for what is not UTF-8; NULL gives null. */
void st_out_json_string(struct st_out *out, const char *text);
/* What is JSON already, U+FFFD in its strings for what is not UTF-8. */
void st_out_json(struct st_out *out, const char *json);
void st_out_format(struct st_out *out, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

bool st_out_failed(const struct st_out *out);
/* What a memory output holds so far, borrowed. */
const char *st_out_memory(const struct st_out *out, size_t *size);

/* Flushes and gives the file its name.  The output is gone afterwards, also on error. */
int st_out_finish(struct st_out *out, struct st_error *err);
/* Removes the temporary file.  Accepts NULL. */
void st_out_abort(struct st_out *out);

#endif
