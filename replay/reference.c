/* SPDX-License-Identifier: Apache-2.0 */
#include "replay/reference.h"

#include <math.h>
#include <stdbool.h>
#include <string.h>

#include "replay/generator.h"
#include "steptape/kernels.h"

enum { DIM = 512, KEY_DIM = 128, NOPE = 448, BLOCK = 64, ENTRY_BYTES = 584 };
enum { MAX_WINDOW = 128 };

void st_layer_parameters_fill(struct st_layer_parameters *p, enum st_cache_id state,
                              int32_t buffer) {
    bool c128 = state == ST_CACHE_STATE_C128, indexer = state == ST_CACHE_STATE_INDEXER;
    p->state = state;
    p->kv = c128 ? ST_CACHE_KV_C128 : indexer ? ST_CACHE_KV_INDEXER : ST_CACHE_KV_C4;
    p->layer_key = buffer + (c128 ? 0 : indexer ? ST_GEN_LAYER_INDEXER : ST_GEN_LAYER_C4);
    p->ratio = c128 ? 128 : 4;
    p->dim = indexer ? KEY_DIM : DIM;
    p->width = c128 ? DIM : 2 * p->dim;
    for (int32_t phase = 0; phase < p->ratio; phase++)
        for (int32_t d = 0; d < p->width; d++)
            p->ape[phase * p->width + d] = st_gen_ape(p->layer_key, phase, d);
    for (int32_t d = 0; d < p->dim; d++)
        p->rms_weight[d] = st_gen_rms_weight(p->layer_key, d);
}

void st_reference_kv_score(const struct st_layer_parameters *p, int64_t request_id,
                           int64_t position, float *out) {
    uint64_t row = st_gen_row(ST_GEN_KV_SCORE, p->layer_key, request_id, position);
    for (int32_t d = 0; d < p->width; d++) {
        uint64_t bits = st_gen_channel(row, d);
        out[d] = st_gen_unit((uint32_t)(bits >> 32)) * 2.0f;
        out[p->width + d] = st_gen_unit((uint32_t)bits) * 4.0f;
    }
}

void st_reference_state_row(const struct st_layer_parameters *p, int64_t request_id,
                            int64_t position, float *out) {
    st_reference_kv_score(p, request_id, position, out);
    const float *ape = p->ape + position % p->ratio * p->width;
    for (int32_t d = 0; d < p->width; d++)
        out[p->width + d] += ape[d];
}

/* ---- an entry */

/* The window alone, one state row a page; positions are local, so a few angle rows are enough. */
struct window {
    int64_t local, slot, kv_slot; /* of the token that closes the group */
    int32_t request, rows;
    int32_t pages[MAX_WINDOW];
    float state[MAX_WINDOW * 2 * DIM], cos_sin[8 * 64], pooled[DIM];
};

static void fill_window(const struct st_model *model, const struct st_layer_parameters *p,
                        int64_t request_id, int64_t position, struct window *w) {
    int64_t wanted = p->ratio == 4 ? 2 * p->ratio : p->ratio;
    int64_t first = position + 1 > wanted ? position + 1 - wanted : 0;
    w->rows = (int32_t)(position + 1 - first);
    w->local = w->slot = w->rows - 1;
    w->kv_slot = 0;
    w->request = 0;
    for (int32_t j = 0; j < w->rows; j++) {
        st_reference_state_row(p, request_id, first + j, w->state + j * 2 * p->width);
        w->pages[j] = j;
    }
    int64_t angle = w->local / p->ratio * p->ratio; /* 0 or 4 */
    st_model_cos_sin(model, position / p->ratio * p->ratio, 1, w->cos_sin + angle * 64);
}

static int run_pair(const struct st_model *model, const struct st_layer_parameters *p,
                    struct window *w, uint8_t *entry, float *values) {
    struct steptape_compress_pool_args pool = {
        .state_cache = w->state,
        .positions = &w->local,
        .slot_mapping = &w->slot,
        .kv_slot_mapping = &w->kv_slot,
        .token_to_req = &w->request,
        .block_table = w->pages,
        .pooled = w->pooled,
        .state_page_stride = 2 * p->width,
        .state_row_stride = 2 * p->width,
        .block_table_stride = MAX_WINDOW,
        .pooled_stride = DIM,
        .num_tokens = 1,
        .head_dim = DIM,
        .ratio = p->ratio,
        .overlap = p->ratio == 4,
        .block_size = 1,
    };
    struct steptape_compress_norm_rope_store_args store = {
        .pooled = w->pooled,
        .positions = &w->local,
        .slot_mapping = &w->slot,
        .kv_slot_mapping = &w->kv_slot,
        .weight = p->rms_weight,
        .cos_sin_cache = w->cos_sin,
        .kv_cache = entry,
        .values = values,
        .pooled_stride = DIM,
        .cos_sin_stride = 64,
        .values_stride = DIM,
        .kv_page_stride_bytes = ENTRY_BYTES,
        .num_tokens = 1,
        .head_dim = DIM,
        .rope_dim = 64,
        .ratio = p->ratio,
        .kv_block_size = 1,
        .weight_dtype = STEPTAPE_FP32,
        .eps = (float)model->rms_eps,
    };
    int rc = steptape_compress_pool_ref(&pool);
    return rc != 0 ? rc : steptape_compress_norm_rope_store_ref(&store);
}

static int run_fused(const struct st_model *model, const struct st_layer_parameters *p,
                     struct window *w, uint8_t *entry) {
    struct steptape_compress_fused_args args = {
        .state_cache = w->state,
        .positions = &w->local,
        .slot_mapping = &w->slot,
        .kv_slot_mapping = &w->kv_slot,
        .token_to_req = &w->request,
        .block_table = w->pages,
        .weight = p->rms_weight,
        .cos_sin_cache = w->cos_sin,
        .kv_cache = entry,
        .state_page_stride = 2 * p->width,
        .state_row_stride = 2 * p->width,
        .block_table_stride = MAX_WINDOW,
        .cos_sin_stride = 64,
        .kv_page_stride_bytes = KEY_DIM + 4,
        .num_tokens = 1,
        .head_dim = KEY_DIM,
        .rope_dim = 64,
        .ratio = p->ratio,
        .overlap = 1,
        .block_size = 1,
        .kv_block_size = 1,
        .weight_dtype = STEPTAPE_FP32,
        .format = STEPTAPE_COMPRESS_INDEXER_FP8,
        .eps = (float)model->rms_eps,
    };
    return steptape_compress_fused_ref(&args);
}

int st_reference_entry(const struct st_model *model, const struct st_layer_parameters *parameters,
                       int64_t request_id, int64_t position, uint8_t *entry, float *values,
                       struct st_error *err) {
    static _Thread_local struct window window;
    fill_window(model, parameters, request_id, position, &window);
    int rc = parameters->dim == KEY_DIM ? run_fused(model, parameters, &window, entry)
                                        : run_pair(model, parameters, &window, entry, values);
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

void st_reference_compare_key(const uint8_t *entry, const uint8_t *reference,
                              struct st_entry_difference *out) {
    out->differing_bytes = out->rounding_bytes = 0;
    out->first_column = -1;
    if (memcmp(entry, reference, KEY_DIM + 4) == 0)
        return;
    float scale, other;
    memcpy(&scale, entry + KEY_DIM, sizeof scale);
    memcpy(&other, reference + KEY_DIM, sizeof other);
    float coarse = fmaxf(scale, other);
    bool near = scale > 0 && coarse <= 2 * fminf(scale, other);
    for (int32_t d = 0; d < KEY_DIM; d++) {
        if (entry[d] == reference[d] && scale == other)
            continue;
        float a = steptape_e4m3_to_float(entry[d]) * scale;
        float b = steptape_e4m3_to_float(reference[d]) * other;
        /* e4m3: 3 bits after the first, and steps of 2^-9 below 2^-6. */
        float step = fmaxf(fmaxf(fabsf(a), fabsf(b)) * 0.125f, coarse * 0x1p-9f);
        note(out, near && fabsf(a - b) <= step, entry[d] != reference[d], d);
    }
    for (int32_t i = KEY_DIM; i < KEY_DIM + 4; i++)
        if (entry[i] != reference[i])
            note(out, near, 1, KEY_DIM);
}
