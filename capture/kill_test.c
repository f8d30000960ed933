/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Kills a recording process at random moments, from before open to after close: at most the step
 * that was being copied is lost, and what is left is equal, step by step, to what was recorded.
 * STEPTAPE_KILLS: how often (default 20); more only with STEPTAPE_SLOW.
 */
#include <inttypes.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

#include "capture/recover.h"
#include "capture/testing.h"
#include "traces/format/reader.h"
#include "traces/format/verify.h"

enum { STEPS = 1500 };

struct progress {
    volatile int64_t begun, recorded;
    volatile int closed;
};

static void pause_us(int64_t us) {
    struct timespec ts = {us / 1000000, us % 1000000 * 1000};
    nanosleep(&ts, NULL);
}

static int engine(const struct st_test_recording *r, const char *path, const char *json,
                  struct progress *progress, uint64_t seed) {
    struct steptape_recorder_options options = {.struct_size = sizeof options,
                                                .ring_bytes = 4 << 20};
    struct steptape_recorder *recorder;
    struct st_test_random random = {seed};
    char message[512];
    if (steptape_recorder_open(path, json, &options, &recorder, message, sizeof message))
        return 2;
    for (int32_t i = 0; i < r->step_count; i++) {
        struct st_test_call call;
        st_test_call_init(&call, &r->step[i], seed % ST_TEST_FORMS);
        progress->begun = i + 1;
        if (steptape_recorder_record_step(recorder, &call.step))
            return 3;
        progress->recorded = i + 1;
        st_test_call_fini(&call);
        if (st_test_chance(&random, 10))
            pause_us(st_test_within(&random, 0, 800));
    }
    if (steptape_recorder_close(recorder, message, sizeof message))
        return 4;
    progress->closed = 1;
    return 0;
}

static void check_tape(const struct st_test_recording *r, const char *path,
                       const struct progress *progress, uint64_t seed) {
    struct st_verify_report report;
    struct st_tape *tape;
    struct st_cursor *cursor;
    const struct st_step *step;
    struct st_error err;
    if (st_tape_verify(path, &report, &err))
        fail_msg("kill %" PRIu64 ": %s", seed, err.msg);
    if (report.step_count < progress->recorded || report.step_count > progress->begun)
        fail_msg("kill %" PRIu64 ": %" PRId64 " steps on the tape, %" PRId64 " to %" PRId64
                 " were recorded",
                 seed, report.step_count, progress->recorded, progress->begun);
    assert_int_equal(st_tape_open(path, &tape, &err), 0);
    assert_int_equal(st_cursor_open(tape, ST_READ_TABLES, &cursor, &err), 0);
    for (int32_t i = 0; i < report.step_count; i++) {
        assert_int_equal(st_cursor_next(cursor, &step, &err), 0);
        const char *differs = st_test_compare(r, i, step, ST_READ_TABLES);
        if (!differs)
            differs = st_test_compare_tables(r, i, cursor);
        if (differs)
            fail_msg("kill %" PRIu64 ", step %d: %s", seed, i, differs);
    }
    st_cursor_close(cursor);
    st_tape_close(tape);
}

static int made;

static void count(const struct st_recovered *recovered, void *user) {
    (void)user;
    made += recovered->tape != NULL;
}

static struct st_test_recording *make(uint64_t seed) {
    struct st_test_engine_options options;
    st_test_engine_options_init(&options, seed);
    options.lawful = true;
    options.step_count = STEPS;
    options.random_id = 0;
    options.check = 0;
    return st_test_record(&options);
}

/* Recovery is killed as well: it may be done again, and gives one tape, not two. */
static void kill_recovery(const char *path, struct st_test_random *random) {
    pid_t pid = fork();
    if (pid == 0)
        _exit(st_recover(path, count, NULL, NULL) < 0);
    pause_us(st_test_within(random, 0, 40000));
    kill(pid, SIGKILL);
    int status;
    assert_int_equal(waitpid(pid, &status, 0), pid);
    if (WIFEXITED(status))
        assert_int_equal(WEXITSTATUS(status), 0);
}

static void kill_once(uint64_t seed, struct progress *progress, int64_t *in_the_middle) {
    struct st_test_random random = {seed * 977 + (uint64_t)getpid()};
    struct st_test_recording *r = make(seed);
    char *json = st_test_header_json(&r->header);
    const char *path = st_test_path("killed.tape");
    memset(progress, 0, sizeof *progress);
    pid_t pid = fork();
    if (pid == 0)
        _exit(engine(r, path, json, progress, seed));
    pause_us(st_test_within(&random, 0, 150000));
    kill(pid, SIGKILL);
    int status;
    assert_int_equal(waitpid(pid, &status, 0), pid);
    if (WIFEXITED(status))
        assert_int_equal(WEXITSTATUS(status), 0);
    *in_the_middle += progress->recorded > 0 && !progress->closed;
    if (st_test_chance(&random, 40))
        kill_recovery(path, &random);
    struct st_error err = {0};
    made = 0;
    int rc = st_recover(path, count, NULL, &err);
    if (rc < 0)
        fail_msg("kill %" PRIu64 " after %" PRId64 " steps: %s", seed, progress->recorded, err.msg);
    if (access(path, F_OK) == 0)
        check_tape(r, path, progress, seed);
    else
        assert_int_equal(progress->begun, 0);
    unlink(path);
    assert_int_equal(st_test_file_count(), 0);
    free(json);
    st_test_recording_destroy(r);
}

static void survives_kills(void **state) {
    (void)state;
    const char *text = getenv("STEPTAPE_KILLS");
    long kills = text ? strtol(text, NULL, 10) : 20;
    int64_t in_the_middle = 0;
    struct progress *progress =
        mmap(NULL, sizeof *progress, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    assert_true(progress != MAP_FAILED);
    for (long i = 0; i < kills; i++)
        kill_once((uint64_t)i, progress, &in_the_middle);
    printf("%ld kills, %" PRId64 " between first step and close\n", kills, in_the_middle);
    assert_true(in_the_middle > 0);
    munmap(progress, sizeof *progress);
}

int main(void) {
    if (getenv("STEPTAPE_KILLS") && !getenv("STEPTAPE_SLOW")) {
        fprintf(stderr, "takes minutes: set STEPTAPE_SLOW=1\n");
        return 77;
    }
    const struct CMUnitTest tests[] = {cmocka_unit_test(survives_kills)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
