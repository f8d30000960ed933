/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the cpu backend's memory holds beside what launches write: the generator's values
 * (replay/generator.h) where a step reads them, and under poison what production would leave.
 */
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "replay/backend_cpu_i.h"
#include "replay/generator.h"

enum { DATA_WORDS = 144, ENTRY_WORDS = 146, V32_WORDS = 164 };

/* The three compressors, by what they fill. */
static const struct {
    enum st_cache_id state;
    enum st_buffer_id kv_score, ape, weight;
} compressors[] = {
    {ST_CACHE_STATE_C4, ST_BUF_KV_SCORE_C4, ST_BUF_APE_C4, ST_BUF_WEIGHT_C4},
    {ST_CACHE_STATE_C128, ST_BUF_KV_SCORE_C128, ST_BUF_APE_C128, ST_BUF_WEIGHT_C128},
    {ST_CACHE_STATE_INDEXER, ST_BUF_KV_SCORE_INDEXER, ST_BUF_APE_INDEXER, ST_BUF_WEIGHT_INDEXER},
};
enum { COMPRESSORS = sizeof compressors / sizeof compressors[0] };

/* ---- for the whole replay */

static void fill_angles(struct st_backend *b) {
    float *out = st_cpu_buffer(b, ST_BUF_COS_SIN, 0, 0);
    int64_t rows = b->buffers.bytes[ST_BUF_COS_SIN] / (64 * (int64_t)sizeof(float));
    for (int64_t row = 0; out && row < rows; row += 4)
        st_model_cos_sin(b->model, row, 1, out + row * 64);
}

int st_cpu_fill_constants(struct st_backend *b, struct st_error *err) {
    int32_t buffers = b->buffers.layer_buffers;
    b->layer = calloc((size_t)buffers * COMPRESSORS, sizeof *b->layer);
    if (!b->layer)
        return ST_FAIL_NOMEM(err);
    for (int32_t i = 0; i < buffers; i++) {
        for (int c = 0; c < COMPRESSORS; c++) {
            struct st_layer_parameters *p = &b->layer[i * COMPRESSORS + c];
            if (!st_model_has(b->model, compressors[c].state))
                continue;
            st_layer_parameters_fill(p, compressors[c].state, i);
            memcpy(st_cpu_buffer(b, compressors[c].ape, 0, i), p->ape,
                   (size_t)b->buffers.bytes[compressors[c].ape]);
            memcpy(st_cpu_buffer(b, compressors[c].weight, 0, i), p->rms_weight,
                   (size_t)b->buffers.bytes[compressors[c].weight]);
        }
    }
    float *sink = st_cpu_buffer(b, ST_BUF_SINK, 0, 0);
    for (int32_t h = 0; sink && h < b->model->heads; h++)
        sink[h] = st_gen_sink(h);
    fill_angles(b);
    return 0;
}

/* ---- pages of caches */

static bool is_written(enum st_cache_id cache) {
    return st_buffer_scope(st_buffer_of_cache(cache)) == ST_SCOPE_CACHE;
}

static bool has_entries(enum st_cache_id cache) {
    return cache <= ST_CACHE_KV_C128 || cache == ST_CACHE_DSA;
}

static void generate_page(const struct st_backend *b, enum st_cache_id cache, int32_t buffer,
                          int64_t id, uint32_t *page) {
    const struct st_model_cache *c = &b->model->cache[cache];
    for (int32_t e = 0; e < c->entries; e++) {
        uint64_t row = st_gen_row(ST_GEN_PAGE, (int32_t)cache << 16 | buffer, id, e);
        if (cache == ST_CACHE_DSA) {
            for (int32_t w = 0; w < V32_WORDS; w++)
                page[e * V32_WORDS + w] = st_gen_v32_word(row, w);
            continue;
        }
        for (int32_t w = 0; w < DATA_WORDS; w++)
            page[e * DATA_WORDS + w] = st_gen_ds_mla_word(row, w);
        uint32_t *tail = page + c->entries * DATA_WORDS + e * (ENTRY_WORDS - DATA_WORDS);
        for (int32_t w = DATA_WORDS; w < ENTRY_WORDS; w++)
            tail[w - DATA_WORDS] = st_gen_ds_mla_word(row, w);
    }
}

/* All sets begin alike. */
static void fill_page(struct st_backend *b, enum st_cache_id cache, int32_t buffer, int64_t id,
                      bool reached) {
    uint8_t *seen = &b->seen[cache][(int64_t)buffer * b->model->num_blocks + id];
    if (*seen)
        return;
    *seen = 1;
    enum st_buffer_id memory = st_buffer_of_cache(cache);
    int64_t bytes = b->model->cache[cache].page_bytes;
    uint8_t *first = NULL;
    for (int32_t set = 0; set < (is_written(cache) ? b->sets : 1); set++) {
        uint8_t *page = (uint8_t *)st_cpu_buffer(b, memory, set, buffer) + id * bytes;
        if (!has_entries(cache) || !reached) {
            if (b->poison)
                memset(page, 0xff, (size_t)bytes);
        } else if (first) {
            memcpy(page, first, (size_t)bytes);
        } else {
            generate_page(b, cache, buffer, id, (uint32_t *)(void *)page);
            first = page;
        }
    }
}

static void fill_pages(struct st_backend *b, enum st_cache_id cache) {
    const struct st_step_input *in = &b->input;
    const int32_t *table = in->host.at[st_buffer_of_table(cache)];
    const int32_t *seq_len = in->host.at[ST_BUF_SEQ_LEN];
    int32_t size = b->model->cache[cache].block_size;
    for (int32_t buffer = 0; buffer < b->buffers.layer_buffers; buffer++) {
        for (int32_t row = 0; row < in->shape.request_count; row++) {
            const int32_t *id = table + row * b->buffers.table_stride[cache];
            int32_t last = (seq_len[row] + size - 1) / size;
            for (int32_t column = in->first_column[cache][row]; column < last; column++)
                fill_page(b, cache, buffer, id[column], true);
        }
        /* Where stale indices point. */
        if (b->poison)
            fill_page(b, cache, buffer, 0, false);
    }
}

void st_cpu_forget(struct st_backend *b) {
    for (int c = 0; c < ST_CACHE_COUNT; c++) {
        enum st_buffer_id id = st_buffer_of_cache((enum st_cache_id)c);
        if (!b->memory[id])
            continue;
        int64_t copies = st_buffer_copies(&b->buffers, id, b->sets);
        madvise(b->memory[id], (size_t)(copies * b->stride[id]), MADV_DONTNEED);
        memset(b->seen[c], 0, (size_t)(b->buffers.layer_buffers * b->model->num_blocks));
    }
}

/* ---- a step */

static void rebuild(struct st_backend *b, const struct st_layer_parameters *p, int32_t buffer) {
    const struct st_step_input *in = &b->input;
    const struct st_model_cache *cache = &b->model->cache[p->state];
    enum st_buffer_id id = st_buffer_of_cache(p->state);
    float row[2 * ST_REFERENCE_MAX_WIDTH];
    size_t bytes = (size_t)(2 * p->width) * sizeof(float);
    for (int32_t r = 0; r < in->rebuild_count[p->state]; r++) {
        const struct st_rebuild *lost = &in->rebuild[p->state][r];
        st_reference_state_row(p, lost->request_id, lost->position, row);
        int64_t page = lost->slot / cache->block_size, at = lost->slot % cache->block_size;
        for (int32_t set = 0; set < b->sets; set++)
            memcpy((uint8_t *)st_cpu_buffer(b, id, set, buffer) + page * cache->page_bytes +
                       at * (int64_t)bytes,
                   row, bytes);
    }
}

static void generate_scores(struct st_backend *b, const struct st_layer_parameters *p,
                            float *rows) {
    const struct st_step_input *in = &b->input;
    const int64_t *position = in->host.at[ST_BUF_POSITION], *id = in->host.at[ST_BUF_REQUEST_ID];
    const int32_t *owner = in->host.at[ST_BUF_TOKEN_TO_REQ];
    int64_t floats = 2 * p->width;
    for (int32_t t = 0; t < in->shape.token_count; t++)
        st_reference_kv_score(p, id[owner[t]], position[t], rows + t * floats);
    int32_t padding = in->shape.padded_token_count - in->shape.token_count;
    memset(rows + in->shape.token_count * floats, b->poison ? 0xff : 0,
           (size_t)(padding * floats) * sizeof(float));
}

static void generate_queries(struct st_backend *b) {
    const struct st_step_input *in = &b->input;
    const int64_t *position = in->host.at[ST_BUF_POSITION], *id = in->host.at[ST_BUF_REQUEST_ID];
    const int32_t *owner = in->host.at[ST_BUF_TOKEN_TO_REQ];
    uint16_t *out = st_cpu_buffer(b, ST_BUF_Q, 0, 0);
    int32_t heads = b->model->heads, dim = b->model->head_dim;
    for (int32_t i = 0; out && i < b->sample_count; i++) {
        int64_t t = b->sample[i];
        for (int32_t h = 0; h < heads; h++) {
            uint64_t row = st_gen_row(ST_GEN_Q, h, id[owner[t]], position[t]);
            for (int32_t d = 0; d < dim; d++)
                out[(t * heads + h) * dim + d] = st_gen_q(row, d);
        }
    }
}

void st_cpu_fill_step(struct st_backend *b) {
    for (int c = 0; c < ST_CACHE_COUNT; c++)
        if (st_model_has(b->model, (enum st_cache_id)c))
            fill_pages(b, (enum st_cache_id)c);
    for (int32_t i = 0; i < b->buffers.layer_buffers; i++) {
        for (int c = 0; c < COMPRESSORS; c++) {
            if (!st_model_has(b->model, compressors[c].state))
                continue;
            const struct st_layer_parameters *p = &b->layer[i * COMPRESSORS + c];
            rebuild(b, p, i);
            generate_scores(b, p, st_cpu_buffer(b, compressors[c].kv_score, 0, i));
        }
    }
    generate_queries(b);
}

/* ---- scores of the indexer */

static float outside(const struct st_backend *b, const struct steptape_topk_per_row_args *args) {
    union {
        uint32_t u;
        float f;
    } nan = {0x7fc00000u}, infinity = {0xff800000u};
    /* The library reads whole rows and is given clean ones; the others read what is theirs. */
    return b->poison && !(args->flags & STEPTAPE_TOPK_LIBRARY) ? nan.f : infinity.f;
}

static void score_range(const struct steptape_topk_per_row_args *args, int64_t r, int64_t *first,
                        int64_t *last) {
    *first = 0;
    if (args->row_ends) {
        *first = args->row_starts ? args->row_starts[r] : 0;
        *last = args->row_ends[r];
    } else if (args->seq_lens_2d) {
        *last = args->seq_lens[r];
    } else {
        *last = args->seq_lens[r / args->next_n] - args->next_n + r % args->next_n + 1;
    }
    *last = *last < args->num_columns ? *last : args->num_columns;
    *last = *last > *first ? *last : *first;
}

void st_cpu_fill_logits(const struct st_backend *b, const struct st_launch *launch,
                        const struct steptape_topk_per_row_args *args) {
    const int64_t *position = b->input.host.at[ST_BUF_POSITION];
    const int64_t *id = b->input.host.at[ST_BUF_REQUEST_ID];
    const int32_t *owner = b->input.host.at[ST_BUF_TOKEN_TO_REQ];
    float rest = outside(b, args);
    for (int32_t i = 0; i < b->sample_count; i++) {
        int64_t t = b->sample[i], r = t - launch->first_token, first, last;
        if (r < 0 || r >= args->num_rows)
            continue;
        /* The array is the backend's own. */
        float *out = (float *)(uintptr_t)args->logits + r * args->logits_stride;
        uint64_t row = st_gen_row(ST_GEN_LOGIT, 0, id[owner[t]], position[t]);
        score_range(args, r, &first, &last);
        for (int64_t c = 0; c < first; c++)
            out[c] = rest;
        for (int64_t c = first; c < last; c++)
            out[c] = st_gen_logit(row, (int32_t)(c - first));
        for (int64_t c = last; c < args->num_columns; c++)
            out[c] = rest;
    }
}

/* ---- poison */

static void fill_words(void *out, int64_t count, int32_t value) {
    int32_t *word = out;
    for (int64_t i = 0; word && i < count; i++)
        word[i] = value;
}

/* Index lists hold slots of page 0 (NaN in every cache), lengths that no list of the step has. */
static void poison_lists(struct st_backend *b, int32_t policy) {
    const struct st_step_shape *shape = &b->input.shape;
    const struct st_buffers *s = &b->buffers;
    int64_t tokens = shape->padded_token_count, requests = shape->padded_request_count;
    static const enum st_buffer_id slots[] = {ST_BUF_KV_SLOT_C4, ST_BUF_KV_SLOT_C128,
                                              ST_BUF_KV_SLOT_INDEXER};
    for (int i = 0; i < 3; i++)
        fill_words(st_cpu_buffer(b, slots[i], policy, 0), 2 * tokens, 0);
    int32_t window = b->model->window;
    for (int32_t g = 0; g < ST_MAX_SWA_GROUPS && s->bytes[ST_BUF_SWA_INDICES]; g++) {
        int32_t *indices = st_cpu_buffer(b, ST_BUF_SWA_INDICES, policy, 0);
        int32_t *lens = st_cpu_buffer(b, ST_BUF_SWA_LENS, policy, 0);
        fill_words(indices + (int64_t)g * s->max_tokens * window, tokens * window, 0);
        fill_words(lens + (int64_t)g * s->max_tokens, tokens, 1);
    }
    fill_words(st_cpu_buffer(b, ST_BUF_GATHER_LENS, policy, 0), requests, 1);
    int64_t columns = shape->max_seq_len / 128 + STEPTAPE_MLA_TILE;
    columns = columns < s->c128a_capacity ? columns : s->c128a_capacity;
    int32_t *decode = st_cpu_buffer(b, ST_BUF_C128A_DECODE, policy, 0);
    int32_t *prefill = st_cpu_buffer(b, ST_BUF_C128A_PREFILL, policy, 0);
    for (int64_t t = 0; decode && t < tokens; t++) {
        fill_words(decode + t * s->c128a_capacity, columns, 0);
        fill_words(prefill + t * s->c128a_capacity, columns, 0);
    }
    fill_words(st_cpu_buffer(b, ST_BUF_C128A_LENS, policy, 0), tokens, 1);
    fill_words(st_cpu_buffer(b, ST_BUF_BOUNDARY_LIST, policy, 0), tokens, 0);
    fill_words(st_cpu_buffer(b, ST_BUF_BOUNDARY_COUNT, policy, 0), 1, 1);
    fill_words(st_cpu_buffer(b, ST_BUF_GLOBAL_LENS, policy, 0),
               s->bytes[ST_BUF_GLOBAL_LENS] ? tokens : 0, 1);
    fill_words(st_cpu_buffer(b, ST_BUF_COMBINED_LENS, policy, 0), tokens, 1);
    for (int32_t i = 0; i < b->sample_count && s->bytes[ST_BUF_TOPK]; i++) {
        int64_t at = b->sample[i] * b->model->index_topk;
        fill_words((int32_t *)st_cpu_buffer(b, ST_BUF_TOPK, policy, 0) + at, b->model->index_topk,
                   0);
        fill_words((int32_t *)st_cpu_buffer(b, ST_BUF_GLOBAL_TOPK, policy, 0) + at,
                   b->model->index_topk, 0);
    }
    fill_words(st_cpu_buffer(b, ST_BUF_TOPK_PADDED, policy, 0),
               st_step_padded_rows(shape) * b->model->index_topk, 0);
}

static void poison_scratch(struct st_backend *b, int32_t policy) {
    uint8_t *pooled = st_cpu_buffer(b, ST_BUF_POOLED, policy, 0);
    if (pooled)
        memset(pooled, 0xff, (size_t)b->input.shape.padded_token_count * 512 * sizeof(float));
    int64_t heads = b->model->heads, row = heads * b->model->value_dim * 2;
    for (int32_t i = 0; i < b->sample_count; i++) {
        int64_t t = b->sample[i];
        memset((uint8_t *)st_cpu_buffer(b, ST_BUF_OUT, policy, 0) + t * row, 0xff, (size_t)row);
        memset((float *)st_cpu_buffer(b, ST_BUF_MAX_LOGITS, policy, 0) + t * heads, 0xff,
               (size_t)heads * sizeof(float));
        memset((float *)st_cpu_buffer(b, ST_BUF_LSE, policy, 0) + t * heads, 0xff,
               (size_t)heads * sizeof(float));
    }
}

/* Rows of the workspace that the largest chunk of this step uses: a stale list of an earlier,
 * larger chunk points beyond. */
static int64_t used_rows(const struct st_plan *plan) {
    int64_t most = 0;
    for (int32_t i = 0; i < plan->first_index_chunk; i++) {
        int64_t rows = (int64_t)plan->chunk[i].plan.req_count * plan->chunk[i].plan.m;
        most = rows > most ? rows : most;
    }
    return most;
}

/* Every column of the combined rows, at the stride of each launch that writes one. */
static void poison_combined(struct st_backend *b, const struct st_plan *plan, int32_t policy) {
    int64_t stale = used_rows(plan);
    for (int32_t i = 0; i < plan->launch_count; i++) {
        const struct st_launch *launch = &plan->launch[i];
        if (launch->op != ST_OP_COMBINE_TOPK_SWA_INDICES ||
            launch->ordinal >= b->buffers.layer_buffers)
            continue;
        struct st_frame frame;
        union st_args args;
        for (int id = 0; id < ST_BUF_COUNT; id++)
            frame.at[id] = st_cpu_buffer(b, (enum st_buffer_id)id, policy, launch->ordinal);
        st_bind(b->model, &b->buffers, &frame, plan, launch, &args);
        const struct steptape_combine_topk_swa_indices_args *a = &args.combine_topk_swa_indices;
        int32_t n;
        const int64_t *rows = st_cpu_sampled_rows(b, launch->first_token, launch->token_count, &n);
        for (int32_t k = 0; k < n; k++)
            for (int32_t c = 0; c < a->width; c++)
                a->indices[rows[k] * a->indices_stride + c] =
                    (int32_t)(stale + c % STEPTAPE_MLA_TILE);
    }
}

void st_cpu_poison(struct st_backend *b, const struct st_plan *plan, int32_t policy) {
    poison_lists(b, policy);
    poison_scratch(b, policy);
    poison_combined(b, plan, policy);
    st_cpu_fill_guards(b, plan, policy);
}

void st_cpu_poison_workspace(struct st_backend *b, const struct st_plan *plan, int32_t policy) {
    int64_t rows = used_rows(plan) + STEPTAPE_MLA_TILE;
    rows = rows < b->buffers.workspace_rows ? rows : b->buffers.workspace_rows;
    memset(st_cpu_buffer(b, ST_BUF_KV_WORKSPACE, policy, 0), 0xff,
           (size_t)(rows * b->model->head_dim) * sizeof(uint16_t));
}

/* ---- guards */

void st_cpu_fill_guards(struct st_backend *b, const struct st_plan *plan, int32_t policy) {
    struct st_guards *g = &b->guards;
    st_guards_make(b->model, &b->buffers, plan, g);
    for (int32_t i = 0; i < g->first[ST_BUF_COUNT]; i++)
        for (int32_t copy = 0; copy < st_guard_copies(&b->buffers, g->region[i].buffer); copy++)
            st_guard_fill(&g->region[i], st_cpu_buffer(b, g->region[i].buffer, policy, copy));
    b->damage_count = 0;
    b->damage_lost = 0;
}

static void check_buffer(struct st_backend *b, enum st_buffer_id id, int32_t policy, int32_t copy,
                         struct st_guard_damage blamed) {
    const struct st_guards *g = &b->guards;
    for (int32_t i = g->first[id]; i < g->first[id + 1]; i++) {
        if (!st_guard_check(&g->region[i], st_cpu_buffer(b, id, policy, copy), &blamed))
            continue;
        if (b->damage_count < ST_GUARD_DAMAGES)
            b->damage[b->damage_count++] = blamed;
        else
            b->damage_lost++;
    }
}

void st_cpu_check_guards(struct st_backend *b, const struct st_launch *launch, int32_t policy) {
    enum st_buffer_id out[ST_GUARD_OUTPUTS];
    int32_t count = st_guard_outputs(launch, out);
    int32_t copy = launch->ordinal < 0 ? 0 : launch->ordinal % b->buffers.layer_buffers;
    struct st_guard_damage blamed = {.op = launch->op, .layer = launch->layer};
    for (int32_t i = 0; i < count; i++)
        check_buffer(b, out[i], policy, copy, blamed);
}

void st_cpu_check_all_guards(struct st_backend *b, int32_t policy) {
    for (int id = 0; id < ST_BUF_COUNT; id++) {
        struct st_guard_damage blamed = {.layer = -1, .foreign = 1};
        blamed.op = (uint8_t)st_guard_owner((enum st_buffer_id)id);
        for (int32_t copy = 0; copy < st_guard_copies(&b->buffers, (enum st_buffer_id)id); copy++)
            check_buffer(b, (enum st_buffer_id)id, policy, copy, blamed);
    }
}
