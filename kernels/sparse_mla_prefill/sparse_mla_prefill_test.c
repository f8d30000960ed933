/* SPDX-License-Identifier: Apache-2.0 */
/*
 * sparse_mla_prefill: the reference on cases worked out by hand and on properties, the cost; with
 * ST_TEST_GPU every variant against the reference.
 *
 * Tolerance: as sparse_mla_decode's.  Weights may be rounded to bf16 (2^-9 relative), the result
 * is: 2^-8 |result| + 2^-9 max|v|; 2^-12 max(1, |lse|), the same for max_logits.
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

#include "kernels/sparse_mla_prefill/sparse_mla_prefill.h"
#include "kernels/testing.h"

typedef struct steptape_sparse_mla_prefill_args prefill_args;

enum { MAX_HEADS = 128, TILE = STEPTAPE_MLA_TILE };

/* One call with memory of its own. */
struct rig {
    prefill_args args;
    uint16_t *q, *kv, *out;
    int32_t *indices, *length;
    float *sink, *max_logits, *lse;
    uint64_t seed;
};

static int64_t below(struct rig *rig, int64_t limit) {
    return (int64_t)(st_test_random(rig->seed++) % (uint64_t)limit);
}

static void *take(size_t bytes) {
    void *memory = malloc(bytes + 1);
    assert_non_null(memory);
    memset(memory, ST_TEST_POISON, bytes + 1);
    return memory;
}

static void rig_init(struct rig *rig, int64_t s_q, int64_t s_kv, int32_t topk, int32_t heads,
                     int32_t d_qk, uint64_t seed) {
    size_t rows = (size_t)(s_q * heads);
    *rig = (struct rig){.seed = seed};
    rig->q = take(rows * (size_t)d_qk * 2);
    rig->kv = take((size_t)(s_kv * d_qk) * 2);
    rig->out = take(rows * ST_PREFILL_V_DIM * 2);
    rig->indices = take((size_t)(s_q * topk) * 4);
    rig->length = take((size_t)s_q * 4);
    rig->sink = take((size_t)heads * 4);
    rig->max_logits = take(rows * 4);
    rig->lse = take(rows * 4);
    for (size_t i = 0; i < rows * (size_t)d_qk; i++)
        rig->q[i] = steptape_bf16_from_float(st_test_uniform(rig->seed++, 2.0f));
    for (int64_t i = 0; i < s_kv * d_qk; i++)
        rig->kv[i] = steptape_bf16_from_float(st_test_uniform(rig->seed++, 1.0f));
    for (int64_t i = 0; i < s_q * topk; i++)
        rig->indices[i] = s_kv > 0 ? (int32_t)below(rig, s_kv) : -1;
    for (int64_t t = 0; t < s_q; t++)
        rig->length[t] = topk > 0 ? (int32_t)below(rig, topk + 1) : 0;
    for (int32_t h = 0; h < heads; h++)
        rig->sink[h] = st_test_uniform(rig->seed++, 3.0f);
    rig->args = (prefill_args){.q = rig->q,
                               .kv = rig->kv,
                               .indices = rig->indices,
                               .topk_length = rig->length,
                               .attn_sink = rig->sink,
                               .out = rig->out,
                               .max_logits = rig->max_logits,
                               .lse = rig->lse,
                               .q_stride = (int64_t)heads * d_qk,
                               .q_head_stride = d_qk,
                               .kv_stride = d_qk,
                               .indices_stride = topk,
                               .s_q = s_q,
                               .s_kv = s_kv,
                               .topk = topk,
                               .heads = heads,
                               .d_qk = d_qk,
                               .d_v = ST_PREFILL_V_DIM,
                               .sm_scale = 0.044194174f};
}

static void rig_fini(struct rig *rig) {
    free(rig->q);
    free(rig->kv);
    free(rig->out);
    free(rig->indices);
    free(rig->length);
    free(rig->sink);
    free(rig->max_logits);
    free(rig->lse);
}

/* Rows past the length, in its tile, that a NaN of must show: columns of one token. */
static void put_nan(struct rig *rig, int64_t row) {
    for (int32_t d = 0; d < rig->args.d_qk; d++)
        rig->kv[row * rig->args.kv_stride + d] = 0x7fc0;
}

#ifndef ST_TEST_GPU

static void one_key_is_the_answer(void **state) {
    (void)state;
    struct rig rig;
    rig_init(&rig, 1, 4, TILE, 64, 576, 1);
    rig.length[0] = 1;
    rig.indices[0] = 2;
    for (int h = 0; h < 64; h++)
        rig.sink[h] = h == 0 ? -INFINITY : h == 1 ? INFINITY : 0.0f;
    assert_int_equal(steptape_sparse_mla_prefill_ref(&rig.args), 0);
    assert_memory_equal(rig.out, rig.kv + 2 * 576, 512 * 2); /* the sink has no effect */
    for (int d = 0; d < 512; d++)
        assert_int_equal(rig.out[512 + d] & 0x7fff, 0);
    double score = 0.0;
    for (int d = 0; d < 576; d++)
        score += (double)steptape_bf16_to_float(rig.q[d]) *
                 (double)steptape_bf16_to_float(rig.kv[2 * 576 + d]);
    assert_true(fabs(rig.max_logits[0] - score * 0.044194174f) < 1e-5);
    assert_true(rig.lse[0] == rig.max_logits[0]);
    rig_fini(&rig);
}

static void nothing_listed_gives_zeros(void **state) {
    (void)state;
    struct rig rig;
    rig_init(&rig, 3, 4, TILE, 64, 512, 2);
    rig.length[0] = 0;
    rig.length[1] = rig.length[2] = TILE;
    for (int c = 0; c < 2 * TILE; c++)
        rig.indices[TILE + c] = c % 2 ? -1 : 4; /* out of range */
    assert_int_equal(steptape_sparse_mla_prefill_ref(&rig.args), 0);
    for (int i = 0; i < 3 * 64; i++) {
        assert_true(rig.max_logits[i] == -INFINITY && rig.lse[i] == INFINITY);
        for (int d = 0; d < 512; d++)
            assert_int_equal(rig.out[i * 512 + d], rig.out[0]);
    }
    rig_fini(&rig);
}

/* A column that is listed twice weighs twice: the mean of two equal and one other score. */
static void weights_add_up(void **state) {
    (void)state;
    struct rig rig;
    rig_init(&rig, 1, 2, TILE, 64, 512, 3);
    rig.args.attn_sink = NULL;
    memset(rig.q, 0, 64 * 512 * 2); /* all scores 0 */
    rig.length[0] = 3;
    rig.indices[0] = rig.indices[2] = 0;
    rig.indices[1] = 1;
    assert_int_equal(steptape_sparse_mla_prefill_ref(&rig.args), 0);
    for (int d = 0; d < 512; d++) {
        double want =
            (2.0 * steptape_bf16_to_float(rig.kv[d]) + steptape_bf16_to_float(rig.kv[512 + d])) /
            3.0;
        assert_true(rig.out[d] == steptape_bf16_from_float((float)want));
    }
    assert_true(fabs(rig.lse[0] - log(3.0)) < 1e-6 && rig.max_logits[0] == 0.0f);
    rig_fini(&rig);
}

/* What the hazard of a reused index buffer rests on. */
static void a_nan_in_the_last_tile_shows(void **state) {
    (void)state;
    struct rig rig;
    rig_init(&rig, 2, 8, 2 * TILE, 64, 512, 4);
    put_nan(&rig, 7);
    rig.length[0] = rig.length[1] = 5;
    for (int c = 0; c < 4 * TILE; c++)
        rig.indices[c] = c % 7;
    rig.indices[TILE - 1] = 7;        /* token 0: in the tile of the length */
    rig.indices[2 * TILE + TILE] = 7; /* token 1: past it */
    assert_int_equal(steptape_sparse_mla_prefill_ref(&rig.args), 0);
    assert_true(isnan(steptape_bf16_to_float(rig.out[0])));
    for (int i = 64 * 512; i < 2 * 64 * 512; i++)
        assert_false(isnan(steptape_bf16_to_float(rig.out[i])));
    rig_fini(&rig);
}

static void rows_are_those_of_the_whole(void **state) {
    (void)state;
    struct rig a, b;
    const int64_t rows[] = {4, 1};
    rig_init(&a, 5, 40, 2 * TILE, 64, 512, 5);
    rig_init(&b, 5, 40, 2 * TILE, 64, 512, 5);
    assert_int_equal(steptape_sparse_mla_prefill_ref(&a.args), 0);
    assert_int_equal(steptape_sparse_mla_prefill_ref_rows(&b.args, rows, 2), 0);
    for (int i = 0; i < 2; i++)
        assert_memory_equal(a.out + rows[i] * 64 * 512, b.out + rows[i] * 64 * 512, 64 * 512 * 2);
    assert_int_equal(b.out[0], ST_TEST_POISON * 0x101);
    const int64_t outside = 5;
    assert_int_equal(steptape_sparse_mla_prefill_ref_rows(&b.args, &outside, 1),
                     STEPTAPE_ERR_ARGUMENT);
    rig_fini(&a);
    rig_fini(&b);
}

static void refuses_what_makes_no_sense(void **state) {
    (void)state;
    struct rig rig;
    struct steptape_cost cost;
    struct steptape_token_counts counts = {4, 0, 0, 1000};
    rig_init(&rig, 4, 8, TILE, 64, 512, 6);
    prefill_args a = rig.args;
    a.topk = 100;
    assert_int_equal(steptape_sparse_mla_prefill_ref(&a), STEPTAPE_ERR_ARGUMENT);
    a = rig.args;
    a.d_qk = 500;
    assert_int_equal(steptape_sparse_mla_prefill_ref(&a), STEPTAPE_ERR_ARGUMENT);
    a = rig.args;
    a.heads = 96;
    assert_int_equal(steptape_sparse_mla_prefill_cost(&a, &counts, &cost),
                     STEPTAPE_ERR_UNSUPPORTED);
    a = rig.args;
    a.indices = NULL;
    assert_int_equal(steptape_sparse_mla_prefill_ref(&a), STEPTAPE_ERR_ARGUMENT);
    a.s_q = 0;
    assert_int_equal(steptape_sparse_mla_prefill_ref(&a), 0);
    a = rig.args;
    assert_int_equal(steptape_sparse_mla_prefill_cost(&a, &counts, &cost), 0);
    assert_int_equal(cost.flops, 2ull * 1000 * 64 * 1024);
    assert_int_equal(cost.launch_count, 1);
    rig_fini(&rig);
}

#else

static int failures;

static void differs(const char *what, unsigned int variant, int64_t at, float got, float want) {
    if (failures++ < 20)
        printf("%s: variant %u: element %lld is %.9g, the reference has %.9g\n", what, variant,
               (long long)at, (double)got, (double)want);
}

static int close_to(float got, float want, float tolerance) {
    if (isnan(want) || isinf(want))
        return isnan(want) ? isnan(got) : got == want;
    return fabsf(got - want) <= tolerance;
}

/* Outputs of variant against the reference's in rig, for the tokens listed. */
static void compare(const struct rig *rig, const char *what, unsigned int variant,
                    const uint16_t *out, const float *max_logits, const float *lse,
                    const int64_t *tokens, int64_t count) {
    const int64_t heads = rig->args.heads;
    for (int64_t k = 0; k < count; k++) {
        for (int64_t i = tokens[k] * heads; i < (tokens[k] + 1) * heads; i++) {
            float scale = fmaxf(1.0f, fabsf(rig->lse[i])) / 4096.0f;
            if (!close_to(lse[i], rig->lse[i], scale))
                differs(what, variant, i, lse[i], rig->lse[i]);
            if (!close_to(max_logits[i], rig->max_logits[i], scale))
                differs(what, variant, i, max_logits[i], rig->max_logits[i]);
            for (int64_t d = i * 512; d < (i + 1) * 512; d++) {
                float want = steptape_bf16_to_float(rig->out[d]);
                float got = steptape_bf16_to_float(out[d]);
                if (!close_to(got, want, fabsf(want) / 256.0f + 1.0f / 512.0f))
                    differs(what, variant, d, got, want);
            }
        }
    }
}

/* Every variant and the default, twice: the second run must give the same bits. */
static void run_on_device(struct rig *rig, const char *what, const int64_t *tokens, int64_t count) {
    const prefill_args *h = &rig->args;
    const size_t rows = (size_t)(h->s_q * h->heads);
    prefill_args d = *h;
    d.q = st_test_device(rig->q, rows * (size_t)h->d_qk * 2);
    d.kv = st_test_device(rig->kv, (size_t)(h->s_kv * h->d_qk) * 2);
    d.indices = st_test_device(rig->indices, (size_t)(h->s_q * h->topk) * 4);
    d.topk_length = st_test_device(rig->length, (size_t)h->s_q * 4);
    d.attn_sink = h->attn_sink ? st_test_device(rig->sink, (size_t)h->heads * 4) : NULL;
    uint16_t *out[2] = {take(rows * 1024), take(rows * 1024)};
    float *max_logits = take(rows * 4), *lse = take(rows * 4);
    for (d.variant = 0; d.variant <= ST_PREFILL_VARIANTS; d.variant++) {
        int rc = 0;
        for (int run = 0; run < 2 && rc == 0; run++) {
            d.out = st_test_device(NULL, rows * 1024);
            d.max_logits = st_test_device(NULL, rows * 4);
            d.lse = st_test_device(NULL, rows * 4);
            rc = steptape_sparse_mla_prefill(&d, NULL);
            if (rc == 0 && (st_test_device_read(out[run], d.out, rows * 1024) != 0 ||
                            st_test_device_read(max_logits, d.max_logits, rows * 4) != 0 ||
                            st_test_device_read(lse, d.lse, rows * 4) != 0))
                rc = -1;
            st_test_device_free(d.out);
            st_test_device_free(d.max_logits);
            st_test_device_free(d.lse);
        }
        if (rc == STEPTAPE_ERR_UNSUPPORTED && d.variant > 1)
            continue;
        if (rc != 0) {
            failures++;
            printf("%s: variant %u: %d (a guard band, or %s)\n", what, d.variant, rc,
                   steptape_status_name(rc));
            continue;
        }
        if (memcmp(out[0], out[1], rows * 1024) != 0) {
            failures++;
            printf("%s: variant %u: two runs differ\n", what, d.variant);
        }
        compare(rig, what, d.variant, out[0], max_logits, lse, tokens, count);
    }
    st_test_device_free((void *)d.q);
    st_test_device_free((void *)d.kv);
    st_test_device_free((void *)d.indices);
    st_test_device_free((void *)d.topk_length);
    st_test_device_free((void *)d.attn_sink);
    free(out[0]);
    free(out[1]);
    free(max_logits);
    free(lse);
}

static void small_cases(void **state) {
    (void)state;
    failures = 0;
    for (int n = 0; n < 200; n++) {
        struct rig rig;
        char what[32];
        uint64_t r = st_test_random(9000 + (uint64_t)n);
        int64_t s_q = 1 + (int64_t)(r % 4), s_kv = 1 + (int64_t)(r / 4 % 300);
        int32_t topk = TILE * (int32_t)(1 + r / 2048 % 4);
        rig_init(&rig, s_q, s_kv, topk, n % 3 == 0 ? 128 : 64, n % 2 ? 576 : 512, r);
        for (int i = 0; i < 20; i++) /* invalid ones anywhere */
            rig.indices[below(&rig, s_q * topk)] = (int32_t)below(&rig, 2 * s_kv + 2) - 1;
        if (n % 5 == 0)
            rig.length[0] = n % 10 ? 0 : topk;
        if (n % 7 == 0)
            rig.args.attn_sink = NULL;
        if (n % 11 == 0)
            put_nan(&rig, below(&rig, s_kv));
        if (n % 13 == 0)
            rig.sink[3] = INFINITY;
        if (n % 17 == 0)
            rig.sink[5] = -INFINITY;
        int64_t tokens[4] = {0, 1, 2, 3};
        snprintf(what, sizeof what, "case %d", n);
        assert_int_equal(steptape_sparse_mla_prefill_ref(&rig.args), 0);
        run_on_device(&rig, what, tokens, s_q);
        rig_fini(&rig);
    }
    assert_int_equal(failures, 0);
}

static void large_cases(void **state) {
    (void)state;
    static const struct {
        int64_t s_q, s_kv;
        int32_t topk, heads, d_qk;
    } cases[] = {{256, 8192, 640, 64, 512}, {128, 8192, 2048, 128, 576}, {96, 4096, 8320, 64, 512}};
    failures = 0;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct rig rig;
        char what[32];
        int64_t tokens[11];
        rig_init(&rig, cases[i].s_q, cases[i].s_kv, cases[i].topk, cases[i].heads, cases[i].d_qk,
                 77 + i);
        for (int k = 0; k < 11; k++)
            tokens[k] = k == 0 ? 0 : k == 10 ? cases[i].s_q - 1 : below(&rig, cases[i].s_q);
        snprintf(what, sizeof what, "large case %zu", i);
        assert_int_equal(steptape_sparse_mla_prefill_ref_rows(&rig.args, tokens, 11), 0);
        run_on_device(&rig, what, tokens, 11);
        rig_fini(&rig);
    }
    assert_int_equal(failures, 0);
}

/* The published test: whatever lies past the length, the bits are the same. */
static void past_the_length(void **state) {
    (void)state;
    static const int32_t tails[] = {-1, 3, 1 << 30, INT32_MIN};
    for (int heads = 64; heads <= 128; heads += 64) {
        for (int d_qk = 512; d_qk <= 576; d_qk += 64) {
            struct rig rig;
            rig_init(&rig, 1, 8, TILE, heads, d_qk, 5);
            rig.length[0] = 1;
            uint16_t *first = NULL;
            for (size_t k = 0; k < sizeof(tails) / sizeof(tails[0]); k++) {
                prefill_args d = rig.args;
                size_t bytes = (size_t)heads * 1024;
                uint16_t *out = take(bytes);
                for (int c = 1; c < TILE; c++)
                    rig.indices[c] = tails[k] == 3 ? c % 8 : tails[k];
                d.q = st_test_device(rig.q, (size_t)(heads * d_qk) * 2);
                d.kv = st_test_device(rig.kv, (size_t)(8 * d_qk) * 2);
                d.indices = st_test_device(rig.indices, TILE * 4);
                d.topk_length = st_test_device(rig.length, 4);
                d.attn_sink = NULL;
                d.max_logits = d.lse = NULL;
                d.out = st_test_device(NULL, bytes);
                assert_int_equal(steptape_sparse_mla_prefill(&d, NULL), 0);
                assert_int_equal(st_test_device_read(out, d.out, bytes), 0);
                st_test_device_free((void *)d.q);
                st_test_device_free((void *)d.kv);
                st_test_device_free((void *)d.indices);
                st_test_device_free((void *)d.topk_length);
                st_test_device_free(d.out);
                if (first == NULL)
                    first = out;
                else {
                    assert_memory_equal(first, out, bytes);
                    free(out);
                }
            }
            free(first);
            rig_fini(&rig);
        }
    }
}

#endif

int main(void) {
#ifdef ST_TEST_GPU
    const char *why;
    if (st_test_gpu_probe(&why) != 0) {
        printf("skipped: %s\n", why);
        return 77;
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(small_cases),
        cmocka_unit_test(large_cases),
        cmocka_unit_test(past_the_length),
    };
#else
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(one_key_is_the_answer),
        cmocka_unit_test(nothing_listed_gives_zeros),
        cmocka_unit_test(weights_add_up),
        cmocka_unit_test(a_nan_in_the_last_tile_shows),
        cmocka_unit_test(rows_are_those_of_the_whole),
        cmocka_unit_test(refuses_what_makes_no_sense),
    };
#endif
    return cmocka_run_group_tests(tests, NULL, NULL);
}
