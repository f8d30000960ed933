/* SPDX-License-Identifier: Apache-2.0 */
/*
 * After open, record_step makes no system call, allocates nothing and takes no lock.  System calls:
 * the engine's thread runs under a seccomp filter that counts every one.  The rest: wrapped.
 */
#include <errno.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "capture/testing.h"

enum { STEPS = 3000 };

struct report {
    int unavailable;
    int system_calls, last_call;
    volatile int calls; /* of what is wrapped; the compiler knows malloc() to change no variable */
    int failed, dropped, recorded;
};

static struct report *report;
static _Thread_local volatile int watched;

/* ---- what is wrapped counts on the thread that records */

#define WRAP(type, name, parameters, arguments)                                                    \
    type __real_##name parameters;                                                                 \
    type __wrap_##name parameters;                                                                 \
    type __wrap_##name parameters {                                                                \
        if (watched)                                                                               \
            report->calls++;                                                                       \
        return __real_##name arguments;                                                            \
    }

WRAP(void *, malloc, (size_t n), (n))
WRAP(void *, calloc, (size_t n, size_t size), (n, size))
WRAP(void *, realloc, (void *p, size_t n), (p, n))
WRAP(void, free, (void *p), (p))
WRAP(int, pthread_mutex_lock, (pthread_mutex_t * m), (m))
WRAP(int, pthread_rwlock_rdlock, (pthread_rwlock_t * l), (l))
WRAP(int, pthread_rwlock_wrlock, (pthread_rwlock_t * l), (l))
WRAP(int, pthread_cond_wait, (pthread_cond_t * c, pthread_mutex_t *m), (c, m))
WRAP(int, pthread_cond_signal, (pthread_cond_t * c), (c))

/* ---- system calls */

static void on_system_call(int number, siginfo_t *info, void *context) {
    (void)number;
    (void)context;
    report->system_calls++;
    report->last_call = info->si_syscall;
}

/* Of this thread alone: the writer's is another. */
static int watch_system_calls(void) {
    struct sock_filter code[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, __NR_rt_sigreturn, 2, 0),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, __NR_exit_group, 1, 0),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_TRAP),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog program = {sizeof code / sizeof code[0], code};
    struct sigaction sa;
    memset(&sa, 0, sizeof sa);
    sa.sa_sigaction = on_system_call;
    sa.sa_flags = SA_SIGINFO | SA_NODEFER;
    sigaction(SIGSYS, &sa, NULL);
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) < 0)
        return -1;
    return (int)syscall(__NR_seccomp, SECCOMP_SET_MODE_FILTER, 0, &program);
}

static void record_all(uint64_t seed, int64_t ring_bytes) {
    struct st_test_engine_options options;
    st_test_engine_options_init(&options, seed);
    options.lawful = true;
    options.step_count = STEPS;
    options.random_id = 0;
    struct st_test_recording *r = st_test_record(&options);
    struct st_test_call *calls = calloc(STEPS, sizeof *calls);
    for (int32_t i = 0; i < STEPS; i++)
        st_test_call_init(&calls[i], &r->step[i], seed % ST_TEST_FORMS);
    struct steptape_recorder_options recorder_options = {.struct_size = sizeof recorder_options,
                                                         .ring_bytes = ring_bytes};
    struct steptape_recorder *recorder;
    char message[256];
    char *json = st_test_header_json(&r->header);
    if (steptape_recorder_open(st_test_path("quiet.tape"), json, &recorder_options, &recorder,
                               message, sizeof message) ||
        watch_system_calls() < 0) {
        report->unavailable = 1;
        _exit(0);
    }
    watched = 1;
    for (int32_t i = 0; i < STEPS; i++) {
        int rc = steptape_recorder_record_step(recorder, &calls[i].step);
        report->failed += rc < 0;
        report->dropped += rc == STEPTAPE_RECORDER_DROPPED;
        report->recorded += rc == 0;
        steptape_recorder_note(recorder, "key", "value");
    }
    struct steptape_recorder_stats stats = {.struct_size = sizeof stats};
    steptape_recorder_get_stats(recorder, &stats);
    report->failed += stats.step_count != report->recorded;
    watched = 0;
    _exit(0);
}

static void is_quiet(void **state) {
    (void)state;
    int dropped = 0;
    report = mmap(NULL, sizeof *report, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    assert_true(report != MAP_FAILED);
    for (uint64_t seed = 0; seed < 9; seed++) {
        memset(report, 0, sizeof *report);
        st_test_path("quiet.tape"); /* its folder is the parent's */
        pid_t pid = fork();
        if (pid == 0)
            record_all(seed, seed < 6 ? 8 << 20 : 1 << 20);
        int status;
        assert_int_equal(waitpid(pid, &status, 0), pid);
        assert_int_equal(status, 0);
        if (report->unavailable)
            skip();
        if (report->system_calls)
            fail_msg("%d system calls, the last is number %d", report->system_calls,
                     report->last_call);
        assert_int_equal(report->calls, 0);
        assert_int_equal(report->failed, 0);
        assert_int_equal(report->recorded + report->dropped, STEPS);
        dropped += report->dropped;
        assert_int_equal(steptape_recover(st_test_path("quiet.tape"), NULL, 0), 0);
        unlink(st_test_path("quiet.tape"));
    }
    printf("%d steps of the small rings were dropped\n", dropped);
}

/* The counters count. */
static void counts(void **state) {
    (void)state;
    memset(report, 0, sizeof *report);
    watched = 1;
    void *volatile kept = malloc(1);
    free(kept);
    watched = 0;
    assert_int_equal(report->calls, 2);
    pid_t pid = fork();
    if (pid == 0) {
        if (watch_system_calls() < 0)
            _exit(77);
        getppid();
        _exit(0);
    }
    int status;
    assert_int_equal(waitpid(pid, &status, 0), pid);
    if (status)
        skip();
    assert_int_equal(report->system_calls, 1);
    assert_int_equal(report->last_call, __NR_getppid);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(is_quiet), cmocka_unit_test(counts)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
