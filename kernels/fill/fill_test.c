/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fill: the reference, its cost; with ST_TEST_GPU every variant against the reference.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "kernels/fill/fill.h"
#ifdef ST_TEST_GPU
#include "kernels/testing_arena.h"
#endif

typedef struct steptape_fill_args fill_args;

#ifndef ST_TEST_GPU

static void by_hand(void **state) {
    (void)state;
    uint32_t out[10] = {0};
    fill_args args = {.out = out, .rows = 2, .columns = 3, .stride = 5, .value = 0xffffffffu};
    assert_int_equal(steptape_fill_ref(&args), 0);
    for (int i = 0; i < 10; i++)
        assert_int_equal(out[i], i % 5 < 3 ? 0xffffffffu : 0);
    const int64_t row = 1, outside = 2;
    args.value = 7;
    assert_int_equal(steptape_fill_ref_rows(&args, &row, 1), 0);
    assert_int_equal(out[0], 0xffffffffu);
    assert_int_equal(out[5], 7);
    assert_int_equal(steptape_fill_ref_rows(&args, &outside, 1), STEPTAPE_ERR_ARGUMENT);
}

static void bad_arguments(void **state) {
    (void)state;
    fill_args args = {.rows = 1, .columns = 4, .stride = 4};
    assert_int_equal(steptape_fill(&args, NULL), STEPTAPE_ERR_ARGUMENT);
    assert_int_equal(steptape_fill_ref(&args), STEPTAPE_ERR_ARGUMENT);
    args.stride = 3;
    assert_int_equal(st_fill_check(&args), STEPTAPE_ERR_ARGUMENT);
    args = (fill_args){.rows = 0, .columns = 4, .stride = 4};
    assert_int_equal(steptape_fill(&args, NULL), 0);
    args.variant = ST_FILL_VARIANTS + 1;
    assert_int_equal(steptape_fill(&args, NULL), STEPTAPE_ERR_ARGUMENT);
}

static void cost(void **state) {
    (void)state;
    const struct steptape_token_counts counts = {0, 0, 0, 0};
    struct steptape_cost c;
    fill_args args = {.rows = 8192, .columns = 8320, .stride = 8320};
    assert_int_equal(steptape_fill_cost(&args, &counts, &c), 0);
    assert_int_equal(c.written_bytes, 4ull * 8192 * 8320);
    assert_int_equal(c.read_bytes, 0);
    assert_int_equal(c.launch_count, 1);
    assert_true(c.grid[0] > 0 && c.grid[1] > 0 && c.block[0] > 0);
    assert_int_equal(c.block_count, (uint64_t)c.grid[0] * c.grid[1]);
    args.rows = 0;
    assert_int_equal(steptape_fill_cost(&args, &counts, &c), 0);
    assert_int_equal(c.launch_count, 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(by_hand),
        cmocka_unit_test(bad_arguments),
        cmocka_unit_test(cost),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

#else /* ST_TEST_GPU */

/* Variants that move 16 bytes at a time need rows that begin at multiples of 16. */
static int is_served(const void *args, unsigned int variant) {
    return variant < 2 || st_fill_check(args) == 0 || st_fill_is_fast(args);
}

static const struct st_test_operator op = {"fill",
                                           sizeof(fill_args),
                                           offsetof(fill_args, variant),
                                           {offsetof(fill_args, out) + 1},
                                           is_served};

static int64_t below(uint64_t *seed, int64_t limit) {
    return (int64_t)(st_test_random((*seed)++) % (uint64_t)limit);
}

static int run_case(struct st_test_arena *arena, uint64_t i, int64_t rows_max) {
    uint64_t seed = i << 32;
    char what[32];
    fill_args args = {.rows = below(&seed, rows_max + 1),
                      .columns = below(&seed, 4) == 0 ? 128 * below(&seed, 6) : below(&seed, 600),
                      .value = (uint32_t)st_test_random(seed++)};
    const int64_t pads[] = {0, 0, 4, 1, 37};
    args.stride = args.columns + pads[below(&seed, 5)];
    st_test_arena_reset(arena);
    args.out = st_test_arena_take(arena, 4 * (size_t)(args.rows * args.stride + 1),
                                  4 * (size_t)below(&seed, 8));
    snprintf(what, sizeof(what), "case %llu", (unsigned long long)i);
    return st_test_arena_check(arena, &op, &args, what);
}

static int run_large(struct st_test_arena *arena, int64_t rows, int64_t columns, int64_t pad) {
    fill_args args = {
        .rows = rows, .columns = columns, .stride = columns + pad, .value = 0xffffffffu};
    st_test_arena_reset(arena);
    args.out = st_test_arena_take(arena, 4 * (size_t)(rows * args.stride), 0);
    return st_test_arena_check(arena, &op, &args, "large");
}

static int small_case(struct st_test_arena *arena, uint64_t i) {
    return run_case(arena, i, 9);
}

static int large_cases(struct st_test_arena *arena) {
    return run_large(arena, 1, 8192 * 1280 + 3, 0) + run_large(arena, 1200, 8192, 128) +
           run_large(arena, 70000, 5, 1);
}

int main(int argc, char **argv) {
    const struct st_test_cases cases = {64 << 20, small_case, large_cases};
    return st_test_arena_main(argc, argv, &cases);
}

#endif
