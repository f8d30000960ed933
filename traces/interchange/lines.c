/* SPDX-License-Identifier: Apache-2.0 */
#include "traces/interchange/lines.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zlib.h>

#include "traces/base/log.h"

enum { RAW_BYTES = 1 << 17, NAME_BYTES = 160 };

struct st_lines {
    int fd; /* -1: memory */
    const unsigned char *memory;
    size_t memory_size, memory_at;
    char name[NAME_BYTES + 4];
    int64_t total_bytes, read_bytes;

    unsigned char *raw; /* bytes of the file not yet decoded: [raw_at, raw_end) */
    size_t raw_at, raw_end;
    bool raw_eof;

    bool gzip, in_member;
    z_stream z;

    char *text; /* decoded: [begin, end); no newline in [begin, scanned) */
    size_t begin, scanned, end, capacity, max_line_bytes;
    bool eof, ended;
    int64_t number;
};

char *st_printable(char *out, size_t size, const char *text, size_t length) {
    size_t n = length < size - 1 ? length : size - 1;
    for (size_t i = 0; i < n; i++) {
        unsigned char c = (unsigned char)text[i];
        unsigned char next = i + 1 < length ? (unsigned char)text[i + 1] : 0;
        out[i] = c < 0x20 || c == 0x7f ? '?' : (char)c;
        if (c != 0xc2 || next < 0x80 || next >= 0xa0)
            continue;
        out[i] = '?'; /* a C1 control */
        if (i + 1 < n)
            out[++i] = '?';
    }
    while (n > 0 && n < length && ((unsigned char)text[n] & 0xc0) == 0x80)
        n--; /* no half character */
    out[n] = 0;
    return out;
}

static void set_name(struct st_lines *lines, const char *path) {
    size_t length = strlen(path);
    char *to = lines->name;
    if (length > NAME_BYTES - 1) {
        memcpy(to, "...", 3);
        to += 3;
        path += length - (NAME_BYTES - 4);
        length = NAME_BYTES - 4;
    }
    st_printable(to, NAME_BYTES, path, length);
}

/* Reads more raw bytes behind those that are left. */
static int fill_raw(struct st_lines *lines, struct st_error *err) {
    if (lines->raw_at > 0) {
        memmove(lines->raw, lines->raw + lines->raw_at, lines->raw_end - lines->raw_at);
        lines->raw_end -= lines->raw_at;
        lines->raw_at = 0;
    }
    size_t room = RAW_BYTES - lines->raw_end;
    ssize_t n;
    if (lines->fd < 0) {
        size_t left = lines->memory_size - lines->memory_at;
        n = (ssize_t)(left < room ? left : room);
        if (n > 0)
            memcpy(lines->raw + lines->raw_end, lines->memory + lines->memory_at, (size_t)n);
        lines->memory_at += (size_t)n;
    } else {
        do {
            if (st_interrupted())
                return ST_FAIL(err, ST_ERR_INTERRUPTED, "%s: interrupted", lines->name);
            n = read(lines->fd, lines->raw + lines->raw_end, room);
        } while (n < 0 && errno == EINTR);
        if (n < 0 && errno == EISDIR)
            return ST_FAIL_NATIVE(err, ST_ERR_INPUT, errno,
                                  "%s: is a folder, a file of JSON lines was expected",
                                  lines->name);
        if (n < 0)
            return ST_FAIL_NATIVE(err, ST_ERR_IO, errno, "%s: %s", lines->name, strerror(errno));
    }
    if (n == 0)
        lines->raw_eof = true;
    lines->raw_end += (size_t)n;
    lines->read_bytes += n;
    return 0;
}

/* The first bytes say what the file is; the usual wrong ones get a hint. */
static int detect(struct st_lines *lines, struct st_error *err) {
    while (!lines->raw_eof && lines->raw_end < 16)
        ST_TRY(fill_raw(lines, err));
    const unsigned char *b = lines->raw;
    size_t n = lines->raw_end;
    if (n == 0)
        return ST_FAIL(err, ST_ERR_INPUT,
                       "%s: line 1: empty file, a header {\"kind\":\"steps\",...} was expected",
                       lines->name);
    if (n >= 6 && memcmp(b, "\xfd\x37zXZ", 6) == 0)
        return ST_FAIL(err, ST_ERR_INPUT,
                       "%s: compressed with xz, plain text or gzip was expected (xz -dc FILE | "
                       "steptape import -)",
                       lines->name);
    if (n >= 4 && memcmp(b, "\x28\xb5\x2f\xfd", 4) == 0)
        return ST_FAIL(err, ST_ERR_INPUT,
                       "%s: compressed with zstd, plain text or gzip was expected (zstd -dc FILE "
                       "| steptape import -)",
                       lines->name);
    if (n >= 15 && memcmp(b, "SQLite format 3", 15) == 0)
        return ST_FAIL(err, ST_ERR_INPUT,
                       "%s: an SQLite database, perhaps a tape already; JSON lines were expected",
                       lines->name);
    if (n < 2 || b[0] != 0x1f || b[1] != 0x8b)
        return 0;
    lines->gzip = lines->in_member = true;
    if (inflateInit2(&lines->z, 15 + 16) != Z_OK) {
        lines->gzip = false;
        return ST_FAIL_NOMEM(err);
    }
    return 0;
}

static int open_common(struct st_lines *lines, size_t max_line_bytes, struct st_error *err) {
    lines->max_line_bytes = max_line_bytes ? max_line_bytes : ST_LINES_DEFAULT_MAX_BYTES;
    lines->capacity = 2 * (size_t)RAW_BYTES;
    lines->raw = malloc(RAW_BYTES);
    lines->text = malloc(lines->capacity);
    if (!lines->raw || !lines->text)
        return ST_FAIL_NOMEM(err);
    return detect(lines, err);
}

int st_lines_open(const char *path, size_t max_line_bytes, struct st_lines **out,
                  struct st_error *err) {
    struct st_lines *lines = calloc(1, sizeof *lines);
    if (!lines)
        return ST_FAIL_NOMEM(err);
    bool standard = strcmp(path, "-") == 0;
    set_name(lines, standard ? "standard input" : path);
    int rc;
    lines->fd = standard ? dup(STDIN_FILENO) : open(path, O_RDONLY | O_CLOEXEC);
    if (lines->fd < 0 && errno == EINTR && st_interrupted()) { /* waiting for a pipe's writer */
        rc = ST_FAIL(err, ST_ERR_INTERRUPTED, "%s: interrupted", lines->name);
        goto out;
    }
    if (lines->fd < 0) {
        rc = ST_FAIL_NATIVE(err, ST_ERR_IO, errno, "%s: %s", lines->name, strerror(errno));
        goto out;
    }
    struct stat st;
    if (fstat(lines->fd, &st) == 0 && S_ISREG(st.st_mode))
        lines->total_bytes = st.st_size;
    rc = open_common(lines, max_line_bytes, err);
out:
    if (rc) {
        st_lines_close(lines);
        return rc;
    }
    *out = lines;
    return 0;
}

int st_lines_open_memory(const char *name, const void *data, size_t size, size_t max_line_bytes,
                         struct st_lines **out, struct st_error *err) {
    struct st_lines *lines = calloc(1, sizeof *lines);
    if (!lines)
        return ST_FAIL_NOMEM(err);
    set_name(lines, name);
    lines->fd = -1;
    lines->memory = data;
    lines->memory_size = size;
    lines->total_bytes = (int64_t)size;
    int rc = open_common(lines, max_line_bytes, err);
    if (rc) {
        st_lines_close(lines);
        return rc;
    }
    *out = lines;
    return 0;
}

void st_lines_close(struct st_lines *lines) {
    if (!lines)
        return;
    if (lines->fd >= 0)
        close(lines->fd);
    if (lines->gzip)
        inflateEnd(&lines->z);
    free(lines->raw);
    free(lines->text);
    free(lines);
}

/* Between members: another one, zeros to the end (tape drives pad so), or an error. */
static int next_member(struct st_lines *lines, struct st_error *err) {
    for (;;) {
        while (lines->raw_end - lines->raw_at < 2 && !lines->raw_eof)
            ST_TRY(fill_raw(lines, err));
        if (lines->raw_at == lines->raw_end) {
            lines->eof = true;
            return 0;
        }
        const unsigned char *b = lines->raw + lines->raw_at;
        if (lines->raw_end - lines->raw_at >= 2 && b[0] == 0x1f && b[1] == 0x8b) {
            lines->in_member = true;
            return inflateReset(&lines->z) == Z_OK ? 0 : ST_FAIL_NOMEM(err);
        }
        if (b[0] != 0)
            return ST_FAIL(
                err, ST_ERR_INPUT,
                "%s: byte %lld: not gzip data, its end or another member was expected", lines->name,
                (long long)(lines->read_bytes - (int64_t)lines->raw_end + (int64_t)lines->raw_at));
        lines->raw_at++;
    }
}

static int fill_from_gzip(struct st_lines *lines, struct st_error *err) {
    if (!lines->in_member) {
        ST_TRY(next_member(lines, err));
        if (lines->eof)
            return 0;
    }
    if (lines->raw_at == lines->raw_end && !lines->raw_eof)
        ST_TRY(fill_raw(lines, err));
    size_t room = lines->capacity - lines->end;
    if (room > UINT32_MAX / 2)
        room = UINT32_MAX / 2;
    lines->z.next_in = lines->raw + lines->raw_at;
    lines->z.avail_in = (unsigned)(lines->raw_end - lines->raw_at);
    lines->z.next_out = (unsigned char *)lines->text + lines->end;
    lines->z.avail_out = (unsigned)room;
    int z = inflate(&lines->z, Z_NO_FLUSH);
    lines->raw_at = lines->raw_end - lines->z.avail_in;
    lines->end += room - lines->z.avail_out;
    if (z == Z_STREAM_END) {
        lines->in_member = false;
        return 0;
    }
    if (z == Z_MEM_ERROR)
        return ST_FAIL_NOMEM(err);
    if (z != Z_OK && z != Z_BUF_ERROR)
        return ST_FAIL(err, ST_ERR_INPUT, "%s: near byte %lld: damaged gzip data (%s)", lines->name,
                       (long long)st_lines_bytes_read(lines),
                       lines->z.msg ? lines->z.msg : "no reason");
    if (lines->raw_at == lines->raw_end && lines->raw_eof && lines->z.avail_out > 0)
        return ST_FAIL(err, ST_ERR_INPUT,
                       "%s: cut off: the gzip data ends after %lld bytes, before its end mark",
                       lines->name, (long long)lines->read_bytes);
    return 0;
}

static int fill_text(struct st_lines *lines, struct st_error *err) {
    if (lines->begin > 0) {
        memmove(lines->text, lines->text + lines->begin, lines->end - lines->begin);
        lines->end -= lines->begin;
        lines->scanned -= lines->begin;
        lines->begin = 0;
    }
    if (lines->end > lines->max_line_bytes)
        return ST_FAIL(err, ST_ERR_INPUT, "%s: line %lld: longer than %zu bytes", lines->name,
                       (long long)lines->number + 1, lines->max_line_bytes);
    if (lines->capacity - lines->end < RAW_BYTES) {
        char *text = realloc(lines->text, lines->capacity * 2);
        if (!text)
            return ST_FAIL_NOMEM(err);
        lines->text = text;
        lines->capacity *= 2;
    }
    if (lines->gzip)
        return fill_from_gzip(lines, err);
    if (lines->raw_at == lines->raw_end && !lines->raw_eof)
        ST_TRY(fill_raw(lines, err));
    size_t n = lines->raw_end - lines->raw_at;
    memcpy(lines->text + lines->end, lines->raw + lines->raw_at, n);
    lines->end += n;
    lines->raw_at = lines->raw_end;
    lines->eof = lines->raw_eof;
    return 0;
}

int st_lines_next(struct st_lines *lines, const char **text, size_t *length, struct st_error *err) {
    for (;;) {
        char *newline = memchr(lines->text + lines->scanned, '\n', lines->end - lines->scanned);
        if (newline || lines->eof) {
            if (!newline && lines->begin == lines->end)
                return ST_DONE;
            lines->ended = newline != NULL;
            *text = lines->text + lines->begin;
            *length = (newline ? (size_t)(newline - lines->text) : lines->end) - lines->begin;
            if (*length > lines->max_line_bytes)
                return ST_FAIL(err, ST_ERR_INPUT, "%s: line %lld: longer than %zu bytes",
                               lines->name, (long long)lines->number + 1, lines->max_line_bytes);
            lines->begin += *length + (newline ? 1 : 0);
            lines->scanned = lines->begin;
            lines->number++;
            return 0;
        }
        lines->scanned = lines->end;
        ST_TRY(fill_text(lines, err));
    }
}

int64_t st_lines_number(const struct st_lines *lines) {
    return lines->number;
}

bool st_lines_ended(const struct st_lines *lines) {
    return lines->ended;
}

int64_t st_lines_bytes_read(const struct st_lines *lines) {
    return lines->read_bytes - (int64_t)(lines->raw_end - lines->raw_at);
}

int64_t st_lines_bytes_total(const struct st_lines *lines) {
    return lines->total_bytes;
}

const char *st_lines_name(const struct st_lines *lines) {
    return lines->name;
}
