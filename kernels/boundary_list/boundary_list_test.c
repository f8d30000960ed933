/* SPDX-License-Identifier: Apache-2.0 */
/*
 * boundary_list: the reference on cases worked out by hand, its cost; with ST_TEST_GPU every
 * variant against the reference.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "kernels/boundary_list/boundary_list.h"
#ifdef ST_TEST_GPU
#include "kernels/testing_arena.h"
#endif

typedef struct steptape_boundary_list_args list_args;

#ifndef ST_TEST_GPU

static void by_hand(void **state) {
    (void)state;
    const int64_t positions[] = {127, 126, 255, 127, 383, 128};
    const int64_t slots[] = {0, 1, -1, 3, 4, 5};
    const int64_t kv[] = {0, -1, 0, -1, 9, -1};
    int32_t list[6] = {77, 77, 77, 77, 77, 77}, count = 77;
    list_args args = {.list = list,
                      .count = &count,
                      .positions = positions,
                      .slot_mapping = slots,
                      .kv_slot_mapping = kv,
                      .num_tokens = 6,
                      .ratio = 128};
    assert_int_equal(steptape_boundary_list_ref(&args), 0);
    assert_int_equal(count, 2);
    assert_int_equal(list[0], 0);
    assert_int_equal(list[1], 4);
    assert_int_equal(list[2], 77);
    list[0] = list[1] = 77;
    const int64_t asked[] = {4, 3};
    assert_int_equal(steptape_boundary_list_ref_rows(&args, asked, 2), 0);
    assert_int_equal(count, 2);
    assert_int_equal(list[0], 77);
    assert_int_equal(list[1], 4);
}

static void count_is_always_written(void **state) {
    (void)state;
    int32_t count = 77;
    list_args args = {.count = &count, .ratio = 128};
    assert_int_equal(steptape_boundary_list_ref(&args), 0);
    assert_int_equal(count, 0);
    args.num_tokens = 1;
    assert_int_equal(steptape_boundary_list_ref(&args), STEPTAPE_ERR_ARGUMENT);
    args.count = NULL;
    args.num_tokens = 0;
    assert_int_equal(steptape_boundary_list(&args, NULL), STEPTAPE_ERR_ARGUMENT);
}

static void cost(void **state) {
    (void)state;
    list_args args = {.num_tokens = 100, .ratio = 4};
    struct steptape_token_counts counts = {90, 22, 20, 0};
    struct steptape_cost c;
    assert_int_equal(steptape_boundary_list_cost(&args, &counts, &c), 0);
    assert_int_equal(c.read_bytes, 8 * (100 + 90 + 22));
    assert_int_equal(c.written_bytes, 4 * 21);
    assert_int_equal(c.launch_count, 1);
    assert_int_equal(c.grid[0], 1);
    args.num_tokens = 0;
    counts = (struct steptape_token_counts){0, 0, 0, 0};
    assert_int_equal(steptape_boundary_list_cost(&args, &counts, &c), 0);
    assert_int_equal(c.launch_count, 1);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(by_hand),
        cmocka_unit_test(count_is_always_written),
        cmocka_unit_test(cost),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

#else /* ST_TEST_GPU */

/* Variants from 2 on know powers of two only. */
static int is_served(const void *args, unsigned int variant) {
    return variant < 2 || st_is_power_of_two(((const list_args *)args)->ratio);
}

static const struct st_test_operator op = {
    "boundary_list",
    sizeof(list_args),
    offsetof(list_args, variant),
    {offsetof(list_args, list) + 1, offsetof(list_args, count) + 1,
     offsetof(list_args, positions) + 1, offsetof(list_args, slot_mapping) + 1,
     offsetof(list_args, kv_slot_mapping) + 1},
    is_served};

static int64_t below(uint64_t *seed, int64_t limit) {
    return (int64_t)(st_test_random((*seed)++) % (uint64_t)limit);
}

static int run_case(struct st_test_arena *arena, uint64_t i, int64_t tokens_max) {
    uint64_t seed = i << 32;
    char what[32];
    const int32_t ratios[] = {128, 4, 1, 6};
    const int64_t density = 1 + below(&seed, 3);
    list_args args = {.num_tokens = below(&seed, tokens_max + 1), .ratio = ratios[below(&seed, 4)]};
    const size_t n = (size_t)args.num_tokens;
    st_test_arena_reset(arena);
    int64_t *positions = st_test_arena_take(arena, 8 * n, 0);
    int64_t *slots = st_test_arena_take(arena, 8 * n, 8 * (size_t)below(&seed, 2));
    int64_t *kv = st_test_arena_take(arena, 8 * n, 0);
    args.list = st_test_arena_take(arena, 4 * n, 4 * (size_t)below(&seed, 2));
    args.count = st_test_arena_take(arena, 4, 4);
    for (size_t t = 0; t < n; t++) {
        positions[t] = below(&seed, (int64_t)1 << 40);
        if (below(&seed, density) == 0)
            positions[t] = (positions[t] / args.ratio + 1) * args.ratio - 1;
        slots[t] = below(&seed, 5) == 0 ? -1 : below(&seed, 100000);
        kv[t] = below(&seed, 5) == 0 ? -1 : below(&seed, 100000);
    }
    args.positions = positions;
    args.slot_mapping = slots;
    args.kv_slot_mapping = kv;
    snprintf(what, sizeof(what), "case %llu", (unsigned long long)i);
    return st_test_arena_check(arena, &op, &args, what);
}

static int small_case(struct st_test_arena *arena, uint64_t i) {
    return run_case(arena, i, i % 20 == 0 ? 9000 : 300);
}

static int large_cases(struct st_test_arena *arena) {
    return run_case(arena, 2001, 100000) + run_case(arena, 2002, 100000);
}

int main(int argc, char **argv) {
    const struct st_test_cases cases = {32 << 20, small_case, large_cases};
    return st_test_arena_main(argc, argv, &cases);
}

#endif
