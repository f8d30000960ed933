/* SPDX-License-Identifier: Apache-2.0 */
/*
 * gather_lens, private side.  The contract is in steptape/kernels_indices.h.
 */
#ifndef ST_KERNELS_GATHER_LENS_H
#define ST_KERNELS_GATHER_LENS_H

#include "kernels/operator.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { ST_GATHER_LENS_VARIANTS = 1, ST_GATHER_LENS_DEFAULT = 1 };

extern const struct st_kernel_variant st_gather_lens_variants[ST_GATHER_LENS_VARIANTS];

ST_OPERATOR_PRIVATE(gather_lens)

#ifdef __cplusplus
}
#endif
#endif
