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

enum { ST_C128A_VARIANTS = 2, ST_C128A_DEFAULT = 2 };

extern const struct st_kernel_variant st_c128a_topk_metadata_variants[ST_C128A_VARIANTS];

ST_OPERATOR_PRIVATE(c128a_topk_metadata)

/* Steps of 128 columns that a warp of variant 2 makes, all of one row. */
int32_t st_c128a_topk_metadata_steps(const struct steptape_c128a_topk_metadata_args *args);

/* Whether variant 2 serves it: powers of two, rows that begin at multiples of 16 bytes. */
int st_c128a_topk_metadata_is_fast(const struct steptape_c128a_topk_metadata_args *args);

#ifdef __cplusplus
}
#endif
#endif
