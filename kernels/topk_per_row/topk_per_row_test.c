/* SPDX-License-Identifier: Apache-2.0 */
/*
 * topk_per_row: the reference on cases worked out by hand and against a slow selection, its cost;
 * with ST_TEST_GPU every variant against the reference (an argument: so many small cases, no large
 * ones).
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "kernels/device.h"
#include "kernels/topk_per_row/topk_per_row.h"
#include "kernels/testing.h"
#ifdef ST_TEST_GPU
#include "kernels/testing_arena.h"
#endif

typedef struct steptape_topk_per_row_args topk_args;

static int64_t below(uint64_t *seed, int64_t limit) {
    return (int64_t)(st_test_random((*seed)++) % (uint64_t)limit);
}

/* How a row's values lie; each hurts another way to select. */
enum values {
    VALUES_NORMAL, /* nearly: sums of uniform numbers */
    VALUES_UNIFORM,
    VALUES_FEW, /* a handful of values, ties everywhere */
    VALUES_EQUAL,
    VALUES_RISING,
    VALUES_FALLING,
    VALUES_WIDE,   /* every bit pattern: NaN, infinities, denormals */
    VALUES_NARROW, /* neighbours of one number */
    VALUES_SPECIAL,
    VALUES_NAN, /* NaN but for a few */
    VALUES_SPIKE,
    VALUES_NEGATIVE,
    VALUES_COUNT
};

static float from_bits(uint32_t bits) {
    float value;
    memcpy(&value, &bits, sizeof(value));
    return value;
}

static float make_value(enum values kind, uint64_t *seed, int64_t i) {
    static const float few[] = {1.0f, -1.0f, 0.0f, -0.0f, 2.5f};
    const uint64_t r = st_test_random((*seed)++);
    const float u = (float)(r >> 40) / 8388608.0f - 1.0f;
    switch (kind) {
    case VALUES_UNIFORM:
        return u * 8.0f;
    case VALUES_FEW:
        return few[r % 5];
    case VALUES_EQUAL:
        return 0.75f;
    case VALUES_RISING:
        return (float)i * 0.125f - 40.0f;
    case VALUES_FALLING:
        return 40.0f - (float)i * 0.125f;
    case VALUES_WIDE:
        return from_bits((uint32_t)r);
    case VALUES_NARROW:
        return from_bits(UINT32_C(0x40490fdb) + (uint32_t)(r % 3000));
    case VALUES_SPECIAL:
        return r % 7 == 0   ? INFINITY
               : r % 7 == 1 ? -INFINITY
               : r % 7 == 2 ? from_bits(UINT32_C(0xffc00001))
               : r % 7 == 3 ? from_bits(UINT32_C(0x7f800001))
               : r % 7 == 4 ? -0.0f
               : r % 7 == 5 ? 0.0f
                            : u;
    case VALUES_NAN:
        return r % 50 == 0 ? u : NAN;
    case VALUES_SPIKE:
        return r % 200 == 0 ? u * 1e30f : u * 1e-30f;
    case VALUES_NEGATIVE:
        return -1000.0f + u;
    default:
        return u + (float)(r << 24 >> 40) / 8388608.0f + (float)(r & 0xffffff) / 8388608.0f - 2.0f;
    }
}

#ifndef ST_TEST_GPU

/* Whether a is to be taken before b, as the contract words it. */
static int is_better(const float *values, int a, int b) {
    const float x = values[a], y = values[b];
    if (isnan(x) || isnan(y))
        return isnan(x) && isnan(y) ? a < b : isnan(y);
    return x > y || (x == y && a < b);
}

static void by_hand(void **state) {
    (void)state;
    const float logits[] = {
        1,   5,     NAN, 5,         -INFINITY, INFINITY, 3,   9, /* row 0: columns 1 .. 7 */
        0,   -0.0f, 0,   -1,        2,         NAN,      NAN, 7, /* row 1: columns 0 .. 4 */
        NAN, NAN,   NAN, -INFINITY, 1,         1,        1,   1};
    const int32_t starts[] = {1, 0, 0}, ends[] = {7, 4, 4};
    int32_t out[3 * 4];
    topk_args args = {.logits = logits,
                      .out = out,
                      .row_starts = starts,
                      .row_ends = ends,
                      .logits_stride = 8,
                      .out_stride = 4,
                      .num_rows = 3,
                      .num_columns = 8,
                      .k = 3};
    for (int i = 0; i < 12; i++)
        out[i] = 77;
    assert_int_equal(steptape_topk_per_row_ref(&args), 0);
    /* 5 at 1 and 3, inf at 5; zeros of both signs; -inf before NaN, the lower NaN */
    const int32_t expected[] = {0, 2, 4, 77, 0, 1, 2, 77, 0, 1, 3, 77};
    assert_memory_equal(out, expected, sizeof(expected));
    args.flags = STEPTAPE_TOPK_LIBRARY | STEPTAPE_TOPK_ABSOLUTE;
    assert_int_equal(steptape_topk_per_row_ref_rows(&args, (const int64_t[]){0}, 1), 0);
    const int32_t absolute[] = {1, 3, 5, 77, 0, 1, 2, 77};
    assert_memory_equal(out, absolute, sizeof(absolute));
    args.flags = 0;
    args.k = 4; /* all of row 1 */
    assert_int_equal(steptape_topk_per_row_ref_rows(&args, (const int64_t[]){1}, 1), 0);
    const int32_t whole[] = {0, 1, 2, 3};
    assert_memory_equal(out + 4, whole, sizeof(whole));
}

static void short_and_odd_ranges(void **state) {
    (void)state;
    const float logits[4 * 4] = {0};
    const int32_t starts[] = {3, -5, 2, 9}, ends[] = {1, 2, 100, 100};
    int32_t out[4 * 3];
    topk_args args = {.logits = logits,
                      .out = out,
                      .row_starts = starts,
                      .row_ends = ends,
                      .logits_stride = 4,
                      .out_stride = 3,
                      .num_rows = 4,
                      .num_columns = 4,
                      .k = 3};
    assert_int_equal(steptape_topk_per_row_ref(&args), 0);
    const int32_t expected[] = {-1, -1, -1, 0, 1, -1, 0, 1, -1, -1, -1, -1};
    assert_memory_equal(out, expected, sizeof(expected));
}

static void decode_lengths(void **state) {
    (void)state;
    const float logits[6 * 9] = {0};
    const int32_t lens[] = {5, 1, 2, INT32_MIN, 100, 0};
    int32_t out[6 * 9];
    topk_args args = {.logits = logits,
                      .out = out,
                      .seq_lens = lens,
                      .logits_stride = 9,
                      .out_stride = 9,
                      .num_rows = 6,
                      .num_columns = 9,
                      .k = 9,
                      .next_n = 2};
    const int expected[2][6] = {{4, 5, 0, 1, 1, 2}, {5, 1, 2, 0, 9, 0}};
    for (args.seq_lens_2d = 0; args.seq_lens_2d < 2; args.seq_lens_2d++) {
        assert_int_equal(steptape_topk_per_row_ref(&args), 0);
        for (int r = 0; r < 6; r++)
            for (int c = 0; c < 9; c++)
                assert_int_equal(out[r * 9 + c], c < expected[args.seq_lens_2d][r] ? c : -1);
    }
}

/* The k best by taking the best again and again. */
static void against_selection(void **state) {
    (void)state;
    float values[120];
    int32_t out[64];
    const int32_t end = 120;
    uint64_t seed = 5;
    for (int i = 0; i < 20 * VALUES_COUNT; i++) {
        topk_args args = {.logits = values,
                          .out = out,
                          .row_ends = &end,
                          .logits_stride = 120,
                          .out_stride = 64,
                          .num_rows = 1,
                          .num_columns = 120,
                          .k = 1 + (int32_t)below(&seed, 64)};
        char taken[120] = {0};
        for (int c = 0; c < 120; c++)
            values[c] = make_value((enum values)(i % VALUES_COUNT), &seed, c);
        for (int n = 0; n < args.k; n++) {
            int best = -1;
            for (int c = 0; c < 120; c++)
                if (!taken[c] && (best < 0 || is_better(values, c, best)))
                    best = c;
            taken[best] = 1;
        }
        assert_int_equal(steptape_topk_per_row_ref(&args), 0);
        for (int c = 0, at = 0; c < 120; c++)
            if (taken[c])
                assert_int_equal(out[at++], c);
    }
}

static void bad_arguments(void **state) {
    (void)state;
    float logits[4] = {0};
    int32_t out[4], end = 4;
    const topk_args good = {.logits = logits,
                            .out = out,
                            .row_ends = &end,
                            .logits_stride = 4,
                            .out_stride = 2,
                            .num_rows = 1,
                            .num_columns = 4,
                            .k = 2};
    topk_args args = good;
    assert_int_equal(st_topk_per_row_ready(&args), 1);
    args.k = 3;
    assert_int_equal(steptape_topk_per_row(&args, NULL), STEPTAPE_ERR_ARGUMENT);
    args.k = 0;
    assert_int_equal(steptape_topk_per_row(&args, NULL), STEPTAPE_ERR_ARGUMENT);
    args = good;
    args.logits_stride = 3;
    assert_int_equal(steptape_topk_per_row(&args, NULL), STEPTAPE_ERR_ARGUMENT);
    args = good;
    args.seq_lens = &end; /* prefill or decode, not both */
    args.next_n = 1;
    assert_int_equal(steptape_topk_per_row(&args, NULL), STEPTAPE_ERR_ARGUMENT);
    args.row_ends = NULL;
    assert_int_equal(st_topk_per_row_ready(&args), 1);
    args.next_n = 0;
    assert_int_equal(steptape_topk_per_row(&args, NULL), STEPTAPE_ERR_ARGUMENT);
    args = good;
    args.flags = STEPTAPE_TOPK_ABSOLUTE;
    assert_int_equal(steptape_topk_per_row(&args, NULL), STEPTAPE_ERR_ARGUMENT);
    args.flags = STEPTAPE_TOPK_LIBRARY; /* no scratch */
    assert_int_equal(steptape_topk_per_row(&args, NULL), STEPTAPE_ERR_ARGUMENT);
    args.variant = ST_TOPK_PLAIN;
    assert_int_equal(steptape_topk_per_row(&args, NULL), STEPTAPE_ERR_UNSUPPORTED);
    args = good;
    args.num_rows = 0;
    args.out = NULL;
    assert_int_equal(steptape_topk_per_row(&args, NULL), 0);
}

static void cost(void **state) {
    (void)state;
    topk_args args = {.logits_stride = 32768,
                      .out_stride = 2048,
                      .num_rows = 64,
                      .num_columns = 32768,
                      .k = 2048};
    struct steptape_token_counts counts = {64, 0, 0, 1000000};
    struct steptape_cost c;
    assert_int_equal(steptape_topk_per_row_cost(&args, &counts, &c), 0);
    assert_int_equal(c.read_bytes, 4 * 64 + 4 * 1000000);
    assert_int_equal(c.written_bytes, 4 * 64 * 2048);
    assert_int_equal(c.launch_count, 1);
    assert_int_equal(c.scratch_bytes, steptape_topk_per_row_scratch_bytes(&args));
    counts.entries = 64 * 32768 + 1;
    assert_int_equal(steptape_topk_per_row_cost(&args, &counts, &c), STEPTAPE_ERR_ARGUMENT);
}

static void cost_of_the_library(void **state) {
    (void)state;
    topk_args args = {.logits_stride = 32768,
                      .out_stride = 2048,
                      .num_rows = 64,
                      .num_columns = 32768,
                      .k = 2048,
                      .flags = STEPTAPE_TOPK_LIBRARY};
    struct steptape_token_counts counts = {64, 0, 0, 64 * 32768};
    struct steptape_cost c;
    assert_int_equal(steptape_topk_per_row_cost(&args, &counts, &c), 0);
    assert_int_equal(c.launch_count, 9);
    assert_int_equal(c.grid[0], 64);
    assert_int_equal(c.block[0], 512);
    assert_int_equal(c.block_count, 64 * (32 + 6 + 2));
    assert_int_equal(c.scratch_bytes, 16 * 64 * 32768 + 4096);
    assert_int_equal(c.scratch_bytes, steptape_topk_per_row_scratch_bytes(&args));
    /* 4,096 rows are one chunk, 8,200 are three: 4,096, 4,096 and 8 */
    args.num_rows = 8200;
    assert_int_equal(steptape_topk_per_row_cost(&args, &counts, &c), 0);
    assert_int_equal(c.launch_count, 27);
    assert_int_equal(c.grid[0], 8);
    assert_int_equal(c.scratch_bytes, (UINT64_C(16) << 27) + 4096);
    args.num_columns = 0;
    counts.entries = 0;
    assert_int_equal(steptape_topk_per_row_cost(&args, &counts, &c), 0);
    assert_int_equal(c.launch_count, 1);
    assert_int_equal(c.grid[0], 8200);
    assert_int_equal(c.scratch_bytes, 0);
}

/* On an H200, which is also what is planned for without a GPU. */
static void what_is_launched(void **state) {
    (void)state;
    static const struct {
        int64_t rows;
        int32_t columns;
        unsigned int variant;
        uint32_t grid, threads;
    } cases[] = {
        {1, 4096, 3, 1, 512},       {264, 8192, 3, 264, 512},    {265, 8192, 4, 265, 256},
        {132, 16384, 3, 132, 1024}, {4096, 16384, 4, 4096, 512}, {256, 32768, 3, 256, 1024},
        {4096, 32768, 6, 132, 512}, {64, 131072, 5, 128, 1024},  {1, 1048576, 5, 8, 1024},
        {67, 131072, 3, 67, 1024},
    };
    const struct st_device_facts device = st_device_facts();
    if (device.multiprocessors != 132 || device.generation != 90)
        skip();
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        const topk_args args = {.num_rows = cases[i].rows,
                                .num_columns = cases[i].columns,
                                .logits_stride = cases[i].columns,
                                .out_stride = 2048,
                                .k = 2048};
        const struct steptape_token_counts counts = {0, 0, 0, 0};
        struct steptape_cost c;
        struct st_topk_plan plan;
        assert_int_equal(st_topk_plan(&args, &plan), 0);
        assert_int_equal(plan.variant, cases[i].variant);
        assert_int_equal(plan.grid % plan.cluster, 0);
        assert_int_equal(steptape_topk_per_row_cost(&args, &counts, &c), 0);
        assert_int_equal(c.launch_count, 1);
        assert_int_equal(c.grid[0], cases[i].grid);
        assert_int_equal(c.block[0], cases[i].threads);
        assert_int_equal(c.smem_bytes, plan.smem_bytes);
    }
    /* rows that a variant does not hold */
    topk_args args = {.num_rows = 4,
                      .num_columns = 16385,
                      .logits_stride = 16385,
                      .out_stride = 1,
                      .k = 1,
                      .variant = ST_TOPK_SMALL};
    assert_int_equal(st_topk_per_row_check(&args), STEPTAPE_ERR_UNSUPPORTED);
    args.variant = ST_TOPK_STAY;
    assert_int_equal(st_topk_per_row_check(&args), 1);
    args.num_columns = 32769;
    args.logits_stride = 32769;
    assert_int_equal(st_topk_per_row_check(&args), STEPTAPE_ERR_UNSUPPORTED);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(by_hand),
        cmocka_unit_test(short_and_odd_ranges),
        cmocka_unit_test(decode_lengths),
        cmocka_unit_test(against_selection),
        cmocka_unit_test(bad_arguments),
        cmocka_unit_test(cost),
        cmocka_unit_test(cost_of_the_library),
        cmocka_unit_test(what_is_launched),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

#else /* ST_TEST_GPU */

enum { SCRATCH_BYTES = 128 << 20, CASES = 2000 };
static int64_t case_count;

static int is_served(const void *args, unsigned int variant) {
    topk_args a = *(const topk_args *)args;
    if ((a.flags & STEPTAPE_TOPK_LIBRARY) != 0)
        return variant <= ST_TOPK_LIBRARY;
    a.variant = variant;
    return st_topk_per_row_check(&a) != STEPTAPE_ERR_UNSUPPORTED;
}

static const struct st_test_operator op = {
    "topk_per_row",
    sizeof(topk_args),
    offsetof(topk_args, variant),
    {offsetof(topk_args, logits) + 1, offsetof(topk_args, out) + 1,
     offsetof(topk_args, row_starts) + 1, offsetof(topk_args, row_ends) + 1,
     offsetof(topk_args, seq_lens) + 1},
    is_served};

struct shape {
    int64_t rows;
    int32_t columns, k;
    int kind; /* enum values, or VALUES_COUNT: another one each row */
    int ragged;
};

static void fill_rows(const topk_args *args, float *logits, const struct shape *shape,
                      uint64_t *seed) {
    for (int64_t r = 0; r < args->num_rows; r++) {
        const int kind = shape->kind < VALUES_COUNT ? shape->kind : (int)below(seed, VALUES_COUNT);
        for (int64_t c = 0; c < args->logits_stride; c++)
            logits[r * args->logits_stride + c] = make_value((enum values)kind, seed, c);
    }
}

/* Where rows begin and end: prefill with or without starts, or decode in one of its two ways. */
static void fill_ranges(struct st_test_arena *arena, topk_args *args, int ragged, uint64_t *seed) {
    const size_t n = (size_t)args->num_rows;
    const int64_t columns = args->num_columns;
    const int way = (int)below(seed, 4);
    if (way < 2) {
        int32_t *starts = st_test_arena_take(arena, 4 * n, 4);
        int32_t *ends = st_test_arena_take(arena, 4 * n, 0);
        for (size_t r = 0; r < n; r++) {
            starts[r] = !ragged || way == 0 ? 0 : (int32_t)below(seed, columns / 2 + 3) - 2;
            ends[r] = (int32_t)(ragged ? below(seed, columns + 20) - 5 : columns);
        }
        args->row_starts = way == 0 ? NULL : starts;
        args->row_ends = ends;
        return;
    }
    int32_t *lens = st_test_arena_take(arena, 4 * n, 0);
    args->next_n = 1 + (int32_t)below(seed, 3);
    args->seq_lens_2d = way == 3;
    for (size_t r = 0; r < n; r++)
        lens[r] = (int32_t)(ragged ? below(seed, columns + 20) - 5 : columns + 2);
    args->seq_lens = lens;
}

static int run_case(struct st_test_arena *arena, void *scratch, uint64_t i,
                    const struct shape *shape) {
    uint64_t seed = i << 32;
    char what[96];
    topk_args args = {.num_rows = shape->rows,
                      .num_columns = shape->columns,
                      .k = shape->k,
                      .scratch = scratch,
                      .scratch_bytes = SCRATCH_BYTES,
                      .flags = i % 5 == 3   ? STEPTAPE_TOPK_LIBRARY
                               : i % 5 == 4 ? STEPTAPE_TOPK_LIBRARY | STEPTAPE_TOPK_ABSOLUTE
                                            : 0};
    args.logits_stride = args.num_columns + below(&seed, 2) * below(&seed, 5);
    args.out_stride = args.k + below(&seed, 2) * below(&seed, 5);
    st_test_arena_reset(arena);
    float *logits = st_test_arena_take(arena, 4 * (size_t)(args.num_rows * args.logits_stride),
                                       4 * (size_t)below(&seed, 4));
    args.out = st_test_arena_take(arena, 4 * (size_t)(args.num_rows * args.out_stride),
                                  4 * (size_t)below(&seed, 2));
    args.logits = logits;
    fill_rows(&args, logits, shape, &seed);
    fill_ranges(arena, &args, shape->ragged, &seed);
    snprintf(what, sizeof(what), "case %llu, %lld x %d, k %d, kind %d", (unsigned long long)i,
             (long long)shape->rows, shape->columns, shape->k, shape->kind);
    return st_test_arena_check(arena, &op, &args, what);
}

static void small_cases(struct st_test_arena *arena, void *scratch, int *failures) {
    static const int32_t ks[] = {1, 2, 31, 32, 33, 100, 512, 513, 1024, 2048, 3000};
    static const int32_t columns[] = {1, 40, 600, 1500, 4096, 5000, 9000};
    for (uint64_t i = 0; i < (uint64_t)case_count && *failures < 10; i++) {
        uint64_t seed = (i + 7) << 40;
        const struct shape shape = {i % 50 == 0 ? 0 : 1 + below(&seed, 6),
                                    (int32_t)below(&seed, columns[below(&seed, 7)]) + (i % 10 != 0),
                                    ks[below(&seed, 11)], (int)(i % (VALUES_COUNT + 1)),
                                    below(&seed, 4) != 0};
        *failures += run_case(arena, scratch, i, &shape);
    }
}

static void large_cases(struct st_test_arena *arena, void *scratch, int *failures) {
    const struct shape shapes[] = {
        {8192, 600, 512, VALUES_COUNT, 1},    {300, 8192, 2048, VALUES_NORMAL, 0},
        {40, 32768, 2048, VALUES_NORMAL, 0},  {3, 131072, 1024, VALUES_NORMAL, 0},
        {1, 1048576, 2048, VALUES_NORMAL, 0}, {2, 1048576, 512, VALUES_WIDE, 0},
        {2, 300000, 100000, VALUES_COUNT, 1}, {1, 262144, 20000, VALUES_UNIFORM, 0},
        {20, 150000, 2048, VALUES_COUNT, 1},
    };
    for (size_t i = 0; i < sizeof(shapes) / sizeof(shapes[0]) && *failures < 10; i++)
        *failures += run_case(arena, scratch, 5000 + 5 * i, &shapes[i]);
    /* every kind of values in rows of every way to hold them */
    for (int kind = 0; kind < VALUES_COUNT && *failures < 10; kind++) {
        const int32_t lengths[] = {2500, 7000, 16000, 32768, 50000, 140001};
        for (size_t l = 0; l < sizeof(lengths) / sizeof(lengths[0]); l++) {
            const struct shape shape = {2, lengths[l], 2048, kind, 0};
            *failures += run_case(arena, scratch, 6000 + 5 * (10 * (uint64_t)kind + l), &shape);
        }
    }
}

static void cases(void **state) {
    (void)state;
    struct st_test_arena arena;
    int failures = 0;
    void *scratch = st_test_device(NULL, SCRATCH_BYTES);
    assert_non_null(scratch);
    assert_int_equal(st_test_arena_init(&arena, 64 << 20), 0);
    small_cases(&arena, scratch, &failures);
    if (case_count == CASES)
        large_cases(&arena, scratch, &failures);
    printf("%llu calls compared, %llu refused\n", (unsigned long long)arena.checked_count,
           (unsigned long long)arena.refused_count);
    assert_int_equal(failures, 0);
    assert_true(arena.checked_count > 2 * (uint64_t)case_count);
    st_test_arena_fini(&arena);
    st_test_device_free(scratch);
}

/* A plan counts on launches being a function of args: the nodes that a capture holds. */
static void launches_are_as_planned(void **state) {
    (void)state;
    const struct st_kernel *kernel = st_kernel_find("topk_per_row");
    const int32_t columns[] = {0, 100, 5000, 40000, 300000};
    int32_t *ends = st_test_device(NULL, 4 * 100);
    float *logits = st_test_device(NULL, 4 * 300000);
    int32_t *out = st_test_device(NULL, 4 * 100 * 2048);
    void *scratch = st_test_device(NULL, SCRATCH_BYTES);
    assert_true(ends != NULL && logits != NULL && out != NULL && scratch != NULL);
    for (unsigned int v = 0; v <= kernel->variant_count; v++) {
        for (size_t i = 0; i < sizeof(columns) / sizeof(columns[0]); i++) {
            topk_args args = {.logits = logits,
                              .out = out,
                              .row_ends = ends,
                              .scratch = scratch,
                              .scratch_bytes = SCRATCH_BYTES,
                              .logits_stride = columns[i],
                              .out_stride = 2048,
                              .num_rows = 1 + (int64_t)i * 5,
                              .num_columns = columns[i],
                              .k = 2048,
                              .variant = v};
            const struct steptape_token_counts counts = {0, 0, 0, 0};
            struct steptape_cost cost;
            const int rc = kernel->cost(&args, &counts, &cost);
            const int launches = st_test_device_launches(kernel->launch, &args);
            assert_int_equal(launches, rc == 0 ? (int)cost.launch_count : rc);
        }
    }
    st_test_device_free(scratch);
    st_test_device_free(out);
    st_test_device_free(logits);
    st_test_device_free(ends);
}

int main(int argc, char **argv) {
    const char *why;
    case_count = st_test_case_count(argc, argv, CASES);
    if (case_count < 0)
        return 2;
    if (st_test_gpu_probe(&why) != 0) {
        printf("skipped: %s\n", why);
        return 77;
    }
    const struct CMUnitTest tests[] = {cmocka_unit_test(launches_are_as_planned),
                                       cmocka_unit_test(cases)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}

#endif
