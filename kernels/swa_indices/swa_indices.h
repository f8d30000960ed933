/* SPDX-License-Identifier: Apache-2.0 */
/*
 * swa_indices, private side.  The contract is in steptape/kernels_indices.h.
 */
#ifndef ST_KERNELS_SWA_INDICES_H
#define ST_KERNELS_SWA_INDICES_H

#include "kernels/operator.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { ST_SWA_VARIANTS = 2, ST_SWA_DEFAULT = 2, ST_SWA_WARPS = 4 /* of a block: tokens */ };

extern const struct st_kernel_variant st_swa_indices_variants[ST_SWA_VARIANTS];

ST_OPERATOR_PRIVATE(swa_indices)

/* Whether variant 2 serves it: whole groups of four, in pages of a power of two from 4 on. */
int st_swa_indices_is_fast(const struct steptape_swa_indices_args *args);

#ifdef __cplusplus
}
#endif
#endif
