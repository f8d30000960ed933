/* SPDX-License-Identifier: Apache-2.0 */
/*
 * steptape bench graph-skip on a GPU: graph_skip.h has the method.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "replay/backend_cuda_graph.h"
#include "replay/backend_cuda_kernels.h"
#include "replay/generator.h"
#include "replay/graph_skip.h"
#include "replay/policy.h"
#include "replay/predicate.h"
#include "steptape/kernels.h"
#include "traces/base/log.h"

enum {
    RATIO = 128,
    WIDTH = 512,
    STATE_ROWS = 8,           /* of a page */
    STATE_PAGE_BYTES = 32832, /* as vLLM pads them: multiples of 576 bytes */
    KV_PAGE_BYTES = 1728,
    KV_ENTRIES = 2,
    COLUMNS = 32,      /* two groups of 128 a request; the second is the one that closes */
    LIVE_COLUMNS = 16, /* pages a request has */
    MAX_LAYERS = 64,
    MAX_MEMORY = 16 + 6 * MAX_LAYERS,
    DEFAULT_LAYERS = 20,
    DEFAULT_SAMPLES = 100,
    WARM_UP = 10,
    LAUNCHES = 10 /* in a row, timed as one */
};

enum way {
    WAY_ALWAYS,
    WAY_WITHOUT, /* wrong where a group closes: the bound of what can be saved */
    WAY_EMPTY,   /* as wrong: what a launch costs that does nothing */
    WAY_VARIANT,
    WAY_NODES,
    WAY_TOGGLE,
    WAY_CONDITIONAL,
    WAY_COMPACT,
    WAY_COUNT
};
static const char *const way_names[WAY_COUNT] = {
    [WAY_ALWAYS] = "always",
    [WAY_WITHOUT] = "without the pair",
    [WAY_EMPTY] = "an empty launch instead",
    [WAY_VARIANT] = "variant",
    [WAY_NODES] = "node-disable, settled",
    [WAY_TOGGLE] = "node-disable, at a toggle",
    [WAY_CONDITIONAL] = "conditional",
    [WAY_COMPACT] = "compact",
};

/* What an issued chain holds. */
enum stack { STACK_SAVE, STACK_PAIR, STACK_FUSED, STACK_EMPTY };

struct layer {
    struct steptape_save_partial_states_args save;
    struct steptape_compress_pool_args pool;
    struct steptape_compress_norm_rope_store_args store;
    struct steptape_compress_fused_args fused;
    int64_t kv_bytes;
};

struct bench {
    cudaStream_t stream;
    cudaEvent_t begin, end;
    void *memory[MAX_MEMORY];
    int32_t memory_count;
    int32_t layers, samples;
    double *device_us, *host_us;
    /* one case */
    int32_t tokens, closing;
    int32_t *start, *query_len; /* host: what the predicate looks at */
    struct layer layer[MAX_LAYERS];
    struct steptape_boundary_list_args list;
    uint64_t *d_hash, *hash, *expected; /* [layers][2][tokens] */
    struct st_cuda_snapshot *d_snapshot;
    /* one way */
    cudaGraph_t graph[2];
    cudaGraphExec_t exec[2]; /* [1]: with the pair */
    cudaGraphNode_t pair_node[2 * MAX_LAYERS];
    bool pair_enabled;
    int32_t pair_nodes, kernels;
    struct st_cuda_graph_cost cost;
};

/* ---- memory of a case */

static int take(struct bench *b, void *pointer, int64_t bytes, struct st_error *err) {
    void *memory = NULL;
    if (b->memory_count == MAX_MEMORY)
        return ST_FAIL_NOMEM(err);
    ST_CUDA(err, cudaMalloc(&memory, (size_t)bytes));
    b->memory[b->memory_count++] = memory;
    memcpy(pointer, &memory, sizeof memory);
    ST_CUDA(err, cudaMemsetAsync(memory, 0, (size_t)bytes, b->stream));
    return 0;
}

static int take_copy(struct bench *b, void *pointer, const void *host, int64_t bytes,
                     struct st_error *err) {
    void *memory = NULL;
    ST_TRY(take(b, &memory, bytes, err));
    memcpy(pointer, &memory, sizeof memory);
    ST_CUDA(err, cudaMemcpyAsync(memory, host, (size_t)bytes, cudaMemcpyHostToDevice, b->stream));
    return 0;
}

static void free_case(struct bench *b) {
    cudaStreamSynchronize(b->stream);
    while (b->memory_count > 0)
        cudaFree(b->memory[--b->memory_count]);
    free(b->start);
    free(b->query_len);
    free(b->hash);
    free(b->expected);
    b->start = b->query_len = NULL;
    b->hash = b->expected = NULL;
}

/* What all layers of a case read. */
struct shared {
    int64_t *position, *slot, *kv_slot, *request_id, *rebuild;
    int32_t *owner, *table;
    float *cos_sin, *pooled;
};

/* `closing` tokens, anywhere, close their request's second group; *left: how many still do. */
static int64_t position_of(const struct bench *b, int32_t t, int32_t *left) {
    uint64_t z = ((uint64_t)t + 1) * UINT64_C(0x9e3779b97f4a7c15);
    z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    z ^= z >> 27;
    if ((int32_t)(z % (uint64_t)(b->tokens - t)) >= *left)
        return 2 * RATIO - 2 - t % 100;
    --*left;
    return 2 * RATIO - 1;
}

/* The host's arrays of a case, side by side. */
struct host {
    int64_t *position, *slot, *kv_slot, *request_id, *rebuild;
    int32_t *owner, *table;
};

/* Where the state of a request's position lies: an odd factor permutes the pages. */
static int32_t page_of(const struct bench *b, int32_t t, int64_t column) {
    int64_t pages = (int64_t)b->tokens * LIVE_COLUMNS;
    return (int32_t)(((int64_t)t * LIVE_COLUMNS + column % LIVE_COLUMNS) * 40503 % pages);
}

static void fill_token(struct bench *b, struct host *h, int32_t t, int32_t *left) {
    int64_t p = position_of(b, t, left), *rebuild = h->rebuild + (int64_t)t * RATIO * 3;
    for (int32_t k = 0; k < COLUMNS; k++)
        h->table[t * COLUMNS + k] = page_of(b, t, k);
    h->position[t] = p;
    h->slot[t] = (int64_t)page_of(b, t, p / STATE_ROWS) * STATE_ROWS + p % STATE_ROWS;
    h->kv_slot[t] = (p + 1) % RATIO == 0 ? t : -1;
    h->request_id[t] = h->owner[t] = t;
    b->start[t] = (int32_t)p;
    b->query_len[t] = 1;
    for (int64_t q = RATIO; q < 2 * RATIO; q++) {
        *rebuild++ = t;
        *rebuild++ = q;
        *rebuild++ = (int64_t)page_of(b, t, q / STATE_ROWS) * STATE_ROWS + q % STATE_ROWS;
    }
}

static int upload_shared(struct bench *b, const struct host *h, struct shared *s,
                         struct st_error *err) {
    int64_t bytes = (int64_t)b->tokens * 8;
    ST_TRY(take_copy(b, &s->position, h->position, bytes, err));
    ST_TRY(take_copy(b, &s->slot, h->slot, bytes, err));
    ST_TRY(take_copy(b, &s->kv_slot, h->kv_slot, bytes, err));
    ST_TRY(take_copy(b, &s->request_id, h->request_id, bytes, err));
    ST_TRY(take_copy(b, &s->rebuild, h->rebuild, bytes * RATIO * 3, err));
    ST_TRY(take_copy(b, &s->owner, h->owner, bytes / 2, err));
    ST_TRY(take_copy(b, &s->table, h->table, bytes / 2 * COLUMNS, err));
    ST_TRY(take(b, &s->cos_sin, 2 * RATIO * 64 * 4, err));
    ST_TRY(take(b, &s->pooled, bytes / 2 * WIDTH, err));
    ST_TRY(take(b, &b->d_hash, 2 * bytes * b->layers, err));
    struct st_cuda_snapshot nothing = {-1, -1, 0, 0};
    ST_TRY(take_copy(b, &b->d_snapshot, &nothing, sizeof nothing, err));
    ST_CUDA(err, cudaStreamSynchronize(b->stream));
    return 0;
}

static int make_shared(struct bench *b, struct shared *s, struct st_error *err) {
    size_t tokens = (size_t)b->tokens, rows = tokens * (size_t)b->layers;
    int64_t *words = calloc(tokens * (4 + 3 * RATIO), sizeof *words);
    int32_t *ids = calloc(tokens * (COLUMNS + 1), sizeof *ids);
    b->start = calloc(tokens, sizeof *b->start);
    b->query_len = calloc(tokens, sizeof *b->query_len);
    b->hash = calloc(2 * rows, sizeof *b->hash);
    b->expected = calloc(2 * rows, sizeof *b->expected);
    int rc;
    if (words && ids && b->start && b->query_len && b->hash && b->expected) {
        struct host h = {
            words, words + tokens, words + 2 * tokens, words + 3 * tokens, words + 4 * tokens,
            ids,   ids + tokens};
        int32_t left = b->closing;
        for (int32_t t = 0; t < b->tokens; t++)
            fill_token(b, &h, t, &left);
        rc = upload_shared(b, &h, s, err);
    } else {
        rc = ST_FAIL_NOMEM(err);
    }
    cudaStreamSynchronize(b->stream);
    free(words);
    free(ids);
    return rc;
}

/* What the generator gives a layer, and the states of both groups of every request. */
static int fill_layer(struct bench *b, const struct shared *s, int32_t number, float *kv_score,
                      float *ape, float *weight, float *state, struct st_error *err) {
    struct st_cuda_constants constants = {.ape = ape,
                                          .weight = weight,
                                          .buffer_count = 1,
                                          .ratio = RATIO,
                                          .width = WIDTH,
                                          .dim = WIDTH,
                                          .layer_key = number};
    struct st_cuda_scores scores = {.out = kv_score,
                                    .tokens = {s->request_id, s->owner, s->position},
                                    .token_count = b->tokens,
                                    .padded_token_count = b->tokens,
                                    .buffer_count = 1,
                                    .width = WIDTH,
                                    .layer_key = number};
    struct st_cuda_rebuild rebuild = {.state = (uint8_t *)state,
                                      .page_bytes = STATE_PAGE_BYTES,
                                      .block_size = STATE_ROWS,
                                      .ape = ape,
                                      .rebuild = s->rebuild,
                                      .count = b->tokens * RATIO,
                                      .buffer_count = 1,
                                      .ratio = RATIO,
                                      .width = WIDTH,
                                      .layer_key = number};
    ST_CUDA(err, st_cuda_fill_constants(&constants, b->stream));
    ST_CUDA(err, st_cuda_fill_scores(&scores, b->stream));
    ST_CUDA(err, st_cuda_rebuild_state(&rebuild, b->stream));
    return 0;
}

static void bind_save(const struct bench *b, const struct shared *s, const float *kv_score,
                      const float *ape, float *state, struct layer *l) {
    l->save = (struct steptape_save_partial_states_args){
        .kv = kv_score,
        .score = kv_score + WIDTH,
        .ape = ape,
        .positions = s->position,
        .slot_mapping = s->slot,
        .state_cache = state,
        .kv_stride = 2 * WIDTH,
        .score_stride = 2 * WIDTH,
        .ape_stride = WIDTH,
        .state_page_stride = STATE_PAGE_BYTES / 4,
        .state_row_stride = 2 * WIDTH,
        .num_tokens = b->tokens,
        .width = WIDTH,
        .ratio = RATIO,
        .block_size = STATE_ROWS,
    };
}

static void bind_pair(const struct bench *b, const struct shared *s, const float *state,
                      const float *weight, uint8_t *kv, struct layer *l) {
    l->pool = (struct steptape_compress_pool_args){
        .state_cache = state,
        .positions = s->position,
        .slot_mapping = s->slot,
        .kv_slot_mapping = s->kv_slot,
        .token_to_req = s->owner,
        .block_table = s->table,
        .pooled = s->pooled,
        .state_page_stride = STATE_PAGE_BYTES / 4,
        .state_row_stride = 2 * WIDTH,
        .block_table_stride = COLUMNS,
        .pooled_stride = WIDTH,
        .num_tokens = b->tokens,
        .head_dim = WIDTH,
        .ratio = RATIO,
        .block_size = STATE_ROWS,
    };
    l->store = (struct steptape_compress_norm_rope_store_args){
        .pooled = s->pooled,
        .positions = s->position,
        .slot_mapping = s->slot,
        .kv_slot_mapping = s->kv_slot,
        .weight = weight,
        .cos_sin_cache = s->cos_sin,
        .kv_cache = kv,
        .pooled_stride = WIDTH,
        .cos_sin_stride = 64,
        .kv_page_stride_bytes = KV_PAGE_BYTES,
        .num_tokens = b->tokens,
        .head_dim = WIDTH,
        .rope_dim = 64,
        .ratio = RATIO,
        .kv_block_size = KV_ENTRIES,
        .weight_dtype = STEPTAPE_FP32,
        .eps = 1e-6f,
        .flags = STEPTAPE_LAUNCH_AFTER_POOL,
    };
}

static int make_layer(struct bench *b, const struct shared *s, int32_t number,
                      struct st_error *err) {
    struct layer *l = &b->layer[number];
    float *kv_score, *ape, *weight, *state;
    uint8_t *kv;
    memset(l, 0, sizeof *l);
    l->kv_bytes = (int64_t)(b->tokens + 1) / KV_ENTRIES * KV_PAGE_BYTES;
    ST_TRY(take(b, &kv_score, (int64_t)b->tokens * 2 * WIDTH * 4, err));
    ST_TRY(take(b, &ape, RATIO * WIDTH * 4, err));
    ST_TRY(take(b, &weight, WIDTH * 4, err));
    ST_TRY(take(b, &state, (int64_t)b->tokens * LIVE_COLUMNS * STATE_PAGE_BYTES, err));
    ST_TRY(take(b, &kv, l->kv_bytes, err));
    ST_TRY(fill_layer(b, s, number, kv_score, ape, weight, state, err));
    bind_save(b, s, kv_score, ape, state, l);
    bind_pair(b, s, state, weight, kv, l);
    return 0;
}

/* The same work as the pair, as a plan of c128-launch=compact has it. */
static void make_fused(struct bench *b, const struct shared *s, struct layer *l) {
    const struct steptape_compress_pool_args *pool = &l->pool;
    const struct steptape_compress_norm_rope_store_args *store = &l->store;
    l->fused = (struct steptape_compress_fused_args){
        .state_cache = pool->state_cache,
        .positions = s->position,
        .slot_mapping = s->slot,
        .kv_slot_mapping = s->kv_slot,
        .token_to_req = s->owner,
        .block_table = s->table,
        .list = b->tokens > ST_C128_FEW_TOKENS ? b->list.list : NULL,
        .list_count = b->list.count,
        .weight = store->weight,
        .cos_sin_cache = s->cos_sin,
        .kv_cache = store->kv_cache,
        .state_page_stride = pool->state_page_stride,
        .state_row_stride = pool->state_row_stride,
        .block_table_stride = COLUMNS,
        .cos_sin_stride = 64,
        .kv_page_stride_bytes = KV_PAGE_BYTES,
        .num_tokens = b->tokens,
        .head_dim = WIDTH,
        .rope_dim = 64,
        .ratio = RATIO,
        .block_size = STATE_ROWS,
        .kv_block_size = KV_ENTRIES,
        .weight_dtype = STEPTAPE_FP32,
        .format = STEPTAPE_COMPRESS_FP8_DS_MLA,
        .eps = 1e-6f,
        .flags = STEPTAPE_LAUNCH_AFTER_SAVE,
    };
}

static int make_case(struct bench *b, int32_t tokens, int32_t closing, struct st_error *err) {
    struct shared s;
    memset(&s, 0, sizeof s);
    b->tokens = tokens;
    b->closing = closing;
    ST_TRY(make_shared(b, &s, err));
    int32_t *list, *count;
    ST_TRY(take(b, &list, (int64_t)tokens * 4, err));
    ST_TRY(take(b, &count, 4, err));
    b->list = (struct steptape_boundary_list_args){
        .list = list,
        .count = count,
        .positions = s.position,
        .slot_mapping = s.slot,
        .kv_slot_mapping = s.kv_slot,
        .num_tokens = tokens,
        .ratio = RATIO,
    };
    for (int32_t i = 0; i < b->layers; i++) {
        ST_TRY(make_layer(b, &s, i, err));
        make_fused(b, &s, &b->layer[i]);
    }
    ST_CUDA(err, cudaStreamSynchronize(b->stream));
    return 0;
}

/* ---- graphs of a way */

static int check(int rc, const char *what, struct st_error *err) {
    if (rc == STEPTAPE_OK)
        return 0;
    return ST_FAIL_NATIVE(err, ST_ERR_NATIVE, rc, "%s: %s (%d)", what, steptape_status_name(rc),
                          rc);
}

static int issue_pair(struct bench *b, const struct layer *l, cudaStream_t stream,
                      struct st_error *err) {
    ST_TRY(check(steptape_compress_pool(&l->pool, stream), "compress_pool", err));
    if (b->pair_nodes >= 0)
        ST_TRY(st_cuda_last_node(stream, &b->pair_node[b->pair_nodes++], err));
    ST_TRY(check(steptape_compress_norm_rope_store(&l->store, stream), "compress_norm_rope_store",
                 err));
    if (b->pair_nodes >= 0)
        ST_TRY(st_cuda_last_node(stream, &b->pair_node[b->pair_nodes++], err));
    b->kernels += 2;
    return 0;
}

static int issue(void *user, int which, cudaStream_t stream, struct st_error *err) {
    struct bench *b = user;
    if (which == STACK_FUSED && b->layer[0].fused.list) {
        ST_TRY(check(steptape_boundary_list(&b->list, stream), "boundary_list", err));
        b->kernels++;
    }
    for (int32_t i = 0; i < b->layers; i++) {
        const struct layer *l = &b->layer[i];
        ST_TRY(check(steptape_save_partial_states(&l->save, stream), "save_partial_states", err));
        b->kernels++;
        if (which == STACK_PAIR) {
            ST_TRY(issue_pair(b, l, stream, err));
        } else if (which == STACK_FUSED) {
            ST_TRY(check(steptape_compress_fused(&l->fused, stream), "compress_fused", err));
            b->kernels++;
        } else if (which == STACK_EMPTY) {
            ST_CUDA(err, st_cuda_nothing(stream));
            b->kernels++;
        }
    }
    return 0;
}

static void free_way(struct bench *b) {
    for (int i = 0; i < 2; i++) {
        if (b->exec[i])
            cudaGraphExecDestroy(b->exec[i]);
        if (b->graph[i])
            cudaGraphDestroy(b->graph[i]);
        b->exec[i] = NULL;
        b->graph[i] = NULL;
    }
}

static int add_graph(struct bench *b, int at, int stack, struct st_error *err) {
    struct st_cuda_graph_cost cost;
    int64_t start_ns = st_cuda_now_ns();
    if (stack >= 0) {
        ST_TRY(st_cuda_capture(b->stream, issue, b, stack, &b->graph[at], err));
    } else {
        struct st_cuda_condition condition = {0, b->list.positions, b->list.slot_mapping, b->tokens,
                                              RATIO};
        ST_TRY(st_cuda_capture_if(b->stream, &condition, issue, b, &b->graph[at], err));
        b->kernels++;
    }
    ST_TRY(st_cuda_instantiate(b->graph[at], b->stream, &b->exec[at], &cost, err));
    b->cost.bytes += cost.bytes;
    b->cost.host_ns += st_cuda_now_ns() - start_ns;
    return 0;
}

static int make_way(struct bench *b, enum way way, struct st_error *err) {
    b->kernels = 0;
    b->pair_nodes = way == WAY_NODES || way == WAY_TOGGLE ? 0 : -1;
    b->pair_enabled = true;
    b->cost = (struct st_cuda_graph_cost){0, 0};
    switch (way) {
    case WAY_WITHOUT:
        return add_graph(b, 0, STACK_SAVE, err);
    case WAY_EMPTY:
        return add_graph(b, 0, STACK_EMPTY, err);
    case WAY_VARIANT:
        ST_TRY(add_graph(b, 0, STACK_SAVE, err));
        return add_graph(b, 1, STACK_PAIR, err);
    case WAY_CONDITIONAL:
        return add_graph(b, 0, -1, err);
    case WAY_COMPACT:
        return add_graph(b, 0, STACK_FUSED, err);
    default:
        return add_graph(b, 0, STACK_PAIR, err);
    }
}

static int set_nodes(struct bench *b, bool enabled, struct st_error *err) {
    for (int32_t i = 0; i < b->pair_nodes; i++)
        ST_CUDA(err, cudaGraphNodeSetEnabled(b->exec[0], b->pair_node[i], enabled));
    b->pair_enabled = enabled;
    return 0;
}

/* What the host does for one step. */
static int launch_step(struct bench *b, enum way way, struct st_error *err) {
    int at = 0;
    if (way == WAY_VARIANT) /* FALSE is the only answer that lets a host skip */
        at = st_boundary_predicate(b->start, b->query_len, b->tokens, RATIO) != ST_BOUNDARY_FALSE;
    if ((way == WAY_NODES || way == WAY_TOGGLE) && b->pair_enabled != (b->closing > 0))
        ST_TRY(set_nodes(b, b->closing > 0, err));
    ST_CUDA(err, cudaGraphLaunch(b->exec[at], b->stream));
    return 0;
}

/* ---- measuring */

static int compare_us(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

static void quartiles(double *sample, int32_t n, double *q1, double *median, double *q3) {
    qsort(sample, (size_t)n, sizeof *sample, compare_us);
    *q1 = sample[(n - 1) / 4];
    *median = n % 2 ? sample[n / 2] : (sample[n / 2 - 1] + sample[n / 2]) / 2;
    *q3 = sample[(3 * (n - 1) + 3) / 4];
}

static int one_sample(struct bench *b, enum way way, int32_t launches, double *device_us,
                      double *host_us, struct st_error *err) {
    float ms = 0;
    if (way == WAY_TOGGLE) /* as the step before left it */
        ST_TRY(set_nodes(b, b->closing == 0, err));
    ST_CUDA(err, cudaEventRecord(b->begin, b->stream));
    int64_t start_ns = st_cuda_now_ns();
    for (int32_t i = 0; i < launches; i++)
        ST_TRY(launch_step(b, way, err));
    int64_t end_ns = st_cuda_now_ns();
    ST_CUDA(err, cudaEventRecord(b->end, b->stream));
    ST_CUDA(err, cudaEventSynchronize(b->end));
    ST_CUDA(err, cudaEventElapsedTime(&ms, b->begin, b->end));
    *device_us = (double)ms * 1e3 / launches;
    *host_us = (double)(end_ns - start_ns) / 1e3 / launches;
    return 0;
}

/* Hashes of all states that a step saved and entries that it closed. */
static int hash_outputs(struct bench *b, uint64_t *hash, struct st_error *err) {
    int64_t tokens = b->tokens;
    for (int32_t i = 0; i < b->layers; i++) {
        const struct layer *l = &b->layer[i];
        struct st_cuda_rows rows = {
            .base = (const uint8_t *)l->save.state_cache,
            .slot = l->save.slot_mapping,
            .page_bytes = STATE_PAGE_BYTES,
            .entries = STATE_ROWS,
            .data_bytes = 2 * WIDTH * 4,
            .count = b->tokens,
        };
        ST_CUDA(err,
                st_cuda_observe(&rows, 0, b->d_hash + 2 * i * tokens, b->d_snapshot, b->stream));
        rows.base = l->store.kv_cache;
        rows.slot = l->store.kv_slot_mapping;
        rows.page_bytes = KV_PAGE_BYTES;
        rows.entries = KV_ENTRIES;
        rows.data_bytes = STEPTAPE_KV_ENTRY_DATA_BYTES;
        rows.tail_bytes = STEPTAPE_KV_ENTRY_SCALE_BYTES;
        ST_CUDA(err, st_cuda_observe(&rows, 0, b->d_hash + (2 * i + 1) * tokens, b->d_snapshot,
                                     b->stream));
    }
    ST_CUDA(err, cudaMemcpyAsync(hash, b->d_hash, (size_t)(2 * tokens * b->layers) * 8,
                                 cudaMemcpyDeviceToHost, b->stream));
    ST_CUDA(err, cudaStreamSynchronize(b->stream));
    return 0;
}

static int measure(struct bench *b, enum way way, struct st_graph_skip_row *row,
                   struct st_error *err) {
    int32_t launches = way == WAY_TOGGLE ? 1 : LAUNCHES;
    for (int32_t i = 0; i < b->layers; i++)
        ST_CUDA(err, cudaMemsetAsync(b->layer[i].store.kv_cache, 0, (size_t)b->layer[i].kv_bytes,
                                     b->stream));
    for (int32_t i = 0; i < WARM_UP + b->samples; i++) {
        int32_t at = i < WARM_UP ? 0 : i - WARM_UP;
        ST_TRY(one_sample(b, way, launches, &b->device_us[at], &b->host_us[at], err));
    }
    quartiles(b->device_us, b->samples, &row->q1_us, &row->median_us, &row->q3_us);
    quartiles(b->host_us, b->samples, &row->host_q1_us, &row->host_median_us, &row->host_q3_us);
    size_t bytes = 2 * (size_t)b->tokens * (size_t)b->layers * sizeof *b->hash;
    ST_TRY(hash_outputs(b, b->hash, err));
    if (way == WAY_ALWAYS)
        memcpy(b->expected, b->hash, bytes);
    row->same_outputs = memcmp(b->expected, b->hash, bytes) == 0;
    row->tokens = b->tokens;
    row->closing = b->closing;
    row->way = way_names[way];
    row->kernels = b->kernels;
    row->samples = b->samples;
    row->graph_bytes = b->cost.bytes;
    row->capture_ns = b->cost.host_ns;
    return 0;
}

static int bench_way(struct bench *b, enum way way, st_graph_skip_fn *emit, void *user,
                     struct st_error *err) {
    struct st_graph_skip_row row;
    memset(&row, 0, sizeof row);
    int rc = make_way(b, way, err);
    if (rc == ST_ERR_UNSUPPORTED) {
        st_log(ST_LOG_WARN, "%s", err->msg);
        rc = 0;
    } else {
        if (rc == 0)
            rc = measure(b, way, &row, err);
        if (rc == 0)
            rc = emit(&row, user);
    }
    free_way(b);
    return rc;
}

/* Whether a case measures a way.  Beyond the share of independent requests only what has to be held
 * against each other at every share. */
static bool has_way(const struct bench *b, int32_t share, enum way way) {
    if (way == WAY_WITHOUT || way == WAY_EMPTY)
        return b->closing == 0;
    return share < 2 || way == WAY_ALWAYS || way == WAY_COMPACT;
}

static int bench_case(struct bench *b, int32_t share, st_graph_skip_fn *emit, void *user,
                      struct st_error *err) {
    for (int way = 0; way < WAY_COUNT; way++)
        if (has_way(b, share, (enum way)way))
            ST_TRY(bench_way(b, (enum way)way, emit, user, err));
    return 0;
}

static int bench_cases(struct bench *b, st_graph_skip_fn *emit, void *user, struct st_error *err) {
    static const int32_t tokens[] = {1, 16, 32, 64, 128, 256, 512};
    for (size_t i = 0; i < sizeof tokens / sizeof tokens[0]; i++) {
        /* none; as many as independent requests have on average, but one; and more */
        int32_t n = tokens[i], most = -1;
        const int32_t shares[] = {0, (n + RATIO - 1) / RATIO, n / 8, n / 2, n};
        for (int32_t k = 0; k < (int32_t)(sizeof shares / sizeof shares[0]); k++) {
            if (shares[k] <= most)
                continue;
            most = shares[k];
            int rc = make_case(b, n, shares[k], err);
            if (rc == 0)
                rc = bench_case(b, k, emit, user, err);
            free_case(b);
            ST_TRY(rc);
        }
    }
    return 0;
}

int st_graph_skip_bench(const struct st_graph_skip_options *options, char *device, int32_t size,
                        st_graph_skip_fn *row, void *user, struct st_error *err) {
    struct cudaDeviceProp prop;
    int count = 0;
    if (cudaGetDeviceCount(&count) != cudaSuccess || count == 0)
        return ST_FAIL(err, ST_ERR_UNAVAILABLE, "bench graph-skip needs a GPU; none was found");
    struct bench *b = calloc(1, sizeof *b);
    if (!b)
        return ST_FAIL_NOMEM(err);
    int rc = 0;
    b->layers = options->layers > 0 ? options->layers : DEFAULT_LAYERS;
    b->layers = b->layers < MAX_LAYERS ? b->layers : MAX_LAYERS;
    b->samples = options->samples > 0 ? options->samples : DEFAULT_SAMPLES;
    b->device_us = calloc((size_t)b->samples, sizeof *b->device_us);
    b->host_us = calloc((size_t)b->samples, sizeof *b->host_us);
    if (!b->device_us || !b->host_us) {
        rc = ST_FAIL_NOMEM(err);
        goto out;
    }
    int made = (int)cudaGetDeviceProperties(&prop, 0);
    if (made == cudaSuccess)
        made = (int)cudaStreamCreateWithFlags(&b->stream, cudaStreamNonBlocking);
    if (made == cudaSuccess)
        made = (int)cudaEventCreate(&b->begin);
    if (made == cudaSuccess)
        made = (int)cudaEventCreate(&b->end);
    if (made != cudaSuccess) {
        rc = st_cuda_fail(err, made, "cudaStreamCreate", __FILE__, __LINE__);
        goto out;
    }
    snprintf(device, (size_t)size, "%s", prop.name);
    rc = bench_cases(b, row, user, err);
out:
    if (b->begin)
        cudaEventDestroy(b->begin);
    if (b->end)
        cudaEventDestroy(b->end);
    if (b->stream)
        cudaStreamDestroy(b->stream);
    free(b->device_us);
    free(b->host_us);
    free(b);
    return rc;
}
