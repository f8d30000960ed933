/* SPDX-License-Identifier: Apache-2.0 */
/*
 * combine_topk_swa_indices on the host: variants, argument check, geometry, bytes.
 */
#include "kernels/combine_topk_swa_indices/combine_topk_swa_indices.h"

const struct st_kernel_variant st_combine_topk_swa_indices_variants[ST_COMBINE_VARIANTS] = {
    {1,
     1,
     {"steptape_combine_topk_swa_indices_v1", NULL},
     "as upstream: 128 blocks a request walk its tokens, one column a thread"},
    {2,
     1,
     {"steptape_combine_topk_swa_indices_v2", NULL},
     "one warp a token, which finds its request; 16 bytes a load and store"},
    {3,
     1,
     {"steptape_combine_topk_swa_indices_v3_256", "steptape_combine_topk_swa_indices_v3_512",
      "steptape_combine_topk_swa_indices_v3_1024", "steptape_combine_topk_swa_indices_v3_wide",
      NULL},
     "v2; a list's first columns are read while the request is looked up; wide rows in pieces"},
};

enum { WIDTH_UNIT = 128, WORKERS = 128 };

int st_combine_topk_swa_indices_check(const struct steptape_combine_topk_swa_indices_args *args) {
    if (args == NULL || args->num_tokens < 0 || args->num_tokens > INT32_MAX ||
        args->num_reqs < 0 || args->topk < 0 || args->ratio < 1 || args->window < 0 ||
        args->m < 0 || args->n < 0 || args->width % WIDTH_UNIT != 0 ||
        args->width < (int64_t)args->topk + args->window || args->indices_stride < args->width ||
        args->topk_stride < args->topk || args->tail < STEPTAPE_COMBINE_TAIL_KEEP ||
        args->tail > STEPTAPE_COMBINE_TAIL_WIDTH || args->variant > ST_COMBINE_VARIANTS)
        return STEPTAPE_ERR_ARGUMENT;
    return args->num_tokens > 0 && args->num_reqs > 0;
}

int st_combine_topk_swa_indices_is_fast(const struct steptape_combine_topk_swa_indices_args *args) {
    return st_is_power_of_two(args->ratio) && args->topk % 4 == 0 &&
           args->num_tokens * st_combine_topk_swa_indices_pieces(args) <= INT32_MAX &&
           st_rows_are_aligned(args->indices, args->indices_stride) &&
           (args->topk == 0 || st_rows_are_aligned(args->topk_indices, args->topk_stride));
}

int64_t
st_combine_topk_swa_indices_likely(const struct steptape_combine_topk_swa_indices_args *args) {
    if (args->tail == STEPTAPE_COMBINE_TAIL_WIDTH)
        return args->width;
    return (args->topk < args->n ? args->topk : args->n) + (int64_t)args->window;
}

int64_t
st_combine_topk_swa_indices_pieces(const struct steptape_combine_topk_swa_indices_args *args) {
    const int64_t likely = st_combine_topk_swa_indices_likely(args);
    return likely <= ST_COMBINE_ONE_PIECE ? 1 : st_ceil_div(likely, ST_COMBINE_PIECE);
}

void st_combine_topk_swa_indices_geometry(const struct steptape_combine_topk_swa_indices_args *args,
                                          struct st_geometry *geometry) {
    geometry->variant = args->variant != 0                          ? args->variant
                        : st_combine_topk_swa_indices_is_fast(args) ? ST_COMBINE_DEFAULT
                                                                    : 1;
    if (geometry->variant == 1) {
        geometry->threads = 256;
        geometry->grid[0] = (uint32_t)args->num_reqs;
        geometry->grid[1] = WORKERS;
        return;
    }
    int64_t warps = args->num_tokens;
    if (geometry->variant == 3)
        warps *= st_combine_topk_swa_indices_pieces(args);
    geometry->threads = 32 * ST_COMBINE_WARPS;
    geometry->grid[0] = (uint32_t)st_ceil_div(warps, ST_COMBINE_WARPS);
}

static int combine_topk_swa_indices_bytes(const struct steptape_combine_topk_swa_indices_args *args,
                                          const struct steptape_token_counts *counts,
                                          struct steptape_cost *cost) {
    const int64_t tokens = args->num_tokens, entries = counts->entries;
    if (entries > tokens * args->width)
        return STEPTAPE_ERR_ARGUMENT;
    int64_t copied = entries - tokens * args->window;
    int64_t written = entries;
    if (args->tail == STEPTAPE_COMBINE_TAIL_WIDTH) {
        written = tokens * args->width;
    } else if (args->tail == STEPTAPE_COMBINE_TAIL_128) {
        int64_t units = st_ceil_div(st_ceil_div(entries, tokens), WIDTH_UNIT);
        written = tokens * units * WIDTH_UNIT;
    }
    copied = args->topk == 0 || copied < 0 ? 0 : copied;
    cost->read_bytes = 4 * (uint64_t)(3 * (int64_t)args->num_reqs + 1 + copied);
    cost->written_bytes = 4 * (uint64_t)(written + tokens);
    return STEPTAPE_OK;
}

ST_OPERATOR_HOST(combine_topk_swa_indices, args->indices != NULL && args->lens != NULL &&
                                               (args->topk == 0 || args->topk_indices != NULL) &&
                                               args->query_start_loc != NULL &&
                                               args->seq_lens != NULL && args->gather_lens != NULL)
