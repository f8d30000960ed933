/* SPDX-License-Identifier: Apache-2.0 */
#include "replay/buffers.h"

#include <string.h>

#include "steptape/kernels.h"

#define ST_BUFFER_NAME(name, scope) [ST_BUF_##name] = #name,
static const char *const names[ST_BUF_COUNT] = {ST_BUFFER_TABLE(ST_BUFFER_NAME)};
#define ST_BUFFER_SCOPE(name, scope) [ST_BUF_##name] = ST_SCOPE_##scope,
static const enum st_scope scopes[ST_BUF_COUNT] = {ST_BUFFER_TABLE(ST_BUFFER_SCOPE)};

const char *st_buffer_name(enum st_buffer_id id) {
    return names[id];
}

enum st_scope st_buffer_scope(enum st_buffer_id id) {
    return scopes[id];
}

enum st_buffer_id st_buffer_of_table(enum st_cache_id cache) {
    return (enum st_buffer_id)((int)ST_BUF_TABLE_SWA0 + (int)cache);
}

enum st_buffer_id st_buffer_of_cache(enum st_cache_id cache) {
    static const enum st_buffer_id ids[ST_CACHE_COUNT] = {
        [ST_CACHE_SWA0] = ST_BUF_CACHE_SWA0,
        [ST_CACHE_SWA1] = ST_BUF_CACHE_SWA1,
        [ST_CACHE_SWA2] = ST_BUF_CACHE_SWA2,
        [ST_CACHE_KV_C4] = ST_BUF_CACHE_KV_C4,
        [ST_CACHE_KV_C128] = ST_BUF_CACHE_KV_C128,
        [ST_CACHE_KV_INDEXER] = ST_BUF_CACHE_KV_INDEXER,
        [ST_CACHE_STATE_C4] = ST_BUF_CACHE_STATE_C4,
        [ST_CACHE_STATE_C128] = ST_BUF_CACHE_STATE_C128,
        [ST_CACHE_STATE_INDEXER] = ST_BUF_CACHE_STATE_INDEXER,
        [ST_CACHE_DSA] = ST_BUF_CACHE_DSA,
    };
    return ids[cache];
}

/* ---- sizes */

static int64_t round_up(int64_t value, int64_t unit) {
    return (value + unit - 1) / unit * unit;
}

static int64_t largest(int64_t a, int64_t b) {
    return a > b ? a : b;
}

int64_t st_logits_stride(const struct st_model *model) {
    if (model->kind_count[ST_LAYER_DSA])
        return round_up(model->max_model_len, 4);
    return model->kind_count[ST_LAYER_C4] ? round_up(model->max_model_len / 4 + 1, 4) : 0;
}

static void make_strides(const struct st_model *m, const struct st_limits *limits,
                         struct st_buffers *b) {
    int64_t length = limits->uses_full ? m->max_model_len : limits->max_seq_len;
    length = largest(length, 1);
    for (int c = 0; c < ST_CACHE_COUNT; c++)
        if (st_model_has(m, (enum st_cache_id)c))
            b->table_stride[c] = length / m->cache[c].block_size + 1;
    b->slot_count = largest(m->max_num_batched_tokens, b->max_tokens);
    b->c128a_capacity = steptape_c128a_capacity(m->max_model_len, 128);
    int64_t topk = m->kind_count[ST_LAYER_C4] || m->kind_count[ST_LAYER_DSA] ? m->index_topk : 0;
    if (m->kind_count[ST_LAYER_C128])
        topk = largest(topk, b->c128a_capacity);
    b->combined_stride = round_up(topk + m->window, STEPTAPE_MLA_TILE);
    b->logits_stride = st_logits_stride(m);
}

/* The area that chunk planning may use (vLLM #45061), for the layers that need most. */
static int64_t workspace_rows(const struct st_model *m) {
    int64_t entries = 0;
    if (m->kind_count[ST_LAYER_C128])
        entries = (m->max_model_len + 127) / 128;
    if (m->kind_count[ST_LAYER_C4])
        entries = (m->max_model_len + 3) / 4;
    if (m->kind_count[ST_LAYER_DSA])
        entries = m->max_model_len;
    return 4 * (entries + m->window + m->max_num_batched_tokens) + STEPTAPE_MLA_TILE;
}

static void size_inputs(const struct st_model *m, const struct st_limits *limits,
                        struct st_buffers *b) {
    int64_t tokens = b->max_tokens, requests = b->max_requests, *bytes = b->bytes;
    bool c4 = m->kind_count[ST_LAYER_C4] > 0, c128 = m->kind_count[ST_LAYER_C128] > 0;
    bool dsa = m->kind_count[ST_LAYER_DSA] > 0;
    bytes[ST_BUF_POSITION] = tokens * 8;
    bytes[ST_BUF_TOKEN_TO_REQ] = tokens * 4;
    bytes[ST_BUF_REQUEST_ID] = requests * 8;
    bytes[ST_BUF_QUERY_START_LOC] = (requests + 1) * 4;
    bytes[ST_BUF_SEQ_LEN] = requests * 4;
    bytes[ST_BUF_LEN_C4] = c4 ? tokens * 4 : 0;
    bytes[ST_BUF_LEN_C128] = c128 ? tokens * 4 : 0;
    bytes[ST_BUF_LEN_DSA] = dsa ? tokens * 4 : 0;
    bytes[ST_BUF_LEN_PADDED] = c4 || dsa ? limits->max_topk_rows * 4 : 0;
    bytes[ST_BUF_ROW_START] = bytes[ST_BUF_ROW_END] = c4 || dsa ? tokens * 4 : 0;
    bytes[ST_BUF_SLOT] = bytes[ST_BUF_EXPECTED_SLOT] = ST_CACHE_COUNT * tokens * 8;
    for (int c = 0; c < ST_CACHE_COUNT; c++)
        bytes[st_buffer_of_table((enum st_cache_id)c)] = requests * b->table_stride[c] * 4;
    bytes[ST_BUF_KV_SCORE_C4] = c4 ? tokens * 2048 * 4 : 0;
    bytes[ST_BUF_KV_SCORE_C128] = c128 ? tokens * 1024 * 4 : 0;
    bytes[ST_BUF_KV_SCORE_INDEXER] = c4 ? tokens * 512 * 4 : 0;
    bytes[ST_BUF_APE_C4] = c4 ? 4 * 1024 * 4 : 0;
    bytes[ST_BUF_APE_C128] = c128 ? 128 * 512 * 4 : 0;
    bytes[ST_BUF_APE_INDEXER] = c4 ? 4 * 256 * 4 : 0;
    bytes[ST_BUF_WEIGHT_C4] = c4 ? 512 * 4 : 0;
    bytes[ST_BUF_WEIGHT_C128] = c128 ? 512 * 4 : 0;
    bytes[ST_BUF_WEIGHT_INDEXER] = c4 ? 128 * 4 : 0;
    bytes[ST_BUF_COS_SIN] =
        c4 || c128 ? round_up(largest(limits->max_seq_len, 1), 128) * 64 * 4 : 0;
    bytes[ST_BUF_LOGITS] = c4 || dsa ? largest(limits->max_logits, 1) * 4 : 0;
    bytes[ST_BUF_Q] = tokens * m->heads * m->head_dim * 2;
    bytes[ST_BUF_SINK] = m->heads * 4;
}

static void size_caches(const struct st_model *m, struct st_buffers *b) {
    for (int c = 0; c < ST_CACHE_COUNT; c++)
        if (st_model_has(m, (enum st_cache_id)c))
            b->bytes[st_buffer_of_cache((enum st_cache_id)c)] =
                m->num_blocks * m->cache[c].page_bytes;
}

/* Scratch of the largest decode call: sizes alone, and never less for fewer tokens. */
static void size_decode(const struct st_model *m, struct st_buffers *b) {
    for (int k = 0; k < ST_LAYER_KINDS; k++) {
        if (m->kind_count[k] == 0)
            continue;
        struct steptape_sparse_mla_decode_args args;
        memset(&args, 0, sizeof args);
        args.tokens = b->max_tokens;
        args.heads = m->heads;
        args.d_qk = m->head_dim;
        args.q_head_stride = args.q_stride = m->head_dim;
        args.format = k == ST_LAYER_DSA ? STEPTAPE_KV_FP8_V32 : STEPTAPE_KV_FP8_DS_MLA;
        args.scope[0].topk = k == ST_LAYER_DSA ? m->index_topk : m->window;
        args.scope[1].topk = k == ST_LAYER_C4     ? m->index_topk
                             : k == ST_LAYER_C128 ? b->c128a_capacity
                                                  : 0;
        for (int i = 0; i < 2; i++) { /* any page will do */
            args.scope[i].indices_stride = args.scope[i].topk;
            args.scope[i].page_stride_bytes = STEPTAPE_KV_V32_ENTRY_BYTES;
            args.scope[i].page_size = 1;
        }
        int64_t plan = (int64_t)steptape_sparse_mla_decode_plan_bytes(&args);
        int64_t scratch = (int64_t)steptape_sparse_mla_decode_scratch_bytes(&args);
        b->plan_bytes = largest(b->plan_bytes, round_up(plan, 256));
        b->bytes[ST_BUF_DECODE_SCRATCH] = largest(b->bytes[ST_BUF_DECODE_SCRATCH], scratch);
    }
    b->bytes[ST_BUF_DECODE_PLAN] = ST_LAYER_KINDS * b->plan_bytes;
}

static int64_t topk_scratch(const struct st_model *m, const struct st_limits *limits,
                            const struct st_buffers *b) {
    struct steptape_topk_per_row_args args;
    memset(&args, 0, sizeof args);
    args.k = m->index_topk;
    args.next_n = 1;
    args.num_rows = 1;
    args.num_columns = (int32_t)b->logits_stride;
    args.logits_stride = args.num_columns;
    args.out_stride = args.k;
    int64_t rows = limits->max_logits / args.logits_stride;
    args.num_rows = largest(rows, 1);
    int64_t bytes = 0;
    for (unsigned flags = 0; flags < 4; flags++) {
        args.flags = flags;
        bytes = largest(bytes, (int64_t)steptape_topk_per_row_scratch_bytes(&args));
        /* many short rows may need more than few long ones */
        struct steptape_topk_per_row_args wide = args;
        wide.num_rows = b->max_tokens;
        wide.num_columns = (int32_t)(limits->max_logits / b->max_tokens + 1);
        wide.logits_stride = wide.num_columns;
        bytes = largest(bytes, (int64_t)steptape_topk_per_row_scratch_bytes(&wide));
    }
    /* and a step's own shape may fit its parts better than these by less than a row */
    return bytes > 0
               ? bytes + 16 * (b->logits_stride + limits->max_logits / b->max_tokens + 1) + 4096
               : 0;
}

static void size_sets(const struct st_model *m, const struct st_limits *limits,
                      struct st_buffers *b) {
    int64_t tokens = b->max_tokens, requests = b->max_requests, *bytes = b->bytes;
    bool c4 = m->kind_count[ST_LAYER_C4] > 0, c128 = m->kind_count[ST_LAYER_C128] > 0;
    bool dsa = m->kind_count[ST_LAYER_DSA] > 0;
    bytes[ST_BUF_KV_SLOT_C4] = bytes[ST_BUF_KV_SLOT_INDEXER] = c4 ? b->slot_count * 8 : 0;
    bytes[ST_BUF_KV_SLOT_C128] = c128 ? b->slot_count * 8 : 0;
    bytes[ST_BUF_SWA_INDICES] = dsa ? 0 : ST_MAX_SWA_GROUPS * tokens * m->window * 4;
    bytes[ST_BUF_SWA_LENS] = dsa ? 0 : ST_MAX_SWA_GROUPS * tokens * 4;
    bytes[ST_BUF_GATHER_LENS] = requests * 4;
    bytes[ST_BUF_C128A_DECODE] = c128 ? tokens * b->c128a_capacity * 4 : 0;
    bytes[ST_BUF_C128A_PREFILL] = c128 ? tokens * b->c128a_capacity * 4 : 0;
    bytes[ST_BUF_C128A_LENS] = c128 ? tokens * 4 : 0;
    bytes[ST_BUF_BOUNDARY_LIST] = c128 ? tokens * 4 : 0;
    bytes[ST_BUF_BOUNDARY_COUNT] = c128 ? 4 : 0;
    bytes[ST_BUF_POOLED] = c128 ? tokens * 512 * 4 : 0;
    int64_t selected = c4 || dsa ? m->index_topk * 4 : 0;
    bytes[ST_BUF_TOPK] = largest(tokens, limits->max_topk_rows) * selected;
    bytes[ST_BUF_TOPK_PADDED] = limits->max_topk_rows * selected;
    bytes[ST_BUF_TOPK_SCRATCH] = c4 || dsa ? topk_scratch(m, limits, b) : 0;
    bytes[ST_BUF_GLOBAL_TOPK] = tokens * selected;
    bytes[ST_BUF_GLOBAL_LENS] = c4 || dsa ? tokens * 4 : 0;
    bytes[ST_BUF_KV_WORKSPACE] = b->workspace_rows * m->head_dim * 2;
    bytes[ST_BUF_COMBINED] = tokens * b->combined_stride * 4;
    bytes[ST_BUF_COMBINED_LENS] = tokens * 4;
    bytes[ST_BUF_OUT] = tokens * m->heads * m->value_dim * 2;
    bytes[ST_BUF_MAX_LOGITS] = bytes[ST_BUF_LSE] = tokens * m->heads * 4;
    size_decode(m, b);
}

void st_buffers_make(const struct st_model *model, const struct st_limits *limits,
                     int32_t layer_buffers, struct st_buffers *buffers) {
    memset(buffers, 0, sizeof *buffers);
    buffers->layer_buffers = layer_buffers;
    buffers->max_tokens = limits->max_tokens > 0 ? limits->max_tokens : 1;
    buffers->max_requests = limits->max_requests > 0 ? limits->max_requests : 1;
    buffers->workspace_rows = workspace_rows(model);
    make_strides(model, limits, buffers);
    size_inputs(model, limits, buffers);
    size_caches(model, buffers);
    size_sets(model, limits, buffers);
}

/* ---- copies */

int64_t st_buffer_copies(const struct st_buffers *buffers, enum st_buffer_id id, int32_t sets) {
    switch (scopes[id]) {
    case ST_SCOPE_GENERATED:
        return buffers->layer_buffers;
    case ST_SCOPE_SET:
        return sets;
    case ST_SCOPE_CACHE:
        return (int64_t)sets * buffers->layer_buffers;
    default:
        return 1;
    }
}

int64_t st_buffer_copy(const struct st_buffers *buffers, enum st_buffer_id id, int32_t set,
                       int32_t layer_buffer) {
    switch (scopes[id]) {
    case ST_SCOPE_GENERATED:
        return layer_buffer;
    case ST_SCOPE_SET:
        return set;
    case ST_SCOPE_CACHE:
        return (int64_t)set * buffers->layer_buffers + layer_buffer;
    default:
        return 0;
    }
}
