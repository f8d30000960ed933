/* SPDX-License-Identifier: Apache-2.0 */
/*
 * global_topk_indices: the reference on cases worked out by hand, its cost; with ST_TEST_GPU every
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

#include "kernels/global_topk_indices/global_topk_indices.h"
#ifdef ST_TEST_GPU
#include "kernels/testing_arena.h"
#endif

typedef struct steptape_global_topk_indices_args global_args;

#ifndef ST_TEST_GPU

static void by_hand(void **state) {
    (void)state;
    const int32_t topk[] = {0, 5, -1, 3, 2, 1, 7, -3, 4, 4, 4, 4};
    const int64_t slots[] = {9, -1, 9};
    const int32_t reqs[] = {1, 1, 0};
    const int32_t table[] = {2, 3, -6, 8, 9, 10};
    int32_t out[3 * 5], lens[3];
    global_args args = {.out = out,
                        .lens = lens,
                        .topk_indices = topk,
                        .slot_mapping = slots,
                        .token_to_req = reqs,
                        .block_table = table,
                        .out_stride = 5,
                        .topk_stride = 4,
                        .block_table_stride = 3,
                        .num_tokens = 3,
                        .k = 4,
                        .block_size = 2};
    for (int i = 0; i < 15; i++)
        out[i] = 77;
    assert_int_equal(steptape_global_topk_indices_ref_rows(&args, (const int64_t[]){0}, 1), 0);
    const int32_t first[] = {16, 21, -1, 19, 77, 77};
    assert_memory_equal(out, first, sizeof(first));
    assert_int_equal(lens[0], 3);
    const int32_t third[] = {0, 0, 0, 0, 77};
    const int64_t row = 2;
    assert_int_equal(steptape_global_topk_indices_ref_rows(&args, &row, 1), 0);
    assert_memory_equal(out + 10, third, sizeof(third)); /* page 2 of request 0 is -6 */
    assert_int_equal(lens[2], 4);
}

static void padding_has_no_entries(void **state) {
    (void)state;
    const int32_t topk[] = {1, -1};
    const int64_t slots[] = {-1};
    const int32_t reqs[] = {0}, table[] = {4};
    int32_t out[2], lens[1];
    global_args args = {.out = out,
                        .lens = lens,
                        .topk_indices = topk,
                        .slot_mapping = slots,
                        .token_to_req = reqs,
                        .block_table = table,
                        .out_stride = 2,
                        .topk_stride = 2,
                        .block_table_stride = 1,
                        .num_tokens = 1,
                        .k = 2,
                        .block_size = 64};
    assert_int_equal(steptape_global_topk_indices_ref(&args), 0);
    assert_int_equal(out[0], 257);
    assert_int_equal(out[1], -1);
    assert_int_equal(lens[0], 0);
}

static void bad_arguments(void **state) {
    (void)state;
    global_args args = {
        .out_stride = 4, .topk_stride = 4, .num_tokens = 1, .k = 4, .block_size = 2};
    assert_int_equal(steptape_global_topk_indices(&args, NULL), STEPTAPE_ERR_ARGUMENT);
    assert_int_equal(st_global_topk_indices_check(&args), 1);
    args.k = 5;
    assert_int_equal(st_global_topk_indices_check(&args), STEPTAPE_ERR_ARGUMENT);
    args.num_tokens = 0;
    args.k = 4;
    assert_int_equal(steptape_global_topk_indices(&args, NULL), 0);
}

static void cost(void **state) {
    (void)state;
    global_args args = {
        .out_stride = 512, .topk_stride = 512, .num_tokens = 10, .k = 512, .block_size = 64};
    struct steptape_token_counts counts = {10, 0, 0, 4000};
    struct steptape_cost c;
    assert_int_equal(steptape_global_topk_indices_cost(&args, &counts, &c), 0);
    assert_int_equal(c.read_bytes, 12 * 10 + 4 * 5120 + 4 * 4000);
    assert_int_equal(c.written_bytes, 4 * 5120 + 4 * 10);
    assert_int_equal(c.launch_count, 1);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(by_hand),
        cmocka_unit_test(padding_has_no_entries),
        cmocka_unit_test(bad_arguments),
        cmocka_unit_test(cost),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

#else /* ST_TEST_GPU */

/* Variants that move 16 bytes at a time need rows that begin at multiples of 16. */
static int is_served(const void *args, unsigned int variant) {
    return variant < 2 || st_global_topk_indices_check(args) == 0 ||
           st_global_topk_indices_is_fast(args);
}

static const struct st_test_operator op = {
    "global_topk_indices",
    sizeof(global_args),
    offsetof(global_args, variant),
    {offsetof(global_args, out) + 1, offsetof(global_args, lens) + 1,
     offsetof(global_args, topk_indices) + 1, offsetof(global_args, slot_mapping) + 1,
     offsetof(global_args, token_to_req) + 1, offsetof(global_args, block_table) + 1},
    is_served};

static int64_t below(uint64_t *seed, int64_t limit) {
    return (int64_t)(st_test_random((*seed)++) % (uint64_t)limit);
}

static int run_case(struct st_test_arena *arena, uint64_t i, int64_t tokens_max) {
    uint64_t seed = i << 32;
    char what[32];
    const int32_t ks[] = {512, 1024, 2048, 64, 37, 1, 0}, blocks[] = {64, 64, 2, 48, 1};
    const int64_t pads[] = {0, 0, 0, 4, 3}, reqs = 1 + below(&seed, 4);
    global_args args = {.num_tokens = i % 50 == 0 ? 0 : 1 + below(&seed, tokens_max),
                        .k = ks[below(&seed, 7)],
                        .block_size = blocks[below(&seed, 5)]};
    args.out_stride = args.k + pads[below(&seed, 5)];
    args.topk_stride = args.k + pads[below(&seed, 5)];
    const int64_t entries = 1 + below(&seed, 3000);
    args.block_table_stride = entries / args.block_size + 1;
    const size_t n = (size_t)args.num_tokens;
    st_test_arena_reset(arena);
    int64_t *slots = st_test_arena_take(arena, 8 * n, 8 * (size_t)below(&seed, 2));
    int32_t *to_req = st_test_arena_take(arena, 4 * n, 0);
    int32_t *table = st_test_arena_take(arena, 4 * (size_t)(reqs * args.block_table_stride), 0);
    int32_t *topk = st_test_arena_take(arena, 4 * n * (size_t)args.topk_stride, i % 7 == 5 ? 4 : 0);
    args.out = st_test_arena_take(arena, 4 * n * (size_t)args.out_stride, i % 7 == 6 ? 4 : 0);
    args.lens = st_test_arena_take(arena, 4 * n, 4);
    for (size_t t = 0; t < n; t++) {
        slots[t] = below(&seed, 5) == 0 ? -1 : below(&seed, 100000);
        to_req[t] = (int32_t)below(&seed, reqs);
        const int64_t found = below(&seed, args.k + 1);
        for (int64_t c = 0; c < args.topk_stride; c++) {
            int32_t *entry = &topk[(int64_t)t * args.topk_stride + c];
            *entry = c < found ? (int32_t)below(&seed, entries) : -1;
            if (below(&seed, 30) == 0)
                *entry = below(&seed, 2) ? -1 : INT32_MIN;
        }
    }
    for (int64_t b = 0; b < reqs * args.block_table_stride; b++)
        table[b] = (int32_t)below(&seed, 10000) - 500;
    args.topk_indices = topk;
    args.slot_mapping = slots;
    args.token_to_req = to_req;
    args.block_table = table;
    snprintf(what, sizeof(what), "case %llu", (unsigned long long)i);
    return st_test_arena_check(arena, &op, &args, what);
}

static int small_case(struct st_test_arena *arena, uint64_t i) {
    return run_case(arena, i, 20);
}

static int large_cases(struct st_test_arena *arena) {
    return run_case(arena, 2001, 2000) + run_case(arena, 2002, 2000);
}

int main(int argc, char **argv) {
    const struct st_test_cases cases = {64 << 20, small_case, large_cases};
    return st_test_arena_main(argc, argv, &cases);
}

#endif
