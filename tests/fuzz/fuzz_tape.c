/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Fuzzes the reader of tapes: the input is a tape.  Whatever it holds, opening, verifying, seeking
 * and reading it end in steps or in one line of error, and the file is not changed.
 */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "traces/format/reader.h"
#include "traces/format/verify.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { MAX_STEPS = 300, MAX_TOKENS = 1 << 20 };

static char path[64];
static volatile int64_t seen; /* so that what is read is not left out */

static void remove_file(void) {
    unlink(path);
}

/* In memory where there is such a folder: a file a run, thousands of runs a second. */
static void write_input(const uint8_t *data, size_t size) {
    if (!path[0]) {
        const char *folder = access("/dev/shm", W_OK) == 0 ? "/dev/shm" : "/tmp";
        snprintf(path, sizeof path, "%s/steptape-fuzz-%ld.tape", folder, (long)getpid());
        atexit(remove_file);
    }
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0600);
    if (fd < 0 || write(fd, data, size) != (ssize_t)size)
        abort();
    close(fd);
}

static void one_line(int rc, const struct st_error *err) {
    if (rc < 0 && (err->msg[0] == 0 || strchr(err->msg, '\n')))
        abort();
}

static void look_at(struct st_cursor *cursor, const struct st_step *step) {
    int64_t sum = 0;
    for (int32_t g = 0; g < step->group_count; g++) {
        for (int32_t row = 0; row < step->request_count; row++) {
            const int32_t *id;
            int32_t count;
            if (st_cursor_block_table(cursor, g, row, &id, &count, NULL) == 0)
                for (int32_t i = 0; i < count; i++)
                    sum += id[i];
        }
        if (step->token_count > MAX_TOKENS)
            continue;
        int64_t *slot = malloc((size_t)(step->token_count + 1) * sizeof *slot);
        if (slot && st_cursor_slot_mapping(cursor, g, slot, NULL) == 0)
            for (int64_t i = 0; i < step->token_count; i++)
                sum += slot[i];
        free(slot);
    }
    seen = sum;
}

static void read_tape(struct st_tape *tape, unsigned what) {
    struct st_cursor *cursor = NULL;
    struct st_error err = {0};
    const struct st_step *step;
    const char *json;
    int rc = st_cursor_open(tape, what, &cursor, &err);
    for (int i = 0; rc == 0 && i < MAX_STEPS; i++) {
        rc = st_cursor_next(cursor, &step, &err);
        if (rc == 0)
            look_at(cursor, step);
    }
    one_line(rc, &err);
    if (cursor) {
        int64_t middle = st_tape_first_step(tape) + st_tape_step_count(tape) / 2;
        rc = st_cursor_seek(cursor, middle, &err);
        if (rc == 0 && st_cursor_next(cursor, &step, &err) == 0)
            look_at(cursor, step);
        one_line(rc, &err);
        rc = st_tape_check_json(tape, middle, &json, &err);
        one_line(rc, &err);
    }
    st_cursor_close(cursor);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    struct st_verify_report report;
    struct st_tape *tape;
    struct st_error err = {0};
    write_input(data, size);
    int rc = st_tape_open(path, &tape, &err);
    one_line(rc, &err);
    if (rc)
        return 0;
    read_tape(tape, 0);
    read_tape(tape, ST_READ_BLOCKS);
    read_tape(tape, ST_READ_TABLES);
    st_tape_close(tape);
    rc = st_tape_verify(path, &report, &err);
    one_line(rc, &err);
    return 0;
}
