/* SPDX-License-Identifier: Apache-2.0 */
/*
 * dequantize_and_gather on the host: variants, argument check, geometry, cost, launcher.
 */
#include "kernels/dequantize_and_gather/dequantize_and_gather.h"

typedef struct steptape_dequantize_and_gather_args gather_args;

const struct st_kernel_variant st_dequantize_and_gather_variants[ST_GATHER_VARIANTS] = {
    {1,
     1,
     {"steptape_dequantize_and_gather_v1", NULL},
     "any alignment: four rows a block, 64 threads a row, a value at a time"},
    {2,
     1,
     {"steptape_dequantize_and_gather_v2_mla_x1", "steptape_dequantize_and_gather_v2_mla_x2",
      "steptape_dequantize_and_gather_v2_v32_x1", "steptape_dequantize_and_gather_v2_v32_x2", NULL},
     "64 threads a row, 8 bytes in and 16 out each; one or two rows a thread at once"},
    {3,
     1,
     {"steptape_dequantize_and_gather_v3_mla_x1", "steptape_dequantize_and_gather_v3_mla_x2",
      "steptape_dequantize_and_gather_v3_v32_x1", "steptape_dequantize_and_gather_v3_v32_x2", NULL},
     "a warp a row, 16 bytes in each; neighbours exchange halves so that sectors go out whole"},
};

int st_dequantize_and_gather_check(const gather_args *args) {
    if (args == NULL || args->num_reqs < 0 || args->num_reqs > 65535 || args->max_gather < 0 ||
        args->offset < 0 || args->ratio < 1 || args->block_size < 1 ||
        args->block_table_stride < 0 ||
        (args->format != STEPTAPE_KV_FP8_DS_MLA && args->format != STEPTAPE_KV_FP8_V32) ||
        args->variant > ST_GATHER_VARIANTS)
        return STEPTAPE_ERR_ARGUMENT;
    int64_t entry =
        args->format == STEPTAPE_KV_FP8_V32 ? STEPTAPE_KV_V32_ENTRY_BYTES : STEPTAPE_KV_ENTRY_BYTES;
    if (args->out_row_stride < st_gather_width(args->format) || args->out_req_stride < 0 ||
        args->cache_page_stride_bytes < args->block_size * entry)
        return STEPTAPE_ERR_ARGUMENT;
    return STEPTAPE_OK;
}

static int is_aligned(const void *pointer, uintptr_t bytes) {
    return (uintptr_t)pointer % bytes == 0;
}

/* Whether 16-byte accesses are right. */
static int is_vectorisable(const gather_args *args) {
    return args->cache_page_stride_bytes % 16 == 0 && args->out_row_stride % 8 == 0 &&
           args->out_req_stride % 8 == 0 && is_aligned(args->cache, 16) &&
           is_aligned(args->out, 16);
}

/* Entries of 584 bytes: up to so many rows the default is variant 2. */
enum { FEW_ROWS = 8192 };

int st_gather_geometry(const gather_args *args, struct st_gather_geometry *out) {
    int few = args->format == STEPTAPE_KV_FP8_DS_MLA &&
              (int64_t)args->num_reqs * args->max_gather <= FEW_ROWS;
    out->variant = args->variant;
    if (args->variant == 0)
        out->variant = !is_vectorisable(args) ? 1 : few ? 2 : ST_GATHER_DEFAULT;
    else if (args->variant > 1 && !is_vectorisable(args))
        return STEPTAPE_ERR_UNSUPPORTED;
    out->threads = 256;
    out->rows_per_thread = out->variant == 2 ? 2 : 1;
    out->rows_per_block = out->rows_per_thread * (out->variant == 3 ? 8 : 4);
    out->blocks_per_request =
        ((int64_t)args->max_gather + out->rows_per_block - 1) / out->rows_per_block;
    return STEPTAPE_OK;
}

static int is_empty(const gather_args *args) {
    return args->num_reqs == 0 || args->max_gather == 0;
}

int steptape_dequantize_and_gather(const gather_args *args, void *stream) {
    int rc = st_dequantize_and_gather_check(args);
    if (rc != STEPTAPE_OK || is_empty(args))
        return rc;
    if (args->out == NULL || args->cache == NULL || args->seq_lens == NULL ||
        args->block_table == NULL)
        return STEPTAPE_ERR_ARGUMENT;
    struct st_gather_geometry geometry;
    rc = st_gather_geometry(args, &geometry);
    if (rc != STEPTAPE_OK)
        return rc;
#ifdef ST_KERNELS_CUDA
    return st_dequantize_and_gather_cuda(args, &geometry, stream);
#else
    (void)stream;
    return STEPTAPE_ERR_UNAVAILABLE;
#endif
}

int steptape_dequantize_and_gather_cost(const gather_args *args,
                                        const struct steptape_token_counts *counts,
                                        struct steptape_cost *out) {
    int rc = st_dequantize_and_gather_check(args);
    if (rc != STEPTAPE_OK)
        return rc;
    if (counts == NULL || out == NULL || counts->entries < 0 ||
        counts->entries > (int64_t)args->num_reqs * args->max_gather)
        return STEPTAPE_ERR_ARGUMENT;
    struct steptape_cost cost = {0};
    if (!is_empty(args)) {
        struct st_gather_geometry geometry;
        rc = st_gather_geometry(args, &geometry);
        if (rc != STEPTAPE_OK)
            return rc;
        uint64_t rows = (uint64_t)counts->entries;
        uint64_t width = (uint64_t)st_gather_width(args->format);
        uint64_t entry = args->format == STEPTAPE_KV_FP8_V32
                             ? STEPTAPE_KV_V32_ENTRY_BYTES
                             : STEPTAPE_KV_ENTRY_BYTES - 1; /* the zero is not read */
        uint64_t block_size = (uint64_t)args->block_size;
        cost.read_bytes = 4 * (uint64_t)args->num_reqs * (args->gather_lens != NULL ? 2 : 1) +
                          rows * entry + 4 * ((rows + block_size - 1) / block_size);
        cost.written_bytes = rows * width * 2;
        cost.flops = rows * (width - ST_GATHER_ROPE);
        cost.launch_count = 1;
        cost.grid[0] = (uint32_t)geometry.blocks_per_request;
        cost.grid[1] = (uint32_t)args->num_reqs;
        cost.grid[2] = 1;
        cost.block[0] = (uint32_t)geometry.threads;
        cost.block[1] = cost.block[2] = 1;
        cost.block_count = (uint64_t)geometry.blocks_per_request * (uint64_t)args->num_reqs;
        uint64_t per_block = (uint64_t)geometry.rows_per_block;
        /* at best all rows are of as few blocks as they can be */
        cost.idle_max_block_count = cost.block_count - (rows + per_block - 1) / per_block;
    }
    *out = cost;
    return STEPTAPE_OK;
}
