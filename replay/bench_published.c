/* SPDX-License-Identifier: Apache-2.0 */
/*
 * steptape bench published: the figures that upstream's changes were published with, measured here.
 *
 * Each published figure is a ratio of two rows of kernels/bench.h (or of a row of the PyTorch
 * script); a ratio is printed with the two times it comes from.
 */
#include <argp.h>
#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "kernels/bench.h"
#include "replay/bench.h"
#include "replay/embedded.h"
#include "steptape_version.h"
#include "traces/base/command.h"
#include "traces/base/log.h"

enum { MAX_ROWS = 256, OPT_LIBRARY = 0x100 };

struct kept {
    char group[48], name[96], mode[8];
    double median_us, q1_us, q3_us;
    int launches;
};

struct arguments {
    bool json;
    const char *library;
    struct st_bench_device device;
    struct kept row[MAX_ROWS];
    int rows, printed;
};

/* before / after is the figure.  published NULL: none was. */
struct claim {
    const char *change, *published;
    const char *group, *before, *after, *mode;
};

static const struct claim claims[] = {
    {"skip empty c128 (#48957), eager", "3.0x (B300)", "skip",
     "one token at position 126, always (3 launches)",
     "one token at position 126, skipped (1 launch)", "eager"},
    {"skip empty c128 (#48957), graph", "1.8x (B300)", "skip",
     "one token at position 126, always (3 launches)",
     "one token at position 126, skipped (1 launch)", "graph"},
    {"adaptive width (#52823), T 512", NULL, "c128a_topk_metadata",
     "T=512 decode=0 width=8192 stride=8192", "T=512 decode=0 width=256 stride=256", "graph"},
    {"adaptive width (#52823), T 2048", NULL, "c128a_topk_metadata",
     "T=2048 decode=0 width=8192 stride=8192", "T=2048 decode=0 width=256 stride=256", "graph"},
    {"adaptive width (#52823), T 8192", "32x fewer columns", "c128a_topk_metadata",
     "T=8192 decode=0 width=8192 stride=8192", "T=8192 decode=0 width=256 stride=256", "graph"},
    {"no fill before combine (#50298), width 8192", "1.88x", "combine_topk_swa_indices",
     "T=8192 R=1 K=8192 ratio=128 fill, keep", "T=8192 R=1 K=8192 ratio=128 keep", "graph"},
    {"width alone, with the fill", NULL, "combine_topk_swa_indices",
     "T=8192 R=4 K=8192 ratio=128 fill, keep", "T=8192 R=4 K=256 ratio=128 fill, keep", "graph"},
    {"no fill alone, width 8192", NULL, "combine_topk_swa_indices",
     "T=8192 R=4 K=8192 ratio=128 fill, keep", "T=8192 R=4 K=8192 ratio=128 keep", "graph"},
    {"no fill once the width is in (256)", NULL, "combine_topk_swa_indices",
     "T=8192 R=4 K=256 ratio=128 fill, keep", "T=8192 R=4 K=256 ratio=128 keep", "graph"},
    {"both", NULL, "combine_topk_swa_indices", "T=8192 R=4 K=8192 ratio=128 fill, keep",
     "T=8192 R=4 K=256 ratio=128 keep", "graph"},
};

static const char doc[] =
    "The published figures of the four changes beside what this GPU gives: each as a ratio with "
    "the two times it comes from. The last rows set topk_per_row beside the kernels of PyTorch's "
    "top-k, both by CUPTI, where python3 has PyTorch.";
static const struct argp_option option_list[] = {
    {"format", 'f', "table|json", 0, "How to print (default table)", 0},
    {"library", OPT_LIBRARY, "FILE", 0,
     "libsteptape_kernels.so for the PyTorch rows (default: as the loader finds it)", 0},
    {0},
};

static error_t parse_option(int key, char *arg, struct argp_state *state) {
    struct arguments *a = state->input;
    switch (key) {
    case 'f':
        if (strcmp(arg, "json") != 0 && strcmp(arg, "table") != 0)
            argp_error(state, "--format %s: table or json expected", arg);
        a->json = strcmp(arg, "json") == 0;
        return 0;
    case OPT_LIBRARY:
        if (strchr(arg, '\'')) /* it is handed to a shell between quotes */
            argp_error(state, "--library %s: a path without ' expected", arg);
        a->library = arg;
        return 0;
    case ARGP_KEY_ARG:
        argp_error(state, "'%s' is one argument too many", arg);
        return 0;
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

static int keep(const struct st_bench_row *row, void *user) {
    struct arguments *a = user;
    if (a->rows == MAX_ROWS || row->variant != 0)
        return 0;
    struct kept *k = &a->row[a->rows++];
    snprintf(k->group, sizeof k->group, "%s", row->group);
    snprintf(k->name, sizeof k->name, "%s", row->name);
    snprintf(k->mode, sizeof k->mode, "%s", row->mode);
    k->median_us = row->median_us;
    k->q1_us = row->q1_us;
    k->q3_us = row->q3_us;
    k->launches = row->launch_count;
    return 0;
}

static const struct kept *find(const struct arguments *a, const char *group, const char *name,
                               const char *mode) {
    for (int i = 0; i < a->rows; i++)
        if (strcmp(a->row[i].group, group) == 0 && strcmp(a->row[i].name, name) == 0 &&
            strcmp(a->row[i].mode, mode) == 0)
            return &a->row[i];
    return NULL;
}

static void print_line(struct arguments *a, const char *change, const char *published,
                       const char *before, double before_us, const char *after, double after_us) {
    double ratio = after_us > 0 ? before_us / after_us : 0;
    if (a->json) {
        printf("%s\n {\"change\":\"%s\",\"published\":%s%s%s,\"before\":\"%s\",\"before_us\":%.4f,"
               "\"after\":\"%s\",\"after_us\":%.4f,\"ratio\":%.4f}",
               a->printed++ ? "," : "", change, published ? "\"" : "",
               published ? published : "null", published ? "\"" : "", before, before_us, after,
               after_us, ratio);
        return;
    }
    printf("%-46s %-18s %9.2f %9.2f %8.2fx\n", change, published ? published : "-", before_us,
           after_us, ratio);
    a->printed++;
}

static int print_claims(struct arguments *a, struct st_error *err) {
    for (size_t i = 0; i < sizeof claims / sizeof claims[0]; i++) {
        const struct claim *c = &claims[i];
        const struct kept *before = find(a, c->group, c->before, c->mode);
        const struct kept *after = find(a, c->group, c->after, c->mode);
        if (!before || !after)
            return ST_FAIL(err, ST_ERR_NATIVE, "%s: no row %s \"%s\" was measured", c->change,
                           c->group, before ? c->after : c->before);
        print_line(a, c->change, c->published, c->before, before->median_us, c->after,
                   after->median_us);
    }
    return 0;
}

/* Rows of the script; a machine without PyTorch is told of, not failed. */
static int run_torch(struct arguments *a, struct st_error *err) {
    char path[] = "/tmp/steptape-bench-XXXXXX", command[1200], line[256];
    int fd = mkstemp(path);
    if (fd < 0)
        return ST_FAIL_NATIVE(err, ST_ERR_IO, errno, "%s: %s", path, strerror(errno));
    const char *text = st_embedded_bench[0].text;
    bool written = write(fd, text, strlen(text)) == (ssize_t)strlen(text);
    close(fd);
    snprintf(command, sizeof command, "python3 '%s' '%.1000s'", path,
             a->library ? a->library : "libsteptape_kernels.so.0");
    FILE *script = written ? popen(command, "r") : NULL;
    while (script && fgets(line, sizeof line, script)) {
        int rows, columns, k, theirs, ours;
        double torch_us, us;
        if (sscanf(line, "%d %d %d %lf %d %lf %d", &rows, &columns, &k, &torch_us, &theirs, &us,
                   &ours) != 7)
            continue;
        char change[96];
        snprintf(change, sizeof change, "top-k rows %d columns %d k %d: PyTorch", rows, columns, k);
        print_line(a, change, NULL, "PyTorch's chain", torch_us, "topk_per_row", us);
    }
    int status = script ? pclose(script) : -1;
    unlink(path);
    if (status != 0)
        st_log(ST_LOG_WARN, "the rows of PyTorch are missing: %s",
               WIFEXITED(status) && WEXITSTATUS(status) == 77
                   ? "python3 has no PyTorch, or it finds no GPU"
                   : "the script failed (--library FILE names libsteptape_kernels.so)");
    return 0;
}

int st_bench_published_command(int argc, char **argv) {
    static const struct argp argp = {option_list, parse_option, NULL, doc, NULL, NULL, NULL};
    static const char *const filters[] = {"skip", "c128a_topk_metadata",
                                          "combine_topk_swa_indices"};
    static struct arguments a;
    struct st_error err = {0};
    if (argp_parse(&argp, argc, argv, 0, NULL, &a) != 0)
        return 2;
    for (size_t i = 0; i < sizeof filters / sizeof filters[0]; i++) {
        struct st_bench_options options = {.filter = filters[i]};
        if (st_bench_kernels(&options, &a.device, keep, &a, &err) != 0)
            return st_command_fail(&err);
    }
    if (a.json)
        printf("{\"device\":\"%s\",\"version\":\"%s\",\"commit\":\"%s\",\"rows\":[", a.device.name,
               ST_VERSION, ST_COMMIT);
    else
        printf("%s, steptape %s %s; microseconds a call, medians\n%-46s %-18s %9s %9s %9s\n",
               a.device.name, ST_VERSION, ST_COMMIT, "change", "published", "before", "after",
               "ratio");
    int rc = print_claims(&a, &err);
    if (rc == 0)
        rc = run_torch(&a, &err);
    if (a.json)
        puts("\n]}");
    return rc == 0 ? 0 : st_command_fail(&err);
}
