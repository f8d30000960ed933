/* SPDX-License-Identifier: Apache-2.0 */
/*
 * compress_pool, the reference: two passes over the window for each channel, in double.
 */
#include "kernels/compress_pool/compress_pool.h"

#include <math.h>

/* The state row of position q of request r. */
static const float *row_of(const struct steptape_compress_pool_args *args, int32_t r, int64_t q) {
    int64_t page = args->block_table[r * args->block_table_stride + q / args->block_size];
    if (page < 0)
        page = 0;
    return args->state_cache + page * args->state_page_stride +
           (q % args->block_size) * args->state_row_stride;
}

static void pool_token(const struct steptape_compress_pool_args *args, int64_t t) {
    if (args->slot_mapping[t] < 0)
        return;
    int64_t p = args->positions[t];
    if ((p + 1) % args->ratio != 0)
        return;
    if (args->kv_slot_mapping[t] < 0)
        return;

    int64_t groups = args->overlap ? 2 : 1;
    int64_t window = groups * args->ratio;
    int64_t width = groups * args->head_dim;
    int64_t first = p - window + 1;
    int32_t r = args->token_to_req[t];
    float *pooled = args->pooled + t * args->pooled_stride;
    for (int64_t d = 0; d < args->head_dim; d++) {
        double max = -INFINITY;
        for (int64_t q = first < 0 ? 0 : first; q <= p; q++) {
            int64_t column = args->overlap ? ((q - first) / args->ratio) * args->head_dim + d : d;
            double score = row_of(args, r, q)[width + column];
            if (score > max)
                max = score;
        }
        double sum = 0.0;
        double product = 0.0;
        for (int64_t q = first < 0 ? 0 : first; q <= p; q++) {
            int64_t column = args->overlap ? ((q - first) / args->ratio) * args->head_dim + d : d;
            const float *row = row_of(args, r, q);
            double weight = exp(row[width + column] - max);
            sum += weight;
            product += weight * row[column];
        }
        pooled[d] = (float)(product / sum);
    }
}

static int check(const struct steptape_compress_pool_args *args) {
    int rc = st_compress_pool_check(args);
    if (rc != STEPTAPE_OK || args->num_tokens == 0)
        return rc;
    if (args->state_cache == NULL || args->positions == NULL || args->slot_mapping == NULL ||
        args->kv_slot_mapping == NULL || args->token_to_req == NULL || args->block_table == NULL ||
        args->pooled == NULL)
        return STEPTAPE_ERR_ARGUMENT;
    return STEPTAPE_OK;
}

int steptape_compress_pool_ref(const struct steptape_compress_pool_args *args) {
    int rc = check(args);
    if (rc != STEPTAPE_OK)
        return rc;
    for (int64_t t = 0; t < args->num_tokens; t++)
        pool_token(args, t);
    return STEPTAPE_OK;
}

int steptape_compress_pool_ref_rows(const struct steptape_compress_pool_args *args,
                                    const int64_t *tokens, int64_t n) {
    int rc = check(args);
    if (rc != STEPTAPE_OK)
        return rc;
    for (int64_t k = 0; k < n; k++) {
        if (tokens[k] < 0 || tokens[k] >= args->num_tokens)
            return STEPTAPE_ERR_ARGUMENT;
        pool_token(args, tokens[k]);
    }
    return STEPTAPE_OK;
}
