/* SPDX-License-Identifier: Apache-2.0 */
/*
 * sparse_mla_decode: the reference on cases worked out by hand and on properties, the plans, the
 * cost; with ST_TEST_GPU every variant against the reference (an argument: so many small cases of
 * each kind, no large ones).
 *
 * Tolerance.  A result is a mean of values v with weights w that add up to at most 1.  Tensor core
 * variants round each weight to bf16 (8 bits: relative error 2^-9), add up in fp32, and all round
 * the result to bf16: |error| <= 2^-9 |result| + 2^-9 max|v| + what scores are off.  Scores are
 * fp32 sums of 512 or 576 exact products, off by less than 2^-14 here.  Asked for: 2^-8 |result| +
 * 2^-9 max|v|, of all values at once a mean square error of 2^-16 of the mean square result, and
 * 2^-12 max(1, |lse|).
 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "kernels/sparse_mla_decode/sparse_mla_decode.h"
#ifdef ST_TEST_GPU
#include "kernels/testing_arena.h"
#else
#include "kernels/testing.h"
#endif

typedef struct steptape_sparse_mla_decode_args decode_args;

static int64_t below(uint64_t *seed, int64_t limit) {
    return (int64_t)(st_test_random((*seed)++) % (uint64_t)limit);
}

#ifndef ST_TEST_GPU

enum { HEADS = 64, PAGE = 2, TOPK = 64 };

/* Tokens of one or two scopes over pages of two entries. */
struct fixture {
    uint16_t q[2 * HEADS * 576];
    uint8_t cache[2][8 * PAGE * 656];
    int32_t indices[2][2 * TOPK];
    int32_t length[2][2];
    float sink[HEADS];
    uint16_t out[2 * HEADS * 512];
    float lse[2 * HEADS];
    decode_args args;
};

static void fixture_init(struct fixture *f, int32_t format) {
    memset(f, 0, sizeof(*f));
    memset(f->out, ST_TEST_POISON, sizeof(f->out));
    f->args = (decode_args){.q = f->q,
                            .out = f->out,
                            .lse = f->lse,
                            .tokens = 1,
                            .heads = HEADS,
                            .d_qk = format == STEPTAPE_KV_FP8_V32 ? 576 : 512,
                            .format = format,
                            .num_parts = 7,
                            .sm_scale = 1.0f};
    f->args.q_head_stride = f->args.d_qk;
    f->args.q_stride = HEADS * f->args.q_head_stride;
    for (int s = 0; s < 2; s++) {
        for (int i = 0; i < 2 * TOPK; i++)
            f->indices[s][i] = -1;
        f->args.scope[s] = (struct steptape_decode_scope){.cache = f->cache[s],
                                                          .indices = f->indices[s],
                                                          .length = f->length[s],
                                                          .page_stride_bytes = PAGE * 656,
                                                          .indices_stride = TOPK,
                                                          .page_size = PAGE,
                                                          .topk = TOPK};
    }
}

/* Byte d and scale byte (or fp32 scale) of an entry; its bf16 value d - quantised. */
static void set_ds_mla(struct fixture *f, int s, int entry, int d, uint8_t e4m3, uint8_t scale) {
    uint8_t *page = f->cache[s] + entry / PAGE * f->args.scope[s].page_stride_bytes;
    page[entry % PAGE * 576 + d] = e4m3;
    page[PAGE * 576 + entry % PAGE * 8 + d / 64] = scale;
}

static void set_rope(struct fixture *f, int s, int entry, int i, float value) {
    uint8_t *page = f->cache[s] + entry / PAGE * f->args.scope[s].page_stride_bytes;
    const uint16_t bits = steptape_bf16_from_float(value);
    memcpy(page + entry % PAGE * 576 + 448 + 2 * i, &bits, 2);
}

static float out_at(const struct fixture *f, int t, int h, int d) {
    return steptape_bf16_to_float(f->out[(t * HEADS + h) * 512 + d]);
}

static void assert_near(double got, double want) {
    if (!(fabs(got - want) <= 0.005 * fabs(want) + 1e-6))
        fail_msg("%g, not %g", got, want);
}

/* Entry 3 of the first scope: 1 at channel 0; entry 2 of the second: 2 * 2^1 at channel 65, 3 at
 * channel 448. */
static void by_hand(void **state) {
    (void)state;
    static struct fixture f;
    fixture_init(&f, STEPTAPE_KV_FP8_DS_MLA);
    set_ds_mla(&f, 0, 3, 0, 0x38, 127);
    set_ds_mla(&f, 1, 2, 65, 0x40, 128);
    set_rope(&f, 1, 2, 0, 3.0f);
    f.indices[0][1] = 3;
    f.indices[1][0] = 2;
    f.length[0][0] = 5;
    f.length[1][0] = 1;
    f.args.sm_scale = 0.5f;
    const uint16_t one = steptape_bf16_from_float(1.0f);
    f.q[512 + 0] = steptape_bf16_from_float(2.0f); /* head 1 */
    f.q[512 + 65] = one;
    f.q[512 + 448] = one;
    assert_int_equal(steptape_sparse_mla_decode_ref(&f.args), 0);
    /* head 1: scores 0.5 * 2 * 1 = 1 and 0.5 * (4 + 3) = 3.5; head 0: 0 and 0 */
    const double a = exp(1.0), b = exp(3.5);
    assert_near(f.lse[1], log(a + b));
    assert_near(out_at(&f, 0, 1, 0), a / (a + b));
    assert_near(out_at(&f, 0, 1, 65), 4 * b / (a + b));
    assert_near(out_at(&f, 0, 1, 448), 3 * b / (a + b));
    assert_near(out_at(&f, 0, 1, 511), 0.0);
    assert_near(f.lse[0], log(2.0));
    assert_near(out_at(&f, 0, 0, 448), 1.5);
    /* a sink as heavy as both columns halves the result and leaves lse alone */
    for (int h = 0; h < HEADS; h++)
        f.sink[h] = (float)log(a + b);
    f.args.attn_sink = f.sink;
    assert_int_equal(steptape_sparse_mla_decode_ref(&f.args), 0);
    assert_near(f.lse[1], log(a + b));
    assert_near(out_at(&f, 0, 1, 65), 2 * b / (a + b));
    f.sink[1] = -INFINITY;
    f.sink[0] = INFINITY;
    assert_int_equal(steptape_sparse_mla_decode_ref(&f.args), 0);
    assert_near(out_at(&f, 0, 1, 65), 4 * b / (a + b));
    assert_near(out_at(&f, 0, 0, 448), 0.0);
    assert_near(f.lse[0], log(2.0));
}

static void no_column(void **state) {
    (void)state;
    static struct fixture f;
    fixture_init(&f, STEPTAPE_KV_FP8_DS_MLA);
    f.args.tokens = 2;
    f.length[0][0] = 0;
    f.length[1][0] = -3;
    f.length[0][1] = 900; /* as good as 64, all of them -1 */
    assert_int_equal(steptape_sparse_mla_decode_ref(&f.args), 0);
    for (int i = 0; i < 2 * HEADS; i++)
        assert_true(isinf(f.lse[i]) && f.lse[i] > 0);
    for (int i = 0; i < 2 * HEADS * 512; i++)
        assert_int_equal(f.out[i], 0);
}

/* Format 656: scales of 128 channels as fp32, the bf16 part counts in scores only. */
static void v32(void **state) {
    (void)state;
    static struct fixture f;
    fixture_init(&f, STEPTAPE_KV_FP8_V32);
    const float scale = 0.75f;
    const uint16_t two = steptape_bf16_from_float(2.0f);
    uint8_t *entry = f.cache[0] + PAGE * 656 + 656; /* entry 3 */
    entry[130] = 0x40;
    memcpy(entry + 512 + 4, &scale, 4);
    memcpy(entry + 528 + 2 * 5, &two, 2);
    f.args.scope[1].topk = 0;
    f.indices[0][0] = 3;
    f.indices[0][1] = 0; /* zeros */
    f.length[0][0] = 2;
    f.q[130] = f.q[512 + 5] = two;
    assert_int_equal(steptape_sparse_mla_decode_ref(&f.args), 0);
    const double a = exp(2 * 1.5 + 2 * 2);
    assert_near(f.lse[0], log(a + 1));
    assert_near(out_at(&f, 0, 0, 130), 1.5 * a / (a + 1));
    assert_near(out_at(&f, 0, 1, 130), 0.75);
}

/* One scope of the columns of two is the same; a NaN past the length or of no token is not read. */
static void scopes_are_one_softmax(void **state) {
    (void)state;
    static struct fixture f, g;
    fixture_init(&f, STEPTAPE_KV_FP8_DS_MLA);
    for (size_t i = 0; i < sizeof(f.cache[0]); i++) /* e4m3 under 8, bf16 under 4 */
        f.cache[0][i] = (uint8_t)(st_test_random(i) & 0x3f);
    for (int e = 0; e < 16; e++)
        for (int b = 0; b < 7; b++)
            set_ds_mla(&f, 0, e, 64 * b, 0x30, (uint8_t)(120 + e % 5));
    for (int i = 0; i < HEADS * 512; i++)
        f.q[i] = steptape_bf16_from_float(st_test_uniform((uint64_t)i, 0.2f));
    memcpy(f.cache[1], f.cache[0], sizeof(f.cache[0]));
    f.length[0][0] = 9;
    f.length[1][0] = 5;
    g = f;
    for (int i = 0; i < 14; i++) {
        g.indices[0][i] = i * 5 % 16;
        if (i < 9)
            f.indices[0][i] = i * 5 % 16;
        else
            f.indices[1][i - 9] = i * 5 % 16;
    }
    g.length[0][0] = 14;
    g.args = f.args;
    g.args.q = g.q;
    g.args.out = g.out;
    g.args.lse = g.lse;
    for (int s = 0; s < 2; s++) {
        g.args.scope[s].cache = g.cache[s];
        g.args.scope[s].indices = g.indices[s];
        g.args.scope[s].length = g.length[s];
    }
    g.args.scope[1].topk = 0;
    f.indices[0][9] = 1 << 30; /* past the length */
    assert_int_equal(steptape_sparse_mla_decode_ref(&f.args), 0);
    assert_int_equal(steptape_sparse_mla_decode_ref(&g.args), 0);
    assert_memory_equal(f.out, g.out, 2 * HEADS * 512);
    assert_memory_equal(f.lse, g.lse, 4 * HEADS);
    assert_true(isfinite(f.lse[3]) && f.lse[3] != f.lse[4]);
    /* rows: only the one asked for */
    const int64_t row = 1;
    memset(f.out, ST_TEST_POISON, sizeof(f.out));
    f.args.tokens = 2;
    assert_int_equal(steptape_sparse_mla_decode_ref_rows(&f.args, &row, 1), 0);
    assert_int_equal(f.out[0], ST_TEST_POISON << 8 | ST_TEST_POISON);
    assert_int_equal(f.out[HEADS * 512], 0);
    const int64_t bad = 2;
    assert_int_equal(steptape_sparse_mla_decode_ref_rows(&f.args, &bad, 1), STEPTAPE_ERR_ARGUMENT);
}

/* ---- plans */

enum { MOST_TOKENS = 3000, MOST_PARTS = 300 };

struct plan_case {
    struct st_decode_part parts[MOST_PARTS];
    struct st_decode_token tokens[MOST_TOKENS];
    int32_t length[2][MOST_TOKENS];
    unsigned char slots[2 * MOST_PARTS];
    struct st_decode_geometry geometry;
    decode_args args;
};

static int32_t tiles_of(const decode_args *args, int64_t t) {
    int32_t tiles = 0;
    for (int s = 0; s < 2; s++)
        tiles += (st_decode_columns(&args->scope[s], t) + 63) / 64;
    return tiles;
}

/* Walks the parts: every tile once, in order; pieces and slots as the tokens say.  Returns the
 * cost of the fullest part. */
static int32_t check_plan(struct plan_case *c, unsigned int plan_variant) {
    int32_t next_token = 0, next_tile = 0, pieces = 0, fullest = 0;
    c->args.plan_variant = plan_variant;
    assert_int_equal(st_sparse_mla_decode_geometry(&c->args, &c->geometry), 0);
    memset(c->parts, ST_TEST_POISON, sizeof(c->parts));
    memset(c->tokens, ST_TEST_POISON, sizeof(c->tokens));
    memset(c->slots, 0, sizeof(c->slots));
    st_sparse_mla_decode_plan_ref(&c->args, &c->geometry, c->parts, c->tokens);
    for (int32_t p = 0; p < c->geometry.parts; p++) {
        const struct st_decode_part part = c->parts[p];
        int32_t cost = 0, in_part = 0;
        for (int32_t t = part.first_token; t <= part.last_token; t++) {
            const int32_t begin = t == part.first_token ? part.first_tile : 0;
            const int32_t end = t == part.last_token ? part.end_tile : tiles_of(&c->args, t);
            if (begin >= end)
                continue;
            while (next_tile == 0 && tiles_of(&c->args, next_token) == 0)
                assert_int_equal(c->tokens[next_token++].pieces, 0);
            assert_int_equal(t, next_token);
            assert_int_equal(begin, next_tile);
            const struct st_decode_token token = c->tokens[t];
            pieces = begin == 0 ? 1 : pieces + 1;
            if (token.pieces > 1) {
                const int32_t slot = begin == 0 ? token.first_slot : 2 * p;
                assert_int_equal(slot / 2, token.first_slot / 2 + pieces - 1);
                assert_true(slot >= 0 && slot < 2 * c->geometry.parts && c->slots[slot]++ == 0);
            }
            assert_true(begin == 0 || in_part == 0);
            in_part++;
            cost += end - begin + ST_DECODE_OVERHEAD;
            next_tile = end;
            if (end == tiles_of(&c->args, t)) {
                assert_int_equal(pieces, token.pieces);
                next_token++;
                next_tile = 0;
            }
        }
        fullest = cost > fullest ? cost : fullest;
    }
    while (next_token < c->args.tokens && tiles_of(&c->args, next_token) == 0)
        assert_int_equal(c->tokens[next_token++].pieces, 0);
    assert_int_equal(next_token, c->args.tokens);
    return fullest;
}

static void plan_case_init(struct plan_case *c, int64_t tokens, int32_t parts, int32_t topk0,
                           int32_t topk1) {
    c->args = (decode_args){.tokens = tokens,
                            .heads = 64,
                            .d_qk = 512,
                            .q_stride = 64 * 512,
                            .q_head_stride = 512,
                            .num_parts = parts};
    for (int s = 0; s < 2; s++)
        c->args.scope[s] = (struct steptape_decode_scope){.length = c->length[s],
                                                          .topk = s == 0 ? topk0 : topk1,
                                                          .indices_stride = s == 0 ? topk0 : topk1,
                                                          .page_size = 2,
                                                          .page_stride_bytes = 2 * 584};
    for (int64_t t = 0; t < tokens; t++) {
        c->length[0][t] = topk0;
        c->length[1][t] = topk1;
    }
    assert_true(st_sparse_mla_decode_check(&c->args) >= 0);
}

static void plans_of_equal_tokens(void **state) {
    (void)state;
    static struct plan_case c;
    static const struct {
        int tokens, parts, topk, fullest; /* tiles of the fullest part, pieces' overhead not */
        int pieces;                       /* of it */
    } cases[] = {
        {1, 132, 512, 1, 1},    {16, 132, 512, 2, 1},   {64, 132, 512, 5, 1},
        {128, 132, 512, 10, 1}, {256, 132, 512, 20, 2}, {128, 66, 1024, 36, 2},
        {64, 132, 8192, 65, 1}, {1, 132, 8192, 2, 1},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        plan_case_init(&c, cases[i].tokens, cases[i].parts, 128, cases[i].topk);
        assert_int_equal(check_plan(&c, 2),
                         cases[i].fullest + cases[i].pieces * ST_DECODE_OVERHEAD);
        check_plan(&c, 1);
    }
}

static void plans_of_random_tokens(void **state) {
    (void)state;
    static struct plan_case c;
    for (uint64_t i = 0; i < 3000; i++) {
        uint64_t seed = i << 20;
        const int64_t most = i % 100 == 0 ? MOST_TOKENS : i % 3 == 0 ? 400 : 20;
        const int64_t tokens = 1 + below(&seed, most);
        const int32_t parts = 1 + (int32_t)below(&seed, i % 5 == 0 ? 5 : MOST_PARTS);
        plan_case_init(&c, tokens, parts, 64 * (int32_t)below(&seed, 3),
                       64 * (int32_t)below(&seed, i % 2 == 0 ? 129 : 9));
        const int64_t zeros = below(&seed, 4);
        int64_t total = 0;
        for (int64_t t = 0; t < tokens; t++) {
            for (int s = 0; s < 2; s++)
                c.length[s][t] = below(&seed, 4) < zeros
                                     ? 0
                                     : (int32_t)below(&seed, c.args.scope[s].topk + 9) - 3;
            total += tiles_of(&c.args, t) > 0 ? tiles_of(&c.args, t) + ST_DECODE_OVERHEAD : 0;
        }
        /* the line's parts hold at most a share and one more overhead */
        const int64_t share = (total + parts - 1) / parts;
        assert_true(check_plan(&c, 2) <= share + ST_DECODE_OVERHEAD);
        assert_true(check_plan(&c, 1) <= share + ST_DECODE_OVERHEAD);
        check_plan(&c, 0);
    }
}

/* ---- arguments and cost */

static void bad_arguments(void **state) {
    (void)state;
    static struct fixture f;
    fixture_init(&f, STEPTAPE_KV_FP8_DS_MLA);
    decode_args args = f.args;
    assert_int_equal(st_sparse_mla_decode_check(&args), 1);
    args.scope[1].topk = 65;
    assert_int_equal(st_sparse_mla_decode_check(&args), STEPTAPE_ERR_ARGUMENT);
    args = f.args;
    args.d_qk = 576;
    assert_int_equal(st_sparse_mla_decode_check(&args), STEPTAPE_ERR_ARGUMENT);
    args = f.args;
    args.heads = 32;
    assert_int_equal(st_sparse_mla_decode_check(&args), STEPTAPE_ERR_UNSUPPORTED);
    args = f.args;
    args.phases = 8;
    assert_int_equal(st_sparse_mla_decode_check(&args), STEPTAPE_ERR_ARGUMENT);
    args = f.args;
    args.scope[0].page_stride_bytes = PAGE * 584 - 1;
    assert_int_equal(st_sparse_mla_decode_check(&args), STEPTAPE_ERR_ARGUMENT);
    args.scope[0].topk = 0; /* no scope: nothing of it is looked at */
    assert_int_equal(st_sparse_mla_decode_check(&args), 1);
    args = f.args;
    args.tokens = INT32_MAX;
    assert_int_equal(st_sparse_mla_decode_check(&args), STEPTAPE_ERR_UNSUPPORTED);
    args = f.args;
    args.plan = f.lse;
    args.scratch = f.out;
    args.out = f.out + 1;
    assert_int_equal(steptape_sparse_mla_decode(&args, NULL), STEPTAPE_ERR_ARGUMENT);
    args.plan = NULL;
    assert_int_equal(steptape_sparse_mla_decode(&args, NULL), STEPTAPE_ERR_ARGUMENT);
    args.tokens = 0;
    assert_int_equal(steptape_sparse_mla_decode(&args, NULL), 0);
}

/* What cannot be read 16 bytes at a time is variant 1's. */
static void alignment(void **state) {
    (void)state;
    static struct fixture f;
    struct st_decode_geometry geometry;
    fixture_init(&f, STEPTAPE_KV_FP8_DS_MLA);
    f.args.q = NULL; /* as a cost's args */
    f.args.scope[0].cache = f.args.scope[1].cache = NULL;
    assert_int_equal(st_sparse_mla_decode_geometry(&f.args, &geometry), 0);
    assert_int_equal(geometry.variant, ST_DECODE_DEFAULT);
    f.args.scope[1].page_stride_bytes += 8;
    assert_int_equal(st_sparse_mla_decode_geometry(&f.args, &geometry), 0);
    assert_int_equal(geometry.variant, 1);
    f.args.variant = 2;
    assert_int_equal(st_sparse_mla_decode_geometry(&f.args, &geometry), STEPTAPE_ERR_UNSUPPORTED);
    f.args.scope[1].topk = 0;
    assert_int_equal(st_sparse_mla_decode_geometry(&f.args, &geometry), 0);
    f.args.q_head_stride = 516;
    assert_int_equal(st_sparse_mla_decode_geometry(&f.args, &geometry), STEPTAPE_ERR_UNSUPPORTED);
}

static void cost(void **state) {
    (void)state;
    static struct plan_case c;
    struct steptape_cost all, one;
    const struct steptape_token_counts counts = {0, 0, 0, 128 * 600};
    plan_case_init(&c, 128, 0, 128, 512);
    assert_int_equal(steptape_sparse_mla_decode_cost(&c.args, &counts, &all), 0);
    assert_int_equal(all.launch_count, 3);
    struct st_decode_geometry geometry;
    assert_int_equal(st_sparse_mla_decode_geometry(&c.args, &geometry), 0);
    uint64_t blocks = 0, read = 0;
    for (uint32_t phase = 1; phase <= 4; phase *= 2) {
        c.args.phases = phase;
        assert_int_equal(steptape_sparse_mla_decode_cost(&c.args, &counts, &one), 0);
        assert_int_equal(one.launch_count, 1);
        assert_int_equal(one.block_count, (uint64_t)one.grid[0] * one.grid[1]);
        blocks += one.block_count;
        read += one.read_bytes;
        if (phase == STEPTAPE_DECODE_SPLIT) {
            assert_int_equal(one.grid[0], 1);
            assert_int_equal(one.grid[1], geometry.parts);
            assert_int_equal(one.flops, 128ull * 600 * 64 * (2 * 1024 + 5));
            assert_int_equal(one.written_bytes, 128 * 64 * 1024);
        }
    }
    assert_int_equal(blocks, all.block_count);
    assert_int_equal(read, all.read_bytes);
    assert_int_equal(one.grid[0], 128);
    assert_int_equal(one.grid[1], 8);
    assert_int_equal(all.scratch_bytes, steptape_sparse_mla_decode_plan_bytes(&c.args) +
                                            steptape_sparse_mla_decode_scratch_bytes(&c.args));
    c.args.num_parts = 132;
    assert_int_equal(steptape_sparse_mla_decode_plan_bytes(&c.args), 132 * 16 + 128 * 8);
    assert_int_equal(steptape_sparse_mla_decode_scratch_bytes(&c.args), 264 * 64 * 514 * 4);
    c.args.phases = 0;
    c.args.tokens = 0;
    assert_int_equal(steptape_sparse_mla_decode_cost(&c.args, &counts, &all),
                     STEPTAPE_OK); /* nothing to launch */
    assert_int_equal(all.launch_count, 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(by_hand),
        cmocka_unit_test(no_column),
        cmocka_unit_test(v32),
        cmocka_unit_test(scopes_are_one_softmax),
        cmocka_unit_test(plans_of_equal_tokens),
        cmocka_unit_test(plans_of_random_tokens),
        cmocka_unit_test(bad_arguments),
        cmocka_unit_test(alignment),
        cmocka_unit_test(cost),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

#else /* ST_TEST_GPU */

static int64_t page_bytes(int32_t format, int32_t page_size) {
    return page_size *
           (format == STEPTAPE_KV_FP8_V32 ? STEPTAPE_KV_V32_ENTRY_BYTES : STEPTAPE_KV_ENTRY_BYTES);
}

/* A call: inputs, results of the reference and of the device at the same distances. */
struct gpu_case {
    struct st_test_arena arena;
    decode_args args;      /* pointers into the arena's host memory; plan and scratch apart */
    unsigned char *inputs; /* what must not change, to the arena's end */
    uint16_t *want_out;
    float *want_lse;
    void *plan, *scratch; /* on the device */
    size_t plan_bytes, scratch_bytes;
    float most; /* of all values */
    int failures;
    int compared;
};

static int start(struct gpu_case *c, size_t capacity) {
    memset(c, 0, sizeof(*c));
    return st_test_arena_init(&c->arena, capacity);
}

static void stop(struct gpu_case *c) {
    st_test_arena_fini(&c->arena);
}

/* What a scope's pages hold: e4m3 of any sign under 2, scales around 1, bf16 under 2. */
static void fill_pages(uint8_t *cache, int64_t pages, const struct steptape_decode_scope *scope,
                       int32_t format, uint64_t seed) {
    for (int64_t page = 0; page < pages; page++) {
        uint8_t *base = cache + page * scope->page_stride_bytes;
        for (int64_t i = 0; i < scope->page_stride_bytes; i += 8) {
            const uint64_t bits =
                st_test_random(seed + (uint64_t)(page * scope->page_stride_bytes + i)) &
                0xbfbfbfbfbfbfbfbfull;
            const int64_t left = scope->page_stride_bytes - i;
            memcpy(base + i, &bits, left < 8 ? (size_t)left : 8);
        }
        for (int32_t e = 0; e < scope->page_size; e++) {
            uint8_t *rope = base + e * (format == STEPTAPE_KV_FP8_V32 ? 656 : 576) +
                            (format == STEPTAPE_KV_FP8_V32 ? 528 : 448);
            for (int i = 0; i < 64; i++) {
                const uint16_t value = steptape_bf16_from_float(
                    st_test_uniform(seed + 77 + (uint64_t)((page * 64 + e) * 64 + i), 1.5f));
                memcpy(rope + 2 * i, &value, 2);
            }
            for (int b = 0; b < 7 && format != STEPTAPE_KV_FP8_V32; b++)
                base[scope->page_size * 576 + e * 8 + b] =
                    (uint8_t)(125 + st_test_random(seed + (uint64_t)(e * 7 + b)) % 3);
            for (int b = 0; b < 4 && format == STEPTAPE_KV_FP8_V32; b++) {
                const float scale = 0.5f + st_test_uniform(seed + (uint64_t)(e * 4 + b), 0.4f);
                memcpy(base + e * 656 + 512 + 4 * b, &scale, 4);
            }
        }
    }
}

/* Indices of a scope; past a row's length they lead out of everything. */
static void make_scope(struct gpu_case *c, int s, int32_t topk, int64_t entries, int use_length,
                       uint64_t *seed) {
    static const int32_t page_sizes[] = {64, 2, 2, 1, 3};
    struct steptape_decode_scope *scope = &c->args.scope[s];
    const int64_t tokens = c->args.tokens;
    memset(scope, 0, sizeof(*scope));
    scope->topk = topk;
    if (topk == 0)
        return;
    scope->page_size = page_sizes[below(seed, 5)];
    scope->page_stride_bytes =
        (page_bytes(c->args.format, scope->page_size) + 15) / 16 * 16 + 16 * below(seed, 3);
    scope->indices_stride = topk + below(seed, 3);
    const int64_t pages = (entries + scope->page_size - 1) / scope->page_size;
    uint8_t *cache = st_test_arena_take(&c->arena, (size_t)(pages * scope->page_stride_bytes), 0);
    fill_pages(cache, pages, scope, c->args.format, *seed);
    int32_t *indices =
        st_test_arena_take(&c->arena, (size_t)(4 * tokens * scope->indices_stride), 4);
    int32_t *length = st_test_arena_take(&c->arena, (size_t)(4 * tokens), 4);
    for (int64_t t = 0; t < tokens; t++) {
        const int64_t kind = below(seed, 6);
        length[t] = kind == 0   ? -1
                    : kind == 1 ? topk + 5
                    : kind == 2 ? (int32_t)(64 * below(seed, topk / 64 + 1))
                                : (int32_t)below(seed, topk + 1);
        for (int64_t i = 0; i < scope->indices_stride; i++)
            indices[t * scope->indices_stride + i] =
                use_length && i >= length[t] ? INT32_MAX : (int32_t)(below(seed, entries + 1) - 1);
    }
    scope->cache = cache;
    scope->indices = indices;
    scope->length = use_length ? length : NULL;
}

static void make_case(struct gpu_case *c, int64_t tokens, int32_t heads, int32_t format,
                      int32_t topk0, int32_t topk1, int64_t entries, uint64_t *seed) {
    decode_args *a = &c->args;
    memset(a, 0, sizeof(*a));
    st_test_arena_reset(&c->arena);
    a->tokens = tokens;
    a->heads = heads;
    a->format = format;
    a->d_qk = format == STEPTAPE_KV_FP8_V32 ? 576 : 512;
    a->q_head_stride = a->d_qk + 8 * below(seed, 2);
    a->q_stride = heads * a->q_head_stride + 8 * below(seed, 2);
    a->sm_scale = 1.0f / sqrtf((float)a->d_qk);
    a->num_parts = below(seed, 20) == 0 ? 0 : 1 + (int32_t)below(seed, 40);
    c->most = 2.0f;
    const size_t rows = (size_t)(tokens * heads);
    a->out = st_test_arena_take(&c->arena, rows * 1024, 0);
    a->lse = st_test_arena_take(&c->arena, rows * 4, 4);
    uint16_t *q = st_test_arena_take(&c->arena, (size_t)(2 * tokens * a->q_stride), 0);
    float *sink = st_test_arena_take(&c->arena, 4 * (size_t)heads, 4);
    c->inputs = (unsigned char *)q;
    for (int64_t i = 0; i < tokens * a->q_stride; i++)
        q[i] = steptape_bf16_from_float(st_test_uniform((*seed << 20) + (uint64_t)i, 4.0f));
    for (int h = 0; h < heads; h++) {
        const int64_t kind = below(seed, 8);
        sink[h] = kind == 0 ? -INFINITY : kind == 1 ? INFINITY : st_test_uniform((*seed)++, 6.0f);
    }
    a->q = q;
    a->attn_sink = below(seed, 3) == 0 ? NULL : sink;
    make_scope(c, 0, topk0, entries, below(seed, 5) != 0, seed);
    make_scope(c, 1, topk1, entries, below(seed, 5) != 0, seed);
    if (below(seed, 8) == 0)
        a->lse = NULL;
}

static void fail_at(struct gpu_case *c, const char *what, const char *detail, double got,
                    double want) {
    if (c->failures++ < 20)
        printf("%s: %s: %g, not %g\n", what, detail, got, want);
}

/* Rows of the device's results against the reference's. */
static void compare(struct gpu_case *c, const int64_t *rows, int64_t n, const char *what) {
    const decode_args *a = &c->args;
    const unsigned char *got = c->arena.got;
    const uint16_t *out = (const uint16_t *)(got + ((unsigned char *)a->out - c->arena.host));
    const float *lse =
        a->lse == NULL ? NULL : (const float *)(got + ((unsigned char *)a->lse - c->arena.host));
    double squares = 0.0, errors = 0.0;
    char detail[80];
    for (int64_t i = 0; i < n; i++)
        for (int64_t r = rows[i] * a->heads; r < (rows[i] + 1) * a->heads; r++) {
            for (int d = 0; d < 512; d++) {
                const double g = steptape_bf16_to_float(out[r * 512 + d]);
                const double w = steptape_bf16_to_float(a->out[r * 512 + d]);
                const int is_right =
                    isnan(w) ? isnan(g) : fabs(g - w) <= fabs(w) / 256 + c->most / 512;
                if (!is_right) {
                    snprintf(detail, sizeof(detail), "token %lld head %lld channel %d",
                             (long long)rows[i], (long long)(r % a->heads), d);
                    fail_at(c, what, detail, g, w);
                } else if (isfinite(w)) {
                    squares += w * w;
                    errors += (g - w) * (g - w);
                }
            }
            if (lse == NULL)
                continue;
            const double g = lse[r], w = a->lse[r];
            const int is_right = isnan(w) || isinf(w)
                                     ? memcmp(&lse[r], &a->lse[r], 4) == 0 || (isnan(g) && isnan(w))
                                     : fabs(g - w) <= (fabs(w) > 1 ? fabs(w) : 1) / 4096;
            if (!is_right) {
                snprintf(detail, sizeof(detail), "lse of token %lld head %lld", (long long)rows[i],
                         (long long)(r % a->heads));
                fail_at(c, what, detail, g, w);
            }
        }
    if (errors * 65536 > squares)
        fail_at(c, what, "mean square error, relative", errors / squares, 0.0);
    c->compared++;
}

static void *on_device(const struct gpu_case *c, const void *pointer) {
    if (pointer == NULL)
        return NULL;
    return c->arena.device + ((const unsigned char *)pointer - c->arena.host);
}

static decode_args device_args(const struct gpu_case *c) {
    decode_args a = c->args;
    a.q = on_device(c, a.q);
    a.attn_sink = on_device(c, a.attn_sink);
    a.out = on_device(c, a.out);
    a.lse = on_device(c, a.lse);
    a.plan = c->plan;
    a.scratch = c->scratch;
    for (int s = 0; s < 2; s++) {
        a.scope[s].cache = on_device(c, a.scope[s].cache);
        a.scope[s].indices = on_device(c, a.scope[s].indices);
        a.scope[s].length = on_device(c, a.scope[s].length);
    }
    return a;
}

/* The plan on the device, byte for byte; the buffers' guard bands. */
static void check_buffers(struct gpu_case *c, const decode_args *a, const char *what) {
    decode_args host = c->args;
    void *want = calloc(1, c->plan_bytes), *got = malloc(c->plan_bytes);
    void *scratch = malloc(c->scratch_bytes);
    host.plan = want;
    host.plan_variant = a->plan_variant;
    host.phases = STEPTAPE_DECODE_PLAN;
    assert_int_equal(steptape_sparse_mla_decode_ref(&host), 0);
    if (st_test_device_read(got, c->plan, c->plan_bytes) != 0 ||
        st_test_device_read(scratch, c->scratch, c->scratch_bytes) != 0)
        fail_at(c, what, "a guard band of plan or scratch, or CUDA error", st_test_device_wait(),
                0);
    for (size_t i = 0; i < c->plan_bytes / 4; i++)
        if (((int32_t *)got)[i] != ((int32_t *)want)[i]) {
            fail_at(c, what, "plan word", ((int32_t *)got)[i], ((int32_t *)want)[i]);
            printf("  word %zu of %zu\n", i, c->plan_bytes / 4);
            break;
        }
    free(want);
    free(got);
    free(scratch);
}

/* One call, or one a phase. */
static void run_variant(struct gpu_case *c, unsigned int variant, unsigned int plan_variant,
                        int phase_by_phase, const int64_t *rows, int64_t n, const char *name) {
    char what[96];
    snprintf(what, sizeof(what), "%s: variant %u plan %u%s", name, variant, plan_variant,
             phase_by_phase ? " by phases" : "");
    decode_args a = device_args(c);
    a.variant = variant;
    a.plan_variant = plan_variant;
    int rc = 0;
    if (st_test_device_write(c->arena.device, c->arena.before, c->arena.used) != 0)
        fail_at(c, what, "the device takes no data", 0, 0);
    for (uint32_t phase = phase_by_phase ? 1 : 0; phase <= 4 && rc == 0; phase *= 2) {
        a.phases = phase;
        rc = steptape_sparse_mla_decode(&a, NULL);
        if (!phase_by_phase)
            break;
    }
    if (rc == STEPTAPE_ERR_UNSUPPORTED && variant > 1) {
        c->arena.refused_count++;
        return;
    }
    if (rc != 0 || st_test_device_copy(c->arena.got, c->arena.device, c->arena.used) != 0) {
        fail_at(c, what, "status", rc, st_test_device_wait());
        return;
    }
    check_buffers(c, &a, what);
    const size_t inputs = (size_t)(c->inputs - c->arena.host) - 64;
    if (memcmp(c->arena.got + inputs, c->arena.before + inputs, c->arena.used - inputs) != 0)
        fail_at(c, what, "an input was written", 1, 0);
    compare(c, rows, n, what);
}

struct reference_work {
    const decode_args *args;
    const int64_t *rows;
    atomic_int failed;
};

static void reference_row(void *context, int64_t i) {
    struct reference_work *work = context;
    if (steptape_sparse_mla_decode_ref_rows(work->args, &work->rows[i], 1) != 0)
        atomic_fetch_add(&work->failed, 1);
}

/* The rows, all different, by the reference, then every variant. */
static void check_case(struct gpu_case *c, const int64_t *rows, int64_t n, const char *name) {
    memcpy(c->arena.before, c->arena.host, c->arena.used);
    struct reference_work work = {.args = &c->args, .rows = rows};
    st_test_parallel(reference_row, &work, n);
    assert_int_equal(work.failed, 0);
    c->plan_bytes = steptape_sparse_mla_decode_plan_bytes(&c->args);
    c->scratch_bytes = steptape_sparse_mla_decode_scratch_bytes(&c->args);
    c->plan = st_test_device(NULL, c->plan_bytes);
    c->scratch = st_test_device(NULL, c->scratch_bytes);
    assert_true(c->plan != NULL && c->scratch != NULL);
    for (unsigned int v = 1; v <= ST_DECODE_VARIANTS; v++)
        run_variant(c, v, v == 1 ? 1 : 0, v == 2, rows, n, name);
    run_variant(c, 0, 0, 0, rows, n, name);
    /* the same bits from run to run, whichever planner, in one call or three */
    const size_t results = (size_t)(c->inputs - c->arena.host) - 64;
    void *bits = malloc(results);
    memcpy(bits, c->arena.got, results);
    run_variant(c, 0, 1, 1, rows, n, name);
    if (memcmp(bits, c->arena.got, results) != 0)
        fail_at(c, name, "other bits from another run", 1, 0);
    free(bits);
    st_test_device_free(c->plan);
    st_test_device_free(c->scratch);
}

enum { CASES = 200 };
static int64_t case_count;

static int64_t at_most(int64_t all) {
    return all < case_count ? all : case_count;
}

static void random_cases(void **state) {
    (void)state;
    struct gpu_case c;
    assert_int_equal(start(&c, 64 << 20), 0);
    for (uint64_t i = 0; i < (uint64_t)case_count; i++) {
        uint64_t seed = i << 32;
        char name[32];
        int64_t rows[8];
        const int64_t tokens = 1 + below(&seed, i % 4 == 0 ? 6 : 2);
        const int32_t heads = i % 5 == 0 ? 128 : 64;
        const int32_t format = i % 3 == 0 ? STEPTAPE_KV_FP8_V32 : STEPTAPE_KV_FP8_DS_MLA;
        const int32_t topk0 = 64 * (int32_t)below(&seed, 3);
        const int32_t topk1 = 64 * (int32_t)below(&seed, i % 20 == 0 ? 9 : 2);
        make_case(&c, tokens, heads, format, topk0, topk1, 1 + below(&seed, 300), &seed);
        for (int64_t t = 0; t < tokens; t++)
            rows[t] = t;
        snprintf(name, sizeof(name), "case %llu", (unsigned long long)i);
        check_case(&c, rows, tokens, name);
    }
    printf("%d calls compared, %llu refused\n", c.compared,
           (unsigned long long)c.arena.refused_count);
    assert_int_equal(c.failures, 0);
    assert_true(c.compared > case_count);
    stop(&c);
}

/* NaN and infinities in q and in entries; a subnormal and a large scale. */
static void strange_values(void **state) {
    (void)state;
    struct gpu_case c;
    assert_int_equal(start(&c, 64 << 20), 0);
    for (uint64_t i = 0; i < (uint64_t)at_most(24); i++) {
        uint64_t seed = (i + 1000) << 32;
        char name[32];
        const int64_t rows[] = {0, 1};
        make_case(&c, 2, 64, STEPTAPE_KV_FP8_DS_MLA, 64, 128, 40, &seed);
        uint16_t *q = (uint16_t *)(uintptr_t)c.args.q;
        uint8_t *cache = (uint8_t *)(uintptr_t)c.args.scope[1].cache;
        static const uint16_t bf16s[] = {0x7fc0, 0x7f80, 0xff80, 0x0001, 0x5f80, 0x8000};
        static const uint8_t e4m3s[] = {0x7f, 0xff, 0x7e, 0x01, 0x80, 0x00};
        static const uint8_t scales[] = {255, 0, 150, 170, 1, 140};
        const int32_t n = c.args.scope[1].page_size;
        if (i % 4 == 0)
            q[below(&seed, 64) * c.args.q_head_stride + below(&seed, 512)] = bf16s[i / 4 % 6];
        else if (i % 4 == 1)
            cache[below(&seed, n) * 576 + below(&seed, 448)] = e4m3s[i / 4 % 6];
        else if (i % 4 == 2)
            memcpy(cache + below(&seed, n) * 576 + 448 + 2 * below(&seed, 64), &bf16s[i / 4 % 6],
                   2);
        else
            cache[n * 576 + below(&seed, n) * 8 + below(&seed, 7)] = scales[i / 4 % 6];
        c.most = INFINITY; /* only where there is NaN, and that nothing faults */
        snprintf(name, sizeof(name), "strange %llu", (unsigned long long)i);
        check_case(&c, rows, 2, name);
    }
    assert_int_equal(c.failures, 0);
    stop(&c);
}

static void large_cases(void **state) {
    (void)state;
    static const struct {
        int64_t tokens;
        int32_t heads, format, topk0, topk1;
    } cases[] = {
        {128, 64, STEPTAPE_KV_FP8_DS_MLA, 128, 512},
        {64, 64, STEPTAPE_KV_FP8_DS_MLA, 128, 8192}, /* 1,048,576 tokens of context */
        {96, 128, STEPTAPE_KV_FP8_V32, 2048, 0},
        {1000, 64, STEPTAPE_KV_FP8_DS_MLA, 128, 256},
    };
    struct gpu_case c;
    if (case_count != CASES)
        skip();
    assert_int_equal(start(&c, 600 << 20), 0);
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        uint64_t seed = (i + 77) << 32;
        char name[32];
        int64_t rows[32];
        make_case(&c, cases[i].tokens, cases[i].heads, cases[i].format, cases[i].topk0,
                  cases[i].topk1, 16384, &seed);
        const int64_t share = cases[i].tokens / 32;
        for (int64_t k = 0; k < 32; k++)
            rows[k] = k == 0 ? 0 : k == 31 ? cases[i].tokens - 1 : k * share + below(&seed, share);
        snprintf(name, sizeof(name), "large %zu", i);
        check_case(&c, rows, 32, name);
    }
    assert_int_equal(c.failures, 0);
    stop(&c);
}

/* Plans of many tokens alone. */
static void plans(void **state) {
    (void)state;
    struct gpu_case c;
    assert_int_equal(start(&c, 8 << 20), 0);
    for (uint64_t i = 0; i < (uint64_t)(case_count == CASES ? 300 : at_most(300)); i++) {
        uint64_t seed = (i + 5000) << 32;
        char name[48];
        const int64_t tokens = i % 60 == 0 ? 8192 : 1 + below(&seed, i % 2 ? 150 : 1500);
        st_test_arena_reset(&c.arena);
        decode_args *a = &c.args;
        *a = (decode_args){.tokens = tokens,
                           .heads = 64,
                           .d_qk = 512,
                           .q_stride = 64 * 512,
                           .q_head_stride = 512,
                           .num_parts = (int32_t)below(&seed, 200),
                           .phases = STEPTAPE_DECODE_PLAN};
        const int64_t kind = below(&seed, 3);
        for (int s = 0; s < 2; s++) {
            int32_t *length = st_test_arena_take(&c.arena, 4 * (size_t)tokens, 0);
            const int32_t topk = s == 0 ? 128 : 64 << below(&seed, 8);
            for (int64_t t = 0; t < tokens; t++)
                length[t] = kind == 0                ? topk
                            : below(&seed, 3) < kind ? (int32_t)below(&seed, topk + 1)
                                                     : 0;
            a->scope[s] = (struct steptape_decode_scope){.length = length,
                                                         .topk = topk,
                                                         .indices_stride = topk,
                                                         .page_size = 2,
                                                         .page_stride_bytes = 1728};
        }
        c.plan_bytes = steptape_sparse_mla_decode_plan_bytes(a);
        c.scratch_bytes = 256;
        c.plan = st_test_device(NULL, c.plan_bytes);
        c.scratch = st_test_device(NULL, c.scratch_bytes);
        memcpy(c.arena.before, c.arena.host, c.arena.used);
        for (unsigned int v = 0; v <= ST_DECODE_PLAN_VARIANTS; v++) {
            snprintf(name, sizeof(name), "plan %llu variant %u", (unsigned long long)i, v);
            decode_args d = device_args(&c);
            d.plan_variant = v;
            st_test_device_write(c.arena.device, c.arena.before, c.arena.used);
            const int rc = steptape_sparse_mla_decode(&d, NULL);
            if (rc != 0 || st_test_device_wait() != 0)
                fail_at(&c, name, "status", rc, st_test_device_wait());
            check_buffers(&c, &d, name);
        }
        st_test_device_free(c.plan);
        st_test_device_free(c.scratch);
    }
    assert_int_equal(c.failures, 0);
    stop(&c);
}

int main(int argc, char **argv) {
    const char *why;
    case_count = st_test_case_count(argc, argv, CASES);
    if (case_count < 0)
        return 2;
    if (st_test_gpu_probe(&why) != 0) {
        printf("skipped: %s\n", why);
        return 77;
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(plans),
        cmocka_unit_test(random_cases),
        cmocka_unit_test(strange_values),
        cmocka_unit_test(large_cases),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

#endif
