/* SPDX-License-Identifier: Apache-2.0 */
/*
 * dequantize_and_gather, the reference.  One fp32 product a value, then one rounding to bf16: any
 * right device variant gives the same bits.
 */
#include "kernels/dequantize_and_gather/dequantize_and_gather.h"

#include <math.h>
#include <string.h>

typedef struct steptape_dequantize_and_gather_args gather_args;

/* 2^(byte - 127); 255 is the format's NaN. */
static float scale_of(uint8_t byte) {
    const uint32_t bits = byte == 0 ? 0x00400000u : (uint32_t)byte << 23;
    float scale;
    memcpy(&scale, &bits, sizeof(scale));
    return byte == 255 ? NAN : scale;
}

static void copy_rope(uint16_t *out, const uint8_t *from) {
    for (int d = 0; d < ST_GATHER_ROPE; d++)
        out[d] = (uint16_t)(from[2 * d] | from[2 * d + 1] << 8);
}

static void gather_ds_mla(uint16_t *out, const uint8_t *page, int32_t block_size, int64_t entry) {
    const uint8_t *data = page + entry * STEPTAPE_KV_ENTRY_DATA_BYTES;
    const uint8_t *scales = page + (int64_t)block_size * STEPTAPE_KV_ENTRY_DATA_BYTES +
                            entry * STEPTAPE_KV_ENTRY_SCALE_BYTES;
    for (int d = 0; d < ST_GATHER_MLA_QUANTISED; d++)
        out[d] =
            steptape_bf16_from_float(steptape_e4m3_to_float(data[d]) * scale_of(scales[d / 64]));
    copy_rope(out + ST_GATHER_MLA_QUANTISED, data + ST_GATHER_MLA_QUANTISED);
}

static void gather_v32(uint16_t *out, const uint8_t *page, int64_t entry) {
    const uint8_t *data = page + entry * STEPTAPE_KV_V32_ENTRY_BYTES;
    float scales[4];
    memcpy(scales, data + ST_GATHER_V32_SCALES, sizeof(scales));
    for (int d = 0; d < ST_GATHER_V32_QUANTISED; d++)
        out[d] = steptape_bf16_from_float(steptape_e4m3_to_float(data[d]) * scales[d / 128]);
    copy_rope(out + ST_GATHER_V32_QUANTISED, data + ST_GATHER_V32_ROPE);
}

void st_gather_entry(uint16_t *out, const uint8_t *page, int32_t block_size, int64_t entry,
                     int32_t format) {
    if (format == STEPTAPE_KV_FP8_V32)
        gather_v32(out, page, entry);
    else
        gather_ds_mla(out, page, block_size, entry);
}

/* Row i of request b, when there is one. */
static void gather_row(const gather_args *args, int64_t b, int64_t i) {
    int64_t length = args->seq_lens[b] / args->ratio;
    int64_t gathered = args->gather_lens != NULL ? args->gather_lens[b] : length;
    int64_t e = length - gathered + i;
    if (i >= gathered || e < 0)
        return;
    int64_t page = args->block_table[b * args->block_table_stride + e / args->block_size];
    const uint8_t *base = args->cache + (page > 0 ? page : 0) * args->cache_page_stride_bytes;
    uint16_t *out =
        args->out + b * args->out_req_stride + (args->offset + i) * args->out_row_stride;
    st_gather_entry(out, base, args->block_size, e % args->block_size, args->format);
}

static int check(const gather_args *args) {
    int rc = st_dequantize_and_gather_check(args);
    if (rc != STEPTAPE_OK || args->num_reqs == 0 || args->max_gather == 0)
        return rc;
    if (args->out == NULL || args->cache == NULL || args->seq_lens == NULL ||
        args->block_table == NULL)
        return STEPTAPE_ERR_ARGUMENT;
    return STEPTAPE_OK;
}

int steptape_dequantize_and_gather_ref(const gather_args *args) {
    int rc = check(args);
    if (rc != STEPTAPE_OK)
        return rc;
    for (int64_t b = 0; b < args->num_reqs; b++)
        for (int64_t i = 0; i < args->max_gather; i++)
            gather_row(args, b, i);
    return STEPTAPE_OK;
}

int steptape_dequantize_and_gather_ref_rows(const gather_args *args, const int64_t *rows,
                                            int64_t n) {
    int rc = check(args);
    if (rc != STEPTAPE_OK)
        return rc;
    for (int64_t k = 0; k < n; k++) {
        if (rows[k] < 0 || rows[k] >= (int64_t)args->num_reqs * args->max_gather)
            return STEPTAPE_ERR_ARGUMENT;
        gather_row(args, rows[k] / args->max_gather, rows[k] % args->max_gather);
    }
    return STEPTAPE_OK;
}
