/* SPDX-License-Identifier: Apache-2.0 */
/*
 * topk_per_row on the host: variants, argument check, geometry, scratch, bytes.
 */
#include "kernels/topk_per_row/topk_per_row.h"

#include "kernels/device.h"

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
    {3,
     1,
     {"steptape_topk_per_row_v3_4k", "steptape_topk_per_row_v3_8k", "steptape_topk_per_row_v3_16k",
      "steptape_topk_per_row_v3_32k", "steptape_topk_per_row_v3_long", NULL},
     "a block of 512 or 1,024 a row, held in registers; longer rows are bounded first"},
    {4,
     1,
     {"steptape_topk_per_row_v4_4k", "steptape_topk_per_row_v4_8k", "steptape_topk_per_row_v4_16k",
      NULL},
     "the same with smaller blocks, several on a multiprocessor, for many rows"},
    {5,
     1,
     {"steptape_topk_per_row_v5", NULL},
     "a cluster of up to 8 blocks a row, which is read twice; the first has the candidates"},
    {6,
     1,
     {"steptape_topk_per_row_v6", NULL},
     "v3 whose blocks stay: the next row comes into shared memory meanwhile; many rows"},
};

/* Shared memory that a block can have. */
static uint32_t shared_limit(int generation) {
    const uint32_t kilobytes = generation >= 120                      ? 99
                               : generation >= 90                     ? 227
                               : generation == 86 || generation == 89 ? 99
                                                                      : 163;
    return kilobytes * 1024;
}

/* Of a block of `cluster` that have a long row: candidates' columns, and a bit a column. */
static uint32_t long_bytes(int64_t columns, uint32_t cluster) {
    return ST_TOPK_SHARED_BYTES + ST_TOPK_LIST_BYTES +
           512 * (uint32_t)st_ceil_div(columns + 3, 4096 * (int64_t)cluster);
}

/* Blocks of a cluster: as many as there is room for while each has 8,192 columns. */
static uint32_t cluster_size(int64_t rows, int64_t columns, int64_t multiprocessors) {
    uint32_t size = 1;
    while (size < 8 && 2 * size * rows <= multiprocessors && columns / (2 * size) >= 8192)
        size *= 2;
    return size;
}

/* As measured: large blocks while each has a multiprocessor, or nearly so. */
static unsigned int default_variant(const struct steptape_topk_per_row_args *args,
                                    const struct st_device_facts *device) {
    const int64_t rows = args->num_rows, columns = args->num_columns;
    const int64_t multiprocessors = device->multiprocessors;
    if (columns <= 8192)
        return rows <= 2 * multiprocessors ? ST_TOPK_BLOCK : ST_TOPK_SMALL;
    if (columns <= 16384)
        return rows <= multiprocessors ? ST_TOPK_BLOCK : ST_TOPK_SMALL;
    if (columns <= ST_TOPK_STAY_COLUMNS)
        return rows > 4 * multiprocessors && device->generation >= 90 &&
                       shared_limit(device->generation) >= ST_TOPK_STAY_BYTES
                   ? ST_TOPK_STAY
                   : ST_TOPK_BLOCK;
    if (device->generation >= 90 && cluster_size(rows, columns, multiprocessors) > 1)
        return ST_TOPK_CLUSTER;
    return long_bytes(columns, 1) <= shared_limit(device->generation) ? ST_TOPK_BLOCK
                                                                      : ST_TOPK_PLAIN;
}

static void plan_block(int32_t columns, struct st_topk_plan *plan) {
    static const struct {
        int32_t columns;
        enum st_topk_function function;
        uint32_t threads, smem_bytes;
    } kinds[] = {{4096, ST_TOPK_V3_4K, 512, ST_TOPK_SMALL_BYTES},
                 {8192, ST_TOPK_V3_8K, 512, ST_TOPK_SMALL_BYTES},
                 {16384, ST_TOPK_V3_16K, 1024, ST_TOPK_SHARED_BYTES},
                 {32768, ST_TOPK_V3_32K, 1024, ST_TOPK_SHARED_BYTES},
                 {INT32_MAX, ST_TOPK_V3_LONG, 1024, 0}};
    int i = 0;
    while (columns > kinds[i].columns)
        i++;
    plan->function = kinds[i].function;
    plan->threads = kinds[i].threads;
    plan->smem_bytes = kinds[i].smem_bytes != 0 ? kinds[i].smem_bytes : long_bytes(columns, 1);
}

static void plan_small(int32_t columns, struct st_topk_plan *plan) {
    plan->function = columns <= 4096   ? ST_TOPK_V4_4K
                     : columns <= 8192 ? ST_TOPK_V4_8K
                                       : ST_TOPK_V4_16K;
    plan->threads = columns <= 8192 ? 256 : 512;
    plan->smem_bytes = columns <= 8192 ? ST_TOPK_SMALL_BYTES : ST_TOPK_SHARED_BYTES;
}

int st_topk_plan(const struct steptape_topk_per_row_args *args, struct st_topk_plan *plan) {
    const struct st_device_facts device = st_device_facts();
    const int32_t columns = args->num_columns;
    int serves = 1;
    plan->variant = args->variant != 0 ? args->variant : default_variant(args, &device);
    plan->grid = (uint32_t)args->num_rows;
    plan->cluster = 1;
    plan->threads = 1024;
    plan->most_bytes = shared_limit(device.generation);
    switch (plan->variant) {
    case ST_TOPK_BLOCK:
        plan_block(columns, plan);
        break;
    case ST_TOPK_SMALL:
        serves = columns <= 16384;
        plan_small(columns, plan);
        break;
    case ST_TOPK_CLUSTER:
        serves = device.generation >= 90;
        plan->function = ST_TOPK_V5;
        plan->cluster = cluster_size(args->num_rows, columns, device.multiprocessors);
        plan->grid *= plan->cluster;
        plan->smem_bytes = long_bytes(columns, plan->cluster);
        break;
    case ST_TOPK_STAY:
        serves = device.generation >= 90 && columns <= ST_TOPK_STAY_COLUMNS;
        plan->function = ST_TOPK_V6;
        if (plan->grid > (uint32_t)device.multiprocessors)
            plan->grid = (uint32_t)device.multiprocessors;
        plan->threads = ST_TOPK_STAY_THREADS;
        plan->smem_bytes = ST_TOPK_STAY_BYTES;
        break;
    default:
        plan->function = ST_TOPK_V2;
        plan->threads = 512;
        plan->smem_bytes = ST_TOPK_PLAIN_BYTES;
    }
    return serves && plan->smem_bytes <= plan->most_bytes ? STEPTAPE_OK : STEPTAPE_ERR_UNSUPPORTED;
}

static int is_library(const struct steptape_topk_per_row_args *args) {
    return (args->flags & STEPTAPE_TOPK_LIBRARY) != 0 || args->variant == ST_TOPK_LIBRARY;
}

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
    struct st_topk_plan plan;
    if (args->num_rows > 0 && !is_library(args) && st_topk_plan(args, &plan) != STEPTAPE_OK)
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
    if (is_library(args)) {
        struct st_topk_library layout;
        st_topk_library_layout(args, &layout);
        const int64_t before = layout.chunks > 1 ? (layout.chunks - 1) * layout.rows : 0;
        geometry->variant = ST_TOPK_LIBRARY;
        geometry->grid[0] = (uint32_t)(args->num_rows - before);
        geometry->threads = ST_TOPK_ORDER_THREADS;
        geometry->smem_bytes = ST_TOPK_ORDER_SMEM_BYTES;
        return;
    }
    struct st_topk_plan plan;
    st_topk_plan(args, &plan);
    geometry->variant = plan.variant;
    geometry->grid[0] = plan.grid;
    geometry->threads = plan.threads;
    geometry->smem_bytes = plan.smem_bytes;
}

uint64_t steptape_topk_per_row_scratch_bytes(const struct steptape_topk_per_row_args *args) {
    struct st_topk_library layout;
    if (st_topk_per_row_check(args) <= 0 || !is_library(args))
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
