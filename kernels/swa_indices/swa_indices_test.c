/* SPDX-License-Identifier: Apache-2.0 */
/*
 * swa_indices: the reference on cases worked out by hand, its cost; with ST_TEST_GPU every variant
 * against the reference.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "kernels/swa_indices/swa_indices.h"
#ifdef ST_TEST_GPU
#include "kernels/testing_arena.h"
#endif

typedef struct steptape_swa_indices_args swa_args;

#ifndef ST_TEST_GPU

static void by_hand(void **state) {
    (void)state;
    /* window 4, pages of 2: positions 5 (window 2..5), 1 (0..1), padding, 3 with a page of -7 */
    const int64_t positions[] = {5, 1, 9, 3};
    const int64_t slots[] = {11, 3, -1, 0};
    const int32_t reqs[] = {0, 1, 0, 2};
    const int32_t table[] = {50, 60, 70, 20, 21, 22, 30, -7, 32};
    int32_t indices[4 * 5], lens[4];
    swa_args args = {.indices = indices,
                     .lens = lens,
                     .positions = positions,
                     .slot_mapping = slots,
                     .token_to_req = reqs,
                     .block_table = table,
                     .indices_stride = 5,
                     .block_table_stride = 3,
                     .num_tokens = 4,
                     .window = 4,
                     .block_size = 2};
    const int32_t want[] = {120, 121, 140, 141, 9, 40, 41, -1, -1, 9,
                            9,   9,   9,   9,   9, 60, 61, 0,  1,  9};
    const int32_t want_lens[] = {4, 2, 0, 4};
    for (int i = 0; i < 20; i++)
        indices[i] = 9;
    assert_int_equal(steptape_swa_indices_ref(&args), 0);
    assert_memory_equal(indices, want, sizeof(want));
    assert_memory_equal(lens, want_lens, sizeof(want_lens));
}

static void bad_arguments(void **state) {
    (void)state;
    swa_args args = {.indices_stride = 128, .num_tokens = 1, .window = 128, .block_size = 64};
    assert_int_equal(steptape_swa_indices(&args, NULL), STEPTAPE_ERR_ARGUMENT);
    assert_int_equal(st_swa_indices_check(&args), 1);
    args.window = 129;
    assert_int_equal(st_swa_indices_check(&args), STEPTAPE_ERR_ARGUMENT);
    args.window = 128;
    args.num_tokens = 0;
    assert_int_equal(steptape_swa_indices(&args, NULL), 0);
}

static void cost(void **state) {
    (void)state;
    swa_args args = {.indices_stride = 128, .num_tokens = 10, .window = 128, .block_size = 64};
    struct steptape_token_counts counts = {8, 0, 0, 8 * 100};
    struct steptape_cost c;
    assert_int_equal(steptape_swa_indices_cost(&args, &counts, &c), 0);
    assert_int_equal(c.read_bytes, 8 * 10 + 12 * 8 + 4 * 13);
    assert_int_equal(c.written_bytes, 4 * 10 + 4 * 8 * 128);
    assert_int_equal(c.launch_count, 1);
    counts.entries = 8 * 128 + 1;
    assert_int_equal(steptape_swa_indices_cost(&args, &counts, &c), STEPTAPE_ERR_ARGUMENT);
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
    return variant < 2 || st_swa_indices_check(args) == 0 || st_swa_indices_is_fast(args);
}

static const struct st_test_operator op = {
    "swa_indices",
    sizeof(swa_args),
    offsetof(swa_args, variant),
    {offsetof(swa_args, indices) + 1, offsetof(swa_args, lens) + 1,
     offsetof(swa_args, positions) + 1, offsetof(swa_args, slot_mapping) + 1,
     offsetof(swa_args, token_to_req) + 1, offsetof(swa_args, block_table) + 1},
    is_served};

static int64_t below(uint64_t *seed, int64_t limit) {
    return (int64_t)(st_test_random((*seed)++) % (uint64_t)limit);
}

static int run_case(struct st_test_arena *arena, uint64_t i, int64_t tokens_max) {
    uint64_t seed = i << 32;
    char what[32];
    const int32_t windows[] = {128, 128, 64, 256, 37, 1}, blocks[] = {64, 64, 2, 4, 48, 1};
    const int64_t pads[] = {0, 0, 0, 4, 3}, reqs = 1 + below(&seed, 4);
    const int64_t position_max = below(&seed, 3) == 0 ? 300 : 3000;
    swa_args args = {.num_tokens = i % 50 == 0 ? 0 : 1 + below(&seed, tokens_max),
                     .window = windows[below(&seed, 6)],
                     .block_size = blocks[below(&seed, 6)]};
    args.indices_stride = args.window + pads[below(&seed, 5)];
    args.block_table_stride = position_max / args.block_size + 2;
    const size_t n = (size_t)args.num_tokens;
    st_test_arena_reset(arena);
    int64_t *positions = st_test_arena_take(arena, 8 * n, 0);
    int64_t *slots = st_test_arena_take(arena, 8 * n, 8 * (size_t)below(&seed, 2));
    int32_t *to_req = st_test_arena_take(arena, 4 * n, 0);
    int32_t *table = st_test_arena_take(arena, 4 * (size_t)(reqs * args.block_table_stride), 0);
    args.indices =
        st_test_arena_take(arena, 4 * n * (size_t)args.indices_stride, i % 7 == 6 ? 4 : 0);
    args.lens = st_test_arena_take(arena, 4 * n, 4);
    for (size_t t = 0; t < n; t++) {
        positions[t] = below(&seed, 40) == 0 ? -1 - below(&seed, 300) : below(&seed, position_max);
        slots[t] = below(&seed, 5) == 0 ? -1 : below(&seed, 100000);
        to_req[t] = (int32_t)below(&seed, reqs);
    }
    for (int64_t b = 0; b < reqs * args.block_table_stride; b++)
        table[b] = (int32_t)below(&seed, 10000) - 500;
    args.positions = positions;
    args.slot_mapping = slots;
    args.token_to_req = to_req;
    args.block_table = table;
    snprintf(what, sizeof(what), "case %llu", (unsigned long long)i);
    return st_test_arena_check(arena, &op, &args, what);
}

static int small_case(struct st_test_arena *arena, uint64_t i) {
    return run_case(arena, i, 40);
}

static int large_cases(struct st_test_arena *arena) {
    return run_case(arena, 2001, 8192) + run_case(arena, 2002, 8192);
}

int main(int argc, char **argv) {
    const struct st_test_cases cases = {32 << 20, small_case, large_cases};
    return st_test_arena_main(argc, argv, &cases);
}

#endif
