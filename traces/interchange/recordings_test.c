/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Every recording of the folders in STEPTAPE_RECORDINGS (colon-separated): parse, write a tape,
 * read it, print.  Each printed line says the same as the line of the recording, key order, white
 * space and keys that are null aside.  Without the variable, or without recordings: skipped.
 */
#include <dirent.h>
#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <jansson.h>

#include "traces/format/reader.h"
#include "traces/format/writer.h"
#include "traces/interchange/lines.h"
#include "traces/interchange/parse.h"
#include "traces/interchange/print.h"

enum { SKIPPED = 77 };

static int write_tape(const char *recording, const char *path, struct st_error *err) {
    struct st_interchange *in = NULL;
    struct st_writer *writer = NULL;
    const struct st_step *step;
    const char *check_json;
    int rc;
    ST_TRY_OUT(st_interchange_open(recording, NULL, &in, err));
    ST_TRY_OUT(st_writer_open(path, st_interchange_header(in), &writer, err));
    while ((rc = st_interchange_next(in, &step, &check_json, err)) == 0)
        ST_TRY_OUT(st_writer_add(writer, step, check_json, err));
    if (rc == ST_DONE) {
        struct st_writer *whole = writer;
        writer = NULL;
        rc = st_writer_finish(whole, err);
    }
    for (int kind = 0; rc == 0 && kind < ST_WARN_KINDS; kind++) {
        const char *text;
        if (st_interchange_warning(in, kind, &text) > 0)
            printf("%s: warning: %s\n", recording, text);
    }
out:
    st_writer_abort(writer);
    st_interchange_close(in);
    return rc;
}

static json_t *without_nulls(const char *text, size_t size) {
    json_t *object = json_loadb(text, size, 0, NULL);
    const char *key;
    json_t *value;
    void *next;
    json_object_foreach_safe(object, next, key, value) {
        if (json_is_null(value))
            json_object_del(object, key);
    }
    return object;
}

/* The next line of the recording against what is printed. */
static int compare(struct st_lines *lines, struct st_out *out, struct st_error *err) {
    const char *text;
    size_t length, size;
    if (st_lines_next(lines, &text, &length, err) != 0)
        return ST_FAIL(err, ST_ERR_MISMATCH, "the tape holds more steps than the recording");
    json_t *want = without_nulls(text, length);
    text = st_out_memory(out, &size);
    json_t *got = without_nulls(text, size - 1);
    bool same = want && got && json_equal(want, got);
    json_decref(want);
    json_decref(got);
    return same ? 0
                : ST_FAIL(err, ST_ERR_MISMATCH, "%s: line %" PRId64 " comes back as %.200s",
                          st_lines_name(lines), st_lines_number(lines), text);
}

static int print_and_compare(struct st_lines *lines, const struct st_header *header,
                             const struct st_step *step, const char *check_json,
                             struct st_error *err) {
    struct st_out *out;
    ST_TRY(st_out_open_memory(&out, err));
    if (header)
        st_print_header(out, header);
    else
        st_print_step(out, step, check_json);
    st_out_bytes(out, "", 1); /* ends the text for the message */
    int rc = compare(lines, out, err);
    st_out_abort(out);
    return rc;
}

static int compare_tape(const char *recording, const char *path, struct st_error *err) {
    struct st_tape *tape = NULL;
    struct st_cursor *cursor = NULL;
    struct st_lines *lines = NULL;
    const struct st_step *step;
    const char *check_json, *text;
    size_t length;
    int rc;
    ST_TRY_OUT(st_lines_open(recording, 0, &lines, err));
    ST_TRY_OUT(st_tape_open(path, &tape, err));
    ST_TRY_OUT(st_cursor_open(tape, ST_READ_BLOCKS, &cursor, err));
    ST_TRY_OUT(print_and_compare(lines, st_tape_header(tape), NULL, NULL, err));
    while ((rc = st_cursor_next(cursor, &step, err)) == 0) {
        ST_TRY_OUT(st_tape_check_json(tape, step->step_id, &check_json, err));
        ST_TRY_OUT(print_and_compare(lines, NULL, step, check_json, err));
    }
    if (rc == ST_DONE && st_lines_next(lines, &text, &length, err) == 0)
        rc = ST_FAIL(err, ST_ERR_MISMATCH, "%s: the tape ends before line %" PRId64, recording,
                     st_lines_number(lines));
out:
    st_cursor_close(cursor);
    st_tape_close(tape);
    st_lines_close(lines);
    return rc == ST_DONE ? 0 : rc;
}

static int try_recording(const char *recording) {
    struct st_error err = {0};
    char path[64];
    snprintf(path, sizeof path, "/tmp/steptape-recordings-%ld.tape", (long)getpid());
    int rc = write_tape(recording, path, &err);
    if (rc == 0)
        rc = compare_tape(recording, path, &err);
    unlink(path);
    if (rc)
        fprintf(stderr, "%s: %s\n", recording, err.msg);
    return rc;
}

static int is_recording(const struct dirent *entry) {
    const char *end = strstr(entry->d_name, ".jsonl");
    return end && (strcmp(end, ".jsonl") == 0 || strcmp(end, ".jsonl.gz") == 0);
}

static int try_folder(const char *folder, int *failed) {
    struct dirent **entries;
    int count = scandir(folder, &entries, is_recording, alphasort);
    if (count < 0) {
        perror(folder);
        ++*failed;
        return 0;
    }
    for (int i = 0; i < count; i++) {
        char path[4096];
        snprintf(path, sizeof path, "%s/%s", folder, entries[i]->d_name);
        *failed += try_recording(path) != 0;
        free(entries[i]);
    }
    free(entries);
    return count;
}

int main(void) {
    const char *folders = getenv("STEPTAPE_RECORDINGS");
    if (!folders || !*folders)
        return SKIPPED;
    char *list = strdup(folders), *rest = NULL;
    if (!list)
        return 1;
    int count = 0, failed = 0;
    for (char *folder = strtok_r(list, ":", &rest); folder; folder = strtok_r(NULL, ":", &rest))
        count += try_folder(folder, &failed);
    free(list);
    printf("%d recordings, %d failed\n", count, failed);
    return failed ? 1 : count ? 0 : SKIPPED;
}
