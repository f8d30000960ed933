/* SPDX-License-Identifier: Apache-2.0 */
#include "capture/testing.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "traces/format/reader_i.h"
#include "traces/format/verify.h"
#include "traces/interchange/print.h"

static void *grab(size_t size) {
    void *p = calloc(1, size + 1);
    if (!p)
        abort();
    return p;
}

static void make_table(struct st_test_call *call, const struct st_test_step *s, int32_t g,
                       int32_t each) {
    int32_t rows = s->step.request_count, longest = 0;
    const struct st_test_table *table = s->table + (size_t)g * (size_t)rows;
    for (int32_t i = 0; i < rows; i++)
        longest = table[i].count > longest ? table[i].count : longest;
    int64_t stride = (int64_t)longest * each + 3;
    call->table[g] = grab((size_t)(rows * stride) * sizeof(int32_t));
    call->cells[g] = grab((size_t)rows * sizeof(int32_t));
    for (int32_t i = 0; i < rows; i++) {
        call->cells[g][i] = table[i].count * each;
        for (int32_t k = 0; k < table[i].count * each; k++)
            call->table[g][i * stride + k] = table[i].id[k / each] * each + k % each;
        call->table[g][i * stride + table[i].count * each] = -1; /* not to be read */
    }
    call->blocks[g] = (struct steptape_step_blocks){.table = call->table[g],
                                                    .row_stride = stride,
                                                    .row_cell_count = call->cells[g],
                                                    .cells_per_block = each};
}

static void make_runs(struct st_test_call *call, const struct st_test_step *s, int32_t g) {
    int32_t rows = s->step.request_count, runs = 0;
    const struct st_row_blocks *from = &s->step.blocks[g];
    call->run[g] = grab(((size_t)rows * 2 + (size_t)from->offset[rows]) * sizeof(int32_t));
    int32_t *row = call->run[g], *length = row + rows, *id = length + rows, *next = id;
    int32_t spare = 0; /* rows that got none: as many runs may be cut in two */
    for (int32_t i = 0; i < rows; i++)
        spare += from->offset[i + 1] == from->offset[i];
    for (int32_t i = rows - 1; i >= 0; i--) {
        int32_t count = from->offset[i + 1] - from->offset[i], first = count;
        if (count > 1 && spare-- > 0)
            first = count / 2;
        memcpy(next, from->block_id + from->offset[i], (size_t)count * sizeof *next);
        next += count;
        for (; count; count -= first, first = count) {
            row[runs] = i;
            length[runs++] = first;
        }
    }
    call->blocks[g] = (struct steptape_step_blocks){
        .run_count = runs, .run_row = row, .run_length = length, .block_id = id};
}

void st_test_call_init(struct st_test_call *call, const struct st_test_step *s,
                       enum st_test_form form) {
    const struct st_step *from = &s->step;
    memset(call, 0, sizeof *call);
    call->step = (struct steptape_step){
        .struct_size = sizeof call->step,
        .graph_mode = from->graph_mode,
        .cpu_starts = from->cpu_starts,
        .request_count = from->request_count,
        .start_ns = from->start_ns,
        .duration_ns = from->duration_ns,
        .padded_token_count = from->padded_token_count,
        .padded_request_count = from->padded_request_count,
        .zeroed_count = from->zeroed,
        .request_id = from->request_id,
        .query_len = from->query_len,
        .num_computed_tokens = from->num_computed_tokens,
        .draft = from->draft,
        .new_count = from->new_requests.count,
        .finished_count = from->finished.count,
        .preempted_count = from->preempted.count,
        .resumed_count = from->resumed.count,
        .replaced_count = from->replaced.count,
        .new_request = from->new_requests.request_id,
        .new_prompt_len = from->new_prompt_len,
        .finished = from->finished.request_id,
        .preempted = from->preempted.request_id,
        .resumed = from->resumed.request_id,
        .replaced = from->replaced.request_id,
        .group_count = from->group_count,
        .blocks = call->blocks,
        .check_json = s->check_json && s->check_json[0] ? s->check_json : NULL,
    };
    for (int32_t g = 0; g < from->group_count; g++) {
        if (form == ST_TEST_RUNS && from->request_count)
            make_runs(call, s, g);
        else if (form != ST_TEST_RUNS)
            make_table(call, s, g, form == ST_TEST_SPLIT ? 2 : 1);
    }
}

void st_test_call_fini(struct st_test_call *call) {
    for (int g = 0; g < ST_MAX_GROUPS; g++) {
        free(call->table[g]);
        free(call->cells[g]);
        free(call->run[g]);
    }
}

char *st_test_header_json(const struct st_header *header) {
    struct st_out *out;
    struct st_error err;
    size_t size;
    assert_int_equal(st_out_open_memory(&out, &err), 0);
    st_print_header(out, header);
    const char *text = st_out_memory(out, &size);
    char *line = strndup(text, size - 1); /* without its end */
    st_out_abort(out);
    assert_non_null(line);
    return line;
}

const char *st_test_ask_text(const char *path, const char *sql) {
    static char text[512];
    struct st_verify_report report;
    struct st_tape *tape;
    struct st_error err;
    sqlite3_stmt *stmt;
    if (st_tape_verify(path, &report, &err) || st_tape_open(path, &tape, &err))
        fail_msg("%s", err.msg);
    assert_int_equal(sqlite3_prepare_v2(st_tape_db(tape), sql, -1, &stmt, NULL), SQLITE_OK);
    assert_int_equal(sqlite3_step(stmt), SQLITE_ROW);
    const char *column = (const char *)sqlite3_column_text(stmt, 0);
    snprintf(text, sizeof text, "%s", column ? column : "");
    sqlite3_finalize(stmt);
    st_tape_close(tape);
    return text;
}

int64_t st_test_ask(const char *path, const char *sql) {
    return strtoll(st_test_ask_text(path, sql), NULL, 10);
}
