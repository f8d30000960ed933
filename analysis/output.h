/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Where a command's data goes: stdout, or a file that appears only when it is complete.
 *
 *     struct st_output output;
 *     ST_TRY(st_output_open(&output, path, err));
 *     fputs("...", output.stream);
 *     rc = st_output_close(&output, rc == 0, err);
 */
#ifndef ST_ANALYSIS_OUTPUT_H
#define ST_ANALYSIS_OUTPUT_H

#include <stdbool.h>
#include <stdio.h>

#include "traces/base/error.h"

struct st_output {
    FILE *stream;
    const char *path; /* NULL: stdout */
    char *temporary;  /* written beside path, then renamed */
};

/* path NULL or "-": stdout. path is borrowed. */
int st_output_open(struct st_output *output, const char *path, struct st_error *err);
/* keep: everything went well so far; else the file is removed.  A failed write (disk full) is an
 * error and leaves nothing behind. */
int st_output_close(struct st_output *output, bool keep, struct st_error *err);

#endif
