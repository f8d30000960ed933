/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A model as replay needs it: what kind of attention each layer has, sizes, and where the caches
 * are. A model is data: JSON files in replay/models, embedded in the program, or a file of the
 * user's.
 *
 *     struct st_model model;
 *     ST_TRY(st_model_load(NULL, header, &model, err));      what the tape says
 *     ST_TRY(st_model_load("deepseek-v4-flash", header, &model, err));
 *
 * Caches are mapped to the tape's KV groups by kind and ratio, never by id.  A cache that the model
 * needs and the tape lacks has group -1: its blocks come from the allocator model
 * (replay/allocator.h). A st_model is plain data: copy it freely.
 */
#ifndef ST_REPLAY_MODEL_H
#define ST_REPLAY_MODEL_H

#include <stdbool.h>
#include <stdint.h>

#include "traces/base/error.h"
#include "traces/format/header.h"

#define ST_MODEL_MAX_LAYERS 256
#define ST_MODEL_MAX_CAPTURE_SIZES 128

enum st_layer_kind {
    ST_LAYER_SWA,  /* V4, the sliding window alone */
    ST_LAYER_C4,   /* V4, window and the best of the entries of ratio 4 */
    ST_LAYER_C128, /* V4, window and all entries of ratio 128 */
    ST_LAYER_DSA,  /* V3.2, the best of all tokens */
    ST_LAYER_KINDS
};

/* Paged caches; one each per layer that has it. */
enum st_cache_id {
    ST_CACHE_SWA0, /* the window, as many groups as the tape splits its layers into */
    ST_CACHE_SWA1,
    ST_CACHE_SWA2,
    ST_CACHE_KV_C4,
    ST_CACHE_KV_C128,
    ST_CACHE_KV_INDEXER, /* keys of the indexer of ratio 4 */
    ST_CACHE_STATE_C4,
    ST_CACHE_STATE_C128,
    ST_CACHE_STATE_INDEXER,
    ST_CACHE_DSA, /* V3.2, 656-byte entries */
    ST_CACHE_COUNT
};
enum { ST_MAX_SWA_GROUPS = 3 };

struct st_model_cache {
    int32_t ratio;      /* 1, 4, 128 */
    int32_t group;      /* index into the tape's groups; -1: made by the allocator model */
    int32_t block_size; /* tokens a block (of the block table) */
    int32_t entries;    /* stored entries a page: block_size / ratio for kv, block_size for state;
                           0: the model has no such cache */
    int64_t page_bytes; /* stride between pages, padding included */
    int64_t window;     /* -1: everything is kept */
};

struct st_model {
    char name[64];
    char architecture[64];
    int32_t layer_count;
    uint8_t layer_kind[ST_MODEL_MAX_LAYERS]; /* enum st_layer_kind */
    uint8_t layer_swa[ST_MODEL_MAX_LAYERS];  /* which of ST_CACHE_SWA0.. a V4 layer has */
    int32_t kind_count[ST_LAYER_KINDS];

    int32_t head_dim;   /* d_qk: 512, V3.2 576 */
    int32_t value_dim;  /* 512 */
    int32_t rope_dim;   /* 64, the last of head_dim */
    int32_t heads;      /* 64 or 128, padded as the kernels want them */
    int32_t index_topk; /* 512, 1024, 2048; entries that an indexer keeps */
    int32_t index_dim;  /* 128 */
    int32_t window;     /* 128 */
    double rms_eps;
    double rope_base;   /* of compressed layers */
    double yarn_factor; /* 1: none */
    double yarn_beta_fast, yarn_beta_slow;
    int64_t yarn_original_max;

    struct st_model_cache cache[ST_CACHE_COUNT];
    int32_t allocated_group_count; /* caches with group -1 */

    int64_t max_model_len, max_num_seqs, max_num_batched_tokens, num_blocks;
    int32_t capture_size_count;
    int32_t capture_size[ST_MODEL_MAX_CAPTURE_SIZES]; /* ascending */
};

static inline bool st_model_has(const struct st_model *model, enum st_cache_id cache) {
    return model->cache[cache].entries > 0;
}
const char *st_cache_name(enum st_cache_id cache); /* "swa/1", "kv/4", "state/128", ... */

/* name: NULL (what the tape says), a bundled model, or a file (a name with '/' or ".json"). */
int st_model_load(const char *name, const struct st_header *header, struct st_model *model,
                  struct st_error *err);
/* One engine setting, "max_model_len=N": max_model_len, max_num_seqs, max_num_batched_tokens,
 * num_blocks, max_capture_size, capture_sizes=A+B+C. */
int st_model_set(struct st_model *model, const char *assignment, struct st_error *err);
/* The smallest capture size >= token_count, or -1 above the largest. */
int32_t st_model_capture_size(const struct st_model *model, int64_t token_count);
/* vLLM's default sizes up to max_size: 1, 2, 4, 8, 16, ... 248, 256, 272, ... max_size. */
void st_model_default_capture_sizes(struct st_model *model, int32_t max_size);
/* Rows [first, first + count) of the cos/sin cache: rope_dim floats each, first half cosines. */
void st_model_cos_sin(const struct st_model *model, int64_t first, int64_t count, float *out);

#endif
