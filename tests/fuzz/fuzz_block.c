/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Fuzzes the codec behind SQLite and zlib, which would catch most changes before it sees them: the
 * input is what the packed columns of a few blocks of steps inflate to.  They are put into a tape
 * in memory, which is then read in order and from anywhere.
 *
 *     u8 bits 0-1: model of the allocator, bit 3: num_blocks is unknown
 *     per block: u8 steps (bits 0-4), u8 bit 0: has a keyframe,
 *                u16 sizes of facts, block_ids, keyframe (little endian), then their bytes
 *     the rest: steps to seek to, one a byte
 */
#include <sqlite3.h>
#include <stdlib.h>
#include <string.h>
#include <zlib.h>

#include "traces/base/bytes.h"
#include "traces/format/blocks.h"
#include "traces/format/db.h"
#include "traces/format/header_store.h"
#include "traces/format/reader.h"
#include "traces/format/schema.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { MAX_BLOCKS = 8, MAX_STEPS = 64, MAX_TOKENS = 1 << 12 };

static const struct st_member swa = {ST_MEMBER_SWA, 4, 1, 32, -1};
static const struct st_member kv[] = {{ST_MEMBER_KV, 2, 4, -1, -1}, {ST_MEMBER_KV, 2, 128, -1, -1}};
static const struct st_member state = {ST_MEMBER_STATE, 2, 4, 8, -1};
static const struct st_group groups[] = {{0, 16, 1, &swa}, {1, 32, 2, kv}, {2, 4, 1, &state}};
static const struct st_header header = {.compress_ratio_count = -1,
                                        .num_blocks = 64,
                                        .prefix_caching = -1,
                                        .async_scheduling = -1,
                                        .group_count = 3,
                                        .groups = groups};

static sqlite3 *db;
static sqlite3_stmt *insert;

static void must(int rc) {
    if (rc != SQLITE_OK && rc != SQLITE_DONE && rc != SQLITE_ROW)
        abort();
}

static void close_database(void) {
    sqlite3_finalize(insert);
    sqlite3_close(db);
}

/* All but the blocks of steps: once for all runs. */
static void open_database(void) {
    must(sqlite3_open(":memory:", &db));
    must(sqlite3_exec(db, st_schema_common_sql, NULL, NULL, NULL));
    must(sqlite3_exec(db, st_schema_tape_sql, NULL, NULL, NULL));
    must(st_header_store(db, "fuzz", &header, NULL));
    must(sqlite3_exec(db,
                      "INSERT INTO seal VALUES('0123456789abcdef0123456789abcdef');"
                      "WITH RECURSIVE n(i) AS (SELECT 0 UNION ALL SELECT i + 1 FROM n WHERE i < 63)"
                      "INSERT INTO step SELECT i, NULL, NULL, 1, 1, 1, 0, 1, 1, NULL, NULL, NULL, 0"
                      " FROM n",
                      NULL, NULL, NULL));
    must(sqlite3_prepare_v2(db, "INSERT INTO step_block VALUES(?,?,?,?,?)", -1, &insert, NULL));
    atexit(close_database);
}

static size_t take(const uint8_t **data, size_t *size, size_t want) {
    size_t part = want < *size ? want : *size;
    *data += part;
    *size -= part;
    return part;
}

/* As the tape holds it, but stored instead of packed: that is faster. */
static void bind_packed(int column, const uint8_t *raw, size_t size) {
    struct st_bytes packed = {0};
    uLongf packed_size = compressBound(size);
    st_bytes_put_varint(&packed, size);
    if (!st_bytes_reserve(&packed, packed_size) ||
        compress2(packed.data + packed.size, &packed_size, raw, size, 0) != Z_OK)
        abort();
    must(sqlite3_bind_blob(insert, column, packed.data, (int)(packed.size + packed_size),
                           SQLITE_TRANSIENT));
    st_bytes_fini(&packed);
}

static void put_blocks(const uint8_t **data, size_t *size) {
    int first = 0;
    for (int b = 0; b<MAX_BLOCKS && * size> 8 && first < MAX_STEPS; b++) {
        const uint8_t *head = *data;
        int steps = head[0] & 31;
        take(data, size, 8);
        must(sqlite3_bind_int(insert, 1, first));
        must(sqlite3_bind_int(insert, 2, steps));
        for (int c = 0; c < 3; c++) {
            const uint8_t *raw = *data;
            size_t part = take(data, size, (size_t)head[2 + 2 * c] | (size_t)head[3 + 2 * c] << 8);
            if (c < 2 || head[1] & 1)
                bind_packed(3 + c, raw, part);
        }
        sqlite3_step(insert); /* a first_step that is there already is no row */
        sqlite3_reset(insert);
        sqlite3_clear_bindings(insert);
        first += steps;
    }
}

static void one_line(int rc, const struct st_error *err) {
    if (rc < 0 && (err->msg[0] == 0 || strchr(err->msg, '\n')))
        abort();
}

static volatile int64_t sink;

/* Touches everything that a step gives. */
static void look_at(struct st_cursor *cursor, const struct st_step *step) {
    int64_t sum = 0;
    for (int32_t i = 0; i < step->request_count; i++)
        sum += step->request_id[i] + step->query_len[i] + step->num_computed_tokens[i] +
               step->prompt_len[i] + (step->draft ? step->draft[i] : 0);
    const struct st_request_list *lists[] = {&step->finished, &step->preempted, &step->resumed,
                                             &step->replaced, &step->new_requests};
    for (int l = 0; l < 5; l++)
        for (int32_t i = 0; i < lists[l]->count; i++)
            sum += lists[l]->request_id[i] & 1;
    for (int32_t g = 0; g < step->group_count; g++) {
        for (int32_t i = 0; i < step->blocks[g].offset[step->request_count]; i++)
            sum += step->blocks[g].block_id[i];
        for (int32_t row = 0; row < step->request_count; row++) {
            const int32_t *id;
            int32_t count;
            if (st_cursor_block_table(cursor, g, row, &id, &count, NULL) == 0 && count)
                sum += id[0] + id[count - 1];
        }
        if (step->token_count > MAX_TOKENS)
            continue;
        int64_t *slot = malloc((size_t)(step->token_count + 1) * sizeof *slot);
        if (slot && st_cursor_slot_mapping(cursor, g, slot, NULL) == 0)
            for (int64_t i = 0; i < step->token_count; i++)
                sum += slot[i];
        free(slot);
    }
    sink = sum;
}

static void read_tape(struct st_tape *tape, unsigned what, const uint8_t *seeks, size_t count) {
    struct st_cursor *cursor = NULL;
    struct st_error err = {0};
    const struct st_step *step;
    int rc = st_cursor_open(tape, what, &cursor, &err);
    for (int i = 0; rc == 0 && i <= MAX_STEPS; i++) {
        rc = st_cursor_next(cursor, &step, &err);
        if (rc == 0)
            look_at(cursor, step);
    }
    one_line(rc, &err);
    for (size_t i = 0; cursor && i < count && i < 4; i++) {
        rc = st_cursor_seek(cursor, seeks[i] % (MAX_STEPS + 1), &err);
        one_line(rc, &err);
        for (int k = 0; rc == 0 && k < 3; k++) {
            rc = st_cursor_next(cursor, &step, &err);
            if (rc == 0)
                look_at(cursor, step);
        }
        one_line(rc, &err);
    }
    st_cursor_close(cursor);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static const unsigned modes[] = {0, ST_READ_BLOCKS, ST_READ_TABLES};
    struct st_error err = {0};
    struct st_tape *tape;
    char sql[160];
    if (!size)
        return 0;
    if (!db)
        open_database();
    sqlite3_snprintf(
        sizeof sql, sql,
        "DELETE FROM step_block; UPDATE tape SET allocator_model = %d, num_blocks = %s",
        data[0] & (ST_MODEL_COUNT - 1), data[0] & 8 ? "NULL" : "64");
    must(sqlite3_exec(db, sql, NULL, NULL, NULL));
    take(&data, &size, 1);
    put_blocks(&data, &size);
    must(st_tape_attach(db, &tape, &err));
    for (int m = 0; m < 3; m++)
        read_tape(tape, modes[m], data, size);
    st_tape_close(tape);
    return 0;
}
