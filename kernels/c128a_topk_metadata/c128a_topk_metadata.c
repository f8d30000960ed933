/* SPDX-License-Identifier: Apache-2.0 */
/*
 * c128a_topk_metadata on the host: widths, variants, argument check, geometry, bytes.
 */
#include "kernels/c128a_topk_metadata/c128a_topk_metadata.h"

const struct st_kernel_variant st_c128a_topk_metadata_variants[ST_C128A_VARIANTS] = {
    {1,
     1,
     {"steptape_c128a_topk_metadata_v1", NULL},
     "as upstream: one block a token, one column a thread"},
    {2,
     1,
     {"steptape_c128a_topk_metadata_v2", "steptape_c128a_topk_metadata_v2_large", NULL},
     "a warp for up to 256 columns of a row, in the order of memory, 16 bytes a store"},
};

enum { WIDTH_UNIT = 128 };

int32_t steptape_c128a_capacity(int64_t max_model_len, int32_t ratio) {
    if (max_model_len < 0 || ratio < 1)
        return STEPTAPE_ERR_ARGUMENT;
    int64_t entries = st_ceil_div(max_model_len, ratio);
    int64_t columns = st_ceil_div(entries, WIDTH_UNIT) * WIDTH_UNIT;
    return columns > INT32_MAX ? STEPTAPE_ERR_ARGUMENT : (int32_t)columns;
}

int32_t steptape_c128a_width(int64_t max_seq_len, int32_t ratio, int32_t capacity) {
    if (max_seq_len < 0 || ratio < 1 || capacity < 0)
        return STEPTAPE_ERR_ARGUMENT;
    int64_t width = WIDTH_UNIT;
    while (width < max_seq_len / ratio && width < capacity)
        width *= 2;
    return width < capacity ? (int32_t)width : capacity;
}

int st_c128a_topk_metadata_check(const struct steptape_c128a_topk_metadata_args *args) {
    if (args == NULL || args->num_tokens < 0 || args->num_tokens > INT32_MAX ||
        args->num_decode_tokens < 0 || args->num_decode_tokens > args->num_tokens ||
        args->width < WIDTH_UNIT || args->width % WIDTH_UNIT != 0 || args->ratio < 1 ||
        args->block_size < 1 || args->block_table_stride < 0 ||
        (args->num_decode_tokens > 0 && args->decode_stride < args->width) ||
        (args->num_decode_tokens < args->num_tokens && args->prefill_stride < args->width) ||
        args->variant > ST_C128A_VARIANTS)
        return STEPTAPE_ERR_ARGUMENT;
    return args->num_tokens > 0;
}

int st_c128a_topk_metadata_is_fast(const struct steptape_c128a_topk_metadata_args *args) {
    return st_is_power_of_two(args->ratio) && st_is_power_of_two(args->block_size) &&
           args->num_tokens * (args->width / WIDTH_UNIT) <= INT32_MAX &&
           (args->num_decode_tokens == 0 ||
            st_rows_are_aligned(args->decode, args->decode_stride)) &&
           (args->num_decode_tokens == args->num_tokens ||
            st_rows_are_aligned(args->prefill, args->prefill_stride));
}

/* Few rows: one step a warp, so that the whole device has work. */
int32_t st_c128a_topk_metadata_steps(const struct steptape_c128a_topk_metadata_args *args) {
    enum { BUSY_WARPS = 4096, MOST_STEPS = 2 };
    const int64_t of_row = args->width / WIDTH_UNIT;
    int64_t steps = args->num_tokens * of_row / BUSY_WARPS;
    steps = steps < 1 ? 1 : steps > MOST_STEPS ? MOST_STEPS : steps;
    return (int32_t)(steps < of_row ? steps : of_row);
}

void st_c128a_topk_metadata_geometry(const struct steptape_c128a_topk_metadata_args *args,
                                     struct st_geometry *geometry) {
    geometry->variant = args->variant != 0                     ? args->variant
                        : st_c128a_topk_metadata_is_fast(args) ? ST_C128A_DEFAULT
                                                               : 1;
    geometry->threads = 256;
    int64_t blocks = args->num_tokens;
    if (geometry->variant > 1) {
        const int64_t of_row =
            st_ceil_div(args->width / WIDTH_UNIT, st_c128a_topk_metadata_steps(args));
        blocks = st_ceil_div(args->num_tokens * of_row, 256 / 32);
    }
    geometry->grid[0] = (uint32_t)blocks;
}

static int c128a_topk_metadata_bytes(const struct steptape_c128a_topk_metadata_args *args,
                                     const struct steptape_token_counts *counts,
                                     struct steptape_cost *cost) {
    const uint64_t tokens = (uint64_t)args->num_tokens;
    const uint64_t decodes = (uint64_t)args->num_decode_tokens;
    if ((uint64_t)counts->entries > decodes * (uint64_t)args->width)
        return STEPTAPE_ERR_ARGUMENT;
    /* position; slot and request of decodes; a block id for each page of a list */
    cost->read_bytes =
        8 * tokens + 12 * decodes + 4 * (uint64_t)st_ceil_div(counts->entries, args->block_size);
    cost->written_bytes = 4 * tokens * (uint64_t)args->width + 4 * decodes;
    return STEPTAPE_OK;
}

static int has_pointers(const struct steptape_c128a_topk_metadata_args *args) {
    if (args->num_decode_tokens > 0 &&
        (args->decode == NULL || args->decode_lens == NULL || args->slot_mapping == NULL ||
         args->token_to_req == NULL || args->block_table == NULL))
        return 0;
    if (args->num_decode_tokens < args->num_tokens && args->prefill == NULL)
        return 0;
    return args->positions != NULL;
}

ST_OPERATOR_HOST(c128a_topk_metadata, has_pointers(args))
