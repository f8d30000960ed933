/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The plan of prefill chunks: by the area, by a fixed count, and what both keep.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

#include "steptape/kernels.h"

static void check(const struct steptape_prefill_chunk *c, int first, int count, int n, int m) {
    assert_int_equal(c->first_req, first);
    assert_int_equal(c->req_count, count);
    assert_int_equal(c->n, n);
    assert_int_equal(c->m, m);
}

/* Ratio 4, window 8, model of 64, batches of 16: A = 4 * (16 + 8 + 16) = 160. */
static void by_area(void **state) {
    (void)state;
    struct steptape_prefill_chunk out[6];
    /* compressed 1 each, gather 4 each: 5 a request, all six in one chunk */
    const int32_t small_seq[] = {4, 4, 4, 4, 4, 4}, small_query[] = {4, 4, 4, 4, 4, 4};
    assert_int_equal(steptape_plan_prefill_chunks(small_seq, small_query, 6, 4, 8, 64, 16, 0, out),
                     1);
    check(&out[0], 0, 6, 1, 5);
    /* 16 + 7 + 16 = 39: four fit 160, the fifth does not */
    const int32_t full_seq[] = {64, 64, 64, 64, 64}, full_query[] = {16, 16, 16, 16, 16};
    assert_int_equal(steptape_plan_prefill_chunks(full_seq, full_query, 5, 4, 8, 64, 16, 0, out),
                     2);
    check(&out[0], 0, 4, 16, 16 + 23);
    check(&out[1], 4, 1, 16, 39);
    /* the largest of each counts: 3 short ones with 1 + 4, then 16 + 23: 4 * 39 = 156 fits; a
     * fifth, however short, does not */
    const int32_t mixed_seq[] = {4, 4, 4, 64, 4}, mixed_query[] = {4, 4, 4, 16, 4};
    assert_int_equal(steptape_plan_prefill_chunks(mixed_seq, mixed_query, 5, 4, 8, 64, 16, 0, out),
                     2);
    check(&out[0], 0, 4, 16, 39);
    check(&out[1], 4, 1, 1, 5);
    /* without compression A = 4 * (8 + 16) = 96, and gather alone: 23 * 4 = 92 */
    assert_int_equal(steptape_plan_prefill_chunks(full_seq, full_query, 5, 1, 8, 64, 16, 0, out),
                     2);
    check(&out[0], 0, 4, 0, 23);
    /* one that is larger than the area still gets a chunk */
    const int32_t large_seq[] = {4000, 4}, large_query[] = {4000, 4};
    assert_int_equal(steptape_plan_prefill_chunks(large_seq, large_query, 2, 4, 8, 64, 16, 0, out),
                     2);
    check(&out[0], 0, 1, 1000, 5000);
    check(&out[1], 1, 1, 1, 5);
}

static void by_count(void **state) {
    (void)state;
    struct steptape_prefill_chunk out[5];
    const int32_t seq[] = {4, 4, 4, 64, 4}, query[] = {4, 4, 4, 16, 4};
    assert_int_equal(steptape_plan_prefill_chunks(seq, query, 5, 4, 8, 63, 16, 4, out), 2);
    check(&out[0], 0, 4, 16, 16 + 8 + 16);
    check(&out[1], 4, 1, 16, 40);
    assert_int_equal(steptape_plan_prefill_chunks(seq, query, 5, 1, 8, 63, 16, 2, out), 3);
    check(&out[2], 4, 1, 0, 24);
    /* a model of 1,048,576 tokens, as an engine runs it */
    assert_int_equal(steptape_plan_prefill_chunks(seq, query, 5, 128, 128, 1048576, 8192, 4, out),
                     2);
    check(&out[0], 0, 4, 8192, 8192 + 128 + 8192);
}

static void nothing_and_nonsense(void **state) {
    (void)state;
    struct steptape_prefill_chunk out[1];
    const int32_t seq[] = {3}, query[] = {4};
    assert_int_equal(steptape_plan_prefill_chunks(NULL, NULL, 0, 4, 8, 64, 16, 0, NULL), 0);
    assert_int_equal(steptape_plan_prefill_chunks(seq, query, 1, 4, 8, 64, 16, 0, out),
                     STEPTAPE_ERR_ARGUMENT);
    assert_int_equal(steptape_plan_prefill_chunks(seq, seq, 1, 0, 8, 64, 16, 0, out),
                     STEPTAPE_ERR_ARGUMENT);
    assert_int_equal(steptape_plan_prefill_chunks(seq, seq, 1, 4, 8, 64, 16, 0, NULL),
                     STEPTAPE_ERR_ARGUMENT);
}

/* Chunks cover the requests in order, hold what they must and break no budget. */
static void properties(void **state) {
    (void)state;
    uint32_t x = 1;
    for (int round = 0; round < 500; round++) {
        int32_t seq[32], query[32];
        struct steptape_prefill_chunk out[32];
        const int32_t reqs = 1 + (int32_t)((x = x * 1664525u + 1013904223u) >> 16) % 32;
        const int32_t ratio = round % 3 == 0 ? 1 : round % 3 == 1 ? 4 : 128;
        for (int32_t r = 0; r < reqs; r++) {
            query[r] = 1 + (int32_t)((x = x * 1664525u + 1013904223u) >> 16) % 2048;
            seq[r] = query[r] + (int32_t)((x = x * 1664525u + 1013904223u) >> 16) % 30000;
        }
        const int32_t n =
            steptape_plan_prefill_chunks(seq, query, reqs, ratio, 128, 32768, 2048, 0, out);
        assert_true(n >= 1 && n <= reqs);
        const int64_t area = 4 * ((ratio > 1 ? 32768 / ratio : 0) + 128 + 2048);
        int32_t next = 0;
        for (int32_t c = 0; c < n; c++) {
            assert_int_equal(out[c].first_req, next);
            assert_true(out[c].req_count >= 1);
            assert_true(out[c].req_count == 1 || (int64_t)out[c].req_count * out[c].m <= area);
            for (int32_t r = next; r < next + out[c].req_count; r++) {
                const int32_t prefix = seq[r] - query[r];
                assert_true(out[c].n >= (ratio > 1 ? seq[r] / ratio : 0));
                assert_true(out[c].m - out[c].n >= query[r] + (prefix < 127 ? prefix : 127));
            }
            next += out[c].req_count;
        }
        assert_int_equal(next, reqs);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(by_area),
        cmocka_unit_test(by_count),
        cmocka_unit_test(nothing_and_nonsense),
        cmocka_unit_test(properties),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
