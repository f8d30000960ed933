/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A program that links the library, as the driver and LD_PRELOAD never do: the loader asks its
 * dlsym() before main(), and so does a sanitizer.
 */
#include <dlfcn.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <cmocka.h>

#include "steptape/inject.h"

static void is_idle(void **state) {
    (void)state;
    struct steptape_inject_stats s = {.struct_size = sizeof s};
    assert_int_equal(steptape_inject_step(0), 0);
    assert_int_equal(steptape_inject_flush(), 0);
    assert_int_equal(steptape_inject_get_stats(&s), 0);
    assert_int_equal(s.state, STEPTAPE_INJECT_IDLE);
    assert_non_null(dlsym(RTLD_DEFAULT, "malloc"));
    assert_null(dlsym(RTLD_DEFAULT, "no_such_symbol"));
}

int main(void) {
    unsetenv("CUDA_INJECTION64_PATH");
    const struct CMUnitTest tests[] = {cmocka_unit_test(is_idle)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
