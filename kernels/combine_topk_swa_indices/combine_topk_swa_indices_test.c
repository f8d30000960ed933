/* SPDX-License-Identifier: Apache-2.0 */
/*
 * combine_topk_swa_indices: the reference on cases worked out by hand, the three tails, its cost;
 * with ST_TEST_GPU every variant against the reference.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "kernels/combine_topk_swa_indices/combine_topk_swa_indices.h"
#ifdef ST_TEST_GPU
#include "kernels/testing_arena.h"
#endif

typedef struct steptape_combine_topk_swa_indices_args combine_args;

#ifndef ST_TEST_GPU

enum { POISON = -77 };

/*
 * Two requests of a chunk that begins at query 100.  Request 0: positions 6, 7 of 8; request 1 has
 * no token; request 2: positions 0 and 1 of 2.  Ratio 4, window 3, 5 columns of top-k.
 */
static const int32_t starts[] = {100, 102, 102, 104};
static const int32_t seq_lens[] = {8, 90, 2};
static const int32_t gather_lens[] = {4, 2, 2}; /* 2 of query, 2 before it; ...; no prefix */
static const int32_t topk[] = {7, 5, 3, 1, 0, 6, 4, -1, 1, 0, 9, 9, 9, 9, 9, 9, 9, 9, 9, 9};

static combine_args hand_args(int32_t *indices, int32_t *lens) {
    combine_args args = {.indices = indices,
                         .lens = lens,
                         .topk_indices = topk,
                         .query_start_loc = starts,
                         .seq_lens = seq_lens,
                         .gather_lens = gather_lens,
                         .indices_stride = 256,
                         .topk_stride = 5,
                         .num_tokens = 4,
                         .num_reqs = 3,
                         .topk = 5,
                         .ratio = 4,
                         .window = 3,
                         .m = 1000,
                         .n = 10,
                         .width = 256};
    for (int i = 0; i < 4 * 256; i++)
        indices[i] = POISON;
    for (int i = 0; i < 4; i++)
        lens[i] = POISON;
    return args;
}

static void by_hand(void **state) {
    (void)state;
    int32_t indices[4 * 256], lens[4];
    combine_args args = hand_args(indices, lens);
    assert_int_equal(steptape_combine_topk_swa_indices_ref(&args), 0);
    /* workspace row of position p of request 0: n + p - (8 - 4); of request 2: 2000 + n + p */
    const int32_t first[] = {7, 10, 11, 12, POISON};     /* (6 + 1) / 4 = 1 column; 4, 5, 6 */
    const int32_t second[] = {6, 4, 11, 12, 13, POISON}; /* 2 columns; 5, 6, 7 */
    const int32_t third[] = {2010, POISON};              /* position 0 */
    const int32_t fourth[] = {2010, 2011, POISON};       /* positions 0, 1 */
    const int32_t want_lens[] = {4, 5, 1, 2};
    assert_memory_equal(indices, first, sizeof(first));
    assert_memory_equal(indices + 256, second, sizeof(second));
    assert_memory_equal(indices + 512, third, sizeof(third));
    assert_memory_equal(indices + 768, fourth, sizeof(fourth));
    assert_memory_equal(lens, want_lens, sizeof(want_lens));
}

static void tails(void **state) {
    (void)state;
    int32_t indices[4 * 256], lens[4];
    const int ends[] = {0, 128, 256};
    for (int tail = 0; tail < 3; tail++) {
        combine_args args = hand_args(indices, lens);
        args.tail = tail;
        assert_int_equal(steptape_combine_topk_swa_indices_ref(&args), 0);
        for (int t = 0; t < 4; t++)
            for (int c = lens[t]; c < 256; c++)
                assert_int_equal(indices[t * 256 + c], c < ends[tail] ? -1 : POISON);
    }
}

static void edges(void **state) {
    (void)state;
    int32_t indices[4 * 256], lens[4];
    /* an entry of -1 that is copied moves with the request; a token of no request is left alone */
    combine_args args = hand_args(indices, lens);
    const int32_t minus[] = {-1, 0, 0, 0, 0};
    args.topk_indices = minus;
    args.query_start_loc = starts;
    args.num_reqs = 1;
    args.num_tokens = 1;
    assert_int_equal(steptape_combine_topk_swa_indices_ref(&args), 0);
    assert_int_equal(indices[0], -1);
    args = hand_args(indices, lens);
    args.num_reqs = 2;
    assert_int_equal(steptape_combine_topk_swa_indices_ref(&args), 0);
    assert_int_equal(lens[1], 5);
    assert_int_equal(lens[2], POISON);
    assert_int_equal(indices[512], POISON);
    /* no top-k: a layer with the window alone */
    args = hand_args(indices, lens);
    args.topk = 0;
    args.topk_stride = 0;
    args.topk_indices = NULL;
    args.width = 128;
    assert_int_equal(steptape_combine_topk_swa_indices_ref(&args), 0);
    assert_int_equal(lens[1], 3);
    assert_int_equal(indices[256], 11);
    /* no window: a layer with the best entries alone */
    args = hand_args(indices, lens);
    args.window = 0;
    args.tail = STEPTAPE_COMBINE_TAIL_128;
    assert_int_equal(steptape_combine_topk_swa_indices_ref(&args), 0);
    const int32_t best[] = {6, 4, -1, -1};
    assert_int_equal(lens[1], 2);
    assert_memory_equal(indices + 256, best, sizeof(best));
    assert_int_equal(lens[2], 0);
    assert_int_equal(indices[512], POISON); /* a multiple of 128 already */
}

static void bad_arguments(void **state) {
    (void)state;
    int32_t indices[4 * 256], lens[4];
    combine_args args = hand_args(indices, lens);
    args.width = 250;
    assert_int_equal(st_combine_topk_swa_indices_check(&args), STEPTAPE_ERR_ARGUMENT);
    args.width = 128;
    args.window = 124;
    assert_int_equal(st_combine_topk_swa_indices_check(&args), STEPTAPE_ERR_ARGUMENT);
    args.window = 123;
    assert_int_equal(st_combine_topk_swa_indices_check(&args), 1);
    args.window = -1;
    assert_int_equal(st_combine_topk_swa_indices_check(&args), STEPTAPE_ERR_ARGUMENT);
    args.window = 0;
    assert_int_equal(st_combine_topk_swa_indices_check(&args), 1);
    args.tail = 3;
    assert_int_equal(st_combine_topk_swa_indices_check(&args), STEPTAPE_ERR_ARGUMENT);
    args.tail = 0;
    args.topk_indices = NULL;
    assert_int_equal(steptape_combine_topk_swa_indices(&args, NULL), STEPTAPE_ERR_ARGUMENT);
    args.num_tokens = 0;
    assert_int_equal(steptape_combine_topk_swa_indices(&args, NULL), 0);
}

static void cost(void **state) {
    (void)state;
    combine_args args = {.indices_stride = 8320,
                         .topk_stride = 8192,
                         .num_tokens = 100,
                         .num_reqs = 4,
                         .topk = 8192,
                         .ratio = 128,
                         .window = 128,
                         .width = 8320};
    struct steptape_token_counts counts = {100, 0, 0, 100 * (128 + 40)};
    struct steptape_cost c;
    assert_int_equal(steptape_combine_topk_swa_indices_cost(&args, &counts, &c), 0);
    assert_int_equal(c.read_bytes, 4 * (13 + 100 * 40));
    assert_int_equal(c.written_bytes, 4 * (100 * 168 + 100));
    args.tail = STEPTAPE_COMBINE_TAIL_128;
    assert_int_equal(steptape_combine_topk_swa_indices_cost(&args, &counts, &c), 0);
    assert_int_equal(c.written_bytes, 4 * (100 * 256 + 100));
    args.tail = STEPTAPE_COMBINE_TAIL_WIDTH;
    assert_int_equal(steptape_combine_topk_swa_indices_cost(&args, &counts, &c), 0);
    assert_int_equal(c.written_bytes, 4 * (100 * 8320 + 100));
    assert_int_equal(c.launch_count, 1);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(by_hand),       cmocka_unit_test(tails), cmocka_unit_test(edges),
        cmocka_unit_test(bad_arguments), cmocka_unit_test(cost),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

#else /* ST_TEST_GPU */

/* Variants that move 16 bytes at a time need rows that begin at multiples of 16. */
static int is_served(const void *args, unsigned int variant) {
    return variant < 2 || st_combine_topk_swa_indices_check(args) == 0 ||
           st_combine_topk_swa_indices_is_fast(args);
}

static const struct st_test_operator op = {
    "combine_topk_swa_indices",
    sizeof(combine_args),
    offsetof(combine_args, variant),
    {offsetof(combine_args, indices) + 1, offsetof(combine_args, lens) + 1,
     offsetof(combine_args, topk_indices) + 1, offsetof(combine_args, query_start_loc) + 1,
     offsetof(combine_args, seq_lens) + 1, offsetof(combine_args, gather_lens) + 1},
    is_served};

static int64_t below(uint64_t *seed, int64_t limit) {
    return (int64_t)(st_test_random((*seed)++) % (uint64_t)limit);
}

static int run_case(struct st_test_arena *arena, uint64_t i, int64_t query_max) {
    uint64_t seed = i << 32;
    char what[32];
    const int32_t ratios[] = {4, 1, 128, 1, 6}, windows[] = {128, 0, 128, 64, 5};
    const int32_t topks[] = {0, 512, 1024, 128, 256, 37, 2, 2048, 8192};
    const int64_t pads[] = {0, 0, 0, 4, 3};
    combine_args args = {.num_reqs = i % 50 == 0 ? 0 : 1 + (int32_t)below(&seed, i % 9 ? 4 : 90),
                         .topk = topks[below(&seed, 9)],
                         .ratio = ratios[below(&seed, 5)],
                         .window = windows[below(&seed, 5)],
                         .m = (int32_t)below(&seed, i % 20 == 3 ? INT32_MAX : 300000),
                         .n = (int32_t)below(&seed, i % 3 ? 200000 : 300),
                         .tail = (int32_t)below(&seed, 3)};
    if ((args.num_reqs > 4 || query_max > 100) && args.topk > 1024)
        args.topk = 1024;
    args.width = (args.topk + args.window + 127) / 128 * 128 + 128 * (int32_t)below(&seed, 2);
    args.indices_stride = args.width + pads[below(&seed, 5)];
    args.topk_stride = args.topk + pads[below(&seed, 5)];
    const size_t r = (size_t)args.num_reqs;
    st_test_arena_reset(arena);
    int32_t *starts = st_test_arena_take(arena, 4 * r + 4, 0);
    int32_t *seq_lens = st_test_arena_take(arena, 4 * r, 0);
    int32_t *gather_lens = st_test_arena_take(arena, 4 * r, 0);
    starts[0] = (int32_t)below(&seed, 1000);
    for (size_t b = 0; b < r; b++) {
        const int32_t query = (int32_t)below(&seed, query_max);
        const int64_t prefix = below(&seed, 3) == 0 ? 0 : below(&seed, i % 4 ? 5000 : 1048576);
        starts[b + 1] = starts[b] + query;
        seq_lens[b] = query + (int32_t)prefix;
        gather_lens[b] = query + (int32_t)(prefix < args.window - 1 ? prefix : args.window - 1);
    }
    args.num_tokens = starts[r] - starts[0] + (i % 11 == 0 ? 3 : 0);
    const size_t n = (size_t)args.num_tokens;
    int32_t *topk = st_test_arena_take(arena, 4 * n * (size_t)args.topk_stride, i % 7 == 5 ? 4 : 0);
    for (size_t c = 0; c < n * (size_t)args.topk_stride; c++)
        topk[c] = (int32_t)below(&seed, 100000) - 1;
    args.indices =
        st_test_arena_take(arena, 4 * n * (size_t)args.indices_stride, i % 7 == 6 ? 4 : 0);
    args.lens = st_test_arena_take(arena, 4 * n, 4);
    args.topk_indices = args.topk > 0 ? topk : NULL;
    args.query_start_loc = starts;
    args.seq_lens = seq_lens;
    args.gather_lens = gather_lens;
    snprintf(what, sizeof(what), "case %llu", (unsigned long long)i);
    return st_test_arena_check(arena, &op, &args, what);
}

static int small_case(struct st_test_arena *arena, uint64_t i) {
    return run_case(arena, i, 12);
}

static int large_cases(struct st_test_arena *arena) {
    return run_case(arena, 2003, 4000) + run_case(arena, 2004, 4000);
}

int main(int argc, char **argv) {
    const struct st_test_cases cases = {128 << 20, small_case, large_cases};
    return st_test_arena_main(argc, argv, &cases);
}

#endif
