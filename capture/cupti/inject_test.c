/* SPDX-License-Identifier: Apache-2.0 */
/* Launch capture over a fake CUPTI: no GPU and no CUDA headers needed. */
#include "capture/cupti/inject_testing.h"

#include <fcntl.h>
#include <math.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>
#include <cmocka.h>

#include "steptape/inject.h"

static char folder[] = "/tmp/steptape-inject-XXXXXX";
static char stream_path[128];
static int stream_number;

/* The hooks are the library's; here calls come from the fake. */
bool st_inject_hooks_present(void) {
    return false;
}

void st_inject_hooks_enable(bool on) {
    (void)on;
}

/* What InitializeInjection() opens. */
static struct fake_cupti process_fake;
static bool no_cupti;

int st_cupti_api_open(const char *path, const char *cuda_home, struct st_cupti_api *api,
                      struct st_error *err) {
    (void)path, (void)cuda_home;
    if (no_cupti)
        return ST_FAIL(err, ST_ERR_UNAVAILABLE, "CUPTI is not installed");
    *api = fake_api(&process_fake);
    return 0;
}

static struct st_inject *start(struct fake_cupti *f, struct st_inject_options *o) {
    struct st_inject *in = NULL;
    struct st_error err = {0};
    struct st_cupti_api api = fake_api(f);
    snprintf(stream_path, sizeof stream_path, "%s/x-%d.tape.recording/launches-1.stream", folder,
             stream_number++);
    o->stream_path = stream_path;
    if (o->level == 0)
        o->level = ST_LEVEL_NODE;
    if (!o->buffer_bytes)
        o->buffer_bytes = 1 << 16;
    if (st_inject_start(&api, o, &in, &err) != 0)
        fail_msg("%s", err.msg);
    return in;
}

static void stop(struct st_inject *in) {
    assert_true(st_inject_stop(in));
    st_inject_destroy(in);
}

/* So whoever tidies the folder knows that the process lives. */
static void a_stream_is_locked_while_it_grows(void **state) {
    (void)state;
    struct fake_cupti f;
    struct st_inject_options o = {0};
    fake_init(&f);
    struct st_inject *in = start(&f, &o);
    int fd = open(stream_path, O_RDONLY);
    assert_int_equal(flock(fd, LOCK_EX | LOCK_NB), -1);
    stop(in);
    assert_int_equal(flock(fd, LOCK_EX | LOCK_NB), 0);
    close(fd);
    fake_fini(&f);
}

static void kernels_and_graphs(void **state) {
    (void)state;
    struct fake_cupti f;
    struct st_inject_options o = {.block_launches = 1000};
    struct read_stream s;
    fake_init(&f);
    f.patient = 1;
    f.records_a_buffer = 200;
    struct st_inject *in = start(&f, &o);
    assert_int_equal(f.subscribed + f.registered + f.calls_on, 3);
    assert_int_equal(f.records_on, ST_CUPTI_KERNELS | ST_CUPTI_COPIES);
    uint64_t exec = fake_graph(&f, 20); /* captured calls launch nothing */
    fake_launch(&f, "before", 1);
    for (int step = 0; step < 300; step++) {
        st_inject_mark(step);
        fake_launch(&f, "first", 3);
        fake_launch(&f, "second", step % 4);
        if (step % 3)
            fake_graph_launch(&f, exec, 20);
    }
    st_inject_mark(-1);
    /* The record of a copy, which comes with the kernels of copies in graphs. */
    fake_record(&f, FAKE_KERNEL, &(struct st_launch_site){.kind = ST_LAUNCH_MEMCPY}, 1, 5, 6);
    fake_launch(&f, "after", 1);
    stop(in);
    assert_int_equal(f.dirty, 0);
    assert_int_equal(f.closed, 1);

    read_stream(stream_path, &s);
    assert_true(s.ended);
    assert_int_equal(s.torn, 0);
    assert_int_equal(s.launches, 2 + 300 * 2 + 200 * 20);
    assert_int_equal(s.sites, 2 + 1 + 4 + 20);
    assert_int_equal(s.steps, 300);
    int64_t in_step[300] = {0}, outside = 0;
    for (int64_t i = 0; i < s.launches; i++) {
        const struct st_launch_record *l = &s.launch[i];
        const struct st_launch_site *site = &s.site[l->site];
        if (l->sequence == ST_LAUNCH_OUTSIDE) {
            assert_true(!strcmp(site->name, "before") || !strcmp(site->name, "after"));
            outside++;
            continue;
        }
        assert_true(l->sequence >= 0 && l->sequence < 300);
        in_step[l->sequence]++;
        if (site->graph_id)
            assert_int_equal(site->grid[0] - 1, site->graph_node_id & 0xffffffff);
        else
            assert_true(strcmp(site->name, "first") == 0 ? site->grid[0] == 3
                                                         : site->grid[0] == l->sequence % 4);
    }
    assert_int_equal(outside, 2);
    for (int step = 0; step < 300; step++) {
        assert_int_equal(in_step[step], step % 3 ? 22 : 2);
        assert_int_equal(s.step[step].sequence, step);
        assert_int_equal(s.step[step].level, ST_LEVEL_NODE);
        assert_int_equal(s.step[step].changed, 0);
        assert_int_equal(s.step[step].kernel_launches, 2);
        assert_int_equal(s.step[step].graph_launches, step % 3 != 0);
        assert_int_equal(s.step[step].graph_kernels, step % 3 ? 20 : 0);
        assert_true(s.step[step].start_ns > 0 && s.step[step].duration_ns >= 0);
    }
    assert_int_equal(stream_total(&s, "records"), s.launches);
    assert_int_equal(stream_total(&s, "dropped"), 0);
    assert_int_equal(stream_total(&s, "unattributed"), 0);
    read_stream_fini(&s);
    fake_fini(&f);
}

static void counts_what_is_wrong(void **state) {
    (void)state;
    struct fake_cupti f;
    struct st_inject_options o = {.level = ST_LEVEL_FULL};
    struct read_stream s;
    const struct st_launch_site site = {.name = "k", .grid = {1, 1, 1}};
    fake_init(&f);
    struct st_inject *in = start(&f, &o);
    assert_int_equal(f.records_on,
                     ST_CUPTI_KERNELS | ST_CUPTI_COPIES | ST_CUPTI_MEMSETS | ST_CUPTI_CALLS);
    assert_int_equal(f.memory_on, 1);
    uint32_t call = fake_launch(&f, "good", 1);
    fake_record(&f, FAKE_KERNEL, &site, call, 0, 50);
    fake_record(&f, FAKE_KERNEL, &site, call, 0, 0);
    fake_record(&f, FAKE_KERNEL, &site, call, 90, 50);
    fake_record(&f, FAKE_KERNEL, &site, 77777, 10, 50); /* nobody made this call */
    fake_record(&f, FAKE_OTHER, NULL, 1, 0, 0);
    fake_record(&f, FAKE_BROKEN, NULL, 1, 0, 0);
    fake_record(&f, FAKE_KERNEL, &site, call, 10, 50); /* behind the broken one */
    f.dropped = 5;
    assert_int_equal(st_inject_flush(in), 0);
    f.dropped = 2;
    stop(in);
    read_stream(stream_path, &s);
    assert_int_equal(s.launches, 5);
    assert_int_equal(stream_total(&s, "untimed"), 2);
    assert_int_equal(stream_total(&s, "reversed"), 1);
    assert_int_equal(stream_total(&s, "unattributed"), 1);
    assert_int_equal(stream_total(&s, "other"), 2);
    assert_int_equal(stream_total(&s, "dropped"), 7);
    assert_int_equal(s.launch[4].sequence, ST_LAUNCH_UNATTRIBUTED);
    read_stream_fini(&s);
    fake_fini(&f);
}

/* CUPTI holds all buffers: it gets no more, what does not fit is dropped and counted. */
static void memory_is_bounded(void **state) {
    (void)state;
    struct fake_cupti f;
    struct st_inject_options o = {.buffer_count = 4};
    struct read_stream s;
    fake_init(&f);
    f.records_a_buffer = 10;
    f.hold = 1;
    struct st_inject *in = start(&f, &o);
    int launched =
        0; /* the worker may put clean buffers in store, when it comes to it: four in all */
    for (; launched < 1000 || f.held_count < 4; launched++) {
        fake_launch(&f, "k", 1);
        if (launched % 10 == 0)
            usleep(2000);
    }
    assert_int_equal(f.held_count, 4);
    pthread_mutex_lock(&in->pool.lock);
    assert_int_equal(in->pool.made, 4);
    assert_true(in->pool.refused > 0);
    pthread_mutex_unlock(&in->pool.lock);
    stop(in);
    read_stream(stream_path, &s);
    assert_int_equal(s.launches, 40);
    assert_int_equal(stream_total(&s, "dropped"), launched - 40);
    assert_int_equal(stream_total(&s, "kernel_launches") >= launched, 1);
    read_stream_fini(&s);
    fake_fini(&f);
}

static void other_tool_is_named(void **state) {
    (void)state;
    struct fake_cupti f;
    struct st_cupti_api api;
    struct st_inject_options o = {.level = ST_LEVEL_NODE};
    struct st_inject *in = NULL;
    struct st_error err = {0};
    struct read_stream s;
    fake_init(&f);
    f.subscribe_result = ST_CUPTI_MULTIPLE_SUBSCRIBERS;
    f.other_tool = "CUPTI for Nsight Systems";
    api = fake_api(&f);
    snprintf(stream_path, sizeof stream_path, "%s/other.tape.recording/launches-1.stream", folder);
    o.stream_path = stream_path;
    assert_int_equal(st_inject_start(&api, &o, &in, &err), ST_ERR_UNAVAILABLE);
    assert_int_equal(err.native, 39);
    assert_non_null(strstr(err.msg, "Nsight Systems"));
    assert_int_equal(f.closed, 1);
    /* The engine goes on: its marks and calls find nobody. */
    assert_int_equal(st_inject_mark(5), 0);
    st_inject_mark(-1);
    read_stream(stream_path, &s);
    assert_true(s.ended);
    assert_non_null(strstr(s.notes, "Nsight Systems"));
    assert_int_equal(s.launches, 0);
    read_stream_fini(&s);
    /* A kind of records that this GPU does not give. */
    f.subscribe_result = 0;
    f.enable_result = 27;
    api = fake_api(&f);
    assert_int_equal(st_inject_start(&api, &o, &in, &err), ST_ERR_NATIVE);
    assert_non_null(strstr(err.msg, "CUPTI_ERROR_FAKE (27)"));
    assert_int_equal(f.subscribed, 0);
    fake_fini(&f);
}

/* What a program that was started without stdio prints does not go into the stream. */
static void stdio_is_closed(void **state) {
    (void)state;
    int status;
    pid_t pid = fork();
    if (pid == 0) {
        struct fake_cupti f = {0};
        struct st_inject_options o = {0};
        for (int fd = 0; fd < 3; fd++)
            close(fd);
        start(&f, &o);
        for (int fd = 0; fd < 3; fd++)
            if (write(fd, "a line\n", 7) >= 0)
                _exit(1);
        _exit(0);
    }
    stream_number++; /* the child's */
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_int_equal(status, 0);
}

/* Said once; capture ends, the engine goes on. */
static void a_full_disk(void **state) {
    (void)state;
    struct fake_cupti f;
    struct st_inject_options o = {.block_launches = 50};
    struct rlimit before, small = {2000, 2000};
    struct read_stream s;
    fake_init(&f);
    struct st_inject *in = start(&f, &o);
    signal(SIGXFSZ, SIG_IGN);
    getrlimit(RLIMIT_FSIZE, &before);
    small.rlim_max = before.rlim_max;
    setrlimit(RLIMIT_FSIZE, &small);
    int rc = 0;
    for (int i = 0; i < 20000 && rc == 0; i++) {
        fake_launch(&f, "k", i);
        if (i % 500 == 0)
            rc = st_inject_flush(in);
    }
    setrlimit(RLIMIT_FSIZE, &before);
    assert_int_equal(rc, -1);
    pthread_mutex_lock(&in->lock);
    assert_int_equal(in->state, STEPTAPE_INJECT_FAILED);
    assert_non_null(strstr(in->message, "recorded up to here"));
    pthread_mutex_unlock(&in->lock);
    /* At the next step mark; where none comes, after a while. */
    while (atomic_load(&in->level) != ST_LEVEL_OFF)
        usleep(10000);
    pthread_mutex_lock(&f.lock);
    assert_int_equal(f.records_on, 0);
    assert_int_equal(f.calls_on, 0);
    pthread_mutex_unlock(&f.lock);
    stop(in);
    read_stream(stream_path, &s);
    assert_false(s.ended);
    read_stream_fini(&s);
    fake_fini(&f);
}

static void *launch_in_thread(void *fake) {
    for (int step = 0; step < 200; step++) {
        st_inject_mark(1000 + step);
        fake_launch(fake, "thread", 1);
    }
    st_inject_mark(-1);
    return NULL;
}

static void many_threads(void **state) {
    (void)state;
    enum { THREADS = 4 };
    struct fake_cupti f;
    struct st_inject_options o = {.buffer_count = 32};
    struct read_stream s;
    pthread_t thread[THREADS];
    fake_init(&f);
    f.records_a_buffer = 25;
    struct st_inject *in = start(&f, &o);
    for (int i = 0; i < THREADS; i++)
        assert_int_equal(pthread_create(&thread[i], NULL, launch_in_thread, &f), 0);
    for (int i = 0; i < 5; i++)
        assert_int_equal(st_inject_flush(in), 0);
    for (int i = 0; i < THREADS; i++)
        pthread_join(thread[i], NULL);
    stop(in);
    read_stream(stream_path, &s);
    assert_int_equal(s.launches + stream_total(&s, "dropped"), THREADS * 200);
    assert_int_equal(s.steps + stream_total(&s, "steps_lost"), THREADS * 200);
    for (int64_t i = 0; i < s.launches; i++)
        assert_true(s.launch[i].sequence >= 1000 && s.launch[i].sequence < 1200);
    read_stream_fini(&s);
    fake_fini(&f);
}

/* ---- the budget */

static enum st_budget_advice run_windows(struct st_inject_budget *b, double cost, int windows) {
    int64_t now_ns = b->window_begin_ns;
    enum st_budget_advice advice = ST_BUDGET_STAY;
    for (int w = 0; w < windows;) {
        struct st_launch_step s = {.start_ns = now_ns,
                                   .level = b->on ? ST_LEVEL_NODE : ST_LEVEL_OFF,
                                   .kernel_launches = b->on ? 100 : -1};
        int64_t drift = now_ns / 1000000 % 7 * 1000; /* steps are never alike */
        s.duration_ns = (int64_t)((b->on ? 1 + cost : 1) * 1000000) + drift;
        now_ns += s.duration_ns;
        st_budget_add(b, &s);
        advice = st_budget_look(b, now_ns);
        w += advice != ST_BUDGET_STAY;
        if (advice == ST_BUDGET_STEP_DOWN)
            return advice;
        b->window_begin_ns = advice == ST_BUDGET_STAY ? b->window_begin_ns : now_ns;
    }
    return advice;
}

static void the_budget_is_kept(void **state) {
    (void)state;
    struct st_inject_budget b;
    struct st_budget_estimate e;
    st_budget_init(&b, 0.01, 10000000, 16, ST_LEVEL_NODE, 1000);
    assert_int_equal(run_windows(&b, 0.05, 40), ST_BUDGET_STEP_DOWN);
    st_budget_estimate(&b, &e);
    assert_true(fabs(e.share - 0.05) < 0.003);
    assert_true(fabs(e.ns_per_launch - 500) < 30);
    assert_true(e.pairs >= ST_BUDGET_PAIRS_MIN);
    st_budget_restart(&b, ST_LEVEL_NODE, b.window_begin_ns);
    st_budget_estimate(&b, &e);
    assert_true(isnan(e.share));
    assert_int_not_equal(run_windows(&b, 0.001, 40), ST_BUDGET_STEP_DOWN);
    assert_true(b.settled);
    st_budget_estimate(&b, &e);
    assert_true(fabs(e.share - 0.001) < 0.003);
    /* Without a budget there are no windows. */
    st_budget_init(&b, 0, 10000000, 16, ST_LEVEL_NODE, 1000);
    for (int64_t i = 0; i < 1000; i++)
        assert_int_equal(st_budget_look(&b, 1000000000 + i * 10000000), ST_BUDGET_STAY);
}

static void windows_alternate(void **state) {
    (void)state;
    assert_int_equal(st_inject_lower_level(ST_LEVEL_FULL), ST_LEVEL_NODE);
    assert_int_equal(st_inject_lower_level(ST_LEVEL_NODE), ST_LEVEL_COUNT);
    assert_int_equal(st_inject_lower_level(ST_LEVEL_GRAPH), ST_LEVEL_COUNT);
    assert_int_equal(st_inject_lower_level(ST_LEVEL_COUNT), ST_LEVEL_OFF);
    struct fake_cupti f;
    struct st_inject_options o = {
        .budget = 1e-9, .window_ns = 1, .window_steps = 4, .level = ST_LEVEL_GRAPH};
    struct read_stream s;
    fake_init(&f);
    struct st_inject *in = start(&f, &o);
    /* Steps with capture take longer: over any budget, down to off. */
    for (int step = 0;; step++) {
        st_inject_mark(step);
        usleep(atomic_load(&in->level) == ST_LEVEL_OFF ? 200 : 600);
        fake_launch(&f, "k", 1);
        if (step % 8 == 7)
            usleep(25000); /* the worker looks every 20 ms */
        pthread_mutex_lock(&in->lock);
        bool off = in->capture_level == ST_LEVEL_OFF;
        pthread_mutex_unlock(&in->lock);
        if (off)
            break;
    }
    st_inject_mark(-1);
    /* What cannot be turned on again stays on. */
    assert_int_equal(f.records_on & ST_CUPTI_GRAPHS, ST_CUPTI_GRAPHS);
    assert_int_equal(f.graphs_enabled, 1);
    stop(in);
    read_stream(stream_path, &s);
    int64_t off = 0, on = 0;
    for (int64_t i = 0; i < s.steps; i++) {
        off += s.step[i].level == ST_LEVEL_OFF;
        on += s.step[i].level == ST_LEVEL_GRAPH;
        assert_true(s.step[i].level != ST_LEVEL_OFF || s.step[i].kernel_launches == -1);
        assert_int_equal(s.step[i].changed, 0); /* CUPTI is switched between steps */
    }
    assert_true(off > 0 && on > 0);
    assert_non_null(strstr(s.notes, "what=over budget"));
    assert_non_null(strstr(s.notes, "cost_share="));
    assert_non_null(strstr(s.notes, "level=count"));
    read_stream_fini(&s);
    fake_fini(&f);
}

/* ---- the process */

static void set_up_process(const char *level) {
    char tape[96];
    snprintf(tape, sizeof tape, "%s/process.tape", folder);
    setenv("STEPTAPE_RECORD", tape, 1);
    setenv("STEPTAPE_LAUNCHES", level, 1);
    unsetenv("STEPTAPE_OVERHEAD_BUDGET");
    unsetenv("CUDA_INJECTION64_PATH");
}

static void process_stream(char *path, size_t size, pid_t pid) {
    snprintf(path, size, "%s/process.tape.recording/launches-%ld.stream", folder, (long)pid);
}

static struct steptape_inject_stats stats_now(void) {
    struct steptape_inject_stats s = {.struct_size = sizeof s};
    assert_int_equal(steptape_inject_get_stats(&s), 0);
    return s;
}

/* Ends as multiprocessing's children do, without exit handlers. */
static void child_of_fork(void) {
    int wrong = 0;
    wrong += steptape_inject_step(3) != 0; /* the parent's capture is not ours */
    wrong += stats_now().state != STEPTAPE_INJECT_IDLE;
#ifndef __SANITIZE_THREAD__ /* it starts no threads after such a fork */
    fake_init(&process_fake);
    wrong += InitializeInjection() != 1;
    wrong += stats_now().state != STEPTAPE_INJECT_RUNNING;
    steptape_inject_step(4);
    fake_launch(&process_fake, "child", 1);
    steptape_inject_step(-1);
    wrong += steptape_inject_flush() != 0;
#endif
    _exit(wrong);
}

static bool child_recorded(pid_t child) {
    struct read_stream s;
    char path[160];
    process_stream(path, sizeof path, child);
#ifdef __SANITIZE_THREAD__
    return access(path, F_OK) != 0;
#endif
    read_stream(path, &s);
    bool as_it_did = !s.ended && s.launches == 1 && s.launch[0].sequence == 4 &&
                     strcmp(s.site[s.launch[0].site].name, "child") == 0;
    read_stream_fini(&s);
    return as_it_did;
}

/* In a forked process a failed assertion would go on with the tests. */
#define CHECK(condition)                                                                           \
    do {                                                                                           \
        if (!(condition)) {                                                                        \
            fprintf(stderr, "line %d: %s\n", __LINE__, #condition);                                \
            _exit(1);                                                                              \
        }                                                                                          \
    } while (0)

static int run_process(void) {
    struct read_stream s;
    char path[160];
    int status;
    fake_init(&process_fake);
    CHECK(stats_now().state == STEPTAPE_INJECT_IDLE);
    setenv("CUDA_INJECTION64_PATH", "/usr/lib/libToolsInjection64.so", 1);
    CHECK(strstr(stats_now().message, "libToolsInjection64.so"));
    unsetenv("CUDA_INJECTION64_PATH");
    steptape_inject_step(1); /* before CUDA: kept for the thread */
    CHECK(InitializeInjection() == 1);
    CHECK(InitializeInjection() == 1);
    CHECK(process_fake.clocks == 1);
    fake_launch(&process_fake, "parent", 1);
    steptape_inject_step(2);
    fake_launch(&process_fake, "parent", 1);
    pid_t child = fork();
    if (child == 0)
        child_of_fork();
    CHECK(waitpid(child, &status, 0) == child);
    CHECK(status == 0);
    steptape_inject_step(-1);
    CHECK(steptape_inject_flush() == 0);
    struct steptape_inject_stats now = stats_now();
    CHECK(now.state == STEPTAPE_INJECT_RUNNING);
    CHECK(now.records == 2);
    CHECK(now.steps == 1);
    CHECK(now.cupti_version == 130001);
    CHECK(child_recorded(child));
    process_stream(path, sizeof path, getpid());
    read_stream(path, &s);
    CHECK(!s.ended);
    CHECK(s.launches == 2);
    CHECK(s.launch[0].sequence == 1);
    read_stream_fini(&s);
    return 0;
}

/* In a process of its own: a capture lives as long as its process. */
static pid_t in_process(int (*body)(void)) {
    fflush(NULL);
    pid_t pid = fork();
    if (pid == 0)
        exit(body());
    int status;
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_int_equal(status, 0);
    return pid;
}

static void a_process_and_its_child(void **state) {
    (void)state;
    struct read_stream s;
    char path[160];
    set_up_process("node");
    pid_t pid = in_process(run_process);
    process_stream(path, sizeof path, pid);
    read_stream(path, &s);
    assert_true(s.ended); /* by its exit handler */
    assert_int_equal(s.launches, 2);
    read_stream_fini(&s);
}

static int run_without_cupti(void) {
    no_cupti = true;
    (void)!freopen("/dev/null", "w", stderr);
    InitializeInjection();
    struct steptape_inject_stats s = stats_now();
    return s.state != STEPTAPE_INJECT_FAILED || !strstr(s.message, "not installed") ||
           steptape_inject_step(1) != 0 || steptape_inject_flush() != 0;
}

static int run_off(void) {
    InitializeInjection();
    return stats_now().state != STEPTAPE_INJECT_IDLE || process_fake.subscribed;
}

static void what_the_environment_says(void **state) {
    (void)state;
    struct read_stream s;
    char path[160];
    set_up_process("node");
    process_stream(path, sizeof path, in_process(run_without_cupti));
    read_stream(path, &s);
    assert_true(s.ended);
    assert_non_null(strstr(s.notes, "CUPTI is not installed"));
    read_stream_fini(&s);
    set_up_process("off");
    process_stream(path, sizeof path, in_process(run_off));
    assert_int_equal(access(path, F_OK), -1);
    set_up_process("node");
    unsetenv("STEPTAPE_RECORD");
    in_process(run_off);
    uint32_t tiny = 3;
    assert_int_equal(steptape_inject_get_stats((struct steptape_inject_stats *)(void *)&tiny), -1);
}

static int setup(void **state) {
    (void)state;
    return mkdtemp(folder) ? 0 : -1;
}

static int teardown(void **state) {
    (void)state;
    char command[96];
    snprintf(command, sizeof command, "rm -r %s", folder);
    return system(command);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        /* First: what a process does once is not done yet. */
        cmocka_unit_test(a_process_and_its_child),
        cmocka_unit_test(what_the_environment_says),
        cmocka_unit_test(a_stream_is_locked_while_it_grows),
        cmocka_unit_test(kernels_and_graphs),
        cmocka_unit_test(counts_what_is_wrong),
        cmocka_unit_test(memory_is_bounded),
        cmocka_unit_test(other_tool_is_named),
        cmocka_unit_test(a_full_disk),
        cmocka_unit_test(stdio_is_closed),
        cmocka_unit_test(many_threads),
        cmocka_unit_test(the_budget_is_kept),
        cmocka_unit_test(windows_alternate),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
