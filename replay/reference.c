/* SPDX-License-Identifier: Apache-2.0 */
#include "replay/reference.h"

#include <math.h>
#include <string.h>

#include "replay/generator.h"
#include "steptape/kernels.h"

enum { DIM = 512, RATIO = 128, NOPE = 448, BLOCK = 64, PAGE_ROWS = 8, ENTRY_BYTES = 584 };

void st_layer_parameters_fill(struct st_layer_parameters *parameters, int32_t buffer) {
    parameters->buffer = buffer;
    for (int32_t phase = 0; phase < RATIO; phase++)
        for (int32_t d = 0; d < DIM; d++)
            parameters->ape[phase * DIM + d] = st_gen_ape(buffer, phase, d);
    for (int32_t d = 0; d < DIM; d++)
        parameters->rms_weight[d] = st_gen_rms_weight(buffer, d);
}

void st_reference_kv_score(int32_t buffer, int64_t request_id, int64_t position, float *out) {
    uint64_t row = st_gen_row(ST_GEN_KV_SCORE, buffer, request_id, position);
    for (int32_t d = 0; d < DIM; d++) {
        uint64_t bits = st_gen_channel(row, d);
        out[d] = st_gen_unit((uint32_t)(bits >> 32)) * 2.0f;
        out[DIM + d] = st_gen_unit((uint32_t)bits) * 4.0f;
    }
}

void st_reference_state_row(const struct st_layer_parameters *parameters, int64_t request_id,
                            int64_t position, float *out) {
    st_reference_kv_score(parameters->buffer, request_id, position, out);
    const float *ape = parameters->ape + position % RATIO * DIM;
    for (int32_t d = 0; d < DIM; d++)
        out[DIM + d] += ape[d];
}

int st_reference_entry(const struct st_model *model, const struct st_layer_parameters *parameters,
                       int64_t request_id, int64_t position, uint8_t *entry, float *values,
                       struct st_error *err) {
    /* The window alone, as 16 pages of 8 rows; positions are local, so one angle row is enough. */
    static _Thread_local float state[RATIO * 2 * DIM];
    float pooled[DIM], cos_sin[64];
    int32_t pages[RATIO / PAGE_ROWS];
    const int64_t local = RATIO - 1, slot = RATIO - 1, kv_slot = 0;
    const int32_t request = 0;
    int64_t first = position - local;
    for (int32_t j = 0; j < RATIO; j++)
        st_reference_state_row(parameters, request_id, first + j, state + j * 2 * DIM);
    for (int32_t j = 0; j < RATIO / PAGE_ROWS; j++)
        pages[j] = j;
    st_model_cos_sin(model, first, 1, cos_sin);

    struct steptape_compress_pool_args pool = {
        .state_cache = state,
        .positions = &local,
        .slot_mapping = &slot,
        .kv_slot_mapping = &kv_slot,
        .token_to_req = &request,
        .block_table = pages,
        .pooled = pooled,
        .state_page_stride = PAGE_ROWS * 2 * DIM,
        .state_row_stride = 2 * DIM,
        .block_table_stride = RATIO / PAGE_ROWS,
        .pooled_stride = DIM,
        .num_tokens = 1,
        .head_dim = DIM,
        .ratio = RATIO,
        .block_size = PAGE_ROWS,
    };
    struct steptape_compress_norm_rope_store_args store = {
        .pooled = pooled,
        .positions = &local,
        .slot_mapping = &slot,
        .kv_slot_mapping = &kv_slot,
        .weight = parameters->rms_weight,
        .cos_sin_cache = cos_sin,
        .kv_cache = entry,
        .values = values,
        .pooled_stride = DIM,
        .cos_sin_stride = 64,
        .values_stride = DIM,
        .kv_page_stride_bytes = ENTRY_BYTES,
        .num_tokens = 1,
        .head_dim = DIM,
        .rope_dim = 64,
        .ratio = RATIO,
        .kv_block_size = 1,
        .weight_dtype = STEPTAPE_FP32,
        .eps = (float)model->rms_eps,
    };
    int rc = steptape_compress_pool_ref(&pool);
    if (rc == 0)
        rc = steptape_compress_norm_rope_store_ref(&store);
    if (rc != 0)
        return ST_FAIL(err, ST_ERR_NATIVE, "the CPU reference of an entry failed: %s",
                       steptape_status_name(rc));
    return 0;
}

/* ---- comparing */

static uint16_t load_u16(const uint8_t *bytes) {
    uint16_t value;
    memcpy(&value, bytes, sizeof value);
    return value;
}

/* Whether byte is what v, or any value within the tolerance, rounds to at this scale: rounding is
 * monotonic, so everything between what the two ends round to.  NaN is between nothing. */
static bool explains_fp8(float v, float tolerance, int32_t exponent, uint8_t byte) {
    uint8_t low = steptape_e4m3_from_float(
        ldexpf(steptape_bf16_to_float(steptape_bf16_from_float(v - tolerance)), -exponent));
    uint8_t high = steptape_e4m3_from_float(
        ldexpf(steptape_bf16_to_float(steptape_bf16_from_float(v + tolerance)), -exponent));
    float got = steptape_e4m3_to_float(byte);
    return got >= steptape_e4m3_to_float(low) && got <= steptape_e4m3_to_float(high);
}

static bool explains_bf16(float v, float tolerance, uint16_t bits) {
    float got = steptape_bf16_to_float(bits);
    return got >= steptape_bf16_to_float(steptape_bf16_from_float(v - tolerance)) &&
           got <= steptape_bf16_to_float(steptape_bf16_from_float(v + tolerance));
}

/* The scale of a block may differ when the largest value sits on a power of two. */
static bool explains_scale(const float *values, float tolerance, uint8_t byte) {
    for (int sign = -1; sign <= 1; sign += 2) {
        float largest = 0;
        for (int32_t d = 0; d < BLOCK; d++) {
            float magnitude = fabsf(values[d]) + (float)sign * tolerance;
            float rounded = steptape_bf16_to_float(steptape_bf16_from_float(magnitude));
            largest = rounded > largest ? rounded : largest;
        }
        float scale = largest / 448.0f;
        scale = scale < 1e-4f ? 1e-4f : scale;
        int exponent;
        float mantissa = frexpf(scale, &exponent); /* [0.5, 1) */
        if ((mantissa == 0.5f ? exponent - 1 : exponent) + 127 == byte)
            return true;
    }
    return false;
}

static void note(struct st_entry_difference *out, bool explained, int32_t bytes, int32_t column) {
    out->differing_bytes += bytes;
    if (explained)
        out->rounding_bytes += bytes;
    else if (out->first_column < 0 || column < out->first_column)
        out->first_column = column;
}

void st_reference_compare_entry(const uint8_t *entry, const uint8_t *reference, const float *values,
                                struct st_entry_difference *out) {
    out->differing_bytes = out->rounding_bytes = 0;
    out->first_column = -1;
    if (memcmp(entry, reference, ENTRY_BYTES) == 0)
        return;
    float largest = 0;
    for (int32_t d = 0; d < DIM; d++)
        largest = fmaxf(largest, fabsf(values[d]));
    const uint8_t *scale = entry + 576, *reference_scale = reference + 576;
    for (int32_t d = 0; d < NOPE; d++) {
        bool same_scale = scale[d / BLOCK] == reference_scale[d / BLOCK];
        if (entry[d] == reference[d] && same_scale)
            continue;
        float tolerance = 1e-5f * (fabsf(values[d]) + largest);
        bool explained = explains_fp8(values[d], tolerance, scale[d / BLOCK] - 127, entry[d]);
        note(out, explained, entry[d] != reference[d], d);
    }
    for (int32_t d = NOPE; d < DIM; d++) {
        uint16_t bits = load_u16(entry + NOPE + (d - NOPE) * 2);
        if (bits != load_u16(reference + NOPE + (d - NOPE) * 2))
            note(out, explains_bf16(values[d], 1e-5f * (fabsf(values[d]) + largest), bits), 2, d);
    }
    for (int32_t b = 0; b < 8; b++)
        if (scale[b] != reference_scale[b])
            note(out, b < 7 && explains_scale(values + b * BLOCK, 1e-5f * largest, scale[b]), 1,
                 b * BLOCK);
}
