/* SPDX-License-Identifier: Apache-2.0 */
/*
 * steptape bench graph-skip: prints what replay/graph_skip.h measures.
 */
#include <argp.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "replay/bench.h"
#include "replay/graph_skip.h"
#include "steptape_version.h"
#include "traces/base/command.h"

enum { OPT_LAYERS = 0x100, OPT_SAMPLES };

struct arguments {
    bool json;
    struct st_graph_skip_options options;
    char device[256];
    int rows;
};

static const char doc[] =
    "What each way of skipping the c128 pair inside a captured graph costs on the GPU of this "
    "machine: a graph of c128 layers (save, pool, store), when no token of a step closes a group "
    "of 128, when some do and when all do. Device: a step, between events around ten launches. "
    "Host: the "
    "launch call, with what a way does before it.";
static const struct argp_option option_list[] = {
    {"format", 'f', "table|json", 0, "How to print (default table)", 0},
    {"layers", OPT_LAYERS, "N", 0, "c128 layers of a step, 1 to 64 (default 20)", 0},
    {"samples", OPT_SAMPLES, "N", 0, "Samples a row, 4 to 100000 (default 100)", 0},
    {0},
};

static int32_t parse_number(struct argp_state *state, const char *name, const char *arg, long low,
                            long high) {
    char *end;
    long value = strtol(arg, &end, 10);
    if (*arg == 0 || *end || value < low || value > high)
        argp_error(state, "--%s %s: a number from %ld to %ld expected", name, arg, low, high);
    return (int32_t)value;
}

static error_t parse_option(int key, char *arg, struct argp_state *state) {
    struct arguments *a = state->input;
    switch (key) {
    case 'f':
        if (strcmp(arg, "json") != 0 && strcmp(arg, "table") != 0)
            argp_error(state, "--format %s: table or json expected", arg);
        a->json = strcmp(arg, "json") == 0;
        return 0;
    case OPT_LAYERS:
        a->options.layers = parse_number(state, "layers", arg, 1, 64);
        return 0;
    case OPT_SAMPLES:
        a->options.samples = parse_number(state, "samples", arg, 4, 100000);
        return 0;
    case ARGP_KEY_ARG:
        argp_error(state, "'%s' is one argument too many", arg);
        return 0;
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

static void print_head(const struct arguments *a) {
    if (a->json) {
        printf("{\"device\":\"%s\",\"layers\":%d,\"version\":\"%s\",\"commit\":\"%s\",\"rows\":[",
               a->device, a->options.layers ? a->options.layers : 20, ST_VERSION, ST_COMMIT);
        return;
    }
    printf("%s, steptape %s %s, %d layers; microseconds a step\n", a->device, ST_VERSION, ST_COMMIT,
           a->options.layers ? a->options.layers : 20);
    printf("%5s %5s  %-27s %7s %9s %9s %9s %9s %9s %9s %9s %9s %5s\n", "T", "close", "way",
           "kernels", "median", "q1", "q3", "host", "host q1", "host q3", "KiB", "capture", "same");
}

static int print_row(const struct st_graph_skip_row *row, void *user) {
    struct arguments *a = user;
    if (a->rows++ == 0)
        print_head(a);
    if (a->json)
        printf("%s\n {\"tokens\":%d,\"closing\":%d,\"way\":\"%s\",\"kernels\":%d,\"samples\":%d,"
               "\"median_us\":%.3f,\"q1_us\":%.3f,\"q3_us\":%.3f,\"host_median_us\":%.3f,"
               "\"host_q1_us\":%.3f,\"host_q3_us\":%.3f,\"graph_bytes\":%lld,\"capture_us\":%.1f,"
               "\"same_outputs\":%s}",
               a->rows > 1 ? "," : "", row->tokens, row->closing, row->way, row->kernels,
               row->samples, row->median_us, row->q1_us, row->q3_us, row->host_median_us,
               row->host_q1_us, row->host_q3_us, (long long)row->graph_bytes,
               (double)row->capture_ns / 1e3, row->same_outputs ? "true" : "false");
    else
        printf("%5d %5d  %-27s %7d %9.2f %9.2f %9.2f %9.2f %9.2f %9.2f %9lld %9.0f %5s\n",
               row->tokens, row->closing, row->way, row->kernels, row->median_us, row->q1_us,
               row->q3_us, row->host_median_us, row->host_q1_us, row->host_q3_us,
               (long long)row->graph_bytes >> 10, (double)row->capture_ns / 1e3,
               row->same_outputs ? "yes" : "no");
    fflush(stdout);
    return 0;
}

int st_bench_graph_skip_command(int argc, char **argv) {
    static const struct argp argp = {option_list, parse_option, NULL, doc, NULL, NULL, NULL};
    struct arguments a;
    struct st_error err = {0};
    memset(&a, 0, sizeof a);
    if (argp_parse(&argp, argc, argv, 0, NULL, &a) != 0)
        return 2;
    if (st_graph_skip_bench(&a.options, a.device, sizeof a.device, print_row, &a, &err) != 0)
        return st_command_fail(&err);
    if (a.json)
        puts("\n]}");
    return 0;
}
