/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Benchmarks of dequantize_and_gather: R requests of n entries each, in shuffled pages.
 *
 * Anchors: vLLM 0.26.0's CuTe DSL kernel on one NVIDIA H200, 2026-11-30, fp8_ds_mla.
 */
#include "kernels/bench_i.cuh"

#include <stdio.h>
#include <string.h>
#include <vector>

enum { PAGE_ENTRIES = 64 };

struct gather_case {
    struct steptape_dequantize_and_gather_args args[ST_BENCH_MAX_SETS];
    int sets;
};

static int gather_call(int i, void *stream, void *user) {
    const struct gather_case *c = (const struct gather_case *)user;
    return steptape_dequantize_and_gather(&c->args[i % c->sets], stream);
}

static int make_gather(struct st_bench *bench, int reqs, int n, int format, int set,
                       struct steptape_dequantize_and_gather_args *args) {
    const int v32 = format == STEPTAPE_KV_FP8_V32;
    const int64_t page_bytes = v32 ? PAGE_ENTRIES * STEPTAPE_KV_V32_ENTRY_BYTES : 37440;
    const int64_t width = n / PAGE_ENTRIES, pages = reqs * width;
    const int64_t row = v32 ? 576 : 512;
    std::vector<int32_t> table((size_t)pages), lens((size_t)reqs, n);
    for (int64_t i = 0; i < pages; i++)
        table[(size_t)i] = (int32_t)((i * 104729 + set) % pages);
    void *d_table, *d_lens, *out;
    float *cache;
    ST_TRY(st_bench_alloc_copy(bench, &d_table, table.data(), 4 * table.size()));
    ST_TRY(st_bench_alloc_copy(bench, &d_lens, lens.data(), 4 * lens.size()));
    ST_TRY(st_bench_alloc_random(bench, &cache, pages * page_bytes / 4, (uint64_t)set << 40, 1.0f));
    ST_TRY(st_bench_alloc(bench, &out, (size_t)(2 * reqs * n * row)));
    memset(args, 0, sizeof(*args));
    args->out = (uint16_t *)out;
    args->cache = (const uint8_t *)cache;
    args->seq_lens = (const int32_t *)d_lens;
    args->block_table = (const int32_t *)d_table;
    args->out_req_stride = n * row;
    args->out_row_stride = row;
    args->cache_page_stride_bytes = page_bytes;
    args->block_table_stride = width;
    args->max_gather = n;
    args->num_reqs = reqs;
    args->ratio = 1;
    args->block_size = PAGE_ENTRIES;
    args->format = format;
    return ST_OK;
}

static int bench_gather_case(struct st_bench *bench, int reqs, int n, int format,
                             double anchor_us) {
    char name[64];
    snprintf(name, sizeof(name), "%s R=%d n=%d",
             format == STEPTAPE_KV_FP8_V32 ? "fp8_v32" : "fp8_ds_mla", reqs, n);
    if (!st_bench_wanted(bench, "dequantize_and_gather", name))
        return ST_OK;
    struct gather_case *c = new struct gather_case();
    struct st_bench_row row = {};
    struct steptape_token_counts counts = {0, 0, 0, (int64_t)reqs * n};
    struct steptape_cost cost;
    int rc = make_gather(bench, reqs, n, format, 0, &c->args[0]);
    steptape_dequantize_and_gather_cost(&c->args[0], &counts, &cost);
    row.group = "dequantize_and_gather";
    row.name = name;
    row.bytes = cost.read_bytes + cost.written_bytes;
    row.launch_count = 1;
    row.anchor_us = anchor_us;
    int most = st_bench_sets(bench, row.bytes);
    for (int set = 1; set < most && rc == ST_OK; set++)
        rc = make_gather(bench, reqs, n, format, set, &c->args[set]);
    int all = bench->options.all_variants;
    unsigned int last =
        all ? (unsigned int)st_kernel_find("dequantize_and_gather")->variant_count : 0;
    for (unsigned int v = all ? 1 : 0; v <= last && rc == ST_OK; v++) {
        for (int set = 0; set < most; set++)
            c->args[set].variant = v;
        for (int pass = 0; pass < 2 && rc == ST_OK; pass++) {
            c->sets = row.sets = pass == 0 ? 1 : most;
            row.variant = (int)v;
            rc = st_bench_graph(bench, ST_BENCH_CALLS, gather_call, c, &row);
            if (rc == ST_OK)
                rc = st_bench_emit(bench, &row);
        }
    }
    st_bench_free_all(bench);
    delete c;
    return rc;
}

int st_bench_gather_cases(struct st_bench *bench) {
    ST_TRY(bench_gather_case(bench, 1, 2048, STEPTAPE_KV_FP8_DS_MLA, 2.61));
    ST_TRY(bench_gather_case(bench, 4, 2048, STEPTAPE_KV_FP8_DS_MLA, 4.51));
    ST_TRY(bench_gather_case(bench, 4, 8192, STEPTAPE_KV_FP8_DS_MLA, 14.65));
    ST_TRY(bench_gather_case(bench, 1, 65536, STEPTAPE_KV_FP8_DS_MLA, 29.98));
    ST_TRY(bench_gather_case(bench, 4, 2048, STEPTAPE_KV_FP8_V32, 0.0));
    return bench_gather_case(bench, 1, 65536, STEPTAPE_KV_FP8_V32, 0.0);
}
