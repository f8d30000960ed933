/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fill, private side.  The contract is in steptape/kernels_indices.h.
 */
#ifndef ST_KERNELS_FILL_H
#define ST_KERNELS_FILL_H

#include "kernels/operator.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { ST_FILL_VARIANTS = 1, ST_FILL_DEFAULT = 1 };

extern const struct st_kernel_variant st_fill_variants[ST_FILL_VARIANTS];

ST_OPERATOR_PRIVATE(fill)

#ifdef __cplusplus
}
#endif
#endif
