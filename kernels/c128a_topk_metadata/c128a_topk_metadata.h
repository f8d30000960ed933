/* SPDX-License-Identifier: Apache-2.0 */
/*
 * c128a_topk_metadata, private side.  The contract is in steptape/kernels_indices.h.
 */
#ifndef ST_KERNELS_C128A_TOPK_METADATA_H
#define ST_KERNELS_C128A_TOPK_METADATA_H

#include "kernels/operator.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { ST_C128A_VARIANTS = 1, ST_C128A_DEFAULT = 1 };

extern const struct st_kernel_variant st_c128a_topk_metadata_variants[ST_C128A_VARIANTS];

ST_OPERATOR_PRIVATE(c128a_topk_metadata)

#ifdef __cplusplus
}
#endif
#endif
