/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The registry: names, variants and device functions are unique and complete; token counts.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "kernels/registry.h"

static void table_is_whole(void **state) {
    (void)state;
    size_t count;
    const struct st_kernel *table = st_kernel_table(&count);
    assert_true(count >= 4);
    for (size_t i = 0; i < count; i++) {
        const struct st_kernel *k = &table[i];
        assert_true(i == 0 || strcmp(table[i - 1].name, k->name) < 0);
        assert_ptr_equal(st_kernel_find(k->name), k);
        assert_true(k->default_variant >= 1 && k->default_variant <= k->variant_count);
        assert_ptr_equal(st_kernel_variant_find(k, 0), &k->variants[k->default_variant - 1]);
        assert_null(st_kernel_variant_find(k, (unsigned int)k->variant_count + 1));
        for (size_t v = 0; v < k->variant_count; v++) {
            const struct st_kernel_variant *found;
            assert_int_equal(k->variants[v].number, v + 1);
            assert_true(k->variants[v].launch_count >= 1);
            assert_non_null(k->variants[v].functions[0]);
            assert_true(strlen(k->variants[v].idea) > 0);
            for (size_t f = 0; k->variants[v].functions[f] != NULL; f++)
                assert_ptr_equal(st_kernel_find_function(k->variants[v].functions[f], &found), k);
        }
        assert_int_equal(k->launch(NULL, NULL), STEPTAPE_ERR_ARGUMENT);
        assert_int_equal(k->ref(NULL), STEPTAPE_ERR_ARGUMENT);
    }
    assert_null(st_kernel_find("no_such_operator"));
    assert_null(st_kernel_find_function("no_such_function", NULL));
    /* a library's kernel, known by the type it was made for */
    assert_ptr_equal(
        st_kernel_find_function("_ZN3cub10RadixSort1I31steptape_topk_per_row_segmentsiEEvv", NULL),
        st_kernel_find("topk_per_row"));
}

static void counts(void **state) {
    (void)state;
    const int64_t positions[] = {126, 127, 127, 127, 255};
    const int64_t slots[] = {0, 1, -1, 3, 4};
    const int64_t kv[] = {-1, 0, 0, -1, 1};
    struct steptape_token_counts c;
    assert_int_equal(steptape_count_tokens(positions, slots, kv, 5, 128, &c), 0);
    assert_int_equal(c.mapped, 4);
    assert_int_equal(c.boundary, 3);
    assert_int_equal(c.stored, 2);
    assert_int_equal(steptape_count_tokens(positions, NULL, NULL, 5, 128, &c), 0);
    assert_int_equal(c.mapped, 5);
    assert_int_equal(c.boundary, 4);
    assert_int_equal(c.stored, 4);
    assert_int_equal(steptape_count_tokens(NULL, NULL, NULL, 0, 4, &c), 0);
    assert_int_equal(c.mapped, 0);
    assert_int_equal(steptape_count_tokens(NULL, NULL, NULL, 1, 4, &c), STEPTAPE_ERR_ARGUMENT);
}

static void status_names(void **state) {
    (void)state;
    const int statuses[] = {0, -20, -50, -51, -1000, -1700, 5};
    for (size_t i = 0; i < sizeof(statuses) / sizeof(statuses[0]); i++)
        assert_true(strlen(steptape_status_name(statuses[i])) > 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(table_is_whole),
        cmocka_unit_test(counts),
        cmocka_unit_test(status_names),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
