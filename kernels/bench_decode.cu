/* SPDX-License-Identifier: Apache-2.0 */
/*
 * sparse_mla_decode, on the shapes that upstream's kernels were measured on.
 *
 * Anchors: FlashMLA as vLLM 0.26.0 ships it, on one NVIDIA H200, measured 2026-11-30, time per call
 * in a CUDA graph of 20 calls, with the plan made beforehand and with its planner in each call.
 * Every list entry is an entry of its own, in a random order; lists are full.  The planner alone:
 * the difference of the two, 27 us at one token and 41 us at 128.
 */
#include "kernels/bench_i.cuh"

#include <algorithm>
#include <stdio.h>
#include <string.h>
#include <vector>

enum { CALLS = 20, MAX_SETS = 4 };

struct decode_shape {
    int tokens, heads, format;
    int swa, topk, page_size; /* of the second scope */
    double anchor_us, with_planner_us;
};

struct decode_case {
    struct steptape_sparse_mla_decode_args args[MAX_SETS];
    int sets;
};

/* Entries whose values are about 1: e4m3 and bf16 under 2, scale bytes 120 to 127. */
static __global__ void fill_pages(uint8_t *out, int64_t n, int64_t page_bytes, int page_size,
                                  int format, uint64_t seed) {
    for (int64_t i = blockIdx.x * (int64_t)blockDim.x + threadIdx.x; i < n;
         i += (int64_t)gridDim.x * blockDim.x) {
        uint64_t z = (seed + (uint64_t)i + 1) * 0x9e3779b97f4a7c15ull;
        z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
        const unsigned int bits = (unsigned int)(z >> 33);
        const int64_t at = i % page_bytes;
        uint8_t byte = (uint8_t)(bits & 0xbf);
        if (format == STEPTAPE_KV_FP8_DS_MLA && at >= page_size * 576)
            byte = (uint8_t)(120 + (bits & 7));
        if (format == STEPTAPE_KV_FP8_V32 && at % 656 >= 512 && at % 656 < 528)
            byte = at % 4 == 3 ? 0x3e : (uint8_t)(bits & 0x7f);
        out[i] = byte;
    }
}

static int make_scope(struct st_bench *bench, int64_t tokens, int topk, int page_size, int format,
                      uint64_t seed, struct steptape_decode_scope *scope) {
    memset(scope, 0, sizeof(*scope));
    if (topk == 0)
        return ST_OK;
    const int64_t entries = tokens * topk;
    const int64_t entry = format == STEPTAPE_KV_FP8_V32 ? 656 : 584;
    const int64_t page_bytes = (page_size * entry + 575) / 576 * 576;
    const int64_t pages = (entries + page_size - 1) / page_size;
    std::vector<int32_t> indices((size_t)entries), lengths((size_t)tokens, topk);
    for (int64_t i = 0; i < entries; i++)
        indices[(size_t)i] = (int32_t)i;
    for (int64_t i = entries - 1; i > 0; i--) {
        seed = seed * 6364136223846793005ull + 1442695040888963407ull;
        std::swap(indices[(size_t)i], indices[(size_t)((seed >> 33) % (uint64_t)(i + 1))]);
    }
    void *cache, *d_indices, *d_lengths;
    ST_TRY(st_bench_alloc(bench, &cache, (size_t)(pages * page_bytes)));
    ST_TRY(st_bench_alloc_copy(bench, &d_indices, indices.data(), 4 * indices.size()));
    ST_TRY(st_bench_alloc_copy(bench, &d_lengths, lengths.data(), 4 * lengths.size()));
    fill_pages<<<1024, 256, 0, bench->stream>>>((uint8_t *)cache, pages * page_bytes, page_bytes,
                                                page_size, format, seed);
    ST_BENCH_CUDA(bench->err, cudaGetLastError());
    scope->cache = (const uint8_t *)cache;
    scope->indices = (const int32_t *)d_indices;
    scope->length = (const int32_t *)d_lengths;
    scope->page_stride_bytes = page_bytes;
    scope->indices_stride = topk;
    scope->page_size = page_size;
    scope->topk = topk;
    return ST_OK;
}

static __global__ void fill_queries(uint16_t *out, int64_t n, uint64_t seed) {
    for (int64_t i = blockIdx.x * (int64_t)blockDim.x + threadIdx.x; i < n;
         i += (int64_t)gridDim.x * blockDim.x) {
        const uint64_t z = (seed + (uint64_t)i + 1) * 0x9e3779b97f4a7c15ull;
        out[i] = (uint16_t)(z >> 48 & 0xbfff);
    }
}

static int make_decode(struct st_bench *bench, const struct decode_shape *s, int set,
                       struct steptape_sparse_mla_decode_args *args) {
    const uint64_t seed = (uint64_t)(set + 1) << 32;
    memset(args, 0, sizeof(*args));
    args->tokens = s->tokens;
    args->heads = s->heads;
    args->format = s->format;
    args->d_qk = s->format == STEPTAPE_KV_FP8_V32 ? 576 : 512;
    args->q_head_stride = args->d_qk;
    args->q_stride = (int64_t)args->heads * args->d_qk;
    args->sm_scale = 0.044f;
    const int64_t rows = (int64_t)s->tokens * s->heads;
    std::vector<float> sink((size_t)s->heads, 0.5f);
    void *q, *out, *lse, *d_sink, *plan, *scratch;
    ST_TRY(make_scope(bench, s->tokens, s->swa, 64, s->format, seed, &args->scope[0]));
    ST_TRY(
        make_scope(bench, s->tokens, s->topk, s->page_size, s->format, seed + 1, &args->scope[1]));
    ST_TRY(st_bench_alloc(bench, &q, (size_t)(2 * rows * args->d_qk)));
    ST_TRY(st_bench_alloc(bench, &out, (size_t)(1024 * rows)));
    ST_TRY(st_bench_alloc(bench, &lse, (size_t)(4 * rows)));
    ST_TRY(st_bench_alloc_copy(bench, &d_sink, sink.data(), 4 * sink.size()));
    ST_TRY(st_bench_alloc(bench, &plan, steptape_sparse_mla_decode_plan_bytes(args)));
    ST_TRY(st_bench_alloc(bench, &scratch, steptape_sparse_mla_decode_scratch_bytes(args)));
    fill_queries<<<1024, 256, 0, bench->stream>>>((uint16_t *)q, rows * args->d_qk, seed);
    ST_BENCH_CUDA(bench->err, cudaGetLastError());
    args->q = (const uint16_t *)q;
    args->out = (uint16_t *)out;
    args->lse = (float *)lse;
    args->attn_sink = (const float *)d_sink;
    args->plan = plan;
    args->scratch = scratch;
    return ST_OK;
}

static int decode_call(int i, void *stream, void *user) {
    const struct decode_case *c = (const struct decode_case *)user;
    return steptape_sparse_mla_decode(&c->args[i % c->sets], stream);
}

/* One variant: as planned beforehand (its plan is made here), and with the plan in each call. */
static int bench_decode_variant(struct st_bench *bench, const struct decode_shape *s,
                                struct decode_case *c, int sets, unsigned int variant,
                                const char *name, uint64_t bytes) {
    for (int pass = 0; pass < 3; pass++) {
        struct st_bench_row row = {};
        char label[96];
        const int with_plan = pass == 1;
        if (pass == 2 && sets == 1)
            break;
        for (int set = 0; set < sets; set++) {
            struct steptape_sparse_mla_decode_args *a = &c->args[set];
            a->variant = variant;
            a->phases = STEPTAPE_DECODE_PLAN;
            const int rc = steptape_sparse_mla_decode(a, bench->stream);
            if (rc != 0)
                return rc == STEPTAPE_ERR_UNSUPPORTED
                           ? ST_OK
                           : ST_FAIL(bench->err, ST_ERR_NATIVE, "the plan: %d", rc);
            a->phases = with_plan ? 0 : STEPTAPE_DECODE_SPLIT | STEPTAPE_DECODE_COMBINE;
        }
        snprintf(label, sizeof(label), "%s%s", name, with_plan ? ", with plan" : "");
        c->sets = row.sets = pass == 2 ? sets : 1;
        row.group = "sparse_mla_decode";
        row.name = label;
        row.variant = (int)variant;
        row.launch_count = with_plan ? 3 : 2;
        row.bytes = bytes;
        row.anchor_us = with_plan ? s->with_planner_us : s->anchor_us;
        ST_TRY(st_bench_graph(bench, CALLS, decode_call, c, &row));
        ST_TRY(bench->row(&row, bench->user));
    }
    return ST_OK;
}

static int bench_decode_case(struct st_bench *bench, const struct decode_shape *s) {
    char name[64];
    snprintf(name, sizeof(name), "h=%d b=%d %d + %d page=%d%s", s->heads, s->tokens, s->swa,
             s->topk, s->page_size, s->format == STEPTAPE_KV_FP8_V32 ? " 656" : "");
    if (!st_bench_wanted(bench, "sparse_mla_decode", name))
        return ST_OK;
    struct decode_case *c = new struct decode_case();
    const int64_t entries = (int64_t)s->tokens * (s->swa + s->topk);
    const struct steptape_token_counts counts = {0, 0, 0, entries};
    struct steptape_cost cost = {};
    int rc = make_decode(bench, s, 0, &c->args[0]);
    steptape_sparse_mla_decode_cost(&c->args[0], &counts, &cost);
    const uint64_t bytes = cost.read_bytes + cost.written_bytes;
    const uint64_t want = 4 * bench->device.l2_bytes;
    int sets = bytes > 0 ? (int)std::min<uint64_t>(MAX_SETS, (want + bytes - 1) / bytes) : 1;
    for (int set = 1; set < sets && rc == ST_OK; set++)
        rc = make_decode(bench, s, set, &c->args[set]);
    const unsigned int last = bench->options.all_variants
                                  ? (unsigned int)st_kernel_find("sparse_mla_decode")->variant_count
                                  : 0;
    /* variant 1 is there to be right: its rows would take minutes */
    for (unsigned int v = last > 0 ? 2 : 0; v <= last && rc == ST_OK; v++)
        rc = bench_decode_variant(bench, s, c, sets, v, name, bytes);
    st_bench_free_all(bench);
    delete c;
    return rc;
}

/* The planner alone, both variants. */
static int bench_plan_case(struct st_bench *bench, int tokens, double anchor_us) {
    char name[64];
    snprintf(name, sizeof(name), "plan alone, b=%d 128 + 512", tokens);
    if (!st_bench_wanted(bench, "sparse_mla_decode", name))
        return ST_OK;
    struct decode_case *c = new struct decode_case();
    struct steptape_sparse_mla_decode_args *a = &c->args[0];
    std::vector<int32_t> lengths[2];
    void *plan = NULL, *d_lengths[2] = {};
    int rc = ST_OK;
    a->tokens = tokens;
    a->heads = 64;
    a->d_qk = 512;
    a->q_head_stride = 512;
    a->q_stride = 64 * 512;
    a->phases = STEPTAPE_DECODE_PLAN;
    for (int s = 0; s < 2 && rc == ST_OK; s++) {
        lengths[s].assign((size_t)tokens, s == 0 ? 128 : 512);
        rc = st_bench_alloc_copy(bench, &d_lengths[s], lengths[s].data(), 4 * lengths[s].size());
        a->scope[s].topk = s == 0 ? 128 : 512;
        a->scope[s].indices_stride = a->scope[s].topk;
        a->scope[s].length = (const int32_t *)d_lengths[s];
        a->scope[s].page_size = 64;
        a->scope[s].page_stride_bytes = 37440;
    }
    if (rc == ST_OK)
        rc = st_bench_alloc(bench, &plan, steptape_sparse_mla_decode_plan_bytes(a));
    a->plan = plan;
    c->sets = 1;
    for (unsigned int v = 0; v <= 1 && rc == ST_OK; v++) {
        struct st_bench_row row = {};
        char label[96];
        snprintf(label, sizeof(label), "%s%s", name, v == 1 ? ", serial" : "");
        a->plan_variant = v;
        row.group = "sparse_mla_decode";
        row.name = label;
        row.sets = row.launch_count = 1;
        row.anchor_us = anchor_us;
        rc = st_bench_graph(bench, CALLS, decode_call, c, &row);
        if (rc == ST_OK)
            rc = bench->row(&row, bench->user);
    }
    st_bench_free_all(bench);
    delete c;
    return rc;
}

int st_bench_decode_cases(struct st_bench *bench) {
    static const struct decode_shape shapes[] = {
        {1, 64, STEPTAPE_KV_FP8_DS_MLA, 128, 512, 64, 14.77, 41.76},
        {16, 64, STEPTAPE_KV_FP8_DS_MLA, 128, 512, 64, 19.04, 48.54},
        {64, 64, STEPTAPE_KV_FP8_DS_MLA, 128, 512, 64, 44.77, 76.76},
        {128, 64, STEPTAPE_KV_FP8_DS_MLA, 128, 512, 64, 45.17, 86.16},
        {128, 128, STEPTAPE_KV_FP8_DS_MLA, 128, 1024, 64, 122.25, 147.46},
        {64, 64, STEPTAPE_KV_FP8_DS_MLA, 128, 256, 2, 26.04, 57.69},
        {64, 64, STEPTAPE_KV_FP8_DS_MLA, 128, 8192, 2, 235.14, 268.77},
        {256, 64, STEPTAPE_KV_FP8_DS_MLA, 128, 512, 64, 0.0, 0.0},
        {1, 64, STEPTAPE_KV_FP8_DS_MLA, 128, 8192, 2, 0.0, 0.0},
        {64, 64, STEPTAPE_KV_FP8_DS_MLA, 128, 0, 64, 0.0, 0.0},
        {64, 128, STEPTAPE_KV_FP8_V32, 0, 2048, 64, 0.0, 0.0},
        {1, 128, STEPTAPE_KV_FP8_V32, 0, 2048, 64, 0.0, 0.0},
    };
    ST_TRY(bench_plan_case(bench, 1, 26.99));
    ST_TRY(bench_plan_case(bench, 16, 29.50));
    ST_TRY(bench_plan_case(bench, 128, 40.99));
    ST_TRY(bench_plan_case(bench, 256, 0.0));
    ST_TRY(bench_plan_case(bench, 512, 0.0));
    for (size_t i = 0; i < sizeof(shapes) / sizeof(shapes[0]); i++)
        ST_TRY(bench_decode_case(bench, &shapes[i]));
    return ST_OK;
}
