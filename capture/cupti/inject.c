/* SPDX-License-Identifier: Apache-2.0 */
/* A capture from start to end.  The process's own, with its environment: inject_process.c. */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "capture/cupti/inject_i.h"
#include "traces/base/descriptor.h"

enum {
    BUFFER_BYTES = 4 << 20, /* CUPTI advises 1 to 10 MB */
    BUFFER_COUNT = 24,      /* 96 MB at the most: half a second of 400,000 kernels a second */
    BLOCK_LAUNCHES = 1 << 15,
    FLUSH_NS = 500000000,
    WINDOW_NS = 250000000,
    WINDOW_STEPS = 32,
    END_SECONDS = 10,
    NAMES_TRIED = 100
};

void st_inject_message(struct st_inject *in, const char *format, ...) {
    va_list ap;
    va_start(ap, format);
    pthread_mutex_lock(&in->lock);
    vsnprintf(in->message, sizeof in->message, format, ap);
    pthread_mutex_unlock(&in->lock);
    va_end(ap);
}

/* ---- the file */

/* The folder is the recorder's; whoever comes first makes it. */
static int make_folder(const char *path, struct st_error *err) {
    char folder[4096];
    const char *slash = strrchr(path, '/');
    if (!slash || (size_t)(slash - path) >= sizeof folder)
        return ST_FAIL(err, ST_ERR_USAGE, "%s: an absolute path was expected", path);
    memcpy(folder, path, (size_t)(slash - path));
    folder[slash - path] = 0;
    if (mkdir(folder, 0700) < 0 && errno != EEXIST)
        return ST_FAIL_NATIVE(err, ST_ERR_IO, errno, "%s: %s", folder, strerror(errno));
    return 0;
}

/* Its lock says for whoever tidies the folder that the process lives.  Who tidies may have come
 * between the making and the lock. */
static bool hold(int fd) {
    struct stat st;
    bool held = flock(fd, LOCK_EX | LOCK_NB) == 0 || errno != EWOULDBLOCK; /* not every disk can */
    return held && fstat(fd, &st) == 0 && st.st_nlink > 0;
}

/* Process numbers come round again: an older file is never written into. */
static int open_stream(const char *wanted, char **path, int *fd, struct st_error *err) {
    ST_TRY(make_folder(wanted, err));
    size_t stem = strlen(wanted);
    const char *dot = strrchr(wanted, '.');
    if (dot && dot > strrchr(wanted, '/'))
        stem = (size_t)(dot - wanted);
    for (int n = 0; n < NAMES_TRIED; n++) {
        char *name = NULL;
        int made = n ? asprintf(&name, "%.*s-%d%s", (int)stem, wanted, n, wanted + stem)
                     : asprintf(&name, "%s", wanted);
        if (made < 0)
            return ST_FAIL_NOMEM(err);
        *fd = st_descriptor_above_stdio(
            open(name, O_WRONLY | O_CREAT | O_EXCL | O_APPEND | O_CLOEXEC | O_NOFOLLOW, 0600));
        if (*fd >= 0 && hold(*fd)) {
            *path = name;
            return 0;
        }
        int native = *fd >= 0 ? EEXIST : errno;
        if (*fd >= 0)
            close(*fd);
        if (native != EEXIST) {
            int rc = ST_FAIL_NATIVE(err, ST_ERR_IO, native, "%s: %s", name, strerror(native));
            free(name);
            return rc;
        }
        free(name);
    }
    return ST_FAIL(err, ST_ERR_IO, "%s: exists, as do %d others", wanted, NAMES_TRIED - 1);
}

/* Why there is nothing more, and the end. */
static int put_reason(struct st_bytes *out, const char *reason, struct st_error *err) {
    struct st_bytes text = {0};
    st_chunk_text(&text, "t_ns", "%" PRId64, st_inject_now_ns());
    st_chunk_text(&text, "what", "error");
    st_chunk_text(&text, "level", "off");
    st_chunk_text(&text, "text", "%s", reason);
    int rc = st_chunk_put(out, ST_CHUNK_NOTE, text.data, text.size, err);
    st_bytes_fini(&text);
    return rc ? rc : st_chunk_put(out, ST_CHUNK_END, "", 0, err);
}

int st_inject_write_refusal(const char *path, const struct st_inject_options *options,
                            const char *reason, struct st_error *err) {
    struct st_bytes text = {0}, out = {0};
    char *name = NULL;
    int fd = -1;
    ST_TRY(open_stream(path, &name, &fd, err));
    st_chunk_text(&text, "pid", "%ld", (long)getpid());
    st_chunk_text(&text, "asked", "%s", st_launch_level_name(options->level));
    if (options->note)
        st_chunk_text(&text, "note", "%s", options->note);
    int rc = st_chunk_put(&out, ST_CHUNK_HEAD, text.data, text.size, err);
    if (!rc)
        rc = put_reason(&out, reason, err);
    if (!rc && write(fd, out.data, out.size) != (ssize_t)out.size)
        rc = ST_FAIL_NATIVE(err, ST_ERR_IO, errno, "%s: %s", name, strerror(errno));
    st_bytes_fini(&text);
    st_bytes_fini(&out);
    close(fd);
    free(name);
    return rc;
}

/* ---- levels */

static unsigned records_of(int32_t level) {
    switch (level) {
    case ST_LEVEL_GRAPH:
        return ST_CUPTI_KERNELS | ST_CUPTI_GRAPHS;
    case ST_LEVEL_NODE:
        /* With copies: a copy in a graph runs as a kernel, which CUPTI gives only then.  The
         * records of the copies themselves are left to the level `full`. */
        return ST_CUPTI_KERNELS | ST_CUPTI_COPIES;
    case ST_LEVEL_FULL:
        return ST_CUPTI_KERNELS | ST_CUPTI_COPIES | ST_CUPTI_MEMSETS | ST_CUPTI_CALLS;
    default:
        return 0;
    }
}

static int fail_cupti(struct st_inject *in, const char *what, int result, struct st_error *err) {
    return ST_FAIL_NATIVE(err, ST_ERR_NATIVE, result, "%s: %s failed: %s (%d)", in->api.library,
                          what, in->api.text(in->api.self, result), result);
}

/* GRAPHS is turned on at the start or never, and stays on: turned on while graphs exist that were
 * instantiated without it, CUPTI 13.0 ends the process. */
static int set_cupti(struct st_inject *in, int32_t old, int32_t level, struct st_error *err) {
    unsigned before = records_of(old) | in->kept, after = records_of(level) | in->kept;
    int result = ST_CUPTI_SUCCESS;
    in->kept = after & ST_CUPTI_GRAPHS;
    if (before & ~after)
        result = in->api.enable_records(in->api.self, before & ~after, 0);
    int calls = level != ST_LEVEL_OFF, memory = level == ST_LEVEL_FULL;
    if (result == ST_CUPTI_SUCCESS && (calls != in->calls_on || memory != in->memory_on))
        result = in->api.enable_calls(in->api.self, calls, memory);
    in->calls_on = calls;
    in->memory_on = memory;
    if (result != ST_CUPTI_SUCCESS)
        return fail_cupti(in, "turning records off", result, err);
    if (after & ~before)
        result = in->api.enable_records(in->api.self, after & ~before, 1);
    return result == ST_CUPTI_SUCCESS ? 0 : fail_cupti(in, "cuptiActivityEnable", result, err);
}

int32_t st_inject_lower_level(int32_t level) {
    return level == ST_LEVEL_NODE ? ST_LEVEL_COUNT : level - 1;
}

static int set_level_locked(struct st_inject *in, int32_t level, struct st_error *err) {
    int32_t old = atomic_load(&in->level);
    if (level == old)
        return 0;
    atomic_fetch_add(&in->generation, 1);
    int rc = 0;
    if (in->has_api)
        rc = set_cupti(in, old, level, err);
    else
        st_inject_hooks_enable(level != ST_LEVEL_OFF);
    atomic_store(&in->level, level);
    atomic_fetch_add(&in->generation, 1);
    return rc;
}

static int set_level(struct st_inject *in, int32_t level, struct st_error *err) {
    pthread_mutex_lock(&in->level_lock);
    int rc = set_level_locked(in, level, err);
    pthread_mutex_unlock(&in->level_lock);
    return rc;
}

void st_inject_want_level(struct st_inject *in, int32_t level) {
    atomic_store(&in->wanted, level);
}

/* A thread that finds another one at it goes on: its launches are that other's to miss. */
void st_inject_apply_level(struct st_inject *in) {
    struct st_error err = {0};
    if (pthread_mutex_trylock(&in->level_lock) != 0)
        return;
    int32_t level = atomic_exchange(&in->wanted, -1);
    int rc = level < 0 ? 0 : set_level_locked(in, level, &err);
    pthread_mutex_unlock(&in->level_lock);
    if (rc)
        st_inject_message(in, "%s", err.msg);
}

/* ---- start */

static void set_defaults(struct st_inject_options *o) {
    if (!o->buffer_bytes)
        o->buffer_bytes = BUFFER_BYTES;
    if (!o->buffer_count)
        o->buffer_count = BUFFER_COUNT;
    if (!o->block_launches)
        o->block_launches = BLOCK_LAUNCHES;
    if (!o->flush_ns)
        o->flush_ns = FLUSH_NS;
    if (!o->window_ns)
        o->window_ns = WINDOW_NS;
    if (!o->window_steps)
        o->window_steps = WINDOW_STEPS;
}

static int allocate(struct st_inject *in, struct st_error *err) {
    in->steps = calloc(ST_INJECT_STEPS, sizeof *in->steps);
    if (!in->steps)
        return ST_FAIL_NOMEM(err);
    if (!in->has_api)
        return 0;
    in->calls = calloc(ST_INJECT_CALLS, sizeof *in->calls);
    in->batch = calloc(ST_INJECT_BATCH, sizeof *in->batch);
    if (!in->calls || !in->batch)
        return ST_FAIL_NOMEM(err);
    return st_launch_encoder_create(&in->encoder, err);
}

static uint64_t clock_for_cupti(void) {
    return (uint64_t)st_inject_now_ns();
}

/* One clock a process: another one would damage the record in between. */
static int set_clock(struct st_inject *in, struct st_error *err) {
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    static bool done;
    pthread_mutex_lock(&lock);
    int result = done ? ST_CUPTI_SUCCESS : in->api.set_clock(in->api.self, clock_for_cupti);
    done |= result == ST_CUPTI_SUCCESS;
    pthread_mutex_unlock(&lock);
    return result == ST_CUPTI_SUCCESS
               ? 0
               : fail_cupti(in, "cuptiActivityRegisterTimestampCallback", result, err);
}

static int attach_cupti(struct st_inject *in, struct st_error *err) {
    char other[ST_CUPTI_SUBSCRIBER_NAME_BYTES] = "";
    int result =
        in->api.subscribe_launches(in->api.self, st_inject_on_call, st_inject_on_graph, other);
    if (result == ST_CUPTI_MULTIPLE_SUBSCRIBERS) {
        other[sizeof other - 1] = 0;
        bool named = other[0] && other[0] != '<'; /* CUPTI writes "<not provided>" */
        return ST_FAIL_NATIVE(err, ST_ERR_UNAVAILABLE, result,
                              "no launches: CUPTI is held by another tool (%s)",
                              named ? other : "CUPTI does not say which");
    }
    if (result != ST_CUPTI_SUCCESS)
        return fail_cupti(in, "cuptiSubscribe", result, err);
    in->subscribed = true;
    result = in->api.register_callbacks(in->api.self, st_inject_on_request, st_inject_on_complete);
    if (result != ST_CUPTI_SUCCESS)
        return fail_cupti(in, "cuptiActivityRegisterCallbacks", result, err);
    return set_clock(in, err);
}

/* Signals are the engine's: none is delivered here. */
static int start_worker(struct st_inject *in, struct st_error *err) {
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int native = pthread_create(&in->worker, NULL, st_inject_worker, in);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (native)
        return ST_FAIL_NATIVE(err, ST_ERR_IO, native, "no thread to write launches: %s",
                              strerror(native));
    in->worker_started = true;
    (void)pthread_setname_np(in->worker, "steptape-launch");
    return 0;
}

static int start(struct st_inject *in, struct st_error *err) {
    ST_TRY(open_stream(in->options.stream_path, &in->stream_path, &in->fd, err));
    ST_TRY(st_inject_write_head(in, err));
    ST_TRY(allocate(in, err));
    ST_TRY(st_inject_pool_init(&in->pool, in->has_api ? in->options.buffer_bytes : 64,
                               in->has_api ? in->options.buffer_count : 1, err));
    in->has_pool = true;
    st_inject_pool_attach(&in->pool);
    st_inject_calls_attach(in);
    if (in->has_api)
        ST_TRY(attach_cupti(in, err));
    in->capture_level = in->options.level;
    ST_TRY(set_level(in, in->options.level, err));
    st_budget_init(&in->budget, in->options.budget, in->options.window_ns, in->options.window_steps,
                   in->options.level, st_inject_now_ns());
    in->state = STEPTAPE_INJECT_RUNNING;
    return start_worker(in, err);
}

static void detach(void) {
    st_inject_calls_attach(NULL);
    st_inject_pool_attach(NULL);
}

/* A start that failed half way: the stream says why. */
static void abandon(struct st_inject *in, const struct st_error *err) {
    if (in->subscribed) {
        (void)set_level(in, ST_LEVEL_OFF, NULL);
        (void)in->api.unsubscribe(in->api.self);
    }
    detach();
    if (in->fd >= 0 && in->writing) {
        in->out.size = 0;
        if (put_reason(&in->out, err ? err->msg : "not started", NULL) == 0)
            (void)!write(in->fd, in->out.data, in->out.size);
    }
    st_inject_destroy(in);
}

int st_inject_start(const struct st_cupti_api *api, const struct st_inject_options *options,
                    struct st_inject **inject, struct st_error *err) {
    struct st_inject *in = calloc(1, sizeof *in);
    if (!in) {
        if (api)
            api->close(api->self);
        return ST_FAIL_NOMEM(err);
    }
    in->has_api = api != NULL;
    if (api)
        in->api = *api;
    in->options = *options;
    set_defaults(&in->options);
    in->note = options->note ? strdup(options->note) : NULL;
    in->pid = getpid();
    in->fd = -1;
    in->writing = true;
    atomic_init(&in->wanted, -1);
    pthread_mutex_init(&in->lock, NULL);
    pthread_mutex_init(&in->level_lock, NULL);
    pthread_condattr_t monotonic;
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_cond_init(&in->done, &monotonic);
    pthread_condattr_destroy(&monotonic);
    int rc = start(in, err);
    if (rc) {
        abandon(in, err);
        return rc;
    }
    *inject = in;
    return 0;
}

/* ---- end */

void st_inject_destroy(struct st_inject *in) {
    if (!in)
        return;
    if (in->has_pool)
        st_inject_pool_close(&in->pool);
    if (in->has_api)
        in->api.close(in->api.self);
    st_launch_encoder_destroy(in->encoder);
    if (in->fd >= 0)
        close(in->fd);
    pthread_cond_destroy(&in->done);
    pthread_mutex_destroy(&in->lock);
    pthread_mutex_destroy(&in->level_lock);
    st_bytes_fini(&in->out);
    free((void *)in->calls);
    free(in->batch);
    free(in->steps);
    free(in->stream_path);
    free(in->note);
    free(in);
}

static void add_seconds(struct timespec *until, int seconds) {
    clock_gettime(CLOCK_MONOTONIC, until);
    until->tv_sec += seconds;
}

int st_inject_flush(struct st_inject *in) {
    struct timespec until;
    int rc = 0;
    add_seconds(&until, END_SECONDS);
    pthread_mutex_lock(&in->lock);
    uint64_t ticket = ++in->flush_asked;
    st_inject_pool_poke(&in->pool);
    while (!in->finished && in->flush_done < ticket && rc == 0)
        rc = pthread_cond_timedwait(&in->done, &in->lock, &until);
    rc = in->flush_done >= ticket && in->state == STEPTAPE_INJECT_RUNNING ? 0 : -1;
    pthread_mutex_unlock(&in->lock);
    return rc;
}

bool st_inject_stop(struct st_inject *in) {
    struct timespec until;
    int rc = 0;
    add_seconds(&until, END_SECONDS);
    pthread_mutex_lock(&in->lock);
    in->stop = true;
    st_inject_pool_poke(&in->pool);
    while (!in->finished && rc == 0)
        rc = pthread_cond_timedwait(&in->done, &in->lock, &until);
    bool finished = in->finished;
    if (in->state == STEPTAPE_INJECT_RUNNING)
        in->state = STEPTAPE_INJECT_STOPPED;
    pthread_mutex_unlock(&in->lock);
    if (!finished)
        return false;
    pthread_join(in->worker, NULL);
    detach();
    return true;
}
