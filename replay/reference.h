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

/* Parameters of one layer buffer; see invariant 4 of backend.h. */
struct st_layer_parameters {
    int32_t buffer;
    float ape[128 * 512];
    float rms_weight[512];
};
void st_layer_parameters_fill(struct st_layer_parameters *parameters, int32_t buffer);

/* One token's compressor input: 512 kv, then 512 scores. */
void st_reference_kv_score(int32_t buffer, int64_t request_id, int64_t position, float *out);
/* State row (1024 floats) that save_partial_states leaves. */
void st_reference_state_row(const struct st_layer_parameters *parameters, int64_t request_id,
                            int64_t position, float *out);
/* The 584 bytes of the entry that the group ending at position gets (data, then scales).  values:
 * 512 floats before any rounding. */
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

#endif
