/* SPDX-License-Identifier: Apache-2.0 */
/*
 * gather_lens: the reference, its cost; with ST_TEST_GPU every variant against the reference.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "kernels/gather_lens/gather_lens.h"
#ifdef ST_TEST_GPU
#include "kernels/testing_arena.h"
#endif

typedef struct steptape_gather_lens_args lens_args;

#ifndef ST_TEST_GPU

static void by_hand(void **state) {
    (void)state;
    /* no prefix; a prefix of 100; one of 127 and of 128 (window 128); no query */
    const int32_t starts[] = {7, 17, 27, 37, 47, 47};
    const int32_t lens[] = {10, 110, 137, 138, 4000};
    const int32_t want[] = {10, 110, 137, 137, 127};
    int32_t out[5];
    lens_args args = {
        .out = out, .query_start_loc = starts, .seq_lens = lens, .num_reqs = 5, .window = 128};
    assert_int_equal(steptape_gather_lens_ref(&args), 0);
    assert_memory_equal(out, want, sizeof(want));
}

static void cost(void **state) {
    (void)state;
    const struct steptape_token_counts counts = {0, 0, 0, 0};
    struct steptape_cost c;
    lens_args args = {.num_reqs = 5, .window = 128};
    assert_int_equal(steptape_gather_lens_cost(&args, &counts, &c), 0);
    assert_int_equal(c.read_bytes, 4 * 11);
    assert_int_equal(c.written_bytes, 4 * 5);
    assert_int_equal(c.launch_count, 1);
    assert_int_equal(c.grid[0], 1);
    assert_int_equal(steptape_gather_lens(&args, NULL), STEPTAPE_ERR_ARGUMENT);
    args.num_reqs = 0;
    assert_int_equal(steptape_gather_lens(&args, NULL), 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(by_hand),
        cmocka_unit_test(cost),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

#else /* ST_TEST_GPU */

static const struct st_test_operator op = {"gather_lens",
                                           sizeof(lens_args),
                                           offsetof(lens_args, variant),
                                           {offsetof(lens_args, out) + 1,
                                            offsetof(lens_args, query_start_loc) + 1,
                                            offsetof(lens_args, seq_lens) + 1},
                                           NULL};

static int64_t below(uint64_t *seed, int64_t limit) {
    return (int64_t)(st_test_random((*seed)++) % (uint64_t)limit);
}

static int run_case(struct st_test_arena *arena, uint64_t i, int64_t reqs_max) {
    uint64_t seed = i << 32;
    char what[32];
    lens_args args = {.num_reqs = (int32_t)below(&seed, reqs_max + 1),
                      .window = i % 3 == 0 ? 1 + (int32_t)below(&seed, 300) : 128};
    const size_t n = (size_t)args.num_reqs;
    st_test_arena_reset(arena);
    int32_t *starts = st_test_arena_take(arena, 4 * n + 4, 0);
    int32_t *lens = st_test_arena_take(arena, 4 * n, 0);
    args.out = st_test_arena_take(arena, 4 * n, 4);
    starts[0] = (int32_t)below(&seed, 100);
    for (size_t r = 0; r < n; r++) {
        starts[r + 1] = starts[r] + (int32_t)below(&seed, 300);
        lens[r] = (int32_t)below(&seed, 1048576);
    }
    args.query_start_loc = starts;
    args.seq_lens = lens;
    snprintf(what, sizeof(what), "case %llu", (unsigned long long)i);
    return st_test_arena_check(arena, &op, &args, what);
}

static int small_case(struct st_test_arena *arena, uint64_t i) {
    return run_case(arena, i, 600);
}

int main(int argc, char **argv) {
    const struct st_test_cases cases = {1 << 20, small_case, NULL};
    return st_test_arena_main(argc, argv, &cases);
}

#endif
