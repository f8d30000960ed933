/* SPDX-License-Identifier: Apache-2.0 */
/*
 * sparse_mla_prefill, private side.  The contract is in steptape/kernels_attention.h.
 */
#ifndef ST_KERNELS_SPARSE_MLA_PREFILL_H
#define ST_KERNELS_SPARSE_MLA_PREFILL_H

#include "kernels/operator.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { ST_PREFILL_VARIANTS = 3, ST_PREFILL_DEFAULT = 3 };
enum { ST_PREFILL_V_DIM = 512, ST_PREFILL_HEADS = 64 /* of a block */ };
enum { ST_PREFILL_V3_THREADS = 512 };

extern const struct st_kernel_variant st_sparse_mla_prefill_variants[ST_PREFILL_VARIANTS];

/* Whether a variant can serve these args on the current device. */
int st_sparse_mla_prefill_serves(const struct steptape_sparse_mla_prefill_args *args,
                                 unsigned int variant);

ST_OPERATOR_PRIVATE(sparse_mla_prefill)

/* For tests: sum of |weight * value| of token t, [heads, 512].  Host pointers. */
void st_sparse_mla_prefill_magnitude(const struct steptape_sparse_mla_prefill_args *args, int64_t t,
                                     float *magnitude);

/* v3, in sparse_mla_prefill_hopper.cu; whether this build has its code for the current device, a
 * 9.0 one: only sm_90a has. */
int st_sparse_mla_prefill_has_hopper(void);
int st_sparse_mla_prefill_hopper(const struct steptape_sparse_mla_prefill_args *args,
                                 const struct st_geometry *geometry, void *stream);

#ifdef __cplusplus
}
#endif
#endif
