/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which family of an engine's kernels a recorded launch belongs to, and which operator of steptape
 * does the same work: one table, by what the kernel's name holds.
 */
#ifndef ST_FORMAT_LAUNCH_FAMILY_H
#define ST_FORMAT_LAUNCH_FAMILY_H

#include <stdint.h>

struct st_launch_family {
    const char *family; /* "fp8 GEMM (DeepGEMM)" */
    const char *op;     /* "save_partial_states"; NULL: opaque, steptape does not execute it */
};

/* How many different families there are; st_launch_family_at(0 .. count - 1) in the table's order,
 * the last one "other".  A family with several operators stands once for each. */
int32_t st_launch_family_count(void);
const struct st_launch_family *st_launch_family_at(int32_t index);
/* Index of the family of a kernel, by its name as the compiler mangled it or in clear; never
 * negative.  kind: enum st_launch_kind; what is no kernel has a family of its own kind. */
int32_t st_launch_family_of(int32_t kind, const char *name);
/* The word of a kernel's name that makes its family; NULL: it has none of the table. */
const char *st_launch_family_word(const char *name);

#endif
