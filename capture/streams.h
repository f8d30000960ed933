/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The streams of launches (launches-PID.stream) that libsteptape_inject leaves in the folder of a
 * recording: into the tape of the same process, and away.
 */
#ifndef ST_CAPTURE_STREAMS_H
#define ST_CAPTURE_STREAMS_H

#include <stdint.h>

#include "traces/base/error.h"
#include "traces/format/writer.h"

/* Adds the streams of a process, after all its steps.  What one cannot give is a note in the tape
 * and no error: the steps matter more.  sequence: the recorder's count of steps, for the note. */
int st_streams_import(struct st_writer *writer, const char *folder, int64_t pid, int64_t sequence,
                      struct st_error *err);
/* Removes them, once the tape has its name. */
void st_streams_remove(const char *folder, int64_t pid);
/* Removes those of processes that have ended, of a folder in which nothing is left to recover: of
 * ranks and helpers that recorded no step.  A later process of the same number would take them for
 * its own. */
void st_streams_tidy(const char *folder);

#endif
