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

enum { ST_SWA_VARIANTS = 1, ST_SWA_DEFAULT = 1 };

extern const struct st_kernel_variant st_swa_indices_variants[ST_SWA_VARIANTS];

ST_OPERATOR_PRIVATE(swa_indices)

#ifdef __cplusplus
}
#endif
#endif
