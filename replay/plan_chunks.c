/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Chunks of prefill: requests whose keys share a workspace (attention), and requests whose scores
 * share an array (indexer).
 */
#include <stdlib.h>

#include "replay/plan_i.h"

/* As VLLM_SPARSE_INDEXER_MAX_LOGITS_MB: what the scores of one indexer call may take. */
enum { MAX_LOGITS_MB = 512 };

static struct st_chunk *grow(struct st_plan *plan) {
    if (plan->chunk_count == plan->chunk_room) {
        int32_t room = plan->chunk_room ? 2 * plan->chunk_room : 16;
        struct st_chunk *chunk = realloc(plan->chunk, (size_t)room * sizeof *chunk);
        if (!chunk)
            return NULL;
        plan->chunk = chunk;
        plan->chunk_room = room;
    }
    struct st_chunk *made = &plan->chunk[plan->chunk_count++];
    *made = (struct st_chunk){0};
    return made;
}

static int64_t least(int64_t a, int64_t b) {
    return a < b ? a : b;
}

static int64_t length_of(const struct st_step *step, int32_t request) {
    return (int64_t)step->num_computed_tokens[request] + step->query_len[request];
}

static int32_t ratio_of(enum st_layer_kind kind) {
    return kind == ST_LAYER_C4 ? 4 : kind == ST_LAYER_C128 ? 128 : 1;
}

/* Entries of a request that a layer's gather brings beside the window. */
static int64_t entries_of(const struct st_step *step, int32_t request, enum st_layer_kind kind) {
    if (kind == ST_LAYER_SWA)
        return 0;
    return length_of(step, request) / ratio_of(kind);
}

/* First tokens, and sums over the chunk's tokens. */
static void finish(const struct st_model *model, const struct st_step *step,
                   enum st_layer_kind kind, int32_t first_token, struct st_chunk *chunk) {
    int32_t window = model->window;
    chunk->first_token = first_token;
    for (int32_t r = chunk->plan.first_req; r < chunk->plan.first_req + chunk->plan.req_count;
         r++) {
        int64_t start = step->num_computed_tokens[r], query = step->query_len[r];
        chunk->token_count += (int32_t)query;
        chunk->gathered_entries += entries_of(step, r, kind);
        if (window > 0)
            chunk->gathered_window += query + least(start, window - 1);
        for (int64_t p = start; p < start + query; p++) {
            int64_t entries = kind == ST_LAYER_SWA ? 0 : (p + 1) / ratio_of(kind);
            if (kind == ST_LAYER_C4 || kind == ST_LAYER_DSA)
                entries = least(entries, model->index_topk);
            chunk->listed += entries + least(p + 1, window);
        }
    }
}

/* V3.2 has no window; its requests share an area of four of the longest. */
static int32_t plan_dsa(const struct st_model *model, const struct st_step *step, int32_t first,
                        int32_t count, struct steptape_prefill_chunk *out) {
    int64_t area = 4 * (model->max_model_len + model->max_num_batched_tokens);
    int32_t chunks = 0;
    for (int32_t r = 0; r < count;) {
        struct steptape_prefill_chunk *chunk = &out[chunks++];
        *chunk = (struct steptape_prefill_chunk){.first_req = r};
        while (r < count) {
            int64_t longest = length_of(step, first + r);
            longest = longest > chunk->n ? longest : chunk->n;
            if (chunk->req_count > 0 && (chunk->req_count + 1) * longest > area)
                break;
            chunk->n = chunk->m = (int32_t)longest;
            chunk->req_count++;
            r++;
        }
    }
    return chunks;
}

static int add_kind(const struct st_model *model, const struct st_step *step, int32_t first,
                    int32_t count, int32_t first_token, enum st_layer_kind kind,
                    const int32_t *seq_len, struct steptape_prefill_chunk *scratch,
                    struct st_plan *plan) {
    int32_t chunks =
        kind == ST_LAYER_DSA
            ? plan_dsa(model, step, first, count, scratch)
            : steptape_plan_prefill_chunks(seq_len, step->query_len + first, count, ratio_of(kind),
                                           model->window, model->max_model_len,
                                           model->max_num_batched_tokens, 0, scratch);
    for (int32_t i = 0; i < chunks; i++) {
        struct st_chunk *chunk = grow(plan);
        if (!chunk)
            return ST_ERR_NOMEM;
        chunk->plan = scratch[i];
        chunk->plan.first_req += first;
        finish(model, step, kind, first_token, chunk);
        first_token += chunk->token_count;
    }
    return chunks < 0 ? ST_ERR_INPUT : 0;
}

/* Requests side by side until their scores take the limit; a request too large for it is cut by
 * rows.  Offsets come after the rows of decodes. */
static int add_index_chunks(const struct st_model *model, const struct st_step *step,
                            const struct st_step_shape *shape, enum st_layer_kind kind,
                            struct st_plan *plan) {
    int64_t limit = ((int64_t)MAX_LOGITS_MB << 20) / 4;
    int64_t offset = shape->decode_token_count * st_logits_stride(model);
    int32_t token = shape->decode_token_count;
    for (int32_t r = shape->decode_request_count; r < step->request_count;) {
        int64_t columns = 0, rows = 0;
        int32_t first = r;
        while (r < step->request_count) {
            int64_t wide = columns + entries_of(step, r, kind);
            int64_t tall = rows + step->query_len[r];
            if (r > first && tall * wide > limit)
                break;
            columns = wide;
            rows = tall;
            r++;
        }
        columns = (columns + 3) / 4 * 4;
        columns = columns > 0 ? columns : 4;
        int64_t most = limit / columns > 0 ? limit / columns : 1;
        for (int64_t done = 0; done < rows; done += most) {
            struct st_chunk *chunk = grow(plan);
            if (!chunk)
                return ST_ERR_NOMEM;
            chunk->plan.first_req = first;
            chunk->plan.req_count = r - first;
            chunk->first_token = token + (int32_t)done;
            chunk->token_count = (int32_t)least(most, rows - done);
            chunk->columns = columns;
            chunk->logits_offset = offset;
            chunk->listed = chunk->token_count * columns; /* at most; exact: the rows' lengths */
            offset += chunk->token_count * columns;
        }
        token += (int32_t)rows;
    }
    return 0;
}

int st_plan_chunks(const struct st_model *model, const struct st_step *step,
                   const struct st_step_shape *shape, struct st_plan *plan) {
    int32_t first = shape->decode_request_count;
    int32_t count = shape->mode == ST_GRAPH_MODE_FULL ? 0 : step->request_count - first;
    plan->chunk_count = 0;
    struct steptape_prefill_chunk *scratch = calloc((size_t)count + 1, sizeof *scratch);
    int32_t *seq_len = calloc((size_t)count + 1, sizeof *seq_len);
    int rc = scratch && seq_len ? 0 : ST_ERR_NOMEM;
    for (int32_t i = 0; rc == 0 && i < count; i++)
        seq_len[i] = (int32_t)length_of(step, first + i);
    for (int k = 0; k < ST_LAYER_KINDS; k++) {
        plan->first_chunk[k] = plan->chunk_count;
        if (rc == 0 && count > 0 && model->kind_count[k] > 0)
            rc = add_kind(model, step, first, count, shape->decode_token_count,
                          (enum st_layer_kind)k, seq_len, scratch, plan);
    }
    plan->first_chunk[ST_LAYER_KINDS] = plan->first_index_chunk = plan->chunk_count;
    for (int k = 0; k < ST_LAYER_KINDS; k++)
        if (rc == 0 && count > 0 && model->kind_count[k] > 0 &&
            (k == ST_LAYER_C4 || k == ST_LAYER_DSA))
            rc = add_index_chunks(model, step, shape, (enum st_layer_kind)k, plan);
    free(scratch);
    free(seq_len);
    return rc;
}

int64_t st_plan_logits(const struct st_model *model, const struct st_step *step,
                       const struct st_step_shape *shape) {
    int64_t total = shape->decode_token_count * st_logits_stride(model);
    struct st_plan plan = {0};
    if (st_plan_chunks(model, step, shape, &plan) == 0)
        for (int32_t i = plan.first_index_chunk; i < plan.chunk_count; i++)
            total += plan.chunk[i].token_count * plan.chunk[i].columns;
    st_plan_fini(&plan);
    return total;
}
