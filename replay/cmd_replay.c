/* SPDX-License-Identifier: Apache-2.0 */
/*
 * steptape replay: the steps of a tape under one or more launch policies.
 */
#include <argp.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "replay/commands.h"
#include "replay/engine.h"
#include "replay/replay.h"
#include "traces/base/log.h"

enum { MAX_SETS = 32 };

enum {
    OPT_GRAPH_MODE = 0x100,
    OPT_SET,
    OPT_OPS,
    OPT_PASS,
    OPT_POISON,
    OPT_ALLOW_HAZARDS,
    OPT_STEPS,
    OPT_SHARD,
    OPT_DEVICE,
    OPT_DEVICE_SET,
    OPT_REPEAT,
    OPT_BUFFERS,
    OPT_SAMPLE_TOKENS,
    OPT_SAMPLE_ROWS,
};

struct arguments {
    struct st_replay_options options;
    const char *set[MAX_SETS], *device_set[MAX_SETS];
    bool list_policies;
    struct st_error err; /* what parse_option found wrong */
};

static struct st_replay_hooks hooks;

void st_replay_set_hooks(const struct st_replay_hooks *given) {
    hooks = *given;
}

static const char doc[] =
    "Replay the steps of a tape under one or more launch policies.\n"
    "\n"
    "Every step is planned under each policy, the plan is executed (cuda, cpu) or timed on a "
    "device profile (sim), and a run is stored in the result tape: launches, skipped launches, "
    "times, hazards. The tape itself is never changed. At the end the report is printed."
    "\v"
    "Policies: `steptape replay --policy list`. Without --policy: baseline and upstream.\n"
    "\n"
    "Graph modes: full-and-piecewise (default, as vLLM's): a uniform decode up to the largest "
    "capture size runs in one FULL graph, padded to the next size; other steps up to it in "
    "PIECEWISE, whose captured segments break at attention, so that everything replayed here is "
    "launched eagerly; larger ones eager (NONE). full: every step up to the largest size in FULL. "
    "piecewise, eager: every step so. tape: as each step was recorded. A FULL graph is captured "
    "once a size, at max_model_len, and keeps the addresses and strides of its capture.\n"
    "\n"
    "Passes, never mixed: time (step times), count (launches and kernel times; they must equal the "
    "plan's), verify (outputs compared between policies and with the CPU reference). Default: all "
    "on cuda, count and verify on cpu, time on sim. On cpu verify takes steps in pairs, evenly "
    "spread (--sample-tokens), and of each the attention of a few tokens (--sample-rows).\n"
    "\n"
    "Examples:\n"
    "  steptape replay x.tape --backend sim --policy baseline --policy upstream\n"
    "  steptape replay x.tape --backend cuda --policy baseline --policy safe -o x.h200.tape\n"
    "  steptape replay x.tape --backend cpu --pass verify --poison --steps 100..199\n"
    "  steptape replay x.tape --backend cpu --policy baseline --policy baseline,topk-width=packed "
    "--graph-mode full\n"
    "  steptape replay x.tape --backend sim --device-set sm_count=66\n"
    "  steptape replay x.tape --backend engine\n"
    "\n"
    "Exit status: 0 done; 1 failed; 2 wrong command line; 3 a hazard was found that "
    "--allow-hazards does not excuse, or the launches "
    "were not the plan's; 77 the backend cannot run here; 130 interrupted (nothing is stored).";

static const struct argp_option option_list[] = {
    {"backend", 'b', "cuda|cpu|sim|engine", 0,
     "What executes the plan (required); engine: nothing, the recorded launches become a run", 0},
    {"policy", 'p', "P", 0, "PRESET[,SWITCH=VALUE...]; repeat to compare; `list` shows all", 0},
    {"model", 'm', "NAME|FILE", 0, "Model to replay as (default: what the tape says)", 0},
    {"graph-mode", OPT_GRAPH_MODE, "MODE", 0,
     "full-and-piecewise (default), full, piecewise, eager, tape: how steps are launched", 0},
    {"pass", OPT_PASS, "LIST", 0, "Of time, count, verify; comma-separated", 0},
    {"output", 'o', "RESULT.tape", 0,
     "Where the run goes (default: X.runs.tape beside the tape); appended to when it holds results "
     "of the same tape",
     0},
    {"steps", OPT_STEPS, "A..B", 0, "Only these steps, both included; either end may be left out",
     0},
    {"shard", OPT_SHARD, "I/N", 0, "Only every Nth slice of 64 steps; I counts from 1", 0},
    {"ops", OPT_OPS, "LIST", 0, "Only these operators; comma-separated", 0},
    {"set", OPT_SET, "NAME=N", 0,
     "Engine setting: max_model_len, max_num_seqs, max_num_batched_tokens, num_blocks, "
     "max_capture_size, capture_sizes (A+B+C)",
     0},
    {"device", OPT_DEVICE, "NAME|FILE", 0, "sim: device profile (default h200)", 0},
    {"device-set", OPT_DEVICE_SET, "NAME=X", 0,
     "sim: one number of the profile; sm_count also scales the rates of flops and blocks", 0},
    {"repeat", OPT_REPEAT, "N", 0, "time: samples a step under each policy (default 5; sim 1)", 0},
    {"buffers", OPT_BUFFERS, "N", 0,
     "Layer buffers that the layers share in turn (default: as many as fit; cpu 2)", 0},
    {"sample-tokens", OPT_SAMPLE_TOKENS, "N", 0,
     "verify: about so many tokens, by leaving out steps (default: all; cpu: as many steps as "
     "131072 tokens and 8192 rows of attention allow; 0: all)",
     0},
    {"sample-rows", OPT_SAMPLE_ROWS, "N", 0,
     "verify: rows a step and operator compared with the CPU reference (default 2); tokens a step "
     "whose top-k, lists and attention the CPU computes (default 8)",
     0},
    {"poison", OPT_POISON, NULL, 0,
     "verify: put what production would leave behind into all that a policy does not write: NaN, "
     "stale indices; guards around every output: reading the one or writing the other shows",
     0},
    {"allow-hazards", OPT_ALLOW_HAZARDS, NULL, 0, "A hazard is reported but is no failure", 0},
    {0},
};

/* ---- values of options */

#define BAD(a, ...) (ST_FAIL(&(a)->err, ST_ERR_USAGE, __VA_ARGS__), EINVAL)

static bool parse_number(const char *text, const char *end, int64_t max, int64_t *out) {
    if (text == end)
        return false;
    int64_t value = 0;
    for (; text < end; text++) {
        if (*text < '0' || *text > '9')
            return false;
        value = value * 10 + (*text - '0');
        if (value > max)
            return false;
    }
    *out = value;
    return true;
}

static int parse_count(struct arguments *a, const char *option, const char *text, int64_t min,
                       int64_t max, int64_t *out) {
    if (!parse_number(text, text + strlen(text), max, out) || *out < min)
        return BAD(a, "--%s %s: a number from %lld to %lld expected", option, text, (long long)min,
                   (long long)max);
    return 0;
}

static int parse_steps(struct arguments *a, const char *text) {
    if (!st_command_parse_range(text, &a->options.first_step, &a->options.last_step))
        return BAD(a, "--steps %s: A..B expected, as in 100..199, ..9 or 100..", text);
    return 0;
}

static int parse_shard(struct arguments *a, const char *text) {
    const char *slash = strchr(text, '/');
    int64_t i = 0, n = 0;
    if (!slash || !parse_number(text, slash, 1000000, &i) ||
        !parse_number(slash + 1, text + strlen(text), 1000000, &n) || i < 1 || i > n)
        return BAD(a, "--shard %s: I/N expected, I from 1 to N", text);
    a->options.shard = (int32_t)i;
    a->options.shard_count = (int32_t)n;
    return 0;
}

static int find_pass(const char *name) {
    for (int p = 0; p < ST_PASS_KINDS; p++)
        if (strcmp(name, st_pass_name((enum st_pass)p)) == 0)
            return p;
    return -1;
}

/* A comma-separated list of names as a bit mask. */
static int parse_mask(struct arguments *a, const char *option, const char *text,
                      int (*find)(const char *name), const char *valid, unsigned *mask) {
    char *copy = strdup(text), *save = NULL;
    int rc = 0;
    if (!copy)
        return ENOMEM;
    *mask = 0;
    for (char *item = strtok_r(copy, ",", &save); item && !rc; item = strtok_r(NULL, ",", &save)) {
        int found = find(item);
        if (found < 0)
            rc = BAD(a, "--%s: there is no '%s'; there are %s", option, item, valid);
        else
            *mask |= 1u << found;
    }
    free(copy);
    if (!rc && *mask == 0)
        rc = BAD(a, "--%s: empty; there are %s", option, valid);
    return rc;
}

static int parse_mode(struct arguments *a, const char *text) {
    int mode = st_mode_request_find(text);
    if (mode < 0)
        return BAD(a,
                   "--graph-mode: there is no '%s'; there are full-and-piecewise, full, piecewise, "
                   "eager and tape",
                   text);
    a->options.mode = (enum st_mode_request)mode;
    return 0;
}

/* "a, b, c" of all operators, for a message. */
static const char *operator_list(void) {
    static char list[512];
    size_t used = 0;
    for (int op = 0; op < ST_OP_COUNT && used < sizeof list; op++)
        used += (size_t)snprintf(list + used, sizeof list - used, "%s%s", op ? ", " : "",
                                 st_operator_name((enum st_operator)op));
    return list;
}

static int parse_policy(struct arguments *a, const char *text) {
    struct st_replay_options *o = &a->options;
    if (strcmp(text, "list") == 0) {
        a->list_policies = true;
        return 0;
    }
    if (o->policy_count == ST_MAX_POLICIES)
        return BAD(a, "--policy: at most %d policies in a run", ST_MAX_POLICIES);
    struct st_policy policy;
    if (st_policy_parse(text, &policy, &a->err) != 0)
        return EINVAL;
    for (int32_t i = 0; i < o->policy_count; i++)
        if (strcmp(o->policy[i].name, policy.name) == 0)
            return BAD(a, "--policy %s: given twice", policy.name);
    o->policy[o->policy_count++] = policy;
    return 0;
}

static int add_set(struct arguments *a, const char *option, const char **list, int32_t *count,
                   const char *text) {
    if (*count == MAX_SETS)
        return BAD(a, "--%s: at most %d times", option, MAX_SETS);
    list[(*count)++] = text;
    return 0;
}

/* ---- parsing */

static error_t parse_number_option(int key, char *arg, struct arguments *a) {
    struct st_replay_options *o = &a->options;
    int64_t value = 0;
    int rc;
    switch (key) {
    case OPT_REPEAT:
        rc = parse_count(a, "repeat", arg, 1, 1000, &value);
        o->repeat = (int32_t)value;
        return rc;
    case OPT_BUFFERS:
        rc = parse_count(a, "buffers", arg, 1, 64, &value);
        o->buffers = (int32_t)value;
        return rc;
    case OPT_SAMPLE_TOKENS:
        return parse_count(a, "sample-tokens", arg, 0, INT64_MAX / 16, &o->sample_tokens);
    default:
        rc = parse_count(a, "sample-rows", arg, 0, 65536, &value);
        o->sample_rows = (int32_t)value;
        return rc;
    }
}

static error_t parse_end(struct arguments *a) {
    struct st_replay_options *o = &a->options;
    if (a->list_policies)
        return 0;
    if (!o->tape_path)
        return BAD(a, "no tape given: steptape replay X.tape --backend cuda|cpu|sim|engine");
    if (o->result_path && strcmp(o->result_path, "-") == 0)
        return BAD(a, "results are a database and cannot go to standard output; -o RESULT.tape");
    if (!o->backend)
        return BAD(a, "--backend is missing: cuda (a GPU), cpu (references), sim (a simulated "
                      "GPU) or engine (what was recorded)");
    if (o->policy_count == 0) {
        (void)st_policy_parse("baseline", &o->policy[0], NULL);
        (void)st_policy_parse("upstream", &o->policy[1], NULL);
        o->policy_count = strcmp(o->backend, ST_ENGINE_BACKEND) == 0 ? 1 : 2;
    }
    return 0;
}

static error_t parse_option(int key, char *arg, struct argp_state *state) {
    struct arguments *a = state->input;
    struct st_replay_options *o = &a->options;
    switch (key) {
    case 'b':
        o->backend = arg;
        return 0;
    case 'p':
        return parse_policy(a, arg);
    case 'm':
        o->model = arg;
        return 0;
    case 'o':
        o->result_path = arg;
        return 0;
    case OPT_GRAPH_MODE:
        return parse_mode(a, arg);
    case OPT_PASS:
        return parse_mask(a, "pass", arg, find_pass, "time, count, verify", &o->pass_mask);
    case OPT_OPS:
        return parse_mask(a, "ops", arg, st_operator_find, operator_list(), &o->ops_mask);
    case OPT_STEPS:
        return parse_steps(a, arg);
    case OPT_SHARD:
        return parse_shard(a, arg);
    case OPT_SET:
        return add_set(a, "set", a->set, &o->set_count, arg);
    case OPT_DEVICE:
        o->device = arg;
        return 0;
    case OPT_DEVICE_SET:
        return add_set(a, "device-set", a->device_set, &o->device_set_count, arg);
    case OPT_POISON:
        o->poison = true;
        return 0;
    case OPT_ALLOW_HAZARDS:
        o->allow_hazards = true;
        return 0;
    case OPT_REPEAT:
    case OPT_BUFFERS:
    case OPT_SAMPLE_TOKENS:
    case OPT_SAMPLE_ROWS:
        return parse_number_option(key, arg, a);
    case ARGP_KEY_ARG:
        if (o->tape_path)
            return BAD(a, "one tape at a time, not '%s' as well", arg);
        o->tape_path = arg;
        return 0;
    case ARGP_KEY_END:
        return parse_end(a);
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

static const struct argp argp = {option_list, parse_option, "X.tape", doc, NULL, NULL, NULL};

/* ---- the command */

static int finish(const struct arguments *a, const struct st_replay_outcome *outcome) {
    struct st_error err = {0};
    if (hooks.print_report) {
        if (hooks.print_report(outcome->result_path, outcome->run_id, stdout, &err) != 0)
            return st_command_fail(&err);
        fflush(stdout); /* where both go to one file, the next line would cut one of these in two */
    }
    st_log(ST_LOG_INFO, "run %lld is in %s", (long long)outcome->run_id, outcome->result_path);
    if (outcome->hazard_count == 0)
        return 0;
    st_log(a->options.allow_hazards ? ST_LOG_WARN : ST_LOG_ERROR,
           "%lld hazards: outputs differ (table hazard of the result tape)",
           (long long)outcome->hazard_count);
    return a->options.allow_hazards ? 0 : st_error_exit_status(ST_ERR_MISMATCH);
}

static int run(int argc, char **argv) {
    struct arguments a;
    struct st_replay_outcome outcome;
    memset(&a, 0, sizeof a);
    st_replay_options_init(&a.options);
    a.options.set = a.set;
    a.options.device_set = a.device_set;
    a.options.argc = argc;
    a.options.argv = argv;
    a.options.cupti_path = getenv("STEPTAPE_CUPTI");
    a.options.cuda_home = getenv("CUDA_HOME");
    error_t failed = argp_parse(&argp, argc, argv, ARGP_IN_ORDER, NULL, &a);
    if (failed) {
        if (!a.err.code)
            ST_FAIL(&a.err, ST_ERR_USAGE, "%s", strerror(failed));
        return st_command_fail(&a.err);
    }
    if (a.list_policies) {
        st_policy_list(stdout);
        return 0;
    }
    st_interrupt_install();
    bool recorded = strcmp(a.options.backend, ST_ENGINE_BACKEND) == 0;
    if ((recorded ? st_engine_run : st_replay_run)(&a.options, &outcome, &a.err) != 0)
        return st_command_fail(&a.err);
    return finish(&a, &outcome);
}

const struct st_command st_cmd_replay = {
    .name = "replay",
    .group = "Replay",
    .synopsis = "the steps of a tape under launch policies, on cuda, cpu or sim",
    .run = run,
};
