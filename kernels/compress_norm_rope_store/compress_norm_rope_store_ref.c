/* SPDX-License-Identifier: Apache-2.0 */
/*
 * compress_norm_rope_store, the reference, and the number formats of a cache entry.
 *
 * The sum of squares is in double; each product after it is one fp32 operation, rounded where the
 * contract rounds.  e4m3 has 4 exponent bits (bias 7) and 3 of mantissa, no infinity: 448 is the
 * largest value, 2^-9 the smallest, NaN is 0x7f.
 */
#include "kernels/compress_norm_rope_store/compress_norm_rope_store.h"

#include <math.h>
#include <string.h>

static uint32_t bits_of(float value) {
    uint32_t bits;
    memcpy(&bits, &value, sizeof(bits));
    return bits;
}

static float float_of(uint32_t bits) {
    float value;
    memcpy(&value, &bits, sizeof(value));
    return value;
}

uint16_t steptape_bf16_from_float(float value) {
    uint32_t bits = bits_of(value);
    if ((bits & 0x7fffffffu) > 0x7f800000u)
        return 0x7fff; /* as the device's conversion: one NaN */
    return (uint16_t)((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

float steptape_bf16_to_float(uint16_t bits) {
    return float_of((uint32_t)bits << 16);
}

uint8_t steptape_e4m3_from_float(float value) {
    uint8_t sign = (uint8_t)(bits_of(value) >> 31 << 7);
    float magnitude = fabsf(value);
    if (isnan(value))
        return 0x7f;
    if (magnitude >= 448.0f)
        return sign | 0x7e;
    /* the spacing of e4m3 numbers around magnitude: 2^(exponent - 3), 2^-9 below 2^-6 */
    int exponent;
    frexpf(magnitude, &exponent); /* magnitude = m * 2^exponent, m in [0.5, 1) */
    exponent -= 1;
    if (magnitude == 0.0f || exponent < -6)
        exponent = -6;
    /* exact: a scaling by a power of two; nearbyint rounds to nearest even */
    int steps = (int)nearbyintf(ldexpf(magnitude, 3 - exponent));
    /* steps is 0..7 (subnormal) or 8..16; 16 carries into the next exponent by itself */
    int code = steps + ((exponent + 6) << 3);
    return sign | (uint8_t)(code > 0x7e ? 0x7e : code);
}

float steptape_e4m3_to_float(uint8_t bits) {
    uint32_t sign = (uint32_t)(bits & 0x80) << 24, magnitude = bits & 0x7fu;
    if (magnitude == 0x7f)
        return NAN;
    /* exponent and mantissa move over together; biases are 7 and 127 */
    if (magnitude >= 8)
        return float_of(sign | ((magnitude << 20) + ((127u - 7u) << 23)));
    float value = (float)magnitude * 0x1p-9f;
    return sign != 0 ? -value : value;
}

void steptape_kv_entry_decode(const uint8_t *page, int32_t kv_block_size, int32_t entry,
                              float *out) {
    const uint8_t *data = page + (int64_t)entry * STEPTAPE_KV_ENTRY_DATA_BYTES;
    const uint8_t *scales = page + (int64_t)kv_block_size * STEPTAPE_KV_ENTRY_DATA_BYTES +
                            (int64_t)entry * STEPTAPE_KV_ENTRY_SCALE_BYTES;
    for (int d = 0; d < ST_NORM_NOPE_DIM; d++) {
        int byte = scales[d / ST_NORM_QUANT_BLOCK];
        out[d] = byte == 255 ? NAN : ldexpf(steptape_e4m3_to_float(data[d]), byte - 127);
    }
    for (int d = 0; d < ST_NORM_ROPE_DIM; d++) {
        uint16_t bits;
        memcpy(&bits, data + ST_NORM_NOPE_DIM + 2 * d, sizeof(bits));
        out[ST_NORM_NOPE_DIM + d] = steptape_bf16_to_float(bits);
    }
}

int st_scale_exponent(float scale) {
    return (int)((bits_of(scale) + 0x7fffffu) >> 23) - 127;
}

static float weight_at(const struct st_norm_rope *norm, int d) {
    if (norm->weight_dtype == STEPTAPE_BF16)
        return steptape_bf16_to_float(((const uint16_t *)norm->weight)[d]);
    return ((const float *)norm->weight)[d];
}

void st_norm_rope_ref(const struct st_norm_rope *norm, const float *x, float *y) {
    double squares = 0.0;
    for (int d = 0; d < norm->head_dim; d++)
        squares += (double)x[d] * x[d];
    double rsqrt = 1.0 / sqrt(squares / norm->head_dim + (double)norm->eps);
    for (int d = 0; d < norm->head_dim; d++)
        y[d] = (float)(x[d] * rsqrt * weight_at(norm, d));

    const float *cosine = norm->cos_sin_row;
    const float *sine = cosine + norm->rope_dim / 2;
    float *turned = y + norm->head_dim - norm->rope_dim;
    for (int i = 0; i < norm->rope_dim / 2; i++) {
        double even = turned[2 * i];
        double odd = turned[2 * i + 1];
        turned[2 * i] = (float)(even * cosine[i] - odd * sine[i]);
        turned[2 * i + 1] = (float)(odd * cosine[i] + even * sine[i]);
    }
}

static void store_entry(const struct steptape_compress_norm_rope_store_args *args, int64_t slot,
                        const float y[ST_NORM_HEAD_DIM]) {
    uint8_t *page = args->kv_cache + slot / args->kv_block_size * args->kv_page_stride_bytes;
    int64_t entry = slot % args->kv_block_size;
    uint8_t *data = page + entry * STEPTAPE_KV_ENTRY_DATA_BYTES;
    uint8_t *scales = page + (int64_t)args->kv_block_size * STEPTAPE_KV_ENTRY_DATA_BYTES +
                      entry * STEPTAPE_KV_ENTRY_SCALE_BYTES;
    for (int b = 0; b < ST_NORM_QUANT_BLOCKS; b++) {
        float v[ST_NORM_QUANT_BLOCK];
        float absmax = 0.0f;
        for (int i = 0; i < ST_NORM_QUANT_BLOCK; i++) {
            v[i] = steptape_bf16_to_float(steptape_bf16_from_float(y[b * ST_NORM_QUANT_BLOCK + i]));
            absmax = fmaxf(absmax, fabsf(v[i]));
        }
        int e = st_scale_exponent(fmaxf(absmax / 448.0f, 1e-4f));
        for (int i = 0; i < ST_NORM_QUANT_BLOCK; i++) {
            float q = fminf(fmaxf(ldexpf(v[i], -e), -448.0f), 448.0f);
            data[b * ST_NORM_QUANT_BLOCK + i] = steptape_e4m3_from_float(q);
        }
        scales[b] = (uint8_t)(e + 127);
    }
    scales[ST_NORM_QUANT_BLOCKS] = 0;
    for (int d = 0; d < ST_NORM_ROPE_DIM; d++) {
        uint16_t bits = steptape_bf16_from_float(y[ST_NORM_NOPE_DIM + d]);
        memcpy(data + ST_NORM_NOPE_DIM + 2 * d, &bits, sizeof(bits));
    }
}

static void store_token(const struct steptape_compress_norm_rope_store_args *args, int64_t t) {
    if (args->slot_mapping[t] < 0)
        return;
    if ((args->positions[t] + 1) % args->ratio != 0)
        return;
    int64_t slot = args->kv_slot_mapping[t];
    if (slot < 0)
        return;
    int64_t angle = args->positions[t] / args->ratio * args->ratio;
    struct st_norm_rope norm = {.weight = args->weight,
                                .cos_sin_row = args->cos_sin_cache + angle * args->cos_sin_stride,
                                .head_dim = ST_NORM_HEAD_DIM,
                                .rope_dim = ST_NORM_ROPE_DIM,
                                .weight_dtype = args->weight_dtype,
                                .eps = args->eps};
    float y[ST_NORM_HEAD_DIM];
    st_norm_rope_ref(&norm, args->pooled + t * args->pooled_stride, y);
    if (args->values != NULL)
        memcpy(args->values + t * args->values_stride, y, sizeof(y));
    store_entry(args, slot, y);
}

static int check(const struct steptape_compress_norm_rope_store_args *args) {
    int rc = st_compress_norm_rope_store_check(args);
    if (rc != STEPTAPE_OK || args->num_tokens == 0)
        return rc;
    if (args->pooled == NULL || args->positions == NULL || args->slot_mapping == NULL ||
        args->kv_slot_mapping == NULL || args->weight == NULL || args->cos_sin_cache == NULL ||
        args->kv_cache == NULL)
        return STEPTAPE_ERR_ARGUMENT;
    return STEPTAPE_OK;
}

int steptape_compress_norm_rope_store_ref(
    const struct steptape_compress_norm_rope_store_args *args) {
    int rc = check(args);
    if (rc != STEPTAPE_OK)
        return rc;
    for (int64_t t = 0; t < args->num_tokens; t++)
        store_token(args, t);
    return STEPTAPE_OK;
}

int steptape_compress_norm_rope_store_ref_rows(
    const struct steptape_compress_norm_rope_store_args *args, const int64_t *tokens, int64_t n) {
    int rc = check(args);
    if (rc != STEPTAPE_OK)
        return rc;
    for (int64_t k = 0; k < n; k++) {
        if (tokens[k] < 0 || tokens[k] >= args->num_tokens)
            return STEPTAPE_ERR_ARGUMENT;
        store_token(args, tokens[k]);
    }
    return STEPTAPE_OK;
}
