/* SPDX-License-Identifier: Apache-2.0 */
/* Reading a tape by columns: steptape/tape.h.  A cursor gives the steps, columns grow by doubling.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "steptape/tape.h"
#include "traces/base/error.h"
#include "traces/format/reader.h"
#include "traces/interchange/out.h"
#include "traces/interchange/print.h"

/* A growing array of elements of one size. */
struct column {
    char *data;
    size_t size, capacity; /* bytes */
};

/* Columns of 64-bit and of 32-bit numbers. */
enum {
    STEP_ID,
    START,
    DURATION,
    PADDED_TOKENS,
    PADDED_REQUESTS,
    ZEROED,
    ROW_OFFSET,
    TOKEN_OFFSET,
    REQUEST_ID,
    WIDE
};
enum { GRAPH_MODE, CPU_STARTS, QUERY_LEN, COMPUTED, PROMPT_LEN, DRAFT, NEW_PROMPT_LEN, NARROW };
enum { NEW, FINISHED, PREEMPTED, RESUMED, REPLACED, LISTS };
enum { APPENDED, TABLES, GROUP_KINDS };

struct group {
    struct column offset, block_id, slot;
};

struct steptape_tape {
    struct st_tape *tape;
    struct st_cursor *cursor;
    unsigned what;
    int32_t group_count;
    char *header;
    struct column wide[WIDE], narrow[NARROW];
    struct column list_offset[LISTS], list_value[LISTS];
    struct group *group[GROUP_KINDS];
    struct steptape_tape_group *out_group[GROUP_KINDS];
    struct steptape_tape_steps steps;
    int64_t rows, tokens, values;
};

static int fail(const struct st_error *err, char *message, size_t size) {
    if (message && size)
        snprintf(message, size, "%s", err->msg);
    return err->code ? err->code : ST_ERR_INPUT;
}

static void *push(struct column *c, const void *values, size_t size, struct st_error *err) {
    if (!c->data || c->size + size > c->capacity) {
        size_t capacity = c->capacity ? c->capacity : 4096;
        while (capacity < c->size + size)
            capacity *= 2;
        char *grown = realloc(c->data, capacity);
        if (!grown) {
            ST_FAIL(err, ST_ERR_NOMEM, "out of memory for a column of %zu bytes", capacity);
            return NULL;
        }
        c->data = grown;
        c->capacity = capacity;
    }
    char *at = c->data + c->size;
    if (values)
        memcpy(at, values, size);
    c->size += size;
    return at;
}

static int push64(struct column *c, int64_t value, struct st_error *err) {
    return push(c, &value, sizeof value, err) ? 0 : ST_ERR_NOMEM;
}

static int push32(struct column *c, int32_t value, struct st_error *err) {
    return push(c, &value, sizeof value, err) ? 0 : ST_ERR_NOMEM;
}

/* ---- open and close */

static int print_header(struct steptape_tape *t, struct st_error *err) {
    struct st_out *out;
    size_t size;
    ST_TRY(st_out_open_memory(&out, err));
    st_print_header(out, st_tape_header(t->tape));
    const char *text = st_out_memory(out, &size);
    while (size && text[size - 1] == '\n')
        size--;
    t->header = text ? strndup(text, size) : NULL;
    st_out_abort(out);
    return t->header ? 0 : ST_FAIL(err, ST_ERR_NOMEM, "out of memory for the header");
}

static int open_tape(struct steptape_tape *t, const char *path, struct st_error *err) {
    ST_TRY(st_tape_open(path, &t->tape, err));
    if (st_tape_is_result(t->tape))
        return ST_FAIL(err, ST_ERR_INPUT, "%s: a result tape has no arrays to read", path);
    ST_TRY(print_header(t, err));
    t->group_count = st_tape_header(t->tape)->group_count;
    for (int k = 0; k < GROUP_KINDS; k++) {
        t->group[k] = calloc((size_t)t->group_count + 1, sizeof *t->group[k]);
        t->out_group[k] = calloc((size_t)t->group_count + 1, sizeof *t->out_group[k]);
        if (!t->group[k] || !t->out_group[k])
            return ST_FAIL(err, ST_ERR_NOMEM, "out of memory for %d groups", t->group_count);
    }
    return 0;
}

int steptape_tape_open(const char *path, struct steptape_tape **tape, char *message,
                       size_t message_size) {
    struct st_error err = {0};
    struct steptape_tape *t = calloc(1, sizeof *t);
    *tape = NULL;
    if (message && message_size)
        message[0] = '\0';
    if (!t)
        ST_FAIL(&err, ST_ERR_NOMEM, "out of memory");
    if (!t || open_tape(t, path, &err) != 0) {
        steptape_tape_close(t);
        return fail(&err, message, message_size);
    }
    *tape = t;
    return 0;
}

void steptape_tape_close(struct steptape_tape *t) {
    if (!t)
        return;
    for (int c = 0; c < WIDE; c++)
        free(t->wide[c].data);
    for (int c = 0; c < NARROW; c++)
        free(t->narrow[c].data);
    for (int l = 0; l < LISTS; l++) {
        free(t->list_offset[l].data);
        free(t->list_value[l].data);
    }
    for (int k = 0; k < GROUP_KINDS; k++) {
        for (int32_t g = 0; t->group[k] && g < t->group_count; g++) {
            free(t->group[k][g].offset.data);
            free(t->group[k][g].block_id.data);
            free(t->group[k][g].slot.data);
        }
        free(t->group[k]);
        free(t->out_group[k]);
    }
    st_cursor_close(t->cursor);
    st_tape_close(t->tape);
    free(t->header);
    free(t);
}

const char *steptape_tape_header(const struct steptape_tape *t) {
    return t->header;
}

const char *steptape_tape_hash(const struct steptape_tape *t) {
    return st_tape_hash(t->tape);
}

int64_t steptape_tape_step_count(const struct steptape_tape *t) {
    return st_tape_step_count(t->tape);
}

int64_t steptape_tape_first_step(const struct steptape_tape *t) {
    return st_tape_first_step(t->tape);
}

/* ---- a step into the columns */

static int add_list(struct steptape_tape *t, int which, const struct st_request_list *list,
                    struct st_error *err) {
    int32_t count = list->count > 0 ? list->count : 0;
    struct column *value = &t->list_value[which];
    if (count && !push(value, list->request_id, (size_t)count * sizeof(int64_t), err))
        return ST_ERR_NOMEM;
    return push64(&t->list_offset[which], (int64_t)(value->size / sizeof(int64_t)), err);
}

static int add_scalars(struct steptape_tape *t, const struct st_step *s, struct st_error *err) {
    const int64_t wide[] = {
        s->step_id, s->start_ns, s->duration_ns, s->padded_token_count, s->padded_request_count,
        s->zeroed};
    for (int c = STEP_ID; c <= ZEROED; c++)
        ST_TRY(push64(&t->wide[c], wide[c], err));
    ST_TRY(push32(&t->narrow[GRAPH_MODE], (int32_t)s->graph_mode, err));
    ST_TRY(push32(&t->narrow[CPU_STARTS], s->cpu_starts, err));
    t->rows += s->request_count;
    t->tokens += s->token_count;
    ST_TRY(push64(&t->wide[ROW_OFFSET], t->rows, err));
    return push64(&t->wide[TOKEN_OFFSET], t->tokens, err);
}

static int add_rows(struct steptape_tape *t, const struct st_step *s, struct st_error *err) {
    size_t rows = (size_t)s->request_count;
    const int32_t *narrow[] = {s->query_len, s->num_computed_tokens, s->prompt_len};
    if (!rows)
        return 0;
    if (!push(&t->wide[REQUEST_ID], s->request_id, rows * sizeof(int64_t), err))
        return ST_ERR_NOMEM;
    for (int c = QUERY_LEN; c <= PROMPT_LEN; c++)
        if (!push(&t->narrow[c], narrow[c - QUERY_LEN], rows * sizeof(int32_t), err))
            return ST_ERR_NOMEM;
    char *draft = push(&t->narrow[DRAFT], s->draft, rows * sizeof(int32_t), err);
    if (draft && !s->draft)
        memset(draft, 0xff, rows * sizeof(int32_t)); /* -1 */
    t->steps.has_draft |= s->draft != NULL;
    return draft ? 0 : ST_ERR_NOMEM;
}

static int add_appended(struct steptape_tape *t, const struct st_step *s, struct st_error *err) {
    for (int32_t g = 0; g < t->group_count; g++) {
        struct group *group = &t->group[APPENDED][g];
        const struct st_row_blocks *blocks = &s->blocks[g];
        int64_t base = (int64_t)(group->block_id.size / sizeof(int32_t));
        int32_t count = s->request_count ? blocks->offset[s->request_count] : 0;
        for (int32_t r = 1; r <= s->request_count; r++)
            ST_TRY(push64(&group->offset, base + blocks->offset[r], err));
        if (count &&
            !push(&group->block_id, blocks->block_id, (size_t)count * sizeof(int32_t), err))
            return ST_ERR_NOMEM;
        t->values += count;
    }
    return 0;
}

static int add_tables(struct steptape_tape *t, const struct st_step *s, struct st_error *err) {
    for (int32_t g = 0; g < t->group_count; g++) {
        struct group *group = &t->group[TABLES][g];
        for (int32_t r = 0; r < s->request_count; r++) {
            const int32_t *block_id;
            int32_t count;
            ST_TRY(st_cursor_block_table(t->cursor, g, r, &block_id, &count, err));
            if (count && !push(&group->block_id, block_id, (size_t)count * sizeof(int32_t), err))
                return ST_ERR_NOMEM;
            ST_TRY(push64(&group->offset, (int64_t)(group->block_id.size / sizeof(int32_t)), err));
            t->values += count;
        }
    }
    return 0;
}

static int add_slots(struct steptape_tape *t, const struct st_step *s, struct st_error *err) {
    for (int32_t g = 0; g < t->group_count; g++) {
        void *slot =
            push(&t->group[APPENDED][g].slot, NULL, (size_t)s->token_count * sizeof(int64_t), err);
        if (!slot)
            return ST_ERR_NOMEM;
        ST_TRY(st_cursor_slot_mapping(t->cursor, g, slot, err));
        t->values += s->token_count;
    }
    return 0;
}

static int add_step(struct steptape_tape *t, const struct st_step *s, struct st_error *err) {
    const struct st_request_list *lists[] = {&s->new_requests, &s->finished, &s->preempted,
                                             &s->resumed, &s->replaced};
    ST_TRY(add_scalars(t, s, err));
    ST_TRY(add_rows(t, s, err));
    for (int l = 0; l < LISTS; l++)
        ST_TRY(add_list(t, l, lists[l], err));
    if (s->new_requests.count > 0 && !push(&t->narrow[NEW_PROMPT_LEN], s->new_prompt_len,
                                           (size_t)s->new_requests.count * sizeof(int32_t), err))
        return ST_ERR_NOMEM;
    if (t->what & STEPTAPE_TAPE_BLOCKS)
        ST_TRY(add_appended(t, s, err));
    if (t->what & STEPTAPE_TAPE_TABLES)
        ST_TRY(add_tables(t, s, err));
    if (t->what & STEPTAPE_TAPE_SLOTS)
        ST_TRY(add_slots(t, s, err));
    t->values += s->request_count;
    t->steps.step_count++;
    return 0;
}

/* ---- a call's worth */

static int begin(struct steptape_tape *t, struct st_error *err) {
    t->rows = t->tokens = t->values = 0;
    t->steps =
        (struct steptape_tape_steps){.struct_size = sizeof t->steps, .group_count = t->group_count};
    for (int c = 0; c < WIDE; c++)
        t->wide[c].size = 0;
    for (int c = 0; c < NARROW; c++)
        t->narrow[c].size = 0;
    ST_TRY(push64(&t->wide[ROW_OFFSET], 0, err));
    ST_TRY(push64(&t->wide[TOKEN_OFFSET], 0, err));
    for (int l = 0; l < LISTS; l++) {
        t->list_offset[l].size = t->list_value[l].size = 0;
        ST_TRY(push64(&t->list_offset[l], 0, err));
    }
    for (int k = 0; k < GROUP_KINDS; k++)
        for (int32_t g = 0; g < t->group_count; g++) {
            struct group *group = &t->group[k][g];
            group->offset.size = group->block_id.size = group->slot.size = 0;
            ST_TRY(push64(&group->offset, 0, err));
        }
    return 0;
}

static const void *data(const struct column *c) {
    static const int64_t nothing; /* of a column without a value */
    return c->data ? (const void *)c->data : (const void *)&nothing;
}

static struct steptape_tape_list list_of(const struct steptape_tape *t, int which) {
    return (struct steptape_tape_list){data(&t->list_offset[which]), data(&t->list_value[which])};
}

static void publish(struct steptape_tape *t) {
    struct steptape_tape_steps *s = &t->steps;
    const int64_t **wide[] = {&s->step_id,
                              &s->start_ns,
                              &s->duration_ns,
                              &s->padded_token_count,
                              &s->padded_request_count,
                              &s->zeroed_count,
                              &s->row_offset,
                              &s->token_offset,
                              &s->request_id};
    const int32_t **narrow[] = {&s->graph_mode,          &s->cpu_starts, &s->query_len,
                                &s->num_computed_tokens, &s->prompt_len, &s->draft,
                                &s->new_prompt_len};
    for (int c = 0; c < WIDE; c++)
        *wide[c] = data(&t->wide[c]);
    for (int c = 0; c < NARROW; c++)
        *narrow[c] = data(&t->narrow[c]);
    if (!s->has_draft)
        s->draft = NULL;
    s->new_requests = list_of(t, NEW);
    s->finished = list_of(t, FINISHED);
    s->preempted = list_of(t, PREEMPTED);
    s->resumed = list_of(t, RESUMED);
    s->replaced = list_of(t, REPLACED);
    const unsigned asked[] = {STEPTAPE_TAPE_BLOCKS, STEPTAPE_TAPE_TABLES};
    for (int k = 0; k < GROUP_KINDS; k++)
        for (int32_t g = 0; g < t->group_count; g++) {
            const struct group *group = &t->group[k][g];
            bool ids = t->what & asked[k], slots = k == APPENDED && t->what & STEPTAPE_TAPE_SLOTS;
            t->out_group[k][g] = (struct steptape_tape_group){ids ? data(&group->offset) : NULL,
                                                              ids ? data(&group->block_id) : NULL,
                                                              slots ? data(&group->slot) : NULL};
        }
    s->appended = t->out_group[APPENDED];
    s->tables = t->out_group[TABLES];
}

int steptape_tape_seek(struct steptape_tape *t, int64_t step_id, unsigned what, char *message,
                       size_t message_size) {
    struct st_error err = {0};
    unsigned read = what & STEPTAPE_TAPE_TABLES                           ? ST_READ_TABLES
                    : what & (STEPTAPE_TAPE_BLOCKS | STEPTAPE_TAPE_SLOTS) ? ST_READ_BLOCKS
                                                                          : 0;
    st_cursor_close(t->cursor);
    t->cursor = NULL;
    t->what = what;
    if (st_cursor_open(t->tape, read, &t->cursor, &err) != 0 ||
        st_cursor_seek(t->cursor, step_id, &err) != 0) {
        st_cursor_close(t->cursor);
        t->cursor = NULL;
        return fail(&err, message, message_size);
    }
    return 0;
}

int steptape_tape_read(struct steptape_tape *t, int32_t max_steps,
                       const struct steptape_tape_steps **steps, char *message,
                       size_t message_size) {
    struct st_error err = {0};
    *steps = NULL;
    if (!t->cursor) {
        int rc = steptape_tape_seek(t, st_tape_first_step(t->tape), STEPTAPE_TAPE_BLOCKS, message,
                                    message_size);
        if (rc != 0)
            return st_tape_step_count(t->tape) ? rc : STEPTAPE_TAPE_END;
    }
    int rc = begin(t, &err);
    while (rc == 0 && t->steps.step_count < max_steps && t->values < STEPTAPE_TAPE_MAX_VALUES) {
        const struct st_step *step;
        rc = st_cursor_next(t->cursor, &step, &err);
        if (rc == 0)
            rc = add_step(t, step, &err);
    }
    if (rc < 0)
        return fail(&err, message, message_size);
    if (!t->steps.step_count)
        return STEPTAPE_TAPE_END;
    publish(t);
    *steps = &t->steps;
    return 0;
}

int steptape_tape_check(struct steptape_tape *t, int64_t step_id, const char **json, char *message,
                        size_t message_size) {
    struct st_error err = {0};
    if (st_tape_check_json(t->tape, step_id, json, &err) != 0)
        return fail(&err, message, message_size);
    return 0;
}
