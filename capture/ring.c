/* SPDX-License-Identifier: Apache-2.0 */
#include "capture/ring.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <xxhash.h>

static const char magic[8] = {'S', 't', 'T', 'p', 'R', 'i', 'n', 'g'};

#define BYTE_ORDER_MARK 0x01020304u
#define REWIND_BYTES ((uint64_t)256 << 10)
#define ROW_LIMIT (1 << 24) /* of any list in a record */

/* ---- classes of cost */

/* The largest ns of a class. */
static int64_t cost_limit(int class) {
    if (class < 8)
        return class;
    int power = class / 8 + 2;
    return (((int64_t)(class & 7) + 9) << (power - 3)) - 1;
}

int64_t st_ring_cost_quantile(const struct st_ring_head *head, double share) {
    uint64_t total = 0, seen = 0;
    for (int c = 0; c < ST_RING_COST_CLASSES; c++)
        total += atomic_load_explicit(&head->cost_class[c], memory_order_relaxed) & INT64_MAX >> 9;
    if (!total)
        return ST_UNKNOWN;
    for (int c = 0; c < ST_RING_COST_CLASSES; c++) {
        seen += atomic_load_explicit(&head->cost_class[c], memory_order_relaxed) & INT64_MAX >> 9;
        if ((double)seen >= share * (double)total) {
            uint64_t most = atomic_load_explicit(&head->counters.cost_max_ns, memory_order_relaxed);
            int64_t limit = cost_limit(c);
            return most < (uint64_t)limit ? (int64_t)most : limit; /* no class reaches beyond it */
        }
    }
    return cost_limit(ST_RING_COST_CLASSES - 1);
}

/* ---- making one */

static void fill_head(struct st_ring_head *head, const char *text, uint64_t text_size,
                      uint64_t data_at, uint64_t capacity) {
    memcpy(head->magic, magic, sizeof magic);
    head->version = ST_RING_VERSION;
    head->byte_order = BYTE_ORDER_MARK;
    head->text_at = ST_RING_HEAD_BYTES;
    head->text_size = text_size;
    head->note_at = data_at - ST_RING_NOTE_BYTES;
    head->note_capacity = ST_RING_NOTE_BYTES;
    head->data_at = data_at;
    head->data_capacity = capacity;
    head->text_hash = XXH3_64bits(text, text_size);
    memcpy((uint8_t *)head + ST_RING_HEAD_BYTES, text, text_size);
}

int st_ring_create(struct st_ring *ring, int fd, const char *path, const char *text,
                   int64_t data_bytes, struct st_error *err) {
    memset(ring, 0, sizeof *ring);
    size_t text_size = strlen(text);
    if (text_size > ST_RING_TEXT_LIMIT)
        return ST_FAIL(err, ST_ERR_INPUT, "the header has %zu bytes, at most %d expected",
                       text_size, ST_RING_TEXT_LIMIT);
    uint64_t page = 4096, capacity = ((uint64_t)data_bytes + page - 1) / page * page;
    uint64_t data_at = ST_RING_HEAD_BYTES + (text_size + page - 1) / page * page;
    data_at += ST_RING_NOTE_BYTES;
    size_t size = data_at + capacity;
    /* A page without a block on the disk would end the engine with SIGBUS when the disk is full. */
    int native = posix_fallocate(fd, 0, (off_t)size);
    if (native)
        return ST_FAIL_NATIVE(err, ST_ERR_IO, native, "%s: %zu bytes cannot be reserved: %s", path,
                              size, strerror(native));
    void *map = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, fd, 0);
    if (map == MAP_FAILED)
        return ST_FAIL_NATIVE(err, ST_ERR_IO, errno, "%s: cannot be mapped: %s", path,
                              strerror(errno));
    /* Written to once, so that the first round costs the engine no page fault either. */
    for (size_t at = 0; at < size; at += page)
        ((volatile uint8_t *)map)[at] = 0;
    ring->map = map;
    ring->size = size;
    ring->head = map;
    ring->data = (uint8_t *)map + data_at;
    ring->capacity = capacity;
    fill_head(ring->head, text, text_size, data_at, capacity);
    return ST_OK;
}

void st_ring_unmap(struct st_ring *ring) {
    if (ring->map)
        munmap(ring->map, ring->size);
    memset(ring, 0, sizeof *ring);
}

/* ---- the producer's side */

static void put_pad(struct st_ring *ring, uint64_t size) {
    struct st_ring_record *pad = (void *)(ring->data + ring->position % ring->capacity);
    /* Its size and kind are all that is read of it: there may be no room for more. */
    pad->size = (uint32_t)size;
    pad->kind = ST_RING_PAD;
    ring->position += size;
}

/* Once the writer has everything, the ring begins anew at its first page: a recording that it keeps
 * up with stays within pages that are in the cache and that the disk's flusher seldom sees. */
static void rewind_when_empty(struct st_ring *ring, uint64_t size) {
    uint64_t offset = ring->position % ring->capacity;
    if (offset < REWIND_BYTES || size > offset)
        return;
    ring->tail = atomic_load_explicit(&ring->head->tail, memory_order_acquire);
    if (ring->tail == ring->position)
        put_pad(ring, ring->capacity - offset);
}

static uint64_t room(const struct st_ring *ring) {
    return ring->capacity - (ring->position - ring->tail);
}

uint8_t *st_ring_reserve(struct st_ring *ring, uint64_t size) {
    rewind_when_empty(ring, size);
    uint64_t offset = ring->position % ring->capacity, left = ring->capacity - offset;
    uint64_t need = size <= left ? size : left + size;
    if (room(ring) < need) {
        ring->tail = atomic_load_explicit(&ring->head->tail, memory_order_acquire);
        if (room(ring) < need)
            return NULL;
    }
    if (size > left) {
        put_pad(ring, left);
        offset = 0;
    }
    return ring->data + offset;
}

void st_ring_publish(struct st_ring *ring, uint64_t size, uint64_t hash) {
    struct st_ring_record *record = (void *)(ring->data + ring->position % ring->capacity);
    record->hash = hash;
    ring->position += size;
    atomic_store_explicit(&ring->head->counters.head, ring->position, memory_order_release);
}

/* ---- the consumer's side */

int st_ring_next(struct st_ring_view *view, const struct st_ring_record **found,
                 struct st_error *err) {
    while (view->position < view->end) {
        uint64_t offset = view->position % view->capacity, left = view->capacity - offset;
        if (left > view->end - view->position)
            left = view->end - view->position;
        const struct st_ring_record *record = (const void *)(view->data + offset);
        if (left < 8 || record->size % 8 || record->size < 8 || record->size > left)
            return ST_FAIL(err, ST_ERR_CORRUPT, "record at %" PRIu64 ": its size is damaged",
                           view->position);
        if (record->kind == ST_RING_PAD) {
            view->position += record->size;
            continue;
        }
        if (record->kind != ST_RING_STEP || record->size < sizeof *record)
            return ST_FAIL(err, ST_ERR_CORRUPT, "record at %" PRIu64 ": its kind is damaged",
                           view->position);
        if (XXH3_64bits((const uint8_t *)record + ST_RING_HASHED_FROM,
                        record->size - ST_RING_HASHED_FROM) != record->hash)
            return ST_FAIL(err, ST_ERR_CORRUPT, "record at %" PRIu64 ": its content is damaged",
                           view->position);
        view->position += record->size;
        *found = record;
        return ST_OK;
    }
    return ST_DONE;
}

/* Bytes of a record that are still to be read. */
struct part {
    const uint8_t *at;
    uint64_t left;
    bool bad;
};

/* count values of size bytes, or NULL and bad. */
static const void *take(struct part *part, int64_t count, size_t size) {
    if (part->bad || count < 0 || count > ROW_LIMIT * 4LL || (uint64_t)count * size > part->left) {
        part->bad = true;
        return NULL;
    }
    const void *at = part->at;
    part->at += (uint64_t)count * size;
    part->left -= (uint64_t)count * size;
    return at;
}

static struct st_request_list take_list(struct part *part, int32_t count) {
    struct st_request_list list = {count, take(part, count < 0 ? 0 : count, sizeof(int64_t))};
    return list;
}

static int reserve(int32_t **memory, size_t *capacity, size_t count, struct st_error *err) {
    if (count <= *capacity)
        return ST_OK;
    int32_t *grown = realloc(*memory, 2 * count * sizeof *grown);
    if (!grown)
        return ST_FAIL_NOMEM(err);
    *memory = grown;
    *capacity = 2 * count;
    return ST_OK;
}

/* Sums up the counts of rows that stand in at[row + 1]: where each row's ids begin. */
static void sum_up(int32_t *at, int32_t rows) {
    at[0] = 0;
    for (int32_t row = 0; row < rows; row++)
        at[row + 1] += at[row];
}

/* The runs of ids of a group by row: offsets of all rows, and ids, which are moved into `sorted`
 * unless they lie in order. */
static bool take_group(struct part *part, int32_t rows, int32_t *offset, int32_t *sorted,
                       struct st_row_blocks *blocks) {
    const uint32_t *counts = take(part, 2, sizeof *counts);
    if (!counts || counts[0] > (uint32_t)rows || counts[1] > INT32_MAX)
        return false;
    const int32_t *run = take(part, (int64_t)counts[0] * 2, sizeof *run);
    const int32_t *id = take(part, counts[1], sizeof *id);
    if (!run || !id)
        return false;
    int64_t total = 0;
    bool ordered = true;
    memset(offset, 0, ((size_t)rows + 1) * sizeof *offset);
    for (uint32_t i = 0; i < counts[0]; i++) {
        int32_t row = run[2 * i], count = run[2 * i + 1];
        total += count;
        if (row < 0 || row >= rows || count < 1 || total > counts[1])
            return false;
        offset[row + 1] += count;
        ordered &= !i || row >= run[2 * i - 2];
    }
    if (total != counts[1])
        return false;
    sum_up(offset, rows);
    *blocks = (struct st_row_blocks){offset, ordered ? id : sorted};
    for (uint32_t i = 0; !ordered && i < counts[0]; i++) {
        int32_t *at = &offset[run[2 * i]];
        size_t size = (size_t)run[2 * i + 1];
        memcpy(sorted + *at, id, size * sizeof *id);
        *at += (int32_t)size; /* now where the next row begins, which the shift takes back */
        id += size;
    }
    if (!ordered) {
        memmove(offset + 1, offset, (size_t)rows * sizeof *offset);
        offset[0] = 0;
    }
    return true;
}

static int take_check(struct part *part, uint32_t size, struct st_ring_scratch *scratch,
                      const char **check_json, struct st_error *err) {
    const char *text = take(part, size, 1);
    *check_json = NULL;
    if (!text || !size)
        return ST_OK;
    if (memchr(text, 0, size)) {
        part->bad = true;
        return ST_OK;
    }
    if (size >= scratch->check_capacity) {
        char *grown = realloc(scratch->check_json, (size_t)size * 2 + 1);
        if (!grown)
            return ST_FAIL_NOMEM(err);
        scratch->check_json = grown;
        scratch->check_capacity = (size_t)size * 2 + 1;
    }
    memcpy(scratch->check_json, text, size);
    scratch->check_json[size] = 0;
    *check_json = scratch->check_json;
    return ST_OK;
}

int st_ring_decode(const struct st_ring_record *r, int32_t group_count,
                   struct st_ring_scratch *scratch, struct st_step *step, const char **check_json,
                   struct st_error *err) {
    struct part part = {(const uint8_t *)(r + 1), r->size - sizeof *r, false};
    int32_t rows = r->request_count;
    if (rows < 0 || rows > ROW_LIMIT || r->group_count != group_count || r->new_count < 0 ||
        r->finished_count < 0 || r->preempted_count < 0 || r->resumed_count < 0 ||
        r->replaced_count < -1 || r->graph_mode < -1 || r->graph_mode > ST_GRAPH_MODE_FULL ||
        r->cpu_starts < -1 || r->cpu_starts > 1)
        return ST_FAIL(err, ST_ERR_CORRUPT, "record of step %" PRIu64 ": a count is damaged",
                       r->sequence);
    memset(step, 0, sizeof *step);
    step->start_ns = r->start_ns;
    step->duration_ns = r->duration_ns;
    step->padded_token_count = r->padded_token_count;
    step->padded_request_count = r->padded_request_count;
    step->zeroed = r->zeroed_count;
    step->graph_mode = (enum st_graph_mode)r->graph_mode;
    step->cpu_starts = (int8_t)r->cpu_starts;
    step->request_count = rows;
    step->request_id = take(&part, rows, sizeof(int64_t));
    step->new_requests = take_list(&part, r->new_count);
    step->finished = take_list(&part, r->finished_count);
    step->preempted = take_list(&part, r->preempted_count);
    step->resumed = take_list(&part, r->resumed_count);
    step->replaced = take_list(&part, r->replaced_count);
    step->query_len = take(&part, rows, sizeof(int32_t));
    step->num_computed_tokens = take(&part, rows, sizeof(int32_t));
    step->draft = r->has_draft ? take(&part, rows, sizeof(int32_t)) : NULL;
    step->new_prompt_len = take(&part, r->new_count, sizeof(int32_t));
    ST_TRY(reserve(&scratch->offsets, &scratch->offset_capacity,
                   ((size_t)rows + 1) * (size_t)group_count, err));
    ST_TRY(reserve(&scratch->ids, &scratch->id_capacity, r->size / sizeof(int32_t), err));
    int32_t *sorted = scratch->ids;
    for (int32_t g = 0; g < group_count && !part.bad; g++) {
        int32_t *offset = scratch->offsets + (size_t)g * ((size_t)rows + 1);
        if (take_group(&part, rows, offset, sorted, &scratch->blocks[g]))
            sorted += offset[rows];
        else
            part.bad = true;
    }
    ST_TRY(take_check(&part, r->check_size, scratch, check_json, err));
    if (part.bad || part.left >= 8)
        return ST_FAIL(err, ST_ERR_CORRUPT, "record of step %" PRIu64 ": its lists are damaged",
                       r->sequence);
    for (int32_t i = 0; i < rows; i++)
        step->token_count += step->query_len[i];
    step->group_count = group_count;
    step->blocks = scratch->blocks;
    return ST_OK;
}

void st_ring_scratch_fini(struct st_ring_scratch *scratch) {
    free(scratch->offsets);
    free(scratch->ids);
    free(scratch->check_json);
    memset(scratch, 0, sizeof *scratch);
}

/* ---- notes */

struct note_head {
    uint64_t sequence;
    uint32_t key_size, value_size;
};

static uint64_t padded(uint64_t size) {
    return (size + 7) & ~(uint64_t)7;
}

bool st_ring_put_note(struct st_ring *ring, uint64_t sequence, const char *key, const char *value) {
    struct st_ring_counters *counters = &ring->head->counters;
    size_t key_size = strlen(key), value_size = strlen(value);
    uint64_t used = atomic_load_explicit(&counters->note_size, memory_order_relaxed);
    uint64_t need = padded(sizeof(struct note_head) + key_size + value_size);
    if (need > ST_RING_NOTE_BYTES - used) {
        atomic_fetch_add_explicit(&counters->note_lost, 1, memory_order_relaxed);
        return false;
    }
    uint8_t *to = ring->map + ring->head->note_at + used;
    struct note_head head = {sequence, (uint32_t)key_size, (uint32_t)value_size};
    memcpy(to, &head, sizeof head);
    memcpy(to + sizeof head, key, key_size);
    memcpy(to + sizeof head + key_size, value, value_size);
    atomic_store_explicit(&counters->note_size, used + need, memory_order_release);
    return true;
}

bool st_ring_next_note(const uint8_t *notes, uint64_t size, uint64_t *at,
                       struct st_ring_note *note) {
    struct note_head head;
    if (*at > size || size - *at < sizeof head)
        return false;
    memcpy(&head, notes + *at, sizeof head);
    uint64_t need = padded(sizeof head + (uint64_t)head.key_size + head.value_size);
    if (need > size - *at || head.sequence > INT64_MAX)
        return false;
    const char *text = (const char *)notes + *at + sizeof head;
    *note = (struct st_ring_note){(int64_t)head.sequence, text, text + head.key_size, head.key_size,
                                  head.value_size};
    *at += need;
    return true;
}

/* ---- a file's bytes */

static bool inside(uint64_t at, uint64_t length, uint64_t size) {
    return at <= size && length <= size - at;
}

int st_ring_open_bytes(const char *name, const void *bytes, size_t size, struct st_ring_file *file,
                       struct st_error *err) {
    const struct st_ring_head *head = bytes;
    if (size < sizeof *head || memcmp(head->magic, magic, sizeof magic) != 0)
        return ST_FAIL(err, ST_ERR_INPUT, "%s: not the ring of a recorder", name);
    if (head->version < 1 || head->version > ST_RING_VERSION)
        return ST_FAIL(err, ST_ERR_VERSION,
                       "%s: a ring of version %u, this steptape reads up to version %d", name,
                       head->version, ST_RING_VERSION);
    if (head->byte_order != BYTE_ORDER_MARK)
        return ST_FAIL(err, ST_ERR_INPUT, "%s: a ring of a machine with another byte order", name);
    uint64_t end = atomic_load_explicit(&head->counters.head, memory_order_relaxed);
    uint64_t tail = atomic_load_explicit(&head->tail, memory_order_relaxed);
    uint64_t note_size = atomic_load_explicit(&head->counters.note_size, memory_order_relaxed);
    if (!inside(head->text_at, head->text_size, size) || head->text_size > ST_RING_TEXT_LIMIT ||
        !inside(head->note_at, head->note_capacity, size) || note_size > head->note_capacity ||
        !inside(head->data_at, head->data_capacity, size) || head->data_at % 8 ||
        head->data_capacity % 8 || head->data_capacity == 0 || end % 8 || tail % 8 || tail > end ||
        end - tail > head->data_capacity)
        return ST_FAIL(err, ST_ERR_CORRUPT, "%s: the ring's head is damaged", name);
    const uint8_t *base = bytes;
    if (XXH3_64bits(base + head->text_at, head->text_size) != head->text_hash)
        return ST_FAIL(err, ST_ERR_CORRUPT, "%s: the recording's header is damaged", name);
    *file = (struct st_ring_file){
        .head = head,
        .text = (const char *)base + head->text_at,
        .notes = base + head->note_at,
        .note_size = note_size,
        .view = {base + head->data_at, head->data_capacity, tail, end},
    };
    return ST_OK;
}
