/* SPDX-License-Identifier: Apache-2.0 */
/* Known answers: digests that were published depend on them, so they may not change. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "replay/digest.h"
#include "replay/generator.h"

static uint32_t bits(float value) {
    uint32_t out;
    memcpy(&out, &value, sizeof out);
    return out;
}

static void known_answers(void **state) {
    (void)state;
    uint64_t first = st_gen_row(ST_GEN_KV_SCORE, 0, 0, 0);
    uint64_t far = st_gen_row(ST_GEN_KV_SCORE, 19, 8818, 122376);
    assert_true(first == 0xa92bb87c1d3d9f4f);
    assert_true(far == 0x104eae899554bce7);
    assert_int_equal(bits(st_gen_kv(first, 0)), 0xbf3aa95c);
    assert_int_equal(bits(st_gen_kv(far, 511)), 0xbf652ddc);
    assert_int_equal(bits(st_gen_score(first, 0)), 0x407e2282);
    assert_int_equal(bits(st_gen_score(far, 511)), 0xc0020622);
    assert_int_equal(bits(st_gen_ape(0, 0, 0)), 0x3c75d840);
    assert_int_equal(bits(st_gen_ape(3, 127, 511)), 0xbef6f0a8);
    assert_int_equal(bits(st_gen_rms_weight(0, 0)), 0x3da01590);
    assert_int_equal(bits(st_gen_rms_weight(3, 511)), 0x4045104f);
}

static void every_key_counts(void **state) {
    (void)state;
    uint64_t a = st_gen_row(ST_GEN_KV_SCORE, 1, 2, 3);
    assert_true(a != st_gen_row(ST_GEN_APE, 1, 2, 3));
    assert_true(a != st_gen_row(ST_GEN_KV_SCORE, 2, 2, 3));
    assert_true(a != st_gen_row(ST_GEN_KV_SCORE, 1, 3, 3));
    assert_true(a != st_gen_row(ST_GEN_KV_SCORE, 1, 2, 4));
    assert_true(st_gen_row(ST_GEN_KV_SCORE, 1, 2, 3) == a);
}

static void values_stay_in_range(void **state) {
    (void)state;
    double sum = 0;
    for (int32_t i = 0; i < 100000; i++) {
        uint64_t row = st_gen_row(ST_GEN_KV_SCORE, i % 20, i / 7, i);
        float kv = st_gen_kv(row, i % 512), score = st_gen_score(row, i % 512);
        assert_true(kv >= -2 && kv < 2 && score >= -4 && score < 4);
        sum += (double)kv;
    }
    assert_true(sum / 100000 < 0.02 && sum / 100000 > -0.02);
    assert_true(st_gen_unit(0) == -1 && st_gen_unit(UINT32_MAX) < 1);
}

static void digest_is_of_bits_and_places(void **state) {
    (void)state;
    const uint32_t row[] = {1, 2, 3, 0x80000000u}, swapped[] = {2, 1, 3, 0x80000000u};
    const uint32_t zero[] = {1, 2, 3, 0};
    assert_true(st_digest_row(row, 4) == 0xea791d0bc3836884);
    assert_true(st_digest_row(row, 4) != st_digest_row(swapped, 4));
    assert_true(st_digest_row(row, 4) != st_digest_row(zero, 4)); /* -0 is not 0 */
    /* Any order of adding gives the same. */
    uint64_t backwards = 0;
    for (uint32_t i = 4; i-- > 0;)
        backwards += st_digest_word(row[i], i);
    assert_true(backwards == st_digest_row(row, 4));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(known_answers),
        cmocka_unit_test(every_key_counts),
        cmocka_unit_test(values_stay_in_range),
        cmocka_unit_test(digest_is_of_bits_and_places),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
