/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Policies: full settings of all switches.  One table in policy.c describes every switch, its
 * values, what each preset sets and each value's known hazard; help, parser and plan all use it.
 *
 *     struct st_policy policy;
 *     ST_TRY(st_policy_parse("baseline,c128-launch=skip-empty", &policy, err));
 */
#ifndef ST_REPLAY_POLICY_H
#define ST_REPLAY_POLICY_H

#include <stdint.h>
#include <stdio.h>

#include "traces/base/error.h"

enum st_switch { ST_SWITCH_C128_LAUNCH, ST_SWITCH_COUNT };

enum st_c128_launch { ST_C128_LAUNCH_ALWAYS, ST_C128_LAUNCH_SKIP_EMPTY };

#define ST_MAX_POLICIES 8

struct st_policy {
    char name[160]; /* as given, its switches in the table's order */
    int8_t value[ST_SWITCH_COUNT];
};

/* "PRESET[,SWITCH=VALUE...]"; ST_ERR_USAGE names what is valid. */
int st_policy_parse(const char *text, struct st_policy *policy, struct st_error *err);
/* Presets, switches, values, hazards: `--policy list`. */
void st_policy_list(FILE *out);

#endif
