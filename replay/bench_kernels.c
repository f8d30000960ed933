/* SPDX-License-Identifier: Apache-2.0 */
/*
 * steptape bench kernels: prints what kernels/bench.h measures.
 */
#include <argp.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/bench.h"
#include "replay/bench.h"
#include "steptape_version.h"
#include "traces/base/command.h"

enum { OPT_ALL_VARIANTS = 0x100, OPT_REPLAYS };

struct arguments {
    bool json;
    struct st_bench_options options;
    struct st_bench_device device;
    int rows;
};

static const char doc[] =
    "Device time of the operators on the GPU of this machine, beside the figures of upstream's "
    "kernels on an H200 where there are any. Graph rows: a CUDA graph of many calls in a chain, "
    "its time divided by the calls. Eager rows include the host's launch cost.";
static const struct argp_option option_list[] = {
    {"format", 'f', "table|json", 0, "How to print (default table)", 0},
    {"filter", 'k', "TEXT", 0, "Only rows whose group or name holds TEXT", 0},
    {"all-variants", OPT_ALL_VARIANTS, NULL, 0, "Every variant, not only the default", 0},
    {"replays", OPT_REPLAYS, "N", 0, "Timed replays of a graph (default 200)", 0},
    {0},
};

static error_t parse_option(int key, char *arg, struct argp_state *state) {
    struct arguments *a = state->input;
    char *end;
    switch (key) {
    case 'f':
        if (strcmp(arg, "json") != 0 && strcmp(arg, "table") != 0)
            argp_error(state, "--format %s: table or json expected", arg);
        a->json = strcmp(arg, "json") == 0;
        return 0;
    case 'k':
        a->options.filter = arg;
        return 0;
    case OPT_ALL_VARIANTS:
        a->options.all_variants = 1;
        return 0;
    case OPT_REPLAYS:
        a->options.replay_count = (int)strtol(arg, &end, 10);
        if (*end || a->options.replay_count < 1 || a->options.replay_count > 100000)
            argp_error(state, "--replays %s: a number from 1 to 100000 expected", arg);
        return 0;
    case ARGP_KEY_ARG:
        argp_error(state, "'%s' is one argument too many", arg);
        return 0;
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

static void print_head(const struct arguments *a) {
    const struct st_bench_device *d = &a->device;
    if (a->json) {
        printf("{\"device\":\"%s\",\"sm_count\":%d,\"driver\":%d,\"runtime\":%d,"
               "\"version\":\"%s\",\"commit\":\"%s\",\"rows\":[",
               d->name, d->sm_count, d->driver_version, d->runtime_version, ST_VERSION, ST_COMMIT);
        return;
    }
    printf("%s, %d SMs, driver %d, runtime %d, steptape %s %s; microseconds a call\n", d->name,
           d->sm_count, d->driver_version, d->runtime_version, ST_VERSION, ST_COMMIT);
    printf("%-24s %-48s %-5s %2s %4s %9s %9s %9s %9s %9s %7s %s\n", "group", "case", "mode", "v",
           "sets", "median", "q1", "q3", "min", "upstream", "ratio", "of write ceiling");
}

static int print_row(const struct st_bench_row *row, void *user) {
    struct arguments *a = user;
    if (a->rows++ == 0)
        print_head(a);
    if (a->json) {
        printf(
            "%s\n {\"group\":\"%s\",\"case\":\"%s\",\"mode\":\"%s\",\"variant\":%d,"
            "\"sets\":%d,\"launches\":%d,\"samples\":%d,\"median_us\":%.4f,\"q1_us\":%.4f,"
            "\"q3_us\":%.4f,\"min_us\":%.4f,\"max_us\":%.4f,\"bytes\":%llu,\"write_ceiling_us\":",
            a->rows > 1 ? "," : "", row->group, row->name, row->mode, row->variant, row->sets,
            row->launch_count, row->sample_count, row->median_us, row->q1_us, row->q3_us,
            row->min_us, row->max_us, (unsigned long long)row->bytes);
        if (row->write_ceiling_us > 0)
            printf("%.4f,\"upstream_us\":", row->write_ceiling_us);
        else
            fputs("null,\"upstream_us\":", stdout);
        if (row->anchor_us > 0)
            printf("%.4f}", row->anchor_us);
        else
            fputs("null}", stdout);
        return 0;
    }
    printf("%-24s %-48s %-5s %2d %4d %9.3f %9.3f %9.3f %9.3f", row->group, row->name, row->mode,
           row->variant, row->sets, row->median_us, row->q1_us, row->q3_us, row->min_us);
    if (row->anchor_us > 0)
        printf(" %9.2f %7.3f", row->anchor_us, row->median_us / row->anchor_us);
    else if (row->write_ceiling_us > 0)
        printf(" %9s %7s", "", "");
    if (row->write_ceiling_us > 0)
        printf(" %3.0f%%%s", 100.0 * row->write_ceiling_us / row->median_us,
               row->write_ceiling_us < 0.9 * row->median_us ? " below 90%" : "");
    putchar('\n');
    fflush(stdout);
    return 0;
}

int st_bench_kernels_command(int argc, char **argv) {
    static const struct argp argp = {option_list, parse_option, NULL, doc, NULL, NULL, NULL};
    struct arguments a;
    struct st_error err = {0};
    memset(&a, 0, sizeof a);
    if (argp_parse(&argp, argc, argv, 0, NULL, &a) != 0)
        return 2;
    if (st_bench_kernels(&a.options, &a.device, print_row, &a, &err) != 0)
        return st_command_fail(&err);
    if (a.rows == 0)
        puts(a.json ? "{\"rows\":[]}" : "no row matches the filter");
    else if (a.json)
        puts("\n]}");
    return 0;
}
