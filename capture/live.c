/* SPDX-License-Identifier: Apache-2.0 */
#include "capture/live.h"

#include <string.h>
#include <sys/mman.h>

#include "traces/base/error.h"

/* ---- memory: one mapping, cut into arrays */

struct cutter {
    uint8_t *base; /* NULL: only measure */
    size_t at;
};

static void *cut(struct cutter *c, size_t count, size_t size) {
    void *p = c->base ? c->base + c->at : NULL;
    c->at += (count * size + 63) & ~(size_t)63;
    return p;
}

static void lay_out(struct st_live *live, struct cutter *c) {
    size_t n = (size_t)live->capacity, groups = (size_t)live->group_count;
    live->slot = cut(c, n, sizeof *live->slot);
    live->cells = cut(c, n * groups, sizeof *live->cells);
    live->index = cut(c, (size_t)live->mask + 1, sizeof *live->index);
    live->dirty = cut(c, 2 * n, sizeof *live->dirty);
    live->row_id = cut(c, n, sizeof *live->row_id);
    live->row_slot = cut(c, n, sizeof *live->row_slot);
    live->row_cell = cut(c, n * groups, sizeof *live->row_cell);
    live->changed = cut(c, n, sizeof *live->changed);
    live->lane = cut(c, n * groups, sizeof *live->lane);
    live->chunk = cut(c, (size_t)live->chunk_capacity, sizeof *live->chunk);
}

int st_live_init(struct st_live *live, int32_t capacity, int32_t group_count, size_t lane_bytes,
                 struct st_error *err) {
    memset(live, 0, sizeof *live);
    live->capacity = capacity;
    live->group_count = group_count;
    live->chunk_capacity = (int32_t)(lane_bytes / sizeof *live->chunk);
    uint32_t slots = 64;
    while (slots < 2 * (uint32_t)capacity)
        slots *= 2;
    live->mask = slots - 1;
    struct cutter measure = {NULL, 0};
    lay_out(live, &measure);
    void *memory = mmap(NULL, measure.at, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
    if (memory == MAP_FAILED) {
        memset(live, 0, sizeof *live);
        return ST_FAIL_NOMEM(err);
    }
    live->memory = memory;
    live->memory_size = measure.at;
    struct cutter c = {memory, 0};
    lay_out(live, &c);
    for (int32_t i = 0; i < capacity; i++)
        live->slot[i].next_free = i + 1 < capacity ? i + 1 : -1;
    for (int32_t i = 0; i < live->chunk_capacity; i++)
        live->chunk[i].next = i + 1 < live->chunk_capacity ? i + 1 : -1;
    live->free_chunk = live->chunk_capacity ? 0 : -1;
    memset(live->index, 0xff, slots * sizeof *live->index);
    return ST_OK;
}

void st_live_fini(struct st_live *live) {
    if (live->memory)
        munmap(live->memory, live->memory_size);
    memset(live, 0, sizeof *live);
}

/* ---- requests by number */

/* Numbers given one after another lie side by side, as the rows of a batch mostly are: 256 of them
 * in 16 lines of cache. */
static uint32_t home(const struct st_live *live, int64_t request_id) {
    uint64_t x = ((uint64_t)request_id >> 8) * UINT64_C(0x9e3779b97f4a7c15);
    return ((uint32_t)(x >> 32) + (uint32_t)request_id) & live->mask;
}

/* Slot of a request, or -1. */
static int32_t find(const struct st_live *live, int64_t request_id) {
    for (uint32_t i = home(live, request_id);; i = (i + 1) & live->mask) {
        int32_t slot = live->index[i];
        if (slot < 0 || live->slot[slot].request_id == request_id)
            return slot;
    }
}

static void put_index(struct st_live *live, int32_t slot) {
    uint32_t i = home(live, live->slot[slot].request_id);
    while (live->index[i] >= 0)
        i = (i + 1) & live->mask;
    live->index[i] = slot;
}

/* Takes it out and moves up what was pushed on behind it. */
static void drop_index(struct st_live *live, int32_t slot) {
    uint32_t i = home(live, live->slot[slot].request_id);
    while (live->index[i] != slot)
        i = (i + 1) & live->mask;
    uint32_t hole = i;
    for (;;) {
        i = (i + 1) & live->mask;
        int32_t next = live->index[i];
        if (next < 0)
            break;
        uint32_t want = home(live, live->slot[next].request_id);
        if (((i - want) & live->mask) >= ((i - hole) & live->mask)) {
            live->index[hole] = next;
            hole = i;
        }
    }
    live->index[hole] = -1;
}

/* ---- rows */

static void save_row(struct st_live *live, int32_t row) {
    int32_t slot = live->row_slot[row];
    if (slot < 0)
        return;
    int32_t *cells = live->cells + (int64_t)slot * live->group_count;
    for (int32_t g = 0; live->has_tables && g < live->group_count; g++)
        cells[g] = st_live_row_cells(live, g)[row];
    live->slot[slot].row = -1;
    live->row_slot[row] = -1;
}

/* Its row, when it has one, is looked up anew with the next batch. */
static void leave_row(struct st_live *live, struct st_live_request *r) {
    int32_t row = r->row;
    if (row < 0)
        return;
    save_row(live, row);
    live->row_id[row] = -1;
}

static const char *load_row(struct st_live *live, int32_t row, int64_t request_id) {
    int32_t slot = request_id < 0 ? -1 : find(live, request_id);
    if (slot < 0 || live->slot[slot].engine != ST_LIVE_RUNNING)
        return "is in the batch but not running: neither new nor resumed";
    if (live->slot[slot].row >= 0)
        return "stands twice in one batch";
    const int32_t *cells = live->cells + (int64_t)slot * live->group_count;
    for (int32_t g = 0; live->has_tables && g < live->group_count; g++)
        st_live_row_cells(live, g)[row] = cells[g];
    live->slot[slot].row = row;
    live->row_slot[row] = slot;
    live->row_id[row] = request_id;
    return NULL;
}

enum { STRIDE = 8 };

const char *st_live_set_batch(struct st_live *live, const int64_t *request_id, int32_t count,
                              int32_t *bad) {
    int32_t changed = 0, common = count < live->row_count ? count : live->row_count, row = 0;
    for (; row + STRIDE <= common; row += STRIDE) {
        uint64_t difference = 0;
        for (int k = 0; k < STRIDE; k++)
            difference |= (uint64_t)(live->row_id[row + k] ^ request_id[row + k]);
        for (int k = 0; difference && k < STRIDE; k++)
            if (live->row_id[row + k] != request_id[row + k])
                live->changed[changed++] = row + k;
    }
    for (; row < count; row++)
        if (row >= common || live->row_id[row] != request_id[row])
            live->changed[changed++] = row;
    /* All that move are saved before one is loaded: they may change places. */
    for (row = count; row < live->row_count; row++)
        save_row(live, row);
    for (int32_t i = 0; i < changed && live->changed[i] < common; i++)
        save_row(live, live->changed[i]);
    for (int32_t i = 0; i < changed; i++) {
        row = live->changed[i];
        live->row_slot[row] = -1;
        const char *fault = load_row(live, row, request_id[row]);
        if (fault) {
            *bad = row;
            return fault;
        }
    }
    live->row_count = count;
    return NULL;
}

/* ---- the lane */

enum { CHUNK_IDS = sizeof((struct st_live_chunk *)0)->id / sizeof(int32_t) };

static void free_lanes(struct st_live *live, int32_t slot) {
    if (!live->slot[slot].carried)
        return;
    live->slot[slot].carried = false;
    for (int32_t g = 0; g < live->group_count; g++) {
        struct st_live_lane *lane = &live->lane[(int64_t)slot * live->group_count + g];
        if (lane->count) {
            live->chunk[lane->last].next = live->free_chunk;
            live->free_chunk = lane->first;
            lane->count = 0;
        }
    }
}

int32_t *st_live_copy_lane(const struct st_live *live, int32_t slot, int32_t group, int32_t *to) {
    const struct st_live_lane *lane = st_live_lane(live, slot, group);
    int32_t at = lane->first;
    for (int32_t left = lane->count; left > 0; left -= CHUNK_IDS) {
        int32_t count = left < CHUNK_IDS ? left : CHUNK_IDS;
        memcpy(to, live->chunk[at].id, (size_t)count * sizeof *to);
        to += count;
        at = live->chunk[at].next;
    }
    return to;
}

/* ---- what a step brings */

static void compact_dirty(struct st_live *live) {
    int32_t kept = 0;
    for (int32_t i = 0; i < live->dirty_count; i++) {
        int32_t slot = live->dirty[i];
        if (slot < 0)
            continue;
        live->slot[slot].dirty_at = kept;
        live->dirty[kept++] = slot;
    }
    live->dirty_count = kept;
}

static void mark_dirty(struct st_live *live, int32_t slot) {
    if (live->slot[slot].dirty_at >= 0)
        return;
    if (live->dirty_count == 2 * live->capacity)
        compact_dirty(live);
    live->slot[slot].dirty_at = live->dirty_count;
    live->dirty[live->dirty_count++] = slot;
    live->dirty_live++;
}

static void clear_dirty(struct st_live *live, int32_t slot) {
    if (live->slot[slot].dirty_at < 0)
        return;
    live->dirty[live->slot[slot].dirty_at] = -1;
    live->slot[slot].dirty_at = -1;
    if (--live->dirty_live == 0)
        live->dirty_count = 0;
}

static void free_slot(struct st_live *live, int32_t slot) {
    clear_dirty(live, slot);
    live->slot[slot].next_free = live->free_slot;
    live->free_slot = slot;
}

const char *st_live_finish(struct st_live *live, int64_t request_id) {
    if (request_id < 0)
        return "has a negative number";
    int32_t slot = find(live, request_id);
    if (slot < 0)
        return NULL; /* aborted while it waited for its first step, or the writer refuses it */
    struct st_live_request *r = &live->slot[slot];
    leave_row(live, r);
    drop_index(live, slot);
    free_lanes(live, slot);
    r->engine = ST_LIVE_FINISHED;
    if (r->tape == ST_LIVE_ABSENT)
        free_slot(live, slot);
    else
        mark_dirty(live, slot);
    return NULL;
}

const char *st_live_preempt(struct st_live *live, int64_t request_id) {
    if (request_id < 0)
        return "has a negative number";
    int32_t slot = find(live, request_id);
    if (slot < 0 || live->slot[slot].engine != ST_LIVE_RUNNING)
        return NULL; /* it has finished in this step, or the writer refuses it
                        (traces/interchange/rules.h) */
    leave_row(live, &live->slot[slot]);
    live->slot[slot].engine = ST_LIVE_WAITING;
    mark_dirty(live, slot);
    return NULL;
}

const char *st_live_resume(struct st_live *live, int64_t request_id) {
    int32_t slot = find(live, request_id);
    if (slot < 0 || live->slot[slot].engine != ST_LIVE_WAITING)
        return "is resumed but was not preempted";
    live->slot[slot].engine = ST_LIVE_RUNNING;
    mark_dirty(live, slot);
    return NULL;
}

const char *st_live_add(struct st_live *live, int64_t request_id, int32_t prompt_len) {
    if (request_id < 0)
        return "has a negative number";
    if (find(live, request_id) >= 0)
        return "is new but already known";
    int32_t slot = live->free_slot;
    if (slot < 0)
        return "is one more than the recorder has room for: give more max_requests";
    struct st_live_request *r = &live->slot[slot];
    live->free_slot = r->next_free;
    *r = (struct st_live_request){.request_id = request_id,
                                  .prompt_len = prompt_len,
                                  .engine = ST_LIVE_RUNNING,
                                  .tape = ST_LIVE_ABSENT,
                                  .row = -1,
                                  .dirty_at = -1,
                                  .next_free = -1};
    memset(live->cells + (int64_t)slot * live->group_count, 0,
           (size_t)live->group_count * sizeof *live->cells);
    put_index(live, slot);
    mark_dirty(live, slot);
    return NULL;
}

const char *st_live_replace(struct st_live *live, int64_t request_id) {
    int32_t slot = find(live, request_id);
    if (slot < 0)
        return "gets a new table but is not known";
    struct st_live_request *r = &live->slot[slot];
    leave_row(live, r);
    free_lanes(live, slot);
    memset(live->cells + (int64_t)slot * live->group_count, 0,
           (size_t)live->group_count * sizeof *live->cells);
    r->replace = r->tape != ST_LIVE_ABSENT; /* what is not on the tape has no table there */
    mark_dirty(live, slot);
    return NULL;
}

bool st_live_carry(struct st_live *live, int32_t slot, int32_t group, const int32_t *id,
                   int32_t count) {
    struct st_live_lane *lane = &live->lane[(int64_t)slot * live->group_count + group];
    mark_dirty(live, slot);
    live->slot[slot].carried = true;
    while (count > 0) {
        int32_t used = lane->count % CHUNK_IDS;
        if (used == 0) {
            int32_t at = live->free_chunk;
            if (at < 0)
                return false;
            live->free_chunk = live->chunk[at].next;
            if (lane->count)
                live->chunk[lane->last].next = at;
            else
                lane->first = at;
            lane->last = at;
        }
        int32_t room = CHUNK_IDS - used < count ? CHUNK_IDS - used : count;
        memcpy(live->chunk[lane->last].id + used, id, (size_t)room * sizeof *id);
        lane->count += room;
        id += room;
        count -= room;
    }
    return true;
}

void st_live_settle(struct st_live *live, bool all) {
    for (int32_t i = 0; i < live->dirty_count; i++) {
        int32_t slot = live->dirty[i];
        if (slot < 0)
            continue;
        struct st_live_request *r = &live->slot[slot];
        if (r->engine == ST_LIVE_FINISHED) {
            free_slot(live, slot);
            continue;
        }
        bool in_batch = all || r->row >= 0;
        if (in_batch) {
            r->replace = false;
            free_lanes(live, slot);
        }
        if (in_batch || (r->tape == ST_LIVE_RUNNING && r->engine == ST_LIVE_WAITING))
            r->tape = r->engine;
        if (r->tape == r->engine && !r->replace && !r->carried)
            clear_dirty(live, slot);
    }
}
