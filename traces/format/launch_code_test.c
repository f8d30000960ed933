/* SPDX-License-Identifier: Apache-2.0 */
/* What the coder of launches writes, its decoder reads; and what anybody else writes does no harm.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <cmocka.h>

#include "traces/format/launch_code.h"
#include "traces/format/launch_stream.h"

enum { NODES = 200, MOST = 1 << 16 };

static uint64_t seed = 1;

static uint32_t draw(uint32_t below) {
    seed = seed * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (uint32_t)((seed >> 33) % below);
}

/* ---- definitions read back */

struct known {
    char *name[MOST];
    struct st_launch_site site[MOST];
    int64_t names, sites;
};

static int on_name(void *user, int64_t number, const char *name, size_t size,
                   struct st_error *err) {
    (void)err;
    struct known *k = user;
    k->name[number] = strndup(name, size);
    return 0;
}

static int on_site(void *user, int64_t number, const struct st_launch_site *site,
                   int64_t name_number, struct st_error *err) {
    (void)err;
    struct known *k = user;
    assert_true(name_number < MOST && number < MOST);
    k->site[number] = *site;
    k->site[number].name = k->name[name_number];
    return 0;
}

static void learn(struct known *k, struct st_launch_encoder *e) {
    struct st_bytes out = {0};
    const struct st_launch_definitions to = {k, on_name, on_site};
    assert_int_equal(st_launch_encoder_definitions(e, &out, NULL), 0);
    if (out.size)
        assert_int_equal(
            st_launch_read_definitions(out.data, out.size, &k->names, &k->sites, &to, NULL), 0);
    st_bytes_fini(&out);
}

static void forget(struct known *k) {
    for (int64_t i = 0; i < k->names; i++)
        free(k->name[i]);
    free(k);
}

static void same_site(const struct st_launch_site *a, const struct st_launch_site *b) {
    assert_int_equal(a->kind, b->kind);
    assert_int_equal(a->graph_id, b->graph_id);
    assert_true(a->graph_node_id == b->graph_node_id);
    assert_string_equal(a->name, b->name ? b->name : "");
    assert_memory_equal(a->grid, b->grid, sizeof a->grid);
    assert_memory_equal(a->block, b->block, sizeof a->block);
    assert_int_equal(a->shared_bytes, b->shared_bytes);
    assert_int_equal(a->stream_id, b->stream_id);
    assert_int_equal(a->device_id, b->device_id);
}

static void same_launch(const struct st_launch_record *a, const struct st_launch_record *b) {
    assert_int_equal(a->sequence, b->sequence);
    assert_int_equal(a->site, b->site);
    assert_int_equal(a->correlation_id, b->correlation_id);
    assert_int_equal(a->bytes, b->bytes);
    if (b->start_ns && b->end_ns) {
        assert_int_equal(a->start_ns, b->start_ns);
        assert_int_equal(a->end_ns, b->end_ns);
    } else {
        assert_int_equal(a->start_ns, 0);
        assert_int_equal(a->end_ns, 0);
    }
}

static void read_block(struct st_launch_encoder *e, struct st_launch_decoder *d, int64_t sites,
                       const struct st_launch_record *want, int64_t count, size_t *bytes) {
    struct st_bytes out = {0};
    struct st_launch_record got;
    struct st_launch_block head;
    assert_int_equal(st_launch_encoder_block(e, &out, NULL), 0);
    assert_int_equal(st_launch_block_head(out.data, out.size, &head, NULL), 0);
    assert_int_equal(head.count, count);
    assert_int_equal(st_launch_decoder_begin(d, out.data, out.size, sites, NULL), 0);
    for (int64_t i = 0; i < count; i++) {
        assert_int_equal(st_launch_decoder_next(d, &got, NULL), 0);
        same_launch(&got, &want[i]);
    }
    assert_int_equal(st_launch_decoder_next(d, &got, NULL), ST_DONE);
    if (bytes)
        *bytes += out.size;
    st_bytes_fini(&out);
}

/* A decode step of an engine: some kernels alone, then one graph launch of many nodes, each of a
 * duration that varies by a few of the device's ticks. */
static int64_t make_step(struct st_launch_encoder *e, int64_t step, int64_t *clock,
                         struct st_launch_record *out) {
    static const char *const names[] = {"_Z6singlePf", "fused_very_long_name_of_a_kernel", "gemm"};
    int64_t count = 0;
    uint32_t call = (uint32_t)(step * 20 + 1);
    for (int i = 0; i < 8 + NODES; i++) {
        bool in_graph = i >= 8;
        struct st_launch_site site = {.kind = ST_LAUNCH_KERNEL,
                                      .graph_id = in_graph ? 4 : 0,
                                      .graph_node_id =
                                          in_graph ? UINT64_C(17179869184) + (uint64_t)i : 0,
                                      .name = names[i % 3],
                                      .grid = {1 + i % 5, 1, 1},
                                      .block = {128, 1, 1},
                                      .shared_bytes = i % 3 * 1024,
                                      .stream_id = 13};
        struct st_launch_record *l = &out[count++];
        *l = (struct st_launch_record){.sequence = step,
                                       .correlation_id = in_graph ? call + 12 : call + (uint32_t)i};
        assert_int_equal(st_launch_encoder_site(e, &site, &l->site, NULL), 0);
        *clock += 1000 + 32 * (int64_t)draw(4);
        l->start_ns = *clock;
        *clock += 900 + 100 * (i % 7) + 32 * (int64_t)draw(5);
        l->end_ns = *clock;
    }
    *clock += 50000 + draw(20000);
    return count;
}

static void graphs_are_small(void **state) {
    (void)state;
    enum { STEPS = 150 };
    static struct st_launch_record want[STEPS * (8 + NODES)];
    struct st_launch_encoder *e = NULL;
    struct st_launch_decoder *d = NULL;
    struct known *k = calloc(1, sizeof *k);
    int64_t clock = 1000000000, count = 0;
    size_t bytes = 0;
    assert_int_equal(st_launch_encoder_create(&e, NULL), 0);
    assert_int_equal(st_launch_decoder_create(&d, NULL), 0);
    for (int64_t step = 0; step < STEPS; step++) {
        int64_t made = make_step(e, step, &clock, want + count);
        assert_int_equal(st_launch_encoder_add(e, want + count, made, NULL), 0);
        count += made;
    }
    learn(k, e);
    assert_int_equal(k->sites, 8 + NODES);
    read_block(e, d, k->sites, want, count, &bytes);
    /* Two varying times a launch: what is left is their noise. */
    assert_true((double)bytes / (double)count < 3.0);
    st_launch_decoder_destroy(d);
    st_launch_encoder_destroy(e);
    forget(k);
}

static struct st_launch_site any_site(void) {
    static const char *const names[] = {"a", "bb", "", "a kernel", NULL};
    bool in_graph = draw(2);
    return (struct st_launch_site){.kind = (int32_t)draw(ST_LAUNCH_KINDS),
                                   .graph_id = in_graph ? draw(3) : 0,
                                   .graph_node_id = in_graph ? (uint64_t)draw(40) << 32 : 0,
                                   .name = names[draw(5)],
                                   .grid = {(int32_t)draw(3), (int32_t)draw(2), INT32_MAX},
                                   .block = {1024, 1, 1},
                                   .shared_bytes = (int32_t)draw(2) * 227 * 1024,
                                   .stream_id = draw(2) ? UINT32_MAX : 7,
                                   .device_id = draw(8)};
}

static void anything_comes_back(void **state) {
    (void)state;
    struct st_launch_encoder *e = NULL;
    struct st_launch_decoder *d = NULL;
    struct known *k = calloc(1, sizeof *k);
    static struct st_launch_record want[3000];
    static struct st_launch_site made[3000];
    assert_int_equal(st_launch_encoder_create(&e, NULL), 0);
    assert_int_equal(st_launch_decoder_create(&d, NULL), 0);
    uint32_t call = UINT32_MAX - 500; /* the counter wraps around */
    for (int block = 0; block < 5; block++) {
        int64_t count = 0;
        for (; count < 3000; count++) {
            struct st_launch_record *l = &want[count];
            made[count] = any_site();
            *l = (struct st_launch_record){.sequence = (int64_t)draw(20) - 2,
                                           .start_ns = draw(10) ? (int64_t)draw(1u << 31) : 0,
                                           .end_ns = draw(10) ? (int64_t)draw(1u << 31) : 0,
                                           .bytes = draw(3) ? 0 : draw(1u << 31),
                                           .correlation_id = call += draw(3)};
            assert_int_equal(st_launch_encoder_site(e, &made[count], &l->site, NULL), 0);
        }
        assert_int_equal(st_launch_encoder_add(e, want, count, NULL), 0);
        learn(k, e);
        read_block(e, d, k->sites, want, count, NULL);
        for (int64_t i = 1; i < count; i++)
            assert_true((int32_t)(want[i].correlation_id - want[i - 1].correlation_id) >= 0);
    }
    /* Every site is what was asked for. */
    for (int64_t i = 0; i < 3000; i++) {
        int32_t number = -1;
        assert_int_equal(st_launch_encoder_site(e, &made[i], &number, NULL), 0);
        same_site(&k->site[number], &made[i]);
    }
    st_launch_decoder_destroy(d);
    st_launch_encoder_destroy(e);
    forget(k);
}

/* More kinds of launches than an encoder keeps: it forgets, numbers go on, memory stays. */
static void forgets(void **state) {
    (void)state;
    struct st_launch_encoder *e = NULL;
    struct st_bytes out = {0};
    struct st_launch_site site = {.name = "k"};
    int32_t number = 0;
    assert_int_equal(st_launch_encoder_create(&e, NULL), 0);
    for (int i = 0; i <= ST_LAUNCH_DICTIONARY_MAX; i++) {
        site.grid[0] = i;
        assert_int_equal(st_launch_encoder_site(e, &site, &number, NULL), 0);
        assert_int_equal(number, i);
    }
    st_launch_encoder_room(e); /* they are not written yet: kept */
    assert_int_equal(st_launch_encoder_site(e, &site, &number, NULL), 0);
    assert_int_equal(number, ST_LAUNCH_DICTIONARY_MAX);
    assert_int_equal(st_launch_encoder_definitions(e, &out, NULL), 0);
    st_launch_encoder_room(e);
    assert_int_equal(st_launch_encoder_site(e, &site, &number, NULL), 0);
    assert_int_equal(number, ST_LAUNCH_DICTIONARY_MAX + 1);
    st_bytes_fini(&out);
    st_launch_encoder_destroy(e);
}

/* ---- damage */

static void try_block(struct st_launch_decoder *d, const uint8_t *data, size_t size) {
    struct st_launch_record l;
    struct st_error err = {0};
    int rc = st_launch_decoder_begin(d, data, size, 208, &err);
    for (int i = 0; rc == 0 && i < MOST; i++) {
        rc = st_launch_decoder_next(d, &l, &err);
        if (rc == 0)
            assert_true(l.site >= 0 && l.site < 208);
    }
    assert_true(rc == ST_DONE || (rc < 0 && err.msg[0]));
}

static void damage_is_refused(void **state) {
    (void)state;
    static struct st_launch_record want[8 + NODES];
    struct st_launch_encoder *e = NULL;
    struct st_launch_decoder *d = NULL;
    struct st_bytes out = {0};
    int64_t clock = 1;
    assert_int_equal(st_launch_encoder_create(&e, NULL), 0);
    assert_int_equal(st_launch_decoder_create(&d, NULL), 0);
    int64_t count = make_step(e, 0, &clock, want);
    assert_int_equal(st_launch_encoder_add(e, want, count, NULL), 0);
    assert_int_equal(st_launch_encoder_block(e, &out, NULL), 0);
    /* Sites that are not defined. */
    struct st_error err = {0};
    struct st_launch_record l;
    assert_int_equal(st_launch_decoder_begin(d, out.data, out.size, 100, &err), 0);
    int rc = 0;
    while (rc == 0)
        rc = st_launch_decoder_next(d, &l, &err);
    assert_int_equal(rc, ST_ERR_CORRUPT);
    assert_non_null(strstr(err.msg, "not defined"));
    for (size_t cut = 0; cut < out.size; cut++)
        try_block(d, out.data, cut);
    for (int i = 0; i < 3000; i++) {
        uint8_t *copy = malloc(out.size);
        memcpy(copy, out.data, out.size);
        for (uint32_t k = 0; k <= draw(3); k++)
            copy[draw((uint32_t)out.size)] ^= (uint8_t)(1u << draw(8));
        try_block(d, copy, out.size);
        free(copy);
    }
    st_bytes_fini(&out);
    st_launch_decoder_destroy(d);
    st_launch_encoder_destroy(e);
}

/* ---- the stream */

static char path[] = "/tmp/steptape-launch-XXXXXX";

static void write_file(const struct st_bytes *data, size_t size) {
    FILE *f = fopen(path, "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(data->data, 1, size, f), size);
    assert_int_equal(fclose(f), 0);
}

static int64_t chunks_in(int64_t *torn) {
    struct st_launch_stream *s = NULL;
    const uint8_t *data;
    size_t size;
    int32_t type;
    int64_t count = 0;
    int rc;
    assert_int_equal(st_launch_stream_open(path, &s, NULL), 0);
    while ((rc = st_launch_stream_next(s, &type, &data, &size, NULL)) == 0)
        count++;
    assert_int_equal(rc, ST_DONE);
    *torn = st_launch_stream_torn(s);
    st_launch_stream_close(s);
    return count;
}

static void a_stream_ends_anywhere(void **state) {
    (void)state;
    struct st_bytes out = {0}, text = {0};
    int64_t torn;
    int fd = mkstemp(path);
    assert_true(fd >= 0);
    close(fd);
    st_chunk_text(&text, "pid", "%d", 7);
    st_chunk_text(&text, "note", "two\nlines");
    assert_int_equal(st_chunk_put(&out, ST_CHUNK_HEAD, text.data, text.size, NULL), 0);
    size_t first = out.size;
    assert_int_equal(st_chunk_put(&out, ST_CHUNK_END, "", 0, NULL), 0);
    for (size_t size = 0; size <= out.size; size++) {
        if (size > 0 && size < 4)
            continue; /* not even a stream */
        write_file(&out, size);
        int64_t want = size == out.size ? 2 : size >= first;
        assert_int_equal(chunks_in(&torn), want);
        assert_int_equal(torn, size - (want == 2 ? out.size : want ? first : 0));
    }
    out.data[first / 2] ^= 1; /* inside the first: nothing can be read */
    write_file(&out, out.size);
    assert_int_equal(chunks_in(&torn), 0);
    char value[32];
    assert_string_equal(st_chunk_read_text(text.data, text.size, "note", value, sizeof value),
                        "two lines");
    assert_null(st_chunk_read_text(text.data, text.size, "not", value, sizeof value));
    assert_int_equal(st_chunk_read_integer(text.data, text.size, "pid", -1), 7);
    assert_int_equal(st_chunk_read_integer(text.data, text.size, "note", -1), -1);
    write_file(&text, text.size);
    struct st_launch_stream *s = NULL;
    assert_int_equal(st_launch_stream_open(path, &s, NULL), ST_ERR_INPUT);
    unlink(path);
    assert_int_equal(st_launch_stream_open(path, &s, NULL), ST_ERR_IO);
    st_bytes_fini(&out);
    st_bytes_fini(&text);
}

static void steps_come_back(void **state) {
    (void)state;
    struct st_launch_step want[100], *got = NULL;
    struct st_bytes out = {0};
    int64_t count;
    for (int64_t i = 0; i < 100; i++)
        want[i] = (struct st_launch_step){.sequence = i + i / 30 * 2,
                                          .level = (int32_t)draw(ST_LEVELS),
                                          .changed = (int32_t)draw(2),
                                          .start_ns = 1000 * i + draw(10),
                                          .duration_ns = 900 + draw(100),
                                          .kernel_launches = (int64_t)draw(300) - 1,
                                          .graph_launches = (int64_t)draw(3) - 1,
                                          .graph_kernels = (int64_t)draw(200) - 1};
    assert_int_equal(st_chunk_put_steps(&out, want, 100, NULL), 0);
    const uint8_t *payload = out.data + ST_CHUNK_HEAD_BYTES;
    size_t size = out.size - ST_CHUNK_HEAD_BYTES;
    assert_int_equal(st_chunk_read_steps(payload, size, &got, &count, NULL), 0);
    assert_int_equal(count, 100);
    assert_memory_equal(got, want, sizeof want);
    free(got);
    for (size_t cut = 0; cut < size; cut++) {
        if (st_chunk_read_steps(payload, cut, &got, &count, NULL) == 0)
            fail_msg("%zu bytes of %zu pass", cut, size);
        assert_null(got);
    }
    st_bytes_fini(&out);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(graphs_are_small),
        cmocka_unit_test(anything_comes_back),
        cmocka_unit_test(forgets),
        cmocka_unit_test(damage_is_refused),
        cmocka_unit_test(a_stream_ends_anywhere),
        cmocka_unit_test(steps_come_back),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
