/* SPDX-License-Identifier: Apache-2.0 */
/*
 * global_topk_indices, private side.  The contract is in steptape/kernels_indices.h.
 */
#ifndef ST_KERNELS_GLOBAL_TOPK_INDICES_H
#define ST_KERNELS_GLOBAL_TOPK_INDICES_H

#include "kernels/operator.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { ST_GLOBAL_TOPK_VARIANTS = 2, ST_GLOBAL_TOPK_DEFAULT = 2 };

extern const struct st_kernel_variant st_global_topk_indices_variants[ST_GLOBAL_TOPK_VARIANTS];

ST_OPERATOR_PRIVATE(global_topk_indices)

/* Whether variant 2 serves it: whole groups of four, pages of a power of two. */
int st_global_topk_indices_is_fast(const struct steptape_global_topk_indices_args *args);

#ifdef __cplusplus
}
#endif
#endif
