/* SPDX-License-Identifier: Apache-2.0 */
/*
 * c128a_topk_metadata: widths and the reference on cases worked out by hand, the hazard of packed
 * rows, its cost; with ST_TEST_GPU every variant against the reference.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "kernels/c128a_topk_metadata/c128a_topk_metadata.h"
#ifdef ST_TEST_GPU
#include "kernels/testing_arena.h"
#endif

typedef struct steptape_c128a_topk_metadata_args c128a_args;

#ifndef ST_TEST_GPU

static void widths(void **state) {
    (void)state;
    assert_int_equal(steptape_c128a_capacity(1048576, 128), 8192);
    assert_int_equal(steptape_c128a_capacity(16384, 128), 128);
    assert_int_equal(steptape_c128a_capacity(16385, 128), 256);
    assert_int_equal(steptape_c128a_capacity(1, 128), 128);
    assert_int_equal(steptape_c128a_width(1, 128, 8192), 128);
    assert_int_equal(steptape_c128a_width(16384, 128, 8192), 128);
    assert_int_equal(steptape_c128a_width(16511, 128, 8192), 128);
    assert_int_equal(steptape_c128a_width(16512, 128, 8192), 256);
    assert_int_equal(steptape_c128a_width(32768, 128, 8192), 256);
    assert_int_equal(steptape_c128a_width(1048576, 128, 8192), 8192);
    assert_int_equal(steptape_c128a_width(1 << 30, 128, 8192), 8192);
    assert_int_equal(steptape_c128a_width(100000, 128, 896), 896); /* 1024 are not there */
    assert_int_equal(steptape_c128a_width(-1, 128, 8192), STEPTAPE_ERR_ARGUMENT);
    assert_int_equal(steptape_c128a_capacity(1, 0), STEPTAPE_ERR_ARGUMENT);
}

enum { POISON = -77, CAPACITY = 256, WIDTH = 128 };

/* Two tokens, or with decodes = 2 twice the decode: position 255, and 511 as a prefill. */
static void run_published(int32_t decodes, int32_t width, int64_t stride, int32_t *decode,
                          int32_t *lens, int32_t *prefill) {
    const int64_t positions[] = {255, decodes == 2 ? 255 : 511};
    const int64_t slots[] = {5, 6};
    const int32_t reqs[] = {0, 0};
    const int32_t table[] = {3};
    c128a_args args = {.decode = decode,
                       .decode_lens = lens,
                       .prefill = prefill,
                       .positions = positions,
                       .slot_mapping = slots,
                       .token_to_req = reqs,
                       .block_table = table,
                       .decode_stride = stride,
                       .prefill_stride = stride,
                       .block_table_stride = 1,
                       .num_tokens = 2,
                       .num_decode_tokens = decodes,
                       .width = width,
                       .ratio = 128,
                       .block_size = 256};
    for (int i = 0; i < 2 * CAPACITY; i++)
        decode[i] = prefill[i] = POISON;
    assert_int_equal(steptape_c128a_topk_metadata_ref(&args), 0);
}

/* The published case of the change of width: the views of one buffer of two rows of 256. */
static void published_width_change(void **state) {
    (void)state;
    const struct {
        int32_t width;
        int64_t stride;
    } views[] = {{CAPACITY, CAPACITY}, {WIDTH, WIDTH}, {WIDTH, CAPACITY}};
    int32_t decode[2 * CAPACITY], prefill[2 * CAPACITY], lens[2];
    assert_int_equal(steptape_c128a_width(512, 128, CAPACITY), WIDTH);
    for (int v = 0; v < 3; v++) {
        run_published(1, views[v].width, views[v].stride, decode, lens, prefill);
        assert_int_equal(lens[0], 2);
        for (int c = 0; c < 2 * CAPACITY; c++) {
            const int is_written = c < views[v].width;
            assert_int_equal(decode[c], c < 2 ? 768 + c : is_written ? -1 : POISON);
            assert_int_equal(prefill[c], c < 4 ? c : is_written ? -1 : POISON);
        }
    }
}

/*
 * What a consumer with the stride of capture (the capacity) sees: of strided rows the right ones;
 * of packed rows the first, and then what an earlier step left.
 */
static void packed_rows_and_the_stride_of_capture(void **state) {
    (void)state;
    int32_t decode[2 * CAPACITY], prefill[2 * CAPACITY], lens[2];
    run_published(2, WIDTH, CAPACITY, decode, lens, prefill);
    assert_int_equal(decode[0], 768);
    assert_int_equal(decode[CAPACITY], 768);
    assert_int_equal(decode[CAPACITY + 1], 769);
    run_published(2, WIDTH, WIDTH, decode, lens, prefill);
    assert_int_equal(lens[1], 2);
    assert_int_equal(decode[0], 768);
    assert_int_equal(decode[WIDTH], 768);
    assert_int_equal(decode[CAPACITY], POISON);
}

static void edges(void **state) {
    (void)state;
    /* padding (its row is written), a page below 0, a list that is longer than the row */
    const int64_t positions[] = {383, 511, -1, 1 << 20};
    const int64_t slots[] = {-1, 4, 4, 4};
    const int32_t reqs[] = {0, 1, 0, 0};
    const int32_t table[] = {10, 11, -9, 12};
    int32_t decode[3 * 128], prefill[128], lens[3];
    c128a_args args = {.decode = decode,
                       .decode_lens = lens,
                       .prefill = prefill,
                       .positions = positions,
                       .slot_mapping = slots,
                       .token_to_req = reqs,
                       .block_table = table,
                       .decode_stride = 128,
                       .prefill_stride = 128,
                       .block_table_stride = 2,
                       .num_tokens = 4,
                       .num_decode_tokens = 3,
                       .width = 128,
                       .ratio = 128,
                       .block_size = 2};
    assert_int_equal(steptape_c128a_topk_metadata_ref(&args), 0);
    const int32_t first[] = {20, 21, 22, -1}, second[] = {0, 1, 24, 25, -1}, third[] = {-1, -1};
    assert_memory_equal(decode, first, sizeof(first));
    assert_memory_equal(decode + 128, second, sizeof(second));
    assert_memory_equal(decode + 256, third, sizeof(third));
    assert_int_equal(lens[0], 0);
    assert_int_equal(lens[1], 4);
    assert_int_equal(lens[2], 0);
    assert_int_equal(prefill[127], 127);
}

static void bad_arguments(void **state) {
    (void)state;
    c128a_args args = {
        .prefill_stride = 128, .num_tokens = 1, .width = 128, .ratio = 128, .block_size = 2};
    assert_int_equal(st_c128a_topk_metadata_check(&args), 1);
    assert_int_equal(steptape_c128a_topk_metadata(&args, NULL), STEPTAPE_ERR_ARGUMENT);
    args.width = 100;
    assert_int_equal(st_c128a_topk_metadata_check(&args), STEPTAPE_ERR_ARGUMENT);
    args.width = 256;
    assert_int_equal(st_c128a_topk_metadata_check(&args), STEPTAPE_ERR_ARGUMENT);
    args.width = 128;
    args.num_decode_tokens = 1;
    assert_int_equal(st_c128a_topk_metadata_check(&args), STEPTAPE_ERR_ARGUMENT);
    args.num_decode_tokens = args.num_tokens = 0;
    assert_int_equal(steptape_c128a_topk_metadata(&args, NULL), 0);
}

static void cost(void **state) {
    (void)state;
    c128a_args args = {.decode_stride = 8192,
                       .prefill_stride = 8192,
                       .num_tokens = 8192,
                       .num_decode_tokens = 64,
                       .width = 8192,
                       .ratio = 128,
                       .block_size = 2};
    struct steptape_token_counts counts = {8192, 0, 0, 64 * 101};
    struct steptape_cost c;
    assert_int_equal(steptape_c128a_topk_metadata_cost(&args, &counts, &c), 0);
    assert_int_equal(c.written_bytes, 4ull * 8192 * 8192 + 4 * 64);
    assert_int_equal(c.read_bytes, 8 * 8192 + 12 * 64 + 4 * 32 * 101);
    assert_int_equal(c.launch_count, 1);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(widths),
        cmocka_unit_test(published_width_change),
        cmocka_unit_test(packed_rows_and_the_stride_of_capture),
        cmocka_unit_test(edges),
        cmocka_unit_test(bad_arguments),
        cmocka_unit_test(cost),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

#else /* ST_TEST_GPU */

/* Variants that move 16 bytes at a time need rows that begin at multiples of 16. */
static int is_served(const void *args, unsigned int variant) {
    return variant < 2 || st_c128a_topk_metadata_check(args) == 0 ||
           st_c128a_topk_metadata_is_fast(args);
}

static const struct st_test_operator op = {
    "c128a_topk_metadata",
    sizeof(c128a_args),
    offsetof(c128a_args, variant),
    {offsetof(c128a_args, decode) + 1, offsetof(c128a_args, decode_lens) + 1,
     offsetof(c128a_args, prefill) + 1, offsetof(c128a_args, positions) + 1,
     offsetof(c128a_args, slot_mapping) + 1, offsetof(c128a_args, token_to_req) + 1,
     offsetof(c128a_args, block_table) + 1},
    is_served};

static int64_t below(uint64_t *seed, int64_t limit) {
    return (int64_t)(st_test_random((*seed)++) % (uint64_t)limit);
}

static int run_case(struct st_test_arena *arena, uint64_t i, int64_t tokens_max) {
    uint64_t seed = i << 32;
    char what[32];
    const int32_t ratios[] = {128, 128, 4, 96, 1}, blocks[] = {2, 2, 64, 256, 3, 1};
    const int64_t pads[] = {0, 0, 0, 128, 4, 3}, reqs = 1 + below(&seed, 4);
    c128a_args args = {.num_tokens = i % 50 == 0 ? 0 : 1 + below(&seed, tokens_max),
                       .width = 128 * (1 + (int32_t)below(&seed, i % 10 == 0 ? 65 : 5)),
                       .ratio = ratios[below(&seed, 5)],
                       .block_size = blocks[below(&seed, 6)]};
    args.num_decode_tokens = i % 3 == 0 ? 0 : below(&seed, args.num_tokens + 1);
    args.decode_stride = args.width + pads[below(&seed, 6)];
    args.prefill_stride = args.width + pads[below(&seed, 6)];
    args.block_table_stride = args.width / args.block_size + 1 + below(&seed, 2);
    const size_t n = (size_t)args.num_tokens, decodes = (size_t)args.num_decode_tokens;
    st_test_arena_reset(arena);
    int64_t *positions = st_test_arena_take(arena, 8 * n, 0);
    int64_t *slots = st_test_arena_take(arena, 8 * n, 8 * (size_t)below(&seed, 2));
    int32_t *to_req = st_test_arena_take(arena, 4 * n, 0);
    int32_t *table = st_test_arena_take(arena, 4 * (size_t)(reqs * args.block_table_stride), 0);
    const size_t odd = i % 7 == 6 ? 4 : 0;
    args.decode = st_test_arena_take(arena, 4 * decodes * (size_t)args.decode_stride, odd);
    args.prefill = st_test_arena_take(arena, 4 * (n - decodes) * (size_t)args.prefill_stride, odd);
    args.decode_lens = st_test_arena_take(arena, 4 * decodes, 4);
    for (size_t t = 0; t < n; t++) {
        positions[t] = below(&seed, 40) == 0   ? -1 - below(&seed, 300)
                       : below(&seed, 10) == 0 ? (int64_t)1 << (20 + below(&seed, 30))
                                               : below(&seed, (int64_t)args.width * args.ratio);
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
    return run_case(arena, i, 20);
}

static int large_cases(struct st_test_arena *arena) {
    return run_case(arena, 2001, 8192) + run_case(arena, 2002, 8192) + run_case(arena, 2010, 600);
}

int main(int argc, char **argv) {
    const struct st_test_cases cases = {64 << 20, small_case, large_cases};
    return st_test_arena_main(argc, argv, &cases);
}

#endif
