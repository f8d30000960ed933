/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Private to `steptape record`: what it was asked for, and the environment it makes for the
 * command.
 */
#ifndef ST_CAPTURE_RECORD_H
#define ST_CAPTURE_RECORD_H

#include <stdbool.h>
#include <stdint.h>

#include "traces/base/error.h"

struct st_record_options {
    const char *output;
    const char *launches; /* off, count, graph, node, full; NULL: what this machine can */
    const char *budget;   /* "1%"; NULL: the usual */
    bool all_ranks;
    int64_t ring_bytes; /* 0: the recorder's own */
    char **command;
};

/* Where a part of the installation lies, the caller's to free: beside the program as it was
 * installed, or in its build folder.  NULL: it is not there. */
char *st_record_find(const char *installed, const char *built);

/* STEPTAPE_LIBRARY, unless it is set: libsteptape_capture.so. */
int st_record_set_library(struct st_error *err);

/* Puts the installation's Python package into this process's PYTHONPATH. */
int st_record_add_python(struct st_error *err);

/* Changes this process's environment to the one that the command gets. *launches: the level. */
int st_record_set_environment(const struct st_record_options *options, const char **launches,
                              struct st_error *err);

/* Tapes of this recording that were not there before. */
struct st_record_tapes {
    char **before;
    int before_count;
    bool want_launches; /* a tape without them is pointed out */
};
int st_record_list_before(const char *output, struct st_record_tapes *tapes, struct st_error *err);
/* Prints a line or two on stderr for each new one. *count: how many; *steps: theirs together. */
int st_record_summarize(const char *output, const struct st_record_tapes *tapes, int *count,
                        int64_t *steps, struct st_error *err);
void st_record_tapes_fini(struct st_record_tapes *tapes);

#endif
