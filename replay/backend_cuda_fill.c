/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the CUDA backend's memory holds beside what launches write: a step's metadata, the
 * generator's values, state that earlier steps would have left, and under poison what production
 * would leave.
 */
#include <stdlib.h>
#include <string.h>

#include "replay/backend_cuda_i.h"
#include "replay/backend_cuda_kernels.h"
#include "replay/generator.h"

#define REST_INFINITY 0xff800000u
#define REST_NAN 0x7fc00000u

enum { NOTHING = 0xFF, ANGLES = 64, ANGLE_RATIO = 4 };

/* The three compressors, by what they fill. */
static const struct compressor {
    enum st_cache_id state;
    enum st_buffer_id kv_score, ape, weight;
    int32_t width, dim, ratio, layer_key;
} compressors[] = {
    {ST_CACHE_STATE_C4, ST_BUF_KV_SCORE_C4, ST_BUF_APE_C4, ST_BUF_WEIGHT_C4, 1024, 512, 4,
     ST_GEN_LAYER_C4},
    {ST_CACHE_STATE_C128, ST_BUF_KV_SCORE_C128, ST_BUF_APE_C128, ST_BUF_WEIGHT_C128, 512, 512, 128,
     0},
    {ST_CACHE_STATE_INDEXER, ST_BUF_KV_SCORE_INDEXER, ST_BUF_APE_INDEXER, ST_BUF_WEIGHT_INDEXER,
     256, 128, 4, ST_GEN_LAYER_INDEXER},
};
enum { COMPRESSORS = sizeof compressors / sizeof compressors[0] };

static bool is_there(const struct st_backend *b, const struct compressor *c) {
    return st_model_has(&b->model, c->state) && b->memory[c->kv_score];
}

static int set_bytes(const struct st_backend *b, enum st_buffer_id id, int32_t set, int value,
                     int64_t bytes, struct st_error *err) {
    if (!b->memory[id] || bytes <= 0)
        return 0;
    ST_CUDA(err, cudaMemsetAsync(st_cuda_buffer(b, id, set, 0), value, (size_t)bytes, b->stream));
    return 0;
}

/* ---- for the whole pass */

static int fill_constants(struct st_backend *b, const struct compressor *c, struct st_error *err) {
    struct st_cuda_constants constants = {
        .ape = (float *)(void *)b->memory[c->ape],
        .weight = (float *)(void *)b->memory[c->weight],
        .ape_stride = b->stride[c->ape] / 4,
        .weight_stride = b->stride[c->weight] / 4,
        .buffer_count = b->buffers.layer_buffers,
        .ratio = c->ratio,
        .width = c->width,
        .dim = c->dim,
        .layer_key = c->layer_key,
    };
    ST_CUDA(err, st_cuda_fill_constants(&constants, b->stream));
    return 0;
}

/* Rows that start a group; the others are never read and stay 0, or NaN when poisoned. */
static int fill_angles(struct st_backend *b, struct st_error *err) {
    float *out = (float *)(void *)b->memory[ST_BUF_COS_SIN];
    if (!out)
        return 0;
    size_t row = ANGLES * sizeof(float), pitch = ANGLE_RATIO * row;
    int64_t rows = b->buffers.bytes[ST_BUF_COS_SIN] / (int64_t)pitch;
    float *host = malloc((size_t)rows * row);
    if (!host)
        return ST_FAIL_NOMEM(err);
    for (int64_t i = 0; i < rows; i++)
        st_model_cos_sin(&b->model, i * ANGLE_RATIO, 1, host + i * ANGLES);
    int rc = set_bytes(b, ST_BUF_COS_SIN, 0, b->poison ? NOTHING : 0,
                       b->buffers.bytes[ST_BUF_COS_SIN], err);
    cudaError_t copied = cudaStreamSynchronize(b->stream);
    if (copied == cudaSuccess)
        copied = cudaMemcpy2D(out, pitch, host, row, row, (size_t)rows, cudaMemcpyHostToDevice);
    free(host);
    ST_TRY(rc);
    ST_CUDA(err, copied);
    return 0;
}

static bool is_written(enum st_cache_id cache) {
    return st_buffer_scope(st_buffer_of_cache(cache)) == ST_SCOPE_CACHE;
}

static bool has_entries(enum st_cache_id cache) {
    return cache <= ST_CACHE_KV_C128 || cache == ST_CACHE_DSA;
}

/* Page 0 is the null block: under poison a NaN, where stale indices point. */
static int fill_cache(struct st_backend *b, enum st_cache_id cache, struct st_error *err) {
    const struct st_model_cache *c = &b->model.cache[cache];
    enum st_buffer_id id = st_buffer_of_cache(cache);
    int64_t copies = st_buffer_copies(&b->buffers, id, b->sets);
    if (!b->memory[id])
        return 0;
    if (b->poison)
        ST_CUDA(err, cudaMemsetAsync(b->memory[id], NOTHING,
                                     (size_t)((copies - 1) * b->stride[id] + b->buffers.bytes[id]),
                                     b->stream));
    for (int32_t set = 0; has_entries(cache) && set < (is_written(cache) ? b->sets : 1); set++) {
        struct st_cuda_pages pages = {
            .base = st_cuda_buffer(b, id, set, 0),
            .buffer_bytes = b->stride[id],
            .page_bytes = c->page_bytes,
            .first_page = b->poison ? 1 : 0,
            .page_count = b->model.num_blocks,
            .entries = c->entries,
            .buffer_count = b->buffers.layer_buffers,
            .cache = cache,
            .v32 = cache == ST_CACHE_DSA,
        };
        ST_CUDA(err, st_cuda_fill_pages(&pages, b->stream));
    }
    return 0;
}

int st_cuda_fill_pass(struct st_backend *b, struct st_error *err) {
    for (int c = 0; c < COMPRESSORS; c++)
        if (is_there(b, &compressors[c]))
            ST_TRY(fill_constants(b, &compressors[c], err));
    for (int c = 0; c < ST_CACHE_COUNT; c++)
        if (st_model_has(&b->model, (enum st_cache_id)c))
            ST_TRY(fill_cache(b, (enum st_cache_id)c, err));
    if (b->memory[ST_BUF_SINK])
        ST_CUDA(err, st_cuda_fill_sink((float *)(void *)b->memory[ST_BUF_SINK], b->model.heads,
                                       b->stream));
    return fill_angles(b, err);
}

/* ---- a step's metadata */

static int upload(struct st_backend *b, void *device, const void *host, int64_t bytes,
                  struct st_error *err) {
    if (bytes > 0 && device && host)
        ST_CUDA(err,
                cudaMemcpyAsync(device, host, (size_t)bytes, cudaMemcpyHostToDevice, b->stream));
    return 0;
}

static int upload_arrays(struct st_backend *b, const struct st_step_input *in,
                         struct st_error *err) {
    int64_t tokens = in->shape.padded_token_count, requests = in->shape.padded_request_count;
    const struct {
        enum st_buffer_id id;
        int64_t bytes;
    } array[] = {
        {ST_BUF_POSITION, tokens * 8},
        {ST_BUF_TOKEN_TO_REQ, tokens * 4},
        {ST_BUF_REQUEST_ID, requests * 8},
        {ST_BUF_QUERY_START_LOC, (requests + 1) * 4},
        {ST_BUF_SEQ_LEN, requests * 4},
        {ST_BUF_LEN_C4, tokens * 4},
        {ST_BUF_LEN_C128, tokens * 4},
        {ST_BUF_LEN_DSA, tokens * 4},
        {ST_BUF_ROW_START, tokens * 4},
        {ST_BUF_ROW_END, tokens * 4},
        {ST_BUF_LEN_PADDED, b->buffers.bytes[ST_BUF_LEN_PADDED]},
    };
    for (size_t i = 0; i < sizeof array / sizeof array[0]; i++)
        ST_TRY(upload(b, b->memory[array[i].id], in->host.at[array[i].id], array[i].bytes, err));
    static const enum st_buffer_id slots[] = {ST_BUF_SLOT, ST_BUF_EXPECTED_SLOT};
    for (int i = 0; i < 2; i++) {
        const uint8_t *host = in->host.at[slots[i]];
        for (int c = 0; host && c < ST_CACHE_COUNT; c++) {
            int64_t at = (int64_t)c * b->buffers.max_tokens * 8;
            if (st_model_has(&b->model, (enum st_cache_id)c))
                ST_TRY(upload(b, b->memory[slots[i]] + at, host + at, tokens * 8, err));
        }
    }
    return 0;
}

static int grow_packed(struct st_cuda_packed *packed, int64_t wanted, struct st_error *err) {
    if (wanted <= packed->room)
        return 0;
    int64_t room = 2 * wanted;
    if (packed->host)
        cudaFreeHost(packed->host);
    cudaFree(packed->device);
    memset(packed, 0, sizeof *packed);
    void *host = NULL, *device = NULL;
    ST_CUDA(err, cudaHostAlloc(&host, (size_t)room * 4, cudaHostAllocDefault));
    packed->host = host;
    ST_CUDA(err, cudaMalloc(&device, (size_t)room * 4));
    packed->device = device;
    packed->room = room;
    return 0;
}

/* Only the columns that this step can read travel; a kernel puts them where the fixed stride has
 * them. */
static int upload_table(struct st_backend *b, enum st_cache_id cache,
                        const struct st_step_input *in, struct st_error *err) {
    enum st_buffer_id id = st_buffer_of_table(cache);
    const int32_t *table = in->host.at[id], *seq_len = in->host.at[ST_BUF_SEQ_LEN];
    const int32_t *begin = in->first_column[cache];
    int64_t stride = b->buffers.table_stride[cache], size = b->model.cache[cache].block_size;
    int32_t rows = in->shape.request_count;
    struct st_cuda_packed *packed = &b->packed[cache];
    if (!table || !begin || !b->memory[id])
        return 0;
    int64_t used = 0, head = 2 * (int64_t)rows + 1;
    for (int32_t r = 0; r < rows; r++) {
        int64_t end = (seq_len[r] + size - 1) / size;
        if (end > stride)
            return ST_FAIL(err, ST_ERR_USAGE, "step %lld: a block table is larger than announced",
                           (long long)in->step_id);
        used += end > begin[r] ? end - begin[r] : 0;
    }
    ST_TRY(grow_packed(packed, head + used, err));
    int32_t *first = packed->host, *offset = first + rows, *ids = first + head;
    used = 0;
    for (int32_t r = 0; r < rows; r++) {
        int64_t end = (seq_len[r] + size - 1) / size;
        first[r] = begin[r];
        offset[r] = (int32_t)used;
        for (int64_t column = begin[r]; column < end; column++)
            ids[used++] = table[r * stride + column];
    }
    offset[rows] = (int32_t)used;
    ST_TRY(upload(b, packed->device, packed->host, (head + used) * 4, err));
    ST_CUDA(err, st_cuda_scatter_table((int32_t *)(void *)b->memory[id], stride, packed->device,
                                       rows, b->stream));
    return 0;
}

/* What st_plan_make() asks of a step, from its arrays. */
static void keep_step(struct st_backend *b, const struct st_step_input *in) {
    const int32_t *start = in->host.at[ST_BUF_QUERY_START_LOC];
    const int32_t *length = in->host.at[ST_BUF_SEQ_LEN];
    b->shape = in->shape;
    memset(&b->step, 0, sizeof b->step);
    for (int32_t r = 0; r < in->shape.request_count; r++) {
        b->query_len[r] = start[r + 1] - start[r];
        b->computed[r] = length[r] - b->query_len[r];
    }
    b->step.step_id = in->step_id;
    b->step.request_count = in->shape.request_count;
    b->step.token_count = in->shape.token_count;
    b->step.query_len = b->query_len;
    b->step.num_computed_tokens = b->computed;
}

/* ---- what the generator gives a step */

static struct st_cuda_tokens tokens_from(const struct st_backend *b, int64_t token) {
    return (struct st_cuda_tokens){
        .request_id = (const int64_t *)(const void *)b->memory[ST_BUF_REQUEST_ID],
        .token_to_request = (const int32_t *)(const void *)b->memory[ST_BUF_TOKEN_TO_REQ] + token,
        .position = (const int64_t *)(const void *)b->memory[ST_BUF_POSITION] + token,
    };
}

static int fill_scores(struct st_backend *b, const struct compressor *c, struct st_error *err) {
    struct st_cuda_scores scores = {
        .out = (float *)(void *)b->memory[c->kv_score],
        .buffer_stride = b->stride[c->kv_score] / 4,
        .tokens = tokens_from(b, 0),
        .token_count = b->shape.token_count,
        .padded_token_count = b->shape.padded_token_count,
        .buffer_count = b->buffers.layer_buffers,
        .width = c->width,
        .layer_key = c->layer_key,
        .poison = b->poison,
    };
    ST_CUDA(err, st_cuda_fill_scores(&scores, b->stream));
    return 0;
}

static int rebuild(struct st_backend *b, const struct compressor *c, const struct st_step_input *in,
                   struct st_error *err) {
    _Static_assert(sizeof(struct st_rebuild) == 24, "the device reads it as three int64_t");
    int32_t count = in->rebuild_count[c->state];
    enum st_buffer_id id = st_buffer_of_cache(c->state);
    if (count == 0)
        return 0;
    ST_TRY(upload(b, b->d_rebuild, in->rebuild[c->state], (int64_t)count * 24, err));
    for (int32_t set = 0; set < b->sets; set++) {
        struct st_cuda_rebuild args = {
            .state = st_cuda_buffer(b, id, set, 0),
            .buffer_bytes = b->stride[id],
            .page_bytes = b->model.cache[c->state].page_bytes,
            .block_size = b->model.cache[c->state].block_size,
            .ape = (const float *)(const void *)b->memory[c->ape],
            .ape_stride = b->stride[c->ape] / 4,
            .rebuild = b->d_rebuild,
            .count = count,
            .buffer_count = b->buffers.layer_buffers,
            .ratio = c->ratio,
            .width = c->width,
            .layer_key = c->layer_key,
        };
        ST_CUDA(err, st_cuda_rebuild_state(&args, b->stream));
    }
    return 0;
}

/* Half a gigabyte a step: only for those who read it. */
static int fill_queries(struct st_backend *b, struct st_error *err) {
    bool wanted = b->pass == ST_PASS_VERIFY ||
                  st_operator_wanted(b->ops_mask, ST_OP_SPARSE_MLA_DECODE) ||
                  st_operator_wanted(b->ops_mask, ST_OP_SPARSE_MLA_PREFILL);
    if (!wanted || !b->memory[ST_BUF_Q])
        return 0;
    struct st_cuda_queries queries = {
        .out = (uint16_t *)(void *)b->memory[ST_BUF_Q],
        .tokens = tokens_from(b, 0),
        .token_count = b->shape.token_count,
        .padded_token_count = b->shape.padded_token_count,
        .heads = b->model.heads,
        .head_dim = b->model.head_dim,
        .poison = b->poison,
    };
    ST_CUDA(err, st_cuda_fill_queries(&queries, b->stream));
    return 0;
}

int st_cuda_prepare(struct st_backend *b, const struct st_step_input *in, struct st_error *err) {
    if (in->shape.padded_token_count > b->buffers.max_tokens ||
        in->shape.padded_request_count > b->buffers.max_requests)
        return ST_FAIL(err, ST_ERR_USAGE, "step %lld is larger than announced",
                       (long long)in->step_id);
    for (int c = 0; c < ST_CACHE_COUNT; c++)
        if (in->rebuild_count[c] > b->max_rebuild)
            return ST_FAIL(err, ST_ERR_USAGE, "step %lld has lost more state than announced",
                           (long long)in->step_id);
    keep_step(b, in);
    b->logits_rest = 0;
    ST_TRY(upload_arrays(b, in, err));
    for (int c = 0; c < ST_CACHE_COUNT; c++)
        if (st_model_has(&b->model, (enum st_cache_id)c))
            ST_TRY(upload_table(b, (enum st_cache_id)c, in, err));
    for (int c = 0; c < COMPRESSORS; c++) {
        if (!is_there(b, &compressors[c]))
            continue;
        ST_TRY(fill_scores(b, &compressors[c], err));
        ST_TRY(rebuild(b, &compressors[c], in, err));
    }
    ST_TRY(fill_queries(b, err));
    /* The caller may reuse its arrays, and no launch shall wait for these copies. */
    ST_CUDA(err, cudaStreamSynchronize(b->stream));
    return 0;
}

/* ---- scores of the indexer */

static int fill_rows(struct st_backend *b, int64_t first_token, int32_t rows, int64_t columns,
                     int64_t offset, bool decode, uint32_t rest, struct st_error *err) {
    enum st_buffer_id length = b->memory[ST_BUF_LEN_DSA] ? ST_BUF_LEN_DSA : ST_BUF_LEN_C4;
    const int32_t *last =
        (const int32_t *)(const void *)b->memory[decode ? length : ST_BUF_ROW_END];
    const int32_t *first = (const int32_t *)(const void *)b->memory[ST_BUF_ROW_START];
    struct st_cuda_logits logits = {
        .out = (float *)(void *)b->memory[ST_BUF_LOGITS] + offset,
        .first = decode ? NULL : first + first_token,
        .last = last + first_token,
        .tokens = tokens_from(b, first_token),
        .stride = columns,
        .rows = rows,
        .columns = (int32_t)columns,
        .rest = rest,
    };
    ST_CUDA(err, st_cuda_fill_logits(&logits, b->stream));
    return 0;
}

/* The library reads whole rows and is given clean ones; the others read what is theirs. */
int st_cuda_fill_scores_of(struct st_backend *b, const struct st_plan *plan, struct st_error *err) {
    int64_t columns = b->buffers.logits_stride;
    bool selects = false;
    uint32_t rest = REST_INFINITY;
    for (int32_t i = 0; i < plan->launch_count && !selects; i++) {
        const struct st_launch *launch = &plan->launch[i];
        if (launch->op != ST_OP_TOPK_PER_ROW)
            continue;
        union st_args args;
        st_bind(&b->model, &b->buffers, st_cuda_frame(b, 0, launch->ordinal), plan, launch, &args);
        selects = true;
        if (b->poison && !(args.topk_per_row.flags & STEPTAPE_TOPK_LIBRARY))
            rest = REST_NAN;
    }
    if (!selects || b->logits_rest == rest || !b->memory[ST_BUF_LOGITS])
        return 0;
    if (plan->shape.decode_token_count > 0)
        ST_TRY(fill_rows(b, 0, plan->shape.decode_token_count, columns, 0, true, rest, err));
    for (int32_t i = plan->first_index_chunk; i < plan->chunk_count; i++) {
        const struct st_chunk *c = &plan->chunk[i];
        ST_TRY(fill_rows(b, c->first_token, c->token_count, c->columns, c->logits_offset, false,
                         rest, err));
    }
    b->logits_rest = rest;
    return 0;
}

/* ---- poison */

static int set_words(struct st_backend *b, enum st_buffer_id id, int32_t set, int64_t count,
                     int32_t value, int32_t modulo, struct st_error *err) {
    if (!b->memory[id])
        return 0;
    struct st_cuda_words words = {
        .out = st_cuda_buffer(b, id, set, 0),
        .rows = 1,
        .columns = count < b->buffers.bytes[id] / 4 ? count : b->buffers.bytes[id] / 4,
        .value = value,
        .modulo = modulo,
    };
    ST_CUDA(err, st_cuda_fill_words(&words, b->stream));
    return 0;
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

/* Index lists hold slots of page 0 (NaN in every cache), lengths that no list of the step has. */
static int poison_lists(struct st_backend *b, int32_t set, struct st_error *err) {
    static const enum st_buffer_id zero[] = {
        ST_BUF_KV_SLOT_C4,   ST_BUF_KV_SLOT_C128,  ST_BUF_KV_SLOT_INDEXER, ST_BUF_SWA_INDICES,
        ST_BUF_C128A_DECODE, ST_BUF_C128A_PREFILL, ST_BUF_BOUNDARY_LIST,   ST_BUF_TOPK,
        ST_BUF_TOPK_PADDED,  ST_BUF_GLOBAL_TOPK,
    };
    static const enum st_buffer_id one[] = {
        ST_BUF_SWA_LENS,       ST_BUF_GATHER_LENS, ST_BUF_C128A_LENS,
        ST_BUF_BOUNDARY_COUNT, ST_BUF_GLOBAL_LENS, ST_BUF_COMBINED_LENS,
    };
    for (size_t i = 0; i < sizeof zero / sizeof zero[0]; i++)
        ST_TRY(set_bytes(b, zero[i], set, 0, b->buffers.bytes[zero[i]], err));
    for (size_t i = 0; i < sizeof one / sizeof one[0]; i++)
        ST_TRY(set_words(b, one[i], set, INT64_MAX, 1, 0, err));
    return 0;
}

int st_cuda_poison(struct st_backend *b, const struct st_plan *plan, int32_t set,
                   struct st_error *err) {
    int64_t tokens = plan->shape.padded_token_count, heads = b->model.heads;
    ST_TRY(poison_lists(b, set, err));
    ST_TRY(set_bytes(b, ST_BUF_POOLED, set, NOTHING, tokens * 512 * 4, err));
    ST_TRY(set_bytes(b, ST_BUF_OUT, set, NOTHING, tokens * heads * b->model.value_dim * 2, err));
    ST_TRY(set_bytes(b, ST_BUF_MAX_LOGITS, set, NOTHING, tokens * heads * 4, err));
    ST_TRY(set_bytes(b, ST_BUF_LSE, set, NOTHING, tokens * heads * 4, err));
    ST_TRY(set_bytes(b, ST_BUF_DECODE_SCRATCH, set, NOTHING,
                     b->buffers.bytes[ST_BUF_DECODE_SCRATCH], err));
    ST_TRY(set_bytes(b, ST_BUF_TOPK_SCRATCH, set, NOTHING, b->buffers.bytes[ST_BUF_TOPK_SCRATCH],
                     err));
    /* All strides of combined rows are multiples of the tile: one pattern fits them all. */
    ST_TRY(set_words(b, ST_BUF_COMBINED, set, tokens * b->buffers.combined_stride,
                     (int32_t)used_rows(plan), STEPTAPE_MLA_TILE, err));
    return st_cuda_fill_guards(b, set, err);
}

int st_cuda_poison_workspace(struct st_backend *b, const struct st_plan *plan, int32_t set,
                             struct st_error *err) {
    int64_t rows = used_rows(plan) + STEPTAPE_MLA_TILE;
    rows = rows < b->buffers.workspace_rows ? rows : b->buffers.workspace_rows;
    return set_bytes(b, ST_BUF_KV_WORKSPACE, set, NOTHING, rows * b->model.head_dim * 2, err);
}
