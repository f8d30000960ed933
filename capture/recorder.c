/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Opening and closing a recording, and its writer thread.
 */
#include <errno.h>
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "capture/drain.h"
#include "capture/file_limit.h"
#include "capture/recorder_i.h"
#include "capture/streams.h"
#include "traces/format/header_store.h"

#define DEFAULT_RING_BYTES ((int64_t)64 << 20)
#define DEFAULT_REQUESTS 1024
#define MAX_REQUESTS (1 << 16)
#define POLL_NS 5000000 /* how long the writer sleeps on an empty ring */

static void say(char *message, size_t size, const char *text) {
    if (message && size)
        snprintf(message, size, "%s", text);
}

static int status_of(int code) {
    switch (code) {
    case ST_OK:
        return STEPTAPE_RECORDER_OK;
    case ST_PLACE_BUSY:
        return STEPTAPE_RECORDER_ERR_BUSY;
    case ST_ERR_NOMEM:
        return STEPTAPE_RECORDER_ERR_NOMEM;
    case ST_ERR_INPUT:
    case ST_ERR_USAGE:
        return STEPTAPE_RECORDER_ERR_ARGUMENT;
    default:
        return STEPTAPE_RECORDER_ERR_IO;
    }
}

/* ---- the writer thread */

static bool write_records(struct steptape_recorder *r, struct st_ring_view *view, bool *idle) {
    struct st_ring_head *head = r->ring.head;
    const struct st_ring_record *record;
    int rc;
    view->end = atomic_load_explicit(&head->counters.head, memory_order_acquire);
    *idle = view->position == view->end;
    while ((rc = st_ring_next(view, &record, &r->error)) == ST_OK) {
        uint64_t begin = view->position - record->size;
        int64_t committed = st_writer_committed(r->drain->writer);
        if (committed == r->drain->next_step) /* nothing waits: a pad before it is free */
            atomic_store_explicit(&head->tail, begin, memory_order_release);
        rc = st_drain_record(r->drain, record, &r->error);
        if (!rc && view->position - atomic_load_explicit(&head->tail, memory_order_relaxed) >
                       view->capacity / 4)
            rc = st_writer_commit(r->drain->writer, &r->error);
        if (rc)
            break;
        committed = st_writer_committed(r->drain->writer);
        if (committed == r->drain->next_step) {
            atomic_store_explicit(&head->committed, (uint64_t)committed, memory_order_relaxed);
            atomic_store_explicit(&head->tail, view->position, memory_order_release);
        }
    }
    return rc == ST_DONE;
}

static void *write_tape(void *argument) {
    struct steptape_recorder *r = argument;
    struct st_ring_view view = {r->ring.data, r->ring.capacity, 0, 0};
    const struct timespec pause = {0, POLL_NS};
    for (;;) {
        bool idle, stop = atomic_load_explicit(&r->stop, memory_order_acquire);
        if (!write_records(r, &view, &idle)) {
            struct st_ring_head *head = r->ring.head;
            snprintf(head->failure, sizeof head->failure, "%.250s", r->error.msg);
            atomic_store_explicit(&head->failed, 1, memory_order_release);
            atomic_store_explicit(&r->refused, r->drain->refused, memory_order_release);
            return NULL;
        }
        if (idle && stop)
            return NULL;
        if (idle)
            nanosleep(&pause, NULL);
    }
}

static int start_thread(struct steptape_recorder *r, struct st_error *err) {
    sigset_t all, before;
    sigfillset(&all); /* the engine's handlers run on the engine's threads */
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int native = pthread_create(&r->thread, NULL, write_tape, r);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (native)
        return ST_FAIL_NATIVE(err, ST_ERR_IO, native, "the writer thread cannot be started: %s",
                              strerror(native));
    r->has_thread = true;
    pthread_setname_np(r->thread, "steptape");
    return ST_OK;
}

/* ---- open */

static int64_t clock_ns(clockid_t clock) {
    struct timespec ts;
    clock_gettime(clock, &ts);
    return (int64_t)ts.tv_sec * 1000000000 + ts.tv_nsec;
}

static void *map_zeroed(size_t size) {
    void *map =
        mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
    return map == MAP_FAILED ? NULL : map;
}

/* What record_step works with: all of it is there before the first step. */
static int make_memory(struct steptape_recorder *r, int64_t max_requests, size_t lane_bytes,
                       struct st_error *err) {
    const struct st_header *header = st_interchange_header(r->header);
    r->group_count = header->group_count;
    /* Preempted requests live on beside a full batch. */
    int32_t capacity = (int32_t)max_requests * 4 + 1024;
    ST_TRY(st_live_init(&r->live, capacity, r->group_count, lane_bytes, err));
    r->entry_size = ((size_t)capacity * (size_t)r->group_count * 3 + 1) * sizeof(int32_t);
    r->entry_memory = map_zeroed(r->entry_size);
    int32_t *base = r->entry_memory;
    size_t most = (size_t)capacity * (size_t)r->group_count;
    if (base)
        r->entry_pool = (struct st_step_entries){base, base + most, base + 2 * most, 0};
    r->take_step = st_take_step;
#ifdef ST_HAVE_AVX2
    if (__builtin_cpu_supports("avx2"))
        r->take_step = st_take_step_avx2;
#endif
    _Atomic int *mine = map_zeroed(4096);
    if (!r->entry_memory || !mine)
        return ST_FAIL_NOMEM(err);
    r->mine = mine;
    /* A fork has the mapping of the ring as well, but no writer, and must keep off it. */
    if (madvise((void *)mine, 4096, MADV_WIPEONFORK) < 0)
        return ST_FAIL(err, ST_ERR_IO, "this kernel has no MADV_WIPEONFORK (Linux 4.14)");
    atomic_store(mine, 1);
    return ST_OK;
}

struct settings {
    const char *path, *header_json, *part;
    int64_t ring_bytes, max_requests;
};

static int read_options(const struct steptape_recorder_options *o, struct settings *s,
                        struct st_error *err) {
    s->ring_bytes = DEFAULT_RING_BYTES;
    if (!o)
        return ST_OK;
    if (o->struct_size < sizeof *o)
        return ST_FAIL(err, ST_ERR_USAGE, "options: struct_size %u is that of no version",
                       o->struct_size);
    s->part = o->part;
    s->max_requests = o->max_requests;
    if (o->ring_bytes)
        s->ring_bytes = o->ring_bytes;
    if (s->ring_bytes < ST_RING_MIN_BYTES || s->ring_bytes > ST_RING_MAX_BYTES)
        return ST_FAIL(err, ST_ERR_USAGE, "ring_bytes is %" PRId64 ", 1 MiB to 1 GiB expected",
                       s->ring_bytes);
    if (s->max_requests < 0 || s->max_requests > MAX_REQUESTS)
        return ST_FAIL(err, ST_ERR_USAGE, "max_requests is %" PRId64 ", at most %d expected",
                       s->max_requests, MAX_REQUESTS);
    return ST_OK;
}

/* The engine may change its working directory while it is recorded. */
static int init_place(struct steptape_recorder *r, const struct settings *s, struct st_error *err) {
    if (s->path[0] == '/')
        return st_place_init(&r->place, s->path, s->part, err);
    char *here = getcwd(NULL, 0), *path;
    if (!here)
        return ST_FAIL_NATIVE(err, ST_ERR_IO, errno, "the working directory: %s", strerror(errno));
    int made = asprintf(&path, "%s/%s", strcmp(here, "/") ? here : "", s->path);
    free(here);
    if (made < 0)
        return ST_FAIL_NOMEM(err);
    int rc = st_place_init(&r->place, path, s->part, err);
    free(path);
    return rc;
}

static int start(struct steptape_recorder *r, struct settings *s, struct st_error *err) {
    ST_TRY(st_interchange_open_memory("header", s->header_json, strlen(s->header_json), NULL,
                                      &r->header, err));
    const struct st_header *given = st_interchange_header(r->header);
    ST_TRY(st_header_check(given, err));
    if (!s->max_requests)
        s->max_requests = given->max_num_seqs > 0 && given->max_num_seqs <= MAX_REQUESTS
                              ? given->max_num_seqs
                              : DEFAULT_REQUESTS;
    ST_TRY(make_memory(r, s->max_requests, (size_t)s->ring_bytes / 16, err));
    ST_TRY(init_place(r, s, err));
    ST_TRY(st_place_take(&r->place, err));
    char *ring = st_place_file(&r->place, "ring"), *part = st_place_file(&r->place, "part");
    r->drain = calloc(1, sizeof *r->drain);
    int rc = ring && part && r->drain ? ST_OK : ST_FAIL_NOMEM(err);
    if (!rc)
        rc = st_ring_create(&r->ring, r->place.ring_fd, ring, s->header_json, s->ring_bytes, err);
    if (!rc) {
        r->ring.head->clock_monotonic_ns = clock_ns(CLOCK_MONOTONIC);
        r->ring.head->clock_realtime_ns = clock_ns(CLOCK_REALTIME);
        st_place_sign(r->ring.head);
        struct st_header header = st_drain_header(given, r->ring.head);
        rc = st_drain_open(r->drain, part, &header, err);
    }
    free(ring);
    free(part);
    return rc ? rc : start_thread(r, err);
}

static void destroy(struct steptape_recorder *r) {
    if (r->drain)
        st_drain_close(r->drain);
    free(r->drain);
    st_ring_unmap(&r->ring);
    st_place_fini(&r->place);
    st_live_fini(&r->live);
    st_interchange_close(r->header);
    if (r->entry_memory)
        munmap(r->entry_memory, r->entry_size);
    if (r->mine)
        munmap((void *)r->mine, 4096);
    free(r);
}

STEPTAPE_API int steptape_recorder_open(const char *path, const char *header_json,
                                        const struct steptape_recorder_options *options,
                                        struct steptape_recorder **recorder, char *message,
                                        size_t message_size) {
    struct st_error err = {0};
    struct settings settings = {.path = path, .header_json = header_json};
    say(message, message_size, "");
    if (!recorder)
        return STEPTAPE_RECORDER_ERR_ARGUMENT;
    *recorder = NULL;
    struct steptape_recorder *r = calloc(1, sizeof *r);
    int rc = r ? ST_OK : ST_FAIL_NOMEM(&err);
    if (r)
        r->place.ring_fd = -1;
    if (!rc && (!path || !header_json))
        rc = ST_FAIL(&err, ST_ERR_USAGE, "a path and a header were expected");
    if (!rc)
        rc = read_options(options, &settings, &err);
    sigset_t before;
    st_block_file_limit(&before);
    if (!rc)
        rc = start(r, &settings, &err);
    st_unblock_file_limit(&before);
    if (rc) {
        say(message, message_size, err.msg);
        if (r && r->place.ring_fd >= 0)
            st_place_clear(&r->place);
        if (r)
            destroy(r);
        return status_of(rc);
    }
    if (strcmp(r->place.name, r->place.base) != 0 && message && message_size)
        snprintf(message, message_size, "%s.tape is taken: recording into %s.tape", r->place.base,
                 r->place.name);
    *recorder = r;
    return STEPTAPE_RECORDER_OK;
}

/* ---- while it runs */

static bool is_mine(const struct steptape_recorder *r) {
    return r && atomic_load_explicit(r->mine, memory_order_relaxed);
}

STEPTAPE_API int64_t steptape_recorder_sequence(const struct steptape_recorder *r) {
    return is_mine(r) ? (int64_t)atomic_load_explicit(&r->ring.head->counters.sequence,
                                                      memory_order_relaxed)
                      : -1;
}

STEPTAPE_API int steptape_recorder_note(struct steptape_recorder *r, const char *key,
                                        const char *value) {
    if (!is_mine(r))
        return STEPTAPE_RECORDER_ERR_OFF;
    if (!key || !value)
        return STEPTAPE_RECORDER_ERR_ARGUMENT;
    return st_ring_put_note(&r->ring, r->sequence, key, value) ? STEPTAPE_RECORDER_OK
                                                               : STEPTAPE_RECORDER_DROPPED;
}

STEPTAPE_API int steptape_recorder_get_stats(const struct steptape_recorder *r,
                                             struct steptape_recorder_stats *stats) {
    if (!stats || stats->struct_size < sizeof *stats)
        return STEPTAPE_RECORDER_ERR_ARGUMENT;
    uint32_t size = stats->struct_size;
    memset(stats, 0, sizeof *stats);
    stats->struct_size = size;
    stats->state = STEPTAPE_RECORDER_OFF;
    if (!is_mine(r))
        return STEPTAPE_RECORDER_ERR_OFF;
    const struct st_ring_head *head = r->ring.head;
    const struct st_ring_counters *counters = &head->counters;
    stats->step_count = (int64_t)atomic_load(&counters->recorded);
    stats->dropped_count = (int64_t)atomic_load(&counters->dropped);
    stats->committed_count = (int64_t)atomic_load(&head->committed);
    stats->byte_count = (int64_t)atomic_load(&counters->bytes);
    stats->cost_sum_ns = (int64_t)atomic_load(&counters->cost_sum_ns);
    stats->cost_max_ns = (int64_t)atomic_load(&counters->cost_max_ns);
    stats->cost_median_ns = st_ring_cost_quantile(head, 0.5);
    stats->cost_p999_ns = st_ring_cost_quantile(head, 0.999);
    bool off = atomic_load_explicit(&counters->off, memory_order_acquire);
    bool failed = atomic_load_explicit(&head->failed, memory_order_acquire);
    stats->state = off      ? STEPTAPE_RECORDER_OFF
                   : failed ? STEPTAPE_RECORDER_FILLING
                            : STEPTAPE_RECORDER_RECORDING;
    if (off || failed)
        say(stats->message, sizeof stats->message, off ? counters->reason : head->failure);
    return STEPTAPE_RECORDER_OK;
}

/* ---- close */

static int finish(struct steptape_recorder *r, char **tape, struct st_error *err) {
    bool refused = r->drain->refused;
    if (atomic_load_explicit(&r->ring.head->failed, memory_order_acquire) && !refused)
        return ST_FAIL(err, r->error.code, "%s", r->error.msg);
    struct st_ring_file file;
    ST_TRY(st_ring_open_bytes("ring", r->ring.map, r->ring.size, &file, err));
    ST_TRY(st_drain_finish(r->drain, &file, false, refused ? r->error.msg : NULL, err));
    atomic_store(&r->ring.head->finished, 1);
    ST_TRY(st_place_publish(&r->place, "part", tape, err));
    st_streams_remove(r->place.folder, r->ring.head->pid);
    st_place_clear(&r->place);
    return ST_OK;
}

/* The files stay for another time, unless somebody took them away. */
static void say_kept(const struct steptape_recorder *r, const struct st_error *err, char *message,
                     size_t size) {
    static const char suffix[] = ".recording";
    const char *folder = r->place.folder;
    if (access(folder, F_OK) < 0)
        snprintf(message, size, "%s; %s is gone, and what was recorded with it", err->msg, folder);
    else
        snprintf(message, size, "`steptape recover %.*s` makes a tape of what was recorded: %s",
                 (int)(strlen(folder) - strlen(suffix)), folder, err->msg);
}

STEPTAPE_API int steptape_recorder_close(struct steptape_recorder *r, char *message,
                                         size_t message_size) {
    struct st_error err = {0};
    char *tape = NULL;
    say(message, message_size, "");
    if (!is_mine(r))
        return r ? STEPTAPE_RECORDER_ERR_OFF : STEPTAPE_RECORDER_OK;
    atomic_store_explicit(&r->stop, 1, memory_order_release);
    if (r->has_thread)
        pthread_join(r->thread, NULL);
    sigset_t before;
    st_block_file_limit(&before);
    int rc = finish(r, &tape, &err);
    st_unblock_file_limit(&before);
    if (!rc)
        say(message, message_size, tape);
    else if (message && message_size)
        say_kept(r, &err, message, message_size);
    free(tape);
    destroy(r);
    return status_of(rc);
}
