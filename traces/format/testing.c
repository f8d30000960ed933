/* SPDX-License-Identifier: Apache-2.0 */
#include "traces/format/testing.h"

#include <dirent.h>
#include <ftw.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "traces/format/testing_i.h"
#include "traces/format/writer.h"

uint64_t st_test_next(struct st_test_random *random) {
    /* SplitMix64. */
    uint64_t z = random->state += 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

int64_t st_test_within(struct st_test_random *random, int64_t low, int64_t high) {
    return low + (int64_t)(st_test_next(random) % (uint64_t)(high - low + 1));
}

bool st_test_chance(struct st_test_random *random, int percent) {
    return st_test_within(random, 0, 99) < percent;
}

/* Tests do not go on without memory. */
void *st_test_alloc(size_t size) {
    void *data = calloc(1, size ? size : 1);
    if (!data)
        abort();
    return data;
}

void *st_test_copy(const void *data, size_t size) {
    void *copy = st_test_alloc(size);
    if (size)
        memcpy(copy, data, size);
    return copy;
}

/* ---- files */

static char folder[64];

static int remove_entry(const char *path, const struct stat *st, int type, struct FTW *at) {
    (void)st, (void)type;
    return at->level ? remove(path) : 0;
}

int st_test_empty_folder(void **state) {
    (void)state;
    if (folder[0])
        nftw(folder, remove_entry, 8, FTW_DEPTH | FTW_PHYS);
    return 0;
}

static void remove_folder(void) {
    st_test_empty_folder(NULL);
    rmdir(folder);
}

const char *st_test_path(const char *name) {
    static char path[4][160];
    static int next;
    if (!folder[0]) {
        strcpy(folder, "/tmp/steptape-test-XXXXXX");
        if (!mkdtemp(folder))
            abort();
        atexit(remove_folder);
    }
    next = (next + 1) % 4;
    snprintf(path[next], sizeof path[next], "%s/%s", folder, name);
    return path[next];
}

int st_test_file_count(void) {
    DIR *dir = opendir(folder);
    struct dirent *entry;
    int count = 0;
    while (dir && (entry = readdir(dir)))
        count += entry->d_name[0] != '.';
    if (dir)
        closedir(dir);
    return count;
}

/* ---- steps */

struct st_step st_test_bare_step(int64_t step_id) {
    static const int64_t id = 0;
    static const int32_t one = 1;
    static int32_t start;
    start = (int32_t)step_id;
    return (struct st_step){.step_id = step_id,
                            .start_ns = ST_UNKNOWN,
                            .duration_ns = ST_UNKNOWN,
                            .graph_mode = ST_GRAPH_MODE_UNKNOWN,
                            .padded_token_count = ST_UNKNOWN,
                            .padded_request_count = ST_UNKNOWN,
                            .cpu_starts = -1,
                            .zeroed = ST_UNKNOWN,
                            .request_count = 1,
                            .token_count = 1,
                            .request_id = &id,
                            .query_len = &one,
                            .num_computed_tokens = &start,
                            .new_requests = {step_id == 0, &id},
                            .new_prompt_len = &one,
                            .replaced = {-1, NULL}};
}

/* ---- comparing */

int st_test_write(const struct st_test_recording *recording, const char *path,
                  struct st_error *err) {
    struct st_writer *writer;
    char *argv[] = {"steptape import", "it's \"quoted\"", "\xc3\xa4"};
    ST_TRY(st_writer_open(path, &recording->header, &writer, err));
    int rc = st_writer_operation(writer, 3, argv, err);
    for (int32_t i = 0; i < recording->step_count && !rc; i++)
        rc = st_writer_add(writer, &recording->step[i].step, recording->step[i].check_json, err);
    if (!rc)
        return st_writer_finish(writer, err);
    st_writer_abort(writer);
    return rc;
}

static bool same_list(const struct st_request_list *a, const struct st_request_list *b) {
    return a->count == b->count &&
           (a->count < 1 ||
            memcmp(a->request_id, b->request_id, (size_t)a->count * sizeof *a->request_id) == 0);
}

static bool same_array(const int32_t *a, const int32_t *b, int64_t count) {
    return count < 1 || memcmp(a, b, (size_t)count * sizeof *a) == 0;
}

static const char *compare_facts(const struct st_step *a, const struct st_step *b) {
    int32_t rows = a->request_count;
    struct st_request_list ids = {rows, a->request_id}, got = {b->request_count, b->request_id};
    if (a->step_id != b->step_id)
        return "step_id";
    if (a->start_ns != b->start_ns || a->duration_ns != b->duration_ns)
        return "time";
    if (a->dropped_before != b->dropped_before)
        return "dropped";
    if (a->graph_mode != b->graph_mode)
        return "graph_mode";
    if (a->padded_token_count != b->padded_token_count ||
        a->padded_request_count != b->padded_request_count)
        return "padding";
    if (a->cpu_starts != b->cpu_starts)
        return "cpu_starts";
    if (a->zeroed != b->zeroed)
        return "zeroed";
    if (a->token_count != b->token_count)
        return "token_count";
    if (!same_list(&ids, &got))
        return "request_id";
    if (!same_array(a->query_len, b->query_len, rows))
        return "query_len";
    if (!same_array(a->num_computed_tokens, b->num_computed_tokens, rows))
        return "num_computed_tokens";
    if (!a->draft != !b->draft || (a->draft && !same_array(a->draft, b->draft, rows)))
        return "draft";
    if (!same_array(a->prompt_len, b->prompt_len, rows))
        return "prompt_len";
    if (!same_list(&a->finished, &b->finished))
        return "finished";
    if (!same_list(&a->preempted, &b->preempted))
        return "preempted";
    if (!same_list(&a->resumed, &b->resumed))
        return "resumed";
    if (!same_list(&a->replaced, &b->replaced))
        return "replaced";
    if (!same_list(&a->new_requests, &b->new_requests))
        return "new_requests";
    if (a->new_requests.count > 0 &&
        !same_array(a->new_prompt_len, b->new_prompt_len, a->new_requests.count))
        return "new_prompt_len";
    return NULL;
}

static const struct st_test_step *at(const struct st_test_recording *recording, int64_t step_id) {
    return &recording->step[step_id - recording->step[0].step.step_id];
}

const char *st_test_compare(const struct st_test_recording *recording, int64_t step_id,
                            const struct st_step *got, unsigned what) {
    const struct st_step *want = &at(recording, step_id)->step;
    const char *differs = compare_facts(want, got);
    if (differs)
        return differs;
    if (!(what & ST_READ_BLOCKS))
        return got->blocks ? "blocks that nobody asked for" : NULL;
    if (got->group_count != want->group_count)
        return "group_count";
    for (int32_t g = 0; g < want->group_count; g++) {
        const int32_t *offset = want->blocks[g].offset;
        if (!same_array(offset, got->blocks[g].offset, want->request_count + 1))
            return "offsets of blocks";
        if (!same_array(want->blocks[g].block_id, got->blocks[g].block_id,
                        offset[want->request_count]))
            return "block ids";
    }
    return NULL;
}

static const char *compare_group_slots(const struct st_test_recording *recording,
                                       const struct st_test_step *want, int32_t group,
                                       const int64_t *slot) {
    int32_t size = recording->header.groups[group].block_size;
    for (int32_t row = 0; row < want->step.request_count; row++) {
        const struct st_test_table *table = &want->table[group * want->step.request_count + row];
        for (int32_t k = 0; k < want->step.query_len[row]; k++) {
            int64_t position = (int64_t)want->step.num_computed_tokens[row] + k;
            int64_t expected = position / size < table->count
                                   ? (int64_t)table->id[position / size] * size + position % size
                                   : -1;
            if (*slot++ != expected)
                return "slot mapping";
        }
    }
    return NULL;
}

const char *st_test_compare_tables(const struct st_test_recording *recording, int64_t step_id,
                                   struct st_cursor *cursor) {
    const struct st_test_step *want = at(recording, step_id);
    const char *differs = NULL;
    for (int32_t g = 0; g < want->step.group_count && !differs; g++) {
        for (int32_t row = 0; row < want->step.request_count && !differs; row++) {
            const struct st_test_table *table = &want->table[g * want->step.request_count + row];
            const int32_t *id;
            int32_t count;
            if (st_cursor_block_table(cursor, g, row, &id, &count, NULL))
                differs = "no block table";
            else if (count != table->count || !same_array(table->id, id, count))
                differs = "block table";
        }
    }
    return differs;
}

const char *st_test_compare_slots(const struct st_test_recording *recording, int64_t step_id,
                                  struct st_cursor *cursor) {
    const struct st_test_step *want = at(recording, step_id);
    const char *differs = NULL;
    int64_t *slot = st_test_alloc((size_t)want->step.token_count * sizeof *slot);
    for (int32_t g = 0; g < want->step.group_count && !differs; g++)
        differs = st_cursor_slot_mapping(cursor, g, slot, NULL)
                      ? "no slot mapping"
                      : compare_group_slots(recording, want, g, slot);
    free(slot);
    return differs;
}

static bool same_text(const char *a, const char *b) {
    return a && b ? strcmp(a, b) == 0 : a == b;
}

static const char *compare_groups(const struct st_header *a, const struct st_header *b) {
    if (a->group_count != b->group_count)
        return "group_count";
    for (int32_t g = 0; g < a->group_count; g++) {
        const struct st_group *x = &a->groups[g], *y = &b->groups[g];
        if (x->group_id != y->group_id || x->block_size != y->block_size ||
            x->member_count != y->member_count)
            return "a group";
        for (int32_t m = 0; m < x->member_count; m++) {
            const struct st_member *p = &x->members[m], *q = &y->members[m];
            if (p->kind != q->kind || p->layers != q->layers || p->ratio != q->ratio ||
                p->window != q->window || p->page_bytes != q->page_bytes)
                return "a member";
        }
    }
    return NULL;
}

const char *st_test_compare_header(const struct st_header *a, const struct st_header *b) {
    if (!same_text(a->engine, b->engine) || !same_text(a->engine_version, b->engine_version) ||
        !same_text(a->runner, b->runner) || !same_text(a->device, b->device) ||
        !same_text(a->model, b->model) || !same_text(a->architecture, b->architecture) ||
        !same_text(a->speculative, b->speculative) || !same_text(a->scale, b->scale))
        return "a string";
    if (a->compress_ratio_count != b->compress_ratio_count ||
        (a->compress_ratio_count > 0 &&
         !same_array(a->compress_ratios, b->compress_ratios, a->compress_ratio_count)))
        return "compress_ratios";
    if (a->max_model_len != b->max_model_len || a->max_num_seqs != b->max_num_seqs ||
        a->max_num_batched_tokens != b->max_num_batched_tokens || a->num_blocks != b->num_blocks ||
        a->prefix_caching != b->prefix_caching || a->async_scheduling != b->async_scheduling ||
        a->rank != b->rank || a->clock_monotonic_ns != b->clock_monotonic_ns ||
        a->clock_realtime_ns != b->clock_realtime_ns)
        return "a number";
    return compare_groups(a, b);
}

void st_test_recording_destroy(struct st_test_recording *recording) {
    if (!recording)
        return;
    for (int32_t i = 0; i < recording->step_count; i++) {
        struct st_test_step *s = &recording->step[i];
        int32_t tables = s->step.group_count * s->step.request_count;
        for (int32_t t = 0; t < tables; t++)
            free(s->table[t].id);
        for (int32_t g = 0; g < s->step.group_count; g++) {
            free((void *)s->blocks[g].offset);
            free((void *)s->blocks[g].block_id);
        }
        free(s->blocks);
        free(s->table);
        free(s->check_json);
        free((void *)s->step.request_id);
        free((void *)s->step.query_len);
        free((void *)s->step.num_computed_tokens);
        free((void *)s->step.draft);
        free((void *)s->step.prompt_len);
        free((void *)s->step.new_requests.request_id);
        free((void *)s->step.new_prompt_len);
        free((void *)s->step.finished.request_id);
        free((void *)s->step.preempted.request_id);
        free((void *)s->step.resumed.request_id);
        free((void *)s->step.replaced.request_id);
    }
    free(recording->step);
    free(recording);
}
