/* SPDX-License-Identifier: Apache-2.0 */
/*
 * compressed_slot_mapping on the host: variants, argument check, cost, launcher.
 */
#include "kernels/compressed_slot_mapping/compressed_slot_mapping.h"

const struct st_kernel_variant st_compressed_slot_mapping_variants[ST_SLOT_MAPPING_VARIANTS] = {
    {1,
     2,
     {"steptape_fill_i64_v1", "steptape_compressed_slot_mapping_v1", NULL},
     "as upstream: fill the buffer with -1, then one block a request writes every query token"},
    {2,
     1,
     {"steptape_compressed_slot_mapping_v2", NULL, NULL},
     "one launch: few requests share up to 32 blocks, further blocks fill the rest"},
};

int st_compressed_slot_mapping_check(const struct steptape_compressed_slot_mapping_args *args) {
    if (args == NULL || args->num_reqs < 0 || args->out_len < 0 || args->ratio < 1 ||
        args->block_size < 1 || args->block_table_stride < 0 ||
        args->variant > ST_SLOT_MAPPING_VARIANTS)
        return STEPTAPE_ERR_ARGUMENT;
    return STEPTAPE_OK;
}

static int has_pointers(const struct steptape_compressed_slot_mapping_args *args) {
    if (args->out_len > 0 && args->out == NULL)
        return 0;
    return args->num_reqs == 0 ||
           (args->query_start_loc != NULL && args->seq_lens != NULL && args->block_table != NULL);
}

int64_t st_compressed_slot_mapping_fill_blocks(int64_t out_len) {
    return (out_len + ST_SLOT_MAPPING_FILL_ELEMENTS - 1) / ST_SLOT_MAPPING_FILL_ELEMENTS;
}

int st_compressed_slot_mapping_slices_log2(
    const struct steptape_compressed_slot_mapping_args *args) {
    int slices_log2 = 0;
    while (slices_log2 < 5 && ((int64_t)args->num_reqs << slices_log2) < 32 &&
           (ST_SLOT_MAPPING_THREADS << slices_log2) < args->out_len)
        slices_log2++;
    return slices_log2;
}

int steptape_compressed_slot_mapping(const struct steptape_compressed_slot_mapping_args *args,
                                     void *stream) {
    int rc = st_compressed_slot_mapping_check(args);
    if (rc != STEPTAPE_OK)
        return rc;
    if (!has_pointers(args))
        return STEPTAPE_ERR_ARGUMENT;
    if (args->out_len == 0)
        return STEPTAPE_OK;
#ifdef ST_KERNELS_CUDA
    unsigned int variant = args->variant != 0 ? args->variant : ST_SLOT_MAPPING_DEFAULT;
    return st_compressed_slot_mapping_cuda(args, variant, stream);
#else
    (void)stream;
    return STEPTAPE_ERR_UNAVAILABLE;
#endif
}

int steptape_compressed_slot_mapping_cost(const struct steptape_compressed_slot_mapping_args *args,
                                          const struct steptape_token_counts *counts,
                                          struct steptape_cost *out) {
    int rc = st_compressed_slot_mapping_check(args);
    if (rc != STEPTAPE_OK)
        return rc;
    if (counts == NULL || out == NULL || counts->mapped < 0 || counts->boundary < 0 ||
        counts->boundary > counts->mapped || counts->mapped > args->out_len)
        return STEPTAPE_ERR_ARGUMENT;
    struct steptape_cost cost = {0};
    if (args->out_len > 0) {
        unsigned int variant = args->variant != 0 ? args->variant : ST_SLOT_MAPPING_DEFAULT;
        uint64_t reqs = (uint64_t)args->num_reqs;
        uint64_t fill = (uint64_t)st_compressed_slot_mapping_fill_blocks(args->out_len);
        cost.read_bytes =
            (reqs > 0 ? 4 * (reqs + 1) + 4 * reqs : 0) + 4 * (uint64_t)counts->boundary;
        cost.written_bytes = 8 * (uint64_t)args->out_len;
        cost.launch_count = 1;
        uint64_t request_blocks = reqs;
        if (variant != 1)
            request_blocks <<= st_compressed_slot_mapping_slices_log2(args);
        cost.grid[0] = (uint32_t)(request_blocks + fill);
        if (variant == 1 && reqs > 0) {
            cost.launch_count = 2;
            cost.grid[0] = (uint32_t)reqs;
            cost.written_bytes += 8 * (uint64_t)counts->mapped;
        }
        cost.block_count = request_blocks + fill;
        cost.grid[1] = cost.grid[2] = 1;
        cost.block[0] = ST_SLOT_MAPPING_THREADS;
        cost.block[1] = cost.block[2] = 1;
    }
    *out = cost;
    return STEPTAPE_OK;
}
