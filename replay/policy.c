/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The table of switches.  A new switch is one entry here and one rule in the plan (plan_layers.c).
 */
#include "replay/policy.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#define MAX_VALUES 8

enum preset { PRESET_BASELINE, PRESET_UPSTREAM, PRESET_CORRECTED, PRESET_SAFE, PRESET_COUNT };

static const struct {
    const char *name, *summary;
} presets[PRESET_COUNT] = {
    [PRESET_BASELINE] = {"baseline", "every launch, as before the changes"},
    [PRESET_UPSTREAM] = {"upstream", "the changes as vLLM first merged them"},
    [PRESET_CORRECTED] = {"corrected", "the changes as vLLM has them today"},
    [PRESET_SAFE] = {"safe", "the fastest setting without a known hazard"},
};

struct value {
    const char *name, *summary;
    const char *hazard; /* NULL: none known */
};

static const struct {
    const char *name, *summary;
    struct value value[MAX_VALUES]; /* ended by a NULL name */
    int8_t preset[PRESET_COUNT];
} switches[ST_SWITCH_COUNT] = {
    [ST_SWITCH_C128_LAUNCH] =
        {"c128-launch",
         "how the pool and store kernels of ratio-128 layers are launched",
         {
             [ST_C128_LAUNCH_ALWAYS] = {"always", "both, in every step", NULL},
             [ST_C128_LAUNCH_SKIP_EMPTY] =
                 {"skip-empty",
                  "only when a token of the step closes a group of 128 (vLLM #48957); but always\n"
                  "in FULL graphs (see graph-skip) and without starts on the CPU",
                  NULL},
             [ST_C128_LAUNCH_COMPACT] =
                 {"compact",
                  "one fused launch a layer; with more than 64 tokens along a list, made by a\n"
                  "kernel once a step: every mode, no knowledge on the CPU",
                  NULL},
             [ST_C128_LAUNCH_BY_SIZE] =
                 {"by-size",
                  "skip-empty in steps of up to 64 tokens (with padding), where most close no\n"
                  "group, and compact in larger ones",
                  NULL},
         },
         {[PRESET_BASELINE] = ST_C128_LAUNCH_ALWAYS,
          [PRESET_UPSTREAM] = ST_C128_LAUNCH_SKIP_EMPTY,
          [PRESET_CORRECTED] = ST_C128_LAUNCH_SKIP_EMPTY,
          [PRESET_SAFE] = ST_C128_LAUNCH_BY_SIZE}},
    [ST_SWITCH_TOPK_WIDTH] =
        {"topk-width",
         "columns and row stride of the C128A index lists",
         {
             [ST_TOPK_WIDTH_CAPACITY] = {"capacity", "what max_model_len needs", NULL},
             [ST_TOPK_WIDTH_PACKED] =
                 {"packed", "what this batch needs, rows packed as close (vLLM #50004)",
                  "FULL: a graph keeps the stride of its capture, so every row but the first is\n"
                  "read from stale memory (reverted by #51318)"},
             [ST_TOPK_WIDTH_STRIDED] =
                 {"strided", "what this batch needs, at the stride of capacity (vLLM #52823)",
                  NULL},
         },
         {[PRESET_BASELINE] = ST_TOPK_WIDTH_CAPACITY,
          [PRESET_UPSTREAM] = ST_TOPK_WIDTH_PACKED,
          [PRESET_CORRECTED] = ST_TOPK_WIDTH_STRIDED,
          [PRESET_SAFE] = ST_TOPK_WIDTH_STRIDED}},
    [ST_SWITCH_COMBINE_BUFFER] =
        {"combine-buffer",
         "what the combined index rows of sparse prefill hold past their length",
         {
             [ST_COMBINE_BUFFER_FILL] = {"fill", "-1, by a fill of every row before the kernel",
                                         NULL},
             [ST_COMBINE_BUFFER_REUSE] =
                 {"reuse", "what an earlier chunk left in the reserved workspace (vLLM #50298)",
                  "a stale index within the length's tile can point at a NaN row, and the output\n"
                  "of that token is NaN (#55299)"},
             [ST_COMBINE_BUFFER_RESEED] = {"reseed",
                                           "-1, by a fill of the workspace's rows (vLLM #55299)",
                                           NULL},
             [ST_COMBINE_BUFFER_TAIL] =
                 {"tail",
                  "-1 up to the next multiple of 128, where the consumer stops, written by\n"
                  "the kernel itself",
                  NULL},
         },
         {[PRESET_BASELINE] = ST_COMBINE_BUFFER_FILL,
          [PRESET_UPSTREAM] = ST_COMBINE_BUFFER_REUSE,
          [PRESET_CORRECTED] = ST_COMBINE_BUFFER_RESEED,
          [PRESET_SAFE] = ST_COMBINE_BUFFER_TAIL}},
    [ST_SWITCH_TOPK_SELECT] =
        {"topk-select",
         "which kernels choose an indexer's entries",
         {
             [ST_TOPK_SELECT_LIBRARY] =
                 {"library", "the library's sort and small kernels around it, as upstream had it",
                  "rows that start at another column than 0 get absolute columns (#42810)"},
             [ST_TOPK_SELECT_LIBRARY_RELATIVE] =
                 {"library-relative", "the same chain, columns relative to the row's start", NULL},
             [ST_TOPK_SELECT_FAST_2048] =
                 {"fast-2048",
                  "the kernel of its own for k = 2048, library for others (vLLM #42072)",
                  "as library, where k is not 2048"},
             [ST_TOPK_SELECT_FAST] = {"fast", "the kernel of its own for every k", NULL},
         },
         {[PRESET_BASELINE] = ST_TOPK_SELECT_LIBRARY_RELATIVE,
          [PRESET_UPSTREAM] = ST_TOPK_SELECT_FAST_2048,
          [PRESET_CORRECTED] = ST_TOPK_SELECT_FAST,
          [PRESET_SAFE] = ST_TOPK_SELECT_FAST}},
    [ST_SWITCH_TOPK_ROWS] =
        {"topk-rows",
         "rows that top-k of decode writes where requests verify different counts of drafts",
         {
             [ST_TOPK_ROWS_FLAT] = {"flat", "one a token, each with a length of its own", NULL},
             [ST_TOPK_ROWS_PADDED] =
                 {"padded",
                  "as many a request as the longest has tokens (next_n), into a view of so many\n"
                  "rows; FULL: as flat, a graph's decodes are of one length",
                  NULL},
             [ST_TOPK_ROWS_UNPADDED] =
                 {"unpadded", "the same launch over a view of the step's tokens",
                  "the rows of shorter requests go past the view: over what prefill selected, or\n"
                  "past the array"},
         },
         {[PRESET_BASELINE] = ST_TOPK_ROWS_FLAT,
          [PRESET_UPSTREAM] = ST_TOPK_ROWS_FLAT,
          [PRESET_CORRECTED] = ST_TOPK_ROWS_FLAT,
          [PRESET_SAFE] = ST_TOPK_ROWS_FLAT}},
    [ST_SWITCH_GRAPH_SKIP] =
        {"graph-skip",
         "how c128-launch=skip-empty acts inside FULL graphs",
         {
             [ST_GRAPH_SKIP_NONE] = {"none", "not at all: the graph holds the launches", NULL},
             [ST_GRAPH_SKIP_VARIANT] =
                 {"variant",
                  "two graphs a capture size, the host picks one; needs starts on the CPU", NULL},
             [ST_GRAPH_SKIP_NODE_DISABLE] =
                 {"node-disable", "the host switches the nodes off and on; needs starts on the CPU",
                  NULL},
             [ST_GRAPH_SKIP_CONDITIONAL] =
                 {"conditional", "one IF/ELSE node a step, its condition written by a kernel",
                  NULL},
         },
         {[PRESET_BASELINE] = ST_GRAPH_SKIP_NONE,
          [PRESET_UPSTREAM] = ST_GRAPH_SKIP_NONE,
          [PRESET_CORRECTED] = ST_GRAPH_SKIP_NONE,
          [PRESET_SAFE] = ST_GRAPH_SKIP_VARIANT}},
    [ST_SWITCH_MLA_PLAN] =
        {"mla-plan",
         "how often the planner of sparse decode runs",
         {
             [ST_MLA_PLAN_PER_LAYER] = {"per-layer", "in every layer, serially (vLLM 0.26)", NULL},
             [ST_MLA_PLAN_PER_TYPE] = {"per-type", "once a step for each kind of layers, serially",
                                       NULL},
             [ST_MLA_PLAN_FAST] = {"fast", "once a step for each kind of layers, in parallel",
                                   NULL},
         },
         {[PRESET_BASELINE] = ST_MLA_PLAN_PER_LAYER,
          [PRESET_UPSTREAM] = ST_MLA_PLAN_PER_LAYER,
          [PRESET_CORRECTED] = ST_MLA_PLAN_PER_LAYER,
          [PRESET_SAFE] = ST_MLA_PLAN_FAST}},
};

enum st_c128_launch st_policy_c128_launch(const struct st_policy *policy, int32_t tokens) {
    enum st_c128_launch launch = (enum st_c128_launch)policy->value[ST_SWITCH_C128_LAUNCH];
    if (launch != ST_C128_LAUNCH_BY_SIZE)
        return launch;
    return tokens <= ST_C128_FEW_TOKENS ? ST_C128_LAUNCH_SKIP_EMPTY : ST_C128_LAUNCH_COMPACT;
}

/* Names of one kind, "a, b, c", for an error message. */
static void join(char *out, size_t size, const char *name) {
    size_t used = strlen(out);
    snprintf(out + used, size - used, "%s%s", used ? ", " : "", name);
}

static int find_preset(const char *name, enum preset *preset, struct st_error *err) {
    char valid[128] = "";
    for (int i = 0; i < PRESET_COUNT; i++) {
        if (strcmp(name, presets[i].name) == 0) {
            *preset = (enum preset)i;
            return 0;
        }
        join(valid, sizeof valid, presets[i].name);
    }
    return ST_FAIL(err, ST_ERR_USAGE, "--policy: there is no preset '%s'; presets are %s", name,
                   valid);
}

static int find_value(int sw, const char *name, int8_t *value, struct st_error *err) {
    char valid[256] = "";
    for (int i = 0; i < MAX_VALUES && switches[sw].value[i].name; i++) {
        if (strcmp(name, switches[sw].value[i].name) == 0) {
            *value = (int8_t)i;
            return 0;
        }
        join(valid, sizeof valid, switches[sw].value[i].name);
    }
    return ST_FAIL(err, ST_ERR_USAGE, "--policy: switch '%s' has no value '%s'; values are %s",
                   switches[sw].name, name, valid);
}

static int find_switch(const char *name, int *sw, struct st_error *err) {
    char valid[256] = "";
    for (int i = 0; i < ST_SWITCH_COUNT; i++) {
        if (strcmp(name, switches[i].name) == 0) {
            *sw = i;
            return 0;
        }
        join(valid, sizeof valid, switches[i].name);
    }
    return ST_FAIL(err, ST_ERR_USAGE, "--policy: there is no switch '%s'; switches are %s", name,
                   valid);
}

static int parse_change(char *text, struct st_policy *policy, bool *given, struct st_error *err) {
    char *equals = strchr(text, '=');
    if (!equals)
        return ST_FAIL(err, ST_ERR_USAGE,
                       "--policy: '%s' is no SWITCH=VALUE; only the first item is a preset", text);
    *equals = 0;
    int sw = 0;
    ST_TRY(find_switch(text, &sw, err));
    if (given[sw])
        return ST_FAIL(err, ST_ERR_USAGE, "--policy: switch '%s' is given twice", text);
    given[sw] = true;
    return find_value(sw, equals + 1, &policy->value[sw], err);
}

int st_policy_parse(const char *text, struct st_policy *policy, struct st_error *err) {
    char copy[sizeof policy->name];
    if (strlen(text) >= sizeof copy)
        return ST_FAIL(err, ST_ERR_USAGE, "--policy: longer than %zu characters", sizeof copy - 1);
    strcpy(copy, text);
    if (strstr(text, ",,") || text[0] == ',' || (text[0] && text[strlen(text) - 1] == ','))
        return ST_FAIL(err, ST_ERR_USAGE, "--policy %s: an item between commas is empty", text);
    bool given[ST_SWITCH_COUNT] = {false};
    struct st_policy result;
    memset(&result, 0, sizeof result);

    char *save = NULL;
    char *item = strtok_r(copy, ",", &save);
    if (!item)
        return ST_FAIL(err, ST_ERR_USAGE, "--policy: empty; `--policy list` shows what there is");
    enum preset preset = PRESET_BASELINE;
    ST_TRY(find_preset(item, &preset, err));
    for (int i = 0; i < ST_SWITCH_COUNT; i++)
        result.value[i] = switches[i].preset[preset];
    while ((item = strtok_r(NULL, ",", &save)))
        ST_TRY(parse_change(item, &result, given, err));

    int used = snprintf(result.name, sizeof result.name, "%s", presets[preset].name);
    for (int i = 0; i < ST_SWITCH_COUNT; i++)
        if (given[i])
            used += snprintf(result.name + used, sizeof result.name - (size_t)used, ",%s=%s",
                             switches[i].name, switches[i].value[(int)result.value[i]].name);
    *policy = result;
    return 0;
}

void st_policy_baseline(struct st_policy *policy) {
    memset(policy, 0, sizeof *policy);
    strcpy(policy->name, presets[PRESET_BASELINE].name);
    for (int i = 0; i < ST_SWITCH_COUNT; i++)
        policy->value[i] = switches[i].preset[PRESET_BASELINE];
}

/* Text whose further lines stand under its first. */
static void put_indented(FILE *out, const char *text, int indent) {
    for (; *text; text++) {
        fputc(*text, out);
        if (*text == '\n')
            fprintf(out, "%*s", indent, "");
    }
    fputc('\n', out);
}

static void list_switch(FILE *out, int sw) {
    fprintf(out, "\n  %s: %s\n", switches[sw].name, switches[sw].summary);
    for (int v = 0; v < MAX_VALUES && switches[sw].value[v].name; v++) {
        const struct value *value = &switches[sw].value[v];
        fprintf(out, "    %-18s", value->name);
        put_indented(out, value->summary, 22);
        fprintf(out, "%22sknown hazard: ", "");
        put_indented(out, value->hazard ? value->hazard : "none", 36);
    }
}

void st_policy_list(FILE *out) {
    fputs("A policy is a preset, or a preset with changes: --policy baseline,c128-launch=skip-empty"
          "\n\nPresets:\n",
          out);
    for (int p = 0; p < PRESET_COUNT; p++) {
        fprintf(out, "  %-11s%s\n", presets[p].name, presets[p].summary);
        for (int i = 0; i < ST_SWITCH_COUNT; i++)
            fprintf(out, "%13s%s=%s\n", "", switches[i].name,
                    switches[i].value[(int)switches[i].preset[p]].name);
    }
    fputs("\nSwitches:\n", out);
    for (int i = 0; i < ST_SWITCH_COUNT; i++)
        list_switch(out, i);
}
