/* SPDX-License-Identifier: Apache-2.0 */
/*
 * steptape bench: programs that print figures.  One row of the table a benchmark.
 */
#include <argp.h>
#include <stdlib.h>
#include <string.h>

#include "replay/bench.h"
#include "replay/commands.h"
#include "traces/base/log.h"
#include "traces/commands.h"

static const struct st_bench_command own[] = {
    {"kernels", "the operators' device time beside upstream's figures; needs a GPU",
     st_bench_kernels_command},
    {"published", "the published figures of the four changes beside this GPU's; needs a GPU",
     st_bench_published_command},
    {"graph-skip", "ways of skipping the c128 pair inside a captured graph; needs a GPU",
     st_bench_graph_skip_command},
    {"codec", "size of a tape by column, beside the same facts as Parquet; speed of reading",
     st_bench_codec},
    {"predicate", "host time of the c128 boundary predicate by batch size",
     st_bench_predicate_command},
    {0},
};
static const struct st_bench_command none[] = {{0}};
static const struct st_bench_command *lists[] = {own, none};
enum { LISTS = sizeof lists / sizeof lists[0] };

void st_bench_set_more(const struct st_bench_command *benches) {
    lists[1] = benches;
}

static void print_list(FILE *out) {
    fputs("Usage: steptape bench NAME [OPTION...]\n"
          "Programs that print figures: what was measured, on which device, with its spread.\n\n",
          out);
    for (int l = 0; l < LISTS; l++)
        for (const struct st_bench_command *b = lists[l]; b->name; b++)
            fprintf(out, "  %-10s %s\n", b->name, b->synopsis);
    fputs("\n`steptape bench NAME --help` has the options of one; all take --format=table|json.\n",
          out);
}

static const struct st_bench_command *find(const char *name) {
    for (int l = 0; l < LISTS; l++)
        for (const struct st_bench_command *b = lists[l]; b->name; b++)
            if (strcmp(b->name, name) == 0)
                return b;
    return NULL;
}

static int run(int argc, char **argv) {
    if (argc < 2) {
        print_list(stderr);
        return 2;
    }
    if (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-?") == 0) {
        print_list(stdout);
        return 0;
    }
    const struct st_bench_command *bench = find(argv[1]);
    if (bench) {
        char title[64];
        snprintf(title, sizeof title, "steptape bench %s", bench->name);
        argv[1] = title;
        return bench->run(argc - 1, argv + 1);
    }
    st_log(ST_LOG_ERROR, "there is no benchmark '%s'; `steptape bench --help` lists them", argv[1]);
    return 2;
}

const struct st_command st_cmd_bench = {
    .name = "bench",
    .group = "Ask and compare",
    .synopsis =
        "programs that print figures: kernels, published, graph-skip, codec, predicate, recorder, "
        "plugin",
    .run = run,
};
