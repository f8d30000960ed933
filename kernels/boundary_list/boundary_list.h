/* SPDX-License-Identifier: Apache-2.0 */
/*
 * boundary_list, private side.  The contract is in steptape/kernels_indices.h.
 */
#ifndef ST_KERNELS_BOUNDARY_LIST_H
#define ST_KERNELS_BOUNDARY_LIST_H

#include "kernels/operator.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { ST_BOUNDARY_LIST_VARIANTS = 2, ST_BOUNDARY_LIST_DEFAULT = 2 };

extern const struct st_kernel_variant st_boundary_list_variants[ST_BOUNDARY_LIST_VARIANTS];

ST_OPERATOR_PRIVATE(boundary_list)

/* Up to so many tokens variant 2 reads one a thread at a time, not eight. */
enum { ST_BOUNDARY_LIST_FEW = 2048 };

#ifdef __cplusplus
}
#endif
#endif
