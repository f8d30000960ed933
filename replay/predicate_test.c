/* SPDX-License-Identifier: Apache-2.0 */
/* The six published cases, and brute force over positions on random steps. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "replay/generator.h"
#include "replay/predicate.h"

static void published_cases(void **state) {
    (void)state;
    /* starts, query start locations, answer */
    assert_int_equal(st_boundary_predicate((int32_t[]){0}, (int32_t[]){127}, 1, 128),
                     ST_BOUNDARY_FALSE);
    assert_int_equal(st_boundary_predicate((int32_t[]){0}, (int32_t[]){128}, 1, 128),
                     ST_BOUNDARY_TRUE);
    assert_int_equal(st_boundary_predicate((int32_t[]){127}, (int32_t[]){1}, 1, 128),
                     ST_BOUNDARY_TRUE);
    assert_int_equal(st_boundary_predicate((int32_t[]){128}, (int32_t[]){127}, 1, 128),
                     ST_BOUNDARY_FALSE);
    assert_int_equal(st_boundary_predicate((int32_t[]){1, 255}, (int32_t[]){1, 1}, 2, 128),
                     ST_BOUNDARY_TRUE);
    assert_int_equal(st_boundary_predicate(NULL, (int32_t[]){1}, 1, 128), ST_BOUNDARY_NONE);
}

static void none_is_not_false(void **state) {
    (void)state;
    assert_int_not_equal(ST_BOUNDARY_NONE, ST_BOUNDARY_FALSE);
    assert_int_equal(st_boundary_predicate(NULL, NULL, 0, 128), ST_BOUNDARY_NONE);
    assert_int_equal(st_boundary_predicate((int32_t[]){0}, (int32_t[]){0}, 0, 128),
                     ST_BOUNDARY_FALSE);
}

static int brute_force(const int32_t *start, const int32_t *query_len, int32_t n, int32_t ratio) {
    for (int32_t i = 0; i < n; i++)
        for (int32_t t = 0; t < query_len[i]; t++)
            if ((start[i] + t + 1) % ratio == 0)
                return ST_BOUNDARY_TRUE;
    return ST_BOUNDARY_FALSE;
}

static void random_steps(void **state) {
    (void)state;
    static const int32_t ratios[] = {4, 128, 96};
    uint64_t seed = 1;
    for (int round = 0; round < 20000; round++) {
        int32_t start[24], query_len[24];
        int32_t n = (int32_t)(st_gen_mix(seed++) % 24) + 1;
        for (int32_t i = 0; i < n; i++) {
            start[i] = (int32_t)(st_gen_mix(seed++) % 5000);
            uint64_t kind = st_gen_mix(seed++);
            query_len[i] = kind % 8 ? (int32_t)(kind >> 8) % 2 + 1 : (int32_t)(kind >> 8 & 255) + 1;
            query_len[i] = query_len[i] < 1 ? 1 : query_len[i];
        }
        int32_t ratio = ratios[round % 3];
        assert_int_equal(st_boundary_predicate(start, query_len, n, ratio),
                         brute_force(start, query_len, n, ratio));
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(published_cases),
        cmocka_unit_test(none_is_not_false),
        cmocka_unit_test(random_steps),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
