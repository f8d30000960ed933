/* SPDX-License-Identifier: Apache-2.0 */
#include "analysis/fake_tape.h"

#include <stdlib.h>
#include <string.h>

#include "traces/format/reader.h"

enum { MAX_ROWS = 4, MAX_BLOCKS = 4 };

struct fake_calls fake_calls;

struct st_tape {
    struct st_header header;
    struct st_group group[FAKE_GROUPS];
};

struct st_cursor {
    int64_t next;
    struct st_step step;
    int64_t request_id[MAX_ROWS];
    int32_t query_len[MAX_ROWS], start[MAX_ROWS], prompt_len[MAX_ROWS];
    int32_t block_id[MAX_BLOCKS];
};

int fake_rows(int step_id) {
    return step_id % 5;
}

int fake_block_count(int step_id, int group, int row) {
    return 2 + (step_id + row + group) % 3;
}

int fake_block_id(int step_id, int group, int row, int ordinal) {
    return 1000 * step_id + 100 * group + 10 * row + ordinal;
}

int st_tape_attach(struct sqlite3 *db, struct st_tape **tape, struct st_error *err) {
    (void)db;
    fake_calls.attach++;
    struct st_tape *made = calloc(1, sizeof *made);
    if (!made)
        return ST_FAIL_NOMEM(err);
    for (int i = 0; i < FAKE_GROUPS; i++)
        made->group[i] = (struct st_group){.group_id = i, .block_size = FAKE_BLOCK_SIZE};
    made->header.group_count = FAKE_GROUPS;
    made->header.groups = made->group;
    *tape = made;
    return 0;
}

void st_tape_close(struct st_tape *tape) {
    fake_calls.close += tape != NULL;
    free(tape);
}

bool st_tape_is_result(const struct st_tape *tape) {
    (void)tape;
    return false;
}

const struct st_header *st_tape_header(const struct st_tape *tape) {
    return &tape->header;
}

int64_t st_tape_step_count(const struct st_tape *tape) {
    (void)tape;
    return FAKE_STEPS;
}

int64_t st_tape_first_step(const struct st_tape *tape) {
    (void)tape;
    return FAKE_FIRST_STEP;
}

int st_cursor_open(struct st_tape *tape, unsigned what, struct st_cursor **cursor,
                   struct st_error *err) {
    (void)tape, (void)what;
    fake_calls.cursor_open++;
    *cursor = calloc(1, sizeof **cursor);
    if (!*cursor)
        return ST_FAIL_NOMEM(err);
    (*cursor)->next = FAKE_FIRST_STEP;
    return 0;
}

void st_cursor_close(struct st_cursor *cursor) {
    fake_calls.cursor_close += cursor != NULL;
    free(cursor);
}

int st_cursor_seek(struct st_cursor *cursor, int64_t step_id, struct st_error *err) {
    fake_calls.seek++;
    if (step_id < FAKE_FIRST_STEP || step_id >= FAKE_FIRST_STEP + FAKE_STEPS)
        return ST_FAIL(err, ST_ERR_USAGE, "there is no step %lld", (long long)step_id);
    cursor->next = step_id;
    return 0;
}

int st_cursor_next(struct st_cursor *cursor, const struct st_step **step, struct st_error *err) {
    (void)err;
    fake_calls.next++;
    if (cursor->next >= FAKE_FIRST_STEP + FAKE_STEPS)
        return ST_DONE;
    int id = (int)cursor->next++;
    struct st_step *out = &cursor->step;
    *out = (struct st_step){.step_id = id, .request_count = fake_rows(id)};
    for (int r = 0; r < out->request_count; r++) {
        cursor->request_id[r] = 7 * r + id;
        cursor->query_len[r] = 1 + r;
        cursor->start[r] = id + r;
        cursor->prompt_len[r] = r ? id : -1;
        out->token_count += 1 + r;
    }
    out->request_id = cursor->request_id;
    out->query_len = cursor->query_len;
    out->num_computed_tokens = cursor->start;
    out->prompt_len = cursor->prompt_len;
    *step = out;
    return 0;
}

int st_cursor_block_table(struct st_cursor *cursor, int32_t group, int32_t row,
                          const int32_t **block_id, int32_t *count, struct st_error *err) {
    (void)err;
    fake_calls.block_table++;
    int id = (int)cursor->step.step_id;
    *count = fake_block_count(id, group, row);
    for (int i = 0; i < *count; i++)
        cursor->block_id[i] = fake_block_id(id, group, row, i);
    *block_id = cursor->block_id;
    return 0;
}

int st_cursor_slot_mapping(struct st_cursor *cursor, int32_t group, int64_t *slot,
                           struct st_error *err) {
    (void)err;
    fake_calls.slot_mapping++;
    for (int i = 0; i < cursor->step.token_count; i++)
        slot[i] = 100 * cursor->step.step_id + 10 * group + i;
    return 0;
}
