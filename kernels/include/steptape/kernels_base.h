/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What every operator of steptape/kernels.h shares: status, cost, the shape of its functions.
 * Included by the others; kernels.h states the rules.
 */
#ifndef STEPTAPE_KERNELS_BASE_H
#define STEPTAPE_KERNELS_BASE_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#if defined(__GNUC__)
#define STEPTAPE_API __attribute__((visibility("default")))
#else
#define STEPTAPE_API
#endif

/* Values are pinned; gaps are left for more of a kind. */
enum steptape_status {
    STEPTAPE_OK = 0,
    STEPTAPE_ERR_ARGUMENT = -20,    /* a size, stride or pointer makes no sense */
    STEPTAPE_ERR_UNAVAILABLE = -50, /* built without CUDA */
    STEPTAPE_ERR_UNSUPPORTED = -51, /* a right request that no variant (or not this one) serves */
    STEPTAPE_ERR_CUDA = -1000       /* -1000 - e: the CUDA runtime refused with error e */
};

/* What a status means, in a few words; never NULL.  The string lives as long as the program. */
STEPTAPE_API const char *steptape_status_name(int status);

/* Whether the launchers were built for a GPU: 1, or 0 when each returns ERR_UNAVAILABLE. */
STEPTAPE_API int steptape_kernels_have_cuda(void);

/* ---- what a launch costs */

/*
 * How many of a step's tokens get how far.  Each field is a subset of the one before it; tokens
 * past the first are what the operators of one launch read of them.
 */
struct steptape_token_counts {
    int64_t mapped;   /* slot_mapping >= 0 (compressed_slot_mapping: tokens of requests) */
    int64_t boundary; /* of these, (position + 1) % ratio == 0 */
    int64_t stored;   /* of these, kv_slot_mapping >= 0 */
    int64_t entries;  /* list entries or rows that a launch works on, where the operator says so */
};

/*
 * Counts n tokens.  kv_slot_mapping may be NULL: stored = boundary.  slot_mapping may be NULL:
 * every token is mapped.  Host pointers.
 */
STEPTAPE_API int steptape_count_tokens(const int64_t *positions, const int64_t *slot_mapping,
                                       const int64_t *kv_slot_mapping, int64_t n, int32_t ratio,
                                       struct steptape_token_counts *out);

/*
 * Bytes are the ones that the contract needs, each once: what an early-out lets go is not
 * counted, re-reads and speculative reads of a variant are not either.  Tables that many tokens
 * share (ape, weight, cos/sin rows) count once per token that uses a row and no more than the
 * whole table when the caller's sizes say how large it is.
 */
struct steptape_cost {
    uint64_t read_bytes;
    uint64_t written_bytes;
    uint64_t flops;                /* adds, multiplies, compares, exponentials: one each, in fp32 */
    uint32_t launch_count;         /* 0 when there is nothing to launch */
    uint32_t grid[3];              /* of the last launch; the others are in the variant's table */
    uint32_t block[3];             /* threads */
    uint32_t smem_bytes;           /* static and dynamic shared memory of a block */
    uint64_t block_count;          /* blocks of all launches */
    uint64_t idle_max_block_count; /* at most so many of them return at once (early-out) */
    uint64_t scratch_bytes; /* device memory that the caller provides beside inputs and outputs */
};

/*
 * What every operator has: the launcher, the reference for all rows, the reference for the listed
 * rows (of its row index: token, request or row of a matrix), the cost.
 */
#define STEPTAPE_OPERATOR(name)                                                                    \
    STEPTAPE_API int steptape_##name(const struct steptape_##name##_args *args, void *stream);     \
    STEPTAPE_API int steptape_##name##_ref(const struct steptape_##name##_args *args);             \
    STEPTAPE_API int steptape_##name##_ref_rows(const struct steptape_##name##_args *args,         \
                                                const int64_t *rows, int64_t n);                   \
    STEPTAPE_API int steptape_##name##_cost(const struct steptape_##name##_args *args,             \
                                            const struct steptape_token_counts *counts,            \
                                            struct steptape_cost *out);

#ifdef __cplusplus
}
#endif
#endif
