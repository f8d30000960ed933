/* SPDX-License-Identifier: Apache-2.0 */
/* Commands of analysis/, called from the table in steptape.c. */
#ifndef ST_ANALYSIS_COMMANDS_H
#define ST_ANALYSIS_COMMANDS_H

#include <stdint.h>

#include "traces/base/command.h"

/* What doctor borrows from folders it may not include; set by main before a command runs. */
struct st_doctor_hooks {
    /* Where a part of the installation lies, as `steptape record` looks for it: a path to free, or
     * NULL. */
    char *(*find_part)(const char *installed, const char *built);
    int64_t ring_bytes; /* what a recorder reserves */
};
void st_doctor_set_hooks(const struct st_doctor_hooks *hooks);

extern const struct st_command st_cmd_report;
extern const struct st_command st_cmd_query;
extern const struct st_command st_cmd_doctor;

#endif
