/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Arguments of metadata and compressor launches; bind_attention.c has the rest.
 */
#include "replay/bind.h"

#include <string.h>

#include "replay/bind_i.h"

const struct st_kernel *st_operator_kernel(enum st_operator op) {
    static const struct st_kernel *found[ST_OP_COUNT];
    if (op == ST_OP_GRAPH_CONDITION || op >= ST_OP_COUNT)
        return NULL;
    if (!found[op]) /* every thread finds the same */
        found[op] = st_kernel_find(st_operator_name(op));
    return found[op];
}

/* ---- addresses */

static void *at(const struct st_bind *b, enum st_buffer_id id) {
    return b->frame ? b->frame->at[id] : NULL;
}

void *st_bind_at(const struct st_bind *b, enum st_buffer_id id, int64_t byte_offset) {
    void *base = at(b, id);
    return base ? (uint8_t *)base + byte_offset : NULL;
}

const int64_t *st_bind_slot(const struct st_bind *b, enum st_cache_id cache) {
    return st_bind_at(b, ST_BUF_SLOT,
                      ((int64_t)cache * b->buffers->max_tokens + b->launch->first_token) * 8);
}

/* Rows of the table from the launch's first request on; first_request says how many to leave out.
 */
const int32_t *st_bind_table(const struct st_bind *b, enum st_cache_id cache,
                             int32_t first_request) {
    return st_bind_at(b, st_buffer_of_table(cache),
                      (int64_t)first_request * b->buffers->table_stride[cache] * 4);
}

/* ---- what a cache's compressor has */

struct compressor {
    enum st_cache_id state, entries;
    enum st_buffer_id kv_score, ape, weight, kv_slot;
    int32_t width, head_dim, ratio;
};

static const struct compressor compressors[] = {
    {ST_CACHE_STATE_C4, ST_CACHE_KV_C4, ST_BUF_KV_SCORE_C4, ST_BUF_APE_C4, ST_BUF_WEIGHT_C4,
     ST_BUF_KV_SLOT_C4, 1024, 512, 4},
    {ST_CACHE_STATE_C128, ST_CACHE_KV_C128, ST_BUF_KV_SCORE_C128, ST_BUF_APE_C128,
     ST_BUF_WEIGHT_C128, ST_BUF_KV_SLOT_C128, 512, 512, 128},
    {ST_CACHE_STATE_INDEXER, ST_CACHE_KV_INDEXER, ST_BUF_KV_SCORE_INDEXER, ST_BUF_APE_INDEXER,
     ST_BUF_WEIGHT_INDEXER, ST_BUF_KV_SLOT_INDEXER, 256, 128, 4},
};

static const struct compressor *compressor_of(int cache) {
    for (size_t i = 0; i < sizeof compressors / sizeof compressors[0]; i++)
        if ((int)compressors[i].state == cache || (int)compressors[i].entries == cache)
            return &compressors[i];
    return &compressors[1];
}

enum st_buffer_id st_bind_kv_slot(enum st_cache_id cache) {
    return compressor_of(cache)->kv_slot;
}

/* ---- metadata */

static void bind_slot_mapping(const struct st_bind *b,
                              struct steptape_compressed_slot_mapping_args *a) {
    enum st_cache_id cache = (enum st_cache_id)b->launch->cache;
    a->out = at(b, compressor_of(cache)->kv_slot);
    a->query_start_loc = at(b, ST_BUF_QUERY_START_LOC);
    a->seq_lens = at(b, ST_BUF_SEQ_LEN);
    a->block_table = st_bind_table(b, cache, 0);
    a->block_table_stride = b->buffers->table_stride[cache];
    /* The engine's whole buffer, whatever this step needs of it. */
    a->out_len = b->buffers->slot_count;
    a->num_reqs = b->launch->request_count;
    a->ratio = b->model->cache[cache].ratio;
    a->block_size = b->model->cache[cache].entries;
}

static void bind_swa_indices(const struct st_bind *b, struct steptape_swa_indices_args *a) {
    const struct st_launch *l = b->launch;
    enum st_cache_id cache = (enum st_cache_id)l->cache;
    int64_t row = (int64_t)(cache - ST_CACHE_SWA0) * b->buffers->max_tokens + l->first_token;
    a->indices = st_bind_at(b, ST_BUF_SWA_INDICES, row * b->model->window * 4);
    a->lens = st_bind_at(b, ST_BUF_SWA_LENS, row * 4);
    a->positions = st_bind_at(b, ST_BUF_POSITION, l->first_token * 8);
    a->slot_mapping = st_bind_slot(b, cache);
    a->token_to_req = st_bind_at(b, ST_BUF_TOKEN_TO_REQ, l->first_token * 4);
    a->block_table = st_bind_table(b, cache, 0);
    a->indices_stride = b->model->window;
    a->block_table_stride = b->buffers->table_stride[cache];
    a->num_tokens = l->token_count;
    a->window = b->model->window;
    a->block_size = b->model->cache[cache].block_size;
}

static void bind_gather_lens(const struct st_bind *b, struct steptape_gather_lens_args *a) {
    const struct st_launch *l = b->launch;
    a->out = st_bind_at(b, ST_BUF_GATHER_LENS, l->first_request * 4);
    a->query_start_loc = st_bind_at(b, ST_BUF_QUERY_START_LOC, l->first_request * 4);
    a->seq_lens = st_bind_at(b, ST_BUF_SEQ_LEN, l->first_request * 4);
    a->num_reqs = l->request_count;
    a->window = b->model->window;
}

static void bind_c128a(const struct st_bind *b, struct steptape_c128a_topk_metadata_args *a) {
    const struct st_launch *l = b->launch;
    struct st_c128a_view view = st_bind_c128a_written(b);
    a->decode = at(b, ST_BUF_C128A_DECODE);
    a->decode_lens = at(b, ST_BUF_C128A_LENS);
    a->prefill = at(b, ST_BUF_C128A_PREFILL);
    a->positions = at(b, ST_BUF_POSITION);
    a->slot_mapping = st_bind_slot(b, ST_CACHE_STATE_C128);
    a->token_to_req = at(b, ST_BUF_TOKEN_TO_REQ);
    a->block_table = st_bind_table(b, ST_CACHE_KV_C128, 0);
    a->decode_stride = a->prefill_stride = view.stride;
    a->block_table_stride = b->buffers->table_stride[ST_CACHE_KV_C128];
    a->num_tokens = l->token_count;
    a->num_decode_tokens = b->plan->shape.decode_token_count;
    a->width = view.width;
    a->ratio = 128;
    a->block_size = b->model->cache[ST_CACHE_KV_C128].entries;
}

static void bind_boundary_list(const struct st_bind *b, struct steptape_boundary_list_args *a) {
    a->list = at(b, ST_BUF_BOUNDARY_LIST);
    a->count = at(b, ST_BUF_BOUNDARY_COUNT);
    a->positions = at(b, ST_BUF_POSITION);
    a->slot_mapping = st_bind_slot(b, ST_CACHE_STATE_C128);
    a->kv_slot_mapping = at(b, ST_BUF_KV_SLOT_C128);
    a->num_tokens = b->launch->token_count;
    a->ratio = 128;
}

/* ---- compressors */

static void bind_save(const struct st_bind *b, struct steptape_save_partial_states_args *a) {
    const struct compressor *c = compressor_of(b->launch->cache);
    a->kv = at(b, c->kv_score);
    a->score = st_bind_at(b, c->kv_score, c->width * 4);
    a->ape = at(b, c->ape);
    a->positions = at(b, ST_BUF_POSITION);
    a->slot_mapping = st_bind_slot(b, c->state);
    a->state_cache = at(b, st_buffer_of_cache(c->state));
    a->kv_stride = a->score_stride = a->state_row_stride = 2 * c->width;
    a->ape_stride = a->width = c->width;
    a->state_page_stride = b->model->cache[c->state].page_bytes / 4;
    a->num_tokens = b->launch->token_count;
    a->ratio = c->ratio;
    a->block_size = b->model->cache[c->state].block_size;
}

static void bind_pool(const struct st_bind *b, struct steptape_compress_pool_args *a) {
    const struct compressor *c = compressor_of(b->launch->cache);
    a->state_cache = at(b, st_buffer_of_cache(c->state));
    a->positions = at(b, ST_BUF_POSITION);
    a->slot_mapping = st_bind_slot(b, c->state);
    a->kv_slot_mapping = at(b, c->kv_slot);
    a->token_to_req = at(b, ST_BUF_TOKEN_TO_REQ);
    a->block_table = st_bind_table(b, c->state, 0);
    a->pooled = at(b, ST_BUF_POOLED);
    a->state_page_stride = b->model->cache[c->state].page_bytes / 4;
    a->state_row_stride = 2 * c->width;
    a->block_table_stride = b->buffers->table_stride[c->state];
    a->pooled_stride = a->head_dim = c->head_dim;
    a->num_tokens = b->launch->token_count;
    a->ratio = c->ratio;
    a->block_size = b->model->cache[c->state].block_size;
}

static void bind_store(const struct st_bind *b, struct steptape_compress_norm_rope_store_args *a) {
    const struct compressor *c = compressor_of(b->launch->cache);
    a->pooled = at(b, ST_BUF_POOLED);
    a->positions = at(b, ST_BUF_POSITION);
    a->slot_mapping = st_bind_slot(b, c->state);
    a->kv_slot_mapping = at(b, c->kv_slot);
    a->weight = at(b, c->weight);
    a->cos_sin_cache = at(b, ST_BUF_COS_SIN);
    a->kv_cache = at(b, st_buffer_of_cache(c->entries));
    a->pooled_stride = a->values_stride = a->head_dim = c->head_dim;
    a->cos_sin_stride = a->rope_dim = b->model->rope_dim;
    a->kv_page_stride_bytes = b->model->cache[c->entries].page_bytes;
    a->num_tokens = b->launch->token_count;
    a->ratio = c->ratio;
    a->kv_block_size = b->model->cache[c->entries].entries;
    a->weight_dtype = STEPTAPE_FP32;
    a->eps = (float)b->model->rms_eps;
    a->flags = b->launch->after_pool ? STEPTAPE_LAUNCH_AFTER_POOL : 0;
}

static void bind_fused(const struct st_bind *b, struct steptape_compress_fused_args *a) {
    const struct compressor *c = compressor_of(b->launch->cache);
    a->state_cache = at(b, st_buffer_of_cache(c->state));
    a->positions = at(b, ST_BUF_POSITION);
    a->slot_mapping = st_bind_slot(b, c->state);
    a->kv_slot_mapping = at(b, c->kv_slot);
    a->token_to_req = at(b, ST_BUF_TOKEN_TO_REQ);
    a->block_table = st_bind_table(b, c->state, 0);
    if (c->ratio == 128 && b->launch->token_count > ST_C128_FEW_TOKENS) {
        a->list = at(b, ST_BUF_BOUNDARY_LIST);
        a->list_count = at(b, ST_BUF_BOUNDARY_COUNT);
        /* A cost is asked for without addresses; that there is a list decides the grid. */
        if (!b->frame)
            a->list = a->list_count = &st_bind_no_list;
    }
    a->weight = at(b, c->weight);
    a->cos_sin_cache = at(b, ST_BUF_COS_SIN);
    a->kv_cache = at(b, st_buffer_of_cache(c->entries));
    a->state_page_stride = b->model->cache[c->state].page_bytes / 4;
    a->state_row_stride = 2 * c->width;
    a->block_table_stride = b->buffers->table_stride[c->state];
    a->cos_sin_stride = a->rope_dim = b->model->rope_dim;
    a->kv_page_stride_bytes = b->model->cache[c->entries].page_bytes;
    a->num_tokens = b->launch->token_count;
    a->head_dim = c->head_dim;
    a->ratio = c->ratio;
    a->overlap = c->ratio == 4;
    a->block_size = b->model->cache[c->state].block_size;
    a->kv_block_size = b->model->cache[c->entries].entries;
    a->weight_dtype = STEPTAPE_FP32;
    a->format = c->head_dim == 512 ? STEPTAPE_COMPRESS_FP8_DS_MLA : STEPTAPE_COMPRESS_INDEXER_FP8;
    a->eps = (float)b->model->rms_eps;
    a->flags = b->launch->after_save ? STEPTAPE_LAUNCH_AFTER_SAVE : 0;
}

const int32_t st_bind_no_list = 0;

/* ---- the table */

void st_bind(const struct st_model *model, const struct st_buffers *buffers,
             const struct st_frame *frame, const struct st_plan *plan,
             const struct st_launch *launch, union st_args *args) {
    const struct st_bind bind = {model, buffers, frame, plan, launch}, *b = &bind;
    memset(args, 0, sizeof *args);
    switch ((enum st_operator)launch->op) {
    case ST_OP_COMPRESSED_SLOT_MAPPING:
        bind_slot_mapping(b, &args->compressed_slot_mapping);
        break;
    case ST_OP_SWA_INDICES:
        bind_swa_indices(b, &args->swa_indices);
        break;
    case ST_OP_GATHER_LENS:
        bind_gather_lens(b, &args->gather_lens);
        break;
    case ST_OP_C128A_TOPK_METADATA:
        bind_c128a(b, &args->c128a_topk_metadata);
        break;
    case ST_OP_BOUNDARY_LIST:
        bind_boundary_list(b, &args->boundary_list);
        break;
    case ST_OP_SAVE_PARTIAL_STATES:
        bind_save(b, &args->save_partial_states);
        break;
    case ST_OP_COMPRESS_POOL:
        bind_pool(b, &args->compress_pool);
        break;
    case ST_OP_COMPRESS_NORM_ROPE_STORE:
        bind_store(b, &args->compress_norm_rope_store);
        break;
    case ST_OP_COMPRESS_FUSED:
        bind_fused(b, &args->compress_fused);
        break;
    default:
        st_bind_attention(b, args);
    }
}

/* ---- what costs are told */

static int64_t listed(const struct st_bind *b, const struct st_work *work) {
    switch (b->launch->kind) {
    case ST_LAYER_C4:
        return work->swa + work->c4_topk;
    case ST_LAYER_C128:
        return work->swa + work->c128;
    case ST_LAYER_DSA:
        return work->dsa_topk;
    default:
        return work->swa;
    }
}

static int64_t entries_of_launch(const struct st_bind *b) {
    const struct st_launch *l = b->launch;
    const struct st_step_shape *shape = &b->plan->shape;
    const struct st_chunk *chunk = l->chunk >= 0 ? &b->plan->chunk[l->chunk] : NULL;
    const struct st_work *work = l->part == ST_PART_PREFILL ? &shape->prefill : &shape->decode;
    bool dsa = l->kind == ST_LAYER_DSA;
    switch ((enum st_operator)l->op) {
    case ST_OP_SWA_INDICES:
        return work->swa;
    case ST_OP_C128A_TOPK_METADATA: /* rows of prefill are counted by the kernel's own rule */
        return shape->decode.c128;
    case ST_OP_COMPRESS_FUSED: /* ratio 128 may walk a list */
        return l->cache == ST_CACHE_KV_C128 ? shape->boundary_tokens : 0;
    case ST_OP_TOPK_PER_ROW:
        return chunk ? chunk->listed : dsa ? work->dsa : work->c4;
    case ST_OP_GLOBAL_TOPK_INDICES:
        return dsa ? work->dsa_topk : work->c4_topk;
    case ST_OP_SPARSE_MLA_DECODE:
        return listed(b, work);
    case ST_OP_DEQUANTIZE_AND_GATHER:
        return l->part == ST_PART_COMPRESSED ? chunk->gathered_entries : chunk->gathered_window;
    case ST_OP_COMBINE_TOPK_SWA_INDICES:
    case ST_OP_SPARSE_MLA_PREFILL:
        return chunk->listed;
    default:
        return 0;
    }
}

/* With those of padding; FULL has none beyond its tokens. */
static int64_t selected_rows(const struct st_bind *b) {
    bool flat = b->plan->policy->value[ST_SWITCH_TOPK_ROWS] == ST_TOPK_ROWS_FLAT ||
                b->launch->part != ST_PART_DECODE;
    return flat ? b->launch->token_count : st_step_padded_rows(&b->plan->shape);
}

void st_bind_counts(const struct st_model *model, const struct st_plan *plan,
                    const struct st_launch *launch, struct steptape_token_counts *counts) {
    const struct st_bind bind = {model, NULL, NULL, plan, launch};
    const struct st_step_shape *shape = &plan->shape;
    memset(counts, 0, sizeof *counts);
    bool c4 = launch->cache < ST_CACHE_COUNT && model->cache[launch->cache].ratio == 4;
    /* Of a launch's rows, those of real tokens. */
    int64_t real = (int64_t)shape->token_count - launch->first_token;
    real = real < 0 ? 0 : real > launch->token_count ? launch->token_count : real;
    counts->mapped = launch->op == ST_OP_TOPK_PER_ROW ? selected_rows(&bind) : real;
    if (launch->op <= ST_OP_COMPRESS_FUSED)
        counts->boundary = counts->stored = c4 ? shape->boundary_tokens_c4 : shape->boundary_tokens;
    counts->entries = entries_of_launch(&bind);
}
