/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A copy of a tape that does not say whose it is, and a list of what such a copy still says.
 *
 * The copy is written anew, value by value: what is not known here is not copied.  Request numbers
 * are counted from 0 in the order in which they appear, starts from the first step's.
 */
#ifndef ST_TRACES_ANONYMIZE_H
#define ST_TRACES_ANONYMIZE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "traces/base/error.h"
#include "traces/format/reader.h"
#include "traces/format/writer.h"

struct st_anonymize_options {
    bool keep_model;   /* tape.model, and tape.architecture as it stands */
    bool keep_times;   /* clocks and starts, and the time of day of the copy */
    bool keep_kernels; /* names of kernels as they are */
    bool keep_check;   /* check objects that hold numbers alone */
    bool drop_unknown; /* leave tables and columns out that are not known here */
};

/* What was not copied. */
struct st_anonymize_left_out {
    int64_t checks, notes, operations, unknown;
};

/* *writer holds the copy, not yet finished.  progress is drawn. */
int st_anonymize(struct st_tape *tape, const char *output,
                 const struct st_anonymize_options *options, struct st_writer **writer,
                 struct st_anonymize_left_out *left_out, struct st_error *err);

/* ---- its launches, anonymize_launches.c */

/* Lowers *first to one below the first time of the tape's launches; ST_UNKNOWN counts as later than
 * all. */
int st_anonymize_find_first(struct st_tape *tape, int64_t *first, struct st_error *err);
/* base: what is taken off every time. */
int st_anonymize_launches(struct st_tape *tape, const char *output,
                          const struct st_anonymize_options *options, int64_t base,
                          struct st_writer *writer, struct st_error *err);

/* ---- the columns of a tape */

enum st_keep { ST_KEEP_NEVER, ST_KEEP_MODEL, ST_KEEP_TIMES, ST_KEEP_KERNELS, ST_KEEP_CHECK };

struct st_private_column {
    const char *table, *column;
    const char *part;      /* of a packed column: what of it; NULL: all */
    const char *treatment; /* "kept", "removed", "reduced", "relative", "renumbered", "new" */
    const char *tells;     /* "nothing", "model", "setup", "traffic", "identity" */
    const char *holds;
    enum st_keep keep; /* the option that makes it "kept" */
};

/* In the order of the schema, ended by a row without a table. */
extern const struct st_private_column st_private_columns[];
/* NULL: not known. */
const struct st_private_column *st_private_find(const char *table, const char *column);

enum { ST_PRIVATE_TEXT = 64 };

/* What a column of a tape holds. */
struct st_private_content {
    const struct st_private_column *column;
    int64_t count; /* values that are not NULL */
    bool is_text;
    char least[ST_PRIVATE_TEXT], greatest[ST_PRIVATE_TEXT]; /* bytes of a packed one; cut to size */
};

/* Reads the tape to its end and calls each for each known column, in order.
 * ST_ERR_UNSUPPORTED when it has another. */
int st_private_inspect(struct st_tape *tape,
                       void (*each)(const struct st_private_content *content, void *user),
                       void *user, struct st_error *err);
/* The first column that is not known and has a value, as "TABLE" or "TABLE.COLUMN"; "": none.
 * *count: tables and columns like that. */
int st_private_find_unknown(struct st_tape *tape, char *name, size_t size, int64_t *count,
                            struct st_error *err);

#endif
