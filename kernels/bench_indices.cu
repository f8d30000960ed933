/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The operators that make index lists, on the shapes that upstream's kernels were measured on.
 *
 * Anchors: vLLM 9fc29eca0 (Triton) on one NVIDIA H200, measured 2026-11-29, time per call in a CUDA
 * graph.  Upstream's contexts of decode rows are not known; here every decode list fills its row,
 * which is the most that a row can ask for.  What is written is compared with what a memset of 1
 * GiB writes in the same run.
 */
#include "kernels/bench_i.cuh"

#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <vector>

enum { CALLS = 20, ARGS_MAX = 512, WINDOW = 128 };

/* One or two calls: `first` may be NULL. */
struct index_case {
    const struct st_kernel *first, *second;
    alignas(16) unsigned char first_args[ARGS_MAX];
    alignas(16) unsigned char args[ARGS_MAX];
};

static int index_call(int i, void *stream, void *user) {
    const struct index_case *c = (const struct index_case *)user;
    (void)i;
    int rc = c->first != NULL ? c->first->launch(c->first_args, stream) : 0;
    return rc != 0 ? rc : c->second->launch(c->args, stream);
}

static int memset_call(int i, void *stream, void *user) {
    (void)i;
    return cudaMemsetAsync(user, 1, 1u << 30, (cudaStream_t)stream) == cudaSuccess
               ? 0
               : STEPTAPE_ERR_CUDA;
}

/* Measures what a memset of 1 GiB writes, once a run. */
static int write_ceiling(struct st_bench *bench) {
    struct st_bench_row row = {};
    void *memory;
    if (bench->write_bytes_per_us == 0.0) {
        ST_BENCH_CUDA(bench->err, cudaMalloc(&memory, 1u << 30)); /* not of a case's buffers */
        row.group = "ceiling";
        row.name = "write 1 GiB";
        const int rc = st_bench_graph(bench, 4, memset_call, memory, &row);
        cudaFree(memory);
        ST_TRY(rc);
        bench->write_bytes_per_us = (double)(1u << 30) / row.median_us;
    }
    return ST_OK;
}

/* Rows of one case: the default, or every variant.  variant_at: where args hold it. */
static int bench_index_case(struct st_bench *bench, struct index_case *c, size_t variant_at,
                            const struct steptape_token_counts *counts, const char *group,
                            const char *name, double anchor_us) {
    ST_TRY(write_ceiling(bench));
    const unsigned int last =
        bench->options.all_variants ? (unsigned int)c->second->variant_count : 0;
    for (unsigned int v = last > 0 ? 1 : 0; v <= last; v++) {
        struct st_bench_row row = {};
        struct steptape_cost cost, more = {};
        memcpy(c->args + variant_at, &v, sizeof(v));
        if (c->second->cost(c->args, counts, &cost) != 0 ||
            (c->first != NULL && c->first->cost(c->first_args, counts, &more) != 0))
            return ST_FAIL(bench->err, ST_ERR_NATIVE, "%s %s: no cost", group, name);
        if (v > 0 && index_call(0, bench->stream, c) == STEPTAPE_ERR_UNSUPPORTED)
            continue; /* this variant does not serve the shape */
        row.group = group;
        row.name = name;
        row.variant = (int)v;
        row.sets = 1;
        row.launch_count = (int)(cost.launch_count + more.launch_count);
        row.bytes = cost.read_bytes + cost.written_bytes + more.written_bytes;
        row.write_ceiling_us =
            (double)(cost.written_bytes + more.written_bytes) / bench->write_bytes_per_us;
        row.anchor_us = anchor_us;
        ST_TRY(st_bench_graph(bench, CALLS, index_call, c, &row));
        ST_TRY(bench->row(&row, bench->user));
    }
    return ST_OK;
}

#define INDEX_CASE(op, c, a)                                                                       \
    do {                                                                                           \
        memset((c), 0, sizeof(*(c)));                                                              \
        (c)->second = st_kernel_find(#op);                                                         \
        static_assert(sizeof(a) <= ARGS_MAX, "args are larger than a case holds");                 \
        memcpy((c)->args, &(a), sizeof(a));                                                        \
    } while (0)

template <typename T>
static int alloc_all(struct st_bench *bench, const std::vector<T> &from, const T **out) {
    void *memory;
    ST_TRY(st_bench_alloc_copy(bench, &memory, from.data(), sizeof(T) * from.size()));
    *out = (const T *)memory;
    return ST_OK;
}

template <typename T> static int alloc_some(struct st_bench *bench, int64_t n, T **out) {
    void *memory;
    ST_TRY(st_bench_alloc(bench, &memory, sizeof(T) * (size_t)n));
    *out = (T *)memory;
    return ST_OK;
}

static std::vector<int32_t> some_blocks(int64_t n) {
    std::vector<int32_t> blocks((size_t)n);
    for (size_t i = 0; i < blocks.size(); i++)
        blocks[i] = (int32_t)(i * 40503 % 65536);
    return blocks;
}

/* ---- fill */

static int bench_fill(struct st_bench *bench, int64_t rows, int64_t columns, int64_t stride) {
    char name[64];
    snprintf(name, sizeof(name), "rows=%lld columns=%lld stride=%lld", (long long)rows,
             (long long)columns, (long long)stride);
    if (!st_bench_wanted(bench, "fill", name))
        return ST_OK;
    struct index_case c;
    const struct steptape_token_counts counts = {};
    struct steptape_fill_args a = {};
    ST_TRY(alloc_some(bench, rows * stride, &a.out));
    a.rows = rows;
    a.columns = columns;
    a.stride = stride;
    a.value = 0xffffffffu;
    INDEX_CASE(fill, &c, a);
    int rc = bench_index_case(bench, &c, offsetof(struct steptape_fill_args, variant), &counts,
                              "fill", name, 0.0);
    st_bench_free_all(bench);
    return rc;
}

/* ---- c128a_topk_metadata */

static int bench_c128a(struct st_bench *bench, int64_t tokens, int64_t decodes, int32_t width,
                       int64_t stride, double anchor_us) {
    char name[64];
    snprintf(name, sizeof(name), "T=%lld decode=%lld width=%d stride=%lld", (long long)tokens,
             (long long)decodes, width, (long long)stride);
    if (!st_bench_wanted(bench, "c128a_topk_metadata", name))
        return ST_OK;
    struct index_case c;
    std::vector<int64_t> positions((size_t)tokens), slots((size_t)tokens);
    std::vector<int32_t> reqs((size_t)tokens);
    for (int64_t t = 0; t < tokens; t++) {
        const int64_t last = (int64_t)width * 128 - 1;
        positions[(size_t)t] = t < decodes ? last : last - tokens + t;
        slots[(size_t)t] = t;
        reqs[(size_t)t] = (int32_t)(t < decodes ? t : decodes);
    }
    struct steptape_c128a_topk_metadata_args a = {};
    a.block_table_stride = width / 2;
    ST_TRY(alloc_all(bench, some_blocks((decodes + 1) * a.block_table_stride), &a.block_table));
    ST_TRY(alloc_all(bench, positions, &a.positions));
    ST_TRY(alloc_all(bench, slots, &a.slot_mapping));
    ST_TRY(alloc_all(bench, reqs, &a.token_to_req));
    ST_TRY(alloc_some(bench, (decodes + 1) * stride, &a.decode));
    ST_TRY(alloc_some(bench, decodes + 1, &a.decode_lens));
    ST_TRY(alloc_some(bench, (tokens - decodes + 1) * stride, &a.prefill));
    a.decode_stride = a.prefill_stride = stride;
    a.num_tokens = tokens;
    a.num_decode_tokens = decodes;
    a.width = width;
    a.ratio = 128;
    a.block_size = 2;
    INDEX_CASE(c128a_topk_metadata, &c, a);
    const struct steptape_token_counts counts = {tokens, 0, 0, decodes * width};
    int rc =
        bench_index_case(bench, &c, offsetof(struct steptape_c128a_topk_metadata_args, variant),
                         &counts, "c128a_topk_metadata", name, anchor_us);
    st_bench_free_all(bench);
    return rc;
}

/* ---- combine_topk_swa_indices */

struct combine_shape {
    int32_t tokens, reqs, topk, ratio, context;
    double keep_us, fill_us; /* upstream: reuse of a buffer, torch.full first */
};

static int make_combine(struct st_bench *bench, const struct combine_shape *shape,
                        struct steptape_combine_topk_swa_indices_args *a, int64_t *entries) {
    std::vector<int32_t> starts, seq_lens, gather_lens;
    const int32_t query = shape->tokens / shape->reqs, prefix = shape->context - query;
    for (int32_t r = 0; r <= shape->reqs; r++)
        starts.push_back(r * query);
    seq_lens.assign((size_t)shape->reqs, shape->context);
    gather_lens.assign((size_t)shape->reqs, query + (prefix < WINDOW - 1 ? prefix : WINDOW - 1));
    memset(a, 0, sizeof(*a));
    a->topk = shape->topk;
    a->ratio = shape->ratio;
    a->window = WINDOW;
    a->width = (shape->topk + WINDOW + 127) / 128 * 128;
    a->indices_stride = a->width;
    a->topk_stride = shape->topk;
    a->num_tokens = shape->tokens;
    a->num_reqs = shape->reqs;
    a->n = shape->context / shape->ratio;
    a->m = a->n + gather_lens[0];
    int32_t *topk;
    ST_TRY(alloc_all(bench, starts, &a->query_start_loc));
    ST_TRY(alloc_all(bench, seq_lens, &a->seq_lens));
    ST_TRY(alloc_all(bench, gather_lens, &a->gather_lens));
    ST_TRY(alloc_some(bench, (int64_t)shape->tokens * a->width, &a->indices));
    ST_TRY(alloc_some(bench, shape->tokens, &a->lens));
    ST_TRY(alloc_some(bench, (int64_t)shape->tokens * shape->topk, &topk));
    ST_BENCH_CUDA(bench->err, cudaMemset(topk, 0, 4 * (size_t)shape->tokens * (size_t)shape->topk));
    a->topk_indices = topk;
    *entries = 0;
    for (int32_t i = 0; i < query; i++) {
        const int32_t p = prefix + i, k = (p + 1) / shape->ratio;
        *entries +=
            shape->reqs * ((k < shape->topk ? k : shape->topk) + (p + 1 < WINDOW ? p + 1 : WINDOW));
    }
    return ST_OK;
}

/* Each tail, and the tail kept after a fill of the whole buffer. */
static int bench_combine(struct st_bench *bench, const struct combine_shape *shape) {
    static const char *const names[] = {"keep", "tail 128", "tail width", "fill, keep"};
    char shape_name[64], name[96];
    snprintf(shape_name, sizeof(shape_name), "T=%d R=%d K=%d ratio=%d", shape->tokens, shape->reqs,
             shape->topk, shape->ratio);
    if (!st_bench_wanted(bench, "combine_topk_swa_indices", shape_name))
        return ST_OK;
    struct index_case c;
    struct steptape_combine_topk_swa_indices_args a;
    struct steptape_fill_args fill = {};
    int64_t entries;
    int rc = make_combine(bench, shape, &a, &entries);
    const struct steptape_token_counts counts = {shape->tokens, 0, 0, entries};
    fill.out = (uint32_t *)a.indices;
    fill.rows = shape->tokens;
    fill.columns = fill.stride = a.width;
    fill.value = 0xffffffffu;
    for (int kind = 0; kind < 4 && rc == ST_OK; kind++) {
        a.tail = kind == 3 ? STEPTAPE_COMBINE_TAIL_KEEP : kind;
        INDEX_CASE(combine_topk_swa_indices, &c, a);
        if (kind == 3) {
            c.first = st_kernel_find("fill");
            memcpy(c.first_args, &fill, sizeof(fill));
        }
        snprintf(name, sizeof(name), "%s %s", shape_name, names[kind]);
        rc = bench_index_case(
            bench, &c, offsetof(struct steptape_combine_topk_swa_indices_args, variant), &counts,
            "combine_topk_swa_indices", name, kind < 2 ? shape->keep_us : shape->fill_us);
    }
    st_bench_free_all(bench);
    return rc;
}

/* ---- swa_indices, global_topk_indices, gather_lens */

static int bench_swa(struct st_bench *bench, int64_t tokens) {
    char name[64];
    snprintf(name, sizeof(name), "T=%lld window=128", (long long)tokens);
    if (!st_bench_wanted(bench, "swa_indices", name))
        return ST_OK;
    struct index_case c;
    std::vector<int64_t> positions, slots;
    std::vector<int32_t> reqs;
    for (int64_t t = 0; t < tokens; t++) {
        positions.push_back(4000 + 7 * t % 2000);
        slots.push_back(t);
        reqs.push_back((int32_t)(t % 64));
    }
    struct steptape_swa_indices_args a = {};
    a.block_table_stride = 128;
    ST_TRY(alloc_all(bench, some_blocks(64 * a.block_table_stride), &a.block_table));
    ST_TRY(alloc_all(bench, positions, &a.positions));
    ST_TRY(alloc_all(bench, slots, &a.slot_mapping));
    ST_TRY(alloc_all(bench, reqs, &a.token_to_req));
    ST_TRY(alloc_some(bench, tokens * WINDOW, &a.indices));
    ST_TRY(alloc_some(bench, tokens, &a.lens));
    a.indices_stride = a.window = WINDOW;
    a.num_tokens = tokens;
    a.block_size = 64;
    INDEX_CASE(swa_indices, &c, a);
    const struct steptape_token_counts counts = {tokens, 0, 0, tokens * WINDOW};
    int rc = bench_index_case(bench, &c, offsetof(struct steptape_swa_indices_args, variant),
                              &counts, "swa_indices", name, 0.0);
    st_bench_free_all(bench);
    return rc;
}

static int bench_global(struct st_bench *bench, int64_t tokens, int32_t k) {
    char name[64];
    snprintf(name, sizeof(name), "T=%lld k=%d", (long long)tokens, k);
    if (!st_bench_wanted(bench, "global_topk_indices", name))
        return ST_OK;
    struct index_case c;
    std::vector<int64_t> slots;
    std::vector<int32_t> reqs, list;
    for (int64_t t = 0; t < tokens; t++) {
        slots.push_back(t);
        reqs.push_back((int32_t)t);
        for (int32_t e = 0; e < k; e++)
            list.push_back((int32_t)((t + e * 2654435761ll) % 8192));
    }
    struct steptape_global_topk_indices_args a = {};
    a.block_table_stride = 128;
    ST_TRY(alloc_all(bench, some_blocks(tokens * a.block_table_stride), &a.block_table));
    ST_TRY(alloc_all(bench, list, &a.topk_indices));
    ST_TRY(alloc_all(bench, slots, &a.slot_mapping));
    ST_TRY(alloc_all(bench, reqs, &a.token_to_req));
    ST_TRY(alloc_some(bench, tokens * k, &a.out));
    ST_TRY(alloc_some(bench, tokens, &a.lens));
    a.out_stride = a.topk_stride = a.k = k;
    a.num_tokens = tokens;
    a.block_size = 64;
    INDEX_CASE(global_topk_indices, &c, a);
    const struct steptape_token_counts counts = {tokens, 0, 0, tokens * k};
    int rc =
        bench_index_case(bench, &c, offsetof(struct steptape_global_topk_indices_args, variant),
                         &counts, "global_topk_indices", name, 0.0);
    st_bench_free_all(bench);
    return rc;
}

static int bench_gather_lens(struct st_bench *bench, int32_t reqs) {
    char name[64];
    snprintf(name, sizeof(name), "R=%d", reqs);
    if (!st_bench_wanted(bench, "gather_lens", name))
        return ST_OK;
    struct index_case c;
    std::vector<int32_t> starts, lens((size_t)reqs, 5000);
    for (int32_t r = 0; r <= reqs; r++)
        starts.push_back(r * 100);
    struct steptape_gather_lens_args a = {};
    ST_TRY(alloc_all(bench, starts, &a.query_start_loc));
    ST_TRY(alloc_all(bench, lens, &a.seq_lens));
    ST_TRY(alloc_some(bench, reqs, &a.out));
    a.num_reqs = reqs;
    a.window = WINDOW;
    INDEX_CASE(gather_lens, &c, a);
    const struct steptape_token_counts counts = {};
    int rc = bench_index_case(bench, &c, offsetof(struct steptape_gather_lens_args, variant),
                              &counts, "gather_lens", name, 0.0);
    st_bench_free_all(bench);
    return rc;
}

/* ---- boundary_list */

/* Tokens of one prefill: each `ratio`-th closes a group. */
static int bench_boundary_list(struct st_bench *bench, int64_t tokens, int32_t ratio) {
    char name[64];
    snprintf(name, sizeof(name), "T=%lld ratio=%d", (long long)tokens, ratio);
    if (!st_bench_wanted(bench, "boundary_list", name))
        return ST_OK;
    struct index_case c;
    std::vector<int64_t> positions, slots, kv;
    for (int64_t t = 0; t < tokens; t++) {
        positions.push_back(4096 + t);
        slots.push_back(t);
        kv.push_back((t + 1) % ratio == 0 ? t / ratio : -1);
    }
    struct steptape_boundary_list_args a = {};
    ST_TRY(alloc_all(bench, positions, &a.positions));
    ST_TRY(alloc_all(bench, slots, &a.slot_mapping));
    ST_TRY(alloc_all(bench, kv, &a.kv_slot_mapping));
    ST_TRY(alloc_some(bench, tokens, &a.list));
    ST_TRY(alloc_some(bench, 1, &a.count));
    a.num_tokens = tokens;
    a.ratio = ratio;
    INDEX_CASE(boundary_list, &c, a);
    const struct steptape_token_counts counts = {tokens, tokens / ratio, tokens / ratio, 0};
    int rc = bench_index_case(bench, &c, offsetof(struct steptape_boundary_list_args, variant),
                              &counts, "boundary_list", name, 0.0);
    st_bench_free_all(bench);
    return rc;
}

int st_bench_index_cases(struct st_bench *bench) {
    static const struct {
        int64_t rows, columns, stride;
    } fills[] = {{512, 640, 640},    {8192, 384, 384},   {8192, 640, 640},
                 {8192, 1152, 1152}, {8192, 8320, 8320}, {8192, 512, 8192}};
    static const struct {
        int64_t tokens, decodes;
        int32_t width;
        int64_t stride;
        double anchor_us;
    } lists[] = {
        {64, 64, 8192, 8192, 6.15},   {64, 64, 256, 256, 2.18},      {256, 256, 8192, 8192, 7.42},
        {256, 256, 256, 256, 2.43},   {512, 0, 8192, 8192, 5.14},    {512, 0, 256, 256, 1.60},
        {2048, 0, 8192, 8192, 17.08}, {2048, 0, 256, 256, 2.44},     {8192, 0, 8192, 8192, 61.60},
        {8192, 0, 256, 256, 6.14},    {8192, 64, 8192, 8192, 61.76}, {8192, 64, 256, 256, 6.15},
        {8192, 64, 256, 8192, 0.0}};
    static const struct combine_shape combines[] = {
        {8192, 1, 8192, 128, 8192, 47.06, 111.52}, {8192, 4, 8192, 128, 32768, 30.54, 93.87},
        {8192, 4, 256, 128, 32768, 6.05, 9.94},    {8192, 4, 512, 4, 8192, 7.90, 15.65},
        {8192, 4, 1024, 4, 8192, 22.92, 31.15},    {512, 1, 512, 4, 8192, 2.37, 3.68}};
    for (size_t i = 0; i < sizeof(fills) / sizeof(fills[0]); i++)
        ST_TRY(bench_fill(bench, fills[i].rows, fills[i].columns, fills[i].stride));
    for (size_t i = 0; i < sizeof(lists) / sizeof(lists[0]); i++)
        ST_TRY(bench_c128a(bench, lists[i].tokens, lists[i].decodes, lists[i].width,
                           lists[i].stride, lists[i].anchor_us));
    for (size_t i = 0; i < sizeof(combines) / sizeof(combines[0]); i++)
        ST_TRY(bench_combine(bench, &combines[i]));
    for (int64_t tokens : {1, 64, 256, 8192})
        ST_TRY(bench_swa(bench, tokens));
    for (int64_t tokens : {1, 64, 256}) {
        ST_TRY(bench_global(bench, tokens, 512));
        ST_TRY(bench_global(bench, tokens, 1024));
    }
    for (int32_t reqs : {4, 512})
        ST_TRY(bench_gather_lens(bench, reqs));
    for (int64_t tokens : {1, 256, 2048, 8192}) {
        ST_TRY(bench_boundary_list(bench, tokens, 128));
        ST_TRY(bench_boundary_list(bench, tokens, 4));
    }
    return ST_OK;
}
