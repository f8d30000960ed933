/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a step runs as: its graph mode, its padding, and which of its tokens decode.
 */
#include <string.h>

#include "replay/plan.h"

static const char *const mode_names[ST_MODE_COUNT] = {
    [ST_MODE_FULL_AND_PIECEWISE] = "full-and-piecewise",
    [ST_MODE_TAPE] = "tape",
    [ST_MODE_EAGER] = "eager",
    [ST_MODE_PIECEWISE] = "piecewise",
    [ST_MODE_FULL] = "full",
};

const char *st_mode_request_name(enum st_mode_request mode) {
    return mode_names[mode];
}

int st_mode_request_find(const char *name) {
    for (int i = 0; i < ST_MODE_COUNT; i++)
        if (strcmp(mode_names[i], name) == 0)
            return i;
    return -1;
}

static int32_t closed_groups(const struct st_step *step, int32_t ratio) {
    int64_t groups = 0;
    for (int32_t i = 0; i < step->request_count; i++) {
        int64_t start = step->num_computed_tokens[i];
        groups += (start + step->query_len[i]) / ratio - start / ratio;
    }
    return (int32_t)groups;
}

/* Tokens of a decode: one, and the drafts that are verified with it. */
static int32_t decode_query_len(const struct st_step *step) {
    int32_t most = 0;
    for (int32_t i = 0; step->draft && i < step->request_count; i++)
        most = step->draft[i] > most ? step->draft[i] : most;
    return 1 + most;
}

/* As vLLM's dispatcher: all requests of the same length, that of a decode. */
static bool is_uniform_decode(const struct st_step *step) {
    int32_t length = step->request_count > 0 ? step->query_len[0] : 0;
    if (length != 1 && length != decode_query_len(step))
        return false;
    for (int32_t i = 1; i < step->request_count; i++)
        if (step->query_len[i] != length)
            return false;
    return true;
}

static void set_full(const struct st_model *model, const struct st_step *step, bool use_recorded,
                     struct st_step_shape *shape) {
    int64_t size = st_model_capture_size(model, step->token_count);
    if (use_recorded && step->padded_token_count >= step->token_count)
        size = step->padded_token_count;
    if (size < 0) {
        shape->above_largest = true;
        return;
    }
    shape->mode = ST_GRAPH_MODE_FULL;
    shape->padded_token_count = (int32_t)size;
    /* Requests are padded to one token each, as far as the engine has rows for them. */
    int64_t rows = size < model->max_num_seqs ? size : model->max_num_seqs;
    if (rows > shape->request_count)
        shape->padded_request_count = (int32_t)rows;
}

static void set_piecewise(const struct st_model *model, const struct st_step *step,
                          struct st_step_shape *shape) {
    if (st_model_capture_size(model, step->token_count) < 0)
        shape->above_largest = true;
    else
        shape->mode = ST_GRAPH_MODE_PIECEWISE;
}

static void set_mode(const struct st_model *model, const struct st_step *step,
                     enum st_mode_request request, struct st_step_shape *shape) {
    switch (request) {
    case ST_MODE_FULL:
        set_full(model, step, false, shape);
        break;
    case ST_MODE_PIECEWISE:
        set_piecewise(model, step, shape);
        break;
    case ST_MODE_FULL_AND_PIECEWISE:
        if (is_uniform_decode(step) && st_model_capture_size(model, step->token_count) >= 0)
            set_full(model, step, false, shape);
        else
            set_piecewise(model, step, shape);
        break;
    case ST_MODE_TAPE:
        shape->mode_unknown = step->graph_mode == ST_GRAPH_MODE_UNKNOWN;
        if (step->graph_mode == ST_GRAPH_MODE_FULL)
            set_full(model, step, true, shape);
        else if (step->graph_mode == ST_GRAPH_MODE_PIECEWISE)
            shape->mode = ST_GRAPH_MODE_PIECEWISE;
        break;
    default:
        break;
    }
}

/* Requests that decode come first in a batch; the first longer one ends them. */
static void split_batch(const struct st_step *step, struct st_step_shape *shape) {
    if (shape->mode == ST_GRAPH_MODE_FULL) {
        shape->decode_request_count = shape->padded_request_count;
        shape->decode_token_count = shape->padded_token_count;
        shape->decode_next_n = decode_query_len(step);
        return;
    }
    int32_t most = decode_query_len(step);
    for (int32_t i = 0; i < step->request_count && step->query_len[i] <= most; i++) {
        shape->decode_request_count++;
        shape->decode_token_count += step->query_len[i];
        if (step->query_len[i] > shape->decode_next_n)
            shape->decode_next_n = step->query_len[i];
    }
}

static int64_t least(int64_t a, int64_t b) {
    return a < b ? a : b;
}

static void add_work(const struct st_model *model, const struct st_step *step,
                     struct st_step_shape *shape) {
    int32_t token = 0;
    for (int32_t r = 0; r < step->request_count; r++) {
        for (int32_t i = 0; i < step->query_len[r]; i++, token++) {
            struct st_work *work =
                token < shape->decode_token_count ? &shape->decode : &shape->prefill;
            int64_t length = (int64_t)step->num_computed_tokens[r] + i + 1;
            work->tokens++;
            work->swa += least(length, model->window);
            work->c4 += length / 4;
            work->c128 += length / 128;
            work->c4_topk += least(length / 4, model->index_topk);
            work->dsa += length;
            work->dsa_topk += least(length, model->index_topk);
        }
    }
}

void st_step_shape_make(const struct st_model *model, const struct st_step *step,
                        enum st_mode_request request, struct st_step_shape *shape) {
    memset(shape, 0, sizeof *shape);
    shape->mode = ST_GRAPH_MODE_NONE;
    shape->pair = -1;
    shape->request_count = shape->padded_request_count = step->request_count;
    shape->token_count = shape->padded_token_count = (int32_t)step->token_count;
    shape->boundary =
        st_boundary_predicate(st_step_has_cpu_starts(step) ? step->num_computed_tokens : NULL,
                              step->query_len, step->request_count, 128);
    shape->boundary_tokens = closed_groups(step, 128);
    shape->boundary_tokens_c4 = closed_groups(step, 4);
    shape->boundary_true = shape->boundary_tokens > 0;
    if (step->request_count == 0)
        return;
    for (int32_t r = 0; r < step->request_count; r++) {
        int32_t length = step->num_computed_tokens[r] + step->query_len[r];
        if (length > shape->max_seq_len)
            shape->max_seq_len = length;
    }
    set_mode(model, step, request, shape);
    split_batch(step, shape);
    add_work(model, step, shape);
}
