/* SPDX-License-Identifier: Apache-2.0 */
#include "replay/backend_cuda_count.h"

#include <stdlib.h>
#include <string.h>

#include "kernels/registry.h"
#include "replay/backend_cuda_kernels.h"

enum { CLASS_OWN = -2, CLASS_OTHER = -1 };

static int classify(const char *name) {
    if (strncmp(name, ST_CUDA_OWN_PREFIX, sizeof ST_CUDA_OWN_PREFIX - 1) == 0)
        return CLASS_OWN;
    if (strcmp(name, ST_CUDA_CONDITION_NAME) == 0)
        return ST_OP_GRAPH_CONDITION;
    const struct st_kernel *kernel = st_kernel_find_function(name, NULL);
    return kernel ? st_operator_find(kernel->name) : CLASS_OTHER;
}

/* A step repeats few names, and the collector gives one pointer a name. */
struct cache {
    const char *name;
    int class;
};

static int classify_cached(struct cache cache[16], const char *name) {
    struct cache *entry = &cache[((uintptr_t)name >> 4) % 16];
    if (entry->name != name) {
        entry->name = name;
        entry->class = classify(name);
    }
    return entry->class;
}

static int compare_starts(const void *a, const void *b) {
    const struct st_kernel_record *x = a, *y = b;
    if (x->start_ns != y->start_ns)
        return x->start_ns < y->start_ns ? -1 : 1;
    return x->end_ns < y->end_ns ? -1 : x->end_ns > y->end_ns;
}

void st_cuda_order(struct st_kernel_record *record, int64_t count) {
    qsort(record, (size_t)count, sizeof *record, compare_starts);
}

void st_cuda_count(const struct st_kernel_record *record, int64_t count,
                   struct st_step_result *result) {
    struct cache cache[16] = {{0}};
    bool timed = true;
    int64_t total_ns = 0, last_end_ns = 0;
    memset(result->launches, 0, sizeof result->launches);
    memset(result->op_kernel_ns, 0, sizeof result->op_kernel_ns);
    result->other_launches = 0;
    for (int64_t i = 0; i < count; i++) {
        const struct st_kernel_record *r = &record[i];
        int class = classify_cached(cache, r->name);
        if (class == CLASS_OWN)
            continue;
        int64_t from_ns = r->start_ns > last_end_ns ? r->start_ns : last_end_ns;
        int64_t ns = r->end_ns > from_ns ? r->end_ns - from_ns : 0;
        timed = timed && r->start_ns > 0 && r->end_ns >= r->start_ns;
        last_end_ns = r->end_ns > last_end_ns ? r->end_ns : last_end_ns;
        total_ns += ns;
        if (class == CLASS_OTHER) {
            result->other_launches++;
            continue;
        }
        result->launches[class]++;
        result->op_kernel_ns[class] += ns;
    }
    result->kernel_ns = timed ? total_ns : ST_UNKNOWN;
    for (int op = 0; op < ST_OP_COUNT && !timed; op++)
        result->op_kernel_ns[op] = ST_UNKNOWN;
}

/* A plan's kernels of one operator, one after the other. */
struct walk {
    int32_t launch; /* of the plan; its number of launches when there are no more */
    uint32_t kernel;
};

static bool makes(const struct st_launch *launch, int op) {
    return launch->op == op && !launch->disabled && launch->launch_count > 0;
}

/* The next kernel of `op`: its launch, and whether it is the launch's last. */
static const struct st_launch *next_kernel(const struct st_plan *plan, int op, struct walk *walk,
                                           bool *last) {
    while (walk->launch < plan->launch_count && !makes(&plan->launch[walk->launch], op))
        walk->launch++;
    if (walk->launch == plan->launch_count)
        return NULL;
    const struct st_launch *launch = &plan->launch[walk->launch];
    *last = ++walk->kernel == launch->launch_count;
    if (*last) {
        walk->launch++;
        walk->kernel = 0;
    }
    return launch;
}

int st_cuda_check_shapes(const struct st_kernel_record *record, int64_t count,
                         const struct st_plan *plan, struct st_error *err) {
    struct cache cache[16] = {{0}};
    struct walk walk[ST_OP_COUNT];
    memset(walk, 0, sizeof walk);
    for (int64_t i = 0; i < count; i++)
        if (record[i].start_ns <= 0)
            return 0; /* no times, no order */
    for (int64_t i = 0; i < count; i++) {
        const struct st_kernel_record *r = &record[i];
        int op = classify_cached(cache, r->name);
        bool last = false;
        if (op < 0)
            continue;
        const struct st_launch *launch = next_kernel(plan, op, &walk[op], &last);
        if (!launch)
            return 0; /* more than planned: the count says so */
        int64_t blocks = (int64_t)r->grid[0] * r->grid[1] * r->grid[2];
        int64_t threads = (int64_t)r->block[0] * r->block[1] * r->block[2];
        if (last && (blocks != launch->grid || threads != launch->block))
            return ST_FAIL(
                err, ST_ERR_MISMATCH,
                "count: %s of layer %d ran on %lld blocks of %lld threads, planned are %u of %u",
                r->name, launch->layer, (long long)blocks, (long long)threads, launch->grid,
                launch->block);
    }
    return 0;
}

int64_t st_cuda_count_foreign(const struct st_kernel_record *record, int64_t count) {
    struct cache cache[16] = {{0}};
    int64_t foreign = 0;
    for (int64_t i = 0; i < count; i++)
        foreign += classify_cached(cache, record[i].name) != CLASS_OWN;
    return foreign;
}
