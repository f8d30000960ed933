/* SPDX-License-Identifier: Apache-2.0 */
/*
 * topk_per_row, on the shapes that upstream's kernels were measured on.
 *
 * Anchors: vLLM 9fc29eca0 on one NVIDIA H200, measured 2026-11-29, time per call in a CUDA graph of
 * 20 calls: the best of its three kernels (top_k_per_row_decode, top_k_per_row_prefill,
 * filtered_topk) on each shape.  What the library chain stands for, torch.topk and the small
 * kernels around it, is a call of several launches: measure it where torch is, with
 *     v, i = torch.topk(logits, k); i = i.to(torch.int32); i[v == -inf] = -1; out.copy_(i)
 */
#include "kernels/bench_i.cuh"

#include <math.h>
#include <stdio.h>
#include <string.h>
#include <vector>

enum { CALLS = 20 };

enum topk_values { TOPK_NORMAL, TOPK_EQUAL, TOPK_RISING };

/* Rows of normal numbers (two uniform ones, turned), of one number, or that rise. */
static __global__ void fill_logits(float *out, int64_t n, int columns, int values) {
    for (int64_t i = blockIdx.x * (int64_t)blockDim.x + threadIdx.x; i < n;
         i += (int64_t)gridDim.x * blockDim.x) {
        uint64_t z = ((uint64_t)i + 1) * 0x9e3779b97f4a7c15ull;
        z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
        z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
        z ^= z >> 31;
        const float u = ((float)(z >> 40) + 1.0f) / 16777216.0f, v = (float)(z & 0xffffff);
        const float normal = sqrtf(-2.0f * logf(u)) * cospif(v / 8388608.0f);
        out[i] = values == TOPK_NORMAL  ? normal
                 : values == TOPK_EQUAL ? 1.0f
                                        : (float)(i % columns) / (float)columns;
    }
}

static int topk_call(int i, void *stream, void *user) {
    (void)i;
    return steptape_topk_per_row((struct steptape_topk_per_row_args *)user, stream);
}

struct topk_case {
    int rows, columns, k;
    enum topk_values values;
    double anchor_us;
};

static int make_topk(struct st_bench *bench, const struct topk_case *c,
                     struct steptape_topk_per_row_args *args) {
    const int64_t n = (int64_t)c->rows * c->columns;
    const std::vector<int32_t> starts((size_t)c->rows, 0), ends((size_t)c->rows, c->columns);
    void *logits, *out, *d_starts, *d_ends;
    ST_TRY(st_bench_alloc(bench, &logits, 4 * (size_t)n));
    ST_TRY(st_bench_alloc(bench, &out, 4 * (size_t)c->rows * (size_t)c->k));
    ST_TRY(st_bench_alloc_copy(bench, &d_starts, starts.data(), 4 * starts.size()));
    ST_TRY(st_bench_alloc_copy(bench, &d_ends, ends.data(), 4 * ends.size()));
    fill_logits<<<1024, 256, 0, bench->stream>>>((float *)logits, n, c->columns, c->values);
    ST_BENCH_CUDA(bench->err, cudaGetLastError());
    memset(args, 0, sizeof(*args));
    args->logits = (const float *)logits;
    args->out = (int32_t *)out;
    args->row_starts = (const int32_t *)d_starts;
    args->row_ends = (const int32_t *)d_ends;
    args->logits_stride = c->columns;
    args->out_stride = c->k;
    args->num_rows = c->rows;
    args->num_columns = c->columns;
    args->k = c->k;
    return ST_OK;
}

static int bench_topk_case(struct st_bench *bench, const struct topk_case *c) {
    static const char *const names[] = {"", " equal", " rising"};
    char name[64];
    snprintf(name, sizeof(name), "rows=%d columns=%d k=%d%s", c->rows, c->columns, c->k,
             names[c->values]);
    if (!st_bench_wanted(bench, "topk_per_row", name))
        return ST_OK;
    struct steptape_topk_per_row_args args;
    int rc = make_topk(bench, c, &args);
    const unsigned int last = bench->options.all_variants
                                  ? (unsigned int)st_kernel_find("topk_per_row")->variant_count
                                  : 0;
    const struct steptape_token_counts counts = {c->rows, 0, 0, (int64_t)c->rows * c->columns};
    for (unsigned int v = last > 0 ? 1 : 0; v <= last && rc == ST_OK; v++) {
        struct st_bench_row row = {};
        struct steptape_cost cost;
        args.variant = v;
        const int status = steptape_topk_per_row_cost(&args, &counts, &cost);
        if (status == STEPTAPE_ERR_UNSUPPORTED)
            continue;
        if (status != STEPTAPE_OK)
            rc = ST_FAIL(bench->err, ST_ERR_NATIVE, "topk_per_row %s: %s", name,
                         steptape_status_name(status));
        if (rc == ST_OK && cost.scratch_bytes > 0 && args.scratch == NULL)
            rc = st_bench_alloc(bench, &args.scratch, (size_t)cost.scratch_bytes);
        args.scratch_bytes = cost.scratch_bytes;
        row.group = "topk_per_row";
        row.name = name;
        row.variant = (int)v;
        row.sets = 1;
        row.launch_count = (int)cost.launch_count;
        row.bytes = cost.read_bytes + cost.written_bytes;
        row.anchor_us = c->anchor_us;
        if (rc == ST_OK)
            rc = st_bench_graph(bench, CALLS, topk_call, &args, &row);
        if (rc == ST_OK)
            rc = bench->row(&row, bench->user);
    }
    st_bench_free_all(bench);
    return rc;
}

int st_bench_topk_cases(struct st_bench *bench) {
    static const struct topk_case cases[] = {
        {1, 4096, 2048, TOPK_NORMAL, 3.31},      {64, 4096, 2048, TOPK_NORMAL, 3.67},
        {64, 8192, 2048, TOPK_NORMAL, 5.19},     {64, 32768, 2048, TOPK_NORMAL, 14.94},
        {64, 131072, 2048, TOPK_NORMAL, 47.44},  {256, 32768, 2048, TOPK_NORMAL, 26.71},
        {4096, 8192, 2048, TOPK_NORMAL, 114.44}, {4096, 32768, 2048, TOPK_NORMAL, 360.26},
        {64, 8192, 512, TOPK_NORMAL, 4.91},      {64, 32768, 1024, TOPK_NORMAL, 11.59},
        {1, 262144, 2048, TOPK_NORMAL, 0.0},     {1, 1048576, 2048, TOPK_NORMAL, 0.0},
        {64, 32768, 2048, TOPK_EQUAL, 0.0},      {64, 32768, 2048, TOPK_RISING, 0.0},
        {64, 131072, 2048, TOPK_EQUAL, 0.0},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++)
        ST_TRY(bench_topk_case(bench, &cases[i]));
    return ST_OK;
}
