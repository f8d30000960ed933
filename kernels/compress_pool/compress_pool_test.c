/* SPDX-License-Identifier: Apache-2.0 */
/*
 * compress_pool: the reference on cases worked out by hand, its cost; with ST_TEST_GPU every
 * device variant against the reference within 1e-5 relative (and 1e-6 of the largest kv: a pooled
 * value may be the small difference of large terms).
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

#include "kernels/compress_pool/compress_pool.h"
#include "kernels/testing.h"

typedef struct steptape_compress_pool_args pool_args;

#ifndef ST_TEST_GPU

static int close_to(double got, double want) {
    return fabs(got - want) <= 1e-6 * (1.0 + fabs(want));
}

/* A window of 4 over pages of 2 rows that lie apart, head_dim 1: [kv, score] rows. */
static void by_hand(void **state) {
    (void)state;
    float cache[4 * 4];
    const int32_t table[] = {9, 9, 9, 9, 3, -2};
    const int64_t positions[] = {3, 3, 2, 3, 7};
    const int64_t slots[] = {0, -1, 0, 0, 0};
    const int64_t kv_slots[] = {0, 0, 0, -1, 0};
    const int32_t reqs[] = {1, 1, 1, 1, 1};
    float pooled[5] = {-9, -9, -9, -9, -9};
    st_test_fill(cache, 16, 1, 1.0f);
    /* page 3: positions 0, 1; page -2 reads as page 0: positions 2, 3 */
    const float ln2 = logf(2.0f);
    const float first[] = {1, 0, 2, ln2}, second[] = {10, -INFINITY, 4, ln2};
    memcpy(cache + 3 * 4, first, sizeof(first));
    memcpy(cache, second, sizeof(second));
    pool_args args = {.state_cache = cache,
                      .positions = positions,
                      .slot_mapping = slots,
                      .kv_slot_mapping = kv_slots,
                      .token_to_req = reqs,
                      .block_table = table,
                      .pooled = pooled,
                      .state_page_stride = 4,
                      .state_row_stride = 2,
                      .block_table_stride = 4,
                      .pooled_stride = 1,
                      .num_tokens = 4,
                      .head_dim = 1,
                      .ratio = 4,
                      .block_size = 2};
    assert_int_equal(steptape_compress_pool_ref(&args), 0);
    /* weights 1, 2, 0, 2 of 5 */
    assert_true(close_to(pooled[0], (1 + 2 * 2 + 2 * 4) / 5.0));
    for (int t = 1; t < 5; t++)
        assert_true(pooled[t] == -9);
}

/* c4: the older group reads the first columns, the newer one the second; positions below 0 weigh
 * nothing. */
static void overlap(void **state) {
    (void)state;
    enum { RATIO = 2, DIM = 1, ROW = 4 };
    float cache[4 * ROW]; /* kv old, kv new, score old, score new */
    for (int q = 0; q < 4; q++) {
        const float row[] = {(float)(1 + q), (float)(10 * (1 + q)), 0, 0};
        memcpy(cache + q * ROW, row, sizeof(row));
    }
    const int32_t table[] = {0};
    const int64_t positions[] = {1, 3};
    const int64_t slots[] = {0, 1};
    const int32_t reqs[] = {0, 0};
    float pooled[2];
    pool_args args = {.state_cache = cache,
                      .positions = positions,
                      .slot_mapping = slots,
                      .kv_slot_mapping = slots,
                      .token_to_req = reqs,
                      .block_table = table,
                      .pooled = pooled,
                      .state_page_stride = 4 * ROW,
                      .state_row_stride = ROW,
                      .block_table_stride = 1,
                      .pooled_stride = 1,
                      .num_tokens = 2,
                      .head_dim = DIM,
                      .ratio = RATIO,
                      .overlap = 1,
                      .block_size = 4};
    assert_int_equal(steptape_compress_pool_ref(&args), 0);
    assert_true(close_to(pooled[0], (10 + 20) / 2.0));
    assert_true(close_to(pooled[1], (1 + 2 + 30 + 40) / 4.0));
    const int64_t only = 1;
    pooled[0] = -1;
    pooled[1] = -1;
    assert_int_equal(steptape_compress_pool_ref_rows(&args, &only, 1), 0);
    assert_true(pooled[0] == -1 && close_to(pooled[1], 73 / 4.0));
}

static void nothing_to_do(void **state) {
    (void)state;
    pool_args args = {.state_page_stride = 8208,
                      .state_row_stride = 1024,
                      .pooled_stride = 512,
                      .head_dim = 512,
                      .ratio = 128,
                      .block_size = 8};
    assert_int_equal(steptape_compress_pool_ref(&args), 0);
    assert_int_equal(steptape_compress_pool(&args, NULL), 0);
    args.num_tokens = 1;
    assert_int_equal(steptape_compress_pool_ref(&args), STEPTAPE_ERR_ARGUMENT);
    args.state_row_stride = 1000;
    assert_int_equal(steptape_compress_pool_ref(&args), STEPTAPE_ERR_ARGUMENT);
}

static void cost(void **state) {
    (void)state;
    pool_args args = {.state_page_stride = 8208,
                      .state_row_stride = 1024,
                      .pooled_stride = 512,
                      .num_tokens = 64,
                      .head_dim = 512,
                      .ratio = 128,
                      .block_size = 8};
    struct steptape_token_counts counts = {60, 3, 2, 0};
    struct steptape_cost c;
    assert_int_equal(steptape_compress_pool_cost(&args, &counts, &c), 0);
    assert_int_equal(c.read_bytes, 64 * 8 + 60 * 8 + 3 * 8 + 2 * (4 + 16 * 4 + 128 * 512 * 2 * 4));
    assert_int_equal(c.written_bytes, 2 * 2048);
    assert_int_equal(c.launch_count, 1);
    assert_int_equal(c.scratch_bytes, 64 * 2048);
    assert_true(c.idle_max_block_count < c.block_count);
    counts.boundary = counts.stored = 0;
    assert_int_equal(steptape_compress_pool_cost(&args, &counts, &c), 0);
    assert_int_equal(c.idle_max_block_count, c.block_count);
    assert_int_equal(c.flops, 0);
    counts.stored = 1;
    assert_int_equal(steptape_compress_pool_cost(&args, &counts, &c), STEPTAPE_ERR_ARGUMENT);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(by_hand),
        cmocka_unit_test(overlap),
        cmocka_unit_test(nothing_to_do),
        cmocka_unit_test(cost),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

#else /* ST_TEST_GPU */

struct shape {
    int64_t tokens;
    int32_t head_dim, ratio, overlap, block_size;
    int32_t page_pad; /* floats */
    int32_t every;    /* 1: every token is a boundary; n: every nth */
    float offset;     /* of scores; not 0: every third page has scores of -inf alone */
};

static const struct shape shapes[] = {
    {1, 512, 128, 0, 8, 16, 1, 0},      {3, 512, 128, 0, 8, 16, 1, 0},
    {5, 512, 128, 0, 8, 0, 1, 0},       {33, 512, 128, 0, 8, 16, 1, 0},
    {65, 512, 128, 0, 8, 16, 2, 0},     {130, 512, 128, 0, 8, 16, 3, 0},
    {515, 512, 128, 0, 8, 16, 7, 0},    {2049, 512, 128, 0, 8, 16, 129, 0},
    {9, 512, 4, 1, 4, 16, 1, 0},        {70, 128, 4, 1, 4, 112, 2, 0},
    {5, 36, 6, 0, 5, 3, 1, 0},          {4, 512, 128, 0, 16, 0, 1, 0},
    {40, 512, 128, 0, 8, 16, 1, -500},  {3, 512, 128, 0, 8, 16, 1, 300},
    {600, 512, 128, 0, 8, 16, 2, -500}, {8, 512, 4, 1, 4, 16, 1, -500},
};

static int serves(const struct shape *shape, unsigned int variant) {
    return variant <= 1 || (shape->head_dim == 512 && shape->ratio == 128 && !shape->overlap &&
                            shape->block_size == 8);
}

static void check(const float *got, const float *want, int64_t n, float largest) {
    uint32_t poison;
    memset(&poison, ST_TEST_POISON, 4);
    double worst = 0.0;
    for (int64_t i = 0; i < n; i++) {
        uint32_t bits;
        memcpy(&bits, &want[i], 4);
        if (bits == poison) {
            assert_memory_equal(&got[i], &want[i], 4);
            continue;
        }
        if (isnan(want[i])) { /* a window of -inf alone has no weights */
            assert_true(isnan(got[i]));
            continue;
        }
        double error = fabs((double)got[i] - want[i]);
        assert_true(error <= 1e-5 * fabs(want[i]) + 1e-6 * largest);
        if (error / largest > worst)
            worst = error / largest;
    }
    if (worst > 0.0)
        print_message("  worst error %.2g of the largest kv\n", worst);
}

/* Some scores say "not this row": single ones, and with an offset whole pages. */
static void exclude_scores(const struct shape *shape, float *cache, size_t floats, size_t page,
                           size_t row) {
    for (size_t i = 7; i < floats; i += 1013)
        if (i % page % row >= row / 2)
            cache[i] = -INFINITY;
    for (size_t i = 0; shape->offset != 0.0f && i < floats; i++)
        if (i % page % row >= row / 2)
            cache[i] = i / page % 3 == 1 ? -INFINITY : cache[i] + shape->offset;
}

static void run_shape(const struct shape *shape, unsigned int variant) {
    const int64_t n = shape->tokens, dim = shape->head_dim;
    const int64_t row = (shape->overlap ? 4 : 2) * dim;
    const int64_t page = row * shape->block_size + shape->page_pad;
    const int64_t groups = 3, table_width = groups * shape->ratio / shape->block_size + 1;
    const int64_t pages = 64;
    const size_t state_floats = (size_t)(pages * page), pooled_floats = (size_t)(n * (dim + 4));
    float *cache = malloc(4 * state_floats);
    float *want = malloc(4 * pooled_floats), *got = malloc(4 * pooled_floats);
    int64_t *positions = malloc(8 * (size_t)n), *slots = malloc(8 * (size_t)n);
    int64_t *kv_slots = malloc(8 * (size_t)n);
    int32_t *reqs = malloc(4 * (size_t)n), *table = malloc(4 * (size_t)(n * table_width));
    assert_true(cache && want && got && positions && slots && kv_slots && reqs && table);
    uint64_t seed = (uint64_t)(shape - shapes + 1) << 32;
    st_test_fill(cache, state_floats, seed, 4.0f);
    exclude_scores(shape, cache, state_floats, (size_t)page, (size_t)row);
    memset(want, ST_TEST_POISON, 4 * pooled_floats);
    for (int64_t t = 0; t < n; t++) {
        int64_t group = (int64_t)(st_test_random(seed++) % (uint64_t)groups);
        positions[t] = group * shape->ratio + shape->ratio - 1 - (t % shape->every != 0);
        slots[t] = t % 11 == 10 ? -1 : t;
        kv_slots[t] = t % 13 == 12 ? -1 : t;
        reqs[t] = (int32_t)(n - 1 - t);
    }
    for (int64_t i = 0; i < n * table_width; i++)
        table[i] = (int32_t)(st_test_random(seed++) % (uint64_t)pages) - (i % 17 == 0 ? 70 : 0);
    pool_args args = {.state_cache = cache,
                      .positions = positions,
                      .slot_mapping = slots,
                      .kv_slot_mapping = kv_slots,
                      .token_to_req = reqs,
                      .block_table = table,
                      .pooled = want,
                      .state_page_stride = page,
                      .state_row_stride = row,
                      .block_table_stride = table_width,
                      .pooled_stride = dim + 4,
                      .num_tokens = n,
                      .head_dim = shape->head_dim,
                      .ratio = shape->ratio,
                      .overlap = shape->overlap,
                      .block_size = shape->block_size};
    assert_int_equal(steptape_compress_pool_ref(&args), 0);
    float *d_pooled = st_test_device(NULL, 4 * pooled_floats);
    args.state_cache = st_test_device(cache, 4 * state_floats);
    args.positions = st_test_device(positions, 8 * (size_t)n);
    args.slot_mapping = st_test_device(slots, 8 * (size_t)n);
    args.kv_slot_mapping = st_test_device(kv_slots, 8 * (size_t)n);
    args.token_to_req = st_test_device(reqs, 4 * (size_t)n);
    args.block_table = st_test_device(table, 4 * (size_t)(n * table_width));
    args.pooled = d_pooled;
    args.variant = variant;
    int rc = steptape_compress_pool(&args, NULL);
    if (!serves(shape, variant)) {
        assert_int_equal(rc, STEPTAPE_ERR_UNSUPPORTED);
    } else {
        assert_int_equal(rc, 0);
        assert_int_equal(st_test_device_wait(), 0);
        assert_int_equal(st_test_device_read(got, d_pooled, 4 * pooled_floats), 0);
        check(got, want, (int64_t)pooled_floats, 4.0f);
    }
    st_test_device_free(d_pooled);
    st_test_device_free((void *)args.state_cache);
    st_test_device_free((void *)args.positions);
    st_test_device_free((void *)args.slot_mapping);
    st_test_device_free((void *)args.kv_slot_mapping);
    st_test_device_free((void *)args.token_to_req);
    st_test_device_free((void *)args.block_table);
    free(cache);
    free(want);
    free(got);
    free(positions);
    free(slots);
    free(kv_slots);
    free(reqs);
    free(table);
}

static void all_variants(void **state) {
    (void)state;
    for (unsigned int v = 0; v <= ST_POOL_VARIANTS; v++)
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
