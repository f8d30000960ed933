/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Arguments of top-k and attention launches, and the rows that an observation looks at.
 */
#include <string.h>

#include "replay/bind_i.h"

static int32_t round_up(int32_t value, int32_t unit) {
    return (value + unit - 1) / unit * unit;
}

static bool is_dsa(const struct st_bind *b) {
    return b->launch->kind == ST_LAYER_DSA;
}

/* ---- C128A lists */

struct st_c128a_view st_bind_c128a_written(const struct st_bind *b) {
    int32_t capacity = b->buffers->c128a_capacity, width = b->plan->topk_width;
    switch (b->plan->policy->value[ST_SWITCH_TOPK_WIDTH]) {
    case ST_TOPK_WIDTH_PACKED:
        return (struct st_c128a_view){width, width};
    case ST_TOPK_WIDTH_STRIDED:
        return (struct st_c128a_view){width, capacity};
    default:
        return (struct st_c128a_view){capacity, capacity};
    }
}

struct st_c128a_view st_bind_c128a_read(const struct st_bind *b) {
    int32_t capacity = b->buffers->c128a_capacity;
    if (b->plan->shape.mode == ST_GRAPH_MODE_FULL) /* captured at max_model_len */
        return (struct st_c128a_view){capacity, capacity};
    return st_bind_c128a_written(b);
}

/* ---- top-k */

static void bind_fill(const struct st_bind *b, struct steptape_fill_args *a) {
    const struct st_launch *l = b->launch;
    a->value = 0xFFFFFFFFu; /* -1 */
    a->rows = l->token_count;
    if (l->part == ST_PART_INDEXER) {
        a->out = st_bind_at(b, ST_BUF_TOPK, 0);
        a->columns = a->stride = b->model->index_topk;
        return;
    }
    union st_args combine;
    struct st_launch other = *l;
    other.op = ST_OP_COMBINE_TOPK_SWA_INDICES;
    st_bind(b->model, b->buffers, b->frame, b->plan, &other, &combine);
    a->out = (uint32_t *)combine.combine_topk_swa_indices.indices;
    a->columns = combine.combine_topk_swa_indices.width;
    a->stride = combine.combine_topk_swa_indices.indices_stride;
}

static uint32_t select_flags(const struct st_bind *b) {
    switch (b->plan->policy->value[ST_SWITCH_TOPK_SELECT]) {
    case ST_TOPK_SELECT_FAST:
        return 0;
    case ST_TOPK_SELECT_FAST_2048:
        return b->model->index_topk == 2048 ? 0 : STEPTAPE_TOPK_LIBRARY | STEPTAPE_TOPK_ABSOLUTE;
    case ST_TOPK_SELECT_LIBRARY:
        return STEPTAPE_TOPK_LIBRARY | STEPTAPE_TOPK_ABSOLUTE;
    default:
        return STEPTAPE_TOPK_LIBRARY;
    }
}

/* Under FULL a selection is flat whatever the policy says. */
static int rows_of_decode(const struct st_bind *b) {
    return b->plan->shape.mode == ST_GRAPH_MODE_FULL ? ST_TOPK_ROWS_FLAT
                                                     : b->plan->policy->value[ST_SWITCH_TOPK_ROWS];
}

/* Where what decodes selected is written and read. */
static enum st_buffer_id selected_by_decode(const struct st_bind *b) {
    return rows_of_decode(b) == ST_TOPK_ROWS_PADDED ? ST_BUF_TOPK_PADDED : ST_BUF_TOPK;
}

/* The rows of padding stand behind those of tokens, not among them as in an engine that pads each
 * request: as many rows are written to the same array, and nothing has to be packed afterwards. */
static void bind_topk_decode(const struct st_bind *b, struct steptape_topk_per_row_args *a) {
    enum st_buffer_id lens = is_dsa(b) ? ST_BUF_LEN_DSA : ST_BUF_LEN_C4;
    if (rows_of_decode(b) != ST_TOPK_ROWS_FLAT) {
        a->num_rows = st_step_padded_rows(&b->plan->shape);
        a->next_n = b->plan->shape.decode_next_n;
        lens = ST_BUF_LEN_PADDED;
    }
    a->out = st_bind_at(b, selected_by_decode(b), 0);
    a->logits = st_bind_at(b, ST_BUF_LOGITS, 0);
    a->logits_stride = a->num_columns = (int32_t)b->buffers->logits_stride;
    a->seq_lens = st_bind_at(b, lens, 0);
    a->seq_lens_2d = 1;
    if (!b->frame)
        a->seq_lens = &st_bind_no_list;
}

static void bind_topk(const struct st_bind *b, struct steptape_topk_per_row_args *a) {
    const struct st_launch *l = b->launch;
    a->out = st_bind_at(b, ST_BUF_TOPK, (int64_t)l->first_token * b->model->index_topk * 4);
    a->scratch = st_bind_at(b, ST_BUF_TOPK_SCRATCH, 0);
    a->scratch_bytes = (uint64_t)b->buffers->bytes[ST_BUF_TOPK_SCRATCH];
    a->out_stride = a->k = b->model->index_topk;
    a->num_rows = l->token_count;
    a->next_n = 1;
    a->flags = select_flags(b);
    if (l->part == ST_PART_DECODE) {
        bind_topk_decode(b, a);
        return;
    }
    const struct st_chunk *chunk = &b->plan->chunk[l->chunk];
    a->logits = st_bind_at(b, ST_BUF_LOGITS, chunk->logits_offset * 4);
    a->logits_stride = a->num_columns = (int32_t)chunk->columns;
    a->row_starts = st_bind_at(b, ST_BUF_ROW_START, l->first_token * 4);
    a->row_ends = st_bind_at(b, ST_BUF_ROW_END, l->first_token * 4);
    if (!b->frame)
        a->row_ends = a->row_starts = &st_bind_no_list;
}

static void bind_global_topk(const struct st_bind *b, struct steptape_global_topk_indices_args *a) {
    const struct st_launch *l = b->launch;
    enum st_cache_id cache = is_dsa(b) ? ST_CACHE_DSA : ST_CACHE_KV_C4;
    a->out = st_bind_at(b, ST_BUF_GLOBAL_TOPK, 0);
    a->lens = st_bind_at(b, ST_BUF_GLOBAL_LENS, 0);
    a->topk_indices = st_bind_at(b, selected_by_decode(b), 0);
    a->slot_mapping = st_bind_slot(b, is_dsa(b) ? ST_CACHE_DSA : ST_CACHE_STATE_C4);
    a->token_to_req = st_bind_at(b, ST_BUF_TOKEN_TO_REQ, 0);
    a->block_table = st_bind_table(b, cache, 0);
    a->out_stride = a->topk_stride = a->k = b->model->index_topk;
    a->block_table_stride = b->buffers->table_stride[cache];
    a->num_tokens = l->token_count;
    a->block_size = b->model->cache[cache].entries;
}

/* ---- decode */

static enum st_cache_id swa_cache(const struct st_bind *b) {
    return (enum st_cache_id)(ST_CACHE_SWA0 + b->model->layer_swa[b->launch->layer]);
}

static void bind_scope(const struct st_bind *b, enum st_cache_id cache, enum st_buffer_id indices,
                       enum st_buffer_id lens, int32_t topk, int64_t stride,
                       struct steptape_decode_scope *scope) {
    scope->cache = st_bind_at(b, st_buffer_of_cache(cache), 0);
    scope->indices = st_bind_at(b, indices, 0);
    scope->length = st_bind_at(b, lens, 0);
    scope->page_stride_bytes = b->model->cache[cache].page_bytes;
    scope->indices_stride = stride;
    scope->page_size = b->model->cache[cache].entries;
    scope->topk = topk;
}

static void bind_decode(const struct st_bind *b, struct steptape_sparse_mla_decode_args *a) {
    const struct st_launch *l = b->launch;
    int32_t topk = b->model->index_topk;
    a->q = st_bind_at(b, ST_BUF_Q, 0);
    a->attn_sink = st_bind_at(b, ST_BUF_SINK, 0);
    a->out = st_bind_at(b, ST_BUF_OUT, 0);
    a->lse = st_bind_at(b, ST_BUF_LSE, 0);
    a->plan = st_bind_at(b, ST_BUF_DECODE_PLAN, l->kind * b->buffers->plan_bytes);
    a->scratch = st_bind_at(b, ST_BUF_DECODE_SCRATCH, 0);
    a->q_head_stride = a->d_qk = b->model->head_dim;
    a->q_stride = (int64_t)b->model->heads * b->model->head_dim;
    a->tokens = l->token_count;
    a->heads = b->model->heads;
    a->phases = l->phases;
    a->plan_variant = b->plan->policy->value[ST_SWITCH_MLA_PLAN] == ST_MLA_PLAN_FAST ? 0 : 1;
    if (is_dsa(b)) {
        a->format = STEPTAPE_KV_FP8_V32;
        a->sm_scale = 0.072168784f; /* 192^-0.5, as the model's unabsorbed heads have it */
        bind_scope(b, ST_CACHE_DSA, ST_BUF_GLOBAL_TOPK, ST_BUF_GLOBAL_LENS, topk, topk,
                   &a->scope[0]);
        return;
    }
    enum st_cache_id swa = swa_cache(b);
    int64_t rows = (int64_t)(swa - ST_CACHE_SWA0) * b->buffers->max_tokens;
    a->format = STEPTAPE_KV_FP8_DS_MLA;
    a->sm_scale = 0.044194174f; /* 512^-0.5 */
    bind_scope(b, swa, ST_BUF_SWA_INDICES, ST_BUF_SWA_LENS, b->model->window, b->model->window,
               &a->scope[0]);
    a->scope[0].indices = st_bind_at(b, ST_BUF_SWA_INDICES, rows * b->model->window * 4);
    a->scope[0].length = st_bind_at(b, ST_BUF_SWA_LENS, rows * 4);
    if (l->kind == ST_LAYER_C4) {
        bind_scope(b, ST_CACHE_KV_C4, ST_BUF_GLOBAL_TOPK, ST_BUF_GLOBAL_LENS, topk, topk,
                   &a->scope[1]);
    } else if (l->kind == ST_LAYER_C128) {
        struct st_c128a_view view = st_bind_c128a_read(b);
        bind_scope(b, ST_CACHE_KV_C128, ST_BUF_C128A_DECODE, ST_BUF_C128A_LENS, view.width,
                   view.stride, &a->scope[1]);
    }
}

/* ---- prefill */

static void bind_gather(const struct st_bind *b, struct steptape_dequantize_and_gather_args *a) {
    const struct st_launch *l = b->launch;
    const struct st_chunk *chunk = &b->plan->chunk[l->chunk];
    bool window = l->part == ST_PART_WINDOW;
    enum st_cache_id cache = window                   ? swa_cache(b)
                             : is_dsa(b)              ? ST_CACHE_DSA
                             : l->kind == ST_LAYER_C4 ? ST_CACHE_KV_C4
                                                      : ST_CACHE_KV_C128;
    a->out = st_bind_at(b, ST_BUF_KV_WORKSPACE, 0);
    a->cache = st_bind_at(b, st_buffer_of_cache(cache), 0);
    a->seq_lens = st_bind_at(b, ST_BUF_SEQ_LEN, l->first_request * 4);
    if (window)
        a->gather_lens = st_bind_at(b, ST_BUF_GATHER_LENS, l->first_request * 4);
    a->block_table = st_bind_table(b, cache, l->first_request);
    a->out_row_stride = b->model->head_dim;
    a->out_req_stride = (int64_t)chunk->plan.m * b->model->head_dim;
    a->cache_page_stride_bytes = b->model->cache[cache].page_bytes;
    a->block_table_stride = b->buffers->table_stride[cache];
    a->offset = window ? chunk->plan.n : 0;
    a->max_gather = window ? chunk->plan.m - chunk->plan.n : chunk->plan.n;
    a->num_reqs = l->request_count;
    a->ratio = b->model->cache[cache].ratio;
    a->block_size = b->model->cache[cache].entries;
    a->format = is_dsa(b) ? STEPTAPE_KV_FP8_V32 : STEPTAPE_KV_FP8_DS_MLA;
}

static void bind_combine(const struct st_bind *b,
                         struct steptape_combine_topk_swa_indices_args *a) {
    const struct st_launch *l = b->launch;
    const struct st_chunk *chunk = &b->plan->chunk[l->chunk];
    a->indices = st_bind_at(b, ST_BUF_COMBINED, 0);
    a->lens = st_bind_at(b, ST_BUF_COMBINED_LENS, 0);
    a->query_start_loc = st_bind_at(b, ST_BUF_QUERY_START_LOC, l->first_request * 4);
    a->seq_lens = st_bind_at(b, ST_BUF_SEQ_LEN, l->first_request * 4);
    a->gather_lens = st_bind_at(b, ST_BUF_GATHER_LENS, l->first_request * 4);
    a->num_tokens = l->token_count;
    a->num_reqs = l->request_count;
    a->window = b->model->window;
    a->m = chunk->plan.m;
    a->n = chunk->plan.n;
    a->ratio = 1;
    if (l->kind == ST_LAYER_C128) {
        struct st_c128a_view view = st_bind_c128a_read(b);
        int64_t row = l->first_token - b->plan->shape.decode_token_count;
        a->topk_indices = st_bind_at(b, ST_BUF_C128A_PREFILL, row * view.stride * 4);
        a->topk_stride = view.stride;
        a->topk = view.width;
        a->ratio = 128;
    } else if (l->kind != ST_LAYER_SWA) {
        a->topk_stride = a->topk = b->model->index_topk;
        a->topk_indices = st_bind_at(b, ST_BUF_TOPK, (int64_t)l->first_token * a->topk_stride * 4);
        a->ratio = is_dsa(b) ? 1 : 4;
    }
    a->width = round_up(a->topk + a->window, STEPTAPE_MLA_TILE);
    a->indices_stride = a->width;
    a->tail = b->plan->policy->value[ST_SWITCH_COMBINE_BUFFER] == ST_COMBINE_BUFFER_TAIL
                  ? STEPTAPE_COMBINE_TAIL_128
                  : STEPTAPE_COMBINE_TAIL_KEEP;
}

static void bind_prefill(const struct st_bind *b, struct steptape_sparse_mla_prefill_args *a) {
    const struct st_launch *l = b->launch;
    union st_args combine;
    struct st_launch other = *l;
    other.op = ST_OP_COMBINE_TOPK_SWA_INDICES;
    st_bind(b->model, b->buffers, b->frame, b->plan, &other, &combine);
    int64_t heads = b->model->heads, first = l->first_token;
    a->q = st_bind_at(b, ST_BUF_Q, first * heads * b->model->head_dim * 2);
    a->kv = st_bind_at(b, ST_BUF_KV_WORKSPACE, 0);
    a->indices = combine.combine_topk_swa_indices.indices;
    a->topk_length = combine.combine_topk_swa_indices.lens;
    a->attn_sink = st_bind_at(b, ST_BUF_SINK, 0);
    a->out = st_bind_at(b, ST_BUF_OUT, first * heads * b->model->value_dim * 2);
    a->max_logits = st_bind_at(b, ST_BUF_MAX_LOGITS, first * heads * 4);
    a->lse = st_bind_at(b, ST_BUF_LSE, first * heads * 4);
    a->q_stride = heads * b->model->head_dim;
    a->q_head_stride = a->kv_stride = a->d_qk = b->model->head_dim;
    a->indices_stride = combine.combine_topk_swa_indices.indices_stride;
    a->s_q = l->token_count;
    a->s_kv = b->buffers->workspace_rows;
    a->topk = combine.combine_topk_swa_indices.width;
    a->heads = b->model->heads;
    a->d_v = b->model->value_dim;
    a->sm_scale = is_dsa(b) ? 0.072168784f : 0.044194174f;
}

void st_bind_attention(const struct st_bind *b, union st_args *args) {
    switch ((enum st_operator)b->launch->op) {
    case ST_OP_FILL:
        bind_fill(b, &args->fill);
        break;
    case ST_OP_TOPK_PER_ROW:
        bind_topk(b, &args->topk_per_row);
        break;
    case ST_OP_GLOBAL_TOPK_INDICES:
        bind_global_topk(b, &args->global_topk_indices);
        break;
    case ST_OP_SPARSE_MLA_DECODE:
        bind_decode(b, &args->sparse_mla_decode);
        break;
    case ST_OP_DEQUANTIZE_AND_GATHER:
        bind_gather(b, &args->dequantize_and_gather);
        break;
    case ST_OP_COMBINE_TOPK_SWA_INDICES:
        bind_combine(b, &args->combine_topk_swa_indices);
        break;
    case ST_OP_SPARSE_MLA_PREFILL:
        bind_prefill(b, &args->sparse_mla_prefill);
        break;
    default:
        break;
    }
}

/* ---- views */

static void strided(const struct st_bind *b, enum st_buffer_id id, int64_t row,
                    int64_t stride_bytes, int64_t data_bytes, struct st_rows *rows) {
    rows->base = st_bind_at(b, id, row * stride_bytes);
    rows->stride_bytes = stride_bytes;
    rows->data_bytes = (int32_t)data_bytes;
}

static void paged(const struct st_bind *b, enum st_cache_id cache, const int64_t *slot,
                  int32_t data_bytes, int32_t tail_bytes, struct st_rows *rows) {
    rows->base = st_bind_at(b, st_buffer_of_cache(cache), 0);
    rows->slot = slot;
    rows->page_bytes = b->model->cache[cache].page_bytes;
    rows->entries = b->model->cache[cache].entries;
    rows->data_bytes = data_bytes;
    rows->tail_bytes = tail_bytes;
}

static void view_slots(const struct st_bind *b, struct st_rows *rows) {
    strided(b, st_bind_kv_slot((enum st_cache_id)b->launch->cache), b->launch->first_token, 8, 8,
            rows);
}

static void view_cache(const struct st_bind *b, struct st_rows *rows) {
    enum st_cache_id cache = (enum st_cache_id)b->launch->cache;
    int64_t first = (int64_t)cache * b->buffers->max_tokens + b->launch->first_token;
    switch (cache) {
    case ST_CACHE_STATE_C4:
        paged(b, cache, st_bind_slot(b, cache), 8192, 0, rows);
        break;
    case ST_CACHE_STATE_C128:
        paged(b, cache, st_bind_slot(b, cache), 4096, 0, rows);
        break;
    case ST_CACHE_STATE_INDEXER:
        paged(b, cache, st_bind_slot(b, cache), 2048, 0, rows);
        break;
    case ST_CACHE_KV_INDEXER:
        paged(b, cache, st_bind_at(b, ST_BUF_EXPECTED_SLOT, first * 8), 128, 4, rows);
        break;
    default:
        paged(b, cache, st_bind_at(b, ST_BUF_EXPECTED_SLOT, first * 8),
              STEPTAPE_KV_ENTRY_DATA_BYTES, STEPTAPE_KV_ENTRY_SCALE_BYTES, rows);
    }
}

static void view_c128a(const struct st_bind *b, struct st_rows *rows) {
    const struct st_launch *l = b->launch;
    struct st_c128a_view view = st_bind_c128a_read(b);
    bool decode = l->view == ST_VIEW_C128A_DECODE;
    int64_t row = decode ? 0 : l->first_token - b->plan->shape.decode_token_count;
    strided(b, decode ? ST_BUF_C128A_DECODE : ST_BUF_C128A_PREFILL, row, view.stride * 4,
            view.width * 4, rows);
    rows->lens = decode ? st_bind_at(b, ST_BUF_C128A_LENS, 0)
                        : st_bind_at(b, ST_BUF_LEN_C128, l->first_token * 4);
}

static void view_lists(const struct st_bind *b, struct st_rows *rows) {
    const struct st_launch *l = b->launch;
    int64_t first = l->first_token, topk = b->model->index_topk, row;
    switch ((enum st_view)l->view) {
    case ST_VIEW_SWA_INDICES:
        row = (int64_t)(l->cache - ST_CACHE_SWA0) * b->buffers->max_tokens + first;
        strided(b, ST_BUF_SWA_INDICES, row, b->model->window * 4, b->model->window * 4, rows);
        rows->lens = st_bind_at(b, ST_BUF_SWA_LENS, row * 4);
        break;
    case ST_VIEW_TOPK:
        strided(b, l->part == ST_PART_DECODE ? selected_by_decode(b) : ST_BUF_TOPK, first, topk * 4,
                topk * 4, rows);
        rows->lens = st_bind_at(b, is_dsa(b) ? ST_BUF_LEN_DSA : ST_BUF_LEN_C4, first * 4);
        break;
    case ST_VIEW_GLOBAL_TOPK:
        strided(b, ST_BUF_GLOBAL_TOPK, first, topk * 4, topk * 4, rows);
        rows->lens = st_bind_at(b, ST_BUF_GLOBAL_LENS, first * 4);
        break;
    default: {
        union st_args combine;
        struct st_launch other = *l;
        other.op = ST_OP_COMBINE_TOPK_SWA_INDICES;
        st_bind(b->model, b->buffers, b->frame, b->plan, &other, &combine);
        int64_t width = combine.combine_topk_swa_indices.width;
        strided(b, ST_BUF_COMBINED, 0, width * 4, width * 4, rows);
        rows->lens = st_bind_at(b, ST_BUF_COMBINED_LENS, 0);
    }
    }
}

void st_bind_view(const struct st_model *model, const struct st_buffers *buffers,
                  const struct st_frame *frame, const struct st_plan *plan,
                  const struct st_launch *launch, struct st_rows *rows) {
    const struct st_bind bind = {model, buffers, frame, plan, launch}, *b = &bind;
    int64_t out_bytes = (int64_t)model->heads * model->value_dim * 2;
    memset(rows, 0, sizeof *rows);
    rows->count = launch->token_count;
    switch ((enum st_view)launch->view) {
    case ST_VIEW_KV_SLOT:
        view_slots(b, rows);
        break;
    case ST_VIEW_GATHER_LENS:
        strided(b, ST_BUF_GATHER_LENS, launch->first_request, 4, 4, rows);
        rows->count = launch->request_count;
        break;
    case ST_VIEW_STATE:
    case ST_VIEW_ENTRY:
        view_cache(b, rows);
        break;
    case ST_VIEW_C128A_DECODE:
    case ST_VIEW_C128A_PREFILL:
        view_c128a(b, rows);
        break;
    case ST_VIEW_OUT:
        strided(b, ST_BUF_OUT, launch->first_token, out_bytes, out_bytes, rows);
        break;
    default:
        view_lists(b, rows);
    }
}
