/* SPDX-License-Identifier: Apache-2.0 */
/*
 * libsteptape_inject as the process sees it: started by the driver from its environment, ended by
 * exit(), silent all the time but for one line where not even the stream can say what is wrong.
 */
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <dlfcn.h>

#include "capture/cupti/inject_i.h"

_Static_assert((int)STEPTAPE_INJECT_FULL == (int)ST_LEVEL_FULL, "levels");

static struct {
    pthread_mutex_t lock;
    struct st_inject *inject;
    bool tried, at_exit, at_fork;
    int32_t asked, state;
    char message[256];
} process = {.lock = PTHREAD_MUTEX_INITIALIZER};

/* ---- the environment */

/* "1%", "0.5 %" or a share "0.01"; false: neither. */
static bool parse_budget(const char *text, double *share) {
    char *end;
    *share = 0;
    if (!text || !*text)
        return true;
    double value = strtod(text, &end);
    while (*end == ' ')
        end++;
    bool percent = *end == '%';
    if (end == text || end[percent] || !(value > 0) || !isfinite(value))
        return false;
    *share = percent ? value / 100 : value;
    return true;
}

static void own_path(char *path, size_t size) {
    Dl_info info;
    static const char here;
    path[0] = 0;
    if (dladdr(&here, &info) && info.dli_fname)
        snprintf(path, size, "%s", info.dli_fname);
}

static bool same_file(const char *a, const char *b) {
    char *x = realpath(a, NULL), *y = realpath(b, NULL);
    bool same = x && y && strcmp(x, y) == 0;
    free(x);
    free(y);
    return same;
}

/* The driver has one slot for such a library: whose is it?  "" when it is ours or nobody's. */
static void other_injection(char *text, size_t size) {
    char ours[4096];
    const char *set = getenv("CUDA_INJECTION64_PATH");
    own_path(ours, sizeof ours);
    text[0] = 0;
    if (set && *set && !same_file(set, ours))
        snprintf(text, size, "CUDA_INJECTION64_PATH names another tool's library: %s", set);
}

static int read_options(struct st_inject_options *options, char *path, size_t size,
                        struct st_error *err) {
    const char *tape = getenv("STEPTAPE_RECORD");
    const char *level = getenv("STEPTAPE_LAUNCHES");
    const char *budget = getenv("STEPTAPE_OVERHEAD_BUDGET");
    memset(options, 0, sizeof *options);
    options->level = level && *level ? st_launch_level_parse(level) : ST_LEVEL_NODE;
    if (!tape || !*tape)
        options->level = ST_LEVEL_OFF;
    if (options->level == ST_LEVEL_OFF)
        return 0;
    int length = snprintf(path, size, "%s.recording/launches-%ld.stream", tape, (long)getpid());
    if (length < 0 || (size_t)length >= size || tape[0] != '/')
        return ST_FAIL(err, ST_ERR_USAGE, "STEPTAPE_RECORD=%.200s: an absolute path was expected",
                       tape);
    options->stream_path = path;
    if (options->level < 0)
        return ST_FAIL(err, ST_ERR_USAGE,
                       "STEPTAPE_LAUNCHES=%.40s: off, count, graph, node or full was expected",
                       level);
    if (!parse_budget(budget, &options->budget))
        return ST_FAIL(err, ST_ERR_USAGE,
                       "STEPTAPE_OVERHEAD_BUDGET=%.40s: a share such as 1%% was expected", budget);
    return 0;
}

/* ---- start */

static void on_exit_of_process(void) {
    pthread_mutex_lock(&process.lock);
    struct st_inject *in = process.inject;
    pthread_mutex_unlock(&process.lock);
    if (in && in->pid == getpid())
        (void)st_inject_stop(in);
}

/* CUDA does not work in the child, and our worker is not in it. */
static void on_fork_in_child(void) {
    st_inject_calls_forked();
    st_inject_pool_attach(NULL);
    st_inject_hooks_enable(false);
    pthread_mutex_init(&process.lock, NULL);
    process.inject = NULL; /* the parent's, copied: left alone */
    process.tried = false;
    process.state = STEPTAPE_INJECT_IDLE;
}

static void on_fork_before(void) {
    pthread_mutex_lock(&process.lock);
}

static void on_fork_in_parent(void) {
    pthread_mutex_unlock(&process.lock);
}

static int open_and_start(struct st_inject_options *options, struct st_error *err) {
    struct st_cupti_api api;
    const char *home = getenv("CUDA_HOME");
    bool count_alone = options->level == ST_LEVEL_COUNT && st_inject_hooks_present();
    if (count_alone)
        return st_inject_start(NULL, options, &process.inject, err);
    int rc = st_cupti_api_open(NULL, home ? home : getenv("CUDA_PATH"), &api, err);
    if (rc) {
        struct st_error second;
        (void)st_inject_write_refusal(options->stream_path, options, err->msg, &second);
        return rc;
    }
    return st_inject_start(&api, options, &process.inject, err);
}

static void start_process(void) {
    struct st_inject_options options;
    struct st_error err = {0};
    char path[4096], note[4096 + 64];
    int rc = read_options(&options, path, sizeof path, &err);
    process.asked = options.level < 0 ? ST_LEVEL_OFF : options.level;
    if (rc && options.stream_path && options.level < 0) {
        options.level = ST_LEVEL_OFF;
        (void)st_inject_write_refusal(path, &options, err.msg, NULL);
    }
    if (!rc && options.level == ST_LEVEL_OFF)
        return;
    other_injection(note, sizeof note);
    if (!rc && options.level == ST_LEVEL_COUNT && !note[0] && !st_inject_hooks_present())
        snprintf(note, sizeof note,
                 "counted by CUPTI's callbacks, which slow graphs down: the "
                 "library was not preloaded (LD_PRELOAD)");
    options.note = note[0] ? note : NULL;
    if (!rc)
        rc = open_and_start(&options, &err);
    if (rc == 0) {
        process.state = STEPTAPE_INJECT_RUNNING;
        if (!process.at_exit)
            process.at_exit = atexit(on_exit_of_process) == 0;
        return;
    }
    process.state = STEPTAPE_INJECT_FAILED;
    snprintf(process.message, sizeof process.message, "%.255s", err.msg);
    fprintf(stderr, "steptape: launches are not recorded: %s\n", err.msg);
}

int InitializeInjection(void) {
    pthread_mutex_lock(&process.lock);
    if (!process.at_fork)
        process.at_fork = pthread_atfork(on_fork_before, on_fork_in_parent, on_fork_in_child) == 0;
    if (!process.tried) {
        process.tried = true;
        start_process();
    }
    pthread_mutex_unlock(&process.lock);
    return 1;
}

/* ---- what the plug-in calls */

int steptape_inject_step(int64_t sequence) {
    return st_inject_mark(sequence);
}

static struct st_inject *this_inject(void) {
    pthread_mutex_lock(&process.lock);
    struct st_inject *in = process.inject;
    pthread_mutex_unlock(&process.lock);
    return in;
}

int steptape_inject_flush(void) {
    struct st_inject *in = this_inject();
    return in ? st_inject_flush(in) : 0;
}

static void fill_running(struct st_inject *in, struct steptape_inject_stats *s) {
    struct st_inject_calls_total calls;
    st_inject_calls_total(&calls);
    s->kernel_launches = calls.kernel_launches;
    s->graph_launches = calls.graph_launches;
    s->steps_lost = calls.steps_lost;
    pthread_mutex_lock(&in->pool.lock);
    s->buffer_bytes = (int64_t)in->pool.made * (int64_t)in->pool.bytes;
    pthread_mutex_unlock(&in->pool.lock);
    pthread_mutex_lock(&in->lock);
    s->state = in->state;
    s->level = in->capture_level;
    s->asked = in->options.level;
    s->cupti_version = in->has_api ? in->api.version : 0;
    s->steps = in->published.steps;
    s->records = in->published.records;
    s->dropped = in->published.dropped;
    s->untimed = in->published.untimed;
    s->reversed = in->published.reversed;
    s->unattributed = in->published.unattributed;
    s->other = in->published.other;
    s->bytes = in->published.bytes;
    s->cost_share = in->estimate.share;
    s->cost_ns_per_launch = in->estimate.ns_per_launch;
    memcpy(s->message, in->message, sizeof s->message);
    pthread_mutex_unlock(&in->lock);
}

int steptape_inject_get_stats(struct steptape_inject_stats *stats) {
    struct steptape_inject_stats s = {.cost_share = NAN, .cost_ns_per_launch = NAN};
    if (!stats || stats->struct_size < sizeof stats->struct_size)
        return -1;
    uint32_t size = stats->struct_size < sizeof s ? stats->struct_size : (uint32_t)sizeof s;
    struct st_inject *in = this_inject();
    if (in) {
        fill_running(in, &s);
    } else {
        pthread_mutex_lock(&process.lock);
        s.state = process.state;
        s.asked = process.asked;
        memcpy(s.message, process.message, sizeof s.message);
        if (!process.tried)
            other_injection(s.message, sizeof s.message);
        pthread_mutex_unlock(&process.lock);
    }
    s.struct_size = stats->struct_size;
    memcpy(stats, &s, size);
    return 0;
}
