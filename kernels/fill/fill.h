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

enum {
    ST_FILL_VARIANTS = 2,
    ST_FILL_DEFAULT = 2,
    ST_FILL_V1_BLOCKS = 1 << 20, /* at most; threads then go round */
    ST_FILL_PIECE = 1024         /* words of a row with a gap after it that one warp writes */
};

extern const struct st_kernel_variant st_fill_variants[ST_FILL_VARIANTS];

ST_OPERATOR_PRIVATE(fill)

/* Whether variant 2 serves it: rows and gaps are multiples of 16 bytes. */
int st_fill_is_fast(const struct steptape_fill_args *args);

#ifdef __cplusplus
}
#endif
#endif
