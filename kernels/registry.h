/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The table of operators: what there is, which device functions each launches, and one shape of
 * function pointer for all, so that a planner, a counter of launches or a test can walk them.
 *
 * Our device functions are extern "C", so a profiler reports exactly the names in `functions`.
 * Those of a library have mangled names that change with its version; the operator that uses them
 * gives the library's templates a type of its own and lists "*" and that type's name, which stands
 * for every function whose name contains it. args is the operator's own struct
 * steptape_<operator>_args.  Thread-safe: yes (const).
 */
#ifndef ST_KERNELS_REGISTRY_H
#define ST_KERNELS_REGISTRY_H

#include <stddef.h>
#include <stdint.h>

#include "steptape/kernels.h"

#ifdef __cplusplus
extern "C" {
#endif

/* At most so many device functions a variant has. */
#define ST_KERNEL_MAX_FUNCTIONS 8

struct st_kernel_variant {
    unsigned int number;       /* what args->variant names: 1..n, slowest first */
    unsigned int launch_count; /* of one call */
    /* those that its launches may be of (which ones, the shape decides), then NULL */
    const char *functions[ST_KERNEL_MAX_FUNCTIONS + 1];
    const char *idea; /* one line */
};

struct st_kernel {
    const char *name; /* as in contracts and plans: "compress_pool" */
    const struct st_kernel_variant *variants;
    size_t variant_count;
    unsigned int default_variant; /* what variant 0 means */
    int (*launch)(const void *args, void *stream);
    int (*ref)(const void *args);
    int (*ref_rows)(const void *args, const int64_t *tokens, int64_t n);
    int (*cost)(const void *args, const struct steptape_token_counts *counts,
                struct steptape_cost *out);
};

/* All operators, sorted by name; *count is set. */
const struct st_kernel *st_kernel_table(size_t *count);

/* The operator of that name, or NULL. */
const struct st_kernel *st_kernel_find(const char *name);

/*
 * The operator that launches a device function of that name, or NULL.  *variant (may be NULL) is
 * set to the first variant that does.
 */
const struct st_kernel *st_kernel_find_function(const char *function,
                                                const struct st_kernel_variant **variant);

/* The variant that args->variant == number names (0: the default), or NULL. */
const struct st_kernel_variant *st_kernel_variant_find(const struct st_kernel *kernel,
                                                       unsigned int number);

#ifdef __cplusplus
}
#endif
#endif
