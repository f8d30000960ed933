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

enum {
    ST_COMBINE_VARIANTS = 3,
    ST_COMBINE_DEFAULT = 3,
    ST_COMBINE_WARPS = 4, /* of a block */
    /* Rows up to the first are one warp's; longer ones are cut into pieces of the second. */
    ST_COMBINE_ONE_PIECE = 1152,
    ST_COMBINE_PIECE = 1024
};

extern const struct st_kernel_variant st_combine_topk_swa_indices_variants[ST_COMBINE_VARIANTS];

ST_OPERATOR_PRIVATE(combine_topk_swa_indices)

/* Columns of a row that are likely to be written: m and n say how long the longest context is. */
int64_t
st_combine_topk_swa_indices_likely(const struct steptape_combine_topk_swa_indices_args *args);

/* Pieces that variant 3 cuts such a row into, each a warp's; the last one takes what is left. */
int64_t
st_combine_topk_swa_indices_pieces(const struct steptape_combine_topk_swa_indices_args *args);

/* Whether variants from 2 on serve it: whole groups of four, a ratio that is a power of two. */
int st_combine_topk_swa_indices_is_fast(const struct steptape_combine_topk_swa_indices_args *args);

#ifdef __cplusplus
}
#endif
#endif
