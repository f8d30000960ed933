/* SPDX-License-Identifier: Apache-2.0 */
/* Commands of replay/, called from the table in steptape.c. */
#ifndef ST_REPLAY_COMMANDS_H
#define ST_REPLAY_COMMANDS_H

#include <stdint.h>
#include <stdio.h>

#include "traces/base/command.h"
#include "traces/base/error.h"

/* What replay borrows from folders it may not include; set by main before a command runs. */
struct st_replay_hooks {
    /* (optional) prints the table that `report` prints; default: the path of the result only. */
    int (*print_report)(const char *result_path, int64_t run_id, FILE *out, struct st_error *err);
};
void st_replay_set_hooks(const struct st_replay_hooks *hooks);

extern const struct st_command st_cmd_replay;
extern const struct st_command st_cmd_bench;
/* More rows for `steptape bench`, of folders that replay may not include. */
void st_bench_set_more(const struct st_bench_command *benches);

#endif
