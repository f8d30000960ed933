/* SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "traces/format/testing.h"
#include "traces/format/testing_i.h"

enum { GROUPS = 4, LIVE = 64, LIST = 256, QUEUE = 8192, TABLE = 8192 };

static const struct st_member swa = {ST_MEMBER_SWA, 4, 1, 32, 37440};
static const struct st_member kv[] = {{ST_MEMBER_KV, 2, 4, -1, 9360},
                                      {ST_MEMBER_INDEXER_KV, 2, 4, -1, -1},
                                      {ST_MEMBER_KV, 2, 128, -1, 585}};
static const struct st_member state = {ST_MEMBER_STATE, 2, 4, 8, 1};
static const struct st_member states[] = {{ST_MEMBER_STATE, 2, 128, 64, 4096},
                                          {ST_MEMBER_INDEXER_STATE, 0, 4, 8, 0}};
static const struct st_group groups[GROUPS] = {
    {0, 16, 1, &swa}, {1, 32, 3, kv}, {2, 4, 1, &state}, {3, 8, 2, states}};
static const int32_t windows[GROUPS] = {32, 0, 8, 64};
static const int32_t ratios[] = {0, 4, 128, 4, 0};

struct request {
    int64_t id;
    int32_t prompt_len, computed, last_start;
    bool waiting;
    int32_t count[GROUPS], freed[GROUPS];
    int32_t *table[GROUPS];
};

struct list {
    int32_t count;
    int64_t id[LIST];
};

struct row {
    struct request *request;
    int32_t query_len, start, draft;
    int32_t first[GROUPS]; /* entries before this step */
};

struct engine {
    const struct st_test_engine_options *options;
    struct st_test_random random;
    struct request *live[LIVE]; /* running ones in order of admission, waiting ones among them */
    int32_t live_count;
    int32_t queue[QUEUE];
    int32_t queue_count;
    int32_t users[QUEUE];
    int32_t fresh; /* next id when num_blocks is unknown */
    int64_t next_request;
    struct list finished, preempted, resumed, added, replaced;
    int32_t prompt_len[LIST];
    struct row row[LIVE];
    int32_t rows;
};

static bool chance(struct engine *e, int percent) {
    return st_test_chance(&e->random, percent);
}

static int32_t within(struct engine *e, int32_t low, int32_t high) {
    return (int32_t)st_test_within(&e->random, low, high);
}

static void shuffle(struct engine *e, struct list *list) {
    for (int32_t i = list->count - 1; i > 0; i--) {
        int32_t k = within(e, 0, i);
        int64_t id = list->id[i];
        list->id[i] = list->id[k];
        list->id[k] = id;
    }
}

static void push(struct list *list, int64_t id) {
    if (list->count < LIST)
        list->id[list->count++] = id;
}

/* ---- blocks */

static void queue_remove(struct engine *e, int32_t at) {
    memmove(e->queue + at, e->queue + at + 1, (size_t)(--e->queue_count - at) * sizeof *e->queue);
}

static void queue_insert(struct engine *e, int32_t at, int32_t id) {
    if (e->queue_count == QUEUE)
        return;
    memmove(e->queue + at + 1, e->queue + at, (size_t)(e->queue_count++ - at) * sizeof *e->queue);
    e->queue[at] = id;
}

static void use(struct engine *e, int32_t id) {
    if (id < QUEUE)
        e->users[id]++;
}

static int32_t take(struct engine *e) {
    int32_t at = 0;
    if (chance(e, e->options->random_id)) {
        if (e->options->num_blocks < 0 && chance(e, 10))
            return within(e, 1 << 24, INT32_MAX); /* beyond every pool's model */
        at = within(e, 0, e->queue_count ? e->queue_count - 1 : 0);
    }
    int32_t id;
    if (at < e->queue_count) {
        id = e->queue[at];
        queue_remove(e, at);
    } else if (e->options->num_blocks < 0 && e->fresh < QUEUE - 1) {
        id = ++e->fresh;
    } else {
        id = within(e, 1, QUEUE - 1);
        if (e->options->num_blocks > 0)
            id = within(e, 1, (int32_t)e->options->num_blocks - 1);
    }
    use(e, id);
    return id;
}

/* Blocks freed .. upto of a table, last first, to the head or the tail. */
static void give_back(struct engine *e, struct request *r, int g, int32_t upto) {
    int32_t at = e->options->free_to_tail ? e->queue_count : 0;
    for (int32_t i = upto - 1; i >= r->freed[g]; i--) {
        int32_t id = r->table[g][i];
        if (!id || id >= QUEUE || e->users[id] <= 0 || --e->users[id] > 0)
            continue;
        if (chance(e, e->options->share / 4)) /* the prefix cache still knows it */
            queue_insert(e, e->queue_count, id);
        else
            queue_insert(e, at++, id);
    }
    if (upto > r->freed[g])
        r->freed[g] = upto;
}

static void drop_table(struct engine *e, struct request *r) {
    for (int g = 0; g < e->options->group_count; g++)
        give_back(e, r, g, r->count[g]);
}

static void forget_table(struct engine *e, struct request *r) {
    for (int g = 0; g < e->options->group_count; g++)
        r->count[g] = r->freed[g] = 0;
}

static void append(struct request *r, int g, int32_t id) {
    if (r->count[g] < TABLE)
        r->table[g][r->count[g]++] = id;
}

/* The blocks of tokens that were computed before: null where the window is past, shared with
 * another request where there is one. */
static void take_prefix(struct engine *e, struct request *r, int g, int32_t start) {
    const struct request *other = e->live[within(e, 0, e->live_count - 1)];
    int32_t size = groups[g].block_size;
    while (r->count[g] < start / size) {
        int32_t k = r->count[g];
        if (windows[g] && (k + 1) * size <= start - windows[g]) {
            append(r, g, 0);
        } else if (other != r && k < other->count[g] && chance(e, 90)) {
            append(r, g, other->table[g][k]);
            use(e, other->table[g][k]);
        } else {
            append(r, g, take(e));
        }
    }
}

static void allocate(struct engine *e, struct row *row) {
    struct request *r = row->request;
    int32_t end = row->start + row->query_len;
    for (int g = 0; g < e->options->group_count; g++) {
        int32_t window_start = e->options->late_window ? r->last_start : row->start;
        if (windows[g] && window_start >= windows[g]) {
            int32_t upto = (window_start - windows[g] + 1) / groups[g].block_size;
            give_back(e, r, g, upto < r->count[g] ? upto : r->count[g]);
        }
    }
    for (int g = 0; g < e->options->group_count; g++) {
        int32_t size = groups[g].block_size;
        int32_t need = (end + size - 1) / size;
        if (chance(e, e->options->odd))
            need += within(e, -1, 2);
        if (!r->count[g] && row->start >= size && chance(e, e->options->share))
            take_prefix(e, r, g, row->start);
        while (r->count[g] < need && r->count[g] < TABLE)
            append(r, g, chance(e, e->options->odd) ? 0 : take(e));
    }
}

/* ---- requests */

static void remove_live(struct engine *e, int32_t i) {
    memmove(e->live + i, e->live + i + 1, (size_t)(--e->live_count - i) * sizeof *e->live);
}

static void request_destroy(struct request *r) {
    for (int g = 0; g < GROUPS; g++)
        free(r->table[g]);
    free(r);
}

static void finish_some(struct engine *e) {
    for (int32_t i = e->live_count - 1; i >= 0; i--) {
        struct request *r = e->live[i];
        if (!chance(e, r->computed > r->prompt_len ? 5 : 1))
            continue;
        push(&e->finished, r->id);
        drop_table(e, r);
        remove_live(e, i);
        request_destroy(r);
    }
    if (chance(e, e->options->odd)) /* aborted before it was ever scheduled */
        push(&e->finished, e->next_request++);
    shuffle(e, &e->finished);
}

static void preempt_some(struct engine *e) {
    for (int32_t i = e->live_count - 1; i > 0 && chance(e, e->options->preempt); i--) {
        struct request *r = e->live[i];
        if (r->waiting)
            continue;
        push(&e->preempted, r->id);
        drop_table(e, r);
        r->waiting = true;
        r->computed = 0;
    }
    if (e->preempted.count && chance(e, e->options->odd) && !e->options->lawful)
        push(&e->preempted, e->preempted.id[0]); /* named twice */
}

static bool holds(const struct list *list, int64_t id) {
    for (int32_t i = 0; i < list->count; i++)
        if (list->id[i] == id)
            return true;
    return false;
}

static void resume_some(struct engine *e) {
    for (int32_t i = 0; i < e->live_count; i++) {
        struct request *r = e->live[i];
        if (!r->waiting || !chance(e, 30))
            continue;
        if (e->options->lawful && holds(&e->preempted, r->id))
            continue;
        push(&e->resumed, r->id);
        r->waiting = false;
        /* Resumed ones queue up behind all that run. */
        remove_live(e, i--);
        e->live[e->live_count++] = r;
        if (!chance(e, e->options->odd)) {
            push(&e->replaced, r->id);
            forget_table(e, r);
        }
        r->computed = chance(e, 50) ? 0 : within(e, 0, 200);
        if (e->resumed.count > 3)
            break;
    }
}

static void admit_some(struct engine *e) {
    int32_t running = 0;
    for (int32_t i = 0; i < e->live_count; i++)
        running += !e->live[i]->waiting;
    while (running < e->options->max_running && e->live_count < LIVE && chance(e, 40)) {
        struct request *r = st_test_alloc(sizeof *r);
        for (int g = 0; g < e->options->group_count; g++)
            r->table[g] = st_test_alloc(TABLE * sizeof *r->table[g]);
        if (chance(e, e->options->odd))
            e->next_request += within(e, 0, 1 << 30);
        r->id = e->next_request++;
        r->prompt_len = chance(e, e->options->odd) ? -1 : within(e, 0, 300);
        if (chance(e, e->options->share))
            r->computed = within(e, 0, e->options->long_start);
        e->prompt_len[e->added.count] = r->prompt_len;
        push(&e->added, r->id);
        e->live[e->live_count++] = r;
        running++;
    }
}

static void replace_some(struct engine *e) {
    for (int32_t i = 0; i < e->live_count; i++)
        if (!e->live[i]->waiting && chance(e, e->options->odd / 4)) {
            push(&e->replaced, e->live[i]->id);
            drop_table(e, e->live[i]);
            forget_table(e, e->live[i]);
        }
    if (!e->replaced.count && chance(e, 70))
        e->replaced.count = -1;
}

/* ---- the batch */

static void fill_row(struct engine *e, struct row *row, struct request *r, bool drafts) {
    row->request = r;
    row->start = r->computed;
    if (chance(e, e->options->odd))
        row->start = within(e, 0, row->start + (e->options->lawful ? 0 : 40));
    row->draft = drafts ? within(e, 0, 3) : 0;
    bool prefill = row->start < r->prompt_len;
    row->query_len = prefill ? within(e, 1, r->prompt_len - row->start) : 1 + row->draft;
    if (prefill && chance(e, 90))
        row->draft = 0;
    if (chance(e, e->options->odd))
        row->query_len = within(e, 1, 70);
    if ((row->start + row->query_len) / groups[2].block_size >= TABLE - 4) {
        row->start = 0;
        row->query_len = 1;
    }
}

static void schedule(struct engine *e, bool drafts) {
    e->rows = 0;
    bool lawful = e->options->lawful;
    bool begins = e->added.count > 0 || e->resumed.count > 0 || e->replaced.count > 0;
    if (chance(e, e->options->odd) && !(lawful && begins))
        return; /* nothing but events */
    for (int32_t i = 0; i < e->live_count; i++) {
        struct request *r = e->live[i];
        bool must = holds(&e->added, r->id) ||
                    (lawful && (holds(&e->resumed, r->id) || holds(&e->replaced, r->id)));
        if (!r->waiting && (must || chance(e, 95)))
            fill_row(e, &e->row[e->rows++], r, drafts);
    }
    for (int32_t i = 0; i < e->rows; i++) {
        for (int g = 0; g < e->options->group_count; g++)
            e->row[i].first[g] = e->row[i].request->count[g];
        allocate(e, &e->row[i]);
    }
    /* Batches keep no order of admission. */
    for (int32_t i = e->rows - 1; i > 0; i--)
        if (chance(e, e->options->shuffle)) {
            int32_t k = within(e, 0, i);
            struct row row = e->row[i];
            e->row[i] = e->row[k];
            e->row[k] = row;
        }
}

static void move_on(struct engine *e, const struct st_test_step *s) {
    for (int32_t i = 0; i < e->rows; i++) {
        struct request *r = e->row[i].request;
        r->last_start = e->row[i].start;
        r->computed = e->row[i].start + e->row[i].query_len;
        if (s->step.draft && chance(e, e->options->reject))
            r->computed -= within(e, 0, e->row[i].draft);
        if (r->computed < 0)
            r->computed = 0;
    }
}

/* ---- copying a step out */

static struct st_request_list copy_list(const struct list *list) {
    struct st_request_list copy = {list->count, NULL};
    if (list->count > 0)
        copy.request_id = st_test_copy(list->id, (size_t)list->count * sizeof *list->id);
    return copy;
}

static void copy_rows(struct engine *e, struct st_test_step *s, bool drafts) {
    size_t rows = (size_t)e->rows;
    int64_t *request_id = st_test_alloc(rows * sizeof *request_id);
    int32_t *column[4];
    for (int c = 0; c < 4; c++)
        column[c] = st_test_alloc(rows * sizeof **column);
    for (int32_t i = 0; i < e->rows; i++) {
        const struct row *row = &e->row[i];
        int32_t prompt_len = row->request->prompt_len;
        request_id[i] = row->request->id;
        column[0][i] = row->query_len;
        column[1][i] = row->start;
        column[2][i] = row->draft;
        column[3][i] = prompt_len;
        s->step.token_count += row->query_len;
        bool decode = (prompt_len < 0 ? row->start > 0 : row->start >= prompt_len) &&
                      row->query_len == (drafts ? 1 + row->draft : 1);
        s->decode_count += decode;
        s->prefill_token_count += decode ? 0 : row->query_len;
    }
    s->step.request_count = e->rows;
    s->step.request_id = request_id;
    s->step.query_len = column[0];
    s->step.num_computed_tokens = column[1];
    s->step.draft = drafts ? column[2] : NULL;
    if (!drafts)
        free(column[2]);
    s->step.prompt_len = column[3];
}

static void copy_blocks(struct engine *e, struct st_test_step *s) {
    int32_t group_count = e->options->group_count;
    s->step.group_count = group_count;
    s->blocks = st_test_alloc((size_t)group_count * sizeof *s->blocks);
    s->table = st_test_alloc((size_t)(group_count * e->rows) * sizeof *s->table);
    for (int g = 0; g < group_count; g++) {
        int32_t *offset = st_test_alloc(((size_t)e->rows + 1) * sizeof *offset);
        for (int32_t i = 0; i < e->rows; i++)
            offset[i + 1] = offset[i] + e->row[i].request->count[g] - e->row[i].first[g];
        int32_t *id = st_test_alloc((size_t)offset[e->rows] * sizeof *id);
        for (int32_t i = 0; i < e->rows; i++) {
            const struct request *r = e->row[i].request;
            size_t bytes = (size_t)r->count[g] * sizeof *id;
            struct st_test_table copy = {r->count[g], st_test_copy(r->table[g], bytes)};
            memcpy(id + offset[i], r->table[g] + e->row[i].first[g],
                   (size_t)(offset[i + 1] - offset[i]) * sizeof *id);
            s->table[g * e->rows + i] = copy;
        }
        s->blocks[g] = (struct st_row_blocks){offset, id};
    }
    s->step.blocks = s->blocks;
}

static void fill_scalars(struct engine *e, struct st_test_step *s, int64_t step_id) {
    struct st_step *step = &s->step;
    step->step_id = step_id;
    step->start_ns = chance(e, 5) ? ST_UNKNOWN : step_id * 1000003;
    step->duration_ns = chance(e, 5) ? ST_UNKNOWN : within(e, 0, 1 << 30);
    step->graph_mode = (enum st_graph_mode)within(e, -1, 2);
    step->padded_token_count = chance(e, 50) ? ST_UNKNOWN : within(e, 0, 9999);
    step->padded_request_count = chance(e, 50) ? ST_UNKNOWN : within(e, 0, 99);
    step->cpu_starts = (int8_t)within(e, -1, 1);
    step->zeroed = chance(e, 50) ? ST_UNKNOWN : within(e, 0, 1 << 30);
    if (chance(e, e->options->check)) {
        size_t size = (size_t)within(e, 0, 2000);
        if (e->options->lawful) {
            s->check_json = st_test_alloc(size + 40);
            size_t at = (size_t)sprintf(s->check_json, "{\"positions\":[0");
            while (at < size)
                at += (size_t)sprintf(s->check_json + at, ",%d", within(e, 0, 9999));
            strcpy(s->check_json + at, "]}");
            return;
        }
        s->check_json = st_test_alloc(size + 16);
        snprintf(s->check_json, 16, "{\"x\":%d}", within(e, 0, 99));
        for (size_t i = strlen(s->check_json); i < size; i++)
            s->check_json[i] = (char)within(e, ' ', 127);
        if (chance(e, 5))
            s->check_json[0] = 0;
    }
}

static void take_step(struct engine *e, struct st_test_step *s, int64_t step_id) {
    bool drafts = chance(e, e->options->draft);
    e->finished.count = e->preempted.count = e->resumed.count = e->added.count = 0;
    e->replaced.count = 0;
    finish_some(e);
    preempt_some(e);
    resume_some(e);
    admit_some(e);
    replace_some(e);
    schedule(e, drafts);
    fill_scalars(e, s, step_id);
    copy_rows(e, s, drafts);
    copy_blocks(e, s);
    s->step.finished = copy_list(&e->finished);
    s->step.preempted = copy_list(&e->preempted);
    s->step.resumed = copy_list(&e->resumed);
    s->step.replaced = copy_list(&e->replaced);
    s->step.new_requests = copy_list(&e->added);
    s->step.new_prompt_len =
        st_test_copy(e->prompt_len, (size_t)e->added.count * sizeof *e->prompt_len);
    move_on(e, s);
}

void st_test_engine_options_init(struct st_test_engine_options *options, uint64_t seed) {
    struct st_test_random random = {seed * 7919 + 1};
    memset(options, 0, sizeof *options);
    options->seed = seed;
    options->step_count = 300;
    options->group_count = (int32_t)st_test_within(&random, 1, GROUPS);
    options->num_blocks = st_test_chance(&random, 70) ? st_test_within(&random, 300, 3000) : -1;
    options->max_running = (int32_t)st_test_within(&random, 1, 20);
    options->free_to_tail = st_test_chance(&random, 30);
    options->late_window = st_test_chance(&random, 30);
    options->long_start = st_test_chance(&random, 30) ? 3000 : 300;
    int *percent[] = {&options->share,  &options->random_id, &options->preempt, &options->draft,
                      &options->reject, &options->shuffle,   &options->odd};
    static const int high[] = {60, 10, 8, 100, 50, 60, 6};
    for (int i = 0; i < 7; i++)
        *percent[i] = st_test_chance(&random, 50) ? 0 : (int)st_test_within(&random, 1, high[i]);
    options->check = 20;
}

static void fill_header(struct st_header *h, const struct st_test_engine_options *options) {
    *h = (struct st_header){.engine = "vllm",
                            .engine_version = "0.32.0",
                            .device = "none",
                            .model = "a \"model\" of \xc3\xa4",
                            .compress_ratio_count = 5,
                            .compress_ratios = ratios,
                            .max_model_len = -1,
                            .max_num_seqs = options->max_running,
                            .max_num_batched_tokens = 8192,
                            .num_blocks = options->num_blocks,
                            .prefix_caching = 1,
                            .async_scheduling = -1,
                            .speculative = options->draft ? "{\"method\":\"mtp\"}" : NULL,
                            .rank = 0,
                            .clock_monotonic_ns = ST_UNKNOWN,
                            .clock_realtime_ns = INT64_MAX,
                            .scale = "",
                            .group_count = options->group_count,
                            .groups = groups};
}

struct st_test_recording *st_test_record(const struct st_test_engine_options *options) {
    struct engine *e = st_test_alloc(sizeof *e);
    struct st_test_recording *recording = st_test_alloc(sizeof *recording);
    e->options = options;
    e->random.state = options->seed;
    fill_header(&recording->header, options);
    for (int32_t id = 1; id < options->num_blocks; id++)
        queue_insert(e, e->queue_count, id);
    recording->step_count = options->step_count;
    recording->step = st_test_alloc((size_t)options->step_count * sizeof *recording->step);
    for (int32_t i = 0; i < options->step_count; i++)
        take_step(e, &recording->step[i], options->first_step + i);
    while (e->live_count)
        request_destroy(e->live[--e->live_count]);
    free(e);
    return recording;
}
