/* SPDX-License-Identifier: Apache-2.0 */
/*
 * save_partial_states, private side: variants, launch geometry, argument check.  The contract is
 * in steptape/kernels.h.
 */
#ifndef ST_KERNELS_SAVE_PARTIAL_STATES_H
#define ST_KERNELS_SAVE_PARTIAL_STATES_H

#include <stddef.h>

#include "kernels/registry.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { ST_SAVE_VARIANTS = 3, ST_SAVE_DEFAULT = 3 };

extern const struct st_kernel_variant st_save_partial_states_variants[ST_SAVE_VARIANTS];

/* From so many tokens (twice as many for the indexer) variant 3 gives a token fewer threads, and a
 * block several tokens. */
enum { ST_SAVE_MANY_TOKENS = 512 };

/* Grid x, block threads and tokens of a block of a variant (resolved, 1..n). */
void st_save_partial_states_geometry(const struct steptape_save_partial_states_args *args,
                                     unsigned int variant, int64_t *blocks, int *threads,
                                     int *tokens_per_block);

int st_save_partial_states_check(const struct steptape_save_partial_states_args *args);

/* The device side of a launch: args are checked, variant is resolved (1..n), there is work. */
int st_save_partial_states_cuda(const struct steptape_save_partial_states_args *args,
                                unsigned int variant, void *stream);

#ifdef __cplusplus
}
#endif
#endif
