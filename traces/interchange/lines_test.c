/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Lines out of plain text and gzip: members one after another, files that are cut off, and files
 * that are something else.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <zlib.h>

#include <cmocka.h>

#include "traces/interchange/lines.h"

/* Appends data as one gzip member; returns the new size. */
static size_t add_member(unsigned char *to, size_t at, size_t capacity, const void *data,
                         size_t size) {
    z_stream z = {0};
    assert_int_equal(deflateInit2(&z, 6, Z_DEFLATED, 15 + 16, 8, Z_DEFAULT_STRATEGY), Z_OK);
    z.next_in = (unsigned char *)(uintptr_t)data;
    z.avail_in = (unsigned)size;
    z.next_out = to + at;
    z.avail_out = (unsigned)(capacity - at);
    assert_int_equal(deflate(&z, Z_FINISH), Z_STREAM_END);
    at = capacity - z.avail_out;
    deflateEnd(&z);
    return at;
}

static int open_bytes(const void *data, size_t size, struct st_lines **lines,
                      struct st_error *err) {
    return st_lines_open_memory("in", data, size, 0, lines, err);
}

static void expect_line(struct st_lines *lines, const char *expected) {
    const char *text;
    size_t length;
    struct st_error err = {0};
    assert_int_equal(st_lines_next(lines, &text, &length, &err), 0);
    assert_int_equal(length, strlen(expected));
    assert_memory_equal(text, expected, length);
}

static void expect_end(struct st_lines *lines) {
    const char *text;
    size_t length;
    assert_int_equal(st_lines_next(lines, &text, &length, NULL), ST_DONE);
    assert_int_equal(st_lines_next(lines, &text, &length, NULL), ST_DONE);
}

static void plain_lines(void **state) {
    (void)state;
    struct st_lines *lines;
    assert_int_equal(open_bytes("a\n\nbc", 5, &lines, NULL), 0);
    expect_line(lines, "a");
    assert_true(st_lines_ended(lines));
    expect_line(lines, "");
    assert_int_equal(st_lines_number(lines), 2);
    expect_line(lines, "bc");
    assert_false(st_lines_ended(lines));
    expect_end(lines);
    assert_int_equal(st_lines_bytes_read(lines), 5);
    assert_int_equal(st_lines_bytes_total(lines), 5);
    st_lines_close(lines);
}

static void lines_longer_than_the_buffers(void **state) {
    (void)state;
    enum { LONG = 1000000 };
    char *text = malloc(LONG + 3);
    assert_non_null(text);
    for (int i = 0; i < LONG; i++)
        text[i] = (char)('a' + i % 26);
    memcpy(text + LONG, "\nx", 3);
    struct st_lines *lines;
    assert_int_equal(open_bytes(text, LONG + 2, &lines, NULL), 0);
    const char *line;
    size_t length;
    assert_int_equal(st_lines_next(lines, &line, &length, NULL), 0);
    assert_int_equal(length, LONG);
    assert_memory_equal(line, text, LONG);
    expect_line(lines, "x");
    st_lines_close(lines);
    free(text);
}

static void gzip_members_follow_one_another(void **state) {
    (void)state;
    unsigned char data[1000];
    size_t size = add_member(data, 0, sizeof data, "one\ntw", 6);
    size = add_member(data, size, sizeof data, "", 0);
    size = add_member(data, size, sizeof data, "o\nthree\n", 8);
    memset(data + size, 0, 100); /* padding, as tape drives leave it */
    struct st_lines *lines;
    for (int padding = 0; padding <= 100; padding += 100) {
        assert_int_equal(open_bytes(data, size + (size_t)padding, &lines, NULL), 0);
        expect_line(lines, "one");
        expect_line(lines, "two");
        expect_line(lines, "three");
        expect_end(lines);
        st_lines_close(lines);
    }
}

static void expect_failure(const void *data, size_t size, const char *expected) {
    struct st_lines *lines = NULL;
    struct st_error err = {0};
    const char *text;
    size_t length;
    int rc = open_bytes(data, size, &lines, &err);
    while (rc == 0)
        rc = st_lines_next(lines, &text, &length, &err);
    assert_int_equal(rc, ST_ERR_INPUT);
    assert_string_equal(err.msg, expected);
    st_lines_close(lines);
}

static void gzip_that_is_damaged(void **state) {
    (void)state;
    unsigned char data[1000];
    size_t size = add_member(data, 0, sizeof data, "one\ntwo\n", 8);
    for (size_t cut = 2; cut < size; cut++) {
        struct st_lines *lines = NULL;
        struct st_error err = {0};
        const char *text;
        size_t length;
        int rc = open_bytes(data, cut, &lines, &err);
        while (rc == 0)
            rc = st_lines_next(lines, &text, &length, &err);
        assert_int_equal(rc, ST_ERR_INPUT);
        assert_non_null(strstr(err.msg, "in: cut off: the gzip data ends after "));
        st_lines_close(lines);
    }
    data[size] = 'x';
    char expected[100];
    snprintf(expected, sizeof expected,
             "in: byte %zu: not gzip data, its end or another member was expected", size);
    expect_failure(data, size + 1, expected);
    data[size - 5] ^= 1; /* of the checksum */
    snprintf(expected, sizeof expected,
             "in: near byte %zu: damaged gzip data (incorrect data check)", size - 4);
    expect_failure(data, size, expected);
}

static void what_is_something_else_gets_a_hint(void **state) {
    (void)state;
    expect_failure("", 0, "in: line 1: empty file, a header {\"kind\":\"steps\",...} was expected");
    expect_failure("\xfd\x37zXZ\0abc", 9,
                   "in: compressed with xz, plain text or gzip was expected (xz -dc FILE | "
                   "steptape import -)");
    expect_failure("\x28\xb5\x2f\xfd", 4,
                   "in: compressed with zstd, plain text or gzip was expected (zstd -dc FILE | "
                   "steptape import -)");
    expect_failure("SQLite format 3", 16,
                   "in: an SQLite database, perhaps a tape already; JSON lines were expected");
    struct st_lines *lines;
    struct st_error err = {0};
    const char *text;
    size_t length;
    int rc = st_lines_open("/", 0, &lines, &err);
    assert_int_equal(rc, ST_ERR_INPUT);
    assert_string_equal(err.msg, "/: is a folder, a file of JSON lines was expected");
    assert_int_equal(st_lines_open("/none/such", 0, &lines, &err), ST_ERR_IO);
    assert_string_equal(err.msg, "/none/such: No such file or directory");
    assert_int_equal(open_bytes("\x1f", 1, &lines, &err), 0); /* half a magic: text */
    assert_int_equal(st_lines_next(lines, &text, &length, &err), 0);
    st_lines_close(lines);
}

static void names_are_printable_and_short(void **state) {
    (void)state;
    struct st_lines *lines;
    char name[400];
    memset(name, 'n', sizeof name);
    memcpy(name + sizeof name - 6, "\n.end", 6);
    assert_int_equal(st_lines_open_memory(name, "x", 1, 0, &lines, NULL), 0);
    const char *shown = st_lines_name(lines);
    assert_true(strlen(shown) < 200);
    assert_memory_equal(shown, "...nnn", 6);
    assert_string_equal(shown + strlen(shown) - 5, "?.end");
    st_lines_close(lines);
    char small[4];
    assert_string_equal(st_printable(small, sizeof small, "ab\xc3\xa9", 4), "ab");
    assert_string_equal(st_printable(small, sizeof small, "a\xc3\xa9", 3), "a\xc3\xa9");
}

static void files_and_pipes(void **state) {
    (void)state;
    char path[] = "/tmp/steptape-lines-XXXXXX";
    int fd = mkstemp(path);
    assert_true(fd >= 0);
    unsigned char data[200];
    size_t size = add_member(data, 0, sizeof data, "one\n", 4);
    assert_int_equal(write(fd, data, size), size);
    close(fd);
    struct st_lines *lines;
    assert_int_equal(st_lines_open(path, 0, &lines, NULL), 0);
    assert_int_equal(st_lines_bytes_total(lines), size);
    expect_line(lines, "one");
    expect_end(lines);
    st_lines_close(lines);
    unlink(path);

    int ends[2];
    int saved = dup(STDIN_FILENO);
    assert_int_equal(pipe(ends), 0);
    assert_int_equal(write(ends[1], data, size), size);
    close(ends[1]);
    assert_true(dup2(ends[0], STDIN_FILENO) >= 0);
    assert_int_equal(st_lines_open("-", 0, &lines, NULL), 0);
    assert_string_equal(st_lines_name(lines), "standard input");
    assert_int_equal(st_lines_bytes_total(lines), 0);
    expect_line(lines, "one");
    expect_end(lines);
    st_lines_close(lines);
    close(ends[0]);
    if (saved >= 0) {
        dup2(saved, STDIN_FILENO);
        close(saved);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(plain_lines),
        cmocka_unit_test(lines_longer_than_the_buffers),
        cmocka_unit_test(gzip_members_follow_one_another),
        cmocka_unit_test(gzip_that_is_damaged),
        cmocka_unit_test(what_is_something_else_gets_a_hint),
        cmocka_unit_test(names_are_printable_and_short),
        cmocka_unit_test(files_and_pipes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
