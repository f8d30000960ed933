/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Growing byte buffers, variable-length integers (LEB128; zigzag for signed ones), and zlib.
 *
 * A writer that runs out of memory sets `failed` and goes on doing nothing, so that callers check
 * once at the end.  A reader that runs past its end sets `bad` and gives zeros from then on.
 */
#ifndef ST_BASE_BYTES_H
#define ST_BASE_BYTES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "traces/base/error.h"

struct st_bytes {
    uint8_t *data;
    size_t size;
    size_t capacity;
    bool failed;
};

void st_bytes_fini(struct st_bytes *b);
bool st_bytes_reserve(struct st_bytes *b, size_t more);
void st_bytes_put(struct st_bytes *b, const void *data, size_t size);
void st_bytes_put_varint(struct st_bytes *b, uint64_t value);

static inline void st_bytes_put_zigzag(struct st_bytes *b, int64_t value) {
    st_bytes_put_varint(b, ((uint64_t)value << 1) ^ (uint64_t)(value >> 63));
}

/* value as its difference from base, whatever the two are. */
static inline void st_bytes_put_difference(struct st_bytes *b, int64_t value, int64_t base) {
    st_bytes_put_zigzag(b, (int64_t)((uint64_t)value - (uint64_t)base));
}

struct st_bytes_reader {
    const uint8_t *at;
    const uint8_t *end;
    bool bad;
};

static inline uint64_t st_bytes_get_varint(struct st_bytes_reader *r) {
    if (r->at < r->end && *r->at < 0x80)
        return *r->at++;
    uint64_t value = 0;
    for (int shift = 0; shift < 64 && r->at < r->end; shift += 7) {
        uint8_t byte = *r->at++;
        value |= (uint64_t)(byte & 0x7f) << shift;
        if (byte < 0x80)
            return value;
    }
    r->bad = true;
    return 0;
}

static inline int64_t st_bytes_get_zigzag(struct st_bytes_reader *r) {
    uint64_t value = st_bytes_get_varint(r);
    return (int64_t)(value >> 1) ^ -(int64_t)(value & 1);
}

/* The other way of st_bytes_put_difference(); hostile differences wrap around. */
static inline int64_t st_bytes_get_difference(struct st_bytes_reader *r, int64_t base) {
    return (int64_t)((uint64_t)base + (uint64_t)st_bytes_get_zigzag(r));
}

/* A value within [low, high]; anything else marks the reader bad and gives low. */
int64_t st_bytes_get_within(struct st_bytes_reader *r, int64_t low, int64_t high);

/* Appends varint(raw size) and a zlib stream (RFC 1950, level 9) of raw to out. */
int st_bytes_deflate(struct st_bytes *out, const void *raw, size_t raw_size, struct st_error *err);
/* Replaces out's content by the inflated data.  A raw size above limit is refused. */
int st_bytes_inflate(struct st_bytes *out, const void *data, size_t size, size_t limit,
                     struct st_error *err);

/* Packs columns, byte strings of their own, into one deflated block, and back: readers of
 * `scratch`, which stays in use.  A column that failed is an error. */
int st_columns_pack(const struct st_bytes *column, int count, struct st_bytes *out,
                    struct st_error *err);
/* The same at another level of zlib: what is packed while an engine waits for the processor. */
int st_columns_pack_level(const struct st_bytes *column, int count, int level, struct st_bytes *out,
                          struct st_error *err);
int st_columns_unpack(const void *data, size_t size, struct st_bytes *scratch,
                      struct st_bytes_reader *column, int count, struct st_error *err);

#endif
