/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Facts by hand: what each flag and event costs, and what comes back, from the beginning and from
 * the snapshot of a later block.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "traces/format/facts.h"
#include "traces/format/testing.h"

#define ROWS(...)                                                                                  \
    (const int64_t[]) {                                                                            \
        __VA_ARGS__                                                                                \
    }
#define LENS(...)                                                                                  \
    (const int32_t[]) {                                                                            \
        __VA_ARGS__                                                                                \
    }
#define LIST(...)                                                                                  \
    {                                                                                              \
        sizeof((const int64_t[]){__VA_ARGS__}) / sizeof(int64_t), (const int64_t[]) {              \
            __VA_ARGS__                                                                            \
        }                                                                                          \
    }
#define STEP(...)                                                                                  \
    (const struct st_step) {                                                                       \
        .cpu_starts = -1, .zeroed = ST_UNKNOWN, .replaced = {-1, NULL}, __VA_ARGS__                \
    }

/* STEP() sets what a step says when it says nothing; the rest overrides it. */
#pragma GCC diagnostic ignored "-Woverride-init"

enum { MAX_STEPS = 16 };

/* Steps coded one after the other; `block` steps are a block. */
struct story {
    struct st_step step[MAX_STEPS];
    int count, block;
    size_t size[MAX_STEPS][ST_FACTS_COLUMNS]; /* bytes that a step took */
    struct st_bytes packed[MAX_STEPS];
    struct st_requests requests;
    struct st_facts_encoder encoder;
};

static void story_open(struct story *s, int block) {
    memset(s, 0, sizeof *s);
    s->block = block;
    st_requests_init(&s->requests, 0);
}

static int story_add(struct story *s, struct st_step step, struct st_error *err) {
    size_t before[ST_FACTS_COLUMNS];
    assert_true(s->count < MAX_STEPS);
    step.step_id = s->count;
    if (s->count % s->block == 0)
        st_facts_encoder_begin(&s->encoder, &s->requests);
    for (int c = 0; c < ST_FACTS_COLUMNS; c++)
        before[c] = s->encoder.column[c].size;
    int rc = st_facts_encode(&s->encoder, &s->requests, &step, err);
    if (rc)
        return rc;
    for (int32_t i = 0; i < step.request_count; i++)
        step.token_count += step.query_len[i];
    for (int c = 0; c < ST_FACTS_COLUMNS; c++)
        s->size[s->count][c] = s->encoder.column[c].size - before[c];
    st_requests_advance(&s->requests, &step);
    s->step[s->count++] = step;
    if (s->count % s->block == 0)
        assert_int_equal(st_columns_pack(s->encoder.column, ST_FACTS_COLUMNS,
                                         &s->packed[s->count / s->block - 1], NULL),
                         0);
    return 0;
}

static void add(struct story *s, struct st_step step) {
    struct st_error err = {0};
    if (story_add(s, step, &err))
        fail_msg("step %d: %s", s->count, err.msg);
}

static void expect_list(const struct st_request_list *want, const struct st_request_list *got) {
    assert_int_equal(want->count, got->count);
    for (int32_t i = 0; i < want->count; i++)
        assert_true(want->request_id[i] == got->request_id[i]);
}

static void expect_step(const struct st_step *want, const struct st_step *got) {
    size_t bytes = (size_t)want->request_count * sizeof(int32_t);
    assert_int_equal(want->request_count, got->request_count);
    assert_int_equal(want->token_count, got->token_count);
    if (bytes) {
        assert_memory_equal(want->request_id, got->request_id, 2 * bytes);
        assert_memory_equal(want->query_len, got->query_len, bytes);
        assert_memory_equal(want->num_computed_tokens, got->num_computed_tokens, bytes);
    }
    assert_int_equal(want->draft != NULL, got->draft != NULL);
    if (want->draft && bytes)
        assert_memory_equal(want->draft, got->draft, bytes);
    assert_int_equal(want->cpu_starts, got->cpu_starts);
    assert_true(want->zeroed == got->zeroed);
    expect_list(&want->finished, &got->finished);
    expect_list(&want->preempted, &got->preempted);
    expect_list(&want->resumed, &got->resumed);
    expect_list(&want->new_requests, &got->new_requests);
    expect_list(&want->replaced, &got->replaced);
    for (int32_t i = 0; i < want->new_requests.count; i++)
        assert_int_equal(want->new_prompt_len[i], got->new_prompt_len[i]);
}

static void read_back(struct story *s, int first_block) {
    struct st_facts_decoder decoder = {0};
    struct st_requests requests;
    struct st_error err = {0};
    st_requests_init(&requests, 0);
    for (int b = first_block; b < s->count / s->block; b++) {
        assert_int_equal(
            st_facts_decoder_begin(&decoder, s->packed[b].data, s->packed[b].size, &err), 0);
        if (b == first_block)
            assert_int_equal(st_facts_decode_snapshot(&decoder, &requests, &err), 0);
        for (int i = b * s->block; i < (b + 1) * s->block; i++) {
            struct st_step step = {.step_id = i};
            if (st_facts_decode(&decoder, &requests, &step, &err))
                fail_msg("step %d from block %d: %s", i, first_block, err.msg);
            expect_step(&s->step[i], &step);
            st_requests_advance(&requests, &step);
        }
        struct st_step none = {0};
        assert_int_equal(st_facts_decode(&decoder, &requests, &none, &err), ST_ERR_CORRUPT);
    }
    st_facts_decoder_fini(&decoder);
    st_requests_fini(&requests);
}

static void story_close(struct story *s) {
    assert_int_equal(s->count % s->block, 0);
    for (int b = 0; b < s->count / s->block; b++)
        read_back(s, b);
    for (int b = 0; b < MAX_STEPS; b++)
        st_bytes_fini(&s->packed[b]);
    st_facts_encoder_fini(&s->encoder);
    st_requests_fini(&s->requests);
}

static size_t bytes_of(const struct story *s, int step) {
    size_t size = 0;
    for (int c = 0; c < ST_FACTS_COLUMNS; c++)
        size += s->size[step][c];
    return size;
}

#define NEW_3                                                                                      \
    STEP(.request_count = 3, .request_id = ROWS(5, 6, 9), .query_len = LENS(7, 1, 100),            \
         .num_computed_tokens = LENS(0, 128, 0), .new_requests = LIST(5, 6, 9),                    \
         .new_prompt_len = LENS(7, 129, -1))

static void a_predicted_step_is_one_byte(void **state) {
    (void)state;
    struct story s;
    story_open(&s, 2);
    add(&s, NEW_3);
    add(&s, STEP(.request_count = 3, .request_id = ROWS(5, 6, 9), .query_len = LENS(1, 1, 1),
                 .num_computed_tokens = LENS(7, 129, 100)));
    assert_int_equal(bytes_of(&s, 1), 1);
    story_close(&s);
}

static void every_scalar(void **state) {
    (void)state;
    struct story s;
    story_open(&s, 3);
    add(&s, NEW_3);
    for (int8_t cpu_starts = -1; cpu_starts <= 1; cpu_starts++) {
        add(&s, STEP(.cpu_starts = cpu_starts));
        add(&s, STEP(.cpu_starts = cpu_starts, .zeroed = 0));
    }
    add(&s, STEP(.zeroed = INT64_MAX - 1));
    add(&s, STEP(.zeroed = 77, .cpu_starts = 0));
    story_close(&s);
}

static void drafts(void **state) {
    (void)state;
    struct story s;
    story_open(&s, 1);
    add(&s, STEP(.draft = LENS(0))); /* present, of no rows */
    add(&s, NEW_3);
    add(&s, STEP(.request_count = 3, .request_id = ROWS(5, 6, 9), .query_len = LENS(3, 1, 2),
                 .num_computed_tokens = LENS(7, 129, 100), .draft = LENS(2, 0, 1)));
    assert_int_equal(s.size[2][ST_FACTS_QUERY_LEN], 0);
    assert_int_equal(s.size[2][ST_FACTS_DRAFT], 3);
    /* One of two drafts was rejected, and a row has more drafts than tokens. */
    add(&s, STEP(.request_count = 3, .request_id = ROWS(5, 6, 9), .query_len = LENS(1, 1, 1),
                 .num_computed_tokens = LENS(9, 130, 102), .draft = LENS(0, 5, INT32_MAX - 1)));
    assert_true(s.size[3][ST_FACTS_QUERY_LEN] > 0);
    add(&s, STEP(.request_count = 1, .request_id = ROWS(6), .query_len = LENS(1),
                 .num_computed_tokens = LENS(131)));
    story_close(&s);
}

static void batches_in_any_order(void **state) {
    (void)state;
    struct story s;
    story_open(&s, 2);
    add(&s, STEP(.request_count = 5, .request_id = ROWS(1, 2, 3, 4, 5),
                 .query_len = LENS(1, 1, 1, 1, 1), .num_computed_tokens = LENS(0, 0, 0, 0, 0),
                 .new_requests = LIST(1, 2, 3, 4, 5), .new_prompt_len = LENS(0, 0, 0, 0, 0)));
    static const int64_t orders[][5] = {
        {5, 4, 3, 2, 1}, {2, 1, 4, 3, 5}, {1, 2, 3, 4, 5}, {5, 1, 2, 3, 4}, {2, 3, 4, 5, 1}};
    static const int32_t ones[] = {1, 1, 1, 1, 1};
    static const int32_t starts[][5] = {
        {1, 1, 1, 1, 1}, {2, 2, 2, 2, 2}, {3, 3, 3, 3, 3}, {4, 4, 4, 4, 4}, {5, 5, 5, 5, 5}};
    for (int i = 0; i < 5; i++)
        add(&s, STEP(.request_count = 5, .request_id = orders[i], .query_len = ones,
                     .num_computed_tokens = starts[i]));
    add(&s, STEP(.request_count = 2, .request_id = ROWS(4, 2), .query_len = LENS(1, 1),
                 .num_computed_tokens = LENS(6, 6)));
    add(&s, STEP(.request_count = 4, .request_id = ROWS(2, 5, 1, 4), .query_len = LENS(9, 1, 1, 1),
                 .num_computed_tokens = LENS(0, 6, 6, INT32_MAX - 1)));
    add(&s, STEP(.request_count = 0));
    add(&s, STEP(.request_count = 1, .request_id = ROWS(3), .query_len = LENS(1),
                 .num_computed_tokens = LENS(6)));
    story_close(&s);
}

static void events(void **state) {
    (void)state;
    struct story s;
    story_open(&s, 1);
    add(&s, NEW_3);
    /* 77 never ran: aborted while it waited.  The order is the recording's. */
    add(&s, STEP(.finished = LIST(9, 77, 5), .request_count = 1, .request_id = ROWS(6),
                 .query_len = LENS(1), .num_computed_tokens = LENS(129)));
    add(&s, STEP(.preempted = LIST(6), .replaced = {0, NULL}));
    add(&s, STEP(.replaced = LIST(6, 5)));
    add(&s, STEP(.resumed = LIST(6), .replaced = LIST(6), .request_count = 1, .request_id = ROWS(6),
                 .query_len = LENS(40), .num_computed_tokens = LENS(64)));
    add(&s, STEP(.new_requests = LIST(9), .new_prompt_len = LENS(INT32_MAX), .finished = LIST(6),
                 .request_count = 1, .request_id = ROWS(9), .query_len = LENS(INT32_MAX),
                 .num_computed_tokens = LENS(0)));
    add(&s,
        STEP(.preempted = LIST(9), .new_requests = LIST(10, 11), .new_prompt_len = LENS(0, -1)));
    add(&s, STEP(.finished = LIST(9, 10, 11))); /* one of them waiting */
    add(&s, STEP(.finished = {0, NULL}));
    story_close(&s);
}

static void request_numbers_of_any_size(void **state) {
    (void)state;
    struct story s;
    story_open(&s, 1);
    add(&s, STEP(.request_count = 3, .request_id = ROWS(INT64_MIN, INT64_MAX, -1),
                 .query_len = LENS(1, 1, 1), .num_computed_tokens = LENS(0, 0, 0),
                 .new_requests = LIST(INT64_MAX, INT64_MIN, -1), .new_prompt_len = LENS(1, 1, 1)));
    add(&s, STEP(.finished = LIST(INT64_MIN, INT64_MAX, INT64_MIN)));
    add(&s, STEP(.finished = LIST(-1)));
    story_close(&s);
}

static void expect_refused(struct story *s, struct st_step step, const char *text) {
    struct st_error err = {0};
    assert_int_equal(story_add(s, step, &err), ST_ERR_INPUT);
    if (!strstr(err.msg, text))
        fail_msg("\"%s\" without \"%s\"", err.msg, text);
}

static void wrong_events(void **state) {
    (void)state;
    struct story s;
    for (int i = 0; i < 4; i++) {
        story_open(&s, 1);
        add(&s, NEW_3);
        switch (i) {
        case 0:
            expect_refused(&s, STEP(.resumed = LIST(5)), "not preempted");
            break;
        case 1:
            expect_refused(&s, STEP(.new_requests = LIST(6), .new_prompt_len = LENS(1)),
                           "already known");
            break;
        case 2:
            expect_refused(&s,
                           STEP(.request_count = 1, .request_id = ROWS(8), .query_len = LENS(1),
                                .num_computed_tokens = LENS(0)),
                           "request 8 is in the batch but not running");
            break;
        case 3:
            expect_refused(&s,
                           STEP(.request_count = 2, .request_id = ROWS(5, 5),
                                .query_len = LENS(1, 1), .num_computed_tokens = LENS(0, 0)),
                           "request 5 stands twice");
            break;
        }
        story_close(&s);
    }
}

static void columns(void **state) {
    (void)state;
    struct st_bytes column[3] = {{0}}, packed = {0}, scratch = {0};
    struct st_bytes_reader in[3];
    struct st_error err;
    st_bytes_put(&column[0], "abc", 3);
    st_bytes_put(&column[2], "d", 1);
    assert_int_equal(st_columns_pack(column, 3, &packed, &err), 0);
    assert_int_equal(st_columns_unpack(packed.data, packed.size, &scratch, in, 3, &err), 0);
    assert_int_equal(in[0].end - in[0].at, 3);
    assert_int_equal(in[1].end - in[1].at, 0);
    assert_int_equal(*in[2].at, 'd');
    /* More columns than there are: lengths that pass the end. */
    struct st_bytes_reader more[64];
    assert_int_equal(st_columns_unpack(packed.data, packed.size, &scratch, more, 64, &err),
                     ST_ERR_CORRUPT);
    column[1].failed = true;
    assert_int_equal(st_columns_pack(column, 3, &packed, &err), ST_ERR_NOMEM);
    for (int c = 0; c < 3; c++)
        st_bytes_fini(&column[c]);
    st_bytes_fini(&packed);
    st_bytes_fini(&scratch);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_predicted_step_is_one_byte),
        cmocka_unit_test(every_scalar),
        cmocka_unit_test(drafts),
        cmocka_unit_test(batches_in_any_order),
        cmocka_unit_test(events),
        cmocka_unit_test(request_numbers_of_any_size),
        cmocka_unit_test(wrong_events),
        cmocka_unit_test(columns),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
