/* SPDX-License-Identifier: Apache-2.0 */
/*
 * combine_topk_swa_indices, private side.  The contract is in steptape/kernels_indices.h.
 */
#ifndef ST_KERNELS_COMBINE_TOPK_SWA_INDICES_H
#define ST_KERNELS_COMBINE_TOPK_SWA_INDICES_H

#include "kernels/operator.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { ST_COMBINE_VARIANTS = 1, ST_COMBINE_DEFAULT = 1 };

extern const struct st_kernel_variant st_combine_topk_swa_indices_variants[ST_COMBINE_VARIANTS];

ST_OPERATOR_PRIVATE(combine_topk_swa_indices)

#ifdef __cplusplus
}
#endif
#endif
