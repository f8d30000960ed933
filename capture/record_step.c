/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the engine pays for: one step into the ring.
 *
 * First the step's events move the live requests, then its ids are found and its size is known,
 * then there is room in the ring or there is none.  Nothing of a step that is dropped is lost but
 * the step: the live requests stay ahead of the tape until the next one is recorded.
 */
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "capture/recorder_i.h"

static uint64_t now_ns(void) {
    struct timespec ts;
    clock_gettime(CLOCK_MONOTONIC, &ts); /* vDSO: no system call */
    return (uint64_t)ts.tv_sec * 1000000000u + (uint64_t)ts.tv_nsec;
}

static void store(_Atomic uint64_t *to, uint64_t value) {
    atomic_store_explicit(to, value, memory_order_relaxed);
}

int st_recorder_turn_off(struct steptape_recorder *r, int status, const char *fmt, ...) {
    struct st_ring_counters *counters = &r->ring.head->counters;
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(counters->reason, sizeof counters->reason, fmt, ap);
    va_end(ap);
    atomic_store_explicit(&counters->off, 1, memory_order_release);
    r->off = status;
    return status;
}

static int fault_of(struct steptape_recorder *r, int64_t request_id, const char *fault) {
    return st_recorder_turn_off(r, STEPTAPE_RECORDER_ERR_ARGUMENT,
                                "step %" PRIu64 ": request %" PRId64 " %s", r->sequence, request_id,
                                fault);
}

static int fault(struct steptape_recorder *r, const char *what) {
    return st_recorder_turn_off(r, STEPTAPE_RECORDER_ERR_ARGUMENT, "step %" PRIu64 ": %s",
                                r->sequence, what);
}

/* ---- what the step says of itself */

static const char *find_fault(const struct steptape_recorder *r, const struct steptape_step *s) {
    if (s->struct_size < sizeof *s)
        return "struct_size is that of no version of steptape_step";
    if (s->request_count < 0 || s->request_count > r->live.capacity)
        return "more requests in one step than max_requests allows";
    if (s->new_count < 0 || s->finished_count < 0 || s->preempted_count < 0 ||
        s->resumed_count < 0 || s->replaced_count < -1)
        return "a count is negative";
    if (s->group_count != r->group_count)
        return "group_count is not the header's";
    if (s->graph_mode < -1 || s->graph_mode > 2 || s->cpu_starts < -1 || s->cpu_starts > 1)
        return "graph_mode or cpu_starts is out of range";
    if (s->zeroed_count != STEPTAPE_UNKNOWN &&
        (s->zeroed_count < 0 || s->zeroed_count == INT64_MAX))
        return "zeroed_count is out of range";
    if ((s->request_count && (!s->request_id || !s->query_len || !s->num_computed_tokens)) ||
        (s->new_count && (!s->new_request || !s->new_prompt_len)) ||
        (s->finished_count && !s->finished) || (s->preempted_count && !s->preempted) ||
        (s->resumed_count && !s->resumed) || (s->replaced_count > 0 && !s->replaced) ||
        (s->group_count && !s->blocks))
        return "an array is NULL";
    uint32_t bad = 0;
    for (int32_t i = 0; i < s->request_count; i++) {
        uint32_t length = (uint32_t)s->query_len[i], start = (uint32_t)s->num_computed_tokens[i];
        bad |= (length - 1) | length | start | (length + start);
    }
    if (bad >> 31)
        return "query_len below 1, num_computed_tokens below 0, or their sum above 2^31 - 1";
    bad = 0;
    for (int32_t i = 0; s->draft && i < s->request_count; i++)
        bad |= (uint32_t)s->draft[i] | ((uint32_t)s->draft[i] + 1);
    for (int32_t i = 0; i < s->new_count; i++)
        bad |= (uint32_t)(s->new_prompt_len[i] < -1) << 31;
    return bad >> 31 ? "a draft count or a prompt length is out of range" : NULL;
}

static int move_requests(struct steptape_recorder *r, const struct steptape_step *s) {
    struct st_live *live = &r->live;
    const char *what;
    for (int32_t i = 0; i < s->finished_count; i++)
        if ((what = st_live_finish(live, s->finished[i])))
            return fault_of(r, s->finished[i], what);
    for (int32_t i = 0; i < s->preempted_count; i++)
        if ((what = st_live_preempt(live, s->preempted[i])))
            return fault_of(r, s->preempted[i], what);
    for (int32_t i = 0; i < s->resumed_count; i++)
        if ((what = st_live_resume(live, s->resumed[i])))
            return fault_of(r, s->resumed[i], what);
    for (int32_t i = 0; i < s->new_count; i++)
        if ((what = st_live_add(live, s->new_request[i], s->new_prompt_len[i])))
            return fault_of(r, s->new_request[i], what);
    for (int32_t i = 0; i < s->replaced_count; i++)
        if ((what = st_live_replace(live, s->replaced[i])))
            return fault_of(r, s->replaced[i], what);
    what = st_live_set_batch(live, s->request_id, s->request_count);
    return what ? fault(r, what) : 0;
}

/* ---- ids */

enum { STRIDE = 16 };

static int32_t find_grown(const int32_t *before, const int32_t *now, int32_t rows,
                          struct st_step_entry *entry) {
    int32_t count = 0, row = 0;
    for (; row < rows; row += STRIDE) {
        int32_t end = row + STRIDE < rows ? row + STRIDE : rows, difference = 0;
        if (end - row == STRIDE) {
            for (int k = 0; k < STRIDE; k++)
                difference |= before[row + k] ^ now[row + k];
            if (!difference)
                continue;
        }
        for (int32_t i = row; i < end; i++)
            if (before[i] != now[i])
                entry[count++] = (struct st_step_entry){i, before[i], now[i]};
    }
    return count;
}

static struct st_step_entry *entries(struct steptape_recorder *r, int32_t group) {
    return r->entry + (int64_t)group * r->live.capacity;
}

/* Rows of a group that got ids, and how many ids. */
static int find_entries(struct steptape_recorder *r, const struct steptape_step *s, int32_t group,
                        int64_t *ids) {
    const struct steptape_step_blocks *b = &s->blocks[group];
    struct st_step_entry *entry = entries(r, group);
    int32_t count = 0;
    *ids = 0;
    if (!s->request_count) {
        r->entry_count[group] = 0;
        return 0;
    }
    if (b->table) {
        if (!b->row_cell_count || b->cells_per_block < 1)
            return fault(r, "a block table without row_cell_count or cells_per_block");
        count = find_grown(st_live_row_cells(&r->live, group), b->row_cell_count, s->request_count,
                           entry);
        for (int32_t i = 0; i < count; i++) {
            if (entry[i].to < entry[i].from || entry[i].to > b->row_stride)
                return fault_of(r, s->request_id[entry[i].row],
                                entry[i].to < entry[i].from
                                    ? "has a shorter block table than before and is not in replaced"
                                    : "has more cells than its row of the block table");
            *ids += entry[i].to / b->cells_per_block - entry[i].from / b->cells_per_block;
        }
    } else {
        if (!b->offset || b->offset[0])
            return fault(r, "block ids without a table and without offsets from 0");
        count = find_grown(b->offset, b->offset + 1, s->request_count, entry);
        for (int32_t i = 0; i < count; i++)
            if (entry[i].to < entry[i].from)
                return fault(r, "offsets of block ids that go down");
        *ids = b->offset[s->request_count];
        if (*ids && !b->block_id)
            return fault(r, "an array is NULL");
    }
    r->entry_count[group] = count;
    return 0;
}

/* Ids of an entry, to `to`; false when one is negative. */
static bool copy_ids(const struct steptape_step_blocks *b, const struct st_step_entry *e,
                     int32_t *to) {
    int32_t low = 0;
    if (b->table) {
        const int32_t *row = b->table + e->row * b->row_stride;
        int32_t each = b->cells_per_block;
        for (int32_t k = e->from / each; k < e->to / each; k++) {
            int32_t id = each == 1 ? row[k] : row[(int64_t)k * each] / each;
            low |= id;
            *to++ = id;
        }
    } else {
        for (int32_t k = e->from; k < e->to; k++) {
            low |= b->block_id[k];
            *to++ = b->block_id[k];
        }
    }
    return low >= 0;
}

static int32_t id_count(const struct steptape_step_blocks *b, const struct st_step_entry *e) {
    return b->table ? e->to / b->cells_per_block - e->from / b->cells_per_block : e->to - e->from;
}

/* ---- the step that is recorded */

static uint8_t *put(uint8_t *to, const void *from, size_t size) {
    if (size)
        memcpy(to, from, size);
    return to + size;
}

/* The lists of a step: the caller's, or after dropped steps what follows from the live requests. */
struct lists {
    int32_t new_count, finished_count, preempted_count, resumed_count, replaced_count;
};

enum kind { NEW, FINISHED, PREEMPTED, RESUMED, REPLACED };

static bool belongs(const struct st_live_request *q, enum kind kind) {
    bool row = q->row >= 0;
    switch (kind) {
    case NEW:
        return q->tape == ST_LIVE_ABSENT && q->engine == ST_LIVE_RUNNING && row;
    case FINISHED:
        return q->tape != ST_LIVE_ABSENT && q->engine == ST_LIVE_FINISHED;
    case PREEMPTED:
        return q->tape == ST_LIVE_RUNNING && q->engine == ST_LIVE_WAITING;
    case RESUMED:
        return q->tape == ST_LIVE_WAITING && q->engine == ST_LIVE_RUNNING && row;
    default:
        return q->tape != ST_LIVE_ABSENT && q->engine == ST_LIVE_RUNNING && q->replace && row;
    }
}

/* to NULL: counts. */
static int32_t gather(const struct st_live *live, enum kind kind, uint8_t **to) {
    int32_t count = 0;
    for (int32_t i = 0; i < live->dirty_count; i++) {
        if (live->dirty[i] < 0 || !belongs(&live->slot[live->dirty[i]], kind))
            continue;
        count++;
        if (to)
            *to = put(*to, &live->slot[live->dirty[i]].request_id, sizeof(int64_t));
    }
    return count;
}

static uint8_t *put_prompts(const struct st_live *live, uint8_t *to) {
    for (int32_t i = 0; i < live->dirty_count; i++)
        if (live->dirty[i] >= 0 && belongs(&live->slot[live->dirty[i]], NEW))
            to = put(to, &live->slot[live->dirty[i]].prompt_len, sizeof(int32_t));
    return to;
}

static struct lists count_lists(const struct st_live *live, const struct steptape_step *s,
                                bool gathered) {
    if (!gathered)
        return (struct lists){s->new_count, s->finished_count, s->preempted_count, s->resumed_count,
                              s->replaced_count};
    struct lists n = {gather(live, NEW, NULL), gather(live, FINISHED, NULL),
                      gather(live, PREEMPTED, NULL), gather(live, RESUMED, NULL),
                      gather(live, REPLACED, NULL)};
    if (!n.replaced_count && s->replaced_count < 0)
        n.replaced_count = -1;
    return n;
}

/* Ids that dropped steps gave to a row of the batch. */
static int32_t carried_ids(const struct st_live *live, int32_t row, int32_t group) {
    int32_t count = 0;
    for (int32_t c = live->slot[live->row_slot[row]].lane_first; c >= 0; c = live->lane[c].next)
        count += live->lane[c].group == group ? live->lane[c].count : 0;
    return count;
}

static uint8_t *put_carried(const struct st_live *live, int32_t row, int32_t group, uint8_t *to) {
    for (int32_t c = live->slot[live->row_slot[row]].lane_first; c >= 0; c = live->lane[c].next)
        if (live->lane[c].group == group)
            to = put(to, live->lane[c].id, (size_t)live->lane[c].count * sizeof(int32_t));
    return to;
}

/* Rows of a group with ids, those carried included: entries are in the order of rows, carried rows
 * need not be among them. */
static void measure_carried(struct steptape_recorder *r, const struct steptape_step *s,
                            int32_t group, int64_t *rows, int64_t *ids) {
    const struct st_step_entry *entry = entries(r, group);
    int32_t at = 0;
    *rows = 0;
    for (int32_t row = 0; row < s->request_count; row++) {
        int32_t carried = carried_ids(&r->live, row, group);
        bool own = at < r->entry_count[group] && entry[at].row == row;
        if (own && id_count(&s->blocks[group], &entry[at++]) + carried > 0)
            ++*rows;
        else if (!own && carried)
            ++*rows;
        *ids += carried;
    }
}

static bool put_group(struct steptape_recorder *r, const struct steptape_step *s, int32_t group,
                      int64_t rows, int64_t ids, bool carried, uint8_t **to) {
    const struct steptape_step_blocks *b = &s->blocks[group];
    const struct st_step_entry *entry = entries(r, group), *last = entry + r->entry_count[group];
    uint32_t counts[2] = {(uint32_t)rows, (uint32_t)ids};
    int32_t *pair = (int32_t *)(void *)put(*to, counts, sizeof counts);
    uint8_t *id = (uint8_t *)(pair + 2 * rows);
    bool good = true;
    *to = id + ids * (int64_t)sizeof(int32_t);
    for (int32_t row = carried || entry == last ? 0 : entry->row; row < s->request_count; row++) {
        bool own = entry < last && entry->row == row;
        int32_t before = carried ? carried_ids(&r->live, row, group) : 0;
        int32_t count = before + (own ? id_count(b, entry) : 0);
        if (count) {
            *pair++ = row;
            *pair++ = count;
        }
        if (before)
            id = put_carried(&r->live, row, group, id);
        if (own) {
            good &= copy_ids(b, entry, (int32_t *)(void *)id);
            id += (count - before) * (int32_t)sizeof(int32_t);
            entry++;
        }
        if (!carried) {
            if (entry == last)
                break;
            row = entry->row - 1;
        }
    }
    return good;
}

static void put_head(struct st_ring_record *record, const struct steptape_recorder *r,
                     const struct steptape_step *s, const struct lists *n, uint64_t size,
                     size_t check_size) {
    *record = (struct st_ring_record){
        .size = (uint32_t)size,
        .kind = ST_RING_STEP,
        .sequence = r->sequence,
        .start_ns = s->start_ns,
        .duration_ns = s->duration_ns,
        .padded_token_count = s->padded_token_count,
        .padded_request_count = s->padded_request_count,
        .zeroed_count = s->zeroed_count,
        .graph_mode = s->graph_mode,
        .cpu_starts = s->cpu_starts,
        .request_count = s->request_count,
        .has_draft = s->draft != NULL,
        .new_count = n->new_count,
        .finished_count = n->finished_count,
        .preempted_count = n->preempted_count,
        .resumed_count = n->resumed_count,
        .replaced_count = n->replaced_count,
        .group_count = s->group_count,
        .check_size = (uint32_t)check_size,
    };
}

static uint8_t *put_lists(const struct st_live *live, const struct steptape_step *s, bool gathered,
                          uint8_t *to) {
    if (!gathered) {
        to = put(to, s->new_request, (size_t)s->new_count * sizeof(int64_t));
        to = put(to, s->finished, (size_t)s->finished_count * sizeof(int64_t));
        to = put(to, s->preempted, (size_t)s->preempted_count * sizeof(int64_t));
        to = put(to, s->resumed, (size_t)s->resumed_count * sizeof(int64_t));
        return put(to, s->replaced,
                   s->replaced_count > 0 ? (size_t)s->replaced_count * sizeof(int64_t) : 0);
    }
    gather(live, NEW, &to);
    gather(live, FINISHED, &to);
    gather(live, PREEMPTED, &to);
    gather(live, RESUMED, &to);
    gather(live, REPLACED, &to);
    return to;
}

/* The recorded cells of the rows that grew. */
static void advance_cells(struct steptape_recorder *r, const struct steptape_step *s) {
    for (int32_t g = 0; g < r->group_count; g++) {
        if (!s->blocks[g].table)
            continue;
        int32_t *cells = st_live_row_cells(&r->live, g);
        const struct st_step_entry *entry = entries(r, g);
        for (int32_t i = 0; i < r->entry_count[g]; i++)
            cells[entry[i].row] = entry[i].to;
    }
}

/* Keeps the ids of a step that found no room; those of tables are there still in the next. */
static int carry(struct steptape_recorder *r, const struct steptape_step *s) {
    for (int32_t g = 0; g < r->group_count; g++) {
        const struct steptape_step_blocks *b = &s->blocks[g];
        const struct st_step_entry *entry = entries(r, g);
        for (int32_t i = 0; !b->table && i < r->entry_count[g]; i++) {
            int32_t slot = r->live.row_slot[entry[i].row];
            if (!st_live_carry(&r->live, slot, g, b->block_id + entry[i].from,
                               entry[i].to - entry[i].from))
                return st_recorder_turn_off(
                    r, STEPTAPE_RECORDER_ERR_OFF,
                    "step %" PRIu64 ": so many steps were dropped that their block ids found no "
                    "room; a larger ring holds more",
                    r->sequence);
        }
    }
    r->dropped++;
    store(&r->ring.head->counters.dropped, r->dropped);
    return STEPTAPE_RECORDER_DROPPED;
}

struct measure {
    struct lists lists;
    bool gathered, carried;
    int64_t rows[ST_MAX_GROUPS], ids[ST_MAX_GROUPS];
    size_t check_size;
    uint64_t size;
};

static int measure(struct steptape_recorder *r, const struct steptape_step *s, bool pending,
                   struct measure *m) {
    m->gathered = m->carried = pending;
    m->lists = count_lists(&r->live, s, m->gathered);
    m->check_size = s->check_json ? strlen(s->check_json) : 0;
    uint64_t rows = (uint64_t)s->request_count;
    uint64_t numbers = rows + (uint64_t)m->lists.new_count + (uint64_t)m->lists.finished_count +
                       (uint64_t)m->lists.preempted_count + (uint64_t)m->lists.resumed_count +
                       (uint64_t)(m->lists.replaced_count > 0 ? m->lists.replaced_count : 0);
    uint64_t size = sizeof(struct st_ring_record) + 8 * numbers +
                    4 * (rows * (s->draft ? 3 : 2) + (uint64_t)m->lists.new_count) + m->check_size;
    for (int32_t g = 0; g < r->group_count; g++) {
        int rc = find_entries(r, s, g, &m->ids[g]);
        if (rc)
            return rc;
        m->rows[g] = 0;
        if (m->carried)
            measure_carried(r, s, g, &m->rows[g], &m->ids[g]);
        else
            for (int32_t i = 0; i < r->entry_count[g]; i++)
                m->rows[g] += id_count(&s->blocks[g], &entries(r, g)[i]) > 0;
        size += 8 + 8 * (uint64_t)m->rows[g] + 4 * (uint64_t)m->ids[g];
    }
    m->size = (size + 7) & ~(uint64_t)7;
    if (m->size > r->ring.capacity / 2)
        return st_recorder_turn_off(r, STEPTAPE_RECORDER_ERR_OFF,
                                    "step %" PRIu64 " has %" PRIu64
                                    " bytes, too many for a ring of %" PRIu64,
                                    r->sequence, m->size, r->ring.capacity);
    return 0;
}

static int copy_step(struct steptape_recorder *r, const struct steptape_step *s,
                     const struct measure *m, uint8_t *to) {
    size_t rows = (size_t)s->request_count;
    uint8_t *end = to + m->size;
    put_head((struct st_ring_record *)(void *)to, r, s, &m->lists, m->size, m->check_size);
    to = put(to + sizeof(struct st_ring_record), s->request_id, rows * sizeof(int64_t));
    to = put_lists(&r->live, s, m->gathered, to);
    to = put(to, s->query_len, rows * sizeof(int32_t));
    to = put(to, s->num_computed_tokens, rows * sizeof(int32_t));
    if (s->draft)
        to = put(to, s->draft, rows * sizeof(int32_t));
    to = m->gathered ? put_prompts(&r->live, to)
                     : put(to, s->new_prompt_len, (size_t)s->new_count * sizeof(int32_t));
    for (int32_t g = 0; g < r->group_count; g++)
        if (!put_group(r, s, g, m->rows[g], m->ids[g], m->carried, &to))
            return fault(r, "a block id is negative");
    to = put(to, s->check_json, m->check_size);
    memset(to, 0, (size_t)(end - to));
    st_ring_publish(&r->ring, m->size);
    return 0;
}

static int take_step(struct steptape_recorder *r, const struct steptape_step *s) {
    struct st_ring_counters *counters = &r->ring.head->counters;
    const char *what = find_fault(r, s);
    if (what)
        return fault(r, what);
    bool pending = r->live.dirty_live > 0;
    int rc = move_requests(r, s);
    struct measure m;
    if (!rc)
        rc = measure(r, s, pending, &m);
    if (rc)
        return rc;
    uint8_t *to = st_ring_reserve(&r->ring, m.size);
    if (!to) {
        if (atomic_load_explicit(&r->ring.head->failed, memory_order_acquire))
            return st_recorder_turn_off(r, STEPTAPE_RECORDER_ERR_OFF,
                                        "the writer has stopped and the ring is full: %.160s",
                                        r->ring.head->failure);
        return carry(r, s);
    }
    rc = copy_step(r, s, &m, to);
    if (rc)
        return rc;
    advance_cells(r, s);
    st_live_settle(&r->live, !m.gathered);
    store(&counters->recorded, ++r->recorded);
    store(&counters->bytes, r->bytes += m.size);
    return STEPTAPE_RECORDER_OK;
}

STEPTAPE_API int steptape_recorder_record_step(struct steptape_recorder *r,
                                               const struct steptape_step *s) {
    if (!r || !atomic_load_explicit(r->mine, memory_order_relaxed))
        return STEPTAPE_RECORDER_ERR_OFF;
    if (r->off)
        return r->off;
    uint64_t begin = now_ns();
    struct st_ring_head *head = r->ring.head;
    store(&head->counters.begun, r->sequence + 1);
    int rc = take_step(r, s);
    store(&head->counters.sequence, ++r->sequence);
    uint64_t cost = now_ns() - begin;
    store(&head->counters.cost_sum_ns, r->cost_sum_ns += cost);
    if (cost > r->cost_max_ns)
        store(&head->counters.cost_max_ns, r->cost_max_ns = cost);
    _Atomic uint64_t *class = &head->cost_class[st_ring_cost_class(cost)];
    store(class, atomic_load_explicit(class, memory_order_relaxed) + 1);
    return rc;
}
