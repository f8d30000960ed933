/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Block ids by hand: what the allocator's model predicts costs nothing, and the rest comes back.
 * One group of 4 tokens a block and one of 8 with a window of 16.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "traces/format/blocks.h"
#include "traces/format/facts.h"
#include "traces/format/testing.h"

static const struct st_member whole = {ST_MEMBER_KV, 1, 4, -1, -1};
static const struct st_member window = {ST_MEMBER_SWA, 1, 1, 16, -1};
static const struct st_group groups[] = {{0, 4, 1, &whole}, {1, 8, 1, &window}};

struct side {
    struct st_requests requests;
    struct st_blocks_model model;
};

struct story {
    struct side writer, reader;
    struct st_facts_encoder facts; /* moves the writer's requests */
    struct st_bytes column[ST_BLOCKS_COLUMNS];
    int64_t step_id;
};

static struct st_header header_of(int64_t num_blocks) {
    return (struct st_header){.num_blocks = num_blocks, .group_count = 2, .groups = groups};
}

static void story_open(struct story *s, int64_t num_blocks, unsigned kind) {
    struct st_header header = header_of(num_blocks);
    memset(s, 0, sizeof *s);
    struct side *sides[] = {&s->writer, &s->reader};
    for (int i = 0; i < 2; i++) {
        st_requests_init(&sides[i]->requests, 2);
        assert_int_equal(st_blocks_model_init(&sides[i]->model, &header, kind, NULL), 0);
    }
}

static void side_close(struct side *side) {
    st_requests_fini(&side->requests);
    st_blocks_model_fini(&side->model);
}

static void story_close(struct story *s) {
    side_close(&s->writer);
    side_close(&s->reader);
    st_facts_encoder_fini(&s->facts);
    for (int c = 0; c < ST_BLOCKS_COLUMNS; c++)
        st_bytes_fini(&s->column[c]);
}

/* One step of up to two requests; ids of group 0 and of group 1, row after row. */
struct what {
    int rows;
    int64_t request[2];
    int32_t query_len[2], start[2];
    int32_t count[2][2]; /* [group][row] */
    int32_t id[2][16];
    int64_t fresh[2]; /* new requests, 0: none; so the others */
    int64_t finished, preempted, resumed, replaced;
};

static struct st_request_list list(const int64_t *id) {
    return (struct st_request_list){*id != 0, id};
}

/* Codes a step as a block of its own, decodes it, compares, and says which columns it took. */
static void step_both(struct story *s, const struct what *what, size_t size[ST_BLOCKS_COLUMNS]) {
    static const int32_t prompt_len[2] = {100, 100};
    int32_t offset[2][3] = {{0}};
    struct st_row_blocks blocks[2];
    for (int g = 0; g < 2; g++) {
        for (int r = 0; r < what->rows; r++)
            offset[g][r + 1] = offset[g][r] + what->count[g][r];
        blocks[g] = (struct st_row_blocks){offset[g], what->id[g]};
    }
    struct st_step step = {
        .step_id = s->step_id++,
        .request_count = what->rows,
        .request_id = what->request,
        .query_len = what->query_len,
        .num_computed_tokens = what->start,
        .zeroed = ST_UNKNOWN,
        .new_requests = {(what->fresh[0] != 0) + (what->fresh[1] != 0), what->fresh},
        .new_prompt_len = prompt_len,
        .finished = list(&what->finished),
        .preempted = list(&what->preempted),
        .resumed = list(&what->resumed),
        .replaced = list(&what->replaced),
        .group_count = 2,
        .blocks = blocks};
    struct st_error err = {0};
    struct st_bytes_reader in[ST_BLOCKS_COLUMNS];
    st_blocks_begin(&s->writer.model, NULL);
    for (int c = 0; c < ST_BLOCKS_COLUMNS; c++)
        s->column[c].size = 0;
    assert_int_equal(st_facts_encode(&s->facts, &s->writer.requests, &step, &err), 0);
    assert_int_equal(
        st_blocks_encode(&s->writer.model, &s->writer.requests, &step, s->column, &err), 0);
    st_requests_advance(&s->writer.requests, &step);
    for (int c = 0; c < ST_BLOCKS_COLUMNS; c++) {
        size[c] = s->column[c].size;
        in[c] = (struct st_bytes_reader){s->column[c].data, s->column[c].data + size[c], false};
    }
    st_blocks_begin(&s->reader.model, in);
    /* The reader's requests move by the same function as the writer's. */
    struct st_step got = step;
    got.blocks = NULL;
    assert_int_equal(st_facts_encode(&s->facts, &s->reader.requests, &step, &err), 0);
    if (st_blocks_decode(&s->reader.model, &s->reader.requests, &got, in, &err))
        fail_msg("%s", err.msg);
    for (int g = 0; g < 2; g++) {
        assert_memory_equal(got.blocks[g].offset, offset[g],
                            ((size_t)what->rows + 1) * sizeof(int32_t));
        if (offset[g][what->rows])
            assert_memory_equal(got.blocks[g].block_id, what->id[g],
                                (size_t)offset[g][what->rows] * sizeof(int32_t));
    }
    st_requests_advance(&s->reader.requests, &step);
    assert_int_equal(s->writer.model.pool.free_count, s->reader.model.pool.free_count);
}

static void step_predicted(struct story *s, struct what what) {
    size_t size[ST_BLOCKS_COLUMNS];
    step_both(s, &what, size);
    for (int c = 0; c < ST_BLOCKS_COLUMNS; c++)
        assert_int_equal(size[c], 0);
}

#define FIRST                                                                                      \
    (struct what) {                                                                                \
        .rows = 1, .request = {1}, .query_len = {10}, .fresh = {1}, .count = {{3}, {2}}, .id = {   \
            {1, 2, 3},                                                                             \
            {4, 5}                                                                                 \
        }                                                                                          \
    }

static void the_queue_predicts(void **state) {
    (void)state;
    struct story s;
    story_open(&s, 40, 0);
    step_predicted(&s, FIRST);
    step_predicted(&s, (struct what){.rows = 1, .request = {1}, .query_len = {1}, .start = {10}});
    step_predicted(&s, (struct what){.rows = 2,
                                     .request = {1, 2},
                                     .query_len = {2, 5},
                                     .start = {11},
                                     .fresh = {2},
                                     .count = {{1, 2}, {0, 1}},
                                     .id = {{6, 7, 8}, {9}}});
    /* 2 is finished: 7, 8 come back last first, then 9; 1 takes them. */
    step_predicted(&s, (struct what){.rows = 1,
                                     .request = {1},
                                     .query_len = {8},
                                     .start = {13},
                                     .finished = 2,
                                     .count = {{2}, {1}},
                                     .id = {{9, 8}, {7}}});
    story_close(&s);
}

/* Tokens before start - window + 1 are no longer needed. */
static void windows_give_back(void **state) {
    (void)state;
    for (unsigned kind = 0; kind < 4; kind++) {
        struct story s;
        story_open(&s, 40, kind);
        step_predicted(&s, (struct what){.rows = 1,
                                         .request = {1},
                                         .query_len = {24},
                                         .fresh = {1},
                                         .count = {{6}, {3}},
                                         .id = {{1, 2, 3, 4, 5, 6}, {7, 8, 9}}});
        bool late = kind & ST_MODEL_LATE_WINDOW, tail = kind & ST_MODEL_FREE_TO_TAIL;
        /* start 24 leaves 9 and later: block 7 comes back, now or one step on. */
        int32_t next = late || tail ? 10 : 7;
        step_predicted(&s, (struct what){.rows = 1,
                                         .request = {1},
                                         .query_len = {1},
                                         .start = {24},
                                         .count = {{1}, {1}},
                                         .id = {{next}, {next == 7 ? 10 : 11}}});
        assert_int_equal(s.writer.model.pool.use_count[7], late || !tail);
        step_predicted(&s,
                       (struct what){.rows = 1, .request = {1}, .query_len = {1}, .start = {25}});
        assert_int_equal(s.writer.model.pool.use_count[7], !late && !tail);
        story_close(&s);
    }
}

static void null_blocks(void **state) {
    (void)state;
    struct story s;
    size_t size[ST_BLOCKS_COLUMNS];
    story_open(&s, 40, 0);
    struct what what = {.rows = 1,
                        .request = {1},
                        .query_len = {1},
                        .start = {31},
                        .fresh = {1},
                        .count = {{8}, {4}},
                        .id = {{0, 0, 1, 0, 0, 2, 3, 4}, {0, 0, 5, 6}}};
    step_both(&s, &what, size);
    assert_int_equal(size[ST_BLOCKS_COUNTS], 0);
    assert_int_equal(size[ST_BLOCKS_EVENTS], 6); /* three runs of nulls */
    assert_int_equal(size[ST_BLOCKS_IDS], 0);
    story_close(&s);
}

static void ids_out_of_order(void **state) {
    (void)state;
    struct story s;
    size_t size[ST_BLOCKS_COLUMNS];
    story_open(&s, 40, 0);
    /* The prefix cache gave 20, 21 for tokens that were computed before. */
    struct what shared = {.rows = 1,
                          .request = {1},
                          .query_len = {1},
                          .start = {8},
                          .fresh = {1},
                          .count = {{3}, {2}},
                          .id = {{20, 21, 1}, {2, 3}}};
    step_both(&s, &shared, size);
    assert_int_equal(size[ST_BLOCKS_EVENTS], 2);
    assert_int_equal(size[ST_BLOCKS_IDS], 2);
    /* Another one shares them; 22 and 30 are taken from where they are; 5000 is no id of ours. */
    struct what more = {.rows = 2,
                        .request = {2, 1},
                        .query_len = {1, 4},
                        .start = {8, 9},
                        .fresh = {2},
                        .count = {{3, 1}, {2, 0}},
                        .id = {{20, 21, 5000, 30}, {22, 4}}};
    step_both(&s, &more, size);
    assert_int_equal(s.reader.model.pool.use_count[20], 2);
    struct what done = {.rows = 1, .request = {1}, .query_len = {1}, .start = {13}, .finished = 2};
    step_both(&s, &done, size);
    assert_int_equal(s.reader.model.pool.use_count[20], 1);
    story_close(&s);
}

static void cached_blocks_are_passed_over(void **state) {
    (void)state;
    struct story s;
    size_t size[ST_BLOCKS_COLUMNS];
    story_open(&s, 40, 0);
    struct what what = {.rows = 1,
                        .request = {1},
                        .query_len = {10},
                        .fresh = {1},
                        .count = {{3}, {2}},
                        .id = {{5, 6, 7}, {8, 9}}};
    step_both(&s, &what, size);
    assert_int_equal(size[ST_BLOCKS_EVENTS], 2); /* one skip of four */
    assert_int_equal(size[ST_BLOCKS_IDS], 0);
    assert_int_equal(s.reader.model.pool.free_count, 34);
    story_close(&s);
}

static void more_or_fewer_blocks_than_needed(void **state) {
    (void)state;
    struct story s;
    size_t size[ST_BLOCKS_COLUMNS];
    story_open(&s, 40, 0);
    struct what what = {.rows = 1,
                        .request = {1},
                        .query_len = {10},
                        .fresh = {1},
                        .count = {{5}, {0}},
                        .id = {{1, 2, 3, 4, 5}}};
    step_both(&s, &what, size);
    assert_int_equal(size[ST_BLOCKS_COUNTS], 3);
    /* One that needs nothing takes one all the same: the decoder does not look at it unasked. */
    struct what late = {.rows = 1,
                        .request = {1},
                        .query_len = {1},
                        .start = {10},
                        .count = {{1}, {2}},
                        .id = {{6}, {7, 8}}};
    step_both(&s, &late, size);
    step_predicted(&s, (struct what){.rows = 1, .request = {1}, .query_len = {1}, .start = {11}});
    story_close(&s);
}

/* A preempted request gives its blocks back when the queue runs short. */
static void preemption(void **state) {
    (void)state;
    struct story s;
    story_open(&s, 10, 0);
    step_predicted(&s, FIRST);
    step_predicted(&s, (struct what){.rows = 1,
                                     .request = {2},
                                     .query_len = {4},
                                     .fresh = {2},
                                     .count = {{1}, {1}},
                                     .id = {{6}, {7}}});
    step_predicted(&s, (struct what){.rows = 1,
                                     .request = {1},
                                     .query_len = {14},
                                     .start = {10},
                                     .preempted = 2,
                                     .count = {{3}, {1}},
                                     .id = {{7, 6, 8}, {9}}});
    step_predicted(&s, (struct what){.rows = 1,
                                     .request = {2},
                                     .query_len = {4},
                                     .resumed = 2,
                                     .finished = 1,
                                     .replaced = 2,
                                     .count = {{1}, {1}},
                                     .id = {{9}, {5}}});
    story_close(&s);
}

/* What is resumed in the step that preempts it keeps what it takes. */
static void preempted_and_resumed_at_once(void **state) {
    (void)state;
    struct story s;
    story_open(&s, 10, 0);
    step_predicted(&s, FIRST);
    step_predicted(&s, (struct what){.rows = 1,
                                     .request = {1},
                                     .query_len = {10},
                                     .preempted = 1,
                                     .resumed = 1,
                                     .replaced = 1,
                                     .count = {{3}, {2}},
                                     .id = {{5, 4, 3}, {2, 1}}});
    assert_int_equal(s.writer.model.pool.use_count[5], 1);
    assert_int_equal(s.writer.model.pool.free_count, 4);
    story_close(&s);
}

static void unknown_num_blocks(void **state) {
    (void)state;
    struct story s;
    size_t size[ST_BLOCKS_COLUMNS];
    story_open(&s, -1, 0);
    struct what what = FIRST;
    step_both(&s, &what, size);
    assert_int_equal(size[ST_BLOCKS_IDS], 5);
    /* What was given back is known from then on. */
    step_predicted(&s, (struct what){.rows = 1,
                                     .request = {2},
                                     .query_len = {4},
                                     .finished = 1,
                                     .fresh = {2},
                                     .count = {{1}, {1}},
                                     .id = {{5}, {4}}});
    story_close(&s);
}

/* A reader that starts at a keyframe is where one that came by it is. */
static void keyframes(void **state) {
    (void)state;
    struct story s;
    struct st_error err;
    struct st_bytes keyframe = {0};
    struct st_header header = header_of(40);
    story_open(&s, 40, 0);
    step_predicted(&s, FIRST);
    step_predicted(&s, (struct what){.rows = 1,
                                     .request = {1},
                                     .query_len = {30},
                                     .start = {10},
                                     .count = {{7}, {3}},
                                     .id = {{6, 7, 8, 9, 10, 11, 12}, {13, 14, 15}}});
    assert_int_equal(st_blocks_put_keyframe(&s.writer.model, &s.writer.requests, &keyframe, &err),
                     0);
    assert_int_equal(st_blocks_pass_keyframe(&s.reader.model, &s.reader.requests, &err), 0);
    struct st_blocks_model fresh;
    st_blocks_model_init(&fresh, &header, 0, NULL);
    assert_int_equal(
        st_blocks_get_keyframe(&fresh, &s.reader.requests, keyframe.data, keyframe.size, &err), 0);
    struct st_pool *pools[] = {&s.reader.model.pool, &s.writer.model.pool};
    for (int i = 0; i < 2; i++) {
        int32_t a = 0, b = 0;
        do {
            a = fresh.pool.next[a];
            b = pools[i]->next[b];
            assert_int_equal(a, b);
        } while (a);
    }
    /* Blocks that the window left are not in it. */
    const struct st_request *r = s.reader.requests.running.item[0];
    assert_int_equal(r->tables[1].base, 0);
    assert_int_equal(r->tables[1].count, 5);
    for (size_t cut = 0; cut < keyframe.size; cut++)
        assert_int_equal(
            st_blocks_get_keyframe(&fresh, &s.reader.requests, keyframe.data, cut, &err),
            ST_ERR_CORRUPT);
    st_blocks_model_fini(&fresh);
    st_bytes_fini(&keyframe);
    story_close(&s);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_queue_predicts),
        cmocka_unit_test(windows_give_back),
        cmocka_unit_test(null_blocks),
        cmocka_unit_test(ids_out_of_order),
        cmocka_unit_test(cached_blocks_are_passed_over),
        cmocka_unit_test(more_or_fewer_blocks_than_needed),
        cmocka_unit_test(preemption),
        cmocka_unit_test(preempted_and_resumed_at_once),
        cmocka_unit_test(unknown_num_blocks),
        cmocka_unit_test(keyframes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
