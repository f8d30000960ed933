/* SPDX-License-Identifier: Apache-2.0 */
#include "replay/backend_cuda_count.h"

#include <string.h>

#include "kernels/registry.h"
#include "replay/backend_cuda_kernels.h"

enum { CLASS_OWN = -2, CLASS_OTHER = -1 };

static int classify(const char *name) {
    if (strncmp(name, ST_CUDA_OWN_PREFIX, sizeof ST_CUDA_OWN_PREFIX - 1) == 0)
        return CLASS_OWN;
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

int st_cuda_check_shapes(const struct st_kernel_record *record, int64_t count,
                         const struct st_plan *plan, struct st_error *err) {
    struct cache cache[16] = {{0}};
    int32_t next[ST_OP_COUNT] = {0};
    for (int64_t i = 0; i < count; i++) {
        const struct st_kernel_record *r = &record[i];
        int op = classify_cached(cache, r->name);
        if (op < 0)
            continue;
        while (next[op] < plan->launch_count && plan->launch[next[op]].op != op)
            next[op]++;
        if (next[op] == plan->launch_count)
            return 0; /* more than planned: the count says so */
        const struct st_launch *launch = &plan->launch[next[op]++];
        int64_t blocks = (int64_t)r->grid[0] * r->grid[1] * r->grid[2];
        int64_t threads = (int64_t)r->block[0] * r->block[1] * r->block[2];
        if (blocks != launch->grid || threads != launch->block)
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
