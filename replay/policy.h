/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Policies: full settings of all switches.  One table in policy.c describes every switch, its
 * values, what each preset sets and each value's known hazard; help, parser, plan and tests use it.
 *
 *     struct st_policy policy;
 *     ST_TRY(st_policy_parse("baseline,c128-launch=skip-empty", &policy, err));
 */
#ifndef ST_REPLAY_POLICY_H
#define ST_REPLAY_POLICY_H

#include <stdint.h>
#include <stdio.h>

#include "traces/base/error.h"

enum st_switch {
    ST_SWITCH_C128_LAUNCH,
    ST_SWITCH_TOPK_WIDTH,
    ST_SWITCH_COMBINE_BUFFER,
    ST_SWITCH_TOPK_SELECT,
    ST_SWITCH_TOPK_ROWS,
    ST_SWITCH_GRAPH_SKIP,
    ST_SWITCH_MLA_PLAN,
    ST_SWITCH_COUNT
};

enum st_c128_launch {
    ST_C128_LAUNCH_ALWAYS,
    ST_C128_LAUNCH_SKIP_EMPTY,
    ST_C128_LAUNCH_COMPACT,
    ST_C128_LAUNCH_BY_SIZE
};
enum st_topk_width { ST_TOPK_WIDTH_CAPACITY, ST_TOPK_WIDTH_PACKED, ST_TOPK_WIDTH_STRIDED };
enum st_combine_buffer {
    ST_COMBINE_BUFFER_FILL,
    ST_COMBINE_BUFFER_REUSE,
    ST_COMBINE_BUFFER_RESEED,
    ST_COMBINE_BUFFER_TAIL
};
enum st_topk_select {
    ST_TOPK_SELECT_LIBRARY,
    ST_TOPK_SELECT_LIBRARY_RELATIVE,
    ST_TOPK_SELECT_FAST_2048,
    ST_TOPK_SELECT_FAST
};
enum st_topk_rows { ST_TOPK_ROWS_FLAT, ST_TOPK_ROWS_PADDED, ST_TOPK_ROWS_UNPADDED };
enum st_graph_skip {
    ST_GRAPH_SKIP_NONE,
    ST_GRAPH_SKIP_VARIANT,
    ST_GRAPH_SKIP_NODE_DISABLE,
    ST_GRAPH_SKIP_CONDITIONAL
};
enum st_mla_plan { ST_MLA_PLAN_PER_LAYER, ST_MLA_PLAN_PER_TYPE, ST_MLA_PLAN_FAST };

#define ST_MAX_POLICIES 8

struct st_policy {
    char name[240]; /* as given, its switches in the table's order */
    int8_t value[ST_SWITCH_COUNT];
};

/* "PRESET[,SWITCH=VALUE...]"; ST_ERR_USAGE names what is valid. */
int st_policy_parse(const char *text, struct st_policy *policy, struct st_error *err);
void st_policy_baseline(struct st_policy *policy);
/* c128-launch of a step of so many tokens, padding included: what by-size stands for there. */
enum st_c128_launch st_policy_c128_launch(const struct st_policy *policy, int32_t tokens);
/* Up to so many tokens by-size is skip-empty, and compact needs no list. */
enum { ST_C128_FEW_TOKENS = 64 };

/* Presets, switches, values, hazards: `--policy list`. */
void st_policy_list(FILE *out);

#endif
