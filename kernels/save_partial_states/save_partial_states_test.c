/* SPDX-License-Identifier: Apache-2.0 */
/*
 * save_partial_states: the reference on cases worked out by hand, its cost; with ST_TEST_GPU every
 * device variant against the reference, bit for bit.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "kernels/save_partial_states/save_partial_states.h"
#include "kernels/testing.h"

typedef struct steptape_save_partial_states_args save_args;

#ifndef ST_TEST_GPU

static void by_hand(void **state) {
    (void)state;
    /* width 2, pages of 2 rows with 1 float of padding, ratio 3 */
    const float kv_score[] = {1, 2, 10, 20, 3, 4, 30, 40, 5, 6, 50, 60};
    const float ape[] = {0.5f, 0.25f, 100, 200, 1000, 2000};
    const int64_t positions[] = {4, 9, 2};
    const int64_t slots[] = {3, -1, 0};
    float cache[2 * 9];
    for (int i = 0; i < 18; i++)
        cache[i] = -7;
    save_args args = {.kv = kv_score,
                      .score = kv_score + 2,
                      .ape = ape,
                      .positions = positions,
                      .slot_mapping = slots,
                      .state_cache = cache,
                      .kv_stride = 4,
                      .score_stride = 4,
                      .ape_stride = 2,
                      .state_page_stride = 9,
                      .state_row_stride = 4,
                      .num_tokens = 3,
                      .width = 2,
                      .ratio = 3,
                      .block_size = 2};
    assert_int_equal(steptape_save_partial_states_ref(&args), 0);
    const float want[] = {5, 6, 1050, 2060, -7, -7, -7, -7, -7, -7, -7, -7, -7, 1, 2, 110, 220, -7};
    assert_memory_equal(cache, want, sizeof(want));
}

static void nothing_to_do(void **state) {
    (void)state;
    save_args args = {.kv_stride = 4,
                      .score_stride = 4,
                      .ape_stride = 4,
                      .state_page_stride = 8,
                      .state_row_stride = 8,
                      .width = 4,
                      .ratio = 128,
                      .block_size = 1};
    assert_int_equal(steptape_save_partial_states_ref(&args), 0);
    assert_int_equal(steptape_save_partial_states(&args, NULL), 0);
    args.num_tokens = 1;
    assert_int_equal(steptape_save_partial_states_ref(&args), STEPTAPE_ERR_ARGUMENT);
    args.state_row_stride = 7;
    assert_int_equal(steptape_save_partial_states_ref(&args), STEPTAPE_ERR_ARGUMENT);
}

static void chosen_rows(void **state) {
    (void)state;
    float kv_score[3 * 8], ape[4] = {0}, whole[3 * 8], some[3 * 8];
    const int64_t positions[] = {0, 1, 2};
    const int64_t slots[] = {0, 1, 2};
    const int64_t tokens[] = {2};
    st_test_fill(kv_score, 24, 5, 1.0f);
    memset(whole, 0, sizeof(whole));
    memset(some, 0, sizeof(some));
    save_args args = {.kv = kv_score,
                      .score = kv_score + 4,
                      .ape = ape,
                      .positions = positions,
                      .slot_mapping = slots,
                      .state_cache = whole,
                      .kv_stride = 8,
                      .score_stride = 8,
                      .ape_stride = 4,
                      .state_page_stride = 8,
                      .state_row_stride = 8,
                      .num_tokens = 3,
                      .width = 4,
                      .ratio = 1,
                      .block_size = 1};
    assert_int_equal(steptape_save_partial_states_ref(&args), 0);
    args.state_cache = some;
    assert_int_equal(steptape_save_partial_states_ref_rows(&args, tokens, 1), 0);
    for (int i = 0; i < 24; i++)
        assert_true(some[i] == (i >= 16 ? whole[i] : 0.0f));
}

static void cost(void **state) {
    (void)state;
    save_args args = {.kv_stride = 1024,
                      .score_stride = 1024,
                      .ape_stride = 512,
                      .state_page_stride = 8208,
                      .state_row_stride = 1024,
                      .num_tokens = 10,
                      .width = 512,
                      .ratio = 128,
                      .block_size = 8};
    struct steptape_token_counts counts = {7, 0, 0, 0};
    struct steptape_cost c;
    assert_int_equal(steptape_save_partial_states_cost(&args, &counts, &c), 0);
    assert_int_equal(c.read_bytes, 10 * 8 + 7 * 8 + 7 * 4096 + 7 * 2048);
    assert_int_equal(c.written_bytes, 7 * 4096);
    assert_int_equal(c.flops, 7 * 512);
    assert_int_equal(c.launch_count, 1);
    args.num_tokens = 0;
    counts.mapped = 0;
    assert_int_equal(steptape_save_partial_states_cost(&args, &counts, &c), 0);
    assert_int_equal(c.launch_count, 0);
    counts.mapped = 1;
    assert_int_equal(steptape_save_partial_states_cost(&args, &counts, &c), STEPTAPE_ERR_ARGUMENT);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(by_hand),
        cmocka_unit_test(nothing_to_do),
        cmocka_unit_test(chosen_rows),
        cmocka_unit_test(cost),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

#else /* ST_TEST_GPU */

struct shape {
    int64_t tokens;
    int32_t width, ratio, block_size, page_pad, row_pad, base; /* floats */
};

static const struct shape shapes[] = {
    {1, 512, 128, 8, 16, 0, 0},   {5, 512, 128, 8, 16, 0, 0},   {257, 512, 128, 8, 16, 0, 0},
    {64, 1024, 4, 4, 16, 0, 0},   {33, 256, 4, 4, 112, 0, 0},   {3, 2052, 4, 4, 0, 4, 0},
    {2049, 512, 128, 8, 0, 0, 0}, {7, 37, 3, 5, 1, 3, 0},       {9, 512, 128, 8, 16, 0, 1},
    {4, 4, 2, 2, 0, 0, 0},        {1001, 1024, 4, 4, 16, 0, 0}, {513, 512, 128, 8, 16, 0, 0},
    {40, 20, 12, 6, 8, 4, 0},     {1, 256, 4, 4, 112, 0, 0},    {1003, 256, 4, 4, 112, 0, 0},
};

static void run_shape(const struct shape *shape, unsigned int variant) {
    const int64_t n = shape->tokens, width = shape->width;
    const int64_t row = 2 * width + shape->row_pad;
    const int64_t page = row * shape->block_size + shape->page_pad;
    const int64_t pages = n / shape->block_size + 2;
    const size_t state_floats = (size_t)(pages * page + shape->base);
    float *kv_score = malloc(4 * (size_t)(n * 2 * width));
    float *ape = malloc(4 * (size_t)(shape->ratio * width));
    float *want = malloc(4 * state_floats), *got = malloc(4 * state_floats);
    int64_t *positions = malloc(8 * (size_t)n), *slots = malloc(8 * (size_t)n);
    assert_true(kv_score && ape && want && got && positions && slots);
    uint64_t seed = (uint64_t)(shape - shapes + 1) << 32;
    st_test_fill(kv_score, (size_t)(n * 2 * width), seed, 3.0f);
    st_test_fill(ape, (size_t)(shape->ratio * width), seed + 1, 1.0f);
    memset(want, ST_TEST_POISON, 4 * state_floats);
    for (int64_t t = 0; t < n; t++) {
        positions[t] = (int64_t)(st_test_random(seed + (uint64_t)t) % 1000000);
        slots[t] = t % 5 == 3 ? -1 - t : (t * 7 + 1) % (n + 1); /* 7 and n + 1 may share: below */
    }
    /* slots are distinct, as an engine's are: a token that repeats one becomes padding */
    char *seen = calloc((size_t)n + 1, 1);
    assert_non_null(seen);
    for (int64_t t = 0; t < n; t++)
        if (slots[t] >= 0 && seen[slots[t]]++ != 0)
            slots[t] = -1;
    free(seen);
    save_args args = {.kv = kv_score,
                      .score = kv_score + width,
                      .ape = ape,
                      .positions = positions,
                      .slot_mapping = slots,
                      .state_cache = want + shape->base,
                      .kv_stride = 2 * width,
                      .score_stride = 2 * width,
                      .ape_stride = width,
                      .state_page_stride = page,
                      .state_row_stride = row,
                      .num_tokens = n,
                      .width = shape->width,
                      .ratio = shape->ratio,
                      .block_size = shape->block_size};
    assert_int_equal(steptape_save_partial_states_ref(&args), 0);
    float *d_kv_score = st_test_device(kv_score, 4 * (size_t)(n * 2 * width));
    float *d_state = st_test_device(NULL, 4 * state_floats);
    args.kv = d_kv_score;
    args.score = d_kv_score + width;
    args.ape = st_test_device(ape, 4 * (size_t)(shape->ratio * width));
    args.positions = st_test_device(positions, 8 * (size_t)n);
    args.slot_mapping = st_test_device(slots, 8 * (size_t)n);
    args.state_cache = d_state + shape->base;
    args.variant = variant;
    int rc = steptape_save_partial_states(&args, NULL);
    int vectors = width % 4 == 0 && row % 4 == 0 && page % 4 == 0 && shape->base % 4 == 0;
    int fixed = (width == 256 || width == 512 || width == 1024) &&
                (shape->ratio & (shape->ratio - 1)) == 0 &&
                (shape->block_size & (shape->block_size - 1)) == 0;
    if ((variant > 1 && !vectors) || (variant == 3 && !fixed)) {
        assert_int_equal(rc, STEPTAPE_ERR_UNSUPPORTED);
    } else {
        assert_int_equal(rc, 0);
        assert_int_equal(st_test_device_wait(), 0);
        assert_int_equal(st_test_device_read(got, d_state, 4 * state_floats), 0);
        assert_memory_equal(got, want, 4 * state_floats);
    }
    st_test_device_free(d_kv_score);
    st_test_device_free(d_state);
    st_test_device_free((void *)args.ape);
    st_test_device_free((void *)args.positions);
    st_test_device_free((void *)args.slot_mapping);
    free(kv_score);
    free(ape);
    free(want);
    free(got);
    free(positions);
    free(slots);
}

static void all_variants(void **state) {
    (void)state;
    for (unsigned int v = 0; v <= ST_SAVE_VARIANTS; v++)
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
