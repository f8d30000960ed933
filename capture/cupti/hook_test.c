/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Counting by hooks: run with libsteptape_inject.so in front of all libraries (LD_PRELOAD) and
 * hook_driver.c as the driver.  Everything is looked up the way the CUDA runtime does it.
 */
#include <dlfcn.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <cmocka.h>

#include "steptape/inject.h"

typedef int launch_kernel(void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned,
                          unsigned, void *, void **, void **);
typedef int launch_kernel_ex(void *, void *, void **, void **);
typedef int two_words(void *, void *);
typedef int get_proc_address(const char *, void **, int, uint64_t, int *);

static void *driver;
static get_proc_address *ask;
static int (*inject_step)(int64_t);
static int (*inject_flush)(void);
static int (*inject_stats)(struct steptape_inject_stats *);

static void *look_up(void *library, const char *name) {
    void *address = dlsym(library, name);
    if (!address)
        fail_msg("%s: %s", name, dlerror());
    return address;
}

static void *asked(const char *symbol, int version, uint64_t flags) {
    void *address = NULL;
    int status;
    assert_int_equal(ask(symbol, &address, version, flags, &status), 0);
    return address;
}

static struct steptape_inject_stats stats_now(void) {
    struct steptape_inject_stats s = {.struct_size = sizeof s};
    assert_int_equal(inject_flush(), 0);
    assert_int_equal(inject_stats(&s), 0);
    return s;
}

static int call(launch_kernel *launch) {
    return launch(NULL, 1, 2, 3, 4, 5, 6, 123, NULL, NULL, NULL);
}

static void starts(void **state) {
    (void)state;
    int (*init)(unsigned);
    void *inject = dlopen(getenv("CUDA_INJECTION64_PATH"), RTLD_NOW);
    driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    if (!driver || !inject)
        fail_msg("%s", dlerror());
    void *symbol = look_up(driver, "cuGetProcAddress_v2");
    memcpy(&ask, &symbol, sizeof ask);
    symbol = look_up(inject, "steptape_inject_step");
    memcpy(&inject_step, &symbol, sizeof inject_step);
    symbol = look_up(inject, "steptape_inject_flush");
    memcpy(&inject_flush, &symbol, sizeof inject_flush);
    symbol = look_up(inject, "steptape_inject_get_stats");
    memcpy(&inject_stats, &symbol, sizeof inject_stats);
    symbol = look_up(driver, "cuInit");
    memcpy(&init, &symbol, sizeof init);
    assert_int_equal(init(0), 0);
    struct steptape_inject_stats s = stats_now();
    assert_int_equal(s.state, STEPTAPE_INJECT_RUNNING);
    assert_int_equal(s.level, STEPTAPE_INJECT_COUNT);
    assert_int_equal(s.cupti_version, 0); /* never opened */
}

/* What is asked twice, by name or through itself, is the same; RTLD_NEXT still finds the next. */
static void looks_up(void **state) {
    (void)state;
    void *kernel = asked("cuLaunchKernel", 4000, 0);
    assert_ptr_equal(kernel, look_up(driver, "cuLaunchKernel"));
    assert_ptr_not_equal(kernel, asked("cuLaunchKernel", 7000, 2));
    get_proc_address *again;
    void *symbol = asked("cuGetProcAddress", 12000, 0);
    memcpy(&again, &symbol, sizeof again);
    assert_ptr_equal(again, ask);
    void *address = &kernel;
    int status;
    assert_int_not_equal(ask("cuNoSuchThing", &address, 12000, 0, &status), 0);
    assert_null(address);
    assert_null(dlsym(driver, "cuGraphLaunch_ptsz")); /* this driver has none */
    assert_non_null(dlsym(RTLD_DEFAULT, "malloc"));
    assert_non_null(dlsym(RTLD_NEXT, "malloc"));
    assert_null(dlsym(RTLD_DEFAULT, "no_such_symbol"));
    assert_non_null(dlerror());
}

static void counts(void **state) {
    (void)state;
    launch_kernel *kernel, *per_thread;
    launch_kernel_ex *kernel_ex;
    two_words *graph_launch;
    int *launches = look_up(driver, "driver_launches"), *graphs = look_up(driver, "driver_graphs");
    void (*fail_next)(void);
    char config[56] = {0};
    void *symbol = asked("cuLaunchKernel", 4000, 0);
    memcpy(&kernel, &symbol, sizeof kernel);
    symbol = asked("cuLaunchKernel", 7000, 2);
    memcpy(&per_thread, &symbol, sizeof per_thread);
    symbol = look_up(driver, "cuLaunchKernelEx"); /* as Triton does */
    memcpy(&kernel_ex, &symbol, sizeof kernel_ex);
    symbol = asked("cuGraphLaunch", 10000, 0);
    memcpy(&graph_launch, &symbol, sizeof graph_launch);
    symbol = look_up(driver, "driver_fail_next");
    memcpy(&fail_next, &symbol, sizeof fail_next);

    inject_step(7);
    for (int i = 0; i < 10; i++)
        assert_int_equal(call(kernel), 0);
    assert_int_equal(call(per_thread), 0);
    assert_int_equal(kernel_ex(config, NULL, NULL, NULL), 0);
    fail_next();
    assert_int_equal(call(kernel), 1); /* launched nothing */
    assert_int_equal(*launches, 10 + 101 + 1);
    struct steptape_inject_stats s = stats_now();
    assert_int_equal(s.kernel_launches, 12);

    /* Captured launches only add nodes. */
    int (*begin)(void *, int), (*instantiate)(void **, void *, unsigned long long);
    symbol = asked("cuStreamBeginCapture", 10010, 0);
    memcpy(&begin, &symbol, sizeof begin);
    two_words *end, *destroy;
    symbol = asked("cuStreamEndCapture", 10000, 0);
    memcpy(&end, &symbol, sizeof end);
    symbol = asked("cuGraphInstantiate", 12000, 0);
    memcpy(&instantiate, &symbol, sizeof instantiate);
    symbol = asked("cuGraphExecDestroy", 10000, 0);
    memcpy(&destroy, &symbol, sizeof destroy);
    void *graph = NULL, *exec = NULL;
    assert_int_equal(begin(NULL, 0), 0);
    for (int i = 0; i < 5; i++)
        assert_int_equal(call(kernel), 0);
    assert_int_equal(end(NULL, &graph), 0);
    assert_int_equal(instantiate(&exec, graph, 0), 0);
    for (int i = 0; i < 3; i++)
        assert_int_equal(graph_launch(exec, NULL), 0);
    assert_int_equal(*graphs, 3);
    inject_step(-1);
    assert_int_equal(call(kernel), 0); /* the capture is over */
    s = stats_now();
    assert_int_equal(s.kernel_launches, 13);
    assert_int_equal(s.graph_launches, 3);
    assert_int_equal(s.steps, 1);
    assert_int_equal(destroy(exec, NULL), 0);
}

int main(void) {
    char folder[] = "/tmp/steptape-hook-XXXXXX", tape[96], command[96];
    if (!mkdtemp(folder))
        return 1;
    snprintf(tape, sizeof tape, "%s/x.tape", folder);
    setenv("STEPTAPE_RECORD", tape, 1);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(starts),
        cmocka_unit_test(looks_up),
        cmocka_unit_test(counts),
    };
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    snprintf(command, sizeof command, "rm -r %s", folder);
    unsetenv("LD_PRELOAD");
    return system(command) || failed;
}
