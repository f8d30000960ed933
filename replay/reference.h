/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What one output row must hold, computed alone: from the generator, through the CPU references of
 * kernels/, with no cache and no earlier step.  Any backend's rows can be checked against it.
 */
#ifndef ST_REPLAY_REFERENCE_H
#define ST_REPLAY_REFERENCE_H

#include <stdint.h>

#include "replay/model.h"
#include "traces/base/error.h"

/* Widest rows: ratio 128 has 128 phases of 512, ratio 4 has 4 of 1024. */
#define ST_REFERENCE_MAX_WIDTH 1024
#define ST_REFERENCE_MAX_ENTRY 584

/* One compressor of one layer buffer (see invariant 4 of backend.h), told by its state cache. */
struct st_layer_parameters {
    enum st_cache_id state, kv;
    int32_t layer_key; /* of the generator */
    int32_t width;     /* channels of kv, and of score, a token: 1024, 512, 256 */
    int32_t dim;       /* channels of an entry: 512, 128 */
    int32_t ratio;     /* 4: two groups a window */
    float ape[128 * 512];
    float rms_weight[512];
};
/* state: ST_CACHE_STATE_*. */
void st_layer_parameters_fill(struct st_layer_parameters *parameters, enum st_cache_id state,
                              int32_t buffer);

/* One token's compressor input: width kv, then width scores. */
void st_reference_kv_score(const struct st_layer_parameters *parameters, int64_t request_id,
                           int64_t position, float *out);
/* State row (2 * width floats) that save_partial_states leaves. */
void st_reference_state_row(const struct st_layer_parameters *parameters, int64_t request_id,
                            int64_t position, float *out);
/* The bytes of the entry that the group ending at position gets, as in a page of one entry (data,
 * then scales): 584, or 132 of the indexer.  values: 512 floats before any rounding (of the
 * indexer: not written). */
int st_reference_entry(const struct st_model *model, const struct st_layer_parameters *parameters,
                       int64_t request_id, int64_t position, uint8_t *entry, float *values,
                       struct st_error *err);

struct st_entry_difference {
    int32_t differing_bytes; /* bytes that are not equal */
    int32_t rounding_bytes;  /* of these, explained by a value on a rounding boundary */
    int32_t first_column;    /* first unexplained channel; -1: none */
};
/* Compares a device's entry with the reference's: a value may differ by 1e-5 of itself (and 1e-5 of
 * the entry's largest) before rounding, so a byte is explained when some value that close rounds to
 * it. */
void st_reference_compare_entry(const uint8_t *entry, const uint8_t *reference, const float *values,
                                struct st_entry_difference *out);
/* The same of an indexer's key (128 e4m3, a scale): a value may be off by the step between two
 * codes of the coarser scale, and scales by one power of two. */
void st_reference_compare_key(const uint8_t *entry, const uint8_t *reference,
                              struct st_entry_difference *out);

#endif
