/* SPDX-License-Identifier: Apache-2.0 */
/*
 * compressed_slot_mapping: the reference on cases worked out by hand, its cost; with ST_TEST_GPU
 * every device variant against the reference.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "kernels/compressed_slot_mapping/compressed_slot_mapping.h"
#include "kernels/testing.h"

typedef struct steptape_compressed_slot_mapping_args map_args;

#ifndef ST_TEST_GPU

static void by_hand(void **state) {
    (void)state;
    /* request 0: positions 126, 127, 128; request 1: no token; request 2: position 255 */
    const int32_t starts[] = {0, 3, 3, 4};
    const int32_t lens[] = {129, 77, 256};
    const int32_t table[] = {10, 11, -5, 12, 13, 14};
    int64_t out[6];
    map_args args = {.out = out,
                     .query_start_loc = starts,
                     .seq_lens = lens,
                     .block_table = table,
                     .block_table_stride = 2,
                     .out_len = 6,
                     .num_reqs = 3,
                     .ratio = 128,
                     .block_size = 2};
    const int64_t want[] = {-1, 20, -1, 27, -1, -1};
    assert_int_equal(steptape_compressed_slot_mapping_ref(&args), 0);
    assert_memory_equal(out, want, sizeof(want));

    /* the page of entry 1 of request 2 is -5 when pages hold one entry: clamped to page 0 */
    const int32_t negative[] = {10, 11, 12, 13, 14, -5};
    args.block_table = negative;
    args.block_size = 1;
    assert_int_equal(steptape_compressed_slot_mapping_ref(&args), 0);
    assert_int_equal(out[1], 10);
    assert_int_equal(out[3], 0);
}

static void no_requests(void **state) {
    (void)state;
    int64_t out[3] = {7, 7, 7};
    map_args args = {.out = out, .out_len = 3, .ratio = 4, .block_size = 64};
    assert_int_equal(steptape_compressed_slot_mapping_ref(&args), 0);
    for (int i = 0; i < 3; i++)
        assert_int_equal(out[i], -1);
}

static void chosen_rows(void **state) {
    (void)state;
    const int32_t starts[] = {0, 8};
    const int32_t lens[] = {12};
    const int32_t table[] = {3};
    const int64_t tokens[] = {3, 9};
    int64_t whole[10], some[10];
    map_args args = {.out = whole,
                     .query_start_loc = starts,
                     .seq_lens = lens,
                     .block_table = table,
                     .block_table_stride = 1,
                     .out_len = 10,
                     .num_reqs = 1,
                     .ratio = 4,
                     .block_size = 64};
    assert_int_equal(steptape_compressed_slot_mapping_ref(&args), 0);
    assert_int_equal(whole[3], 3 * 64 + 1); /* position 7 */
    memset(some, 0, sizeof(some));
    args.out = some;
    assert_int_equal(steptape_compressed_slot_mapping_ref_rows(&args, tokens, 2), 0);
    for (int i = 0; i < 10; i++)
        assert_int_equal(some[i], i == 3 || i == 9 ? whole[i] : 0);
    const int64_t outside = 10;
    assert_int_equal(steptape_compressed_slot_mapping_ref_rows(&args, &outside, 1),
                     STEPTAPE_ERR_ARGUMENT);
}

static void bad_arguments(void **state) {
    (void)state;
    map_args args = {.out_len = 1, .ratio = 4, .block_size = 64};
    assert_int_equal(steptape_compressed_slot_mapping_ref(&args), STEPTAPE_ERR_ARGUMENT);
    assert_int_equal(steptape_compressed_slot_mapping(&args, NULL), STEPTAPE_ERR_ARGUMENT);
    args.ratio = 0;
    assert_int_equal(steptape_compressed_slot_mapping_ref(&args), STEPTAPE_ERR_ARGUMENT);
    assert_int_equal(steptape_compressed_slot_mapping_ref(NULL), STEPTAPE_ERR_ARGUMENT);
}

static void cost(void **state) {
    (void)state;
    map_args args = {.out_len = 8192, .num_reqs = 3, .ratio = 128, .block_size = 2};
    struct steptape_token_counts counts = {40, 2, 2, 0};
    struct steptape_cost c;
    assert_int_equal(steptape_compressed_slot_mapping_cost(&args, &counts, &c), 0);
    assert_int_equal(c.read_bytes, 4 * 4 + 3 * 4 + 2 * 4);
    assert_int_equal(c.written_bytes, 8 * 8192);
    assert_int_equal(c.launch_count, 1);
    assert_int_equal(c.grid[0], 3 * 16 + 4);
    args.variant = 1;
    assert_int_equal(steptape_compressed_slot_mapping_cost(&args, &counts, &c), 0);
    assert_int_equal(c.launch_count, 2);
    assert_int_equal(c.written_bytes, 8 * 8192 + 8 * 40);
    args.variant = 0;
    args.out_len = 0;
    counts.mapped = counts.boundary = counts.stored = 0;
    assert_int_equal(steptape_compressed_slot_mapping_cost(&args, &counts, &c), 0);
    assert_int_equal(c.launch_count, 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(by_hand),     cmocka_unit_test(no_requests),
        cmocka_unit_test(chosen_rows), cmocka_unit_test(bad_arguments),
        cmocka_unit_test(cost),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

#else /* ST_TEST_GPU */

struct shape {
    int32_t reqs, max_query, ratio, block_size, out_len, first;
};

static const struct shape shapes[] = {
    {0, 0, 128, 2, 1, 0},       {0, 0, 128, 2, 8192, 0}, {1, 1, 128, 2, 1, 0},
    {1, 1, 128, 2, 8192, 0},    {16, 1, 4, 64, 4097, 0}, {7, 300, 128, 2, 2111, 0},
    {5, 513, 4, 64, 2563, 0},   {3, 700, 6, 5, 2100, 0}, {200, 9, 128, 2, 1801, 0},
    {1, 5000, 128, 2, 6001, 0}, {4, 100, 4, 64, 403, 3},
};

static void run_shape(const struct shape *shape, unsigned int variant, int odd_base) {
    const int64_t width = 4096;
    int32_t *starts = calloc((size_t)shape->reqs + 1, 4);
    int32_t *lens = calloc((size_t)shape->reqs + 1, 4);
    int32_t *table = calloc((size_t)(shape->reqs * width + 1), 4);
    int64_t *want = malloc(8 * (size_t)shape->out_len);
    int64_t *got = malloc(8 * (size_t)shape->out_len + 8);
    assert_true(starts && lens && table && want && got);
    uint64_t seed = (uint64_t)(shape - shapes) << 32;
    starts[0] = shape->first;
    for (int32_t r = 0; r < shape->reqs; r++) {
        int32_t query = (int32_t)(st_test_random(seed++) % (uint64_t)(shape->max_query + 1));
        starts[r + 1] = starts[r] + query;
        lens[r] = query + (int32_t)(st_test_random(seed++) % 1000);
    }
    for (int64_t i = 0; i < shape->reqs * width; i++)
        table[i] = (int32_t)(st_test_random(seed++) % 100000) - 5000;
    map_args args = {.out = want,
                     .query_start_loc = starts,
                     .seq_lens = lens,
                     .block_table = table,
                     .block_table_stride = width,
                     .out_len = shape->out_len,
                     .num_reqs = shape->reqs,
                     .ratio = shape->ratio,
                     .block_size = shape->block_size};
    assert_int_equal(steptape_compressed_slot_mapping_ref(&args), 0);
    size_t bytes = 8 * (size_t)(shape->out_len + odd_base);
    char *out = st_test_device(NULL, bytes);
    args.out = (int64_t *)(out + 8 * odd_base);
    args.query_start_loc = st_test_device(starts, 4 * ((size_t)shape->reqs + 1));
    args.seq_lens = st_test_device(lens, 4 * (size_t)shape->reqs + 4);
    args.block_table = st_test_device(table, 4 * (size_t)(shape->reqs * width + 1));
    args.variant = variant;
    assert_int_equal(steptape_compressed_slot_mapping(&args, NULL), 0);
    assert_int_equal(st_test_device_wait(), 0);
    assert_int_equal(st_test_device_read(got, out, bytes), 0);
    assert_memory_equal(got + odd_base, want, 8 * (size_t)shape->out_len);
    if (odd_base)
        assert_int_equal(((unsigned char *)got)[0], ST_TEST_POISON);
    st_test_device_free(out);
    st_test_device_free((void *)args.query_start_loc);
    st_test_device_free((void *)args.seq_lens);
    st_test_device_free((void *)args.block_table);
    free(starts);
    free(lens);
    free(table);
    free(want);
    free(got);
}

static void all_variants(void **state) {
    (void)state;
    for (unsigned int v = 0; v <= ST_SLOT_MAPPING_VARIANTS; v++)
        for (size_t i = 0; i < sizeof(shapes) / sizeof(shapes[0]); i++)
            for (int odd = 0; odd < 2; odd++)
                run_shape(&shapes[i], v, odd);
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
