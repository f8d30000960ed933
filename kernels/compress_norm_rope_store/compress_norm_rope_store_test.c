/* SPDX-License-Identifier: Apache-2.0 */
/*
 * compress_norm_rope_store: the number formats and the reference on cases worked out by hand, its
 * cost; with ST_TEST_GPU every device variant against the reference.
 *
 * What the device may differ in: fp32 values by 1e-5 relative; a stored byte only where the two
 * fp32 values sit on either side of a rounding boundary.  The test counts such bytes and checks
 * that each is one step off and that its value moved by no more than fp32 noise explains.
 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "kernels/compress_norm_rope_store/compress_norm_rope_store.h"
#include "kernels/testing.h"

typedef struct steptape_compress_norm_rope_store_args norm_args;

enum { DIM = ST_NORM_HEAD_DIM, NOPE = ST_NORM_NOPE_DIM };

#ifndef ST_TEST_GPU

static void e4m3(void **state) {
    (void)state;
    for (int i = 0; i < 256; i++) {
        if ((i & 0x7f) == 0x7f)
            continue;
        assert_int_equal(steptape_e4m3_from_float(steptape_e4m3_to_float((uint8_t)i)), i);
    }
    /* between neighbours: the nearer one, and the even one from the middle */
    for (int i = 0; i < 0x7e; i++) {
        float low = steptape_e4m3_to_float((uint8_t)i);
        float high = steptape_e4m3_to_float((uint8_t)(i + 1));
        float middle = (low + high) / 2;
        assert_int_equal(steptape_e4m3_from_float(middle), i % 2 == 0 ? i : i + 1);
        assert_int_equal(steptape_e4m3_from_float(nextafterf(middle, 0.0f)), i);
        assert_int_equal(steptape_e4m3_from_float(nextafterf(middle, 1e9f)), i + 1);
        assert_int_equal(steptape_e4m3_from_float(-middle), 0x80 | (i % 2 == 0 ? i : i + 1));
    }
    assert_true(steptape_e4m3_to_float(0x38) == 1.0f);
    assert_true(steptape_e4m3_to_float(0x01) == 0x1p-9f);
    assert_int_equal(steptape_e4m3_from_float(448.0f), 0x7e);
    assert_int_equal(steptape_e4m3_from_float(1e30f), 0x7e);
    assert_int_equal(steptape_e4m3_from_float(-INFINITY), 0xfe);
    assert_int_equal(steptape_e4m3_from_float(0x1p-10f), 0);
    assert_int_equal(steptape_e4m3_from_float(NAN), 0x7f);
}

static void bf16(void **state) {
    (void)state;
    assert_int_equal(steptape_bf16_from_float(1.0f), 0x3f80);
    assert_int_equal(steptape_bf16_from_float(1.00390625f), 0x3f80); /* half way: to even */
    assert_int_equal(steptape_bf16_from_float(1.01171875f), 0x3f82);
    assert_int_equal(steptape_bf16_from_float(-1.0f), 0xbf80);
    assert_true(steptape_bf16_to_float(0x4049) == 3.140625f);
}

struct fixture {
    float pooled[2 * DIM];
    float weight[DIM];
    float cos_sin[3 * 64];
    int64_t positions[2], slots[2], kv_slots[2];
    uint8_t cache[3 * 1728];
    norm_args args;
};

/* Two tokens of ratio 4; eps 0, weights 1, angle 0. */
static void fixture_init(struct fixture *f) {
    memset(f, 0, sizeof(*f));
    memset(f->cache, ST_TEST_POISON, sizeof(f->cache));
    for (int d = 0; d < DIM; d++)
        f->weight[d] = 1.0f;
    for (int i = 0; i < 3 * 64; i++)
        f->cos_sin[i] = i % 64 < 32 ? 1.0f : 0.0f;
    f->positions[0] = 3;
    f->positions[1] = 1;
    f->slots[0] = f->slots[1] = 5;
    f->kv_slots[0] = 3;
    f->kv_slots[1] = 1;
    f->args = (norm_args){.pooled = f->pooled,
                          .positions = f->positions,
                          .slot_mapping = f->slots,
                          .kv_slot_mapping = f->kv_slots,
                          .weight = f->weight,
                          .cos_sin_cache = f->cos_sin,
                          .kv_cache = f->cache,
                          .pooled_stride = DIM,
                          .cos_sin_stride = 64,
                          .kv_page_stride_bytes = 1728,
                          .num_tokens = 2,
                          .head_dim = DIM,
                          .rope_dim = 64,
                          .ratio = 4,
                          .kv_block_size = 2,
                          .weight_dtype = STEPTAPE_FP32};
}

static void by_hand(void **state) {
    (void)state;
    static struct fixture f;
    float values[2 * DIM], decoded[DIM];
    fixture_init(&f);
    f.args.values = values;
    f.args.values_stride = DIM;
    /* all +-2: mean square 4, so y is +-1: scale 1/448 -> 2^-8, q = 256, byte 0x78 */
    for (int d = 0; d < DIM; d++)
        f.pooled[d] = d % 2 == 0 ? 2.0f : -2.0f;
    f.cos_sin[0] = 0.0f; /* pair 0 turns by a right angle: (1, -1) -> (1, 1) */
    f.cos_sin[32] = 1.0f;
    assert_int_equal(steptape_compress_norm_rope_store_ref(&f.args), 0);
    const uint8_t *page = f.cache + 1728, *data = page + 576, *scales = page + 2 * 576 + 8;
    for (int d = 0; d < NOPE; d++)
        assert_int_equal(data[d], d % 2 == 0 ? 0x78 : 0xf8);
    for (int b = 0; b < 7; b++)
        assert_int_equal(scales[b], 127 - 8);
    assert_int_equal(scales[7], 0);
    steptape_kv_entry_decode(page, 2, 1, decoded);
    for (int d = 0; d < DIM; d++)
        assert_true(decoded[d] == (d % 2 == 0 || d == 449 ? 1.0f : -1.0f));
    assert_memory_equal(values, decoded, sizeof(decoded));
    /* nothing beside the entry */
    for (size_t i = 0; i < sizeof(f.cache); i++) {
        size_t in_page = i - 1728;
        int entry = i >= 1728 &&
                    ((in_page >= 576 && in_page < 1152) || (in_page >= 1160 && in_page < 1168));
        if (!entry)
            assert_int_equal(f.cache[i], ST_TEST_POISON);
    }
}

/* The floor of the scale, exact powers of two, and one step above. */
static void scales(void **state) {
    (void)state;
    static struct fixture f;
    fixture_init(&f);
    const float blocks[] = {0.0f, 0.02f, 1.75f, 1.765625f, 3.5f, 448.0f, 1000.0f};
    /* absmax / 448: 0 and 4e-5 (floor 1e-4: 2^-13), 2^-8, above, 2^-7, 1, 2.23 */
    const int want[] = {127 - 13, 127 - 13, 127 - 8, 127 - 7, 127 - 7, 127, 127 + 2};
    double squares = 0.0;
    for (int b = 0; b < 7; b++)
        squares += (double)blocks[b] * blocks[b];
    /* the RoPE part makes the mean square what makes y equal x: 2^20, exactly undone by weights */
    for (int b = 0; b < 7; b++)
        f.pooled[b * 64] = blocks[b];
    double rest = 512.0 * 1048576.0 - squares;
    for (int i = 0; i < 64; i++)
        f.pooled[NOPE + i] = (float)sqrt(rest / 64);
    for (int d = 0; d < DIM; d++)
        f.weight[d] = 1024.0f;
    float values[2 * DIM];
    f.args.values = values;
    f.args.values_stride = DIM;
    assert_int_equal(steptape_compress_norm_rope_store_ref(&f.args), 0);
    const uint8_t *got = f.cache + 1728 + 1160;
    for (int b = 0; b < 7; b++) {
        /* the norm is right to fp32; bf16 rounding brings the exact powers back */
        assert_true(fabsf(values[b * 64] - blocks[b]) <= 1e-5f * blocks[b]);
        assert_int_equal(got[b], want[b]);
    }
}

static void early_outs(void **state) {
    (void)state;
    static struct fixture f;
    fixture_init(&f);
    f.positions[0] = 2; /* not a boundary */
    f.positions[1] = 3;
    f.slots[1] = -1;
    assert_int_equal(steptape_compress_norm_rope_store_ref(&f.args), 0);
    f.slots[1] = 0;
    f.kv_slots[1] = -1;
    assert_int_equal(steptape_compress_norm_rope_store_ref(&f.args), 0);
    for (size_t i = 0; i < sizeof(f.cache); i++)
        assert_int_equal(f.cache[i], ST_TEST_POISON);
    f.args.num_tokens = 0;
    assert_int_equal(steptape_compress_norm_rope_store(&f.args, NULL), 0);
    f.args.head_dim = 128;
    assert_int_equal(steptape_compress_norm_rope_store_ref(&f.args), STEPTAPE_ERR_UNSUPPORTED);
}

static void bf16_weight_and_angle(void **state) {
    (void)state;
    static struct fixture f;
    static uint16_t weight[DIM];
    float decoded[DIM], same[DIM];
    fixture_init(&f);
    st_test_fill(f.pooled, 2 * DIM, 9, 1.0f);
    for (int d = 0; d < DIM; d++) {
        weight[d] = steptape_bf16_from_float(st_test_uniform((uint64_t)d, 2.0f));
        f.weight[d] = steptape_bf16_to_float(weight[d]);
    }
    f.args.eps = 1e-6f;
    assert_int_equal(steptape_compress_norm_rope_store_ref(&f.args), 0);
    steptape_kv_entry_decode(f.cache + 1728, 2, 1, decoded);
    f.args.weight = weight;
    f.args.weight_dtype = STEPTAPE_BF16;
    memset(f.cache, 0, sizeof(f.cache));
    const int64_t tokens[] = {0, 1};
    assert_int_equal(steptape_compress_norm_rope_store_ref_rows(&f.args, tokens, 2), 0);
    steptape_kv_entry_decode(f.cache + 1728, 2, 1, same);
    assert_memory_equal(decoded, same, sizeof(same));
    /* position 7 of ratio 4 reads row 4 of the table: only 3 rows here, so a stride of 0 rows
     * beyond would fault; row (p / ratio) * ratio = 0 for position 3 was read above */
}

static void cost(void **state) {
    (void)state;
    static struct fixture f;
    fixture_init(&f);
    f.args.num_tokens = 100;
    struct steptape_token_counts counts = {90, 5, 4, 0};
    struct steptape_cost c;
    assert_int_equal(steptape_compress_norm_rope_store_cost(&f.args, &counts, &c), 0);
    assert_int_equal(c.read_bytes, 100 * 8 + 90 * 8 + 5 * 8 + 4 * (2048 + 256) + 2048);
    assert_int_equal(c.written_bytes, 4 * 584);
    assert_int_equal(c.launch_count, 1);
    f.args.weight_dtype = STEPTAPE_BF16;
    counts.boundary = counts.stored = 0;
    assert_int_equal(steptape_compress_norm_rope_store_cost(&f.args, &counts, &c), 0);
    assert_int_equal(c.read_bytes, 100 * 8 + 90 * 8);
    assert_int_equal(c.idle_max_block_count, c.block_count);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(e4m3),       cmocka_unit_test(bf16),
        cmocka_unit_test(by_hand),    cmocka_unit_test(scales),
        cmocka_unit_test(early_outs), cmocka_unit_test(bf16_weight_and_angle),
        cmocka_unit_test(cost),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

#else /* ST_TEST_GPU */

struct shape {
    int64_t tokens;
    int32_t ratio, kv_block_size, page_pad, weight_dtype, every, base; /* base: bytes */
    int32_t values;
};

static const struct shape shapes[] = {
    {1, 128, 2, 560, STEPTAPE_FP32, 1, 0, 1},    {3, 128, 2, 560, STEPTAPE_BF16, 1, 0, 0},
    {4, 128, 2, 560, STEPTAPE_FP32, 2, 0, 1},    {129, 128, 2, 560, STEPTAPE_BF16, 1, 0, 1},
    {1001, 128, 2, 560, STEPTAPE_FP32, 1, 0, 1}, {515, 4, 64, 64, STEPTAPE_BF16, 3, 0, 0},
    {30, 6, 5, 7, STEPTAPE_FP32, 1, 0, 1},       {17, 128, 2, 560, STEPTAPE_FP32, 1, 1, 1},
};

struct difference {
    int64_t bytes, stored;
};

/* Compares one decoded entry: equal, or both sides of one rounding boundary. */
static void compare_entry(const uint8_t *got, const uint8_t *want, int32_t block_size,
                          int32_t entry, struct difference *difference) {
    float g[DIM], w[DIM];
    steptape_kv_entry_decode(got, block_size, entry, g);
    steptape_kv_entry_decode(want, block_size, entry, w);
    difference->stored += DIM;
    for (int d = 0; d < DIM; d++) {
        if (g[d] == w[d])
            continue;
        difference->bytes++;
        /* one step of e4m3 is at most 1/8 of the value, of bf16 1/128; a block whose scale
         * itself sits on a boundary moves by one more bit */
        double step = d < NOPE ? 0.26 : 0.0079;
        assert_true(fabs((double)g[d] - w[d]) <= step * fmax(fabs(g[d]), fabs(w[d])) + 1e-6);
    }
}

static void run_shape(const struct shape *shape, unsigned int variant, uint32_t flags,
                      struct difference *difference) {
    const int64_t n = shape->tokens, bs = shape->kv_block_size, max_position = 1024;
    const int64_t page = bs * STEPTAPE_KV_ENTRY_BYTES + shape->page_pad;
    const size_t cache_bytes = (size_t)((n / bs + 2) * page + shape->base);
    const size_t floats = (size_t)(n * DIM);
    float *pooled = malloc(4 * floats), *cos_sin = malloc(4 * (size_t)max_position * 64);
    float *want_values = malloc(4 * floats), *got_values = malloc(4 * floats);
    uint8_t *want = malloc(cache_bytes), *got = malloc(cache_bytes);
    int64_t *positions = malloc(8 * (size_t)n), *slots = malloc(8 * (size_t)n);
    int64_t *kv_slots = malloc(8 * (size_t)n);
    float weight[DIM];
    uint16_t weight16[DIM];
    assert_true(pooled && cos_sin && want_values && got_values && want && got && positions &&
                slots && kv_slots);
    uint64_t seed = (uint64_t)(shape - shapes + 1) << 32;
    for (size_t i = 0; i < floats; i++) /* a wide range of magnitudes */
        pooled[i] =
            st_test_uniform(seed + i, 1.0f) * exp2f(st_test_uniform(seed + floats + i / 64, 12.0f));
    for (int64_t i = 0; i < max_position * 64; i++) {
        double angle = (double)(i / 64) * pow(10000.0, -(double)(i % 32) / 32.0);
        cos_sin[i] = (float)(i % 64 < 32 ? cos(angle) : sin(angle));
    }
    st_test_fill(weight, DIM, seed + 77, 1.5f);
    for (int d = 0; d < DIM; d++)
        weight16[d] = steptape_bf16_from_float(weight[d]);
    for (int64_t t = 0; t < n; t++) {
        int64_t group =
            (int64_t)(st_test_random(seed + (uint64_t)t) % (uint64_t)(max_position / shape->ratio));
        positions[t] = group * shape->ratio + shape->ratio - 1 - (t % shape->every != 0);
        slots[t] = t % 11 == 10 ? -1 : t;
        kv_slots[t] = t % 13 == 12 ? -1 : n - t;
    }
    memset(want, ST_TEST_POISON, cache_bytes);
    memset(want_values, ST_TEST_POISON, 4 * floats);
    int bf16 = shape->weight_dtype == STEPTAPE_BF16;
    norm_args args = {.pooled = pooled,
                      .positions = positions,
                      .slot_mapping = slots,
                      .kv_slot_mapping = kv_slots,
                      .weight = bf16 ? (void *)weight16 : (void *)weight,
                      .cos_sin_cache = cos_sin,
                      .kv_cache = want + shape->base,
                      .values = shape->values ? want_values : NULL,
                      .pooled_stride = DIM,
                      .cos_sin_stride = 64,
                      .values_stride = DIM,
                      .kv_page_stride_bytes = page,
                      .num_tokens = n,
                      .head_dim = DIM,
                      .rope_dim = 64,
                      .ratio = shape->ratio,
                      .kv_block_size = shape->kv_block_size,
                      .weight_dtype = shape->weight_dtype,
                      .eps = 1e-6f};
    assert_int_equal(steptape_compress_norm_rope_store_ref(&args), 0);
    uint8_t *d_cache = st_test_device(NULL, cache_bytes);
    float *d_values = st_test_device(NULL, 4 * floats);
    args.pooled = st_test_device(pooled, 4 * floats);
    args.positions = st_test_device(positions, 8 * (size_t)n);
    args.slot_mapping = st_test_device(slots, 8 * (size_t)n);
    args.kv_slot_mapping = st_test_device(kv_slots, 8 * (size_t)n);
    args.weight = st_test_device(args.weight, DIM * (bf16 ? 2 : 4));
    args.cos_sin_cache = st_test_device(cos_sin, 4 * (size_t)max_position * 64);
    args.kv_cache = d_cache + shape->base;
    args.values = shape->values ? d_values : NULL;
    args.variant = variant;
    args.flags = flags;
    int rc = steptape_compress_norm_rope_store(&args, NULL);
    if (variant > 1 && (shape->base % 8 != 0 || page % 8 != 0)) {
        assert_int_equal(rc, STEPTAPE_ERR_UNSUPPORTED);
    } else {
        assert_int_equal(rc, 0);
        assert_int_equal(st_test_device_wait(), 0);
        assert_int_equal(st_test_device_read(got, d_cache, cache_bytes), 0);
        assert_int_equal(st_test_device_read(got_values, d_values, 4 * floats), 0);
        /* every entry that was to be written, then all bytes that were not */
        for (int64_t t = 0; t < n; t++) {
            int64_t slot = kv_slots[t], offset = shape->base + slot / bs * page;
            if (slots[t] < 0 || slot < 0 || (positions[t] + 1) % shape->ratio != 0)
                continue;
            compare_entry(got + offset, want + offset, shape->kv_block_size, (int32_t)(slot % bs),
                          difference);
            int64_t data = offset + slot % bs * 576, scale = offset + bs * 576 + slot % bs * 8;
            assert_int_equal(got[scale + 7], 0);
            memcpy(got + data, want + data, 576);
            memcpy(got + scale, want + scale, 8);
            for (int d = 0; d < DIM && shape->values; d++) {
                int64_t i = t * DIM + d, pair = i ^ 1;
                double size = fabs(want_values[i]);
                if (d >= NOPE) /* a turned pair: as exact as the pair is long */
                    size = hypot(want_values[i], want_values[pair]);
                assert_true(fabs((double)got_values[i] - want_values[i]) <= 1e-5 * size + 1e-30);
            }
            if (shape->values)
                memcpy(got_values + t * DIM, want_values + t * DIM, 4 * DIM);
        }
        assert_memory_equal(got, want, cache_bytes);
        assert_memory_equal(got_values, want_values, 4 * floats);
    }
    st_test_device_free(d_cache);
    st_test_device_free(d_values);
    st_test_device_free((void *)args.pooled);
    st_test_device_free((void *)args.positions);
    st_test_device_free((void *)args.slot_mapping);
    st_test_device_free((void *)args.kv_slot_mapping);
    st_test_device_free((void *)args.weight);
    st_test_device_free((void *)args.cos_sin_cache);
    free(pooled);
    free(cos_sin);
    free(want_values);
    free(got_values);
    free(want);
    free(got);
    free(positions);
    free(slots);
    free(kv_slots);
}

static void all_variants(void **state) {
    (void)state;
    for (unsigned int v = 0; v <= ST_NORM_VARIANTS; v++) {
        struct difference difference = {0, 0};
        for (size_t i = 0; i < sizeof(shapes) / sizeof(shapes[0]); i++) {
            run_shape(&shapes[i], v, 0, &difference);
            run_shape(&shapes[i], v, STEPTAPE_LAUNCH_AFTER_POOL, &difference);
        }
        print_message("  variant %u: %lld of %lld stored numbers sit on a rounding boundary\n", v,
                      (long long)difference.bytes, (long long)difference.stored);
        /* fp32 noise of 1e-6 against steps of 2^-4 and 2^-9: one in a thousand is far too many */
        assert_true(difference.bytes * 1000 < difference.stored);
    }
}

int main(void) {
    const char *why;
    if (st_test_gpu_probe(&why) != 0) {
        printf("skipped: %s\n", why);
        return 77;
    }
    const struct CMUnitTest tests[] = {cmocka_unit_test(all_variants)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}

#endif
