/* SPDX-License-Identifier: Apache-2.0 */
#include "traces/format/launch_stream.h"

#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#define XXH_INLINE_ALL
#include <xxhash.h>

#include "traces/format/launch_code.h"

/* magic, version, type, 2 bytes 0, payload bytes (4), 4 bytes 0, XXH3-64 of the payload with the
 * type as its seed; little endian. */
static const uint8_t magic[4] = {'S', 't', 'L', 'c'};
enum { VERSION = 1, STEP_COLUMNS = 7 };

struct st_launch_stream {
    char *path;
    FILE *file;
    struct st_bytes payload;
    int64_t left; /* bytes of the file behind the chunks given so far */
};

static const char *const level_names[ST_LEVELS] = {"off", "count", "graph", "node", "full"};

const char *st_launch_level_name(int32_t level) {
    return level >= 0 && level < ST_LEVELS ? level_names[level] : "?";
}

int32_t st_launch_level_parse(const char *name) {
    for (int32_t i = 0; i < ST_LEVELS; i++)
        if (strcmp(name, level_names[i]) == 0)
            return i;
    return -1;
}

/* ---- writing */

static void put_little(uint8_t *at, uint64_t value, int bytes) {
    for (int i = 0; i < bytes; i++)
        at[i] = (uint8_t)(value >> 8 * i);
}

static uint64_t get_little(const uint8_t *at, int bytes) {
    uint64_t value = 0;
    for (int i = 0; i < bytes; i++)
        value |= (uint64_t)at[i] << 8 * i;
    return value;
}

int st_chunk_put(struct st_bytes *out, enum st_launch_chunk type, const void *data, size_t size,
                 struct st_error *err) {
    uint8_t head[ST_CHUNK_HEAD_BYTES] = {0};
    if (size > ST_CHUNK_MAX)
        return ST_FAIL(err, ST_ERR_UNSUPPORTED, "a chunk of %zu bytes", size);
    memcpy(head, magic, sizeof magic);
    head[4] = VERSION;
    head[5] = (uint8_t)type;
    put_little(head + 8, size, 4);
    put_little(head + 16, XXH3_64bits_withSeed(data, size, (XXH64_hash_t)type), 8);
    st_bytes_put(out, head, sizeof head);
    st_bytes_put(out, data, size);
    return out->failed ? ST_FAIL_NOMEM(err) : 0;
}

static void put_step(struct st_bytes column[STEP_COLUMNS], const struct st_launch_step *s,
                     const struct st_launch_step *last) {
    st_bytes_put_difference(&column[0], s->sequence, last->sequence + 1);
    st_bytes_put_varint(&column[1], (uint64_t)s->level << 1 | (uint64_t)(s->changed != 0));
    st_bytes_put_difference(&column[2], s->start_ns, last->start_ns + last->duration_ns);
    st_bytes_put_difference(&column[3], s->duration_ns, last->duration_ns);
    st_bytes_put_difference(&column[4], s->kernel_launches, last->kernel_launches);
    st_bytes_put_difference(&column[5], s->graph_launches, last->graph_launches);
    st_bytes_put_difference(&column[6], s->graph_kernels, last->graph_kernels);
}

int st_chunk_put_steps(struct st_bytes *out, const struct st_launch_step *step, int64_t count,
                       struct st_error *err) {
    struct st_bytes column[STEP_COLUMNS] = {{0}}, payload = {0};
    struct st_launch_step last = {.sequence = -1};
    for (int64_t i = 0; i < count; i++) {
        put_step(column, &step[i], &last);
        last = step[i];
    }
    st_bytes_put_varint(&payload, (uint64_t)count);
    int rc = st_columns_pack_level(column, STEP_COLUMNS, 4, &payload, err);
    if (!rc)
        rc = st_chunk_put(out, ST_CHUNK_STEPS, payload.data, payload.size, err);
    for (int c = 0; c < STEP_COLUMNS; c++)
        st_bytes_fini(&column[c]);
    st_bytes_fini(&payload);
    return rc;
}

void st_chunk_text(struct st_bytes *text, const char *key, const char *format, ...) {
    char value[1024];
    va_list ap;
    va_start(ap, format);
    int length = vsnprintf(value, sizeof value, format, ap);
    va_end(ap);
    if (length < 0)
        return;
    for (char *c = value; *c; c++)
        if (*c == '\n' || *c == '\r')
            *c = ' ';
    st_bytes_put(text, key, strlen(key));
    st_bytes_put(text, "=", 1);
    st_bytes_put(text, value, strlen(value));
    st_bytes_put(text, "\n", 1);
}

/* ---- reading */

int st_launch_stream_open(const char *path, struct st_launch_stream **stream,
                          struct st_error *err) {
    struct stat status;
    uint8_t head[sizeof magic];
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOFOLLOW);
    if (fd < 0)
        return ST_FAIL_NATIVE(err, ST_ERR_IO, errno, "%s: %s", path, strerror(errno));
    if (fstat(fd, &status) < 0 || !S_ISREG(status.st_mode) ||
        (status.st_size > 0 &&
         (pread(fd, head, sizeof head, 0) != sizeof head || memcmp(head, magic, sizeof magic)))) {
        close(fd);
        return ST_FAIL(err, ST_ERR_INPUT, "%s: not a stream of recorded launches", path);
    }
    struct st_launch_stream *s = calloc(1, sizeof *s);
    if (s) {
        s->path = strdup(path);
        s->file = fdopen(fd, "rb");
        s->left = status.st_size;
    }
    if (!s || !s->path || !s->file) {
        if (!s || !s->file)
            close(fd);
        st_launch_stream_close(s);
        return ST_FAIL_NOMEM(err);
    }
    *stream = s;
    return 0;
}

void st_launch_stream_close(struct st_launch_stream *s) {
    if (!s)
        return;
    if (s->file)
        fclose(s->file);
    st_bytes_fini(&s->payload);
    free(s->path);
    free(s);
}

int64_t st_launch_stream_torn(const struct st_launch_stream *s) {
    return s->left;
}

int st_launch_stream_next(struct st_launch_stream *s, int32_t *type, const uint8_t **data,
                          size_t *size, struct st_error *err) {
    uint8_t head[ST_CHUNK_HEAD_BYTES];
    if (s->left < ST_CHUNK_HEAD_BYTES || fread(head, 1, sizeof head, s->file) != sizeof head)
        return ST_DONE;
    if (memcmp(head, magic, sizeof magic) != 0)
        return ST_DONE;
    if (head[4] != VERSION)
        return ST_FAIL(err, ST_ERR_VERSION, "%s: launches of version %d, %d expected", s->path,
                       head[4], VERSION);
    int64_t bytes = (int64_t)get_little(head + 8, 4);
    if (bytes > ST_CHUNK_MAX || bytes > s->left - ST_CHUNK_HEAD_BYTES)
        return ST_DONE;
    s->payload.size = 0;
    if (!st_bytes_reserve(&s->payload, (size_t)bytes + 1))
        return ST_FAIL_NOMEM(err);
    if (fread(s->payload.data, 1, (size_t)bytes, s->file) != (size_t)bytes)
        return ST_DONE;
    if (XXH3_64bits_withSeed(s->payload.data, (size_t)bytes, head[5]) != get_little(head + 16, 8))
        return ST_DONE;
    s->payload.size = (size_t)bytes;
    s->left -= ST_CHUNK_HEAD_BYTES + bytes;
    *type = head[5];
    *data = s->payload.data;
    *size = s->payload.size;
    return 0;
}

static void get_step(struct st_bytes_reader column[STEP_COLUMNS], struct st_launch_step *s,
                     const struct st_launch_step *last) {
    s->sequence = st_bytes_get_difference(&column[0], last->sequence + 1);
    int64_t level = st_bytes_get_within(&column[1], 0, 2 * ST_LEVELS - 1);
    s->level = (int32_t)(level >> 1);
    s->changed = (int32_t)(level & 1);
    s->start_ns = st_bytes_get_difference(
        &column[2], (int64_t)((uint64_t)last->start_ns + (uint64_t)last->duration_ns));
    s->duration_ns = st_bytes_get_difference(&column[3], last->duration_ns);
    s->kernel_launches = st_bytes_get_difference(&column[4], last->kernel_launches);
    s->graph_launches = st_bytes_get_difference(&column[5], last->graph_launches);
    s->graph_kernels = st_bytes_get_difference(&column[6], last->graph_kernels);
}

int st_chunk_read_steps(const void *data, size_t size, struct st_launch_step **step, int64_t *count,
                        struct st_error *err) {
    struct st_bytes scratch = {0};
    struct st_bytes_reader column[STEP_COLUMNS];
    struct st_bytes_reader r = {data, (const uint8_t *)data + size, size == 0};
    struct st_launch_step last = {.sequence = -1};
    *count = st_bytes_get_within(&r, 0, ST_LAUNCH_STEPS_MAX);
    *step = NULL;
    int rc = r.bad ? ST_FAIL(err, ST_ERR_CORRUPT, "a list of steps has a damaged head")
                   : st_columns_unpack(r.at, (size_t)(r.end - r.at), &scratch, column, STEP_COLUMNS,
                                       err);
    if (!rc && !(*step = calloc((size_t)*count + 1, sizeof **step)))
        rc = ST_FAIL_NOMEM(err);
    for (int64_t i = 0; !rc && i < *count; i++) {
        struct st_launch_step *s = &(*step)[i];
        get_step(column, s, &last);
        bool bad = s->sequence < 0 || s->sequence == INT64_MAX || s->duration_ns < 0 ||
                   s->start_ns < 0 || s->kernel_launches < -1 || s->graph_launches < -1 ||
                   s->graph_kernels < -1;
        for (int c = 0; c < STEP_COLUMNS; c++)
            bad |= column[c].bad;
        if (bad)
            rc = ST_FAIL(err, ST_ERR_CORRUPT, "a list of steps is damaged");
        last = *s;
    }
    st_bytes_fini(&scratch);
    if (rc) {
        free(*step);
        *step = NULL;
        *count = 0;
    }
    return rc;
}

const char *st_chunk_read_text(const void *data, size_t size, const char *key, char *value,
                               size_t value_size) {
    const char *at = data, *end = at + size;
    size_t key_size = strlen(key);
    while (at < end) {
        const char *stop = memchr(at, '\n', (size_t)(end - at));
        if (!stop)
            stop = end;
        if ((size_t)(stop - at) > key_size && memcmp(at, key, key_size) == 0 &&
            at[key_size] == '=') {
            size_t length = (size_t)(stop - at) - key_size - 1;
            if (length >= value_size)
                length = value_size - 1;
            memcpy(value, at + key_size + 1, length);
            value[length] = 0;
            return value;
        }
        at = stop + 1;
    }
    return NULL;
}

int64_t st_chunk_read_integer(const void *data, size_t size, const char *key, int64_t fallback) {
    char text[32], *end;
    if (!st_chunk_read_text(data, size, key, text, sizeof text))
        return fallback;
    errno = 0;
    long long value = strtoll(text, &end, 10);
    return errno || end == text || *end ? fallback : (int64_t)value;
}
