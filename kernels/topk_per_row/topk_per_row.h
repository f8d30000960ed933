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
    ST_TOPK_BLOCK = 3,   /* a large block a row */
    ST_TOPK_SMALL = 4,   /* a small block a row, several on a multiprocessor */
    ST_TOPK_CLUSTER = 5, /* a cluster of large blocks a row */
    ST_TOPK_STAY = 6,    /* blocks that stay for row after row */
    ST_TOPK_VARIANTS = 6,
    ST_TOPK_DEFAULT = 3
};

extern const struct st_kernel_variant st_topk_per_row_variants[ST_TOPK_VARIANTS];

/* The device functions of variants 2 to 6; those of one block a row that it holds come first. */
enum st_topk_function {
    ST_TOPK_V3_4K,
    ST_TOPK_V3_8K,
    ST_TOPK_V3_16K,
    ST_TOPK_V3_32K,
    ST_TOPK_V4_4K,
    ST_TOPK_V4_8K,
    ST_TOPK_V4_16K,
    ST_TOPK_V3_LONG,
    ST_TOPK_V5,
    ST_TOPK_V6,
    ST_TOPK_V2
};

enum {
    ST_TOPK_SMALL_BYTES = 19456,  /* struct topk_shared without candidates, or a little more */
    ST_TOPK_SHARED_BYTES = 52224, /* the whole */
    ST_TOPK_LIST_BYTES = 16384,   /* columns of candidates, for long rows */
    ST_TOPK_STAY_COLUMNS = 32768, /* of a row, that variant 6 can hold */
    ST_TOPK_STAY_THREADS = 512,
    ST_TOPK_STAY_BYTES = ST_TOPK_SHARED_BYTES + 4 * ST_TOPK_STAY_COLUMNS + 128,
    ST_TOPK_PLAIN_BYTES = 1160
};

/* How variants 2 to 6 are launched, a function of the arguments and the device. */
struct st_topk_plan {
    unsigned int variant;
    enum st_topk_function function;
    uint32_t grid;
    uint32_t cluster; /* blocks */
    uint32_t threads;
    uint32_t smem_bytes; /* dynamic, but for variant 2 */
    uint32_t most_bytes; /* that a block can have */
};

/* 0, or STEPTAPE_ERR_UNSUPPORTED when args->variant does not serve args on this device. */
int st_topk_plan(const struct steptape_topk_per_row_args *args, struct st_topk_plan *plan);

int st_topk_block_cuda(const struct steptape_topk_per_row_args *args,
                       const struct st_topk_plan *plan, void *stream);
int st_topk_long_cuda(const struct steptape_topk_per_row_args *args,
                      const struct st_topk_plan *plan, void *stream);
int st_topk_stay_cuda(const struct steptape_topk_per_row_args *args,
                      const struct st_topk_plan *plan, void *stream);

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
