/* SPDX-License-Identifier: Apache-2.0 */
#include "traces/interchange/out.h"

#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "traces/base/utf8.h"

enum { BUFFER_BYTES = 1 << 18, INT_BYTES = 24 };

struct st_out {
    int fd; /* -1: memory */
    bool standard;
    char *buffer;
    size_t used, capacity;
    int native;      /* errno of the first failure; 0: none */
    char *path;      /* NULL: standard output or memory */
    char *temporary; /* NULL: written directly */
};

static struct st_out *create(int fd) {
    struct st_out *out = calloc(1, sizeof *out);
    if (!out)
        return NULL;
    out->fd = fd;
    out->capacity = BUFFER_BYTES;
    out->buffer = malloc(out->capacity);
    if (!out->buffer) {
        free(out);
        return NULL;
    }
    return out;
}

static void destroy(struct st_out *out) {
    free(out->buffer);
    free(out->path);
    free(out->temporary);
    free(out);
}

static int open_file(struct st_out *out, const char *path, struct st_error *err) {
    struct stat st;
    out->path = strdup(path);
    if (!out->path)
        return ST_FAIL_NOMEM(err);
    if (stat(path, &st) == 0 && !S_ISREG(st.st_mode)) {
        out->fd = open(path, O_WRONLY | O_CLOEXEC);
    } else {
        if (asprintf(&out->temporary, "%s.tmp-%ld", path, (long)getpid()) < 0) {
            out->temporary = NULL;
            return ST_FAIL_NOMEM(err);
        }
        out->fd = open(out->temporary, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    }
    if (out->fd >= 0)
        return 0;
    int native = errno;
    free(out->temporary); /* nothing there to remove */
    out->temporary = NULL;
    return ST_FAIL_NATIVE(err, ST_ERR_IO, native, "%.200s: %s", path, strerror(native));
}

int st_out_open(const char *path, struct st_out **result, struct st_error *err) {
    bool standard = !path || strcmp(path, "-") == 0;
    struct st_out *out = create(standard ? STDOUT_FILENO : -1);
    if (!out)
        return ST_FAIL_NOMEM(err);
    out->standard = standard;
    if (!standard) {
        int rc = open_file(out, path, err);
        if (rc) {
            destroy(out);
            return rc;
        }
    }
    *result = out;
    return 0;
}

int st_out_open_memory(struct st_out **result, struct st_error *err) {
    struct st_out *out = create(-1);
    if (!out)
        return ST_FAIL_NOMEM(err);
    *result = out;
    return 0;
}

static void flush(struct st_out *out) {
    size_t at = 0;
    while (at < out->used && !out->native) {
        ssize_t n = write(out->fd, out->buffer + at, out->used - at);
        if (n >= 0)
            at += (size_t)n;
        else if (errno != EINTR)
            out->native = errno;
    }
    out->used = 0;
}

/* Room for size more bytes; NULL when memory for a memory output is out. */
static char *room(struct st_out *out, size_t size) {
    if (out->capacity - out->used >= size)
        return out->buffer + out->used;
    if (out->fd >= 0)
        flush(out);
    if (out->capacity - out->used < size) {
        size_t capacity = 2 * (out->capacity + size);
        char *buffer = realloc(out->buffer, capacity);
        if (!buffer) {
            out->native = out->native ? out->native : ENOMEM;
            return NULL;
        }
        out->buffer = buffer;
        out->capacity = capacity;
    }
    return out->buffer + out->used;
}

void st_out_bytes(struct st_out *out, const char *data, size_t size) {
    while (size > 0) {
        size_t n = size < BUFFER_BYTES / 2 ? size : BUFFER_BYTES / 2;
        char *to = room(out, n);
        if (!to)
            return;
        memcpy(to, data, n);
        out->used += n;
        data += n;
        size -= n;
    }
}

void st_out_string(struct st_out *out, const char *text) {
    st_out_bytes(out, text, strlen(text));
}

static const char digit_pairs[] = "00010203040506070809"
                                  "10111213141516171819"
                                  "20212223242526272829"
                                  "30313233343536373839"
                                  "40414243444546474849"
                                  "50515253545556575859"
                                  "60616263646566676869"
                                  "70717273747576777879"
                                  "80818283848586878889"
                                  "90919293949596979899";

/* Writes value at to, which has INT_BYTES; returns the end. */
static char *print_int(char *to, int64_t value) {
    uint64_t u = value < 0 ? -(uint64_t)value : (uint64_t)value;
    char digits[INT_BYTES];
    char *at = digits + sizeof digits;
    if (value < 0)
        *to++ = '-';
    while (u >= 100) {
        at -= 2;
        memcpy(at, digit_pairs + 2 * (u % 100), 2);
        u /= 100;
    }
    if (u >= 10) {
        at -= 2;
        memcpy(at, digit_pairs + 2 * u, 2);
    } else {
        *--at = (char)('0' + u);
    }
    size_t n = (size_t)(digits + sizeof digits - at);
    memcpy(to, at, n);
    return to + n;
}

/* Block ids and lengths are small: 32-bit division, and no copy for up to four digits. */
static char *print_int32(char *to, int32_t value) {
    uint32_t u = (uint32_t)value;
    if (u >= 10000)
        return print_int(to, value);
    if (u >= 100) {
        uint32_t high = u / 100;
        if (high >= 10) {
            memcpy(to, digit_pairs + 2 * high, 2);
            to += 2;
        } else {
            *to++ = (char)('0' + high);
        }
        memcpy(to, digit_pairs + 2 * (u % 100), 2);
        return to + 2;
    }
    if (u >= 10) {
        memcpy(to, digit_pairs + 2 * u, 2);
        return to + 2;
    }
    *to = (char)('0' + u);
    return to + 1;
}

void st_out_int(struct st_out *out, int64_t value) {
    char *to = room(out, INT_BYTES);
    if (to)
        out->used += (size_t)(print_int(to, value) - to);
}

enum { CHUNK = 1024 };

void st_out_ints32(struct st_out *out, const int32_t *values, int64_t count) {
    for (int64_t i = 0; i < count;) {
        int64_t stop = count - i < CHUNK ? count : i + CHUNK;
        char *begin = room(out, CHUNK * INT_BYTES), *to = begin;
        if (!to)
            return;
        for (; i < stop; i++) {
            if (i > 0)
                *to++ = ',';
            to = print_int32(to, values[i]);
        }
        out->used += (size_t)(to - begin);
    }
}

void st_out_ints64(struct st_out *out, const int64_t *values, int64_t count) {
    for (int64_t i = 0; i < count; i++) {
        if (i > 0)
            st_out_bytes(out, ",", 1);
        st_out_int(out, values[i]);
    }
}

/* What is no character becomes U+FFFD: JSON is UTF-8. */
static size_t put_character(struct st_out *out, const char *text, const char *end) {
    size_t length = st_utf8_length(text, (size_t)(end - text));
    if (length)
        st_out_bytes(out, text, length);
    else
        st_out_string(out, "\\ufffd");
    return length ? length : 1;
}

void st_out_json_string(struct st_out *out, const char *text) {
    if (!text) {
        st_out_string(out, "null");
        return;
    }
    static const char escaped[] = "\"\\\n\t\r\b\f";
    const char *end = text + strlen(text);
    st_out_bytes(out, "\"", 1);
    while (text < end) {
        unsigned char c = (unsigned char)*text;
        const char *letter = memchr(escaped, c, sizeof escaped - 1);
        if (!letter && c >= 0x20) {
            text += put_character(out, text, end);
            continue;
        }
        if (letter)
            st_out_format(out, "\\%c", "\"\\ntrbf"[letter - escaped]);
        else
            st_out_format(out, "\\u%04x", c);
        text++;
    }
    st_out_bytes(out, "\"", 1);
}

void st_out_json(struct st_out *out, const char *json) {
    const char *end = json + strlen(json);
    while (json < end)
        json += put_character(out, json, end);
}

void st_out_format(struct st_out *out, const char *fmt, ...) {
    va_list ap;
    va_start(ap, fmt);
    int n = vsnprintf(NULL, 0, fmt, ap);
    va_end(ap);
    char *to = n >= 0 ? room(out, (size_t)n + 1) : NULL;
    if (!to)
        return;
    va_start(ap, fmt);
    vsnprintf(to, (size_t)n + 1, fmt, ap);
    va_end(ap);
    out->used += (size_t)n;
}

bool st_out_failed(const struct st_out *out) {
    return out->native != 0;
}

const char *st_out_memory(const struct st_out *out, size_t *size) {
    *size = out->used;
    return out->buffer;
}

int st_out_finish(struct st_out *out, struct st_error *err) {
    if (out->fd >= 0)
        flush(out);
    if (!out->native && out->temporary && fsync(out->fd) != 0)
        out->native = errno;
    if (!out->standard && out->fd >= 0) {
        if (close(out->fd) != 0 && !out->native)
            out->native = errno;
        out->fd = -1;
    }
    if (!out->native && out->temporary && rename(out->temporary, out->path) != 0)
        out->native = errno;
    int native = out->native;
    int rc = 0;
    if (native) {
        if (out->temporary)
            unlink(out->temporary);
        rc = ST_FAIL_NATIVE(err, native == ENOMEM ? ST_ERR_NOMEM : ST_ERR_IO, native, "%.200s: %s",
                            out->path ? out->path : "standard output", strerror(native));
    }
    destroy(out);
    return rc;
}

void st_out_abort(struct st_out *out) {
    if (!out)
        return;
    if (!out->standard && out->fd >= 0)
        close(out->fd);
    if (out->temporary)
        unlink(out->temporary);
    destroy(out);
}
