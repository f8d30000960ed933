/* SPDX-License-Identifier: Apache-2.0 */
/*
 * topk_per_row on the host: variants, argument check, geometry, scratch, bytes.
 */
#include "kernels/topk_per_row/topk_per_row.h"

const struct st_kernel_variant st_topk_per_row_variants[ST_TOPK_VARIANTS] = {
    {1,
     ST_TOPK_LIBRARY_LAUNCHES,
     {"steptape_topk_per_row_v1_mask", "*steptape_topk_per_row_segments",
      "steptape_topk_per_row_v1_clip", "steptape_topk_per_row_v1_order", NULL},
     "the library chain: mask, a segmented radix sort of whole rows (CUB), clip, order"},
    {2,
     1,
     {"steptape_topk_per_row_v2", NULL},
     "one block a row; four passes over the row find the k-th value, a fifth lists"},
};

int st_topk_per_row_check(const struct steptape_topk_per_row_args *args) {
    if (args == NULL || args->num_rows < 0 || args->num_rows > INT32_MAX || args->num_columns < 0 ||
        args->k < 1 || args->out_stride < args->k || args->logits_stride < args->num_columns ||
        args->next_n < 0 || args->variant > ST_TOPK_VARIANTS ||
        (args->flags & ~(STEPTAPE_TOPK_LIBRARY | STEPTAPE_TOPK_ABSOLUTE)) != 0)
        return STEPTAPE_ERR_ARGUMENT;
    const int library = (args->flags & STEPTAPE_TOPK_LIBRARY) != 0;
    if ((args->flags & STEPTAPE_TOPK_ABSOLUTE) != 0 && !library)
        return STEPTAPE_ERR_ARGUMENT;
    if (library && args->variant != 0 && args->variant != ST_TOPK_LIBRARY)
        return STEPTAPE_ERR_UNSUPPORTED;
    return args->num_rows > 0;
}

int st_topk_per_row_ready(const struct steptape_topk_per_row_args *args) {
    int rc = st_topk_per_row_check(args);
    if (rc <= 0)
        return rc;
    if (args->out == NULL || (args->logits == NULL && args->num_columns > 0) ||
        (args->row_ends == NULL) == (args->seq_lens == NULL))
        return STEPTAPE_ERR_ARGUMENT;
    if (args->seq_lens != NULL && (args->row_starts != NULL || args->next_n < 1))
        return STEPTAPE_ERR_ARGUMENT;
    return rc;
}

void st_topk_library_layout(const struct steptape_topk_per_row_args *args,
                            struct st_topk_library *layout) {
    const int64_t chunk_elements = (int64_t)1 << 27, columns = args->num_columns;
    int64_t rows = columns > 0 ? chunk_elements / columns : 1;
    rows = rows < 1 ? 1 : rows > args->num_rows ? args->num_rows : rows;
    layout->rows = rows;
    layout->chunks = columns > 0 ? st_ceil_div(args->num_rows, rows) : 0;
    const uint64_t array = (uint64_t)st_ceil_div(4 * rows * columns, 256) * 256;
    uint64_t at = 0;
    for (int i = 0; i < 2; i++, at += array)
        layout->keys[i] = at;
    for (int i = 0; i < 2; i++, at += array)
        layout->columns[i] = at;
    layout->sort = at;
    layout->sort_bytes = 4096;
    layout->bytes = layout->chunks > 0 ? at + layout->sort_bytes : 0;
}

void st_topk_per_row_geometry(const struct steptape_topk_per_row_args *args,
                              struct st_geometry *geometry) {
    geometry->variant = (args->flags & STEPTAPE_TOPK_LIBRARY) != 0 ? ST_TOPK_LIBRARY
                        : args->variant != 0                       ? args->variant
                                                                   : ST_TOPK_DEFAULT;
    geometry->grid[0] = (uint32_t)args->num_rows;
    geometry->threads = 512;
    geometry->smem_bytes = 1024 + 3 * 64;
    if (geometry->variant == ST_TOPK_LIBRARY) {
        struct st_topk_library layout;
        st_topk_library_layout(args, &layout);
        if (layout.chunks > 1)
            geometry->grid[0] = (uint32_t)(args->num_rows - (layout.chunks - 1) * layout.rows);
        geometry->threads = ST_TOPK_ORDER_THREADS;
        geometry->smem_bytes = ST_TOPK_ORDER_SMEM_BYTES;
    }
}

uint64_t steptape_topk_per_row_scratch_bytes(const struct steptape_topk_per_row_args *args) {
    struct st_geometry geometry = {0, {1, 1}, 0, 0, 0};
    struct st_topk_library layout;
    if (st_topk_per_row_check(args) <= 0)
        return 0;
    st_topk_per_row_geometry(args, &geometry);
    if (geometry.variant != ST_TOPK_LIBRARY)
        return 0;
    st_topk_library_layout(args, &layout);
    return layout.bytes;
}

int steptape_topk_per_row(const struct steptape_topk_per_row_args *args, void *stream) {
    int rc = st_topk_per_row_ready(args);
    if (rc <= 0)
        return rc;
    const uint64_t scratch = steptape_topk_per_row_scratch_bytes(args);
    if (scratch > 0 && (args->scratch == NULL || ((uintptr_t)args->scratch & 15) != 0 ||
                        args->scratch_bytes < scratch))
        return STEPTAPE_ERR_ARGUMENT;
    ST_OPERATOR_LAUNCH(topk_per_row);
    return rc;
}

/* Blocks of all launches of the library chain. */
static uint64_t library_block_count(const struct steptape_topk_per_row_args *args,
                                    const struct st_topk_library *layout) {
    const uint64_t rows = (uint64_t)args->num_rows;
    if (layout->chunks == 0)
        return rows;
    return rows * ((uint64_t)st_ceil_div(args->num_columns, ST_TOPK_MASK_COLUMNS) +
                   ST_TOPK_SORT_PASSES + 2);
}

int steptape_topk_per_row_cost(const struct steptape_topk_per_row_args *args,
                               const struct steptape_token_counts *counts,
                               struct steptape_cost *out) {
    struct steptape_cost cost = {0};
    struct st_geometry geometry = {0, {1, 1}, 0, 0, 0};
    const int rc = st_topk_per_row_check(args);
    if (rc < 0)
        return rc;
    if (counts == NULL || out == NULL || counts->mapped < 0 || counts->entries < 0)
        return STEPTAPE_ERR_ARGUMENT;
    if (rc > 0) {
        const uint64_t rows = (uint64_t)args->num_rows, entries = (uint64_t)counts->entries;
        if (counts->mapped > args->num_rows || entries > rows * (uint64_t)args->num_columns)
            return STEPTAPE_ERR_ARGUMENT;
        st_topk_per_row_geometry(args, &geometry);
        st_geometry_cost(&geometry, &cost);
        /* a row's end (a start may come to it, which sizes do not tell) and its columns */
        cost.read_bytes = 4 * rows + 4 * entries;
        cost.written_bytes = 4 * rows * (uint64_t)args->k;
        cost.flops = entries;
        cost.scratch_bytes = steptape_topk_per_row_scratch_bytes(args);
        if (geometry.variant == ST_TOPK_LIBRARY) {
            struct st_topk_library layout;
            st_topk_library_layout(args, &layout);
            cost.launch_count =
                layout.chunks > 0 ? (uint32_t)layout.chunks * ST_TOPK_LIBRARY_LAUNCHES : 1;
            cost.block_count = library_block_count(args, &layout);
        }
    }
    *out = cost;
    return STEPTAPE_OK;
}
