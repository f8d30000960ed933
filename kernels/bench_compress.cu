/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Benchmarks of the compressor: the two launches of c128 beside one launch of compress_fused, c4
 * and the indexer's keys, always against along a list, and the published case of the launch skip.
 *
 * Anchors: vLLM 9fc29eca0 (Triton) and vLLM 0.26.0 (CuTe DSL) on one NVIDIA H200, measured
 * 2026-11-29 and 30, the better of the two.
 */
#include "kernels/bench_i.cuh"

#include <stdio.h>
#include <string.h>
#include <vector>

enum kind { C128, C4, INDEXER };

/* What a model fixes. */
struct shape {
    const char *name;
    int dim, ratio, overlap, rows; /* rows: of a state page */
    int table_width;               /* pages of a token's request: its window is the last of them */
    int kv_block, kv_page_bytes;
};

static const struct shape shapes[] = {
    {"c128", 512, 128, 0, 8, 32, 2, 1728},
    {"c4", 512, 4, 1, 4, 2, 64, 37440},
    {"indexer", 128, 4, 1, 4, 2, 64, 8640},
};

/* What of a batch closes a group: `stored` of its tokens, anywhere, each of a request of its own;
 * or a prefill of one request. */
struct batch {
    int64_t tokens;
    int64_t stored;
    int prefill;
};

/* Launches of a call. */
enum { POOL = 1, NORM = 2, SAVE = 4, FUSED = 8 };

struct compress_set {
    struct steptape_save_partial_states_args save;
    struct steptape_compress_pool_args pool;
    struct steptape_compress_norm_rope_store_args norm;
    struct steptape_compress_fused_args fused; /* without its list */
    const int32_t *list, *list_count;
};

struct compress_case {
    struct compress_set set[ST_BENCH_MAX_SETS];
    int sets;
    int which;
};

static int compress_call(int i, void *stream, void *user) {
    const struct compress_case *c = (const struct compress_case *)user;
    const struct compress_set *set = &c->set[i % c->sets];
    int rc = 0;
    if ((c->which & SAVE) != 0)
        rc = steptape_save_partial_states(&set->save, stream);
    if ((c->which & POOL) != 0 && rc == 0)
        rc = steptape_compress_pool(&set->pool, stream);
    if ((c->which & NORM) != 0 && rc == 0)
        rc = steptape_compress_norm_rope_store(&set->norm, stream);
    if ((c->which & FUSED) != 0 && rc == 0)
        rc = steptape_compress_fused(&set->fused, stream);
    return rc;
}

/* ---- a batch's metadata */

struct metadata {
    std::vector<int64_t> positions, slots, kv_slots;
    std::vector<int32_t> reqs, table, list;
};

/* Whether the next token closes a group when `stored` of the last `left` do. */
static int draw(uint64_t counter, int64_t stored, int64_t left) {
    uint64_t z = (counter + 1) * 0x9e3779b97f4a7c15ull;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
    return (int64_t)((z ^ (z >> 31)) % (uint64_t)left) < stored;
}

static void make_metadata(const struct shape *shape, const struct batch *batch, int set,
                          struct metadata *m) {
    const int64_t n = batch->tokens, width = shape->table_width;
    const int64_t window = shape->table_width * shape->rows; /* positions 0 .. window - 1 */
    const int64_t per_token = (shape->overlap ? 2 : 1) * shape->ratio / shape->rows;
    int64_t stored = batch->stored;
    m->table.resize((size_t)(n * width));
    for (int64_t i = 0; i < n * width; i++) {
        /* a prime permutes the pages */
        int64_t page = i / width * per_token + i % width % per_token;
        m->table[(size_t)i] = (int32_t)((page * 104729 + set) % (n * per_token));
    }
    for (int64_t t = 0; t < n; t++) {
        int closes = !batch->prefill && draw((uint64_t)(t * 7 + set), stored, n - t);
        int64_t p = batch->prefill ? t
                    : closes       ? window - 1
                                   : window - 2 - t % (shape->ratio == 128 ? 100 : 3);
        stored -= closes;
        m->positions.push_back(p);
        m->reqs.push_back(batch->prefill ? 0 : (int32_t)t);
        int64_t row = batch->prefill ? 0 : t * width;
        m->slots.push_back((int64_t)m->table[(size_t)(row + p / shape->rows)] * shape->rows +
                           p % shape->rows);
        m->kv_slots.push_back((p + 1) % shape->ratio == 0 ? t : -1);
        if ((p + 1) % shape->ratio == 0)
            m->list.push_back((int32_t)t);
    }
}

/* The two launches' arguments from the fused one's. */
static void two_of_fused(struct compress_set *set, float *pooled) {
    const struct steptape_compress_fused_args *fused = &set->fused;
    struct steptape_compress_pool_args *pool = &set->pool;
    pool->state_cache = fused->state_cache;
    pool->positions = fused->positions;
    pool->slot_mapping = fused->slot_mapping;
    pool->kv_slot_mapping = fused->kv_slot_mapping;
    pool->token_to_req = fused->token_to_req;
    pool->block_table = fused->block_table;
    pool->pooled = pooled;
    pool->state_page_stride = fused->state_page_stride;
    pool->state_row_stride = fused->state_row_stride;
    pool->block_table_stride = fused->block_table_stride;
    pool->pooled_stride = fused->head_dim;
    pool->num_tokens = fused->num_tokens;
    pool->head_dim = fused->head_dim;
    pool->ratio = fused->ratio;
    pool->overlap = fused->overlap;
    pool->block_size = fused->block_size;
    struct steptape_compress_norm_rope_store_args *norm = &set->norm;
    norm->pooled = pooled;
    norm->positions = fused->positions;
    norm->slot_mapping = fused->slot_mapping;
    norm->kv_slot_mapping = fused->kv_slot_mapping;
    norm->weight = fused->weight;
    norm->cos_sin_cache = fused->cos_sin_cache;
    norm->kv_cache = fused->kv_cache;
    norm->pooled_stride = fused->head_dim;
    norm->cos_sin_stride = fused->cos_sin_stride;
    norm->kv_page_stride_bytes = fused->kv_page_stride_bytes;
    norm->num_tokens = fused->num_tokens;
    norm->head_dim = fused->head_dim;
    norm->rope_dim = fused->rope_dim;
    norm->ratio = fused->ratio;
    norm->kv_block_size = fused->kv_block_size;
    norm->weight_dtype = fused->weight_dtype;
    norm->eps = fused->eps;
}

/* Buffers of a batch, pages in a shuffled order. */
static int make_compress(struct st_bench *bench, const struct shape *shape,
                         const struct batch *batch, int set, struct compress_set *out) {
    const int64_t n = batch->tokens;
    const int width = (shape->overlap ? 2 : 1) * shape->dim;
    const int page = st_bench_state_page_floats(width);
    const int64_t pages = n * ((shape->overlap ? 2 : 1) * shape->ratio / shape->rows);
    const int64_t max_position = n < 512 ? 512 : n;
    const uint64_t seed = (uint64_t)(set + 1) << 40;
    struct metadata m;
    make_metadata(shape, batch, set, &m);
    const int32_t count = (int32_t)m.list.size();
    m.list.resize((size_t)n);
    void *d_positions, *d_slots, *d_kv, *d_reqs, *d_table, *d_list, *d_count, *kv_cache;
    float *state, *pooled, *weight, *cos_sin;
    ST_TRY(st_bench_alloc_copy(bench, &d_positions, m.positions.data(), 8 * (size_t)n));
    ST_TRY(st_bench_alloc_copy(bench, &d_slots, m.slots.data(), 8 * (size_t)n));
    ST_TRY(st_bench_alloc_copy(bench, &d_kv, m.kv_slots.data(), 8 * (size_t)n));
    ST_TRY(st_bench_alloc_copy(bench, &d_reqs, m.reqs.data(), 4 * (size_t)n));
    ST_TRY(st_bench_alloc_copy(bench, &d_table, m.table.data(), 4 * m.table.size()));
    ST_TRY(st_bench_alloc_copy(bench, &d_list, m.list.data(), 4 * (size_t)n));
    ST_TRY(st_bench_alloc_copy(bench, &d_count, &count, 4));
    ST_TRY(st_bench_alloc_random(bench, &state, pages * page, seed, 3.0f));
    ST_TRY(st_bench_alloc_random(bench, &pooled, n * shape->dim, seed + 1, 1.0f));
    ST_TRY(st_bench_alloc_random(bench, &weight, shape->dim, 2, 1.0f));
    ST_TRY(st_bench_alloc_random(bench, &cos_sin, max_position * 64, 3, 1.0f));
    ST_TRY(st_bench_alloc(bench, &kv_cache,
                          (size_t)((n / shape->kv_block + 1) * shape->kv_page_bytes)));
    memset(out, 0, sizeof(*out));
    struct steptape_compress_fused_args *fused = &out->fused;
    fused->state_cache = state;
    fused->positions = (const int64_t *)d_positions;
    fused->slot_mapping = (const int64_t *)d_slots;
    fused->kv_slot_mapping = (const int64_t *)d_kv;
    fused->token_to_req = (const int32_t *)d_reqs;
    fused->block_table = (const int32_t *)d_table;
    fused->weight = weight;
    fused->cos_sin_cache = cos_sin;
    fused->kv_cache = (uint8_t *)kv_cache;
    fused->state_page_stride = page;
    fused->state_row_stride = 2 * width;
    fused->block_table_stride = shape->table_width;
    fused->cos_sin_stride = 64;
    fused->kv_page_stride_bytes = shape->kv_page_bytes;
    fused->num_tokens = n;
    fused->head_dim = shape->dim;
    fused->rope_dim = 64;
    fused->ratio = shape->ratio;
    fused->overlap = shape->overlap;
    fused->block_size = shape->rows;
    fused->kv_block_size = shape->kv_block;
    fused->weight_dtype = STEPTAPE_FP32;
    fused->format =
        shape->dim == 128 ? STEPTAPE_COMPRESS_INDEXER_FP8 : STEPTAPE_COMPRESS_FP8_DS_MLA;
    fused->eps = 1e-6f;
    out->list = (const int32_t *)d_list;
    out->list_count = (const int32_t *)d_count;
    two_of_fused(out, pooled);
    return ST_OK;
}

/* ---- rows */

/* A way to do a batch. */
struct way {
    const char *what;
    int which;
    uint32_t flags; /* of the norm, of the fused one */
    int list;
    unsigned int variants; /* 0: the default alone; n: 1..n with --all-variants */
};

static const struct way c128_ways[] = {
    {"", POOL | NORM, 0, 0, 0}, /* as upstream launches them */
    {", fused", FUSED, 0, 0, 4},
    {", fused along a list", FUSED, 0, 1, 4},
    {", overlapped", POOL | NORM, STEPTAPE_LAUNCH_AFTER_POOL, 0, 0},
    {", fused, early", FUSED, STEPTAPE_LAUNCH_EARLY, 0, 4},
    {", fused along a list, early", FUSED, STEPTAPE_LAUNCH_EARLY, 1, 4},
    {", pool alone", POOL, 0, 0, 5},
    {", norm alone", NORM, 0, 0, 3},
};

static void set_way(struct compress_case *c, int sets, const struct way *way,
                    unsigned int variant) {
    c->which = way->which;
    for (int i = 0; i < sets; i++) {
        struct compress_set *set = &c->set[i];
        set->norm.flags = way->which == FUSED ? 0 : way->flags;
        set->fused.list = way->list ? set->list : NULL;
        set->fused.list_count = way->list ? set->list_count : NULL;
        set->fused.flags = way->which == FUSED ? way->flags : 0;
        set->pool.variant = way->which == POOL ? variant : 0;
        set->norm.variant = way->which == NORM ? variant : 0;
        set->fused.variant = variant;
    }
}

static int bench_way(struct st_bench *bench, struct compress_case *c, int most, int passes,
                     struct st_bench_row *row, const char *name, const struct way *way) {
    char label[96];
    unsigned int last = bench->options.all_variants ? way->variants : 0;
    snprintf(label, sizeof(label), "%s%s", name, way->what);
    row->name = label;
    row->launch_count = way->which == (POOL | NORM) ? 2 : 1;
    for (unsigned int v = last > 0 ? 1 : 0; v <= last; v++) {
        set_way(c, most, way, v);
        row->variant = (int)v;
        if (compress_call(0, bench->stream, c) == STEPTAPE_ERR_UNSUPPORTED)
            continue; /* not of this shape or device */
        for (int pass = 0; pass < passes; pass++) {
            if (pass == 1 && most == 1)
                continue;
            c->sets = row->sets = pass == 0 ? 1 : most;
            ST_TRY(st_bench_graph(bench, ST_BENCH_CALLS, compress_call, c, row));
            ST_TRY(st_bench_emit(bench, row));
        }
    }
    return ST_OK;
}

/* Makes a batch's sets, then calls body with them; whatever it says, the memory is given back. */
static int bench_batch(struct st_bench *bench, const struct shape *shape, const struct batch *batch,
                       int passes, const struct way *ways, int way_count, double anchor_us,
                       const char *group, const char *name) {
    struct compress_case *c = new struct compress_case();
    struct st_bench_row row = {};
    int64_t stored = batch->prefill ? batch->tokens / shape->ratio : batch->stored;
    struct steptape_token_counts counts = {batch->tokens, stored, stored, stored};
    struct steptape_cost cost;
    int rc = make_compress(bench, shape, batch, 0, &c->set[0]);
    c->sets = 1;
    steptape_compress_fused_cost(&c->set[0].fused, &counts, &cost);
    row.group = group;
    row.bytes = cost.read_bytes + cost.written_bytes;
    int most = passes == 1 ? 1 : st_bench_sets(bench, row.bytes);
    if (most * batch->tokens > 4096)
        most = most < 4 ? most : 4;
    for (int set = 1; set < most && rc == ST_OK; set++)
        rc = make_compress(bench, shape, batch, set, &c->set[set]);
    for (int k = 0; k < way_count && rc == ST_OK; k++) {
        row.anchor_us = ways[k].which == POOL || ways[k].which == NORM ? 0.0 : anchor_us;
        rc = bench_way(bench, c, most, passes, &row, name, &ways[k]);
    }
    st_bench_free_all(bench);
    delete c;
    return rc;
}

/* ---- c128: two launches and one */

static int bench_c128(struct st_bench *bench) {
    static const struct {
        int tokens;
        double none_us, all_us;
    } cases[] = {
        {1, 2.13, 4.74},    {16, 2.61, 5.65}, {64, 3.03, 9.91},
        {256, 4.86, 37.22}, {512, 0.0, 0.0},  {2048, 19.92, 251.54},
    };
    char name[64];
    int ways = bench->options.all_variants ? 8 : 6;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        for (int all = 0; all < 2; all++) {
            struct batch batch = {cases[i].tokens, all ? cases[i].tokens : 0, 0};
            snprintf(name, sizeof(name), "T=%d boundary=%s", cases[i].tokens, all ? "all" : "none");
            if (st_bench_wanted(bench, "compress", name))
                ST_TRY(bench_batch(bench, &shapes[C128], &batch, 2, c128_ways, ways,
                                   all ? cases[i].all_us : cases[i].none_us, "compress", name));
        }
    }
    for (int tokens = 512; tokens <= 2048; tokens *= 4) {
        struct batch batch = {tokens, 0, 1};
        snprintf(name, sizeof(name), "T=%d boundary=128th", tokens);
        if (st_bench_wanted(bench, "compress", name))
            ST_TRY(bench_batch(bench, &shapes[C128], &batch, 2, c128_ways, ways, 0.0, "compress",
                               name));
    }
    return ST_OK;
}

/* ---- c4 and the indexer */

static int bench_c4(struct st_bench *bench) {
    static const struct {
        int kind, tokens, boundary; /* 0: none, 1: all, 2: every fourth, a prefill */
        double anchor_us;
    } cases[] = {
        {C4, 1, 1, 0.0},         {C4, 64, 0, 0.0},        {C4, 64, 1, 4.36},
        {C4, 256, 1, 0.0},       {C4, 2048, 0, 0.0},      {C4, 2048, 1, 24.70},
        {C4, 2048, 2, 0.0},      {C4, 8192, 2, 0.0},      {INDEXER, 1, 1, 0.0},
        {INDEXER, 64, 0, 0.0},   {INDEXER, 64, 1, 0.0},   {INDEXER, 2048, 0, 0.0},
        {INDEXER, 2048, 1, 0.0}, {INDEXER, 8192, 2, 0.0},
    };
    static const char *const names[] = {"none", "all", "4th"};
    static const struct way ways[] = {{"", FUSED, 0, 0, 2},
                                      {", early", FUSED, STEPTAPE_LAUNCH_EARLY, 0, 2},
                                      {", along a list", FUSED, 0, 1, 2}};
    char name[64];
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct batch batch = {cases[i].tokens, cases[i].boundary == 1 ? cases[i].tokens : 0,
                              cases[i].boundary == 2};
        snprintf(name, sizeof(name), "%s T=%d boundary=%s", shapes[cases[i].kind].name,
                 cases[i].tokens, names[cases[i].boundary]);
        if (st_bench_wanted(bench, "compress_fused", name))
            ST_TRY(bench_batch(bench, &shapes[cases[i].kind], &batch, 2, ways, 3,
                               cases[i].anchor_us, "compress_fused", name));
    }
    return ST_OK;
}

/* ---- always both launches, or one along a list */

/* Batches of decode with some of their tokens at the end of a group. */
static int bench_compact(struct st_bench *bench) {
    static const int batches[] = {1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512};
    static const struct {
        int of; /* 1 in so many; 0: none */
        const char *name;
    } shares[] = {{0, "0"}, {128, "1/128"}, {2, "1/2"}, {1, "1"}};
    char name[64];
    for (size_t i = 0; i < sizeof(batches) / sizeof(batches[0]); i++) {
        for (int k = 0; k < 4; k++) {
            int stored = shares[k].of == 0 ? 0 : (batches[i] + shares[k].of - 1) / shares[k].of;
            struct batch batch = {batches[i], stored, 0};
            snprintf(name, sizeof(name), "batch=%d share=%s", batches[i], shares[k].name);
            if (st_bench_wanted(bench, "compact", name))
                ST_TRY(bench_batch(bench, &shapes[C128], &batch, 1, c128_ways, 6, 0.0, "compact",
                                   name));
        }
    }
    return ST_OK;
}

/* ---- the published case of the launch skip */

/* One token at position 126, state [16, 8, 1024]: save and the pair, or save alone. */
static int bench_skip_case(struct st_bench *bench) {
    if (!st_bench_wanted(bench, "skip", "one token at position 126"))
        return ST_OK;
    const struct batch batch = {1, 0, 0};
    struct compress_case *c = new struct compress_case();
    int rc = make_compress(bench, &shapes[C128], &batch, 0, &c->set[0]);
    if (rc == ST_OK)
        rc = st_bench_make_save(bench, 1, 512, 0, &c->set[0].save);
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
        {"one token at position 126, always (3 launches)", SAVE | POOL | NORM, 0},
        {"one token at position 126, always, pair overlapped (3 launches)", SAVE | POOL | NORM,
         STEPTAPE_LAUNCH_AFTER_POOL},
        {"one token at position 126, always, fused (2 launches)", SAVE | FUSED, 0},
        {"one token at position 126, skipped (1 launch)", SAVE, 0},
    };
    for (int k = 0; k < 4 && rc == ST_OK; k++) {
        struct st_bench_row row = {};
        row.group = "skip";
        row.name = kinds[k].name;
        row.sets = 1;
        row.launch_count = kinds[k].which == SAVE ? 1 : (kinds[k].which & FUSED) != 0 ? 2 : 3;
        c->which = kinds[k].which;
        c->set[0].norm.flags = kinds[k].flags;
        rc = st_bench_eager(bench, 1000, 20, compress_call, c, &row);
        if (rc == ST_OK)
            rc = st_bench_emit(bench, &row);
        if (rc == ST_OK)
            rc = st_bench_graph_launches(bench, 1000, 20, compress_call, c, &row);
        if (rc == ST_OK)
            rc = st_bench_emit(bench, &row);
    }
    st_bench_free_all(bench);
    delete c;
    return rc;
}

int st_bench_compress_cases(struct st_bench *bench) {
    ST_TRY(bench_c128(bench));
    ST_TRY(bench_c4(bench));
    ST_TRY(bench_compact(bench));
    return bench_skip_case(bench);
}
