/* SPDX-License-Identifier: Apache-2.0 */
/* Commands of traces/, called from the table in steptape.c. */
#ifndef ST_TRACES_COMMANDS_H
#define ST_TRACES_COMMANDS_H

#include "traces/base/command.h"

extern const struct st_command st_cmd_anonymize;
extern const struct st_command st_cmd_import;
extern const struct st_command st_cmd_dump;
extern const struct st_command st_cmd_info;
extern const struct st_command st_cmd_verify;

/* `steptape bench codec`, called from the table of benchmarks. */
int st_bench_codec(int argc, char **argv);

#endif
