/* SPDX-License-Identifier: Apache-2.0 */
/*
 * topk_per_row, private side.  The contract is in steptape/kernels_topk.h.
 */
#ifndef ST_KERNELS_TOPK_PER_ROW_H
#define ST_KERNELS_TOPK_PER_ROW_H

#include "kernels/operator.h"

#ifdef __cplusplus
extern "C" {
#endif

enum {
    ST_TOPK_LIBRARY = 1, /* what STEPTAPE_TOPK_LIBRARY means */
    ST_TOPK_PLAIN = 2,
    ST_TOPK_VARIANTS = 2,
    ST_TOPK_DEFAULT = 2
};

extern const struct st_kernel_variant st_topk_per_row_variants[ST_TOPK_VARIANTS];

ST_OPERATOR_PRIVATE(topk_per_row)

/*
 * The library chain sorts so many rows at a time that its scratch stays bounded; each chunk is
 * ST_TOPK_LIBRARY_LAUNCHES launches: mask, the passes of a sort of 32-bit keys, clip, order.
 */
enum {
    ST_TOPK_SORT_PASSES = 6,
    ST_TOPK_LIBRARY_LAUNCHES = ST_TOPK_SORT_PASSES + 3,
    ST_TOPK_MASK_THREADS = 256,
    ST_TOPK_MASK_COLUMNS = 1024, /* of a block */
    ST_TOPK_CLIP_THREADS = 256,
    ST_TOPK_ORDER_THREADS = 512,
    ST_TOPK_ORDER_WORDS = 8192, /* of 32 columns, that a block looks at together */
    ST_TOPK_ORDER_SMEM_BYTES = 4 * ST_TOPK_ORDER_WORDS + 4 * (ST_TOPK_ORDER_THREADS / 32)
};

struct st_topk_library {
    int64_t rows;   /* of a chunk; the last one may have fewer */
    int64_t chunks; /* 0: no columns, so there is nothing to sort */
    uint64_t keys[2];
    uint64_t columns[2]; /* offsets into scratch */
    uint64_t sort;
    uint64_t sort_bytes; /* what the sort may use for itself */
    uint64_t bytes;
};

void st_topk_library_layout(const struct steptape_topk_per_row_args *args,
                            struct st_topk_library *layout);
int st_topk_library_cuda(const struct steptape_topk_per_row_args *args, void *stream);

#ifdef __cplusplus
}
#endif
#endif
