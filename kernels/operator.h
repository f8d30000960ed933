/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The host side that operators of one launch and independent rows have in common, so that OP.c is
 * left with its variants, its checks, its geometry and its bytes:
 *
 *     OP.h      ST_OPERATOR_PRIVATE(OP)
 *     OP.c      int st_OP_check(args) { ... }
 *               void st_OP_geometry(args, geometry) { ... }
 *               static int OP_bytes(args, counts, cost) { ... }
 *               ST_OPERATOR_HOST(OP, args->out != NULL && ...)
 *     OP_ref.c  static void OP_row(args, row) { ... }
 *               ST_OPERATOR_REF(OP, args->num_tokens)
 *     OP.cu     int st_OP_cuda(args, geometry, stream) { ... }
 *
 * Launcher and cost ask the same st_OP_geometry, so a plan knows the grid that will run.
 */
#ifndef ST_KERNELS_OPERATOR_H
#define ST_KERNELS_OPERATOR_H

#include <stddef.h>

#include "kernels/registry.h"

#ifdef __cplusplus
extern "C" {
#endif

/* What a call launches; a function of its args alone. */
struct st_geometry {
    unsigned int variant; /* resolved, 1..n */
    uint32_t grid[2];
    uint32_t threads;
    uint32_t smem_bytes;
    uint64_t idle_max_block_count; /* see struct steptape_cost */
};

/*
 * st_OP_check: 1 when there is work, 0 when there is none, or a negative status; looks at sizes
 * only.  st_OP_ready: the same, and the pointers are there when there is work.
 * st_OP_cuda: the device side of a launch; args are ready.
 */
#define ST_OPERATOR_PRIVATE(op)                                                                    \
    int st_##op##_check(const struct steptape_##op##_args *args);                                  \
    int st_##op##_ready(const struct steptape_##op##_args *args);                                  \
    void st_##op##_geometry(const struct steptape_##op##_args *args,                               \
                            struct st_geometry *geometry);                                         \
    int st_##op##_cuda(const struct steptape_##op##_args *args,                                    \
                       const struct st_geometry *geometry, void *stream);

#ifdef ST_KERNELS_CUDA
#define ST_OPERATOR_LAUNCH(op)                                                                     \
    do {                                                                                           \
        struct st_geometry geometry = {0, {1, 1}, 0, 0, 0};                                        \
        st_##op##_geometry(args, &geometry);                                                       \
        rc = st_##op##_cuda(args, &geometry, stream);                                              \
    } while (0)
#else
#define ST_OPERATOR_LAUNCH(op)                                                                     \
    do {                                                                                           \
        (void)stream;                                                                              \
        rc = STEPTAPE_ERR_UNAVAILABLE;                                                             \
    } while (0)
#endif

/* op_bytes fills the bytes, the flops and nothing else of a cost; 0 or a negative status. */
#define ST_OPERATOR_HOST(op, has_pointers)                                                         \
    int st_##op##_ready(const struct steptape_##op##_args *args) {                                 \
        int rc = st_##op##_check(args);                                                            \
        return rc <= 0 || (has_pointers) ? rc : STEPTAPE_ERR_ARGUMENT;                             \
    }                                                                                              \
    int steptape_##op(const struct steptape_##op##_args *args, void *stream) {                     \
        int rc = st_##op##_ready(args);                                                            \
        if (rc > 0)                                                                                \
            ST_OPERATOR_LAUNCH(op);                                                                \
        return rc;                                                                                 \
    }                                                                                              \
    int steptape_##op##_cost(const struct steptape_##op##_args *args,                              \
                             const struct steptape_token_counts *counts,                           \
                             struct steptape_cost *out) {                                          \
        struct steptape_cost cost = {0};                                                           \
        struct st_geometry geometry = {0, {1, 1}, 0, 0, 0};                                        \
        int rc = st_##op##_check(args);                                                            \
        if (rc < 0)                                                                                \
            return rc;                                                                             \
        if (counts == NULL || out == NULL || counts->mapped < 0 || counts->boundary < 0 ||         \
            counts->stored < 0 || counts->entries < 0)                                             \
            return STEPTAPE_ERR_ARGUMENT;                                                          \
        if (rc > 0) {                                                                              \
            rc = op##_bytes(args, counts, &cost);                                                  \
            if (rc < 0)                                                                            \
                return rc;                                                                         \
            st_##op##_geometry(args, &geometry);                                                   \
            st_geometry_cost(&geometry, &cost);                                                    \
        }                                                                                          \
        *out = cost;                                                                               \
        return STEPTAPE_OK;                                                                        \
    }

/* The two references, from `static void op_row(args, row)`. */
#define ST_OPERATOR_REF(op, row_count)                                                             \
    int steptape_##op##_ref(const struct steptape_##op##_args *args) {                             \
        int rc = st_##op##_ready(args);                                                            \
        if (rc <= 0)                                                                               \
            return rc;                                                                             \
        for (int64_t row = 0; row < (row_count); row++)                                            \
            op##_row(args, row);                                                                   \
        return STEPTAPE_OK;                                                                        \
    }                                                                                              \
    int steptape_##op##_ref_rows(const struct steptape_##op##_args *args, const int64_t *rows,     \
                                 int64_t n) {                                                      \
        int rc = st_##op##_ready(args);                                                            \
        if (rc < 0)                                                                                \
            return rc;                                                                             \
        for (int64_t i = 0; i < n; i++) {                                                          \
            if (rc == 0 || rows[i] < 0 || rows[i] >= (row_count))                                  \
                return STEPTAPE_ERR_ARGUMENT;                                                      \
            op##_row(args, rows[i]);                                                               \
        }                                                                                          \
        return STEPTAPE_OK;                                                                        \
    }

static inline void st_geometry_cost(const struct st_geometry *geometry,
                                    struct steptape_cost *cost) {
    cost->launch_count = 1;
    cost->grid[0] = geometry->grid[0];
    cost->grid[1] = geometry->grid[1];
    cost->grid[2] = 1;
    cost->block[0] = geometry->threads;
    cost->block[1] = cost->block[2] = 1;
    cost->smem_bytes = geometry->smem_bytes;
    cost->block_count = (uint64_t)geometry->grid[0] * geometry->grid[1];
    cost->idle_max_block_count = geometry->idle_max_block_count;
}

/* ceil(value / unit), value >= 0. */
static inline int64_t st_ceil_div(int64_t value, int64_t unit) {
    return (value + unit - 1) / unit;
}

/* Whether rows at this pointer and stride (in 32-bit words) can be accessed 16 bytes at a time;
 * NULL (a cost's args) can. */
static inline int st_rows_are_aligned(const void *pointer, int64_t stride) {
    return ((uintptr_t)pointer & 15) == 0 && (stride & 3) == 0;
}

static inline int st_is_power_of_two(int32_t value) {
    return value > 0 && (value & (value - 1)) == 0;
}

/* What is written once and is more than this goes by an L2 of today's devices anyway. */
enum { ST_STREAM_BYTES = 32 << 20 };

#ifdef __cplusplus
}
#endif
#endif
