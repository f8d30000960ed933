/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Fuzzes the decoder of launches behind zlib and checksums, which would catch most changes before
 * it sees them.  The input is
 *
 *     u8 what: 0 a block of launches (its head, then seven columns), 1 definitions, 2 a list of
 *     steps, else a stream as it is
 *     u16 size of each column (little endian), then their bytes
 *
 * Whatever it holds, reading ends in launches or in one line of error.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <zlib.h>

#include "traces/base/bytes.h"
#include "traces/format/launch_code.h"
#include "traces/format/launch_stream.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { COLUMNS = 7, SITES = 300 };

static volatile int64_t sink;

static void one_line(int rc, const struct st_error *err) {
    if (rc < 0 && (err->msg[0] == 0 || strchr(err->msg, '\n')))
        abort();
}

/* Stored instead of packed: that is faster. */
static void put_packed(struct st_bytes *out, const uint8_t *raw, size_t size) {
    uLongf packed = compressBound(size);
    st_bytes_put_varint(out, size);
    if (!st_bytes_reserve(out, packed) ||
        compress2(out->data + out->size, &packed, raw, size, 0) != Z_OK)
        abort();
    out->size += packed;
}

/* varint(size) of each column, then all of them. */
static void put_columns(struct st_bytes *out, const uint8_t *data, size_t size) {
    struct st_bytes raw = {0};
    size_t sizes[COLUMNS] = {0}, head = 2 * COLUMNS, left = size > head ? size - head : 0;
    for (int c = 0; c < COLUMNS; c++) {
        size_t want = size > head ? (size_t)data[2 * c] | (size_t)data[2 * c + 1] << 8 : 0;
        sizes[c] = want < left ? want : left;
        left -= sizes[c];
        st_bytes_put_varint(&raw, sizes[c]);
    }
    if (size > head)
        st_bytes_put(&raw, data + head, size - head);
    put_packed(out, raw.data, raw.size);
    st_bytes_fini(&raw);
}

static void read_block(const uint8_t *data, size_t size) {
    static struct st_launch_decoder *d; /* kept: what one block left must not matter to the next */
    struct st_launch_record l;
    struct st_launch_block head;
    struct st_error err = {0};
    if (!d && st_launch_decoder_create(&d, NULL) != 0)
        abort();
    one_line(st_launch_block_head(data, size, &head, &err), &err);
    int rc = st_launch_decoder_begin(d, data, size, SITES, &err);
    int64_t count = 0;
    while (rc == 0 && count++ < 1 << 16) {
        rc = st_launch_decoder_next(d, &l, &err);
        if (rc == 0 && (l.site < 0 || l.site >= SITES))
            abort();
        sink += rc == 0 ? l.start_ns & 1 : 0;
    }
    one_line(rc, &err);
}

static int on_name(void *user, int64_t number, const char *name, size_t size,
                   struct st_error *err) {
    (void)user, (void)err;
    sink += number + (size ? name[size - 1] : 0);
    return 0;
}

static int on_site(void *user, int64_t number, const struct st_launch_site *site,
                   int64_t name_number, struct st_error *err) {
    (void)err;
    if (name_number < 0 || name_number >= *(const int64_t *)user)
        abort();
    sink += number + site->grid[0];
    return 0;
}

static void read_definitions(const uint8_t *data, size_t size) {
    struct st_error err = {0};
    int64_t names = 3, sites = 0;
    const struct st_launch_definitions to = {&names, on_name, on_site};
    one_line(st_launch_read_definitions(data, size, &names, &sites, &to, &err), &err);
}

static void read_steps(const uint8_t *data, size_t size) {
    struct st_launch_step *step = NULL;
    struct st_error err = {0};
    int64_t count;
    int rc = st_chunk_read_steps(data, size, &step, &count, &err);
    one_line(rc, &err);
    for (int64_t i = 0; rc == 0 && i < count; i++)
        sink += step[i].sequence;
    free(step);
}

static char path[64];

static void remove_file(void) {
    unlink(path);
}

static void read_stream(const uint8_t *data, size_t size) {
    struct st_launch_stream *s = NULL;
    struct st_error err = {0};
    const uint8_t *chunk;
    size_t chunk_size;
    int32_t type;
    if (!path[0]) {
        snprintf(path, sizeof path, "%s/steptape-fuzz-%ld.stream",
                 access("/dev/shm", W_OK) == 0 ? "/dev/shm" : "/tmp", (long)getpid());
        atexit(remove_file);
    }
    FILE *f = fopen(path, "wb");
    if (!f || fwrite(data, 1, size, f) != size)
        abort();
    fclose(f);
    int rc = st_launch_stream_open(path, &s, &err);
    while (rc == 0 && (rc = st_launch_stream_next(s, &type, &chunk, &chunk_size, &err)) == 0) {
        char value[16];
        sink += st_chunk_read_text(chunk, chunk_size, "pid", value, sizeof value) != NULL;
        read_steps(chunk, chunk_size);
        read_block(chunk, chunk_size);
        read_definitions(chunk, chunk_size);
    }
    one_line(rc, &err);
    st_launch_stream_close(s);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    struct st_bytes made = {0};
    if (size < 2)
        return 0;
    uint8_t what = data[0] & 3;
    data++, size--;
    if (what == 3) {
        read_stream(data, size);
        return 0;
    }
    if (what == 1) {
        put_packed(&made, data, size);
        read_definitions(made.data, made.size);
    } else {
        size_t head = data[0] & 31;
        data++, size--;
        head = head < size ? head : size;
        st_bytes_put(&made, data, head);
        put_columns(&made, data + head, size - head);
        if (what == 0)
            read_block(made.data, made.size);
        else
            read_steps(made.data, made.size);
    }
    st_bytes_fini(&made);
    return 0;
}
