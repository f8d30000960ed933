/* SPDX-License-Identifier: Apache-2.0 */
#include "traces/cut.h"

#include <stdlib.h>
#include <string.h>

#include "traces/interchange/known.h"

struct array {
    void *data;
    size_t capacity; /* bytes */
};

struct st_cut {
    int32_t group_count;
    int64_t next_step;
    struct st_known known; /* requests that had a row, or were new, since the cut */
    struct array new_request, prompt_len, finished, preempted, resumed, replaced, is_cut;
    struct st_row_blocks blocks[ST_MAX_GROUPS];
    struct array offset[ST_MAX_GROUPS], block_id[ST_MAX_GROUPS];
};

int st_cut_create(int32_t group_count, struct st_cut **out, struct st_error *err) {
    struct st_cut *cut = calloc(1, sizeof *cut);
    if (!cut)
        return ST_FAIL_NOMEM(err);
    cut->group_count = group_count;
    *out = cut;
    return ST_OK;
}

void st_cut_destroy(struct st_cut *cut) {
    if (!cut)
        return;
    struct array *arrays[] = {&cut->new_request, &cut->prompt_len, &cut->finished, &cut->preempted,
                              &cut->resumed,     &cut->replaced,   &cut->is_cut};
    for (size_t i = 0; i < sizeof arrays / sizeof *arrays; i++)
        free(arrays[i]->data);
    for (int g = 0; g < ST_MAX_GROUPS; g++) {
        free(cut->offset[g].data);
        free(cut->block_id[g].data);
    }
    st_known_fini(&cut->known);
    free(cut);
}

static int reserve(struct array *array, size_t bytes, struct st_error *err) {
    if (array->data && bytes <= array->capacity)
        return ST_OK;
    void *data = realloc(array->data, 2 * bytes + 64);
    if (!data)
        return ST_FAIL_NOMEM(err);
    array->data = data;
    array->capacity = 2 * bytes + 64;
    return ST_OK;
}

/* Those of a list that are known. */
static int filter(struct st_cut *cut, struct st_request_list *list, struct array *to,
                  struct st_error *err) {
    int32_t count = 0;
    if (list->count <= 0)
        return ST_OK;
    ST_TRY(reserve(to, (size_t)list->count * sizeof(int64_t), err));
    int64_t *ids = to->data;
    for (int32_t i = 0; i < list->count; i++)
        if (st_known_find(&cut->known, list->request_id[i]))
            ids[count++] = list->request_id[i];
    *list = (struct st_request_list){count, ids};
    return ST_OK;
}

/* Who is new: those that are, and behind them those that began before the cut. */
static int add_new(struct st_cut *cut, const struct st_step *step, struct st_step *out,
                   struct st_error *err) {
    int32_t count = step->new_requests.count;
    size_t most = (size_t)count + (size_t)step->request_count;
    ST_TRY(reserve(&cut->new_request, most * sizeof(int64_t), err));
    ST_TRY(reserve(&cut->prompt_len, most * sizeof(int32_t), err));
    ST_TRY(reserve(&cut->is_cut, (size_t)step->request_count, err));
    int64_t *ids = cut->new_request.data;
    int32_t *prompt_len = cut->prompt_len.data;
    char *is_cut = cut->is_cut.data;
    for (int32_t i = 0; i < count; i++) {
        ids[i] = step->new_requests.request_id[i];
        prompt_len[i] = step->new_prompt_len[i];
        if (!st_known_find(&cut->known, ids[i]) && !st_known_add(&cut->known, ids[i]))
            return ST_FAIL_NOMEM(err);
    }
    for (int32_t row = 0; row < step->request_count; row++) {
        int64_t id = step->request_id[row];
        is_cut[row] = !st_known_find(&cut->known, id);
        if (!is_cut[row])
            continue;
        ids[count] = id;
        prompt_len[count++] = step->prompt_len[row];
        if (!st_known_add(&cut->known, id))
            return ST_FAIL_NOMEM(err);
    }
    out->new_requests = (struct st_request_list){count, ids};
    out->new_prompt_len = prompt_len;
    return ST_OK;
}

static int add_blocks(struct st_cut *cut, struct st_cursor *cursor, const struct st_step *step,
                      int32_t g, struct st_error *err) {
    const struct st_row_blocks *from = &step->blocks[g];
    const char *is_cut = cut->is_cut.data;
    size_t total = 0;
    ST_TRY(reserve(&cut->offset[g], ((size_t)step->request_count + 1) * sizeof(int32_t), err));
    int32_t *offset = cut->offset[g].data;
    offset[0] = 0;
    for (int32_t row = 0; row < step->request_count; row++) {
        const int32_t *ids = from->block_id + from->offset[row];
        int32_t count = from->offset[row + 1] - from->offset[row];
        if (is_cut[row])
            ST_TRY(st_cursor_block_table(cursor, g, row, &ids, &count, err));
        if ((size_t)count > INT32_MAX - total)
            return ST_FAIL(err, ST_ERR_INPUT, "more than 2^31 - 1 block ids in a step");
        ST_TRY(reserve(&cut->block_id[g], (total + (size_t)count) * sizeof(int32_t), err));
        if (count)
            memcpy((int32_t *)cut->block_id[g].data + total, ids, (size_t)count * sizeof *ids);
        total += (size_t)count;
        offset[row + 1] = (int32_t)total;
    }
    cut->blocks[g] = (struct st_row_blocks){offset, cut->block_id[g].data};
    return ST_OK;
}

int st_cut_step(struct st_cut *cut, struct st_cursor *cursor, const struct st_step *step,
                struct st_step *out, struct st_error *err) {
    *out = *step;
    out->step_id = cut->next_step;
    if (cut->next_step++ == 0)
        out->dropped_before = 0;
    ST_TRY(filter(cut, &out->preempted, &cut->preempted, err));
    ST_TRY(filter(cut, &out->finished, &cut->finished, err));
    for (int32_t i = 0; i < out->finished.count; i++)
        if (!st_known_finish(&cut->known, out->finished.request_id[i]))
            return ST_FAIL_NOMEM(err);
    ST_TRY(filter(cut, &out->resumed, &cut->resumed, err));
    ST_TRY(filter(cut, &out->replaced, &cut->replaced, err));
    ST_TRY(add_new(cut, step, out, err));
    for (int32_t g = 0; g < cut->group_count; g++)
        ST_TRY(add_blocks(cut, cursor, step, g, err));
    out->blocks = cut->blocks;
    return ST_OK;
}
