/* SPDX-License-Identifier: Apache-2.0 */
/* Commands of capture/, called from the table in steptape.c. */
#ifndef ST_CAPTURE_COMMANDS_H
#define ST_CAPTURE_COMMANDS_H

#include "traces/base/command.h"

extern const struct st_command st_cmd_record;
extern const struct st_command st_cmd_recover;

/* `steptape bench recorder` and what else capture/ measures. */
extern const struct st_bench_command st_capture_benches[];

#endif
