/* SPDX-License-Identifier: Apache-2.0 */
/* Commands of analysis/, called from the table in steptape.c. */
#ifndef ST_ANALYSIS_COMMANDS_H
#define ST_ANALYSIS_COMMANDS_H

#include "traces/base/command.h"

extern const struct st_command st_cmd_report;
extern const struct st_command st_cmd_query;
extern const struct st_command st_cmd_doctor;

#endif
