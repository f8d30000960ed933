/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "traces/format/pool.h"
#include "traces/format/testing.h"

#define IDS(...)                                                                                   \
    ((const int32_t[]){__VA_ARGS__}),                                                              \
        (int32_t)(sizeof((const int32_t[]){__VA_ARGS__}) / sizeof(int32_t))

/* The queue from head to tail, both ways round the ring. */
static void expect_queue(const struct st_pool *pool, const int32_t *ids, int32_t count) {
    int32_t at = st_pool_head(pool);
    assert_int_equal(pool->free_count, count);
    for (int32_t i = 0; i < count; i++) {
        assert_int_equal(at, ids[i]);
        assert_int_equal(pool->previous[pool->next[at]], at);
        assert_int_equal(pool->use_count[at], 0);
        at = pool->next[at];
    }
    assert_int_equal(at, 0);
    assert_int_equal(pool->previous[0], count ? ids[count - 1] : 0);
}

static void blocks_come_in_order(void **state) {
    (void)state;
    struct st_pool pool;
    int32_t id[3];
    assert_int_equal(st_pool_init(&pool, 6, false, NULL), 0);
    expect_queue(&pool, IDS(1, 2, 3, 4, 5));
    st_pool_take(&pool, id, 3);
    assert_int_equal(id[0], 1);
    assert_int_equal(id[1], 2);
    assert_int_equal(id[2], 3);
    expect_queue(&pool, IDS(4, 5));
    st_pool_take(&pool, id, 0);
    st_pool_take(&pool, id, 2);
    expect_queue(&pool, NULL, 0);
    assert_int_equal(st_pool_head(&pool), 0);
    st_pool_fini(&pool);
}

static void given_back_to_the_head(void **state) {
    (void)state;
    struct st_pool pool;
    int32_t id[5];
    st_pool_init(&pool, 8, false, NULL);
    st_pool_take(&pool, id, 5);
    st_pool_give_back(&pool, IDS(1, 2, 3));
    expect_queue(&pool, IDS(3, 2, 1, 6, 7));
    st_pool_give_back(&pool, IDS(5));
    expect_queue(&pool, IDS(5, 3, 2, 1, 6, 7));
    st_pool_fini(&pool);
}

static void given_back_to_the_tail(void **state) {
    (void)state;
    struct st_pool pool;
    int32_t id[7];
    st_pool_init(&pool, 8, true, NULL);
    st_pool_take(&pool, id, 5);
    st_pool_give_back(&pool, IDS(1, 2, 3));
    expect_queue(&pool, IDS(6, 7, 3, 2, 1));
    st_pool_take(&pool, id, 5);
    st_pool_give_back(&pool, IDS(4)); /* into an empty queue */
    expect_queue(&pool, IDS(4));
    st_pool_fini(&pool);
}

static void shared_blocks(void **state) {
    (void)state;
    struct st_pool pool;
    int32_t id[3];
    st_pool_init(&pool, 8, false, NULL);
    st_pool_take(&pool, id, 3);
    st_pool_take_id(&pool, 2, NULL); /* a second user */
    st_pool_take_id(&pool, 5, NULL); /* out of the middle of the queue */
    st_pool_take_id(&pool, 4, NULL); /* the head */
    expect_queue(&pool, IDS(6, 7));
    assert_int_equal(st_pool_head(&pool), 6);
    st_pool_give_back(&pool, IDS(1, 2, 3));
    expect_queue(&pool, IDS(3, 1, 6, 7));
    st_pool_give_back(&pool, IDS(2));
    expect_queue(&pool, IDS(2, 3, 1, 6, 7));
    /* Nobody has these: nothing to give back. */
    st_pool_give_back(&pool, IDS(2, 0, 6, 100, INT32_MAX));
    expect_queue(&pool, IDS(2, 3, 1, 6, 7));
    st_pool_take_id(&pool, 7, NULL); /* the tail */
    expect_queue(&pool, IDS(2, 3, 1, 6));
    st_pool_fini(&pool);
}

/* The same id twice in a table has two users, and one place in the queue. */
static void an_id_twice_in_one_list(void **state) {
    (void)state;
    struct st_pool pool;
    st_pool_init(&pool, 4, false, NULL);
    st_pool_take_id(&pool, 1, NULL);
    st_pool_take_id(&pool, 1, NULL);
    st_pool_give_back(&pool, IDS(1, 2, 1));
    expect_queue(&pool, IDS(1, 2, 3));
    st_pool_fini(&pool);
}

static void skipped_blocks_keep_their_age(void **state) {
    (void)state;
    struct st_pool pool;
    int32_t id[8];
    st_pool_init(&pool, 9, false, NULL);
    st_pool_take(&pool, id, 8);
    st_pool_give_back(&pool, IDS(1));
    st_pool_give_back(&pool, IDS(2));
    st_pool_give_back(&pool, IDS(3));
    st_pool_give_back(&pool, IDS(4));
    expect_queue(&pool, IDS(4, 3, 2, 1));
    st_pool_skip(&pool, 2); /* 4 to the tail, 3 before it: it was given back before */
    expect_queue(&pool, IDS(2, 1, 3, 4));
    st_pool_skip(&pool, 1);
    expect_queue(&pool, IDS(1, 2, 3, 4));
    st_pool_give_back(&pool, IDS(5, 6));
    expect_queue(&pool, IDS(6, 5, 1, 2, 3, 4));
    st_pool_skip(&pool, 2);
    expect_queue(&pool, IDS(1, 2, 3, 4, 6, 5));
    st_pool_take_id(&pool, 5, NULL); /* where the last skip went */
    st_pool_skip(&pool, 1);
    assert_int_equal(pool.free_count, 5);
    st_pool_skip(&pool, 100000); /* stops somewhere, loses nothing */
    assert_int_equal(pool.free_count, 5);
    st_pool_fini(&pool);
}

static void skipping_a_queue_of_one_or_none(void **state) {
    (void)state;
    struct st_pool pool;
    int32_t id[2];
    st_pool_init(&pool, 2, false, NULL);
    st_pool_skip(&pool, 5);
    expect_queue(&pool, IDS(1));
    st_pool_take(&pool, id, 1);
    st_pool_skip(&pool, 5);
    expect_queue(&pool, NULL, 0);
    st_pool_fini(&pool);
}

static void unknown_size(void **state) {
    (void)state;
    struct st_pool pool;
    assert_int_equal(st_pool_init(&pool, -1, false, NULL), 0);
    expect_queue(&pool, NULL, 0);
    assert_int_equal(st_pool_take_id(&pool, 5000, NULL), 0);
    assert_int_equal(st_pool_take_id(&pool, 3, NULL), 0);
    assert_true(st_pool_models(&pool, 5000));
    st_pool_give_back(&pool, IDS(3, 5000));
    expect_queue(&pool, IDS(5000, 3));
    /* Too large to be modelled: taken and given back without a trace. */
    assert_int_equal(st_pool_take_id(&pool, ST_POOL_UNKNOWN, NULL), 0);
    assert_int_equal(st_pool_take_id(&pool, INT32_MAX, NULL), 0);
    assert_false(st_pool_models(&pool, INT32_MAX));
    st_pool_give_back(&pool, IDS(ST_POOL_UNKNOWN, INT32_MAX));
    expect_queue(&pool, IDS(5000, 3));
    assert_int_equal(st_pool_append(&pool, ST_POOL_UNKNOWN, NULL), ST_ERR_CORRUPT);
    st_pool_fini(&pool);
}

static void known_size_is_the_limit(void **state) {
    (void)state;
    struct st_pool pool;
    st_pool_init(&pool, 4, false, NULL);
    assert_int_equal(st_pool_take_id(&pool, 4, NULL), 0);
    assert_int_equal(pool.size, 4);
    st_pool_give_back(&pool, IDS(4));
    expect_queue(&pool, IDS(1, 2, 3));
    st_pool_fini(&pool);
    /* More than is modelled counts as unknown. */
    st_pool_init(&pool, (int64_t)ST_POOL_LIMIT + 1, false, NULL);
    expect_queue(&pool, NULL, 0);
    st_pool_fini(&pool);
}

static void distances(void **state) {
    (void)state;
    struct st_pool pool;
    st_pool_init(&pool, 10, false, NULL);
    assert_int_equal(st_pool_distance(&pool, 1, 10), 0);
    assert_int_equal(st_pool_distance(&pool, 4, 3), 3);
    assert_int_equal(st_pool_distance(&pool, 5, 3), -1);
    assert_int_equal(st_pool_distance(&pool, 99, 100), -1);
    st_pool_fini(&pool);
}

static void refilling(void **state) {
    (void)state;
    struct st_pool pool;
    struct st_error err;
    st_pool_init(&pool, 6, false, NULL);
    st_pool_take_id(&pool, 2, NULL);
    st_pool_reset(&pool);
    expect_queue(&pool, NULL, 0);
    st_pool_take_id(&pool, 2, NULL);
    assert_int_equal(st_pool_append(&pool, 5, &err), 0);
    assert_int_equal(st_pool_append(&pool, 1, &err), 0);
    expect_queue(&pool, IDS(5, 1));
    assert_int_equal(st_pool_append(&pool, 5, &err), ST_ERR_CORRUPT); /* stands there */
    assert_int_equal(st_pool_append(&pool, 2, &err), ST_ERR_CORRUPT); /* is in use */
    assert_int_equal(st_pool_append(&pool, 0, &err), ST_ERR_CORRUPT);
    expect_queue(&pool, IDS(5, 1));
    st_pool_give_back(&pool, IDS(2));
    expect_queue(&pool, IDS(2, 5, 1));
    st_pool_fini(&pool);
}

/* Against a plain array. */
static void random_use(void **state) {
    (void)state;
    enum { SIZE = 40 };
    for (uint64_t seed = 0; seed < 20; seed++) {
        struct st_test_random random = {seed};
        struct st_pool pool;
        int32_t queue[2 * SIZE], count = 0, users[SIZE] = {0}, taken[2 * SIZE], held = 0;
        st_pool_init(&pool, SIZE, seed & 1, NULL);
        for (int32_t id = 1; id < SIZE; id++)
            queue[count++] = id;
        for (int i = 0; i < 2000; i++) {
            if (st_test_chance(&random, 40) && count) {
                st_pool_take(&pool, &taken[held], 1);
                assert_int_equal(taken[held], queue[0]);
                users[queue[0]] = 1;
                memmove(queue, queue + 1, (size_t)--count * sizeof *queue);
                held++;
            } else if (st_test_chance(&random, 30) && held < SIZE) {
                int32_t id = (int32_t)st_test_within(&random, 1, SIZE - 1);
                st_pool_take_id(&pool, id, NULL);
                taken[held++] = id;
                for (int32_t k = 0; k < count && !users[id]; k++)
                    if (queue[k] == id)
                        memmove(queue + k, queue + k + 1, (size_t)(--count - k) * sizeof *queue);
                users[id]++;
            } else if (held) {
                int32_t part = (int32_t)st_test_within(&random, 1, held);
                int32_t at = seed & 1 ? count : 0;
                held -= part;
                st_pool_give_back(&pool, taken + held, part);
                for (int32_t k = part - 1; k >= 0; k--) {
                    if (--users[taken[held + k]])
                        continue;
                    memmove(queue + at + 1, queue + at, (size_t)(count++ - at) * sizeof *queue);
                    queue[at++] = taken[held + k];
                }
            }
            expect_queue(&pool, queue, count);
        }
        st_pool_fini(&pool);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(blocks_come_in_order),
        cmocka_unit_test(given_back_to_the_head),
        cmocka_unit_test(given_back_to_the_tail),
        cmocka_unit_test(shared_blocks),
        cmocka_unit_test(an_id_twice_in_one_list),
        cmocka_unit_test(skipped_blocks_keep_their_age),
        cmocka_unit_test(skipping_a_queue_of_one_or_none),
        cmocka_unit_test(unknown_size),
        cmocka_unit_test(known_size_is_the_limit),
        cmocka_unit_test(distances),
        cmocka_unit_test(refilling),
        cmocka_unit_test(random_use),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
