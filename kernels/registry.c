/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The const table of operators, and what all of them share: status names, token counts.
 */
#include "kernels/registry.h"

#include <string.h>

#include "kernels/boundary_list/boundary_list.h"
#include "kernels/c128a_topk_metadata/c128a_topk_metadata.h"
#include "kernels/combine_topk_swa_indices/combine_topk_swa_indices.h"
#include "kernels/compress_fused/compress_fused.h"
#include "kernels/compress_norm_rope_store/compress_norm_rope_store.h"
#include "kernels/compress_pool/compress_pool.h"
#include "kernels/compressed_slot_mapping/compressed_slot_mapping.h"
#include "kernels/dequantize_and_gather/dequantize_and_gather.h"
#include "kernels/fill/fill.h"
#include "kernels/gather_lens/gather_lens.h"
#include "kernels/global_topk_indices/global_topk_indices.h"
#include "kernels/save_partial_states/save_partial_states.h"
#include "kernels/sparse_mla_decode/sparse_mla_decode.h"
#include "kernels/sparse_mla_prefill/sparse_mla_prefill.h"
#include "kernels/swa_indices/swa_indices.h"
#include "kernels/topk_per_row/topk_per_row.h"

/* One set of untyped wrappers an operator: calling through a cast pointer would be undefined. */
#define ST_KERNEL_WRAPPERS(op)                                                                     \
    static int op##_launch(const void *args, void *stream) {                                       \
        return steptape_##op((const struct steptape_##op##_args *)args, stream);                   \
    }                                                                                              \
    static int op##_ref(const void *args) {                                                        \
        return steptape_##op##_ref((const struct steptape_##op##_args *)args);                     \
    }                                                                                              \
    static int op##_ref_rows(const void *args, const int64_t *tokens, int64_t n) {                 \
        return steptape_##op##_ref_rows((const struct steptape_##op##_args *)args, tokens, n);     \
    }                                                                                              \
    static int op##_cost(const void *args, const struct steptape_token_counts *counts,             \
                         struct steptape_cost *out) {                                              \
        return steptape_##op##_cost((const struct steptape_##op##_args *)args, counts, out);       \
    }

ST_KERNEL_WRAPPERS(boundary_list)
ST_KERNEL_WRAPPERS(c128a_topk_metadata)
ST_KERNEL_WRAPPERS(combine_topk_swa_indices)
ST_KERNEL_WRAPPERS(compress_fused)
ST_KERNEL_WRAPPERS(compress_norm_rope_store)
ST_KERNEL_WRAPPERS(compress_pool)
ST_KERNEL_WRAPPERS(compressed_slot_mapping)
ST_KERNEL_WRAPPERS(dequantize_and_gather)
ST_KERNEL_WRAPPERS(fill)
ST_KERNEL_WRAPPERS(gather_lens)
ST_KERNEL_WRAPPERS(global_topk_indices)
ST_KERNEL_WRAPPERS(save_partial_states)
ST_KERNEL_WRAPPERS(sparse_mla_decode)
ST_KERNEL_WRAPPERS(sparse_mla_prefill)
ST_KERNEL_WRAPPERS(swa_indices)
ST_KERNEL_WRAPPERS(topk_per_row)

#define ST_KERNEL_ROW(op, n, def)                                                                  \
    { #op, st_##op##_variants, n, def, op##_launch, op##_ref, op##_ref_rows, op##_cost }

static const struct st_kernel kernels[] = {
    ST_KERNEL_ROW(boundary_list, ST_BOUNDARY_LIST_VARIANTS, ST_BOUNDARY_LIST_DEFAULT),
    ST_KERNEL_ROW(c128a_topk_metadata, ST_C128A_VARIANTS, ST_C128A_DEFAULT),
    ST_KERNEL_ROW(combine_topk_swa_indices, ST_COMBINE_VARIANTS, ST_COMBINE_DEFAULT),
    ST_KERNEL_ROW(compress_fused, ST_FUSED_VARIANTS, ST_FUSED_DEFAULT),
    ST_KERNEL_ROW(compress_norm_rope_store, ST_NORM_VARIANTS, ST_NORM_DEFAULT),
    ST_KERNEL_ROW(compress_pool, ST_POOL_VARIANTS, ST_POOL_DEFAULT),
    ST_KERNEL_ROW(compressed_slot_mapping, ST_SLOT_MAPPING_VARIANTS, ST_SLOT_MAPPING_DEFAULT),
    ST_KERNEL_ROW(dequantize_and_gather, ST_GATHER_VARIANTS, ST_GATHER_DEFAULT),
    ST_KERNEL_ROW(fill, ST_FILL_VARIANTS, ST_FILL_DEFAULT),
    ST_KERNEL_ROW(gather_lens, ST_GATHER_LENS_VARIANTS, ST_GATHER_LENS_DEFAULT),
    ST_KERNEL_ROW(global_topk_indices, ST_GLOBAL_TOPK_VARIANTS, ST_GLOBAL_TOPK_DEFAULT),
    ST_KERNEL_ROW(save_partial_states, ST_SAVE_VARIANTS, ST_SAVE_DEFAULT),
    ST_KERNEL_ROW(sparse_mla_decode, ST_DECODE_VARIANTS, ST_DECODE_DEFAULT),
    ST_KERNEL_ROW(sparse_mla_prefill, ST_PREFILL_VARIANTS, ST_PREFILL_DEFAULT),
    ST_KERNEL_ROW(swa_indices, ST_SWA_VARIANTS, ST_SWA_DEFAULT),
    ST_KERNEL_ROW(topk_per_row, ST_TOPK_VARIANTS, ST_TOPK_DEFAULT),
};

const struct st_kernel *st_kernel_table(size_t *count) {
    *count = sizeof(kernels) / sizeof(kernels[0]);
    return kernels;
}

const struct st_kernel *st_kernel_find(const char *name) {
    for (size_t i = 0; i < sizeof(kernels) / sizeof(kernels[0]); i++)
        if (strcmp(kernels[i].name, name) == 0)
            return &kernels[i];
    return NULL;
}

/* A name of the table that begins with '*' stands for all that contain the rest. */
static int function_matches(const char *row, const char *function) {
    return row[0] == '*' ? strstr(function, row + 1) != NULL : strcmp(row, function) == 0;
}

const struct st_kernel *st_kernel_find_function(const char *function,
                                                const struct st_kernel_variant **variant) {
    for (size_t i = 0; i < sizeof(kernels) / sizeof(kernels[0]); i++) {
        for (size_t v = 0; v < kernels[i].variant_count; v++) {
            const struct st_kernel_variant *row = &kernels[i].variants[v];
            for (size_t f = 0; row->functions[f] != NULL; f++) {
                if (!function_matches(row->functions[f], function))
                    continue;
                if (variant != NULL)
                    *variant = row;
                return &kernels[i];
            }
        }
    }
    return NULL;
}

const struct st_kernel_variant *st_kernel_variant_find(const struct st_kernel *kernel,
                                                       unsigned int number) {
    if (number == 0)
        number = kernel->default_variant;
    for (size_t v = 0; v < kernel->variant_count; v++)
        if (kernel->variants[v].number == number)
            return &kernel->variants[v];
    return NULL;
}

const char *steptape_status_name(int status) {
    if (status <= STEPTAPE_ERR_CUDA)
        return "the CUDA runtime refused the launch";
    switch (status) {
    case STEPTAPE_OK:
        return "ok";
    case STEPTAPE_ERR_ARGUMENT:
        return "an argument makes no sense";
    case STEPTAPE_ERR_UNAVAILABLE:
        return "built without CUDA";
    case STEPTAPE_ERR_UNSUPPORTED:
        return "no variant serves this request";
    default:
        return "unknown status";
    }
}

int steptape_count_tokens(const int64_t *positions, const int64_t *slot_mapping,
                          const int64_t *kv_slot_mapping, int64_t n, int32_t ratio,
                          struct steptape_token_counts *out) {
    if (out == NULL || n < 0 || ratio < 1 || (n > 0 && positions == NULL))
        return STEPTAPE_ERR_ARGUMENT;
    struct steptape_token_counts counts = {0, 0, 0, 0};
    for (int64_t t = 0; t < n; t++) {
        if (slot_mapping != NULL && slot_mapping[t] < 0)
            continue;
        counts.mapped++;
        if ((positions[t] + 1) % ratio != 0)
            continue;
        counts.boundary++;
        if (kv_slot_mapping == NULL || kv_slot_mapping[t] >= 0)
            counts.stored++;
    }
    *out = counts;
    return STEPTAPE_OK;
}

int steptape_kernels_have_cuda(void) {
#ifdef ST_KERNELS_CUDA
    return 1;
#else
    return 0;
#endif
}
