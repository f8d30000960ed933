/* SPDX-License-Identifier: Apache-2.0 */
#include "capture/cupti/inject_testing.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <cmocka.h>

struct record {
    int32_t kind;
    struct st_launch_site site;
    struct st_launch_record launch;
};

void fake_init(struct fake_cupti *f) {
    memset(f, 0, sizeof *f);
    pthread_mutex_init(&f->lock, NULL);
    f->next_call = 1;
    f->next_graph = 0x1000;
}

void fake_fini(struct fake_cupti *f) {
    for (int i = 0; i < f->held_count; i++)
        free(f->held[i].bytes - ST_CUPTI_BUFFER_ALIGN);
    pthread_mutex_destroy(&f->lock);
}

static int subscribe_launches(void *self, st_cupti_call_fn *on_call, st_cupti_graph_fn *on_graph,
                              char other[ST_CUPTI_SUBSCRIBER_NAME_BYTES]) {
    struct fake_cupti *f = self;
    if (f->subscribe_result) {
        snprintf(other, ST_CUPTI_SUBSCRIBER_NAME_BYTES, "%s", f->other_tool ? f->other_tool : "");
        return f->subscribe_result;
    }
    f->subscribed++;
    f->on_call = on_call;
    f->on_graph = on_graph;
    return 0;
}

static int unsubscribe(void *self) {
    ((struct fake_cupti *)self)->subscribed--;
    return 0;
}

static int register_callbacks(void *self, st_cupti_request_fn *request,
                              st_cupti_complete_fn *complete) {
    struct fake_cupti *f = self;
    f->registered++;
    f->request = request;
    f->complete = complete;
    return 0;
}

static int enable_calls(void *self, int launches, int memory) {
    struct fake_cupti *f = self;
    pthread_mutex_lock(&f->lock);
    f->calls_on = launches;
    f->memory_on = memory;
    pthread_mutex_unlock(&f->lock);
    return 0;
}

static int enable_records(void *self, unsigned records, int on) {
    struct fake_cupti *f = self;
    pthread_mutex_lock(&f->lock);
    f->graphs_enabled += on && (records & ST_CUPTI_GRAPHS);
    f->records_on = on ? f->records_on | records : f->records_on & ~records;
    pthread_mutex_unlock(&f->lock);
    return on ? f->enable_result : 0;
}

static int set_clock(void *self, uint64_t (*now_ns)(void)) {
    struct fake_cupti *f = self;
    f->clocks++;
    f->clock = now_ns;
    return 0;
}

/* All of them, outside the lock. */
static void hand_back(struct fake_cupti *f) {
    for (;;) {
        pthread_mutex_lock(&f->lock);
        if (f->held_count == 0) {
            pthread_mutex_unlock(&f->lock);
            return;
        }
        uint8_t *bytes = f->held[0].bytes;
        size_t size = f->held[0].size, used = f->held[0].used;
        f->held_count--;
        memmove(&f->held[0], &f->held[1], (size_t)f->held_count * sizeof f->held[0]);
        pthread_mutex_unlock(&f->lock);
        f->complete(NULL, 0, bytes, size, used);
    }
}

static int flush(void *self, int forced) {
    struct fake_cupti *f = self;
    pthread_mutex_lock(&f->lock);
    f->flushes++;
    bool hold = f->hold && !forced;
    pthread_mutex_unlock(&f->lock);
    if (!hold)
        hand_back(f);
    return 0;
}

static int dropped(void *self, size_t *count) {
    struct fake_cupti *f = self;
    pthread_mutex_lock(&f->lock);
    *count = f->dropped;
    f->dropped = 0;
    pthread_mutex_unlock(&f->lock);
    return 0;
}

static int next_record(void *self, uint8_t *buffer, size_t valid, void **record) {
    (void)self;
    struct record *next = *record ? (struct record *)*record + 1 : (struct record *)(void *)buffer;
    if ((uint8_t *)next >= buffer + valid)
        return ST_CUPTI_MAX_LIMIT_REACHED;
    if (next->kind == FAKE_BROKEN)
        return 21; /* CUPTI_ERROR_INVALID_KIND */
    *record = next;
    return 0;
}

static int decode_launch(void *self, const void *record, struct st_launch_site *site,
                         struct st_launch_record *launch) {
    (void)self;
    const struct record *r = record;
    if (r->kind != FAKE_KERNEL)
        return 0;
    *site = r->site;
    *launch = r->launch;
    return 1;
}

static const char *text(void *self, int result) {
    (void)self, (void)result;
    return "CUPTI_ERROR_FAKE";
}

static void close_api(void *self) {
    ((struct fake_cupti *)self)->closed++;
}

struct st_cupti_api fake_api(struct fake_cupti *f) {
    return (struct st_cupti_api){.self = f,
                                 .library = "fake",
                                 .version = 130001,
                                 .unsubscribe = unsubscribe,
                                 .register_callbacks = register_callbacks,
                                 .flush = flush,
                                 .dropped = dropped,
                                 .next_record = next_record,
                                 .subscribe_launches = subscribe_launches,
                                 .enable_calls = enable_calls,
                                 .enable_records = enable_records,
                                 .set_clock = set_clock,
                                 .decode_launch = decode_launch,
                                 .text = text,
                                 .close = close_api};
}

/* A buffer with room, as f->held[f->held_count - 1]; false: none, and the record is dropped. */
static bool make_room(struct fake_cupti *f) {
    size_t size = sizeof(struct record);
    if (f->held_count) {
        size_t room = f->held[f->held_count - 1].size;
        if (f->records_a_buffer && f->records_a_buffer * size < room)
            room = f->records_a_buffer * size;
        if (f->held[f->held_count - 1].used + size <= room)
            return true;
    }
    uint8_t *bytes = NULL;
    size_t bytes_size = 0, most;
    if (f->held_count < FAKE_BUFFERS)
        f->request(&bytes, &bytes_size, &most);
    for (int i = 0; !bytes && f->patient && i < 100000; i++) {
        pthread_mutex_unlock(&f->lock);
        usleep(1000);
        pthread_mutex_lock(&f->lock);
        if (f->held_count < FAKE_BUFFERS)
            f->request(&bytes, &bytes_size, &most);
    }
    if (!bytes) {
        f->dropped++;
        return false;
    }
    for (size_t i = 0; i < bytes_size; i++)
        f->dirty |= bytes[i];
    f->held[f->held_count].bytes = bytes;
    f->held[f->held_count].size = bytes_size;
    f->held[f->held_count++].used = 0;
    return true;
}

void fake_record(struct fake_cupti *f, int kind, const struct st_launch_site *site, uint32_t call,
                 int64_t start_ns, int64_t end_ns) {
    struct record r = {.kind = kind,
                       .launch = {.start_ns = start_ns, .end_ns = end_ns, .correlation_id = call}};
    if (site)
        r.site = *site;
    pthread_mutex_lock(&f->lock);
    int before = f->held_count;
    bool full = false;
    if (f->records_on && make_room(f)) {
        memcpy(f->held[f->held_count - 1].bytes + f->held[f->held_count - 1].used, &r, sizeof r);
        f->held[f->held_count - 1].used += sizeof r;
        full = before > 0 && f->held_count > before;
    }
    bool hold = f->hold;
    uint8_t *bytes = f->held[0].bytes;
    size_t size = f->held[0].size, used = f->held[0].used;
    if (full && !hold) { /* the one before is full: it goes back */
        f->held_count--;
        memmove(&f->held[0], &f->held[1], (size_t)f->held_count * sizeof f->held[0]);
    }
    pthread_mutex_unlock(&f->lock);
    if (full && !hold)
        f->complete(NULL, 0, bytes, size, used);
}

static uint32_t call(struct fake_cupti *f, enum st_cupti_call what, uint64_t exec) {
    pthread_mutex_lock(&f->lock);
    uint32_t id = f->next_call++;
    bool on = f->calls_on;
    pthread_mutex_unlock(&f->lock);
    if (on) {
        f->on_call(what, id, exec);
        f->on_call(ST_CUPTI_CALL_DONE, id, 0);
    }
    return id;
}

uint32_t fake_launch(struct fake_cupti *f, const char *name, int32_t grid) {
    const struct st_launch_site site = {.name = name, .grid = {grid, 1, 1}, .block = {64, 1, 1}};
    uint32_t id = call(f, ST_CUPTI_CALL_KERNEL, 0);
    int64_t now_ns = st_inject_now_ns();
    fake_record(f, FAKE_KERNEL, &site, id, now_ns, now_ns + 1000);
    return id;
}

uint64_t fake_graph(struct fake_cupti *f, int kernels) {
    pthread_mutex_lock(&f->lock);
    uint64_t graph = f->next_graph, exec = graph + 8;
    f->next_graph += 16;
    pthread_mutex_unlock(&f->lock);
    for (int i = 0; i < kernels; i++) {
        /* The call adds a node instead of launching. */
        f->on_call(ST_CUPTI_CALL_KERNEL, f->next_call, 0);
        f->on_graph(&(struct st_cupti_graph_event){
            .change = ST_CUPTI_NODE_ADDED, .graph = graph, .kernel = 1});
        f->on_call(ST_CUPTI_CALL_DONE, f->next_call++, 0);
    }
    f->on_graph(&(struct st_cupti_graph_event){
        .change = ST_CUPTI_GRAPH_INSTANCE, .graph = graph, .exec = exec});
    f->on_graph(&(struct st_cupti_graph_event){.change = ST_CUPTI_GRAPH_GONE, .graph = graph});
    return exec;
}

void fake_graph_launch(struct fake_cupti *f, uint64_t exec, int kernels) {
    uint32_t id = call(f, ST_CUPTI_CALL_GRAPH, exec);
    int64_t now_ns = st_inject_now_ns();
    for (int i = 0; i < kernels; i++) {
        const struct st_launch_site site = {.name = i % 2 ? "odd" : "even",
                                            .graph_id = (uint32_t)exec,
                                            .graph_node_id = exec << 32 | (uint64_t)i,
                                            .grid = {1 + i, 1, 1},
                                            .block = {128, 1, 1}};
        fake_record(f, FAKE_KERNEL, &site, id, now_ns + 1000 * i, now_ns + 1000 * i + 900);
    }
}

/* ---- reading back */

static int on_name(void *user, int64_t number, const char *name, size_t size,
                   struct st_error *err) {
    (void)err;
    struct read_stream *s = user;
    s->name = realloc(s->name, (size_t)(number + 1) * sizeof *s->name);
    s->name[number] = strndup(name, size);
    return 0;
}

static int on_site(void *user, int64_t number, const struct st_launch_site *site,
                   int64_t name_number, struct st_error *err) {
    (void)err;
    struct read_stream *s = user;
    s->site = realloc(s->site, (size_t)(number + 1) * sizeof *s->site);
    s->site[number] = *site;
    s->site[number].name = s->name[name_number];
    return 0;
}

static void read_launches(struct read_stream *s, const uint8_t *data, size_t size) {
    struct st_launch_decoder *d = NULL;
    struct st_launch_record launch;
    int rc;
    assert_int_equal(st_launch_decoder_create(&d, NULL), 0);
    assert_int_equal(st_launch_decoder_begin(d, data, size, s->sites, NULL), 0);
    while ((rc = st_launch_decoder_next(d, &launch, NULL)) == 0) {
        s->launch = realloc(s->launch, (size_t)(s->launches + 1) * sizeof *s->launch);
        s->launch[s->launches++] = launch;
    }
    assert_int_equal(rc, ST_DONE);
    st_launch_decoder_destroy(d);
}

static void read_steps(struct read_stream *s, const uint8_t *data, size_t size) {
    struct st_launch_step *step = NULL;
    int64_t count;
    assert_int_equal(st_chunk_read_steps(data, size, &step, &count, NULL), 0);
    s->step = realloc(s->step, (size_t)(s->steps + count + 1) * sizeof *s->step);
    memcpy(s->step + s->steps, step, (size_t)count * sizeof *step);
    s->steps += count;
    free(step);
}

static void keep_text(char *to, size_t room, size_t *size, const uint8_t *data, size_t data_size) {
    assert_true(*size + data_size < room);
    memcpy(to + *size, data, data_size);
    *size += data_size;
    to[*size] = 0;
}

void read_stream(const char *path, struct read_stream *s) {
    const struct st_launch_definitions to = {s, on_name, on_site};
    struct st_launch_stream *stream = NULL;
    const uint8_t *data;
    size_t size, notes_size = 0;
    int32_t type;
    struct st_error err = {0};
    memset(s, 0, sizeof *s);
    if (st_launch_stream_open(path, &stream, &err) != 0)
        fail_msg("%s", err.msg);
    while (st_launch_stream_next(stream, &type, &data, &size, NULL) == 0) {
        assert_false(s->ended);
        if (type == ST_CHUNK_HEAD)
            keep_text(s->head, sizeof s->head, &s->head_size, data, size);
        else if (type == ST_CHUNK_DEFINITIONS)
            assert_int_equal(
                st_launch_read_definitions(data, size, &s->names, &s->sites, &to, NULL), 0);
        else if (type == ST_CHUNK_LAUNCHES)
            read_launches(s, data, size);
        else if (type == ST_CHUNK_STEPS)
            read_steps(s, data, size);
        else if (type == ST_CHUNK_NOTE)
            keep_text(s->notes, sizeof s->notes, &notes_size, data, size), s->note_count++;
        s->end_size = type == ST_CHUNK_END || type == ST_CHUNK_TOTALS ? 0 : s->end_size;
        if (type == ST_CHUNK_END || type == ST_CHUNK_TOTALS)
            keep_text(s->end, sizeof s->end, &s->end_size, data, size);
        s->ended = type == ST_CHUNK_END;
    }
    s->torn = st_launch_stream_torn(stream);
    st_launch_stream_close(stream);
}

void read_stream_fini(struct read_stream *s) {
    for (int64_t i = 0; i < s->names; i++)
        free(s->name[i]);
    free(s->name);
    free(s->site);
    free(s->launch);
    free(s->step);
}

int64_t stream_total(const struct read_stream *s, const char *key) {
    return st_chunk_read_integer(s->end, s->end_size, key, -99);
}
