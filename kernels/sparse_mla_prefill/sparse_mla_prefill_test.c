/* SPDX-License-Identifier: Apache-2.0 */
/*
 * sparse_mla_prefill: the reference on cases worked out by hand and on properties, the cost; with
 * ST_TEST_GPU every variant against the reference (an argument: so many small cases, no large
 * ones).
 *
 * Tolerance: of A = sum |weight * value| of the output element.  A weight rounded to bf16 is wrong
 * by 2^-8 at most, so the sum by 2^-8 A; rounding the output adds 2^-8 A, and so does rounding the
 * reference's.  A score summed in fp32 is wrong by less than 2^-12 for the numbers used here, which
 * changes a weight by 2^-11: (3 * 2^-8 + 2^-10) A.  lse, max_logits: 2^-12 max(1, |lse|).
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

#include "kernels/device.h"
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

/* bf16 numbers in [-scale, scale); after a million the same again. */
static void fill(struct rig *rig, uint16_t *out, size_t n, float scale) {
    const size_t period = 1000003;
    for (size_t i = 0; i < n && i < period; i++)
        out[i] = steptape_bf16_from_float(st_test_uniform(rig->seed++, scale));
    for (size_t i = period; i < n; i += period)
        memcpy(out + i, out, 2 * (n - i < period ? n - i : period));
}

/* pad: elements between rows of q, kv and indices. */
static void rig_init(struct rig *rig, int64_t s_q, int64_t s_kv, int32_t topk, int32_t heads,
                     int32_t d_qk, int32_t pad, uint64_t seed) {
    size_t rows = (size_t)(s_q * heads);
    const int64_t stride = d_qk + pad, list = topk + pad;
    *rig = (struct rig){.seed = seed};
    rig->q = take(rows * (size_t)stride * 2);
    rig->kv = take((size_t)(s_kv * stride) * 2);
    rig->out = take(rows * ST_PREFILL_V_DIM * 2);
    rig->indices = take((size_t)(s_q * list) * 4);
    rig->length = take((size_t)s_q * 4);
    rig->sink = take((size_t)heads * 4);
    rig->max_logits = take(rows * 4);
    rig->lse = take(rows * 4);
    fill(rig, rig->q, rows * (size_t)stride, 2.0f);
    fill(rig, rig->kv, (size_t)(s_kv * stride), 1.0f);
    for (int64_t i = 0; i < s_q * list; i++)
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
                               .q_stride = heads * stride,
                               .q_head_stride = stride,
                               .kv_stride = stride,
                               .indices_stride = list,
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

/* A whole row of one number: a NaN, an infinity. */
static void put_row(struct rig *rig, int64_t row, uint16_t bits) {
    for (int32_t d = 0; d < rig->args.d_qk; d++)
        rig->kv[row * rig->args.kv_stride + d] = bits;
}

#define NAN_BITS 0x7fc0
#define INFINITY_BITS 0x7f80

#ifndef ST_TEST_GPU

static void one_key_is_the_answer(void **state) {
    (void)state;
    struct rig rig;
    rig_init(&rig, 1, 4, TILE, 64, 576, 0, 1);
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
    rig_init(&rig, 3, 4, TILE, 64, 512, 0, 2);
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
    rig_init(&rig, 1, 2, TILE, 64, 512, 0, 3);
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
    rig_init(&rig, 2, 8, 2 * TILE, 64, 512, 0, 4);
    put_row(&rig, 7, NAN_BITS);
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
    rig_init(&a, 5, 40, 2 * TILE, 64, 512, 0, 5);
    rig_init(&b, 5, 40, 2 * TILE, 64, 512, 0, 5);
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
    rig_init(&rig, 4, 8, TILE, 64, 512, 0, 6);
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
    a.variant = 3;
    assert_int_equal(steptape_sparse_mla_prefill_cost(&a, &counts, &cost), 0);
    assert_int_equal(cost.grid[0], 4);
    assert_int_equal(cost.block[0], 512);
    a.s_q = 1 << 20;
    a.heads = 128;
    assert_int_equal(steptape_sparse_mla_prefill_cost(&a, &counts, &cost), 0);
    assert_int_equal(cost.grid[0], st_device_facts().multiprocessors);
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

struct outputs {
    uint16_t *out;
    float *max_logits, *lse;
};

/* Some tokens and the magnitudes of their outputs. */
struct sample {
    int64_t tokens[32];
    int64_t count;
    float *magnitude; /* [count, heads, 512] */
};

struct sample_work {
    const struct rig *rig;
    struct sample *sample;
    atomic_int failed;
};

/* Outputs and magnitudes of a token are two pieces of work. */
static void sample_piece(void *context, int64_t i) {
    struct sample_work *work = context;
    const prefill_args *args = &work->rig->args;
    const int64_t k = i / 2, token = work->sample->tokens[k];
    if (i % 2 == 0)
        st_sparse_mla_prefill_magnitude(args, token,
                                        work->sample->magnitude + k * args->heads * 512);
    else if (steptape_sparse_mla_prefill_ref_rows(args, &token, 1) != 0)
        atomic_fetch_add(&work->failed, 1);
}

/* The tokens are all different. */
static void sample_init(struct sample *sample, const struct rig *rig) {
    struct sample_work work = {.rig = rig, .sample = sample};
    sample->magnitude = take((size_t)(sample->count * rig->args.heads * 512) * 4);
    st_test_parallel(sample_piece, &work, 2 * sample->count);
    assert_int_equal(work.failed, 0);
}

/* Outputs of variant against the reference's in rig, for the sample. */
static void compare(const struct rig *rig, const char *what, unsigned int variant,
                    const struct outputs *got, const struct sample *sample) {
    const int64_t heads = rig->args.heads;
    for (int64_t k = 0; k < sample->count; k++) {
        for (int64_t h = 0; h < heads; h++) {
            const int64_t i = sample->tokens[k] * heads + h;
            const float *magnitude = sample->magnitude + (k * heads + h) * 512;
            const float scale = fmaxf(1.0f, fabsf(rig->lse[i])) / 4096.0f;
            if (!close_to(got->lse[i], rig->lse[i], scale))
                differs(what, variant, i, got->lse[i], rig->lse[i]);
            if (!close_to(got->max_logits[i], rig->max_logits[i], scale))
                differs(what, variant, i, got->max_logits[i], rig->max_logits[i]);
            for (int64_t d = 0; d < 512; d++) {
                const float want = steptape_bf16_to_float(rig->out[i * 512 + d]);
                const float is = steptape_bf16_to_float(got->out[i * 512 + d]);
                if (!close_to(is, want, (3.0f / 256 + 1.0f / 1024) * magnitude[d]))
                    differs(what, variant, i * 512 + d, is, want);
            }
        }
    }
}

static int run_once(prefill_args *d, struct outputs *got, size_t rows) {
    d->out = st_test_device(NULL, rows * 1024);
    d->max_logits = st_test_device(NULL, rows * 4);
    d->lse = st_test_device(NULL, rows * 4);
    int rc = steptape_sparse_mla_prefill(d, NULL);
    if (rc == 0 && (st_test_device_read(got->out, d->out, rows * 1024) != 0 ||
                    st_test_device_read(got->max_logits, d->max_logits, rows * 4) != 0 ||
                    st_test_device_read(got->lse, d->lse, rows * 4) != 0))
        rc = -1;
    st_test_device_free(d->out);
    st_test_device_free(d->max_logits);
    st_test_device_free(d->lse);
    return rc;
}

static uint64_t run_count[ST_PREFILL_VARIANTS + 1];

/* Every variant from the first one named and the default, twice: the same bits both times. */
static void run_on_device(struct rig *rig, const char *what, unsigned int first,
                          const struct sample *sample) {
    const prefill_args *h = &rig->args;
    const size_t rows = (size_t)(h->s_q * h->heads);
    prefill_args d = *h;
    d.q = st_test_device(rig->q, (size_t)(h->s_q * h->q_stride) * 2);
    d.kv = st_test_device(rig->kv, (size_t)(h->s_kv * h->kv_stride) * 2);
    d.indices = st_test_device(rig->indices, (size_t)(h->s_q * h->indices_stride) * 4);
    d.topk_length = st_test_device(rig->length, (size_t)h->s_q * 4);
    d.attn_sink = h->attn_sink ? st_test_device(rig->sink, (size_t)h->heads * 4) : NULL;
    struct outputs got = {take(rows * 1024), take(rows * 4), take(rows * 4)};
    struct outputs again = {take(rows * 1024), take(rows * 4), take(rows * 4)};
    for (unsigned int v = first - 1; v <= ST_PREFILL_VARIANTS; v++) {
        d.variant = v == first - 1 ? 0 : v;
        int rc = run_once(&d, &got, rows);
        if (rc == STEPTAPE_ERR_UNSUPPORTED && d.variant > 1 &&
            !st_sparse_mla_prefill_serves(&d, d.variant))
            continue;
        if (rc == 0)
            rc = run_once(&d, &again, rows);
        if (rc != 0) {
            failures++;
            printf("%s: variant %u: %d (a guard band, or %s)\n", what, d.variant, rc,
                   steptape_status_name(rc));
            continue;
        }
        if (memcmp(got.out, again.out, rows * 1024) != 0) {
            failures++;
            printf("%s: variant %u: two runs differ\n", what, d.variant);
        }
        compare(rig, what, d.variant, &got, sample);
        run_count[d.variant]++;
    }
    st_test_device_free((void *)d.q);
    st_test_device_free((void *)d.kv);
    st_test_device_free((void *)d.indices);
    st_test_device_free((void *)d.topk_length);
    st_test_device_free((void *)d.attn_sink);
    free(got.out);
    free(got.max_logits);
    free(got.lse);
    free(again.out);
    free(again.max_logits);
    free(again.lse);
}

/* What makes a case nasty, by its number. */
static void spoil(struct rig *rig, int n) {
    const prefill_args *a = &rig->args;
    for (int i = 0; i < 20; i++) /* invalid ones anywhere */
        rig->indices[below(rig, a->s_q * a->indices_stride)] =
            (int32_t)below(rig, 2 * a->s_kv + 2) - 1;
    if (n % 5 == 0)
        rig->length[0] = n % 10 ? 0 : a->topk;
    if (n % 5 == 1)
        rig->length[0] = n % 10 == 1 ? -3 : INT32_MAX;
    if (n % 6 == 5) /* one key takes nearly all */
        fill(rig, rig->q, (size_t)(a->s_q * a->q_stride), 40.0f);
    if (n % 7 == 0)
        rig->args.attn_sink = NULL;
    if (n % 8 == 3) /* nothing to attend to */
        for (int32_t c = 0; c < a->topk; c++)
            rig->indices[c] = c % 2 ? -1 : INT32_MIN;
    if (n % 11 == 0)
        put_row(rig, below(rig, a->s_kv), NAN_BITS);
    if (n % 11 == 1)
        put_row(rig, below(rig, a->s_kv), INFINITY_BITS);
    if (n % 11 == 2)
        rig->kv[below(rig, a->s_kv) * a->kv_stride + 17] = INFINITY_BITS;
    if (n % 13 == 0)
        rig->sink[3] = INFINITY;
    if (n % 17 == 0)
        rig->sink[5] = -INFINITY;
    if (n % 19 == 0)
        rig->args.sm_scale = n % 2 ? 0.0f : -0.05f;
}

enum { CASES = 200 };
static int64_t case_count;

static void small_cases(void **state) {
    (void)state;
    failures = 0;
    for (int n = 0; n < case_count; n++) {
        struct rig rig;
        char what[32];
        uint64_t r = st_test_random(9000 + (uint64_t)n);
        int64_t s_q = 1 + (int64_t)(r % 4), s_kv = 1 + (int64_t)(r / 4 % 300);
        int32_t topk = TILE * (int32_t)(1 + r / 2048 % 4);
        rig_init(&rig, s_q, s_kv, topk, n % 3 == 0 ? 128 : 64, n % 2 ? 576 : 512,
                 n % 4 == 3    ? 8
                 : n % 20 == 8 ? 1
                               : 0,
                 r);
        spoil(&rig, n);
        struct sample sample = {{0, 1, 2, 3}, s_q, NULL};
        sample_init(&sample, &rig);
        snprintf(what, sizeof what, "case %d", n);
        run_on_device(&rig, what, 1, &sample);
        free(sample.magnitude);
        rig_fini(&rig);
    }
    for (unsigned int v = 0; v <= ST_PREFILL_VARIANTS; v++)
        printf("variant %u served %llu of %lld cases\n", v, (unsigned long long)run_count[v],
               (long long)case_count);
    assert_int_equal(failures, 0);
    assert_int_equal(run_count[0], case_count);
}

/* 8,192 tokens; a context of 1,048,576; the widest lists; all against a sample of rows. */
static void large_cases(void **state) {
    (void)state;
    static const struct {
        int64_t s_q, s_kv;
        int32_t topk, heads, d_qk;
        unsigned int first_variant;
    } cases[] = {{8192, 8192, 128, 64, 512, 2},
                 {160, 1048576, 640, 64, 512, 1},
                 {128, 8192, 2048, 128, 576, 1},
                 {96, 4096, 8320, 64, 512, 1}};
    if (case_count != CASES)
        skip();
    failures = 0;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct rig rig;
        char what[32];
        struct sample sample = {{0}, 32, NULL};
        const int64_t share = cases[i].s_q / 32;
        rig_init(&rig, cases[i].s_q, cases[i].s_kv, cases[i].topk, cases[i].heads, cases[i].d_qk, 0,
                 77 + i);
        for (int k = 0; k < 32; k++)
            sample.tokens[k] = k == 0    ? 0
                               : k == 31 ? cases[i].s_q - 1
                                         : k * share + below(&rig, share);
        sample_init(&sample, &rig);
        snprintf(what, sizeof what, "large case %zu", i);
        run_on_device(&rig, what, cases[i].first_variant, &sample);
        free(sample.magnitude);
        rig_fini(&rig);
    }
    assert_int_equal(failures, 0);
}

/* One call of a variant into out, nothing optional. */
static int run_bare(const struct rig *rig, unsigned int variant, uint16_t *out) {
    const prefill_args *h = &rig->args;
    const size_t bytes = (size_t)h->heads * 1024;
    prefill_args d = *h;
    d.q = st_test_device(rig->q, (size_t)h->q_stride * 2);
    d.kv = st_test_device(rig->kv, (size_t)(h->s_kv * h->kv_stride) * 2);
    d.indices = st_test_device(rig->indices, TILE * 4);
    d.topk_length = st_test_device(rig->length, 4);
    d.attn_sink = NULL;
    d.max_logits = d.lse = NULL;
    d.out = st_test_device(NULL, bytes);
    d.variant = variant;
    int rc = steptape_sparse_mla_prefill(&d, NULL);
    if (rc == 0)
        rc = st_test_device_read(out, d.out, bytes);
    st_test_device_free((void *)d.q);
    st_test_device_free((void *)d.kv);
    st_test_device_free((void *)d.indices);
    st_test_device_free((void *)d.topk_length);
    st_test_device_free(d.out);
    return rc;
}

/* The published test: whatever lies past the length, the bits are the same. */
static void past_the_length(void **state) {
    (void)state;
    static const int32_t tails[] = {-1, 3, 1 << 30, INT32_MIN};
    /* few cases: every variant, but not with all sizes */
    const int step = case_count == CASES ? 1 : 5;
    for (int n = 0; n < 4 * (ST_PREFILL_VARIANTS + 1); n += step) {
        const unsigned int variant = (unsigned int)n / 4;
        const int32_t heads = n & 1 ? 128 : 64, d_qk = n & 2 ? 576 : 512;
        struct rig rig;
        rig_init(&rig, 1, 8, TILE, heads, d_qk, 0, 5);
        rig.length[0] = 1;
        const size_t bytes = (size_t)heads * 1024;
        uint16_t *first = take(bytes), *other = take(bytes);
        for (size_t k = 0; k < sizeof(tails) / sizeof(tails[0]); k++) {
            for (int c = 1; c < TILE; c++)
                rig.indices[c] = tails[k] == 3 ? c % 8 : tails[k];
            int rc = run_bare(&rig, variant, k == 0 ? first : other);
            if (rc == STEPTAPE_ERR_UNSUPPORTED && variant > 1)
                break;
            assert_int_equal(rc, 0);
            if (k > 0)
                assert_memory_equal(first, other, bytes);
        }
        free(first);
        free(other);
        rig_fini(&rig);
    }
}

#endif

int main(int argc, char **argv) {
#ifdef ST_TEST_GPU
    const char *why;
    case_count = st_test_case_count(argc, argv, CASES);
    if (case_count < 0)
        return 2;
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
    (void)argc;
    (void)argv;
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
