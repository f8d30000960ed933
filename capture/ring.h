/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The ring: a file that the engine's thread writes and the writer thread empties, mapped by both.
 *
 * Layout, version 1 (little-endian; offsets in bytes from the start of the file):
 *
 *     0                 struct st_ring_head, ST_RING_HEAD_BYTES
 *     head.text_at      the header of the recording, JSON text, head.text_size bytes, no NUL
 *     head.note_at      notes, head.note_capacity bytes; used: head.note_size.  A note is
 *                       u64 sequence, u32 bytes of key, u32 bytes of value, key, value, padded to 8
 *     head.data_at      records, head.data_capacity bytes, a multiple of 8
 *
 * Positions (`head`, `tail`) only grow; a record at position p lies at data_at + p % data_capacity.
 * It never wraps: what is left before the end is filled by a record of kind ST_RING_PAD.  Records
 * from tail to head are whole; the writer moves tail once they are committed to the unfinished
 * tape. Whoever was killed in the middle of a record has not moved head: it is not there.
 *
 * A record (struct st_ring_record, then arrays back to back):
 *
 *     i64 request_id[request_count], new[new_count], finished[], preempted[], resumed[],
 *         replaced[replaced_count, none for -1]
 *     i32 query_len[request_count], num_computed_tokens[request_count],
 *         draft[request_count] if has_draft, new_prompt_len[new_count]
 *     for each group: u32 runs, u32 ids; runs times (i32 row, i32 count), rows in any order and
 *         perhaps again (version 1: ascending), counts at least 1 and adding up to ids;
 *         i32 block_id[ids], run after run
 *     check object, check_size bytes of JSON text
 *     zero bytes up to a multiple of 8
 *
 * Threads: one producer, one consumer.  Everything behind `head` belongs to the consumer,
 * everything else to the producer.  The reading side takes no byte on trust: the file may come from
 * anywhere.
 */
#ifndef ST_CAPTURE_RING_H
#define ST_CAPTURE_RING_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "traces/base/error.h"
#include "traces/format/step.h"

#define ST_RING_VERSION 2
#define ST_RING_HEAD_BYTES 4096
#define ST_RING_MIN_BYTES ((int64_t)1 << 20)
#define ST_RING_MAX_BYTES ((int64_t)1 << 30)
#define ST_RING_NOTE_BYTES 65536
#define ST_RING_TEXT_LIMIT (1 << 20) /* of the header's JSON text */
#define ST_RING_COST_CLASSES 256

enum { ST_RING_STEP = 1, ST_RING_PAD = 2 };

/* What the producer counts.  One writer each, so plain loads and stores that are atomic do. */
struct st_ring_counters {
    _Atomic uint64_t head;     /* end of the last whole record */
    _Atomic uint64_t begun;    /* steps offered, the one being copied included */
    _Atomic uint64_t sequence; /* steps offered and handled */
    _Atomic uint64_t recorded, dropped, bytes;
    _Atomic uint64_t cost_sum_ns, cost_max_ns;
    _Atomic uint64_t note_size; /* bytes of notes, whole ones */
    _Atomic uint64_t note_lost; /* notes that found no room */
    _Atomic uint32_t off;       /* no more steps: reason says why */
    char reason[256];           /* set before off; NUL-terminated */
};

struct st_ring_head {
    char magic[8]; /* "StTpRing" */
    uint32_t version;
    uint32_t byte_order; /* 0x01020304 */
    uint64_t text_at, text_size;
    uint64_t note_at, note_capacity;
    uint64_t data_at, data_capacity;
    int64_t pid;         /* of the engine */
    int64_t pid_started; /* when it started, in ticks since boot (proc(5), field 22); 0 unknown */
    uint64_t pid_space;  /* inode of its pid namespace; 0 unknown */
    char boot_id[40];    /* of the machine's boot; "" unknown */
    int64_t clock_monotonic_ns, clock_realtime_ns; /* the same moment, at open */
    uint64_t text_hash;                            /* XXH3-64 of the text */
    uint8_t reserved[512 - 152];

    /* 512: the producer's */
    struct st_ring_counters counters;
    uint8_t reserved2[1024 - sizeof(struct st_ring_counters)];

    /* 1536: the consumer's */
    _Atomic uint64_t tail;      /* everything before it is committed */
    _Atomic uint64_t committed; /* steps in the unfinished tape */
    _Atomic uint32_t failed;    /* the writer has stopped: failure says why */
    _Atomic uint32_t finished;  /* the unfinished tape is sealed; when it is gone it is the tape */
    char failure[256];
    uint8_t reserved3[512 - 280];

    /* 2048: how often a step cost the engine's thread so much (st_ring_cost_class) */
    _Atomic uint64_t cost_class[ST_RING_COST_CLASSES];
};

_Static_assert(offsetof(struct st_ring_head, counters) == 512, "layout");
_Static_assert(offsetof(struct st_ring_head, tail) == 1536, "layout");
_Static_assert(offsetof(struct st_ring_head, cost_class) == 2048, "layout");
_Static_assert(sizeof(struct st_ring_head) == ST_RING_HEAD_BYTES, "layout");
_Static_assert(ATOMIC_LLONG_LOCK_FREE == 2, "the ring needs lock-free 64-bit atomics");

struct st_ring_record {
    uint32_t size; /* of the whole record, a multiple of 8 */
    uint32_t kind;
    uint64_t hash; /* XXH3-64 of the record from `sequence` on */
    uint64_t sequence;
    int64_t start_ns, duration_ns, padded_token_count, padded_request_count, zeroed_count;
    int32_t graph_mode, cpu_starts;
    int32_t request_count, has_draft;
    int32_t new_count, finished_count, preempted_count, resumed_count, replaced_count;
    int32_t group_count;
    uint32_t check_size;
    uint32_t reserved;
};

_Static_assert(sizeof(struct st_ring_record) == 112, "layout");
#define ST_RING_HASHED_FROM offsetof(struct st_ring_record, sequence)

/* ---- classes of cost: eight to each power of two */

static inline int st_ring_cost_class(uint64_t ns) {
    if (ns < 8)
        return (int)ns;
    int power = 63 - __builtin_clzll(ns);
    int class = (power - 2) * 8 + (int)((ns >> (power - 3)) & 7);
    return class < ST_RING_COST_CLASSES ? class : ST_RING_COST_CLASSES - 1;
}

/* The cost that `share` of the steps do not exceed; ST_UNKNOWN when there are none. */
int64_t st_ring_cost_quantile(const struct st_ring_head *head, double share);

/* ---- the producer's side */

struct st_ring {
    uint8_t *map; /* the whole file */
    size_t size;
    struct st_ring_head *head;
    uint8_t *data;
    uint64_t capacity;
    uint64_t position; /* as counters.head */
    uint64_t tail;     /* as last seen */
};

/* Makes a ring of an empty file that is open for reading and writing: reserves every byte of it on
 * the disk, maps it and touches every page.  fd stays the caller's. */
int st_ring_create(struct st_ring *ring, int fd, const char *path, const char *text,
                   int64_t data_bytes, struct st_error *err);
void st_ring_unmap(struct st_ring *ring);

/* Room for a record of so many bytes (a multiple of 8), or NULL when the ring is full.  Nobody sees
 * it before st_ring_publish(). */
uint8_t *st_ring_reserve(struct st_ring *ring, uint64_t size);
/* hash: of the record, see ST_RING_HASHED_FROM. */
void st_ring_publish(struct st_ring *ring, uint64_t size, uint64_t hash);

/* ---- the consumer's side */

/* What is in the ring, by position; never points outside of data. */
struct st_ring_view {
    const uint8_t *data;
    uint64_t capacity;
    uint64_t position; /* of the next record */
    uint64_t end;
};

/* The next record, whole and with a right hash, or ST_DONE at the end; ST_ERR_CORRUPT.  Pads are
 * passed over. */
int st_ring_next(struct st_ring_view *view, const struct st_ring_record **record,
                 struct st_error *err);

/* Memory for decoding, kept from record to record. */
struct st_ring_scratch {
    int32_t *offsets;
    size_t offset_capacity;
    int32_t *ids; /* brought into the order of their rows */
    size_t id_capacity;
    struct st_row_blocks blocks[ST_MAX_GROUPS];
    char *check_json;
    size_t check_capacity;
};

/* A record as a step for the writer; step_id is the caller's to set.  Points into the record and
 * into scratch.  Lengths and rows are checked against the record's size, ids and row values by the
 * writer. */
int st_ring_decode(const struct st_ring_record *record, int32_t group_count,
                   struct st_ring_scratch *scratch, struct st_step *step, const char **check_json,
                   struct st_error *err);
void st_ring_scratch_fini(struct st_ring_scratch *scratch);

struct st_ring_note {
    int64_t sequence;
    const char *key, *value; /* not NUL-terminated */
    uint32_t key_size, value_size;
};
/* Walks notes: *at begins with 0.  False at the end, or where they are damaged. */
bool st_ring_next_note(const uint8_t *notes, uint64_t size, uint64_t *at,
                       struct st_ring_note *note);
/* Appends one; false when there is no room. */
bool st_ring_put_note(struct st_ring *ring, uint64_t sequence, const char *key, const char *value);

/* Whether a file's bytes can be a ring, and where its parts are. */
struct st_ring_file {
    const struct st_ring_head *head;
    const char *text; /* not NUL-terminated */
    const uint8_t *notes;
    uint64_t note_size;
    struct st_ring_view view; /* records not committed */
};
int st_ring_open_bytes(const char *name, const void *bytes, size_t size, struct st_ring_file *file,
                       struct st_error *err);

#endif
