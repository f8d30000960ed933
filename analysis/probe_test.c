/* SPDX-License-Identifier: Apache-2.0 */
/* Unit tests of the child process that answers, fails, hangs, or leaves something behind. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "analysis/probe.h"

enum { LONG_MS = 60000, SHORT_MS = 300 };

static int answer(void *user) {
    dprintf(1, "said %s\n", (const char *)user);
    dprintf(2, "and more\n");
    char byte;
    return read(0, &byte, 1) == 0 ? 7 : 1;
}

static int talk_for_ever(void *user) {
    (void)user;
    char text[1000];
    memset(text, 'x', sizeof text);
    for (int i = 0; i < 1000; i++)
        if (write(1, text, sizeof text) != (ssize_t)sizeof text)
            return 1;
    return 0;
}

static int hang(void *user) {
    (void)user;
    for (;;)
        pause();
    return 0;
}

static int hang_silently(void *user) {
    close(1);
    close(2);
    return hang(user);
}

/* A grandchild keeps the output open. */
static int leave_child(void *user) {
    if (fork() == 0)
        return hang(user);
    dprintf(1, "gone");
    return 0;
}

static int die(void *user) {
    (void)user;
    return raise(SIGKILL);
}

static double seconds(void) {
    struct timespec ts;
    clock_gettime(CLOCK_MONOTONIC, &ts);
    return (double)ts.tv_sec + (double)ts.tv_nsec / 1e9;
}

static void test_answer(void **state) {
    (void)state;
    struct st_probe probe;
    char word[] = "this";
    st_probe_run(answer, word, LONG_MS, &probe);
    assert_int_equal(probe.end, ST_PROBE_EXITED);
    assert_int_equal(probe.status, 7);
    assert_string_equal(probe.text, "said this\nand more\n");
}

static void test_cut(void **state) {
    (void)state;
    struct st_probe probe;
    st_probe_run(talk_for_ever, NULL, LONG_MS, &probe);
    assert_int_equal(probe.end, ST_PROBE_EXITED);
    assert_int_equal(probe.status, 0);
    assert_int_equal(strlen(probe.text), sizeof probe.text - 1);
}

static void test_signal(void **state) {
    (void)state;
    struct st_probe probe;
    st_probe_run(die, NULL, LONG_MS, &probe);
    assert_int_equal(probe.end, ST_PROBE_SIGNALED);
    assert_int_equal(probe.status, SIGKILL);
}

static void test_hangs(void **state) {
    (void)state;
    int (*const acts[])(void *) = {hang, hang_silently, leave_child};
    for (size_t i = 0; i < sizeof acts / sizeof *acts; i++) {
        struct st_probe probe;
        double start = seconds();
        st_probe_run(acts[i], NULL, SHORT_MS, &probe);
        assert_int_equal(probe.end, ST_PROBE_TIMEOUT);
        assert_true(seconds() - start < LONG_MS / 1e3 / 2);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_answer),
        cmocka_unit_test(test_cut),
        cmocka_unit_test(test_signal),
        cmocka_unit_test(test_hangs),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
