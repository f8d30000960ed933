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

enum {
    CALLS = 20,
    MAX_SETS = 16,
    DIM = 512,
    STATE_PAGE_FLOATS = 32832 / 4, /* as vLLM pads them: multiples of 576 bytes */
    KV_PAGE_BYTES = 1728
};

static int emit(struct st_bench *bench, const struct st_bench_row *row) {
    return bench->row(row, bench->user);
}

/* Sets such that what the calls touch is several times the L2; 1 when one set alone is. */
static int rotating_sets(const struct st_bench *bench, uint64_t bytes_per_set) {
    uint64_t want = 4 * bench->device.l2_bytes;
    if (bytes_per_set == 0)
        return MAX_SETS;
    uint64_t sets = (want + bytes_per_set - 1) / bytes_per_set;
    return sets < 1 ? 1 : sets > MAX_SETS ? MAX_SETS : (int)sets;
}

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
        ST_TRY(emit(bench, &row));
    }
    st_bench_free_all(bench);
    return ST_OK;
}

/* ---- save_partial_states */

struct save_case {
    struct steptape_save_partial_states_args args[MAX_SETS];
    int sets;
};

static int save_call(int i, void *stream, void *user) {
    const struct save_case *c = (const struct save_case *)user;
    return steptape_save_partial_states(&c->args[i % c->sets], stream);
}

/* T tokens, each the next of a request of its own (slots spread over the pages). */
static int make_save(struct st_bench *bench, int64_t tokens, int ratio, int set,
                     struct steptape_save_partial_states_args *args) {
    const int width = ratio == 4 ? 1024 : 512;
    const int rows = ratio == 4 ? 4 : 8;
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
    ST_TRY(st_bench_alloc_random(bench, &state, pages * STATE_PAGE_FLOATS, seed + 1, 1.0f));
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
    args->state_page_stride = STATE_PAGE_FLOATS;
    args->state_row_stride = 2 * width;
    args->num_tokens = tokens;
    args->width = width;
    args->ratio = ratio;
    args->block_size = rows;
    return ST_OK;
}

static int bench_save_case(struct st_bench *bench, int64_t tokens, int ratio, double anchor_us) {
    char name[64];
    snprintf(name, sizeof(name), "ratio=%d T=%lld", ratio, (long long)tokens);
    if (!st_bench_wanted(bench, "save_partial_states", name))
        return ST_OK;
    struct save_case *c = new struct save_case();
    struct st_bench_row row = {};
    struct steptape_token_counts counts = {tokens, 0, 0, 0};
    struct steptape_cost cost;
    int rc = make_save(bench, tokens, ratio, 0, &c->args[0]);
    steptape_save_partial_states_cost(&c->args[0], &counts, &cost);
    int most = rotating_sets(bench, cost.read_bytes + cost.written_bytes);
    for (int set = 1; set < most && rc == ST_OK; set++)
        rc = make_save(bench, tokens, ratio, set, &c->args[set]);
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
                rc = emit(bench, &row);
        }
    }
    st_bench_free_all(bench);
    delete c;
    return rc;
}

/* ---- compress_pool and compress_norm_rope_store */

struct compress_set {
    struct steptape_save_partial_states_args save;
    struct steptape_compress_pool_args pool;
    struct steptape_compress_norm_rope_store_args norm;
};

struct compress_case {
    struct compress_set set[MAX_SETS];
    int sets;
    int which; /* 1: pool, 2: norm, 3: both, 4: save, 7: all three */
};

static int compress_call(int i, void *stream, void *user) {
    const struct compress_case *c = (const struct compress_case *)user;
    const struct compress_set *set = &c->set[i % c->sets];
    int rc = 0;
    if ((c->which & 4) != 0)
        rc = steptape_save_partial_states(&set->save, stream);
    if ((c->which & 1) != 0 && rc == 0)
        rc = steptape_compress_pool(&set->pool, stream);
    if ((c->which & 2) != 0 && rc == 0)
        rc = steptape_compress_norm_rope_store(&set->norm, stream);
    return rc;
}

/* What of a batch closes a group: nothing; every token, each of a request of its own; every 128th
 * token of one request (a prefill). */
enum boundaries { BOUNDARY_NONE, BOUNDARY_ALL, BOUNDARY_PREFILL };
static const char *const boundary_names[] = {"none", "all", "128th"};

/* One token's metadata; table: [tokens, 32], of which a prefill uses one long row. */
static void make_token(int64_t t, int64_t tokens, int boundary, int set, int64_t *position,
                       int32_t *req, int32_t *table) {
    const int64_t table_width = 32; /* two groups: the token closes the second */
    const int64_t pages = tokens * 16;
    for (int64_t k = 0; k < table_width; k++) {
        /* an odd multiplier permutes the pages: T * 16 is made of twos */
        int64_t page = ((t * 16 + k % 16) * 40503 + set) % pages;
        table[t * table_width + k] = (int32_t)page;
    }
    *position = boundary == BOUNDARY_ALL ? 255 : boundary == BOUNDARY_PREFILL ? t : 254 - t % 100;
    *req = boundary == BOUNDARY_PREFILL ? 0 : (int32_t)t;
}

/* Buffers of a batch, pages in a shuffled order. */
static int make_compress(struct st_bench *bench, int64_t tokens, int boundary, int set,
                         struct compress_set *out) {
    const int64_t table_width = 32; /* two groups: the token closes the second */
    const int64_t pages = tokens * 16;
    const int64_t max_position = tokens < 512 ? 512 : tokens;
    std::vector<int64_t> positions((size_t)tokens), slots((size_t)tokens), kv((size_t)tokens);
    std::vector<int32_t> reqs((size_t)tokens), table((size_t)(tokens * table_width));
    uint64_t seed = (uint64_t)(set + 1) << 40;
    for (int64_t t = 0; t < tokens; t++) {
        make_token(t, tokens, boundary, set, &positions[(size_t)t], &reqs[(size_t)t], table.data());
        int64_t p = positions[(size_t)t];
        int64_t row = reqs[(size_t)t] * table_width;
        kv[(size_t)t] = (p + 1) % 128 == 0 ? t : -1;
        /* a prefill's pages are looked up when the table is whole: its slots only have to be >= 0
         */
        slots[(size_t)t] = (int64_t)table[(size_t)(row + p / 8 % table_width)] * 8 + p % 8;
    }
    void *d_positions, *d_slots, *d_kv, *d_reqs, *d_table, *kv_cache;
    float *state, *pooled, *weight, *cos_sin;
    ST_TRY(st_bench_alloc_copy(bench, &d_positions, positions.data(), 8 * positions.size()));
    ST_TRY(st_bench_alloc_copy(bench, &d_slots, slots.data(), 8 * slots.size()));
    ST_TRY(st_bench_alloc_copy(bench, &d_kv, kv.data(), 8 * kv.size()));
    ST_TRY(st_bench_alloc_copy(bench, &d_reqs, reqs.data(), 4 * reqs.size()));
    ST_TRY(st_bench_alloc_copy(bench, &d_table, table.data(), 4 * table.size()));
    ST_TRY(st_bench_alloc_random(bench, &state, pages * STATE_PAGE_FLOATS, seed, 3.0f));
    ST_TRY(st_bench_alloc_random(bench, &pooled, tokens * DIM, seed + 1, 1.0f));
    ST_TRY(st_bench_alloc_random(bench, &weight, DIM, 2, 1.0f));
    ST_TRY(st_bench_alloc_random(bench, &cos_sin, max_position * 64, 3, 1.0f));
    ST_TRY(st_bench_alloc(bench, &kv_cache, (size_t)((tokens + 1) / 2 * KV_PAGE_BYTES)));
    memset(out, 0, sizeof(*out));
    struct steptape_compress_pool_args *pool = &out->pool;
    pool->state_cache = state;
    pool->positions = (const int64_t *)d_positions;
    pool->slot_mapping = (const int64_t *)d_slots;
    pool->kv_slot_mapping = (const int64_t *)d_kv;
    pool->token_to_req = (const int32_t *)d_reqs;
    pool->block_table = (const int32_t *)d_table;
    pool->pooled = pooled;
    pool->state_page_stride = STATE_PAGE_FLOATS;
    pool->state_row_stride = 2 * DIM;
    pool->block_table_stride = table_width;
    pool->pooled_stride = DIM;
    pool->num_tokens = tokens;
    pool->head_dim = DIM;
    pool->ratio = 128;
    pool->block_size = 8;
    struct steptape_compress_norm_rope_store_args *norm = &out->norm;
    norm->pooled = pooled;
    norm->positions = pool->positions;
    norm->slot_mapping = pool->slot_mapping;
    norm->kv_slot_mapping = pool->kv_slot_mapping;
    norm->weight = weight;
    norm->cos_sin_cache = cos_sin;
    norm->kv_cache = (uint8_t *)kv_cache;
    norm->pooled_stride = DIM;
    norm->cos_sin_stride = 64;
    norm->kv_page_stride_bytes = KV_PAGE_BYTES;
    norm->num_tokens = tokens;
    norm->head_dim = DIM;
    norm->rope_dim = 64;
    norm->ratio = 128;
    norm->kv_block_size = 2;
    norm->weight_dtype = STEPTAPE_FP32;
    norm->eps = 1e-6f;
    norm->flags = STEPTAPE_LAUNCH_AFTER_POOL;
    return ST_OK;
}

static int bench_compress_rows(struct st_bench *bench, struct compress_case *c, int most,
                               struct st_bench_row *row, double anchor_us, const char *name) {
    struct {
        int which;
        uint32_t flags;
        const char *what;
    } kinds[] = {
        {3, 0, ""}, /* as upstream launches them */
        {3, STEPTAPE_LAUNCH_AFTER_POOL, ", overlapped"},
        {1, 0, ", pool alone"},
        {2, 0, ", norm alone"},
    };
    int kind_count = bench->options.all_variants ? 4 : 2;
    char label[96];
    for (int k = 0; k < kind_count; k++) {
        unsigned int versions = 1;
        if (bench->options.all_variants && k == 2)
            versions = (unsigned int)st_kernel_find("compress_pool")->variant_count;
        if (bench->options.all_variants && k == 3)
            versions = (unsigned int)st_kernel_find("compress_norm_rope_store")->variant_count;
        for (unsigned int v = versions > 1 ? 1 : 0; v <= (versions > 1 ? versions : 0); v++) {
            for (int set = 0; set < most; set++) {
                c->set[set].norm.flags = kinds[k].flags;
                c->set[set].pool.variant = kinds[k].which == 1 ? v : 0;
                c->set[set].norm.variant = kinds[k].which == 2 ? v : 0;
            }
            for (int pass = 0; pass < 2; pass++) {
                if (pass == 1 && most == 1)
                    continue;
                c->sets = row->sets = pass == 0 ? 1 : most;
                c->which = kinds[k].which;
                row->variant = (int)v;
                row->launch_count = kinds[k].which == 3 ? 2 : 1;
                row->anchor_us = k < 2 ? anchor_us : 0.0;
                snprintf(label, sizeof(label), "%s%s", name, kinds[k].what);
                row->name = label;
                ST_TRY(st_bench_graph(bench, CALLS, compress_call, c, row));
                ST_TRY(emit(bench, row));
            }
        }
    }
    return ST_OK;
}

static int bench_compress_case(struct st_bench *bench, int64_t tokens, int boundary,
                               double anchor_us) {
    char name[64];
    snprintf(name, sizeof(name), "T=%lld boundary=%s", (long long)tokens, boundary_names[boundary]);
    if (!st_bench_wanted(bench, "compress", name))
        return ST_OK;
    struct compress_case *c = new struct compress_case();
    struct st_bench_row row = {};
    int64_t stored = boundary == BOUNDARY_ALL    ? tokens
                     : boundary == BOUNDARY_NONE ? 0
                                                 : tokens / 128;
    struct steptape_token_counts counts = {tokens, stored, stored, 0};
    struct steptape_cost pool, norm;
    int rc = make_compress(bench, tokens, boundary, 0, &c->set[0]);
    steptape_compress_pool_cost(&c->set[0].pool, &counts, &pool);
    steptape_compress_norm_rope_store_cost(&c->set[0].norm, &counts, &norm);
    row.group = "compress";
    row.bytes = pool.read_bytes + pool.written_bytes + norm.read_bytes + norm.written_bytes;
    int most = rotating_sets(bench, row.bytes);
    if (most * tokens > 4096)
        most = most < 4 ? most : 4;
    for (int set = 1; set < most && rc == ST_OK; set++)
        rc = make_compress(bench, tokens, boundary, set, &c->set[set]);
    if (rc == ST_OK)
        rc = bench_compress_rows(bench, c, most, &row, anchor_us, name);
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
        ST_TRY(emit(bench, &row));
    }
    st_bench_free_all(bench);
    return ST_OK;
}

/* ---- the published case of the launch skip */

/* One token at position 126, state [16, 8, 1024]: save and the pair, or save alone. */
static int bench_skip_case(struct st_bench *bench) {
    if (!st_bench_wanted(bench, "skip", "one token at position 126"))
        return ST_OK;
    struct compress_case *c = new struct compress_case();
    int rc = make_compress(bench, 1, 0, 0, &c->set[0]);
    if (rc == ST_OK)
        rc = make_save(bench, 1, 128, 0, &c->set[0].save);
    c->sets = 1;
    if (rc == ST_OK) {
        const int64_t position = 126, slot = 126;
        struct compress_set *set = &c->set[0];
        if (cudaMemcpy((void *)set->pool.positions, &position, 8, cudaMemcpyHostToDevice) !=
                cudaSuccess ||
            cudaMemcpy((void *)set->pool.slot_mapping, &slot, 8, cudaMemcpyHostToDevice) !=
                cudaSuccess)
            rc = ST_FAIL(bench->err, ST_ERR_NATIVE, "cannot set up the skip case");
        set->save.positions = set->pool.positions;
        set->save.slot_mapping = set->pool.slot_mapping;
        set->save.state_cache = (float *)set->pool.state_cache;
        set->save.state_page_stride = set->pool.state_page_stride;
    }
    static const struct {
        const char *name;
        int which;
        uint32_t flags;
    } kinds[] = {
        {"one token at position 126, always (3 launches)", 7, 0},
        {"one token at position 126, always, pair overlapped (3 launches)", 7,
         STEPTAPE_LAUNCH_AFTER_POOL},
        {"one token at position 126, skipped (1 launch)", 4, 0},
    };
    for (int k = 0; k < 3 && rc == ST_OK; k++) {
        struct st_bench_row row = {};
        row.group = "skip";
        row.name = kinds[k].name;
        row.sets = 1;
        row.launch_count = kinds[k].which == 7 ? 3 : 1;
        c->which = kinds[k].which;
        c->set[0].norm.flags = kinds[k].flags;
        rc = st_bench_eager(bench, 1000, 20, compress_call, c, &row);
        if (rc == ST_OK)
            rc = emit(bench, &row);
        if (rc == ST_OK)
            rc = st_bench_graph_launches(bench, 1000, 20, compress_call, c, &row);
        if (rc == ST_OK)
            rc = emit(bench, &row);
    }
    st_bench_free_all(bench);
    delete c;
    return rc;
}

int st_bench_cases(struct st_bench *bench) {
    static const struct {
        int tokens, ratio;
        double anchor_us;
    } saves[] = {
        {1, 128, 1.68},    {16, 128, 1.76}, {64, 128, 1.78}, {256, 128, 2.00},
        {2048, 128, 3.86}, {64, 4, 1.90},   {2048, 4, 6.00},
    };
    static const struct {
        int tokens;
        double none_us, all_us;
    } compresses[] = {
        {1, 2.13, 4.74},    {16, 2.61, 5.65},      {64, 3.03, 9.91},
        {256, 4.86, 37.22}, {2048, 19.92, 251.54},
    };
    ST_TRY(bench_ceilings(bench));
    for (size_t i = 0; i < sizeof(saves) / sizeof(saves[0]); i++)
        ST_TRY(bench_save_case(bench, saves[i].tokens, saves[i].ratio, saves[i].anchor_us));
    for (size_t i = 0; i < sizeof(compresses) / sizeof(compresses[0]); i++) {
        ST_TRY(
            bench_compress_case(bench, compresses[i].tokens, BOUNDARY_NONE, compresses[i].none_us));
        ST_TRY(
            bench_compress_case(bench, compresses[i].tokens, BOUNDARY_ALL, compresses[i].all_us));
    }
    ST_TRY(bench_compress_case(bench, 512, BOUNDARY_PREFILL, 0.0));
    ST_TRY(bench_compress_case(bench, 2048, BOUNDARY_PREFILL, 0.0));
    ST_TRY(bench_map_case(bench, 1, 1, 128));
    ST_TRY(bench_map_case(bench, 16, 1, 128));
    ST_TRY(bench_map_case(bench, 16, 1, 4));
    ST_TRY(bench_map_case(bench, 256, 1, 128));
    ST_TRY(bench_map_case(bench, 4, 2048, 128));
    ST_TRY(bench_map_case(bench, 4, 2048, 4));
    ST_TRY(bench_skip_case(bench));
    ST_TRY(st_bench_index_cases(bench));
    ST_TRY(st_bench_prefill_cases(bench));
    ST_TRY(st_bench_topk_cases(bench));
    return ST_OK;
}
