/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Lines of a text file that may be gzip-compressed: where recordings come in.
 *
 *     struct st_lines *lines;
 *     ST_TRY(st_lines_open("steps.jsonl.gz", 0, &lines, err));
 *     while ((rc = st_lines_next(lines, &text, &length, err)) == 0)
 *         use(text, length);
 *     st_lines_close(lines);
 *
 * Invariants
 *  1. Compression is told by the first bytes, never by the name; gzip members may follow one
 *     another, as `cat a.gz b.gz` makes them.
 *  2. Memory is bounded by the longest line, and that by max_line_bytes.
 *  3. Every message begins with the file's name and is one line, whatever the name holds.
 *  4. SIGINT ends a wait for input with ST_ERR_INTERRUPTED (see traces/base/log.h).
 */
#ifndef ST_INTERCHANGE_LINES_H
#define ST_INTERCHANGE_LINES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "traces/base/error.h"

struct st_lines;

#define ST_LINES_DEFAULT_MAX_BYTES ((size_t)256 << 20)

/* path "-" is standard input.  max_line_bytes 0: ST_LINES_DEFAULT_MAX_BYTES. */
int st_lines_open(const char *path, size_t max_line_bytes, struct st_lines **lines,
                  struct st_error *err);
/* Over memory that outlives the object; name stands in messages. */
int st_lines_open_memory(const char *name, const void *data, size_t size, size_t max_line_bytes,
                         struct st_lines **lines, struct st_error *err);
void st_lines_close(struct st_lines *lines);

/* The next line without its newline, borrowed until the next call; ST_DONE after the last. */
int st_lines_next(struct st_lines *lines, const char **text, size_t *length, struct st_error *err);

/* Of the line last given: its number from 1, and whether a newline ended it. */
int64_t st_lines_number(const struct st_lines *lines);
bool st_lines_ended(const struct st_lines *lines);

/* For a progress bar: bytes of the file read so far, and its size (0: unknown). */
int64_t st_lines_bytes_read(const struct st_lines *lines);
int64_t st_lines_bytes_total(const struct st_lines *lines);

/* The file's name for messages: printable, at most 160 bytes, its end when it is longer. */
const char *st_lines_name(const struct st_lines *lines);

/* Copies at most size-1 bytes of text with everything unprintable as '?'; returns out. */
char *st_printable(char *out, size_t size, const char *text, size_t length);

#endif
