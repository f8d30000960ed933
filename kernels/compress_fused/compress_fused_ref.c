/* SPDX-License-Identifier: Apache-2.0 */
/*
 * compress_fused, the reference: the references of compress_pool and compress_norm_rope_store, one
 * token at a time; the indexer's entry is stored here.
 */
#include "kernels/compress_fused/compress_fused.h"

#include <math.h>
#include <string.h>

#include "kernels/compress_norm_rope_store/compress_norm_rope_store.h"

typedef struct steptape_compress_fused_args fused_args;

static int pool_token(const fused_args *args, int64_t t, float *pooled) {
    struct steptape_compress_pool_args pool = {.state_cache = args->state_cache,
                                               .positions = args->positions + t,
                                               .slot_mapping = args->slot_mapping + t,
                                               .kv_slot_mapping = args->kv_slot_mapping + t,
                                               .token_to_req = args->token_to_req + t,
                                               .block_table = args->block_table,
                                               .pooled = pooled,
                                               .state_page_stride = args->state_page_stride,
                                               .state_row_stride = args->state_row_stride,
                                               .block_table_stride = args->block_table_stride,
                                               .pooled_stride = args->head_dim,
                                               .num_tokens = 1,
                                               .head_dim = args->head_dim,
                                               .ratio = args->ratio,
                                               .overlap = args->overlap,
                                               .block_size = args->block_size};
    return steptape_compress_pool_ref(&pool);
}

static int store_ds_mla(const fused_args *args, int64_t t, const float *pooled) {
    struct steptape_compress_norm_rope_store_args norm = {
        .pooled = pooled,
        .positions = args->positions + t,
        .slot_mapping = args->slot_mapping + t,
        .kv_slot_mapping = args->kv_slot_mapping + t,
        .weight = args->weight,
        .cos_sin_cache = args->cos_sin_cache,
        .kv_cache = args->kv_cache,
        .pooled_stride = args->head_dim,
        .cos_sin_stride = args->cos_sin_stride,
        .kv_page_stride_bytes = args->kv_page_stride_bytes,
        .num_tokens = 1,
        .head_dim = args->head_dim,
        .rope_dim = args->rope_dim,
        .ratio = args->ratio,
        .kv_block_size = args->kv_block_size,
        .weight_dtype = args->weight_dtype,
        .eps = args->eps};
    return steptape_compress_norm_rope_store_ref(&norm);
}

static void store_indexer(const fused_args *args, int64_t t, const float *pooled) {
    int64_t slot = args->kv_slot_mapping[t];
    int64_t entry = slot % args->kv_block_size;
    int64_t angle = args->positions[t] / args->ratio * args->ratio;
    uint8_t *page = args->kv_cache + slot / args->kv_block_size * args->kv_page_stride_bytes;
    uint8_t *data = page + entry * ST_FUSED_INDEXER_DIM;
    uint8_t *scale = page + (int64_t)args->kv_block_size * ST_FUSED_INDEXER_DIM + entry * 4;
    struct st_norm_rope norm = {.weight = args->weight,
                                .cos_sin_row = args->cos_sin_cache + angle * args->cos_sin_stride,
                                .head_dim = ST_FUSED_INDEXER_DIM,
                                .rope_dim = args->rope_dim,
                                .weight_dtype = args->weight_dtype,
                                .eps = args->eps};
    float y[ST_FUSED_INDEXER_DIM];
    float absmax = 0.0f;
    st_norm_rope_ref(&norm, pooled, y);
    for (int d = 0; d < ST_FUSED_INDEXER_DIM; d++) {
        y[d] = steptape_bf16_to_float(steptape_bf16_from_float(y[d]));
        absmax = fmaxf(absmax, fabsf(y[d]));
    }
    int e = st_scale_exponent(fmaxf(absmax, 1e-4f) / 448.0f);
    for (int d = 0; d < ST_FUSED_INDEXER_DIM; d++)
        data[d] = steptape_e4m3_from_float(fminf(fmaxf(ldexpf(y[d], -e), -448.0f), 448.0f));
    float value = ldexpf(1.0f, e);
    memcpy(scale, &value, sizeof(value));
}

static int store_token(const fused_args *args, int64_t t) {
    float pooled[ST_NORM_HEAD_DIM];
    if (t < 0 || t >= args->num_tokens || args->slot_mapping[t] < 0 ||
        (args->positions[t] + 1) % args->ratio != 0 || args->kv_slot_mapping[t] < 0)
        return STEPTAPE_OK;
    int rc = pool_token(args, t, pooled);
    if (rc != STEPTAPE_OK)
        return rc;
    if (args->format == STEPTAPE_COMPRESS_FP8_DS_MLA)
        return store_ds_mla(args, t, pooled);
    store_indexer(args, t, pooled);
    return STEPTAPE_OK;
}

static int64_t list_length(const fused_args *args) {
    int64_t n = *args->list_count;
    return n < 0 ? 0 : n > args->num_tokens ? args->num_tokens : n;
}

static int is_listed(const fused_args *args, int64_t t) {
    if (args->list == NULL)
        return 1;
    for (int64_t i = 0; i < list_length(args); i++)
        if (args->list[i] == t)
            return 1;
    return 0;
}

static int check(const fused_args *args) {
    int rc = st_compress_fused_check(args);
    if (rc != STEPTAPE_OK || args->num_tokens == 0)
        return rc;
    return st_compress_fused_has_pointers(args) ? STEPTAPE_OK : STEPTAPE_ERR_ARGUMENT;
}

int steptape_compress_fused_ref(const fused_args *args) {
    int rc = check(args);
    if (rc != STEPTAPE_OK || args->num_tokens == 0)
        return rc;
    int64_t n = args->list != NULL ? list_length(args) : args->num_tokens;
    for (int64_t i = 0; i < n && rc == STEPTAPE_OK; i++)
        rc = store_token(args, args->list != NULL ? args->list[i] : i);
    return rc;
}

int steptape_compress_fused_ref_rows(const fused_args *args, const int64_t *tokens, int64_t n) {
    int rc = check(args);
    for (int64_t k = 0; k < n && rc == STEPTAPE_OK; k++) {
        if (tokens[k] < 0 || tokens[k] >= args->num_tokens)
            return STEPTAPE_ERR_ARGUMENT;
        if (is_listed(args, tokens[k]))
            rc = store_token(args, tokens[k]);
    }
    return rc;
}
