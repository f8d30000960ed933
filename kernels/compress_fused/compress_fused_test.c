/* SPDX-License-Identifier: Apache-2.0 */
/*
 * compress_fused: the reference against the references of the two launches and on an indexer entry
 * worked out by hand, lists, cost.  With ST_TEST_GPU every device variant against the reference
 * (one step of a number format where two fp32 values sit on either side of a rounding boundary)
 * and, with 512 channels, bit for bit against the two launches it stands for; plain and with lists.
 * An argument there: only shapes of at most so many tokens.
 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "kernels/compress_fused/compress_fused.h"
#include "kernels/device.h"
#include "kernels/testing.h"

typedef struct steptape_compress_fused_args fused_args;

#ifndef ST_TEST_GPU

/* Three requests of c4: positions 3 (first group), 7 and 6; ratio 4 with overlap, pages of 4. */
struct fixture {
    int32_t dim;
    float *state;
    float weight[512], cos_sin[8 * 64];
    int64_t positions[3], slots[3], kv_slots[3];
    int32_t reqs[3], table[3 * 2];
    uint8_t cache[2 * 1728];
    fused_args args;
};

static void fixture_init(struct fixture *f, int32_t dim) {
    const int64_t row = 4 * dim, page = 4 * row;
    memset(f, 0, sizeof(*f));
    f->dim = dim;
    f->state = malloc(4 * (size_t)(6 * page));
    assert_non_null(f->state);
    st_test_fill(f->state, (size_t)(6 * page), 11, 2.0f);
    st_test_fill(f->weight, 512, 12, 1.0f);
    st_test_fill(f->cos_sin, 8 * 64, 13, 1.0f);
    memset(f->cache, ST_TEST_POISON, sizeof(f->cache));
    const int64_t positions[] = {3, 7, 6}, slots[] = {3, 11, 14}, kv_slots[] = {2, 1, 0};
    const int32_t reqs[] = {0, 1, 2}, table[] = {5, -1, 2, 3, 4, 1};
    memcpy(f->positions, positions, sizeof(positions));
    memcpy(f->slots, slots, sizeof(slots));
    memcpy(f->kv_slots, kv_slots, sizeof(kv_slots));
    memcpy(f->reqs, reqs, sizeof(reqs));
    memcpy(f->table, table, sizeof(table));
    int indexer = dim == ST_FUSED_INDEXER_DIM;
    f->args = (fused_args){.state_cache = f->state,
                           .positions = f->positions,
                           .slot_mapping = f->slots,
                           .kv_slot_mapping = f->kv_slots,
                           .token_to_req = f->reqs,
                           .block_table = f->table,
                           .weight = f->weight,
                           .cos_sin_cache = f->cos_sin,
                           .kv_cache = f->cache,
                           .state_page_stride = page,
                           .state_row_stride = row,
                           .block_table_stride = 2,
                           .cos_sin_stride = 64,
                           .kv_page_stride_bytes = 1728,
                           .num_tokens = 3,
                           .head_dim = dim,
                           .rope_dim = 64,
                           .ratio = 4,
                           .overlap = 1,
                           .block_size = 4,
                           .kv_block_size = 2,
                           .weight_dtype = STEPTAPE_FP32,
                           .format = indexer ? STEPTAPE_COMPRESS_INDEXER_FP8
                                             : STEPTAPE_COMPRESS_FP8_DS_MLA,
                           .eps = 1e-6f};
}

static void as_two_launches(void **state) {
    (void)state;
    static struct fixture f;
    static float pooled[3 * 512];
    static uint8_t got[2 * 1728];
    fixture_init(&f, 512);
    assert_int_equal(steptape_compress_fused_ref(&f.args), 0);
    memcpy(got, f.cache, sizeof(got));
    memset(f.cache, ST_TEST_POISON, sizeof(f.cache));
    struct steptape_compress_pool_args pool = {.state_cache = f.state,
                                               .positions = f.positions,
                                               .slot_mapping = f.slots,
                                               .kv_slot_mapping = f.kv_slots,
                                               .token_to_req = f.reqs,
                                               .block_table = f.table,
                                               .pooled = pooled,
                                               .state_page_stride = f.args.state_page_stride,
                                               .state_row_stride = f.args.state_row_stride,
                                               .block_table_stride = 2,
                                               .pooled_stride = 512,
                                               .num_tokens = 3,
                                               .head_dim = 512,
                                               .ratio = 4,
                                               .overlap = 1,
                                               .block_size = 4};
    assert_int_equal(steptape_compress_pool_ref(&pool), 0);
    struct steptape_compress_norm_rope_store_args norm = {.pooled = pooled,
                                                          .positions = f.positions,
                                                          .slot_mapping = f.slots,
                                                          .kv_slot_mapping = f.kv_slots,
                                                          .weight = f.weight,
                                                          .cos_sin_cache = f.cos_sin,
                                                          .kv_cache = f.cache,
                                                          .pooled_stride = 512,
                                                          .cos_sin_stride = 64,
                                                          .kv_page_stride_bytes = 1728,
                                                          .num_tokens = 3,
                                                          .head_dim = 512,
                                                          .rope_dim = 64,
                                                          .ratio = 4,
                                                          .kv_block_size = 2,
                                                          .weight_dtype = STEPTAPE_FP32,
                                                          .eps = 1e-6f};
    assert_int_equal(steptape_compress_norm_rope_store_ref(&norm), 0);
    assert_memory_equal(got, f.cache, sizeof(got));
    /* tokens 0 and 1 wrote slots 2 and 1; token 2 closes no group: slot 0 is as it was */
    for (int i = 0; i < 576; i++)
        assert_int_equal(got[i], ST_TEST_POISON);
    assert_int_not_equal(got[1728], ST_TEST_POISON);
    free(f.state);
}

/* All scores equal, kv +-2: pooled is +-2, its norm +-1, scale 2^-8, q = 256. */
static void indexer_by_hand(void **state) {
    (void)state;
    static struct fixture f;
    fixture_init(&f, ST_FUSED_INDEXER_DIM);
    const int64_t row = 4 * 128;
    for (int64_t i = 0; i < 6 * 4 * row; i++)
        f.state[i] = i % row >= row / 2 ? 0.75f : i % 2 == 0 ? 2.0f : -2.0f;
    for (int d = 0; d < 128; d++)
        f.weight[d] = 1.0f;
    for (int i = 0; i < 8 * 64; i++)
        f.cos_sin[i] = i % 64 < 32 ? 1.0f : 0.0f;
    f.cos_sin[4 * 64] = 0.0f; /* position 7: row 4; pair 0 turns by a right angle */
    f.cos_sin[4 * 64 + 32] = 1.0f;
    f.args.eps = 0.0f;
    assert_int_equal(steptape_compress_fused_ref(&f.args), 0);
    const uint8_t *token0 = f.cache + 1728, *token1 = f.cache + 128;
    for (int d = 0; d < 128; d++) {
        assert_int_equal(token0[d], d % 2 == 0 ? 0x78 : 0xf8);
        assert_int_equal(token1[d], d % 2 == 0 || d == 65 ? 0x78 : 0xf8);
    }
    float scale;
    memcpy(&scale, f.cache + 1728 + 256, 4);
    assert_true(scale == 0x1p-8f);
    memcpy(&scale, f.cache + 256 + 4, 4);
    assert_true(scale == 0x1p-8f);
    for (size_t i = 0; i < 1728; i++) /* of the first page, only slot 1 */
        if (!(i >= 128 && i < 256) && !(i >= 260 && i < 264))
            assert_int_equal(f.cache[i], ST_TEST_POISON);
    /* a row of zeros has the floor of the scale: 1e-4 / 448 is under 2^-22 */
    for (int64_t i = 0; i < 6 * 4 * row; i++)
        f.state[i] = 0.0f;
    f.args.eps = 1e-6f;
    assert_int_equal(steptape_compress_fused_ref(&f.args), 0);
    memcpy(&scale, f.cache + 256 + 4, 4);
    assert_true(scale == 0x1p-22f);
    assert_int_equal(token1[5], 0);
    free(f.state);
}

static void lists(void **state) {
    (void)state;
    static struct fixture f;
    static uint8_t all[2 * 1728];
    fixture_init(&f, 512);
    assert_int_equal(steptape_compress_fused_ref(&f.args), 0);
    memcpy(all, f.cache, sizeof(all));
    /* the list alone counts; what closes no group or is no token is passed over */
    const int32_t list[] = {1, 2, -3};
    int32_t count = 9;
    f.args.list = list;
    f.args.list_count = &count;
    memset(f.cache, ST_TEST_POISON, sizeof(f.cache));
    assert_int_equal(steptape_compress_fused_ref(&f.args), 0);
    assert_memory_equal(f.cache + 576, all + 576, 576);
    for (size_t i = 1728; i < sizeof(f.cache); i++) /* token 0 is not listed */
        assert_int_equal(f.cache[i], ST_TEST_POISON);
    const int64_t tokens[] = {0, 1};
    memset(f.cache, ST_TEST_POISON, sizeof(f.cache));
    assert_int_equal(steptape_compress_fused_ref_rows(&f.args, tokens, 1), 0);
    assert_int_equal(f.cache[1728], ST_TEST_POISON);
    assert_int_equal(f.cache[576], ST_TEST_POISON);
    assert_int_equal(steptape_compress_fused_ref_rows(&f.args, tokens, 2), 0);
    assert_memory_equal(f.cache + 576, all + 576, 576);
    count = 0;
    memset(f.cache, ST_TEST_POISON, sizeof(f.cache));
    assert_int_equal(steptape_compress_fused_ref(&f.args), 0);
    assert_int_equal(f.cache[576], ST_TEST_POISON);
    f.args.list_count = NULL;
    assert_int_equal(steptape_compress_fused_ref(&f.args), STEPTAPE_ERR_ARGUMENT);
    free(f.state);
}

static void arguments(void **state) {
    (void)state;
    static struct fixture f;
    fixture_init(&f, 512);
    fused_args args = f.args;
    args.num_tokens = 0;
    args.state_cache = NULL;
    assert_int_equal(steptape_compress_fused(&args, NULL), 0);
    assert_int_equal(steptape_compress_fused_ref(&args), 0);
    args.num_tokens = 1;
    assert_int_equal(steptape_compress_fused(&args, NULL), STEPTAPE_ERR_ARGUMENT);
    assert_int_equal(steptape_compress_fused_ref(&args), STEPTAPE_ERR_ARGUMENT);
    args = f.args;
    args.format = STEPTAPE_COMPRESS_INDEXER_FP8;
    assert_int_equal(steptape_compress_fused_ref(&args), STEPTAPE_ERR_UNSUPPORTED);
    args = f.args;
    args.state_row_stride = 2047;
    assert_int_equal(steptape_compress_fused_ref(&args), STEPTAPE_ERR_ARGUMENT);
    args = f.args;
    args.kv_page_stride_bytes = 2 * 584 - 1;
    assert_int_equal(steptape_compress_fused_ref(&args), STEPTAPE_ERR_ARGUMENT);
    args = f.args;
    args.flags = STEPTAPE_LAUNCH_AFTER_POOL;
    assert_int_equal(steptape_compress_fused_ref(&args), STEPTAPE_ERR_ARGUMENT);
    args = f.args;
    args.variant = ST_FUSED_VARIANTS + 1;
    assert_int_equal(steptape_compress_fused_ref(&args), STEPTAPE_ERR_ARGUMENT);
    free(f.state);
}

static void cost(void **state) {
    (void)state;
    static struct fixture f;
    const int32_t list[1] = {0};
    fixture_init(&f, 512);
    struct steptape_token_counts counts = {60, 3, 2, 0};
    struct steptape_cost c;
    f.args.num_tokens = 64;
    assert_int_equal(steptape_compress_fused_cost(&f.args, &counts, &c), 0);
    assert_int_equal(c.read_bytes,
                     64 * 8 + 60 * 8 + 3 * 8 + 2 * (4 + 2 * 4 + 8 * 512 * 8 + 256) + 2048);
    assert_int_equal(c.written_bytes, 2 * 584);
    assert_int_equal(c.launch_count, 1);
    assert_int_equal(c.scratch_bytes, 0);
    assert_true(c.idle_max_block_count < c.block_count);
    uint64_t plain_blocks = c.block_count;
    /* a list: never more blocks than without one, all of them idle when it is empty */
    f.args.list = list;
    f.args.list_count = list;
    counts = (struct steptape_token_counts){0, 0, 0, 0};
    assert_int_equal(steptape_compress_fused_cost(&f.args, &counts, &c), 0);
    assert_int_equal(c.read_bytes, 4);
    assert_true(c.block_count <= plain_blocks);
    assert_int_equal(c.idle_max_block_count, c.block_count);
    counts = (struct steptape_token_counts){4, 4, 4, 3};
    assert_int_equal(steptape_compress_fused_cost(&f.args, &counts, &c), STEPTAPE_ERR_ARGUMENT);
    counts.entries = 4;
    assert_int_equal(steptape_compress_fused_cost(&f.args, &counts, &c), 0);
    f.args.num_tokens = 1000000;
    assert_int_equal(steptape_compress_fused_cost(&f.args, &counts, &c), 0);
    assert_true(c.block_count <= 132 * 16);
    free(f.state);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(as_two_launches),
        cmocka_unit_test(indexer_by_hand),
        cmocka_unit_test(lists),
        cmocka_unit_test(arguments),
        cmocka_unit_test(cost),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

#else /* ST_TEST_GPU */

struct shape {
    int64_t tokens;
    int32_t head_dim, ratio, overlap, block_size, kv_block_size;
    int32_t page_pad; /* floats */
    int32_t every;    /* 1: every token is a boundary; n: every nth */
    int32_t list;     /* 0: none; 1: all that are stored, shuffled; 2: every other of them; 3: none
                         of them, an empty list */
    int32_t base;     /* bytes that the cache is off alignment */
    int32_t weight_dtype;
    float offset; /* of scores; not 0: every third page has scores of -inf alone */
};

static const struct shape shapes[] = {
    {1, 512, 128, 0, 8, 2, 16, 1, 0, 0, STEPTAPE_FP32, 0},
    {1, 512, 128, 0, 8, 2, 16, 2, 1, 0, STEPTAPE_FP32, 0},
    {3, 512, 128, 0, 8, 2, 16, 1, 0, 0, STEPTAPE_BF16, 0},
    {16, 512, 128, 0, 8, 2, 16, 1, 1, 0, STEPTAPE_FP32, 0},
    {17, 512, 128, 0, 8, 2, 0, 1, 0, 0, STEPTAPE_FP32, 300},
    {33, 512, 128, 0, 8, 2, 16, 2, 2, 0, STEPTAPE_BF16, 0},
    {70, 512, 128, 0, 8, 2, 16, 1, 0, 0, STEPTAPE_FP32, -500},
    {130, 512, 128, 0, 8, 2, 16, 1, 1, 0, STEPTAPE_BF16, 0},
    {300, 512, 128, 0, 8, 2, 16, 3, 0, 0, STEPTAPE_FP32, 0},
    {515, 512, 128, 0, 8, 2, 16, 2, 1, 0, STEPTAPE_FP32, 0},
    {512, 512, 128, 0, 8, 2, 16, 1, 3, 0, STEPTAPE_FP32, 0},
    {64, 512, 128, 0, 8, 2, 16, 1, 1, 0, STEPTAPE_FP32, 0},
    {64, 512, 128, 0, 8, 2, 16, 128, 1, 0, STEPTAPE_FP32, 0},
    {256, 512, 128, 0, 8, 2, 16, 8, 1, 0, STEPTAPE_FP32, 0},
    {256, 512, 128, 0, 8, 2, 16, 2, 1, 0, STEPTAPE_FP32, -500},
    {512, 512, 128, 0, 8, 2, 16, 1, 1, 0, STEPTAPE_FP32, 0},
    {2200, 512, 128, 0, 8, 2, 16, 1, 1, 0, STEPTAPE_BF16, 0},
    {8192, 512, 128, 0, 8, 2, 16, 129, 0, 0, STEPTAPE_FP32, 0},
    {8192, 512, 128, 0, 8, 2, 16, 64, 1, 0, STEPTAPE_FP32, 0},
    {5, 512, 128, 0, 8, 2, 16, 1, 1, 1, STEPTAPE_FP32, 0},
    {6, 512, 128, 0, 8, 2, 3, 1, 0, 0, STEPTAPE_FP32, 0},
    {4, 512, 128, 0, 16, 3, 0, 1, 0, 0, STEPTAPE_FP32, 0},
    {1, 512, 4, 1, 4, 64, 16, 1, 0, 0, STEPTAPE_FP32, 0},
    {9, 512, 4, 1, 4, 64, 16, 2, 1, 0, STEPTAPE_BF16, 0},
    {600, 512, 4, 1, 4, 64, 16, 1, 0, 0, STEPTAPE_FP32, -500},
    {2100, 512, 4, 1, 4, 64, 16, 3, 2, 0, STEPTAPE_FP32, 0},
    {8192, 512, 4, 1, 4, 64, 16, 17, 0, 0, STEPTAPE_BF16, 0},
    {7, 512, 4, 1, 4, 64, 16, 1, 0, 1, STEPTAPE_FP32, 0},
    {1, 128, 4, 1, 4, 64, 112, 1, 0, 0, STEPTAPE_FP32, 0},
    {70, 128, 4, 1, 4, 64, 112, 2, 1, 0, STEPTAPE_BF16, 300},
    {1001, 128, 4, 1, 4, 64, 112, 1, 0, 0, STEPTAPE_FP32, 0},
    {8192, 128, 4, 1, 4, 64, 112, 5, 2, 0, STEPTAPE_FP32, 0},
    {7, 128, 4, 1, 4, 64, 1, 1, 0, 0, STEPTAPE_FP32, 0},
    {6, 128, 6, 0, 5, 3, 0, 1, 1, 0, STEPTAPE_FP32, 0},
};

/* A batch on the host and its copy on the device. */
struct batch {
    size_t state_count, cache_bytes;
    int64_t stored; /* tokens that are to be stored, by the list if there is one */
    float *state, *cos_sin;
    int64_t *positions, *slots, *kv_slots;
    int32_t *reqs, *table, *list;
    uint8_t *want, *got, *two;
    uint8_t *d_cache;
    fused_args host, device;
};

enum { MAX_POSITION = 2048, PAGES = 64 };

static int64_t entry_bytes(const fused_args *args) {
    return st_compress_fused_entry_bytes(args->format);
}

static void make_state(const struct shape *s, struct batch *b, int64_t row, int64_t page,
                       uint64_t seed) {
    st_test_fill(b->state, b->state_count, seed, 4.0f);
    for (size_t i = 0; i < b->state_count; i++) {
        int64_t column = (int64_t)i % page % row;
        if (column < row / 2)
            continue;
        if (i % 1013 == 7)
            b->state[i] = -INFINITY;
        else if (s->offset != 0.0f)
            b->state[i] = (int64_t)i / page % 3 == 1 ? -INFINITY : b->state[i] + s->offset;
    }
}

/* The list of what is stored, in another order than the tokens, with indices that are none. */
static int32_t make_list(const struct shape *s, struct batch *b) {
    int32_t n = 0;
    int64_t stored = 0;
    for (int64_t k = 0; k < s->tokens && s->list != 3; k++) {
        int64_t t = s->tokens - 1 - k;
        if (b->slots[t] < 0 || b->kv_slots[t] < 0 || (b->positions[t] + 1) % s->ratio != 0)
            continue;
        if (s->list == 2 && stored++ % 2 == 1)
            continue;
        b->list[n++] = (int32_t)t;
    }
    return n;
}

static void make_batch(const struct shape *s, uint64_t number, struct batch *b) {
    const int64_t n = s->tokens, row = (s->overlap ? 4 : 2) * s->head_dim;
    const int64_t page = row * s->block_size + s->page_pad;
    const int64_t table_width = MAX_POSITION / s->block_size + 1;
    int indexer = s->head_dim == ST_FUSED_INDEXER_DIM;
    int64_t entry = indexer ? ST_FUSED_INDEXER_ENTRY_BYTES : STEPTAPE_KV_ENTRY_BYTES;
    int64_t kv_page = s->kv_block_size * entry + (s->base != 0 ? 7 : 48);
    uint64_t seed = (number + 1) << 32;
    memset(b, 0, sizeof(*b));
    b->state_count = (size_t)(PAGES * page);
    b->cache_bytes = (size_t)((n / s->kv_block_size + 2) * kv_page + s->base);
    b->state = malloc(4 * b->state_count);
    b->cos_sin = malloc(4 * MAX_POSITION * 64);
    b->positions = malloc(8 * (size_t)n);
    b->slots = malloc(8 * (size_t)n);
    b->kv_slots = malloc(8 * (size_t)n);
    b->reqs = malloc(4 * (size_t)n);
    b->list = malloc(4 * (size_t)n);
    b->table = malloc(4 * (size_t)(16 * table_width));
    b->want = malloc(b->cache_bytes);
    b->got = malloc(b->cache_bytes);
    b->two = malloc(b->cache_bytes);
    assert_true(b->state && b->cos_sin && b->positions && b->slots && b->kv_slots && b->reqs &&
                b->list && b->table && b->want && b->got && b->two);
    make_state(s, b, row, page, seed);
    st_test_fill(b->cos_sin, MAX_POSITION * 64, seed + 1, 1.0f);
    for (int64_t t = 0; t < n; t++) {
        int64_t groups = MAX_POSITION / s->ratio;
        int64_t group = (int64_t)(st_test_random(seed + (uint64_t)t) % (uint64_t)groups);
        group = t % 5 == 4 ? 0 : group; /* the first group's window begins before position 0 */
        b->positions[t] = group * s->ratio + s->ratio - 1 - (t % s->every != 0);
        b->slots[t] = t % 11 == 10 ? -1 : t;
        b->kv_slots[t] = t % 13 == 12 ? -1 : n - t;
        b->reqs[t] = (int32_t)(t % 16);
    }
    for (int64_t i = 0; i < 16 * table_width; i++)
        b->table[i] =
            (int32_t)(st_test_random(seed + 999 + (uint64_t)i) % PAGES) - (i % 17 == 0 ? 70 : 0);
    b->host = (fused_args){.state_cache = b->state,
                           .positions = b->positions,
                           .slot_mapping = b->slots,
                           .kv_slot_mapping = b->kv_slots,
                           .token_to_req = b->reqs,
                           .block_table = b->table,
                           .cos_sin_cache = b->cos_sin,
                           .kv_cache = b->want + s->base,
                           .state_page_stride = page,
                           .state_row_stride = row,
                           .block_table_stride = table_width,
                           .cos_sin_stride = 64,
                           .kv_page_stride_bytes = kv_page,
                           .num_tokens = n,
                           .head_dim = s->head_dim,
                           .rope_dim = 64,
                           .ratio = s->ratio,
                           .overlap = s->overlap,
                           .block_size = s->block_size,
                           .kv_block_size = s->kv_block_size,
                           .weight_dtype = s->weight_dtype,
                           .format = indexer ? STEPTAPE_COMPRESS_INDEXER_FP8
                                             : STEPTAPE_COMPRESS_FP8_DS_MLA,
                           .eps = 1e-6f};
}

static void copy_batch(const struct shape *s, struct batch *b) {
    const size_t n = (size_t)s->tokens;
    b->device = b->host;
    b->device.state_cache = st_test_device(b->state, 4 * b->state_count);
    b->device.positions = st_test_device(b->positions, 8 * n);
    b->device.slot_mapping = st_test_device(b->slots, 8 * n);
    b->device.kv_slot_mapping = st_test_device(b->kv_slots, 8 * n);
    b->device.token_to_req = st_test_device(b->reqs, 4 * n);
    b->device.block_table = st_test_device(b->table, 4 * 16 * (size_t)b->host.block_table_stride);
    b->device.cos_sin_cache = st_test_device(b->cos_sin, 4 * MAX_POSITION * 64);
    b->device.weight = st_test_device(b->host.weight, (s->weight_dtype == STEPTAPE_BF16 ? 2 : 4) *
                                                          (size_t)s->head_dim);
    b->device.list = s->list != 0 ? st_test_device(b->list, 4 * n) : NULL;
    b->device.list_count = s->list != 0 ? st_test_device(b->host.list_count, 4) : NULL;
}

static void free_batch(struct batch *b) {
    st_test_device_free((void *)b->device.state_cache);
    st_test_device_free((void *)b->device.positions);
    st_test_device_free((void *)b->device.slot_mapping);
    st_test_device_free((void *)b->device.kv_slot_mapping);
    st_test_device_free((void *)b->device.token_to_req);
    st_test_device_free((void *)b->device.block_table);
    st_test_device_free((void *)b->device.cos_sin_cache);
    st_test_device_free((void *)b->device.weight);
    st_test_device_free((void *)b->device.list);
    st_test_device_free((void *)b->device.list_count);
    free(b->state);
    free(b->cos_sin);
    free(b->positions);
    free(b->slots);
    free(b->kv_slots);
    free(b->reqs);
    free(b->list);
    free(b->table);
    free(b->want);
    free(b->got);
    free(b->two);
}

/* An entry's values, whatever its format. */
static void decode(const fused_args *args, const uint8_t *cache, int64_t slot, float *out) {
    const uint8_t *page = cache + slot / args->kv_block_size * args->kv_page_stride_bytes;
    int64_t entry = slot % args->kv_block_size;
    if (args->format == STEPTAPE_COMPRESS_FP8_DS_MLA) {
        steptape_kv_entry_decode(page, args->kv_block_size, (int32_t)entry, out);
        return;
    }
    float scale;
    memcpy(&scale, page + args->kv_block_size * 128 + entry * 4, 4);
    for (int d = 0; d < 128; d++)
        out[d] = scale * steptape_e4m3_to_float(page[entry * 128 + d]);
}

/* Makes the entry of got that of want, so that all the rest can be compared at once. */
static void take_entry(const fused_args *args, uint8_t *got, const uint8_t *want, int64_t slot) {
    int64_t page = slot / args->kv_block_size * args->kv_page_stride_bytes;
    int64_t entry = slot % args->kv_block_size;
    int64_t data = args->format == STEPTAPE_COMPRESS_FP8_DS_MLA ? 576 : 128;
    int64_t scales = entry_bytes(args) - data;
    memcpy(got + page + entry * data, want + page + entry * data, (size_t)data);
    memcpy(got + page + args->kv_block_size * data + entry * scales,
           want + page + args->kv_block_size * data + entry * scales, (size_t)scales);
}

struct difference {
    int64_t numbers, stored;
};

static void compare(const struct shape *s, struct batch *b, struct difference *difference) {
    const fused_args *args = &b->host;
    for (int64_t t = 0; t < s->tokens; t++) {
        int64_t slot = b->kv_slots[t];
        float got[512], want[512], largest = 0.0f;
        if (b->slots[t] < 0 || slot < 0 || (b->positions[t] + 1) % s->ratio != 0)
            continue;
        decode(args, b->got + s->base, slot, got);
        decode(args, b->want + s->base, slot, want);
        for (int d = 0; d < s->head_dim; d++)
            largest = fmaxf(largest, fabsf(want[d]));
        for (int d = 0; d < s->head_dim; d++) {
            difference->stored++;
            if (got[d] == want[d] || (isnan(got[d]) && isnan(want[d])))
                continue;
            difference->numbers++;
            /* a step of e4m3 is at most 1/8 of a value, of bf16 1/128; a block whose scale sits on
             * a boundary moves by one bit more; and small values are differences of large ones */
            double step = s->head_dim == 512 && d >= 448 ? 0.0079 : 0.26;
            assert_true(fabs((double)got[d] - want[d]) <=
                        step * fmax(fabs(got[d]), fabs(want[d])) + 1e-5 * largest);
        }
        take_entry(args, b->got + s->base, b->want + s->base, slot);
    }
    assert_memory_equal(b->got, b->want, b->cache_bytes);
}

/* The two launches on the same batch, of given variants, into b->two. */
static void two_launches(const struct shape *s, struct batch *b, unsigned int pool_variant,
                         unsigned int norm_variant) {
    const fused_args *a = &b->device;
    float *pooled = st_test_device(NULL, 4 * 512 * (size_t)s->tokens);
    uint8_t *cache = st_test_device(NULL, b->cache_bytes);
    struct steptape_compress_pool_args pool = {.state_cache = a->state_cache,
                                               .positions = a->positions,
                                               .slot_mapping = a->slot_mapping,
                                               .kv_slot_mapping = a->kv_slot_mapping,
                                               .token_to_req = a->token_to_req,
                                               .block_table = a->block_table,
                                               .pooled = pooled,
                                               .state_page_stride = a->state_page_stride,
                                               .state_row_stride = a->state_row_stride,
                                               .block_table_stride = a->block_table_stride,
                                               .pooled_stride = 512,
                                               .num_tokens = a->num_tokens,
                                               .head_dim = 512,
                                               .ratio = a->ratio,
                                               .overlap = a->overlap,
                                               .block_size = a->block_size,
                                               .variant = pool_variant};
    struct steptape_compress_norm_rope_store_args norm = {.pooled = pooled,
                                                          .positions = a->positions,
                                                          .slot_mapping = a->slot_mapping,
                                                          .kv_slot_mapping = a->kv_slot_mapping,
                                                          .weight = a->weight,
                                                          .cos_sin_cache = a->cos_sin_cache,
                                                          .kv_cache = cache + s->base,
                                                          .pooled_stride = 512,
                                                          .cos_sin_stride = 64,
                                                          .kv_page_stride_bytes =
                                                              a->kv_page_stride_bytes,
                                                          .num_tokens = a->num_tokens,
                                                          .head_dim = 512,
                                                          .rope_dim = 64,
                                                          .ratio = a->ratio,
                                                          .kv_block_size = a->kv_block_size,
                                                          .weight_dtype = a->weight_dtype,
                                                          .eps = a->eps,
                                                          .variant = norm_variant};
    assert_int_equal(steptape_compress_pool(&pool, NULL), 0);
    assert_int_equal(steptape_compress_norm_rope_store(&norm, NULL), 0);
    assert_int_equal(st_test_device_read(b->two, cache, b->cache_bytes), 0);
    st_test_device_free(pooled);
    st_test_device_free(cache);
}

/* The variant that runs: 0 when it does not serve this shape. */
static unsigned int resolved(const struct shape *s, unsigned int variant) {
    int aligned = s->base == 0 && s->page_pad % 4 == 0;
    int c4 = aligned && s->ratio == 4 && s->overlap && s->block_size == 4;
    int c128 =
        aligned && s->ratio == 128 && !s->overlap && s->block_size == 8 && s->head_dim == 512;
    int clusters = c128 && st_device_facts().generation >= 90;
    int serves[] = {0, 1, c4, c128, clusters};
    if (variant != 0)
        return serves[variant] ? variant : 0;
    return clusters ? 4 : c128 ? 3 : c4 ? 2 : 1;
}

/* Whether the two launches leave these bits: v1 those of their v1s, from v3 on those of their
 * defaults; c4 has an order of its own, and so has a list that leaves something out. */
static int has_two(const struct shape *s, unsigned int runs) {
    return s->head_dim == 512 && s->list <= 1 && runs != 2;
}

/* One variant on a batch whose reference is there. */
static void run_variant(const struct shape *s, struct batch *b, unsigned int variant,
                        uint32_t flags, struct difference *difference) {
    unsigned int runs = resolved(s, variant);
    b->d_cache = st_test_device(NULL, b->cache_bytes);
    b->device.kv_cache = b->d_cache + s->base;
    b->device.variant = variant;
    b->device.flags = flags;
    int rc = steptape_compress_fused(&b->device, NULL);
    if (runs == 0) {
        assert_int_equal(rc, STEPTAPE_ERR_UNSUPPORTED);
    } else {
        assert_int_equal(rc, 0);
        assert_int_equal(st_test_device_wait(), 0);
        assert_int_equal(st_test_device_read(b->got, b->d_cache, b->cache_bytes), 0);
        if (has_two(s, runs)) {
            two_launches(s, b, runs == 1, runs == 1);
            assert_memory_equal(b->got, b->two, b->cache_bytes);
        }
        compare(s, b, difference);
    }
    st_test_device_free(b->d_cache);
}

static void run_shape(const struct shape *s, struct difference *differences) {
    struct batch b;
    float weight[512];
    uint16_t weight16[512];
    int32_t count = 0;
    make_batch(s, (uint64_t)(s - shapes), &b);
    st_test_fill(weight, 512, 77, 1.5f);
    for (int d = 0; d < 512; d++)
        weight16[d] = steptape_bf16_from_float(weight[d]);
    b.host.weight = s->weight_dtype == STEPTAPE_BF16 ? (void *)weight16 : (void *)weight;
    if (s->list != 0) {
        count = make_list(s, &b);
        b.host.list = b.list;
        b.host.list_count = &count;
    }
    memset(b.want, ST_TEST_POISON, b.cache_bytes);
    assert_int_equal(steptape_compress_fused_ref(&b.host), 0);
    copy_batch(s, &b);
    for (unsigned int v = 0; v <= ST_FUSED_VARIANTS; v++) {
        run_variant(s, &b, v, 0, &differences[v]);
        run_variant(s, &b, v, STEPTAPE_LAUNCH_EARLY, &differences[v]);
        run_variant(s, &b, v, STEPTAPE_LAUNCH_AFTER_SAVE, &differences[v]);
    }
    free_batch(&b);
}

static int64_t most_tokens;

/* What save_partial_states is to write: the last row of each token's window, as it is in the state;
 * the device's copy of the state has a poison there. */
struct last_rows {
    struct steptape_save_partial_states_args save;
    float *poisoned; /* host */
    void *device[5];
};

static void make_last_rows(const struct shape *s, const struct batch *b, struct last_rows *l) {
    const fused_args *host = &b->host;
    const size_t n = (size_t)s->tokens, width = (size_t)s->head_dim;
    float *rows = malloc(4 * n * 2 * width);
    float *ape = calloc((size_t)s->ratio * width, 4);
    int64_t *slots = malloc(8 * n);
    l->poisoned = malloc(4 * b->state_count);
    assert_true(rows && ape && slots && l->poisoned);
    memcpy(l->poisoned, b->state, 4 * b->state_count);
    for (size_t t = 0; t < n; t++) {
        const int64_t p = b->positions[t];
        int32_t page = b->table[b->reqs[t] * host->block_table_stride + p / s->block_size];
        page = page > 0 ? page : 0;
        const int64_t at =
            page * host->state_page_stride + p % s->block_size * host->state_row_stride;
        slots[t] = page * s->block_size + p % s->block_size;
        memcpy(rows + t * 2 * width, b->state + at, 8 * width);
        memset(l->poisoned + at, ST_TEST_POISON, 8 * width);
    }
    l->device[0] = st_test_device(rows, 4 * n * 2 * width);
    l->device[1] = st_test_device(ape, 4 * (size_t)s->ratio * width);
    l->device[2] = st_test_device(slots, 8 * n);
    l->save = (struct steptape_save_partial_states_args){
        .kv = l->device[0],
        .score = (float *)l->device[0] + width,
        .ape = l->device[1],
        .positions = b->device.positions,
        .slot_mapping = l->device[2],
        .kv_stride = 2 * (int64_t)width,
        .score_stride = 2 * (int64_t)width,
        .ape_stride = (int64_t)width,
        .state_page_stride = host->state_page_stride,
        .state_row_stride = host->state_row_stride,
        .num_tokens = s->tokens,
        .width = (int32_t)width,
        .ratio = s->ratio,
        .block_size = s->block_size,
    };
    free(rows);
    free(ape);
    free(slots);
}

/* A launch that may begin while save_partial_states runs reads what that one wrote. */
static void after_save_of(const struct shape *s, unsigned int variant) {
    struct batch b;
    struct last_rows l = {.poisoned = NULL};
    struct difference difference = {0, 0};
    float weight[512];
    make_batch(s, 1000, &b);
    st_test_fill(weight, 512, 77, 1.5f);
    b.host.weight = weight;
    int32_t count = make_list(s, &b);
    b.host.list = s->list != 0 ? b.list : NULL;
    b.host.list_count = s->list != 0 ? &count : NULL;
    memset(b.want, ST_TEST_POISON, b.cache_bytes);
    assert_int_equal(steptape_compress_fused_ref(&b.host), 0);
    copy_batch(s, &b);
    make_last_rows(s, &b, &l);
    st_test_device_free((void *)b.device.state_cache);
    float *poisoned = st_test_device(l.poisoned, 4 * b.state_count);
    b.device.state_cache = l.save.state_cache = poisoned;
    b.d_cache = st_test_device(NULL, b.cache_bytes);
    b.device.kv_cache = b.d_cache + s->base;
    b.device.variant = variant;
    b.device.flags = STEPTAPE_LAUNCH_AFTER_SAVE;
    assert_int_equal(steptape_save_partial_states(&l.save, NULL), 0);
    assert_int_equal(steptape_compress_fused(&b.device, NULL), 0);
    assert_int_equal(st_test_device_wait(), 0);
    assert_int_equal(st_test_device_read(b.got, b.d_cache, b.cache_bytes), 0);
    compare(s, &b, &difference);
    assert_true(difference.stored > 0 && difference.numbers * 100 < difference.stored);
    st_test_device_free(b.d_cache);
    for (int i = 0; i < 3; i++)
        st_test_device_free(l.device[i]);
    free(l.poisoned);
    free_batch(&b);
}

static void after_save(void **state) {
    (void)state;
    static const int64_t tokens[] = {1, 16, 64, 300, 700};
    for (size_t i = 0; i < sizeof(tokens) / sizeof(tokens[0]) && tokens[i] <= most_tokens; i++) {
        for (unsigned int v = 0; v <= ST_FUSED_VARIANTS; v++) {
            const struct shape s = {tokens[i],  512, 128,           0, 8, 2, 16, 1,
                                    i % 2 == 0, 0,   STEPTAPE_FP32, 0};
            if (resolved(&s, v) != 0)
                after_save_of(&s, v);
        }
    }
}

static void all_variants(void **state) {
    (void)state;
    struct difference differences[ST_FUSED_VARIANTS + 1] = {{0, 0}};
    for (size_t i = 0; i < sizeof(shapes) / sizeof(shapes[0]); i++)
        if (shapes[i].tokens <= most_tokens)
            run_shape(&shapes[i], differences);
    for (unsigned int v = 0; v <= ST_FUSED_VARIANTS; v++) {
        print_message("  variant %u: %lld of %lld stored numbers sit on a rounding boundary\n", v,
                      (long long)differences[v].numbers, (long long)differences[v].stored);
        assert_true(differences[v].numbers * 1000 < differences[v].stored);
    }
}

int main(int argc, char **argv) {
    const char *why;
    most_tokens = st_test_case_count(argc, argv, 8192);
    if (most_tokens < 0)
        return 2;
    if (st_test_gpu_probe(&why) != 0) {
        printf("skipped: %s\n", why);
        return 77;
    }
    const struct CMUnitTest tests[] = {cmocka_unit_test(all_variants),
                                       cmocka_unit_test(after_save)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}

#endif
