/* SPDX-License-Identifier: Apache-2.0 */
/*
 * compressed_slot_mapping, the reference.
 */
#include "kernels/compressed_slot_mapping/compressed_slot_mapping.h"

/* The slot of query token i of request r. */
static int64_t slot_of(const struct steptape_compressed_slot_mapping_args *args, int32_t r,
                       int64_t i) {
    int64_t query_len = (int64_t)args->query_start_loc[r + 1] - args->query_start_loc[r];
    int64_t position = args->seq_lens[r] - query_len + i;
    if (position < 0 || (position + 1) % args->ratio != 0)
        return -1;
    int64_t entry = position / args->ratio;
    int64_t page = args->block_table[r * args->block_table_stride + entry / args->block_size];
    if (page < 0)
        page = 0;
    return page * args->block_size + entry % args->block_size;
}

static int check(const struct steptape_compressed_slot_mapping_args *args) {
    int rc = st_compressed_slot_mapping_check(args);
    if (rc != STEPTAPE_OK)
        return rc;
    if ((args->out_len > 0 && args->out == NULL) ||
        (args->num_reqs > 0 &&
         (args->query_start_loc == NULL || args->seq_lens == NULL || args->block_table == NULL)))
        return STEPTAPE_ERR_ARGUMENT;
    return STEPTAPE_OK;
}

int steptape_compressed_slot_mapping_ref(const struct steptape_compressed_slot_mapping_args *args) {
    int rc = check(args);
    if (rc != STEPTAPE_OK)
        return rc;
    for (int64_t t = 0; t < args->out_len; t++)
        args->out[t] = -1;
    for (int32_t r = 0; r < args->num_reqs; r++) {
        int64_t first = args->query_start_loc[r];
        for (int64_t t = first; t < args->query_start_loc[r + 1] && t < args->out_len; t++)
            args->out[t] = slot_of(args, r, t - first);
    }
    return STEPTAPE_OK;
}

int steptape_compressed_slot_mapping_ref_rows(
    const struct steptape_compressed_slot_mapping_args *args, const int64_t *tokens, int64_t n) {
    int rc = check(args);
    if (rc != STEPTAPE_OK)
        return rc;
    for (int64_t k = 0; k < n; k++) {
        int64_t t = tokens[k];
        if (t < 0 || t >= args->out_len)
            return STEPTAPE_ERR_ARGUMENT;
        args->out[t] = -1;
        for (int32_t r = 0; r < args->num_reqs; r++)
            if (args->query_start_loc[r] <= t && t < args->query_start_loc[r + 1])
                args->out[t] = slot_of(args, r, t - args->query_start_loc[r]);
    }
    return STEPTAPE_OK;
}
