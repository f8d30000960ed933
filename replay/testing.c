/* SPDX-License-Identifier: Apache-2.0 */
#include "replay/testing.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "traces/format/writer.h"

enum { REQUESTS = 12, ROWS = 4, CHUNK = 200, DECODES = 150, MAX_BLOCKS = 512, GROUPS = 3 };

const struct st_header *st_testing_header(void) {
    static const int32_t ratios[] = {0, 4, 128, 4};
    static const struct st_member swa[] = {{ST_MEMBER_SWA, 4, 1, 128, 37440}};
    static const struct st_member kv[] = {{ST_MEMBER_KV, 2, 4, -1, 37440},
                                          {ST_MEMBER_KV, 1, 128, -1, 1728}};
    static const struct st_member state[] = {{ST_MEMBER_STATE, 1, 128, 128, 32832}};
    static const struct st_group groups[GROUPS] = {
        {0, 64, 1, swa}, {1, 256, 2, kv}, {2, 8, 1, state}};
    static const struct st_header header = {
        .engine = "made-up",
        .model = "v4-tiny",
        .architecture = "DeepseekV4ForCausalLM",
        .compress_ratio_count = 4,
        .compress_ratios = ratios,
        .max_model_len = 4096,
        .max_num_seqs = 8,
        .max_num_batched_tokens = 1024,
        .num_blocks = 2000,
        .prefix_caching = 0,
        .async_scheduling = 0,
        .clock_monotonic_ns = ST_UNKNOWN,
        .clock_realtime_ns = ST_UNKNOWN,
        .group_count = GROUPS,
        .groups = groups,
    };
    return &header;
}

const struct st_header *st_testing_dense_header(void) {
    static const struct st_member attention[] = {{ST_MEMBER_ATTENTION, 2, 1, -1, 32768}};
    static const struct st_group groups[] = {{0, 128, 1, attention}};
    static const struct st_header header = {
        .engine = "made-up",
        .model = "dense",
        .architecture = "LlamaForCausalLM",
        .compress_ratio_count = -1,
        .max_model_len = 4096,
        .max_num_seqs = 8,
        .max_num_batched_tokens = 1024,
        .num_blocks = 2000,
        .prefix_caching = 0,
        .async_scheduling = 0,
        .clock_monotonic_ns = ST_UNKNOWN,
        .clock_realtime_ns = ST_UNKNOWN,
        .group_count = 1,
        .groups = groups,
    };
    return &header;
}

struct request {
    int32_t prompt, computed, length; /* length: prompt and decodes */
    int32_t blocks[GROUPS];
};

struct maker {
    const struct st_header *header;
    struct request request[REQUESTS];
    int32_t next_request, next_block;
    int64_t row[ROWS]; /* request of each row; -1: free */
    /* of the step being made */
    int64_t id[ROWS], fresh[ROWS], finished[ROWS], moved[1];
    int32_t query_len[ROWS], start[ROWS], fresh_prompt[ROWS];
    int32_t offset[GROUPS][ROWS + 1], block[GROUPS][MAX_BLOCKS];
    struct st_row_blocks blocks[GROUPS];
    struct st_step step;
};

static void admit(struct maker *m, int r, struct st_step *step) {
    m->row[r] = m->next_request++;
    struct request *q = &m->request[m->row[r]];
    q->prompt = 40 + (int32_t)(m->row[r] * 661 % 661 + m->row[r] * 60);
    q->length = q->prompt + DECODES;
    m->fresh[step->new_requests.count] = m->row[r];
    m->fresh_prompt[step->new_requests.count++] = q->prompt;
}

static void add_blocks(struct maker *m, struct request *q, int32_t index) {
    for (int32_t g = 0; g < m->header->group_count; g++) {
        int32_t size = m->header->groups[g].block_size, at = m->offset[g][index];
        for (; q->blocks[g] * size < q->computed; q->blocks[g]++) {
            m->block[g][at++] = 1 + m->next_block;
            m->next_block = (m->next_block + 1) % 1990;
        }
        m->offset[g][index + 1] = at;
    }
}

static bool fill_rows(struct maker *m, int64_t step_id) {
    struct st_step *step = &m->step;
    bool decodes = true;
    for (int r = 0; r < ROWS; r++) {
        if (m->row[r] >= 0 && m->request[m->row[r]].computed == m->request[m->row[r]].length) {
            m->finished[step->finished.count++] = m->row[r];
            m->row[r] = -1;
        }
    }
    if (step_id == 3) /* an empty step between two others */
        return true;
    for (int r = 0; r < ROWS; r++) {
        if (m->row[r] < 0 && m->next_request < REQUESTS)
            admit(m, r, step);
        if (m->row[r] < 0)
            continue;
        struct request *q = &m->request[m->row[r]];
        int32_t left = q->prompt - q->computed, i = step->request_count++;
        m->id[i] = m->row[r];
        m->start[i] = q->computed;
        m->query_len[i] = left > CHUNK ? CHUNK : left > 0 ? left : 1;
        decodes = decodes && left <= 0;
        q->computed += m->query_len[i];
        step->token_count += m->query_len[i];
        add_blocks(m, q, i);
    }
    step->graph_mode = decodes ? ST_GRAPH_MODE_FULL : ST_GRAPH_MODE_NONE;
    return true;
}

/* Row 0 lost its blocks before this step and starts again. */
static void preempt(struct maker *m) {
    struct request *q = &m->request[m->row[0]];
    q->computed = 0;
    memset(q->blocks, 0, sizeof q->blocks);
    m->moved[0] = m->row[0];
    m->step.preempted = (struct st_request_list){1, m->moved};
    m->step.resumed = (struct st_request_list){1, m->moved};
    m->step.replaced = (struct st_request_list){1, m->moved};
}

static void begin_step(struct maker *m, int64_t step_id) {
    struct st_step *s = &m->step;
    memset(s, 0, sizeof *s);
    s->step_id = step_id;
    s->start_ns = step_id * 1000000;
    s->duration_ns = ST_UNKNOWN;
    s->padded_token_count = s->padded_request_count = ST_UNKNOWN;
    s->zeroed = ST_UNKNOWN;
    s->cpu_starts = step_id == 7 ? 0 : -1;
    s->request_id = m->id;
    s->query_len = m->query_len;
    s->num_computed_tokens = m->start;
    s->new_requests = (struct st_request_list){0, m->fresh};
    s->new_prompt_len = m->fresh_prompt;
    s->finished = (struct st_request_list){0, m->finished};
    s->replaced.count = -1;
    s->group_count = m->header->group_count;
    s->blocks = m->blocks;
    for (int32_t g = 0; g < s->group_count; g++) {
        memset(m->offset[g], 0, sizeof m->offset[g]);
        m->blocks[g] = (struct st_row_blocks){m->offset[g], m->block[g]};
    }
}

int st_testing_write_tape(const char *path, const struct st_header *header, struct st_error *err) {
    struct maker *m = calloc(1, sizeof *m);
    struct st_writer *writer = NULL;
    if (!m)
        return ST_FAIL_NOMEM(err);
    m->header = header;
    for (int r = 0; r < ROWS; r++)
        m->row[r] = -1;
    int rc = st_writer_open(path, header, &writer, err);
    for (int64_t step_id = 0; rc == 0; step_id++) {
        begin_step(m, step_id);
        if (step_id == 60)
            preempt(m);
        fill_rows(m, step_id);
        if (step_id > 3 && m->step.request_count == 0)
            break;
        rc = st_writer_add(writer, &m->step, NULL, err);
    }
    if (rc == 0)
        rc = st_writer_finish(writer, err);
    else
        st_writer_abort(writer);
    free(m);
    return rc;
}
