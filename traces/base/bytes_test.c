/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "traces/base/bytes.h"

static const uint64_t values[] = {
    0,         1, 127, 128, 16383, 16384, UINT32_MAX, (uint64_t)INT64_MAX, INT64_MAX + (uint64_t)1,
    UINT64_MAX};
enum { VALUES = sizeof values / sizeof *values };

static struct st_bytes_reader reader(const struct st_bytes *b) {
    struct st_bytes_reader r = {b->data, b->data + b->size, false};
    return r;
}

static void varints(void **state) {
    (void)state;
    struct st_bytes b = {0};
    for (int i = 0; i < VALUES; i++)
        st_bytes_put_varint(&b, values[i]);
    struct st_bytes_reader r = reader(&b);
    for (int i = 0; i < VALUES; i++)
        assert_true(st_bytes_get_varint(&r) == values[i]);
    assert_false(r.bad);
    assert_ptr_equal(r.at, r.end);
    st_bytes_fini(&b);
}

static void sizes_of_varints(void **state) {
    (void)state;
    static const int sizes[VALUES] = {1, 1, 1, 2, 2, 3, 5, 9, 10, 10};
    for (int i = 0; i < VALUES; i++) {
        struct st_bytes b = {0};
        st_bytes_put_varint(&b, values[i]);
        assert_int_equal(b.size, sizes[i]);
        st_bytes_fini(&b);
    }
}

static void signed_values(void **state) {
    (void)state;
    static const int64_t numbers[] = {0, -1, 1, -64, 63, INT32_MIN, INT64_MIN, INT64_MAX};
    enum { NUMBERS = sizeof numbers / sizeof *numbers };
    struct st_bytes b = {0};
    for (int i = 0; i < NUMBERS; i++)
        st_bytes_put_zigzag(&b, numbers[i]);
    for (int i = 0; i < NUMBERS; i++)
        for (int k = 0; k < NUMBERS; k++)
            st_bytes_put_difference(&b, numbers[i], numbers[k]);
    struct st_bytes_reader r = reader(&b);
    for (int i = 0; i < NUMBERS; i++)
        assert_true(st_bytes_get_zigzag(&r) == numbers[i]);
    for (int i = 0; i < NUMBERS; i++)
        for (int k = 0; k < NUMBERS; k++)
            assert_true(st_bytes_get_difference(&r, numbers[k]) == numbers[i]);
    assert_false(r.bad);
    assert_ptr_equal(r.at, r.end);
    st_bytes_fini(&b);
}

static void reading_past_the_end(void **state) {
    (void)state;
    static const uint8_t cut[] = {0x85, 0x80}, endless[] = {0xff, 0xff, 0xff, 0xff, 0xff, 0xff,
                                                            0xff, 0xff, 0xff, 0xff, 0xff, 0x01};
    struct st_bytes_reader r = {cut, cut + 2, false};
    assert_int_equal(st_bytes_get_varint(&r), 0);
    assert_true(r.bad);
    assert_int_equal(st_bytes_get_varint(&r), 0);
    assert_int_equal(st_bytes_get_zigzag(&r), 0);
    r = (struct st_bytes_reader){endless, endless + sizeof endless, false};
    assert_int_equal(st_bytes_get_varint(&r), 0);
    assert_true(r.bad);
    r = (struct st_bytes_reader){cut, cut, false};
    st_bytes_get_varint(&r);
    assert_true(r.bad);
}

static void values_within(void **state) {
    (void)state;
    static const uint8_t data[] = {3, 4, 200, 1};
    struct st_bytes_reader r = {data, data + sizeof data, false};
    assert_int_equal(st_bytes_get_within(&r, -1, 2), 2);
    assert_false(r.bad);
    assert_int_equal(st_bytes_get_within(&r, -1, 2), -1);
    assert_true(r.bad);
    r.bad = false;
    assert_int_equal(st_bytes_get_within(&r, 0, INT64_MAX), 200);
    assert_false(r.bad);
}

static void growing(void **state) {
    (void)state;
    struct st_bytes b = {0};
    for (int i = 0; i < 100000; i++) {
        uint8_t byte = (uint8_t)i;
        st_bytes_put(&b, &byte, 1);
    }
    st_bytes_put(&b, NULL, 0);
    assert_int_equal(b.size, 100000);
    for (int i = 0; i < 100000; i++)
        assert_int_equal(b.data[i], i & 255);
    assert_false(st_bytes_reserve(&b, SIZE_MAX / 2 + 2));
    assert_true(b.failed);
    st_bytes_put_varint(&b, 1); /* does nothing, and no harm */
    st_bytes_put(&b, "x", 1);
    assert_int_equal(b.size, 100000);
    assert_int_equal(st_bytes_deflate(&b, "x", 1, NULL), ST_ERR_NOMEM);
    st_bytes_fini(&b);
    assert_null(b.data);
}

static void packing(void **state) {
    (void)state;
    static const size_t sizes[] = {0, 1, 100, 70000};
    struct st_bytes packed = {0}, raw = {0};
    uint8_t *data = malloc(70000);
    for (int i = 0; i < 70000; i++)
        data[i] = (uint8_t)((unsigned)i * (unsigned)i >> 7);
    for (int i = 0; i < 4; i++) {
        packed.size = 0;
        assert_int_equal(st_bytes_deflate(&packed, data, sizes[i], NULL), 0);
        assert_int_equal(st_bytes_inflate(&raw, packed.data, packed.size, 70000, NULL), 0);
        assert_int_equal(raw.size, sizes[i]);
        assert_true(raw.capacity > raw.size); /* room for a 0 */
        if (raw.size)
            assert_memory_equal(raw.data, data, raw.size);
    }
    free(data);
    st_bytes_fini(&packed);
    st_bytes_fini(&raw);
}

/* The best that deflate can do is not refused as impossible. */
static void packing_zeros(void **state) {
    (void)state;
    enum { SIZE = 1 << 24 };
    struct st_bytes packed = {0}, raw = {0};
    void *zeros = calloc(1, SIZE);
    assert_int_equal(st_bytes_deflate(&packed, zeros, SIZE, NULL), 0);
    assert_true(packed.size < SIZE / 1000);
    assert_int_equal(st_bytes_inflate(&raw, packed.data, packed.size, SIZE, NULL), 0);
    assert_memory_equal(raw.data, zeros, SIZE);
    free(zeros);
    st_bytes_fini(&packed);
    st_bytes_fini(&raw);
}

static void damaged_packs(void **state) {
    (void)state;
    struct st_bytes packed = {0}, raw = {0};
    struct st_error err;
    char text[300];
    for (size_t i = 0; i < sizeof text; i++)
        text[i] = (char)(i % 7 * i);
    assert_int_equal(st_bytes_deflate(&packed, text, sizeof text, NULL), 0);
    assert_int_equal(st_bytes_inflate(&raw, packed.data, packed.size, sizeof text - 1, &err),
                     ST_ERR_CORRUPT);
    for (size_t cut = 0; cut < packed.size; cut++) {
        uint8_t *copy = malloc(cut + 1); /* a sanitizer sees reads beyond it */
        memcpy(copy, packed.data, cut);
        assert_int_equal(st_bytes_inflate(&raw, copy, cut, 1000, &err), ST_ERR_CORRUPT);
        free(copy);
    }
    for (size_t i = 0; i < packed.size; i++)
        for (int bit = 0; bit < 8; bit++) {
            packed.data[i] ^= (uint8_t)(1 << bit);
            int rc = st_bytes_inflate(&raw, packed.data, packed.size, 1000, &err);
            /* Adler-32 sees it, but for bits of zlib's own header that say nothing of the data. */
            assert_true(rc == ST_ERR_CORRUPT ||
                        (rc == 0 && memcmp(raw.data, text, sizeof text) == 0));
            packed.data[i] ^= (uint8_t)(1 << bit);
        }
    static const uint8_t huge[] = {0xff, 0xff, 0xff, 0xff, 0x03, 0x78, 0x9c};
    assert_int_equal(st_bytes_inflate(&raw, huge, sizeof huge, (size_t)1 << 40, &err),
                     ST_ERR_CORRUPT);
    assert_int_equal(st_bytes_inflate(&raw, NULL, 0, 1000, &err), ST_ERR_CORRUPT);
    st_bytes_fini(&packed);
    st_bytes_fini(&raw);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(varints),       cmocka_unit_test(sizes_of_varints),
        cmocka_unit_test(signed_values), cmocka_unit_test(reading_past_the_end),
        cmocka_unit_test(values_within), cmocka_unit_test(growing),
        cmocka_unit_test(packing),       cmocka_unit_test(packing_zeros),
        cmocka_unit_test(damaged_packs),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
