/* SPDX-License-Identifier: Apache-2.0 */
/*
 * steptape bench predicate: host time of the c128 boundary predicate, the price of the skip.
 */
#include <argp.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/utsname.h>

#include "replay/bench.h"
#include "replay/generator.h"
#include "replay/predicate_cost.h"

enum { MAX_BATCH = 1024, DECODE_SPAN = 32768 };

static const char doc[] =
    "Host time of the c128 boundary predicate by batch size: decodes of random phase, the batch in "
    "cache. A skip is worth what it saves less this.";
static const struct argp_option option_list[] = {
    {"format", 'f', "table|json", 0, "How to print (default table)", 0},
    {0},
};

static error_t parse_option(int key, char *arg, struct argp_state *state) {
    bool *json = state->input;
    switch (key) {
    case 'f':
        if (strcmp(arg, "json") != 0 && strcmp(arg, "table") != 0)
            argp_error(state, "--format %s: table or json expected", arg);
        *json = strcmp(arg, "json") == 0;
        return 0;
    case ARGP_KEY_ARG:
        argp_error(state, "'%s' is one argument too many", arg);
        return 0;
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

static void print_row(bool json, bool first, int32_t batch, const struct st_predicate_cost *cost) {
    double median = (double)cost->median_ps * 1e-3, p10 = (double)cost->p10_ps * 1e-3;
    double p90 = (double)cost->p90_ps * 1e-3;
    if (json)
        printf("%s\n {\"requests\":%d,\"median_ns\":%.2f,\"p10_ns\":%.2f,\"p90_ns\":%.2f,"
               "\"samples\":%d,\"calls_per_sample\":%d}",
               first ? "" : ",", batch, median, p10, p90, cost->samples, cost->calls_per_sample);
    else
        printf("%8d  %9.1f  %9.1f  %9.1f\n", batch, median, p10, p90);
}

int st_bench_predicate_command(int argc, char **argv) {
    static const struct argp argp = {option_list, parse_option, NULL, doc, NULL, NULL, NULL};
    static int32_t start[MAX_BATCH], query_len[MAX_BATCH];
    bool json = false;
    if (argp_parse(&argp, argc, argv, 0, NULL, &json) != 0)
        return 2;
    for (int32_t i = 0; i < MAX_BATCH; i++) {
        start[i] = (int32_t)(st_gen_mix((uint64_t)i + ST_GEN_GOLDEN) % DECODE_SPAN);
        query_len[i] = 1;
    }
    struct utsname machine;
    if (!json) {
        printf("predicate, one call on this host (%s), ns\nrequests     median        p10        "
               "p90\n",
               uname(&machine) == 0 ? machine.machine : "unknown");
    } else {
        putchar('[');
    }
    for (int32_t batch = 1; batch <= MAX_BATCH; batch *= 2) {
        struct st_predicate_cost cost;
        st_predicate_measure(start, query_len, batch, &cost);
        print_row(json, batch == 1, batch, &cost);
    }
    if (json)
        puts("\n]");
    return 0;
}
