/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The report of one run: what each policy launched and skipped, what that saves, and whether the
 * outputs are the same.
 *
 * The figures come from the files report_<section>.sql, which are part of the program; as csv, json
 * and jsonl they are printed as they are.  The table is laid out for a person and 100 columns.
 */
#ifndef ST_ANALYSIS_REPORT_H
#define ST_ANALYSIS_REPORT_H

#include <stdint.h>
#include <stdio.h>

#include "traces/base/error.h"

enum { ST_REPORT_LAST_RUN = -1 };

/* The table.  Fits st_replay_hooks.print_report. */
int st_report_print(const char *path, int64_t run_id, FILE *out, struct st_error *err);
/* format: "table", "csv", "json" or "jsonl".  section: "policy", "saving", ...; NULL: all, but in
 * csv, which holds one, "policy". */
int st_report_print_section(const char *path, int64_t run_id, const char *format,
                            const char *section, FILE *out, struct st_error *err);
/* "run, policy, ..." */
const char *st_report_section_names(void);

#endif
