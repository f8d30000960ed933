/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Fuzzes the importer: the input is a file in the interchange format, plain or gzip.
 *
 * Whatever it holds, reading ends in steps or in one line of error.  What was read is printed; the
 * print must read as the same, and so must the print of a tape that was made of it.
 */
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "traces/format/reader.h"
#include "traces/format/writer.h"
#include "traces/interchange/parse.h"
#include "traces/interchange/print.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void broken(const char *what, const struct st_error *err) {
    fprintf(stderr, "%s: %s\n", what, err->msg);
    abort();
}

/* Memory that is out is no fault of ours; an error is one line that is not empty. */
static void check_error(const struct st_error *err) {
    if (err->msg[0] == 0 || strchr(err->msg, '\n'))
        broken("an error is one line", err);
}

/* Prints what can be read to out; ST_DONE when that is all of it. */
static int print_all(struct st_interchange *in, struct st_out *out, struct st_error *err) {
    const struct st_step *step;
    const char *check_json;
    int rc;
    st_print_header(out, st_interchange_header(in));
    while ((rc = st_interchange_next(in, &step, &check_json, err)) == 0)
        st_print_step(out, step, check_json);
    return rc;
}

static void same_text(const struct st_out *a, const struct st_out *b, const char *what) {
    size_t size_a, size_b;
    const char *text_a = st_out_memory(a, &size_a), *text_b = st_out_memory(b, &size_b);
    if (size_a == size_b && memcmp(text_a, text_b, size_a) == 0)
        return;
    fprintf(stderr, "%s\n%.*s\n%.*s\n", what, (int)size_a, text_a, (int)size_b, text_b);
    abort();
}

static void read_again(const struct st_out *printed) {
    struct st_interchange *in;
    struct st_out *out;
    struct st_error err = {0};
    size_t size;
    const char *text = st_out_memory(printed, &size);
    if (st_out_open_memory(&out, &err) != 0)
        return;
    if (st_interchange_open_memory("again", text, size, NULL, &in, &err) != 0)
        broken("the printed header is refused", &err);
    if (print_all(in, out, &err) != ST_DONE)
        broken("a printed step is refused", &err);
    same_text(printed, out, "printed, read and printed again:");
    st_out_abort(out);
    st_interchange_close(in);
}

static int write_tape(const struct st_out *printed, const char *path, struct st_error *err) {
    struct st_interchange *in = NULL;
    struct st_writer *writer = NULL;
    const struct st_step *step;
    const char *check_json;
    size_t size;
    const char *text = st_out_memory(printed, &size);
    int rc;
    ST_TRY_OUT(st_interchange_open_memory("again", text, size, NULL, &in, err));
    ST_TRY_OUT(st_writer_open(path, st_interchange_header(in), &writer, err));
    while ((rc = st_interchange_next(in, &step, &check_json, err)) == 0)
        ST_TRY_OUT(st_writer_add(writer, step, check_json, err));
    if (rc == ST_DONE) {
        struct st_writer *whole = writer;
        writer = NULL;
        rc = st_writer_finish(whole, err);
    }
out:
    st_writer_abort(writer);
    st_interchange_close(in);
    return rc;
}

static int print_tape(const char *path, struct st_out *out, struct st_error *err) {
    struct st_tape *tape = NULL;
    struct st_cursor *cursor = NULL;
    const struct st_step *step;
    const char *check_json;
    int rc;
    ST_TRY_OUT(st_tape_open(path, &tape, err));
    ST_TRY_OUT(st_cursor_open(tape, ST_READ_TABLES, &cursor, err));
    st_print_header(out, st_tape_header(tape));
    while ((rc = st_cursor_next(cursor, &step, err)) == 0) {
        ST_TRY_OUT(st_tape_check_json(tape, step->step_id, &check_json, err));
        st_print_step(out, step, check_json);
    }
out:
    st_cursor_close(cursor);
    st_tape_close(tape);
    return rc == ST_DONE ? 0 : rc;
}

static void through_a_tape(const struct st_out *printed) {
    char path[64];
    struct st_error err = {0};
    struct st_out *out;
    snprintf(path, sizeof path, "%s/steptape-fuzz-import-%ld.tape",
             access("/dev/shm", W_OK) == 0 ? "/dev/shm" : "/tmp", (long)getpid());
    if (st_out_open_memory(&out, &err) != 0)
        return;
    int rc = write_tape(printed, path, &err);
    if (rc != 0 && rc != ST_ERR_IO && rc != ST_ERR_NOMEM)
        broken("the writer refuses what the parser took", &err);
    if (rc == 0 && print_tape(path, out, &err) != 0)
        broken("the tape cannot be read", &err);
    if (rc == 0)
        same_text(printed, out, "printed, written to a tape, read and printed again:");
    unlink(path);
    st_out_abort(out);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    struct st_interchange_options options = {.max_line_bytes = 1 << 20};
    struct st_interchange *in = NULL;
    struct st_out *out;
    struct st_error err = {0};
    /* The options are part of what is fuzzed, told by the length so that inputs stay readable. */
    options.ignore_unknown = size & 1;
    options.no_check = size & 2;
    if (st_out_open_memory(&out, &err) != 0)
        return 0;
    int rc = st_interchange_open_memory("fuzz", data, size, &options, &in, &err);
    if (rc == 0)
        rc = print_all(in, out, &err);
    if (rc == ST_DONE) {
        read_again(out);
        through_a_tape(out);
    } else {
        check_error(&err);
    }
    for (int kind = 0; in && kind < ST_WARN_KINDS; kind++) {
        const char *text;
        if (st_interchange_warning(in, kind, &text) > 0 && strchr(text, '\n'))
            abort();
    }
    st_interchange_close(in);
    st_out_abort(out);
    return 0;
}
