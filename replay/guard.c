/* SPDX-License-Identifier: Apache-2.0 */
#include "replay/guard.h"

#include <stdio.h>
#include <string.h>

enum { MOST_BAND = 1 << 18 };

static int64_t least(int64_t a, int64_t b) {
    return a < b ? a : b;
}

static int64_t round_up(int64_t value, int64_t unit) {
    return (value + unit - 1) / unit * unit;
}

/* ---- rows of buffers */

struct layout {
    const char *name;     /* in a message */
    enum st_operator op;  /* whose output it is */
    int64_t row_bytes;    /* 0: no launch writes the buffer */
    int32_t column_bytes; /* what a column is */
    int32_t parts;        /* views of max_tokens rows behind one another, else 1 */
};

static struct layout layout_of(const struct st_model *m, const struct st_buffers *b,
                               enum st_buffer_id id) {
    const int64_t heads = m->heads, topk = (int64_t)m->index_topk * 4;
    const int64_t capacity = (int64_t)b->c128a_capacity * 4, whole = b->bytes[id];
    switch (id) {
    case ST_BUF_KV_SLOT_C4:
    case ST_BUF_KV_SLOT_C128:
    case ST_BUF_KV_SLOT_INDEXER:
        return (struct layout){"slots", ST_OP_COMPRESSED_SLOT_MAPPING, 8, 8, 1};
    case ST_BUF_SWA_INDICES:
        return (struct layout){"window indices", ST_OP_SWA_INDICES, m->window * 4, 4,
                               ST_MAX_SWA_GROUPS};
    case ST_BUF_SWA_LENS:
        return (struct layout){"window lengths", ST_OP_SWA_INDICES, 4, 4, ST_MAX_SWA_GROUPS};
    case ST_BUF_GATHER_LENS:
        return (struct layout){"gather lengths", ST_OP_GATHER_LENS, 4, 4, 1};
    case ST_BUF_C128A_DECODE:
        return (struct layout){"C128A decode indices", ST_OP_C128A_TOPK_METADATA, capacity, 4, 1};
    case ST_BUF_C128A_PREFILL:
        return (struct layout){"C128A prefill indices", ST_OP_C128A_TOPK_METADATA, capacity, 4, 1};
    case ST_BUF_C128A_LENS:
        return (struct layout){"C128A lengths", ST_OP_C128A_TOPK_METADATA, 4, 4, 1};
    case ST_BUF_BOUNDARY_LIST:
        return (struct layout){"boundary list", ST_OP_BOUNDARY_LIST, 4, 4, 1};
    case ST_BUF_BOUNDARY_COUNT:
        return (struct layout){"boundary count", ST_OP_BOUNDARY_LIST, 4, 4, 1};
    case ST_BUF_POOLED:
        return (struct layout){"pooled rows", ST_OP_COMPRESS_POOL, 512 * 4, 4, 1};
    case ST_BUF_TOPK:
    case ST_BUF_TOPK_PADDED:
        return (struct layout){"top-k indices", ST_OP_TOPK_PER_ROW, topk, 4, 1};
    case ST_BUF_TOPK_SCRATCH:
        return (struct layout){"top-k scratch", ST_OP_TOPK_PER_ROW, whole, 4, 1};
    case ST_BUF_GLOBAL_TOPK:
        return (struct layout){"global top-k indices", ST_OP_GLOBAL_TOPK_INDICES, topk, 4, 1};
    case ST_BUF_GLOBAL_LENS:
        return (struct layout){"global top-k lengths", ST_OP_GLOBAL_TOPK_INDICES, 4, 4, 1};
    case ST_BUF_DECODE_PLAN:
        return (struct layout){"decode plan", ST_OP_SPARSE_MLA_DECODE, b->plan_bytes, 4, 1};
    case ST_BUF_DECODE_SCRATCH:
        return (struct layout){"decode scratch", ST_OP_SPARSE_MLA_DECODE, whole, 4, 1};
    case ST_BUF_KV_WORKSPACE:
        return (struct layout){"gathered rows", ST_OP_DEQUANTIZE_AND_GATHER,
                               (int64_t)m->head_dim * 2, 2, 1};
    case ST_BUF_COMBINED:
        return (struct layout){"combined indices", ST_OP_COMBINE_TOPK_SWA_INDICES,
                               b->combined_stride * 4, 4, 1};
    case ST_BUF_COMBINED_LENS:
        return (struct layout){"combined lengths", ST_OP_COMBINE_TOPK_SWA_INDICES, 4, 4, 1};
    case ST_BUF_OUT:
        return (struct layout){"outputs", ST_OP_SPARSE_MLA_DECODE, heads * m->value_dim * 2, 2, 1};
    case ST_BUF_MAX_LOGITS:
        return (struct layout){"max logits", ST_OP_SPARSE_MLA_PREFILL, heads * 4, 4, 1};
    case ST_BUF_LSE:
        return (struct layout){"log-sum-exps", ST_OP_SPARSE_MLA_DECODE, heads * 4, 4, 1};
    case ST_BUF_CACHE_KV_C4:
    case ST_BUF_CACHE_KV_INDEXER:
    case ST_BUF_CACHE_STATE_C4:
    case ST_BUF_CACHE_STATE_INDEXER:
    case ST_BUF_CACHE_KV_C128:
    case ST_BUF_CACHE_STATE_C128:
        break;
    default:
        return (struct layout){"", ST_OP_COUNT, 0, 4, 1};
    }
    struct layout pages = {"pages", ST_OP_SAVE_PARTIAL_STATES, 0, 1, 1};
    for (int c = 0; c < ST_CACHE_COUNT; c++)
        if (st_buffer_of_cache((enum st_cache_id)c) == id)
            pages.row_bytes = m->cache[c].page_bytes;
    if (id == ST_BUF_CACHE_KV_C128)
        pages.op = ST_OP_COMPRESS_NORM_ROPE_STORE;
    else if (id == ST_BUF_CACHE_KV_C4 || id == ST_BUF_CACHE_KV_INDEXER)
        pages.op = ST_OP_COMPRESS_FUSED;
    return pages;
}

/* Rows of the longest chunk, and rows of keys that the largest one gathers. */
static void chunk_rows(const struct st_plan *plan, int64_t *tokens, int64_t *keys) {
    *tokens = *keys = 0;
    for (int32_t i = 0; i < plan->first_index_chunk; i++) {
        const struct st_chunk *chunk = &plan->chunk[i];
        int64_t rows = (int64_t)chunk->plan.req_count * chunk->plan.m;
        *keys = rows > *keys ? rows : *keys;
        *tokens = chunk->token_count > *tokens ? chunk->token_count : *tokens;
    }
}

/* Rows that belong to this step; -1: the whole array does. */
static int64_t rows_of(const struct st_plan *plan, enum st_buffer_id id) {
    const struct st_step_shape *shape = &plan->shape;
    int64_t tokens, keys;
    chunk_rows(plan, &tokens, &keys);
    switch (id) {
    case ST_BUF_SWA_INDICES:
    case ST_BUF_SWA_LENS:
    case ST_BUF_BOUNDARY_LIST:
    case ST_BUF_POOLED:
    case ST_BUF_TOPK:
    case ST_BUF_OUT:
    case ST_BUF_MAX_LOGITS:
    case ST_BUF_LSE:
        return shape->padded_token_count;
    case ST_BUF_GATHER_LENS:
        return shape->padded_request_count;
    case ST_BUF_C128A_DECODE:
    case ST_BUF_C128A_LENS:
    case ST_BUF_GLOBAL_TOPK:
    case ST_BUF_GLOBAL_LENS:
        return shape->decode_token_count;
    case ST_BUF_C128A_PREFILL:
        return shape->padded_token_count - shape->decode_token_count;
    case ST_BUF_TOPK_PADDED:
        return st_step_padded_rows(shape);
    case ST_BUF_KV_WORKSPACE: /* and the tile of NaN rows that stale lists point at */
        return keys + STEPTAPE_MLA_TILE;
    case ST_BUF_COMBINED:
    case ST_BUF_COMBINED_LENS:
        return tokens;
    default:
        return -1;
    }
}

int64_t st_guard_band(const struct st_model *model, const struct st_buffers *buffers,
                      enum st_buffer_id id) {
    if (buffers->bytes[id] <= 0)
        return 0;
    int64_t row = layout_of(model, buffers, id).row_bytes;
    return row > 0 ? round_up(least(2 * row, MOST_BAND), ST_GUARD_ALIGNMENT) : 0;
}

int32_t st_guard_copies(const struct st_buffers *buffers, enum st_buffer_id id) {
    return st_buffer_scope(id) == ST_SCOPE_CACHE ? buffers->layer_buffers : 1;
}

enum st_operator st_guard_owner(enum st_buffer_id id) {
    static const struct st_model none;
    static const struct st_buffers empty;
    return layout_of(&none, &empty, id).op;
}

/* ---- regions */

static void add(struct st_guards *g, int32_t *count, enum st_buffer_id id, int64_t begin,
                int64_t end) {
    begin = round_up(begin, 4);
    end = least(end, begin + ST_GUARD_MOST_BYTES);
    if (end > begin)
        g->region[(*count)++] = (struct st_guard_region){id, begin, end};
}

void st_guards_make(const struct st_model *model, const struct st_buffers *buffers,
                    const struct st_plan *plan, struct st_guards *guards) {
    int32_t count = 0;
    /* A band before, what is behind each part, and the band of an array that is too long. */
    _Static_assert(2 + (int)ST_MAX_SWA_GROUPS <= (int)ST_GUARD_BUFFER_REGIONS, "room");
    for (int i = 0; i < ST_BUF_COUNT; i++) {
        enum st_buffer_id id = (enum st_buffer_id)i;
        int64_t band = st_guard_band(model, buffers, id), bytes = buffers->bytes[id];
        guards->first[id] = count;
        if (band == 0)
            continue;
        struct layout layout = layout_of(model, buffers, id);
        int64_t end = round_up(bytes, ST_GUARD_ALIGNMENT) + band, rows = rows_of(plan, id);
        int64_t part = bytes / layout.parts;
        add(guards, &count, id, -band, 0);
        for (int32_t p = 0; p < layout.parts; p++) {
            int64_t used = rows < 0 ? part : least(rows * layout.row_bytes, part);
            add(guards, &count, id, p * part + used, p + 1 < layout.parts ? (p + 1) * part : end);
        }
        /* Where the array is longer than what is looked at, its end still has its band. */
        int64_t seen = guards->region[count - 1].end;
        if (seen < end)
            add(guards, &count, id, seen > bytes ? seen : bytes, end);
    }
    guards->first[ST_BUF_COUNT] = count;
}

int32_t st_guard_outputs(const struct st_launch *launch, enum st_buffer_id out[ST_GUARD_OUTPUTS]) {
    static const struct {
        enum st_operator op;
        int32_t count;
        enum st_buffer_id id[ST_GUARD_OUTPUTS];
    } outputs[] = {
        {ST_OP_SWA_INDICES, 2, {ST_BUF_SWA_INDICES, ST_BUF_SWA_LENS}},
        {ST_OP_GATHER_LENS, 1, {ST_BUF_GATHER_LENS}},
        {ST_OP_C128A_TOPK_METADATA,
         3,
         {ST_BUF_C128A_DECODE, ST_BUF_C128A_LENS, ST_BUF_C128A_PREFILL}},
        {ST_OP_BOUNDARY_LIST, 2, {ST_BUF_BOUNDARY_LIST, ST_BUF_BOUNDARY_COUNT}},
        {ST_OP_COMPRESS_POOL, 1, {ST_BUF_POOLED}},
        {ST_OP_TOPK_PER_ROW, 3, {ST_BUF_TOPK, ST_BUF_TOPK_PADDED, ST_BUF_TOPK_SCRATCH}},
        {ST_OP_GLOBAL_TOPK_INDICES, 2, {ST_BUF_GLOBAL_TOPK, ST_BUF_GLOBAL_LENS}},
        {ST_OP_SPARSE_MLA_DECODE,
         4,
         {ST_BUF_OUT, ST_BUF_LSE, ST_BUF_DECODE_PLAN, ST_BUF_DECODE_SCRATCH}},
        {ST_OP_DEQUANTIZE_AND_GATHER, 1, {ST_BUF_KV_WORKSPACE}},
        {ST_OP_COMBINE_TOPK_SWA_INDICES, 2, {ST_BUF_COMBINED, ST_BUF_COMBINED_LENS}},
        {ST_OP_SPARSE_MLA_PREFILL, 3, {ST_BUF_OUT, ST_BUF_MAX_LOGITS, ST_BUF_LSE}},
    };
    enum st_cache_id cache = (enum st_cache_id)launch->cache;
    switch ((enum st_operator)launch->op) {
    case ST_OP_COMPRESSED_SLOT_MAPPING:
        out[0] = cache == ST_CACHE_KV_C4     ? ST_BUF_KV_SLOT_C4
                 : cache == ST_CACHE_KV_C128 ? ST_BUF_KV_SLOT_C128
                                             : ST_BUF_KV_SLOT_INDEXER;
        return 1;
    case ST_OP_SAVE_PARTIAL_STATES:
    case ST_OP_COMPRESS_NORM_ROPE_STORE:
    case ST_OP_COMPRESS_FUSED:
        out[0] = st_buffer_of_cache(cache);
        return 1;
    case ST_OP_FILL:
        out[0] = launch->part == ST_PART_INDEXER ? ST_BUF_TOPK : ST_BUF_COMBINED;
        return 1;
    default:
        break;
    }
    for (size_t i = 0; i < sizeof outputs / sizeof outputs[0]; i++) {
        if (outputs[i].op != (enum st_operator)launch->op)
            continue;
        memcpy(out, outputs[i].id, (size_t)outputs[i].count * sizeof *out);
        return outputs[i].count;
    }
    return 0;
}

/* ---- filling and comparing */

void st_guard_fill(const struct st_guard_region *region, void *base) {
    memset((uint8_t *)base + region->begin, ST_GUARD_BYTE, (size_t)(region->end - region->begin));
}

bool st_guard_check(const struct st_guard_region *region, void *base,
                    struct st_guard_damage *damage) {
    uint8_t *bytes = base;
    uint32_t want, word;
    memset(&want, ST_GUARD_BYTE, sizeof want);
    damage->buffer = (uint8_t)region->buffer;
    damage->words = 0;
    for (int64_t at = region->begin; at < region->end; at += 4) {
        memcpy(&word, bytes + at, sizeof word);
        if (word == want)
            continue;
        if (damage->words++ == 0)
            damage->first = at;
        damage->last = at;
        memcpy(bytes + at, &want, sizeof want);
    }
    damage->cut = damage->words > 0 && (region->begin < 0 ? damage->first == region->begin
                                                          : damage->last + 4 == region->end);
    return damage->words > 0;
}

/* ---- in words */

void st_guard_describe(const struct st_model *model, const struct st_buffers *buffers,
                       const struct st_guard_damage *damage, int64_t *row, int64_t *column,
                       char *what, size_t size) {
    enum st_buffer_id id = (enum st_buffer_id)damage->buffer;
    struct layout layout = layout_of(model, buffers, id);
    int64_t part = buffers->bytes[id] / layout.parts, which = 0;
    if (layout.parts > 1 && damage->first > 0)
        which = least(damage->first / part, layout.parts - 1);
    int64_t first = damage->first - which * part, last = damage->last - which * part;
    /* Floor division: rows before the first are -1, -2, ... */
    *row = first >= 0 ? first / layout.row_bytes : -((-first - 1) / layout.row_bytes) - 1;
    int64_t end = last >= 0 ? last / layout.row_bytes : -((-last - 1) / layout.row_bytes) - 1;
    *column = (first - *row * layout.row_bytes) / layout.column_bytes;
    snprintf(what, size, "written %s the view of %s: rows %lld to %lld, %lld bytes%s%s",
             first < 0 ? "before" : "past", layout.name, (long long)*row, (long long)end,
             4 * (long long)damage->words, damage->cut ? " or more" : "",
             damage->foreign ? ", by another operator" : "");
}
