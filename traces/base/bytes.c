/* SPDX-License-Identifier: Apache-2.0 */
#include "traces/base/bytes.h"

#include <stdlib.h>
#include <string.h>
#include <zlib.h>

#define DEFLATE_RATIO 1032
/* What columns may inflate to; a tape that asks for more is hostile. */
#define COLUMNS_LIMIT ((size_t)1 << 30)

void st_bytes_fini(struct st_bytes *b) {
    free(b->data);
    memset(b, 0, sizeof *b);
}

bool st_bytes_reserve(struct st_bytes *b, size_t more) {
    if (b->failed)
        return false;
    if (b->capacity - b->size >= more)
        return true;
    size_t capacity = b->capacity ? b->capacity : 256;
    while (capacity - b->size < more) {
        if (capacity > SIZE_MAX / 2) {
            b->failed = true;
            return false;
        }
        capacity *= 2;
    }
    uint8_t *data = realloc(b->data, capacity);
    if (!data) {
        b->failed = true;
        return false;
    }
    b->data = data;
    b->capacity = capacity;
    return true;
}

void st_bytes_put(struct st_bytes *b, const void *data, size_t size) {
    if (size && st_bytes_reserve(b, size)) {
        memcpy(b->data + b->size, data, size);
        b->size += size;
    }
}

void st_bytes_put_varint(struct st_bytes *b, uint64_t value) {
    if (!st_bytes_reserve(b, 10))
        return;
    while (value >= 0x80) {
        b->data[b->size++] = (uint8_t)(value | 0x80);
        value >>= 7;
    }
    b->data[b->size++] = (uint8_t)value;
}

int64_t st_bytes_get_within(struct st_bytes_reader *r, int64_t low, int64_t high) {
    uint64_t value = st_bytes_get_varint(r);
    if (value > (uint64_t)(high - low)) {
        r->bad = true;
        return low;
    }
    return low + (int64_t)value;
}

static int deflate_level(struct st_bytes *out, const void *raw, size_t raw_size, int level,
                         struct st_error *err) {
    st_bytes_put_varint(out, raw_size);
    uLong bound = compressBound((uLong)raw_size);
    if (!st_bytes_reserve(out, bound))
        return ST_FAIL_NOMEM(err);
    uLongf size = bound;
    int rc = compress2(out->data + out->size, &size, raw, (uLong)raw_size, level);
    if (rc == Z_MEM_ERROR)
        return ST_FAIL_NOMEM(err);
    if (rc != Z_OK)
        return ST_FAIL_NATIVE(err, ST_ERR_NATIVE, rc, "zlib could not compress %zu bytes",
                              raw_size);
    out->size += size;
    return ST_OK;
}

int st_bytes_deflate(struct st_bytes *out, const void *raw, size_t raw_size, struct st_error *err) {
    return deflate_level(out, raw, raw_size, 9, err);
}

int st_bytes_inflate(struct st_bytes *out, const void *data, size_t size, size_t limit,
                     struct st_error *err) {
    if (!size)
        return ST_FAIL(err, ST_ERR_CORRUPT, "a packed block is empty");
    struct st_bytes_reader r = {data, (const uint8_t *)data + size, false};
    uint64_t raw_size = st_bytes_get_varint(&r);
    /* Deflate packs 1032 bytes into one at most: no memory for a size that cannot be true. */
    if (r.bad || raw_size > limit || raw_size / DEFLATE_RATIO > size)
        return ST_FAIL(err, ST_ERR_CORRUPT, "a packed block has an impossible size");
    out->size = 0;
    if (!st_bytes_reserve(out, raw_size + 1))
        return ST_FAIL_NOMEM(err);
    uLongf got = (uLongf)raw_size;
    int rc = uncompress(out->data, &got, r.at, (uLong)(r.end - r.at));
    if (rc == Z_MEM_ERROR)
        return ST_FAIL_NOMEM(err);
    if (rc != Z_OK || got != raw_size)
        return ST_FAIL_NATIVE(err, ST_ERR_CORRUPT, rc, "a packed block is damaged (zlib %d)", rc);
    out->size = raw_size;
    return ST_OK;
}

int st_columns_pack_level(const struct st_bytes *column, int count, int level, struct st_bytes *out,
                          struct st_error *err) {
    struct st_bytes raw = {0};
    for (int c = 0; c < count; c++) {
        raw.failed |= column[c].failed;
        st_bytes_put_varint(&raw, column[c].size);
    }
    for (int c = 0; c < count; c++)
        st_bytes_put(&raw, column[c].data, column[c].size);
    int rc = raw.failed ? ST_FAIL_NOMEM(err) : deflate_level(out, raw.data, raw.size, level, err);
    st_bytes_fini(&raw);
    return rc;
}

int st_columns_pack(const struct st_bytes *column, int count, struct st_bytes *out,
                    struct st_error *err) {
    return st_columns_pack_level(column, count, 9, out, err);
}

int st_columns_unpack(const void *data, size_t size, struct st_bytes *scratch,
                      struct st_bytes_reader *column, int count, struct st_error *err) {
    ST_TRY(st_bytes_inflate(scratch, data, size, COLUMNS_LIMIT, err));
    struct st_bytes_reader lengths = {scratch->data, scratch->data + scratch->size, false};
    struct st_bytes_reader r = lengths;
    for (int c = 0; c < count; c++)
        (void)st_bytes_get_varint(&r);
    for (int c = 0; c < count; c++) {
        uint64_t length = st_bytes_get_varint(&lengths);
        if (r.bad || length > (uint64_t)(r.end - r.at))
            return ST_FAIL(err, ST_ERR_CORRUPT, "a column of a packed block passes its end");
        column[c] = (struct st_bytes_reader){r.at, r.at + length, false};
        r.at += length;
    }
    return ST_OK;
}
