/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Bench group sparse_mla_prefill, on the shapes that FlashMLA was measured on (vLLM 0.26.0's wheel,
 * one NVIDIA H200, 2026-11-30, graphs of 4 calls).  FLOP of a call: 2 s_q heads length (d_qk +
 * 512), in the row's name.
 */
#include "kernels/bench_i.cuh"

#include <stdio.h>
#include <stdlib.h>

enum { CALLS = 4, SKV = 8192 };

struct prefill_case {
    struct steptape_sparse_mla_prefill_args args;
};

static int prefill_call(int i, void *stream, void *user) {
    (void)i;
    return steptape_sparse_mla_prefill(&((struct prefill_case *)user)->args, stream);
}

struct prefill_shape {
    int d_qk, heads, s_q, topk, length;
    double anchor_us;
};

/* bf16 of small random numbers, as 32-bit words of two. */
static int random_bf16(struct st_bench *bench, uint16_t **out, int64_t n) {
    uint16_t *host = (uint16_t *)malloc((size_t)n * 2);
    if (host == NULL)
        return ST_FAIL_NOMEM(bench->err);
    uint32_t state = 12345;
    for (int64_t i = 0; i < n; i++) {
        state = state * 1664525u + 1013904223u;
        host[i] = steptape_bf16_from_float((float)(int32_t)state * (1.0f / 2147483648.0f));
    }
    int rc = st_bench_alloc_copy(bench, (void **)out, host, (size_t)n * 2);
    free(host);
    return rc;
}

static int make(struct st_bench *bench, const struct prefill_shape *s, struct prefill_case *c) {
    const int64_t rows = (int64_t)s->s_q * s->heads;
    uint16_t *q = NULL, *kv = NULL, *out = NULL;
    int32_t *indices = NULL, *length = NULL;
    float *max_logits = NULL, *lse = NULL;
    int32_t *host = (int32_t *)malloc((size_t)s->s_q * (size_t)s->topk * 4);
    if (host == NULL)
        return ST_FAIL_NOMEM(bench->err);
    uint32_t state = 1;
    for (int64_t i = 0; i < (int64_t)s->s_q * s->topk; i++) {
        state = state * 1664525u + 1013904223u;
        host[i] = i % s->topk < s->length ? (int32_t)(state >> 8) % SKV : -1;
    }
    int rc =
        st_bench_alloc_copy(bench, (void **)&indices, host, (size_t)s->s_q * (size_t)s->topk * 4);
    for (int64_t i = 0; i < s->s_q; i++)
        host[i] = s->length;
    if (rc == ST_OK)
        rc = st_bench_alloc_copy(bench, (void **)&length, host, (size_t)s->s_q * 4);
    free(host);
    ST_TRY(rc);
    ST_TRY(random_bf16(bench, &q, rows * s->d_qk));
    ST_TRY(random_bf16(bench, &kv, (int64_t)SKV * s->d_qk));
    ST_TRY(st_bench_alloc(bench, (void **)&out, (size_t)rows * 1024));
    ST_TRY(st_bench_alloc(bench, (void **)&max_logits, (size_t)rows * 4));
    ST_TRY(st_bench_alloc(bench, (void **)&lse, (size_t)rows * 4));
    *c = {};
    c->args.q = q;
    c->args.kv = kv;
    c->args.indices = indices;
    c->args.topk_length = length;
    c->args.out = out;
    c->args.max_logits = max_logits;
    c->args.lse = lse;
    c->args.q_stride = (int64_t)s->heads * s->d_qk;
    c->args.q_head_stride = c->args.kv_stride = s->d_qk;
    c->args.indices_stride = s->topk;
    c->args.s_q = s->s_q;
    c->args.s_kv = SKV;
    c->args.topk = s->topk;
    c->args.heads = s->heads;
    c->args.d_qk = s->d_qk;
    c->args.d_v = 512;
    c->args.sm_scale = 0.044194174f;
    return ST_OK;
}

static int bench_shape(struct st_bench *bench, const struct prefill_shape *s) {
    char name[128];
    snprintf(name, sizeof(name), "d=%d h=%d s_q=%d topk=%d length=%d %.1f GFLOP", s->d_qk, s->heads,
             s->s_q, s->topk, s->length,
             2e-9 * s->s_q * s->heads * (double)s->length * (s->d_qk + 512));
    if (!st_bench_wanted(bench, "sparse_mla_prefill", name))
        return ST_OK;
    struct prefill_case c;
    int rc = make(bench, s, &c);
    const struct st_kernel *kernel = st_kernel_find("sparse_mla_prefill");
    const unsigned int first = bench->options.all_variants ? 2 : 0; /* v1 would take minutes */
    const unsigned int last = bench->options.all_variants ? (unsigned int)kernel->variant_count : 0;
    for (unsigned int v = first; v <= last && rc == ST_OK; v++) {
        struct st_bench_row row = {};
        struct steptape_token_counts counts = {s->s_q, 0, 0, (int64_t)s->s_q * s->length};
        struct steptape_cost cost = {};
        c.args.variant = v;
        steptape_sparse_mla_prefill_cost(&c.args, &counts, &cost);
        row.group = "sparse_mla_prefill";
        row.name = name;
        row.variant = (int)v;
        row.sets = 1;
        row.launch_count = 1;
        row.bytes = cost.read_bytes + cost.written_bytes;
        row.anchor_us = s->anchor_us;
        rc = st_bench_graph(bench, CALLS, prefill_call, &c, &row);
        if (rc == ST_OK)
            rc = bench->row(&row, bench->user);
    }
    st_bench_free_all(bench);
    return rc;
}

int st_bench_prefill_cases(struct st_bench *bench) {
    static const struct prefill_shape shapes[] = {
        {512, 64, 4096, 640, 640, 649.3},     {512, 64, 4096, 640, 160, 348.4},
        {512, 64, 1024, 640, 640, 179.4},     {512, 64, 1024, 640, 160, 100.8},
        {512, 128, 4096, 1152, 1152, 2230.2}, {576, 128, 4096, 2048, 2048, 4121.0},
        {512, 64, 4096, 8320, 8320, 7674.1},  {512, 64, 4096, 8320, 2080, 2072.5},
        {512, 64, 4096, 384, 384, 473.1},     {512, 64, 128, 640, 640, 25.6},
        {512, 64, 128, 640, 160, 14.5},
    };
    for (size_t i = 0; i < sizeof(shapes) / sizeof(shapes[0]); i++)
        ST_TRY(bench_shape(bench, &shapes[i]));
    return ST_OK;
}
