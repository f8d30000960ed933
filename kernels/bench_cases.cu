/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What `steptape bench kernels` measures: the device's ceilings, each operator on the shapes that
 * upstream's kernels were measured on, and the published case of the launch skip.
 *
 * Anchors: vLLM 9fc29eca0 (Triton) and vLLM 0.26.0 (CuTe DSL) on one NVIDIA H200, measured
 * 2026-11-29 and 30, time per call in a CUDA graph of 20 calls; the better of the two.  They say
 * something on an H200 only.
 */
#include "kernels/bench_i.cuh"

#include <algorithm>
#include <stdio.h>
#include <string.h>
#include <vector>

enum { CALLS = ST_BENCH_CALLS };

/* ---- ceilings */

static __global__ void st_bench_empty(void) {
}

/* Sums what it reads; the store never happens, but the compiler cannot know. */
static __global__ void st_bench_read(const float4 *in, int64_t n, float *out) {
    float sum = 0.0f;
    int64_t stride = (int64_t)gridDim.x * blockDim.x;
    int64_t i = blockIdx.x * (int64_t)blockDim.x + threadIdx.x;
    for (; i + 7 * stride < n; i += 8 * stride) {
        float4 v[8];
#pragma unroll
        for (int k = 0; k < 8; k++)
            v[k] = __ldcs(in + i + k * stride);
#pragma unroll
        for (int k = 0; k < 8; k++)
            sum += v[k].x + v[k].y + v[k].z + v[k].w;
    }
    if (sum == 12345.678f)
        *out = sum;
}

static __global__ void st_bench_copy(const float4 *in, int64_t n, float4 *out) {
    int64_t stride = (int64_t)gridDim.x * blockDim.x;
    int64_t i = blockIdx.x * (int64_t)blockDim.x + threadIdx.x;
    for (; i + 3 * stride < n; i += 4 * stride) {
        float4 v[4];
#pragma unroll
        for (int k = 0; k < 4; k++)
            v[k] = __ldcs(in + i + k * stride);
#pragma unroll
        for (int k = 0; k < 4; k++)
            __stcs(out + i + k * stride, v[k]);
    }
}

struct ceiling {
    float *from, *to;
    int64_t bytes;
    int kind;
};

static int ceiling_call(int i, void *stream, void *user) {
    struct ceiling *c = (struct ceiling *)user;
    cudaStream_t s = (cudaStream_t)stream;
    (void)i;
    switch (c->kind) {
    case 0:
        st_bench_empty<<<1, 32, 0, s>>>();
        break;
    case 1:
        st_bench_copy<<<512, 512, 0, s>>>((const float4 *)c->from, c->bytes / 16, (float4 *)c->to);
        break;
    case 2:
        st_bench_read<<<512, 512, 0, s>>>((const float4 *)c->from, c->bytes / 16, c->to);
        break;
    default:
        cudaMemsetAsync(c->to, 1, (size_t)c->bytes, s);
        break;
    }
    return cudaGetLastError() == cudaSuccess ? 0 : STEPTAPE_ERR_CUDA;
}

static int bench_ceilings(struct st_bench *bench) {
    static const char *const names[] = {"empty kernel, per graph node", "copy 1 GiB (read+write)",
                                        "read 1 GiB", "write 1 GiB"};
    const int64_t bytes = 1ll << 30;
    struct ceiling c = {};
    c.bytes = bytes;
    for (int kind = 0; kind < 4; kind++) {
        if (!st_bench_wanted(bench, "ceiling", names[kind]))
            continue;
        if (c.from == NULL) {
            ST_TRY(st_bench_alloc_random(bench, &c.from, bytes / 4, 1, 1.0f));
            ST_TRY(st_bench_alloc_random(bench, &c.to, bytes / 4, 2, 1.0f));
        }
        struct st_bench_row row = {};
        row.group = "ceiling";
        row.name = names[kind];
        row.sets = 1;
        row.launch_count = 1;
        row.bytes = kind == 0 ? 0 : (uint64_t)(kind == 1 ? 2 * bytes : bytes);
        c.kind = kind;
        ST_TRY(st_bench_graph(bench, kind == 0 ? 200 : 4, ceiling_call, &c, &row));
        ST_TRY(st_bench_emit(bench, &row));
    }
    st_bench_free_all(bench);
    return ST_OK;
}

/* ---- save_partial_states */

struct save_case {
    struct steptape_save_partial_states_args args[ST_BENCH_MAX_SETS];
    int sets;
};

static int save_call(int i, void *stream, void *user) {
    const struct save_case *c = (const struct save_case *)user;
    return steptape_save_partial_states(&c->args[i % c->sets], stream);
}

/* T tokens, each the next of a request of its own (slots spread over the pages). */
int st_bench_make_save(struct st_bench *bench, int64_t tokens, int width, int set,
                       struct steptape_save_partial_states_args *args) {
    const int ratio = width == 512 ? 128 : 4;
    const int rows = ratio == 4 ? 4 : 8;
    const int page = st_bench_state_page_floats(width);
    const int64_t pages = tokens < 16 ? 16 : tokens;
    std::vector<int64_t> positions((size_t)tokens), slots((size_t)tokens);
    for (int64_t t = 0; t < tokens; t++) {
        positions[(size_t)t] = 1000 + 37 * t;
        slots[(size_t)t] = ((t * 7919 + set) % pages) * rows + positions[(size_t)t] % rows;
    }
    float *kv_score, *state, *ape;
    void *d_positions, *d_slots;
    uint64_t seed = (uint64_t)set << 40;
    ST_TRY(st_bench_alloc_random(bench, &kv_score, tokens * 2 * width, seed, 1.0f));
    ST_TRY(st_bench_alloc_random(bench, &state, pages * page, seed + 1, 1.0f));
    ST_TRY(st_bench_alloc_random(bench, &ape, (int64_t)ratio * width, 3, 1.0f));
    ST_TRY(st_bench_alloc_copy(bench, &d_positions, positions.data(), 8 * positions.size()));
    ST_TRY(st_bench_alloc_copy(bench, &d_slots, slots.data(), 8 * slots.size()));
    memset(args, 0, sizeof(*args));
    args->kv = kv_score;
    args->score = kv_score + width;
    args->ape = ape;
    args->positions = (const int64_t *)d_positions;
    args->slot_mapping = (const int64_t *)d_slots;
    args->state_cache = state;
    args->kv_stride = args->score_stride = 2 * width;
    args->ape_stride = width;
    args->state_page_stride = page;
    args->state_row_stride = 2 * width;
    args->num_tokens = tokens;
    args->width = width;
    args->ratio = ratio;
    args->block_size = rows;
    return ST_OK;
}

static int bench_save_case(struct st_bench *bench, int64_t tokens, int width, double anchor_us) {
    char name[64];
    if (width == 256)
        snprintf(name, sizeof(name), "indexer T=%lld", (long long)tokens);
    else
        snprintf(name, sizeof(name), "ratio=%d T=%lld", width == 512 ? 128 : 4, (long long)tokens);
    if (!st_bench_wanted(bench, "save_partial_states", name))
        return ST_OK;
    struct save_case *c = new struct save_case();
    struct st_bench_row row = {};
    struct steptape_token_counts counts = {tokens, 0, 0, 0};
    struct steptape_cost cost;
    int rc = st_bench_make_save(bench, tokens, width, 0, &c->args[0]);
    steptape_save_partial_states_cost(&c->args[0], &counts, &cost);
    int most = st_bench_sets(bench, cost.read_bytes + cost.written_bytes);
    for (int set = 1; set < most && rc == ST_OK; set++)
        rc = st_bench_make_save(bench, tokens, width, set, &c->args[set]);
    row.group = "save_partial_states";
    row.name = name;
    row.bytes = cost.read_bytes + cost.written_bytes;
    row.launch_count = 1;
    row.anchor_us = anchor_us;
    unsigned int first = bench->options.all_variants ? 1 : 0;
    unsigned int last = bench->options.all_variants
                            ? (unsigned int)st_kernel_find("save_partial_states")->variant_count
                            : 0;
    for (unsigned int v = first; v <= last && rc == ST_OK; v++) {
        for (int set = 0; set < most; set++)
            c->args[set].variant = v;
        for (int pass = 0; pass < 2 && rc == ST_OK; pass++) {
            c->sets = row.sets = pass == 0 ? 1 : most;
            row.variant = (int)v;
            rc = st_bench_graph(bench, CALLS, save_call, c, &row);
            if (rc == ST_OK)
                rc = st_bench_emit(bench, &row);
        }
    }
    st_bench_free_all(bench);
    delete c;
    return rc;
}

/* ---- compressed_slot_mapping */

struct map_case {
    struct steptape_compressed_slot_mapping_args args;
};

static int map_call(int i, void *stream, void *user) {
    (void)i;
    return steptape_compressed_slot_mapping(&((struct map_case *)user)->args, stream);
}

static int bench_map_case(struct st_bench *bench, int reqs, int query_len, int ratio) {
    char name[64];
    snprintf(name, sizeof(name), "ratio=%d R=%d query=%d out=8192", ratio, reqs, query_len);
    if (!st_bench_wanted(bench, "compressed_slot_mapping", name))
        return ST_OK;
    const int64_t table_width = 1024;
    std::vector<int32_t> starts((size_t)reqs + 1), lens((size_t)reqs),
        table((size_t)(reqs * table_width));
    for (int r = 0; r <= reqs; r++)
        starts[(size_t)r] = r * query_len;
    for (int r = 0; r < reqs; r++)
        lens[(size_t)r] = 4096 + 29 * r + query_len;
    for (size_t i = 0; i < table.size(); i++)
        table[i] = (int32_t)(i * 40503 % 65536);
    void *out, *d_starts, *d_lens, *d_table;
    ST_TRY(st_bench_alloc(bench, &out, 8 * 8192));
    ST_TRY(st_bench_alloc_copy(bench, &d_starts, starts.data(), 4 * starts.size()));
    ST_TRY(st_bench_alloc_copy(bench, &d_lens, lens.data(), 4 * lens.size()));
    ST_TRY(st_bench_alloc_copy(bench, &d_table, table.data(), 4 * table.size()));
    struct map_case c = {};
    c.args.out = (int64_t *)out;
    c.args.query_start_loc = (const int32_t *)d_starts;
    c.args.seq_lens = (const int32_t *)d_lens;
    c.args.block_table = (const int32_t *)d_table;
    c.args.block_table_stride = table_width;
    c.args.out_len = 8192;
    c.args.num_reqs = reqs;
    c.args.ratio = ratio;
    c.args.block_size = ratio == 4 ? 64 : 2;
    unsigned int first = bench->options.all_variants ? 1 : 0;
    unsigned int last = bench->options.all_variants
                            ? (unsigned int)st_kernel_find("compressed_slot_mapping")->variant_count
                            : 0;
    struct steptape_token_counts counts = {reqs * query_len, 0, 0, 0};
    struct steptape_cost cost;
    for (unsigned int v = first; v <= last; v++) {
        struct st_bench_row row = {};
        c.args.variant = v;
        steptape_compressed_slot_mapping_cost(&c.args, &counts, &cost);
        row.group = "compressed_slot_mapping";
        row.name = name;
        row.variant = (int)v;
        row.sets = 1;
        row.launch_count = (int)cost.launch_count;
        row.bytes = cost.read_bytes + cost.written_bytes;
        row.anchor_us = query_len == 1 && reqs <= 16 ? (reqs == 1 ? 1.39 : 1.44) : 0.0;
        ST_TRY(st_bench_graph(bench, CALLS, map_call, &c, &row));
        ST_TRY(st_bench_emit(bench, &row));
    }
    st_bench_free_all(bench);
    return ST_OK;
}

int st_bench_cases(struct st_bench *bench) {
    static const struct {
        int tokens, width;
        double anchor_us;
    } saves[] = {
        {1, 512, 1.68},   {16, 512, 1.76},    {64, 512, 1.78}, {256, 512, 2.00}, {2048, 512, 3.86},
        {64, 1024, 1.90}, {2048, 1024, 6.00}, {64, 256, 0.0},  {2048, 256, 0.0},
    };
    ST_TRY(bench_ceilings(bench));
    for (size_t i = 0; i < sizeof(saves) / sizeof(saves[0]); i++)
        ST_TRY(bench_save_case(bench, saves[i].tokens, saves[i].width, saves[i].anchor_us));
    ST_TRY(st_bench_compress_cases(bench));
    ST_TRY(st_bench_gather_cases(bench));
    ST_TRY(bench_map_case(bench, 1, 1, 128));
    ST_TRY(bench_map_case(bench, 16, 1, 128));
    ST_TRY(bench_map_case(bench, 16, 1, 4));
    ST_TRY(bench_map_case(bench, 256, 1, 128));
    ST_TRY(bench_map_case(bench, 4, 2048, 128));
    ST_TRY(bench_map_case(bench, 4, 2048, 4));
    ST_TRY(st_bench_index_cases(bench));
    ST_TRY(st_bench_prefill_cases(bench));
    ST_TRY(st_bench_decode_cases(bench));
    ST_TRY(st_bench_topk_cases(bench));
    return ST_OK;
}
