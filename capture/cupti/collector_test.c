/* SPDX-License-Identifier: Apache-2.0 */
/* The collector over a fake CUPTI: no GPU and no CUDA headers needed. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <cmocka.h>

#include "capture/cupti/api_i.h"

/* A fake library: launches are written into the buffer that it holds, which goes back when it is
 * full or flushed, as CUPTI does. */
struct fake_record {
    int32_t kind; /* 1 kernel, 2 something else, 3 broken */
    struct st_kernel_record kernel;
};

struct fake {
    int subscribe_result, enable_result, flush_result;
    const char *other_tool;
    int subscribed, registered, enabled, closed;
    size_t records_a_buffer; /* 0: as many as fit */
    size_t dropped;
    st_cupti_request_fn *request;
    st_cupti_complete_fn *complete;
    uint8_t *buffer;
    size_t size, used;
    int dirty; /* buffers that were not zeroed */
};

static int fake_subscribe(void *self, char other[ST_CUPTI_SUBSCRIBER_NAME_BYTES]) {
    struct fake *f = self;
    if (f->subscribe_result == 0)
        f->subscribed++;
    else if (f->other_tool)
        snprintf(other, ST_CUPTI_SUBSCRIBER_NAME_BYTES, "%s", f->other_tool);
    return f->subscribe_result;
}

static int fake_unsubscribe(void *self) {
    ((struct fake *)self)->subscribed--;
    return 0;
}

static int fake_register(void *self, st_cupti_request_fn *request, st_cupti_complete_fn *complete) {
    struct fake *f = self;
    f->request = request;
    f->complete = complete;
    f->registered++;
    return 0;
}

static int fake_enable(void *self) {
    struct fake *f = self;
    f->enabled += f->enable_result == 0;
    return f->enable_result;
}

static int fake_disable(void *self) {
    ((struct fake *)self)->enabled--;
    return 0;
}

static void fake_hand_back(struct fake *f) {
    if (f->buffer)
        f->complete(NULL, 0, f->buffer, f->size, f->used);
    f->buffer = NULL;
}

static int fake_flush(void *self, int forced) {
    (void)forced;
    struct fake *f = self;
    fake_hand_back(f);
    return f->flush_result;
}

static int fake_dropped(void *self, size_t *count) {
    struct fake *f = self;
    *count = f->dropped;
    f->dropped = 0;
    return 0;
}

static int fake_next(void *self, uint8_t *buffer, size_t valid, void **record) {
    (void)self;
    struct fake_record *next =
        *record ? (struct fake_record *)*record + 1 : (struct fake_record *)(void *)buffer;
    if ((uint8_t *)next >= buffer + valid)
        return ST_CUPTI_MAX_LIMIT_REACHED;
    if (next->kind == 3)
        return 21; /* CUPTI_ERROR_INVALID_KIND */
    *record = next;
    return 0;
}

static int fake_decode(void *self, const void *record, struct st_kernel_record *out) {
    (void)self;
    const struct fake_record *r = record;
    if (r->kind != 1)
        return 0;
    *out = r->kernel;
    return 1;
}

static const char *fake_text(void *self, int result) {
    (void)self, (void)result;
    return "CUPTI_ERROR_FAKE";
}

static void fake_close(void *self) {
    ((struct fake *)self)->closed++;
}

static void fake_launch(struct fake *f, int kind, const char *name, uint32_t correlation,
                        int64_t start_ns, int64_t end_ns) {
    struct fake_record r = {.kind = kind,
                            .kernel = {.name = name,
                                       .start_ns = start_ns,
                                       .end_ns = end_ns,
                                       .correlation_id = correlation,
                                       .grid = {(int32_t)correlation, 1, 1},
                                       .block = {256, 1, 1}}};
    size_t most = f->records_a_buffer ? f->records_a_buffer * sizeof r : f->size;
    if (f->buffer && (f->used + sizeof r > f->size || f->used + sizeof r > most))
        fake_hand_back(f);
    if (!f->buffer) {
        size_t max_records;
        f->used = 0;
        f->request(&f->buffer, &f->size, &max_records);
        if (!f->buffer) {
            f->dropped++;
            return;
        }
        for (size_t i = 0; i < f->size; i++)
            f->dirty |= f->buffer[i];
    }
    memcpy(f->buffer + f->used, &r, sizeof r);
    f->used += sizeof r;
}

static struct st_collector *open_fake(struct fake *f) {
    struct st_cupti_api api = {.self = f,
                               .library = "fake",
                               .version = 130001,
                               .subscribe = fake_subscribe,
                               .unsubscribe = fake_unsubscribe,
                               .register_callbacks = fake_register,
                               .enable_kernels = fake_enable,
                               .disable_kernels = fake_disable,
                               .flush = fake_flush,
                               .dropped = fake_dropped,
                               .next_record = fake_next,
                               .decode = fake_decode,
                               .text = fake_text,
                               .close = fake_close};
    struct st_collector *c = NULL;
    assert_int_equal(st_collector_open_api(&api, &c, NULL), 0);
    return c;
}

static void collects(void **state) {
    (void)state;
    struct fake f = {.records_a_buffer = 7};
    struct st_collector *c = open_fake(&f);
    struct st_error err;
    assert_int_equal(st_collector_start(c, &err), 0);
    assert_int_equal(f.enabled, 1);
    char name[32];
    /* The same text at another address, as when a module is loaded again; and more texts than the
     * name table starts with. */
    for (uint32_t i = 100; i > 0; i--) {
        snprintf(name, sizeof name, "kernel_%u", i % 50);
        fake_launch(&f, 1, strcmp(name, "kernel_1") ? "other" : "kernel_1", i, i * 10, i * 10 + 5);
    }
    fake_launch(&f, 2, NULL, 0, 1, 2);
    assert_int_equal(st_collector_flush(c, &err), 0);
    st_collector_sort(c);
    int64_t count;
    const struct st_kernel_record *r = st_collector_records(c, &count);
    assert_int_equal(count, 100);
    for (uint32_t i = 0; i < 100; i++) {
        assert_int_equal(r[i].correlation_id, i + 1);
        assert_int_equal(r[i].start_ns, (i + 1) * 10);
        assert_int_equal(r[i].grid[0], i + 1);
    }
    assert_string_equal(r[0].name, "kernel_1");
    assert_ptr_equal(r[0].name, r[50].name);
    struct st_collector_counters n;
    st_collector_get_counters(c, &n);
    assert_int_equal(n.records, 100);
    assert_int_equal(n.other, 1);
    assert_int_equal(n.dropped + n.untimed + n.reversed, 0);

    /* Buffers come round again, clean. */
    st_collector_clear(c);
    for (uint32_t i = 0; i < 500; i++)
        fake_launch(&f, 1, "again", i + 1, 1, 2);
    assert_int_equal(st_collector_stop(c, &err), 0);
    r = st_collector_records(c, &count);
    assert_int_equal(count, 500);
    assert_string_equal(r[499].name, "again");
    assert_int_equal(f.dirty, 0);
    assert_int_equal(f.enabled, 0);
    assert_int_equal(f.subscribed, 0);
    st_collector_close(c);
    assert_int_equal(f.closed, 1);
}

static void counts_what_is_wrong(void **state) {
    (void)state;
    struct fake f = {.dropped = 0};
    struct st_collector *c = open_fake(&f);
    assert_int_equal(st_collector_start(c, NULL), 0);
    fake_launch(&f, 1, "good", 1, 10, 20);
    fake_launch(&f, 1, "untimed", 2, 0, 0);
    fake_launch(&f, 1, "reversed", 3, 20, 10);
    fake_launch(&f, 1, NULL, 4, 10, 20);
    fake_launch(&f, 3, "broken", 5, 10, 20);
    fake_launch(&f, 1, "behind the broken one", 6, 10, 20);
    f.dropped = 3;
    assert_int_equal(st_collector_flush(c, NULL), 0);
    f.dropped = 2;
    assert_int_equal(st_collector_stop(c, NULL), 0);
    struct st_collector_counters n;
    st_collector_get_counters(c, &n);
    assert_int_equal(n.records, 4);
    assert_int_equal(n.dropped, 5);
    assert_int_equal(n.untimed, 1);
    assert_int_equal(n.reversed, 1);
    assert_int_equal(n.other, 1);
    int64_t count;
    assert_string_equal(st_collector_records(c, &count)[3].name, "");
    st_collector_close(c);
}

static void names_the_other_tool(void **state) {
    (void)state;
    struct fake f = {.subscribe_result = 39, .other_tool = "CUPTI for Nsight Systems"};
    struct st_collector *c = open_fake(&f);
    struct st_error err;
    assert_int_equal(st_collector_start(c, &err), ST_ERR_UNAVAILABLE);
    assert_int_equal(err.native, 39);
    assert_non_null(strstr(err.msg, "Nsight Systems"));
    /* It can be tried again, and stop has nothing to do. */
    assert_int_equal(st_collector_stop(c, &err), 0);
    f.subscribe_result = 0;
    assert_int_equal(st_collector_start(c, &err), 0);
    st_collector_close(c);
    assert_int_equal(f.subscribed, 0);
}

static void failures(void **state) {
    (void)state;
    struct st_error err;
    struct fake f = {.enable_result = 7};
    struct st_collector *c = open_fake(&f);
    assert_int_equal(st_collector_start(c, &err), ST_ERR_NATIVE);
    assert_int_equal(err.native, 7);
    assert_non_null(strstr(err.msg, "CUPTI_ERROR_FAKE"));
    assert_int_equal(f.subscribed, 0);
    f.enable_result = 0;
    assert_int_equal(st_collector_start(c, &err), 0);
    /* CUPTI has one slot, and its callbacks know one collector. */
    struct fake g = {.dropped = 0};
    struct st_collector *second = open_fake(&g);
    assert_int_equal(st_collector_start(second, &err), ST_ERR_UNAVAILABLE);
    f.flush_result = 9;
    assert_int_equal(st_collector_flush(c, &err), ST_ERR_NATIVE);
    assert_int_equal(st_collector_stop(c, &err), ST_ERR_NATIVE);
    assert_int_equal(f.subscribed, 0); /* detached all the same */
    assert_int_equal(st_collector_start(second, &err), 0);
    st_collector_close(second);
    st_collector_close(c);
}

/* A buffer that CUPTI gives back after the collector was stopped is freed (ASan sees it). */
static void late_buffer(void **state) {
    (void)state;
    struct fake f = {.dropped = 0};
    struct st_collector *c = open_fake(&f);
    assert_int_equal(st_collector_start(c, NULL), 0);
    uint8_t *buffer;
    size_t size, max;
    f.request(&buffer, &size, &max);
    assert_non_null(buffer);
    assert_true(size >= 1 << 20);
    assert_int_equal(st_collector_stop(c, NULL), 0);
    f.complete(NULL, 0, buffer, size, 0);
    f.request(&buffer, &size, &max);
    assert_null(buffer);
    st_collector_close(c);
}

static void absent(void **state) {
    (void)state;
    struct st_collector *c = NULL;
    struct st_error err = {.code = 0};
    int rc = st_collector_open("/nonexistent/libcupti.so", NULL, &c, &err);
    assert_true(rc == ST_ERR_UNAVAILABLE || rc == ST_ERR_UNSUPPORTED);
    assert_null(c);
    assert_true(strlen(err.msg) > 0);
    st_collector_close(NULL);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(collects),
        cmocka_unit_test(counts_what_is_wrong),
        cmocka_unit_test(names_the_other_tool),
        cmocka_unit_test(failures),
        cmocka_unit_test(late_buffer),
        cmocka_unit_test(absent),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
