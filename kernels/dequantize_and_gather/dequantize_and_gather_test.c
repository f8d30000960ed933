/* SPDX-License-Identifier: Apache-2.0 */
/*
 * dequantize_and_gather: the reference on cases worked out by hand, its cost; with ST_TEST_GPU
 * every device variant against the reference, bit for bit.
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

#include "kernels/dequantize_and_gather/dequantize_and_gather.h"
#include "kernels/testing.h"

typedef struct steptape_dequantize_and_gather_args gather_args;

static int64_t entry_bytes(int32_t format) {
    return format == STEPTAPE_KV_FP8_V32 ? STEPTAPE_KV_V32_ENTRY_BYTES : STEPTAPE_KV_ENTRY_BYTES;
}

#ifndef ST_TEST_GPU

enum { PAGES = 4, ROWS = 12 };

struct fixture {
    int32_t seq_lens[2], gather_lens[2], table[2 * 3];
    uint8_t cache[PAGES * 1400];
    uint16_t out[2 * ROWS * 576];
    gather_args args;
};

/* Two requests over pages of two entries; every byte of the cache is random. */
static void fixture_init(struct fixture *f, int32_t format) {
    const int32_t seq_lens[] = {21, 8}, gather_lens[] = {3, 2};
    const int32_t table[] = {2, 0, 3, 1, -5, 0};
    memset(f->out, ST_TEST_POISON, sizeof(f->out));
    for (size_t i = 0; i < sizeof(f->cache); i++)
        f->cache[i] = (uint8_t)st_test_random(i);
    memcpy(f->seq_lens, seq_lens, sizeof(seq_lens));
    memcpy(f->gather_lens, gather_lens, sizeof(gather_lens));
    memcpy(f->table, table, sizeof(table));
    f->args = (gather_args){.out = f->out,
                            .cache = f->cache,
                            .seq_lens = f->seq_lens,
                            .block_table = f->table,
                            .out_req_stride = ROWS * 576,
                            .out_row_stride = 576,
                            .cache_page_stride_bytes = 1400,
                            .block_table_stride = 3,
                            .offset = 1,
                            .max_gather = 5,
                            .num_reqs = 2,
                            .ratio = 4,
                            .block_size = 2,
                            .format = format};
}

static int is_poison(const uint16_t *row, int n) {
    for (int d = 0; d < n; d++)
        if (row[d] != (ST_TEST_POISON << 8 | ST_TEST_POISON))
            return 0;
    return 1;
}

/* Which rows are written, and from which entry: the bf16 part tells. */
static void which_rows(void **state) {
    (void)state;
    static struct fixture f;
    fixture_init(&f, STEPTAPE_KV_FP8_DS_MLA);
    assert_int_equal(steptape_dequantize_and_gather_ref(&f.args), 0);
    /* request 0: 21 / 4 = 5 entries, in pages 2, 0, 3; request 1: 2, in page 1 */
    const struct {
        int row, page, entry;
    } want[] = {{1, 2, 0}, {2, 2, 1},        {3, 0, 0},       {4, 0, 1},
                {5, 3, 0}, {ROWS + 1, 1, 0}, {ROWS + 2, 1, 1}};
    for (size_t k = 0; k < 7; k++) {
        const uint8_t *rope = f.cache + want[k].page * 1400 + want[k].entry * 576 + 448;
        assert_memory_equal(f.out + want[k].row * 576 + 448, rope, 128);
        assert_true(is_poison(f.out + want[k].row * 576 + 512, 64));
    }
    for (int row = 0; row < 2 * ROWS; row++) {
        int written = (row >= 1 && row <= 5) || row == ROWS + 1 || row == ROWS + 2;
        assert_int_equal(is_poison(f.out + row * 576, 512), !written);
    }
    /* the last 3 and 2 entries: entry 2 of request 0 comes first; then as few as max_gather */
    memset(f.out, ST_TEST_POISON, sizeof(f.out));
    f.args.gather_lens = f.gather_lens;
    f.args.max_gather = 2;
    assert_int_equal(steptape_dequantize_and_gather_ref(&f.args), 0);
    assert_memory_equal(f.out + 576 + 448, f.cache + 0 * 1400 + 448, 128);
    assert_memory_equal(f.out + 2 * 576 + 448, f.cache + 576 + 448, 128);
    assert_true(is_poison(f.out + 3 * 576, 512));
    /* one row of each by its index; more to gather than there is: those rows stay */
    memset(f.out, ST_TEST_POISON, sizeof(f.out));
    const int64_t rows[] = {1, 2};
    f.gather_lens[1] = 3;
    assert_int_equal(steptape_dequantize_and_gather_ref_rows(&f.args, rows, 2), 0);
    assert_true(is_poison(f.out + 576, 512) && !is_poison(f.out + 2 * 576, 512));
    assert_true(is_poison(f.out + (ROWS + 1) * 576, 512));
    const int64_t past = 4;
    assert_int_equal(steptape_dequantize_and_gather_ref_rows(&f.args, &past, 1),
                     STEPTAPE_ERR_ARGUMENT);
}

static void ds_mla_values(void **state) {
    (void)state;
    static struct fixture f;
    fixture_init(&f, STEPTAPE_KV_FP8_DS_MLA);
    f.args.num_reqs = 1;
    f.args.max_gather = 1;
    f.table[0] = -7; /* page 0 */
    uint8_t *scales = f.cache + 2 * 576;
    const uint8_t bytes[] = {127, 128, 120, 0, 254, 255, 60};
    memcpy(scales, bytes, sizeof(bytes));
    for (int b = 0; b < 7; b++) {
        f.cache[64 * b] = 0x38;     /* 1 */
        f.cache[64 * b + 1] = 0xfe; /* -448 */
        f.cache[64 * b + 2] = 0x01; /* 2^-9 */
        f.cache[64 * b + 3] = 0x7f; /* NaN */
    }
    assert_int_equal(steptape_dequantize_and_gather_ref(&f.args), 0);
    const uint16_t *row = f.out + 576;
    for (int b = 0; b < 7; b++) {
        if (bytes[b] == 255) {
            for (int d = 0; d < 4; d++)
                assert_int_equal(row[64 * b + d], 0x7fff);
            continue;
        }
        float scale = ldexpf(1.0f, bytes[b] - 127);
        assert_true(steptape_bf16_to_float(row[64 * b]) == scale);
        assert_true(steptape_bf16_to_float(row[64 * b + 1]) == -448.0f * scale);
        if (bytes[b] != 0) /* 2^-136 is under half of the smallest bf16 */
            assert_true(steptape_bf16_to_float(row[64 * b + 2]) == ldexpf(scale, -9));
        else
            assert_int_equal(row[64 * b + 2], 0);
        assert_int_equal(row[64 * b + 3], 0x7fff);
    }
}

static void v32_values(void **state) {
    (void)state;
    static struct fixture f;
    fixture_init(&f, STEPTAPE_KV_FP8_V32);
    f.args.num_reqs = 1;
    f.args.max_gather = 2;
    uint8_t *entry = f.cache + 2 * 1400 + 656; /* entry 1 of page 2: row 1 */
    const float scales[] = {1.0f, 0.3f, -2.0f, INFINITY};
    memcpy(entry + 512, scales, sizeof(scales));
    memset(entry, 0x39, 512); /* 1.125 */
    entry[500] = 0;
    f.gather_lens[0] = 5;
    f.args.gather_lens = f.gather_lens;
    assert_int_equal(steptape_dequantize_and_gather_ref(&f.args), 0);
    const uint16_t *row = f.out + 2 * 576;
    assert_int_equal(row[0], steptape_bf16_from_float(1.125f));
    assert_int_equal(row[128], steptape_bf16_from_float(0.3f * 1.125f));
    assert_int_equal(row[256], steptape_bf16_from_float(-2.25f));
    assert_int_equal(row[384], 0x7f80);
    assert_int_equal(row[500], 0x7fff); /* 0 * inf */
    assert_memory_equal(row + 512, entry + 528, 128);
    assert_true(is_poison(f.out + 3 * 576, 576));
}

static void arguments_and_cost(void **state) {
    (void)state;
    static struct fixture f;
    struct steptape_token_counts counts = {0, 0, 0, 7};
    struct steptape_cost c;
    fixture_init(&f, STEPTAPE_KV_FP8_DS_MLA);
    assert_int_equal(steptape_dequantize_and_gather_cost(&f.args, &counts, &c), 0);
    assert_int_equal(c.read_bytes, 8 + 7 * 583 + 4 * 4);
    assert_int_equal(c.written_bytes, 7 * 1024);
    assert_int_equal(c.flops, 7 * 448);
    assert_int_equal(c.launch_count, 1);
    assert_int_equal(c.grid[1], 2);
    assert_true(c.idle_max_block_count < c.block_count);
    counts.entries = 11;
    assert_int_equal(steptape_dequantize_and_gather_cost(&f.args, &counts, &c),
                     STEPTAPE_ERR_ARGUMENT);
    counts.entries = 0;
    f.args.max_gather = 0;
    f.args.cache = NULL;
    assert_int_equal(steptape_dequantize_and_gather_cost(&f.args, &counts, &c), 0);
    assert_int_equal(c.launch_count, 0);
    assert_int_equal(steptape_dequantize_and_gather(&f.args, NULL), 0);
    f.args.max_gather = 1;
    assert_int_equal(steptape_dequantize_and_gather(&f.args, NULL), STEPTAPE_ERR_ARGUMENT);
    assert_int_equal(steptape_dequantize_and_gather_ref(&f.args), STEPTAPE_ERR_ARGUMENT);
    fixture_init(&f, STEPTAPE_KV_FP8_V32);
    f.args.out_row_stride = 575;
    assert_int_equal(steptape_dequantize_and_gather_ref(&f.args), STEPTAPE_ERR_ARGUMENT);
    f.args.out_row_stride = 576;
    f.args.cache_page_stride_bytes = 1311;
    assert_int_equal(steptape_dequantize_and_gather_ref(&f.args), STEPTAPE_ERR_ARGUMENT);
    assert_int_equal(entry_bytes(f.args.format), 656);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(which_rows),
        cmocka_unit_test(ds_mla_values),
        cmocka_unit_test(v32_values),
        cmocka_unit_test(arguments_and_cost),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

#else /* ST_TEST_GPU */

struct shape {
    int32_t reqs, max_gather, block_size, ratio, offset, page_pad, row_pad, base, format;
    int64_t max_seq; /* tokens */
    int with_lens;
};

static const struct shape shapes[] = {
    {1, 1, 64, 4, 0, 64, 0, 0, STEPTAPE_KV_FP8_DS_MLA, 9, 0},
    {3, 40, 64, 4, 2, 64, 0, 0, STEPTAPE_KV_FP8_DS_MLA, 160, 0},
    {5, 255, 64, 1, 7, 64, 64, 0, STEPTAPE_KV_FP8_DS_MLA, 400, 1},
    {4, 65, 2, 128, 0, 560, 0, 0, STEPTAPE_KV_FP8_DS_MLA, 8191, 0},
    {2, 700, 64, 4, 0, 64, 8, 0, STEPTAPE_KV_FP8_DS_MLA, 2800, 1},
    {3, 90, 5, 3, 1, 8, 0, 0, STEPTAPE_KV_FP8_DS_MLA, 250, 1},
    {3, 90, 5, 3, 1, 7, 3, 1, STEPTAPE_KV_FP8_DS_MLA, 250, 1},
    {3, 90, 64, 1, 1, 0, 0, 0, STEPTAPE_KV_FP8_V32, 90, 0},
    {2, 300, 64, 1, 0, 64, 64, 0, STEPTAPE_KV_FP8_V32, 4000, 1},
    {2, 33, 3, 2, 5, 3, 1, 1, STEPTAPE_KV_FP8_V32, 60, 1},
    {1, 8192, 64, 128, 0, 64, 0, 0, STEPTAPE_KV_FP8_DS_MLA, 1048576, 0},
};

static int serves(const gather_args *args, int cache_base, unsigned int variant);

/* Lengths: 0, the largest, and what comes; more to gather than there is now and then. */
static void make_lens(const struct shape *s, uint64_t seed, int32_t *seq, int32_t *gather) {
    for (int32_t b = 0; b < s->reqs; b++) {
        uint64_t r = st_test_random(seed + (uint64_t)b);
        seq[b] = b == 0 ? (int32_t)s->max_seq : b == 1 ? 0 : (int32_t)(r % (uint64_t)s->max_seq);
        gather[b] = b % 3 == 0 ? s->max_gather : (int32_t)((r >> 32) % (uint64_t)s->max_gather);
    }
}

static void run_shape(const struct shape *s, unsigned int variant) {
    const int64_t pages = 97, width = st_gather_width(s->format);
    const int64_t page = s->block_size * entry_bytes(s->format) + s->page_pad;
    const int64_t row = width + s->row_pad, rows = s->offset + s->max_gather + 1;
    const int64_t table_width = s->max_seq / s->ratio / s->block_size + 1;
    const size_t cache_bytes = (size_t)(pages * page + s->base);
    const size_t out_count = (size_t)(s->reqs * rows * row);
    uint8_t *cache = malloc(cache_bytes);
    uint16_t *want = malloc(2 * out_count), *got = malloc(2 * out_count);
    int32_t *table = malloc(4 * (size_t)(s->reqs * table_width));
    int32_t seq[8], gather[8];
    assert_true(cache && want && got && table);
    uint64_t seed = (uint64_t)(s - shapes + 1) << 32;
    for (size_t i = 0; i < cache_bytes; i++)
        cache[i] = (uint8_t)(st_test_random(seed + i / 8) >> 8 * (i % 8));
    for (int64_t i = 0; i < s->reqs * table_width; i++)
        table[i] = i % 13 == 5 ? -1 : (int32_t)(st_test_random(seed++) % (uint64_t)pages);
    make_lens(s, seed, seq, gather);
    memset(want, ST_TEST_POISON, 2 * out_count);
    gather_args args = {.out = want,
                        .cache = cache + s->base,
                        .seq_lens = seq,
                        .gather_lens = s->with_lens ? gather : NULL,
                        .block_table = table,
                        .out_req_stride = rows * row,
                        .out_row_stride = row,
                        .cache_page_stride_bytes = page,
                        .block_table_stride = table_width,
                        .offset = s->offset,
                        .max_gather = s->max_gather,
                        .num_reqs = s->reqs,
                        .ratio = s->ratio,
                        .block_size = s->block_size,
                        .format = s->format,
                        .variant = variant};
    assert_int_equal(steptape_dequantize_and_gather_ref(&args), 0);
    uint8_t *d_cache = st_test_device(cache, cache_bytes);
    args.out = st_test_device(NULL, 2 * out_count);
    args.cache = d_cache + s->base;
    args.seq_lens = st_test_device(seq, sizeof(seq));
    args.gather_lens = s->with_lens ? st_test_device(gather, sizeof(gather)) : NULL;
    args.block_table = st_test_device(table, 4 * (size_t)(s->reqs * table_width));
    int rc = steptape_dequantize_and_gather(&args, NULL);
    if (!serves(&args, s->base, variant)) {
        assert_int_equal(rc, STEPTAPE_ERR_UNSUPPORTED);
    } else {
        assert_int_equal(rc, 0);
        assert_int_equal(st_test_device_wait(), 0);
        assert_int_equal(st_test_device_read(got, args.out, 2 * out_count), 0);
        assert_memory_equal(got, want, 2 * out_count);
    }
    st_test_device_free(d_cache);
    st_test_device_free(args.out);
    st_test_device_free((void *)args.seq_lens);
    st_test_device_free((void *)args.gather_lens);
    st_test_device_free((void *)args.block_table);
    free(cache);
    free(want);
    free(got);
    free(table);
}

/* From variant 2 on accesses are of 8 and 16 bytes. */
static int serves(const gather_args *args, int cache_base, unsigned int variant) {
    return variant <= 1 || (cache_base % 16 == 0 && args->cache_page_stride_bytes % 16 == 0 &&
                            args->out_row_stride % 8 == 0);
}

static void all_variants(void **state) {
    (void)state;
    for (unsigned int v = 0; v <= ST_GATHER_VARIANTS; v++)
        for (size_t i = 0; i < sizeof(shapes) / sizeof(shapes[0]); i++)
            run_shape(&shapes[i], v);
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
