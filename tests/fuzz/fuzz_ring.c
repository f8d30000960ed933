/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Fuzzes the reader of rings: the input is what is left of a recorder's ring file.  Whatever it
 * holds, it ends in steps or in one line of error, and what was read makes a tape that verifies.
 *
 * So that mutations get past the hashes, the first byte says whether they are set right first.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

#include "capture/drain.h"
#include "capture/ring.h"
#include "traces/format/verify.h"
#include "traces/interchange/parse.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static char path[80];

static void remove_file(void) {
    unlink(path);
}

static void one_line(int rc, const struct st_error *err) {
    if (rc < 0 && (err->msg[0] == 0 || strchr(err->msg, '\n')))
        abort();
}

/* The hashes of the header's text and of every record that can be walked to. */
static void set_hashes(uint8_t *bytes, size_t size) {
    struct st_ring_head *head = (struct st_ring_head *)(void *)bytes;
    if (size < sizeof *head)
        return;
    if (head->text_at <= size && head->text_size <= size - head->text_at)
        head->text_hash = XXH3_64bits(bytes + head->text_at, head->text_size);
    if (head->data_at > size || head->data_capacity > size - head->data_at || head->data_at % 8 ||
        head->data_capacity == 0)
        return;
    uint64_t at = atomic_load(&head->tail) % head->data_capacity;
    while (at % 8 == 0 && head->data_capacity - at >= sizeof(struct st_ring_record)) {
        struct st_ring_record *record = (void *)(bytes + head->data_at + at);
        if (record->size < sizeof *record || record->size > head->data_capacity - at ||
            record->size % 8)
            return;
        record->hash = XXH3_64bits((uint8_t *)record + ST_RING_HASHED_FROM,
                                   record->size - ST_RING_HASHED_FROM);
        at += record->size;
    }
}

static void read_ring(const struct st_ring_file *file) {
    struct st_interchange *in;
    struct st_error err = {0};
    struct st_drain drain;
    struct st_ring_view view = file->view;
    const struct st_ring_record *record;
    int rc = st_interchange_open_memory("ring", file->text, file->head->text_size, NULL, &in, &err);
    one_line(rc, &err);
    if (rc)
        return;
    rc = st_drain_open(&drain, path, st_interchange_header(in), &err);
    one_line(rc, &err);
    while (!rc && (rc = st_ring_next(&view, &record, &err)) == 0)
        rc = st_drain_record(&drain, record, &err);
    one_line(rc, &err);
    /* A step that the writer refused half way ends it; all before it is a tape. */
    bool whole = rc == ST_DONE;
    if (drain.writer)
        rc = st_drain_finish(&drain, file, true, NULL, &err);
    one_line(rc, &err);
    if (whole) {
        struct st_verify_report report;
        if (rc || st_tape_verify(path, &report, &err))
            abort();
    }
    st_interchange_close(in);
    unlink(path);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    struct st_ring_file file;
    struct st_error err = {0};
    if (!path[0]) {
        const char *folder = access("/dev/shm", W_OK) == 0 ? "/dev/shm" : "/tmp";
        snprintf(path, sizeof path, "%s/steptape-fuzz-ring-%ld.part", folder, (long)getpid());
        atexit(remove_file);
    }
    if (size < 1)
        return 0;
    uint8_t *bytes = malloc(size);
    if (!bytes)
        return 0;
    memcpy(bytes, data + 1, size - 1);
    if (data[0] & 1)
        set_hashes(bytes, size - 1);
    int rc = st_ring_open_bytes("ring", bytes, size - 1, &file, &err);
    one_line(rc, &err);
    if (!rc)
        read_ring(&file);
    free(bytes);
    return 0;
}
