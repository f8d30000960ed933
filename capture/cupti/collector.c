/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Buffers go request -> in flight -> ready -> read -> free.  CUPTI's threads move them to the ready
 * list; the owner's thread reads them in st_collector_flush(), outside the lock.
 */
#include "capture/cupti/collector.h"

#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "capture/cupti/api_i.h"

enum {
    BUFFER_BYTES = 4 << 20, /* kineto's size; CUPTI advises 1 to 10 MB */
    BUFFERS_AHEAD = 4,      /* allocated before the first launch */
};

/* Sits ST_CUPTI_BUFFER_ALIGN bytes before the bytes that CUPTI gets. */
struct buffer {
    struct buffer *next;
    size_t valid;
};

struct st_collector {
    struct st_cupti_api api;
    bool started;
    pthread_mutex_t lock; /* guards the two lists */
    struct buffer *free_list;
    struct buffer *ready, **ready_tail;

    struct st_kernel_record *record;
    int64_t record_count, record_room;
    char **name; /* open addressing by hash of the text, room a power of two */
    size_t name_count, name_room;
    struct st_collector_counters counters;
};

/* CUPTI's callbacks carry no user pointer: the started collector. */
static struct st_collector *active;
static pthread_mutex_t active_lock = PTHREAD_MUTEX_INITIALIZER;

static struct buffer *buffer_create(void) {
    void *p = NULL;
    if (posix_memalign(&p, ST_CUPTI_BUFFER_ALIGN, ST_CUPTI_BUFFER_ALIGN + BUFFER_BYTES) != 0)
        return NULL;
    memset(p, 0, ST_CUPTI_BUFFER_ALIGN + BUFFER_BYTES);
    return p;
}

static uint8_t *buffer_bytes(struct buffer *b) {
    return (uint8_t *)b + ST_CUPTI_BUFFER_ALIGN;
}

static void buffers_free(struct buffer *b) {
    while (b) {
        struct buffer *next = b->next;
        free(b);
        b = next;
    }
}

static void on_request(uint8_t **bytes, size_t *size, size_t *max_records) {
    *bytes = NULL;
    *size = 0;
    *max_records = 0;
    pthread_mutex_lock(&active_lock);
    struct st_collector *c = active;
    if (c) {
        pthread_mutex_lock(&c->lock);
        struct buffer *b = c->free_list;
        if (b)
            c->free_list = b->next;
        pthread_mutex_unlock(&c->lock);
        if (!b)
            b = buffer_create();
        if (b) {
            *bytes = buffer_bytes(b);
            *size = BUFFER_BYTES;
        } /* else: CUPTI drops records and counts them */
    }
    pthread_mutex_unlock(&active_lock);
}

static void on_complete(void *context, uint32_t stream, uint8_t *bytes, size_t size, size_t valid) {
    (void)context, (void)stream, (void)size;
    if (!bytes)
        return;
    struct buffer *b = (struct buffer *)(void *)(bytes - ST_CUPTI_BUFFER_ALIGN);
    pthread_mutex_lock(&active_lock);
    struct st_collector *c = active;
    if (c) {
        b->next = NULL;
        b->valid = valid;
        pthread_mutex_lock(&c->lock);
        *c->ready_tail = b;
        c->ready_tail = &b->next;
        pthread_mutex_unlock(&c->lock);
    }
    pthread_mutex_unlock(&active_lock);
    if (!c)
        free(b);
}

int st_collector_open_api(const struct st_cupti_api *api, struct st_collector **collector,
                          struct st_error *err) {
    struct st_collector *c = calloc(1, sizeof *c);
    if (!c) {
        api->close(api->self);
        return ST_FAIL_NOMEM(err);
    }
    c->api = *api;
    c->ready_tail = &c->ready;
    pthread_mutex_init(&c->lock, NULL);
    for (int i = 0; i < BUFFERS_AHEAD; i++) {
        struct buffer *b = buffer_create();
        if (!b) {
            st_collector_close(c);
            return ST_FAIL_NOMEM(err);
        }
        b->next = c->free_list;
        c->free_list = b;
    }
    *collector = c;
    return 0;
}

int st_collector_open(const char *path, const char *cuda_home, struct st_collector **collector,
                      struct st_error *err) {
    struct st_cupti_api api;
    ST_TRY(st_cupti_api_open(path, cuda_home, &api, err));
    return st_collector_open_api(&api, collector, err);
}

void st_collector_close(struct st_collector *c) {
    if (!c)
        return;
    if (c->started)
        (void)st_collector_stop(c, NULL);
    c->api.close(c->api.self);
    buffers_free(c->free_list);
    buffers_free(c->ready);
    for (size_t i = 0; i < c->name_room; i++)
        free(c->name[i]);
    free(c->name);
    free(c->record);
    pthread_mutex_destroy(&c->lock);
    free(c);
}

static int fail_cupti(struct st_collector *c, const char *what, int result, struct st_error *err) {
    return ST_FAIL_NATIVE(err, ST_ERR_NATIVE, result, "%s: %s failed: %s (%d)", c->api.library,
                          what, c->api.text(c->api.self, result), result);
}

int st_collector_start(struct st_collector *c, struct st_error *err) {
    if (c->started)
        return 0;
    pthread_mutex_lock(&active_lock);
    bool taken = active != NULL;
    if (!taken)
        active = c;
    pthread_mutex_unlock(&active_lock);
    if (taken)
        return ST_FAIL(err, ST_ERR_UNAVAILABLE, "another CUPTI collector runs in this process");
    char other[ST_CUPTI_SUBSCRIBER_NAME_BYTES] = "";
    bool subscribed = false;
    int rc;
    int result = c->api.subscribe(c->api.self, other);
    if (result == ST_CUPTI_MULTIPLE_SUBSCRIBERS) {
        other[sizeof other - 1] = 0;
        bool named = other[0] && other[0] != '<'; /* CUPTI writes "<not provided>" */
        rc = ST_FAIL_NATIVE(err, ST_ERR_UNAVAILABLE, result,
                            "CUPTI is held by another tool (%s): only one can use it at a time; "
                            "run without Nsight, compute-sanitizer, a profiler or DCGM profiling",
                            named ? other : "CUPTI does not say which");
        goto out;
    }
    if (result != ST_CUPTI_SUCCESS) {
        rc = fail_cupti(c, "cuptiSubscribe", result, err);
        goto out;
    }
    subscribed = true;
    result = c->api.register_callbacks(c->api.self, on_request, on_complete);
    if (result != ST_CUPTI_SUCCESS) {
        rc = fail_cupti(c, "cuptiActivityRegisterCallbacks", result, err);
        goto out;
    }
    result = c->api.enable_kernels(c->api.self);
    if (result != ST_CUPTI_SUCCESS) {
        rc = fail_cupti(c, "cuptiActivityEnable", result, err);
        goto out;
    }
    c->started = true;
    return 0;
out:
    if (subscribed)
        (void)c->api.unsubscribe(c->api.self);
    pthread_mutex_lock(&active_lock);
    active = NULL;
    pthread_mutex_unlock(&active_lock);
    return rc;
}

static uint64_t hash_text(const char *s) {
    uint64_t h = 1469598103934665603u; /* FNV-1a */
    while (*s)
        h = (h ^ (unsigned char)*s++) * 1099511628211u;
    return h;
}

static int names_grow(struct st_collector *c, struct st_error *err) {
    size_t room = c->name_room ? 2 * c->name_room : 64;
    char **table = calloc(room, sizeof *table);
    if (!table)
        return ST_FAIL_NOMEM(err);
    for (size_t i = 0; i < c->name_room; i++) {
        if (!c->name[i])
            continue;
        size_t k = hash_text(c->name[i]) & (room - 1);
        while (table[k])
            k = (k + 1) & (room - 1);
        table[k] = c->name[i];
    }
    free(c->name);
    c->name = table;
    c->name_room = room;
    return 0;
}

/* One pointer a text, so that users can compare pointers.  CUPTI's own may go with its module. */
static int intern(struct st_collector *c, const char **name, struct st_error *err) {
    const char *text = *name ? *name : "";
    if (2 * (c->name_count + 1) > c->name_room)
        ST_TRY(names_grow(c, err));
    size_t k = hash_text(text) & (c->name_room - 1);
    while (c->name[k] && strcmp(c->name[k], text) != 0)
        k = (k + 1) & (c->name_room - 1);
    if (!c->name[k]) {
        c->name[k] = strdup(text);
        if (!c->name[k])
            return ST_FAIL_NOMEM(err);
        c->name_count++;
    }
    *name = c->name[k];
    return 0;
}

static int take_record(struct st_collector *c, const void *raw, struct st_error *err) {
    if (c->record_count == c->record_room) {
        int64_t room = c->record_room ? 2 * c->record_room : 4096;
        void *p = realloc(c->record, (size_t)room * sizeof *c->record);
        if (!p)
            return ST_FAIL_NOMEM(err);
        c->record = p;
        c->record_room = room;
    }
    struct st_kernel_record *r = &c->record[c->record_count];
    memset(r, 0, sizeof *r);
    if (!c->api.decode(c->api.self, raw, r)) {
        c->counters.other++;
        return 0;
    }
    ST_TRY(intern(c, &r->name, err));
    if (r->start_ns == 0 || r->end_ns == 0)
        c->counters.untimed++;
    else if (r->end_ns < r->start_ns)
        c->counters.reversed++;
    c->counters.records++;
    c->record_count++;
    return 0;
}

static int read_buffer(struct st_collector *c, struct buffer *b, struct st_error *err) {
    void *record = NULL;
    while (b->valid > 0) {
        int result = c->api.next_record(c->api.self, buffer_bytes(b), b->valid, &record);
        if (result == ST_CUPTI_MAX_LIMIT_REACHED)
            break;
        if (result != ST_CUPTI_SUCCESS) {
            c->counters.other++; /* incomplete: CUPTI says no more than that; nothing after it */
            break;
        }
        ST_TRY(take_record(c, record, err));
    }
    return 0;
}

static int flush(struct st_collector *c, int forced, struct st_error *err) {
    int result = c->api.flush(c->api.self, forced);
    if (result != ST_CUPTI_SUCCESS)
        return fail_cupti(c, "cuptiActivityFlushAll", result, err);
    size_t dropped = 0;
    result = c->api.dropped(c->api.self, &dropped);
    if (result != ST_CUPTI_SUCCESS)
        return fail_cupti(c, "cuptiActivityGetNumDroppedRecords", result, err);
    c->counters.dropped += (int64_t)dropped;

    pthread_mutex_lock(&c->lock);
    struct buffer *list = c->ready;
    c->ready = NULL;
    c->ready_tail = &c->ready;
    pthread_mutex_unlock(&c->lock);
    int rc = 0;
    while (list) {
        struct buffer *b = list;
        list = b->next;
        if (rc == 0)
            rc = read_buffer(c, b, err);
        memset(buffer_bytes(b), 0, b->valid < BUFFER_BYTES ? b->valid : BUFFER_BYTES);
        pthread_mutex_lock(&c->lock);
        b->next = c->free_list;
        c->free_list = b;
        pthread_mutex_unlock(&c->lock);
    }
    return rc;
}

int st_collector_flush(struct st_collector *c, struct st_error *err) {
    return c->started ? flush(c, 0, err) : 0;
}

int st_collector_stop(struct st_collector *c, struct st_error *err) {
    if (!c->started)
        return 0;
    c->started = false;
    int rc = flush(c, 1, err);
    int disabled = c->api.disable_kernels(c->api.self);
    int unsubscribed = c->api.unsubscribe(c->api.self);
    pthread_mutex_lock(&active_lock);
    active = NULL;
    pthread_mutex_unlock(&active_lock);
    if (rc == 0 && disabled != ST_CUPTI_SUCCESS)
        rc = fail_cupti(c, "cuptiActivityDisable", disabled, err);
    if (rc == 0 && unsubscribed != ST_CUPTI_SUCCESS)
        rc = fail_cupti(c, "cuptiUnsubscribe", unsubscribed, err);
    return rc;
}

const struct st_kernel_record *st_collector_records(const struct st_collector *c, int64_t *count) {
    *count = c->record_count;
    return c->record;
}

static int by_call(const void *a, const void *b) {
    const struct st_kernel_record *x = a, *y = b;
    if (x->correlation_id != y->correlation_id)
        return x->correlation_id < y->correlation_id ? -1 : 1;
    if (x->start_ns != y->start_ns)
        return x->start_ns < y->start_ns ? -1 : 1;
    return x->graph_node_id < y->graph_node_id ? -1 : x->graph_node_id > y->graph_node_id;
}

void st_collector_sort(struct st_collector *c) {
    if (c->record_count > 1)
        qsort(c->record, (size_t)c->record_count, sizeof *c->record, by_call);
}

void st_collector_clear(struct st_collector *c) {
    c->record_count = 0;
}

void st_collector_get_counters(const struct st_collector *c,
                               struct st_collector_counters *counters) {
    *counters = c->counters;
}

uint32_t st_collector_version(const struct st_collector *c) {
    return c->api.version;
}

const char *st_collector_library(const struct st_collector *c) {
    return c->api.library;
}
