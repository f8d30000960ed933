/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Writing a tape.  The file grows under a temporary name beside the target and takes its name in
 * st_writer_finish(): no reader ever sees half a tape.
 */
#ifndef ST_FORMAT_WRITER_H
#define ST_FORMAT_WRITER_H

#include <stdint.h>

#include "traces/base/error.h"
#include "traces/format/header.h"
#include "traces/format/step.h"

struct st_writer;

int st_writer_open(const char *path, const struct st_header *header, struct st_writer **writer,
                   struct st_error *err);
/* Steps come in order, step_id consecutive.  check_json: text of the `check` object, or NULL.
 * The step is copied. */
int st_writer_add(struct st_writer *writer, const struct st_step *step, const char *check_json,
                  struct st_error *err);
/* Row of the `operation` table: what made this file. */
int st_writer_operation(struct st_writer *writer, int argc, char **argv, struct st_error *err);
/* Writes what is buffered, hashes, syncs, renames.  The writer is gone afterwards, also on error.
 */
int st_writer_finish(struct st_writer *writer, struct st_error *err);
/* Removes the temporary file. Accepts NULL. */
void st_writer_abort(struct st_writer *writer);

#endif
