/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The table of switches.  A new switch is one entry here and one case in the plan.
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
        {
            "c128-launch",
            "when the pool and store kernels of ratio-128 layers are launched",
            {
                [ST_C128_LAUNCH_ALWAYS] = {"always", "in every step", NULL},
                [ST_C128_LAUNCH_SKIP_EMPTY] =
                    {"skip-empty",
                     "only when a token of the step closes a group of 128 (vLLM #48957);\n"
                     "                but always in FULL graphs and without starts on the CPU",
                     NULL},
            },
            {[PRESET_BASELINE] = ST_C128_LAUNCH_ALWAYS,
             [PRESET_UPSTREAM] = ST_C128_LAUNCH_SKIP_EMPTY,
             [PRESET_CORRECTED] = ST_C128_LAUNCH_SKIP_EMPTY,
             [PRESET_SAFE] = ST_C128_LAUNCH_SKIP_EMPTY},
        },
};

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

void st_policy_list(FILE *out) {
    fputs("A policy is a preset, or a preset with changes: --policy baseline,c128-launch=skip-empty"
          "\n\nPresets:\n",
          out);
    for (int p = 0; p < PRESET_COUNT; p++) {
        fprintf(out, "  %-11s%s\n             ", presets[p].name, presets[p].summary);
        for (int i = 0; i < ST_SWITCH_COUNT; i++)
            fprintf(out, "%s%s=%s", i ? ", " : "", switches[i].name,
                    switches[i].value[(int)switches[i].preset[p]].name);
        fputc('\n', out);
    }
    fputs("\nSwitches:\n", out);
    for (int i = 0; i < ST_SWITCH_COUNT; i++) {
        fprintf(out, "  %s: %s\n", switches[i].name, switches[i].summary);
        for (int v = 0; v < MAX_VALUES && switches[i].value[v].name; v++) {
            const struct value *value = &switches[i].value[v];
            fprintf(out, "    %-12s%s\n    %-12sknown hazard: %s\n", value->name, value->summary,
                    "", value->hazard ? value->hazard : "none");
        }
    }
}
