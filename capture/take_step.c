/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the engine pays for: one step into the ring.
 *
 * First the step's events move the live requests, then its ids are found and its size is known,
 * then there is room in the ring or there is none.  Nothing of a step that is dropped is lost but
 * the step: the live requests stay ahead of the tape until the next one is recorded.
 */
#include <inttypes.h>
#include <string.h>
#ifdef __SSE2__
#include <immintrin.h>
#endif

#include "capture/recorder_i.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

static void store(_Atomic uint64_t *to, uint64_t value) {
    atomic_store_explicit(to, value, memory_order_relaxed);
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

static bool is_size(int64_t n) {
    return n == STEPTAPE_UNKNOWN || (n >= 0 && n <= INT32_MAX);
}

static const char *find_fault(const struct steptape_recorder *r, const struct steptape_step *s) {
    if (!s)
        return "it is NULL";
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
    if ((s->duration_ns < 0 && s->duration_ns != STEPTAPE_UNKNOWN) ||
        !is_size(s->padded_token_count) || !is_size(s->padded_request_count))
        return "duration_ns, padded_token_count or padded_request_count is out of range";
    if ((s->request_count && (!s->request_id || !s->query_len || !s->num_computed_tokens)) ||
        (s->new_count && (!s->new_request || !s->new_prompt_len)) ||
        (s->finished_count && !s->finished) || (s->preempted_count && !s->preempted) ||
        (s->resumed_count && !s->resumed) || (s->replaced_count > 0 && !s->replaced) ||
        (s->group_count && !s->blocks))
        return "an array is NULL";
    /* -1 stands in a row whose request has left it: it must not be taken for one of the batch. */
    uint64_t sign = 0;
    for (int32_t i = 0; i < s->request_count; i++)
        sign |= (uint64_t)s->request_id[i];
    if (sign >> 63)
        return "a request of the batch has a negative number";
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

static bool same_batch(const struct st_live *live, const int64_t *request_id, int32_t count) {
    uint64_t difference = 0;
    if (count != live->row_count)
        return false;
    for (int32_t row = 0; row < count; row++)
        difference |= (uint64_t)(live->row_id[row] ^ request_id[row]);
    return !difference;
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
    if (same_batch(live, s->request_id, s->request_count))
        return 0;
    int32_t bad;
    what = st_live_set_batch(live, s->request_id, s->request_count, &bad);
    return what ? fault_of(r, s->request_id[bad], what) : 0;
}

/* ---- ids */

/* A bit for each of STRIDE rows that differs. */
#if defined(__AVX2__)
enum { STRIDE = 32 };

static inline uint32_t differing(const int32_t *a, const int32_t *b) {
    uint32_t equal = 0;
    for (int k = 0; k < 4; k++) {
        __m256i x = _mm256_loadu_si256((const __m256i *)(const void *)(a + 8 * k));
        __m256i y = _mm256_loadu_si256((const __m256i *)(const void *)(b + 8 * k));
        __m256i same = _mm256_cmpeq_epi32(x, y);
        equal |= (uint32_t)_mm256_movemask_ps(_mm256_castsi256_ps(same)) << (8 * k);
    }
    return ~equal;
}
#elif defined(__SSE2__)
enum { STRIDE = 16 };

static inline uint32_t differing(const int32_t *a, const int32_t *b) {
    __m128i equal[4];
    for (int k = 0; k < 4; k++)
        equal[k] = _mm_cmpeq_epi32(_mm_loadu_si128((const __m128i *)(const void *)(a + 4 * k)),
                                   _mm_loadu_si128((const __m128i *)(const void *)(b + 4 * k)));
    __m128i all =
        _mm_packs_epi16(_mm_packs_epi32(equal[0], equal[1]), _mm_packs_epi32(equal[2], equal[3]));
    return (uint32_t)_mm_movemask_epi8(all) ^ 0xffff;
}
#else
enum { STRIDE = 16 };

static inline uint32_t differing(const int32_t *a, const int32_t *b) {
    uint32_t bits = 0;
    for (int k = 0; k < STRIDE; k++)
        bits |= (uint32_t)(a[k] != b[k]) << k;
    return bits;
}
#endif

/* Which rows differ is a coin's throw to the branch predictor: the bits of those that do are
 * walked, not the rows. */
static void find_grown(const int32_t *before, const int32_t *now, int32_t rows,
                       struct st_step_entries *e) {
    int32_t *restrict rows_of = e->row, *restrict from = e->from, *restrict to = e->to;
    int32_t count = 0, row = 0;
    for (; row + STRIDE <= rows; row += STRIDE) {
        for (uint32_t bits = differing(before + row, now + row); bits; bits &= bits - 1) {
            int32_t i = row + __builtin_ctz(bits);
            rows_of[count] = i;
            from[count] = before[i];
            to[count++] = now[i];
        }
    }
    for (; row < rows; row++)
        if (before[row] != now[row]) {
            rows_of[count] = row;
            from[count] = before[row];
            to[count++] = now[row];
        }
    e->count = count;
}

static int fault_of_table(struct steptape_recorder *r, const struct steptape_step *s,
                          const struct steptape_step_blocks *b, const int32_t *before) {
    for (int32_t row = 0; row < s->request_count; row++) {
        if (b->row_cell_count[row] < 0)
            return fault_of(r, s->request_id[row], "has fewer than 0 cells in its block table");
        if (b->row_cell_count[row] < before[row])
            return fault_of(r, s->request_id[row],
                            "has a shorter block table than before and is not in replaced");
        if (b->row_cell_count[row] > b->row_stride)
            return fault_of(r, s->request_id[row],
                            "has more cells than its row of the block table");
    }
    return fault(r, "a block table of a damaged size");
}

/* Where the runner splits blocks: in units of the allocator's, and only rows that got a whole one.
 */
static void join_cells(struct st_step_entries *e, int32_t each) {
    int32_t kept = 0;
    for (int32_t i = 0; i < e->count; i++) {
        int32_t from = e->from[i] / each, to = e->to[i] / each;
        e->row[kept] = e->row[i];
        e->from[kept] = from;
        e->to[kept] = to;
        kept += to > from;
    }
    e->count = kept;
}

/* Rows of a table that grew by at least a block; *ids: by how many. */
static int find_table_entries(struct steptape_recorder *r, const struct steptape_step *s,
                              int32_t group, int64_t *ids) {
    const struct steptape_step_blocks *b = &s->blocks[group];
    const int32_t *before = st_live_row_cells(&r->live, group);
    struct st_step_entries *e = &r->entries[group];
    int64_t stride = b->row_stride, sum = 0, bad = 0;
    if (!b->row_cell_count || b->cells_per_block < 1)
        return fault(r, "a block table without row_cell_count or cells_per_block");
    if (stride < 0 || stride > INT32_MAX)
        return fault(r, "a block table whose row_stride is below 0 or above 2^31 - 1");
    find_grown(before, b->row_cell_count, s->request_count, e);
    for (int32_t i = 0, n = e->count; i < n; i++) {
        /* Far from all else that is read: under way by the time it is copied. */
        __builtin_prefetch(b->table + e->row[i] * stride + e->from[i]);
        bad |= ((int64_t)e->to[i] - e->from[i]) | (stride - e->to[i]);
        sum += e->to[i] - e->from[i];
    }
    if (bad < 0)
        return fault_of_table(r, s, b, before);
    if (b->cells_per_block != 1) {
        join_cells(e, b->cells_per_block);
        sum = 0;
        for (int32_t i = 0; i < e->count; i++)
            sum += e->to[i] - e->from[i];
    }
    *ids = sum;
    return 0;
}

/* Runs as they come; *ids: of all of them. */
static int find_runs(struct steptape_recorder *r, const struct steptape_step *s, int32_t group,
                     int64_t *ids) {
    const struct steptape_step_blocks *b = &s->blocks[group];
    struct st_step_entries *e = &r->entries[group];
    int32_t *restrict row = e->row, *restrict from = e->from, *restrict to = e->to;
    int32_t count = b->run_count;
    bool bad = false;
    int64_t sum = 0;
    if (count < 0 || count > s->request_count)
        return fault(r, "a group with more runs of block ids than the batch has rows");
    if (count && (!b->run_row || !b->block_id))
        return fault(r, "runs of block ids without run_row or block_id");
    for (int32_t i = 0; i < count; i++) {
        int32_t length = b->run_length ? b->run_length[i] : 1;
        bad |= length < 1 || (uint32_t)b->run_row[i] >= (uint32_t)s->request_count;
        row[i] = b->run_row[i];
        from[i] = (int32_t)sum;
        sum += length;
        to[i] = (int32_t)sum;
    }
    if (bad || sum > INT32_MAX)
        return fault(r, "a run of block ids for a row outside of the batch, or of no id");
    e->count = count;
    *ids = sum;
    return 0;
}

static int find_entries(struct steptape_recorder *r, const struct steptape_step *s, int32_t group,
                        int64_t *ids) {
    struct st_step_entries *e = &r->entries[group];
    const struct st_step_entries *before = group ? e - 1 : &r->entry_pool;
    int32_t used = group ? before->count : 0;
    *e = (struct st_step_entries){before->row + used, before->from + used, before->to + used, 0};
    *ids = 0;
    if (!s->request_count)
        return 0;
    return s->blocks[group].table ? find_table_entries(r, s, group, ids)
                                  : find_runs(r, s, group, ids);
}

/* Ids of a row; gives where the next go.  *low gets the sign of a negative one. */
static inline int32_t *copy_ids(const struct steptape_step_blocks *b, int32_t row, int32_t from,
                                int32_t to, int32_t *restrict id, int32_t *low) {
    int32_t each = b->table ? b->cells_per_block : 1, sign = 0;
    const int32_t *cell = b->table ? b->table + row * b->row_stride : b->block_id;
    for (int32_t k = from; k < to; k++) {
        int32_t value = each == 1 ? cell[k] : cell[(int64_t)k * each] / each;
        sign |= value;
        *id++ = value;
    }
    *low |= sign;
    return id;
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

/* By row, and runs of one row as they came: few of them come out of order. */
static void sort_entries(struct st_step_entries *e) {
    for (int32_t i = 1; i < e->count; i++) {
        int32_t row = e->row[i], from = e->from[i], to = e->to[i], k = i;
        for (; k > 0 && e->row[k - 1] > row; k--) {
            e->row[k] = e->row[k - 1];
            e->from[k] = e->from[k - 1];
            e->to[k] = e->to[k - 1];
        }
        e->row[k] = row;
        e->from[k] = from;
        e->to[k] = to;
    }
}

/* Rows of a group with ids, those carried included. */
static void measure_carried(struct steptape_recorder *r, const struct steptape_step *s,
                            int32_t group, int64_t *rows, int64_t *ids) {
    struct st_step_entries *e = &r->entries[group];
    int32_t at = 0;
    sort_entries(e);
    *rows = 0;
    for (int32_t row = 0; row < s->request_count; row++) {
        int32_t carried = st_live_lane(&r->live, r->live.row_slot[row], group)->count;
        int32_t own = at;
        while (at < e->count && e->row[at] == row)
            at++;
        *rows += at > own || carried;
        *ids += carried;
    }
}

/* The rows with ids and then the ids; false when one is negative. */
static bool put_group(struct steptape_recorder *r, const struct steptape_step *s, int32_t group,
                      int64_t ids, uint8_t **to) {
    const struct st_step_entries *e = &r->entries[group];
    uint32_t counts[2] = {(uint32_t)e->count, (uint32_t)ids};
    int32_t *pair = (int32_t *)(void *)put(*to, counts, sizeof counts);
    int32_t *id = pair + 2 * (int64_t)e->count, low = 0;
    const struct steptape_step_blocks b = s->blocks[group];
    for (int32_t i = 0, n = e->count; i < n; i++) {
        int32_t row = e->row[i], from = e->from[i], end = e->to[i];
        pair[2 * i] = row;
        pair[2 * i + 1] = end - from;
        id = copy_ids(&b, row, from, end, id, &low);
    }
    *to = (uint8_t *)id;
    return low >= 0;
}

/* The same, with the ids that dropped steps gave to a row before its own. */
static bool put_carried_group(struct steptape_recorder *r, const struct steptape_step *s,
                              int32_t group, int64_t rows, int64_t ids, uint8_t **to) {
    const struct st_step_entries *e = &r->entries[group];
    uint32_t counts[2] = {(uint32_t)rows, (uint32_t)ids};
    int32_t *pair = (int32_t *)(void *)put(*to, counts, sizeof counts);
    int32_t *id = pair + 2 * rows, low = 0, at = 0;
    for (int32_t row = 0; row < s->request_count; row++) {
        int32_t *begin = id;
        id = st_live_copy_lane(&r->live, r->live.row_slot[row], group, id);
        for (; at < e->count && e->row[at] == row; at++)
            id = copy_ids(&s->blocks[group], row, e->from[at], e->to[at], id, &low);
        if (id > begin) {
            *pair++ = row;
            *pair++ = (int32_t)(id - begin);
        }
    }
    *to = (uint8_t *)id;
    return low >= 0;
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
        const struct st_step_entries *e = &r->entries[g];
        int32_t *cells = st_live_row_cells(&r->live, g);
        for (int32_t i = 0; s->blocks[g].table && i < e->count; i++)
            cells[e->row[i]] = s->blocks[g].row_cell_count[e->row[i]];
    }
}

/* Keeps the ids of a step that found no room; those of tables are there still in the next. */
static int carry(struct steptape_recorder *r, const struct steptape_step *s) {
    for (int32_t g = 0; g < r->group_count; g++) {
        const struct steptape_step_blocks *b = &s->blocks[g];
        const struct st_step_entries *e = &r->entries[g];
        for (int32_t i = 0; !b->table && i < e->count; i++)
            if (!st_live_carry(&r->live, r->live.row_slot[e->row[i]], g, b->block_id + e->from[i],
                               e->to[i] - e->from[i]))
                return st_recorder_turn_off(
                    r, STEPTAPE_RECORDER_ERR_OFF,
                    "step %" PRIu64 ": so many steps were dropped that their block ids found no "
                    "room; a larger ring holds more",
                    r->sequence);
    }
    r->dropped++;
    store(&r->ring.head->counters.dropped, r->dropped);
    return STEPTAPE_RECORDER_DROPPED;
}

struct measure {
    struct lists lists;
    bool gathered; /* steps were dropped before: lists and ids come from the live requests */
    int64_t rows[ST_MAX_GROUPS], ids[ST_MAX_GROUPS];
    size_t check_size;
    uint64_t size;
};

static int measure(struct steptape_recorder *r, const struct steptape_step *s, bool pending,
                   struct measure *m) {
    m->gathered = pending;
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
        m->rows[g] = r->entries[g].count;
        if (m->gathered)
            measure_carried(r, s, g, &m->rows[g], &m->ids[g]);
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
    uint8_t *begin = to, *end = to + m->size;
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
        if (m->gathered ? !put_carried_group(r, s, g, m->rows[g], m->ids[g], &to)
                        : !put_group(r, s, g, m->ids[g], &to))
            return fault(r, "a block id is negative");
    to = put(to, s->check_json, m->check_size);
    memset(to, 0, (size_t)(end - to));
    st_ring_publish(&r->ring, m->size,
                    XXH3_64bits(begin + ST_RING_HASHED_FROM, m->size - ST_RING_HASHED_FROM));
    return 0;
}

int ST_TAKE_STEP(struct steptape_recorder *r, const struct steptape_step *s) {
    struct st_ring_counters *counters = &r->ring.head->counters;
    const char *what = find_fault(r, s);
    if (what)
        return fault(r, what);
    for (int32_t g = 0; g < s->group_count; g++)
        r->live.has_tables |= s->blocks[g].table != NULL;
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
