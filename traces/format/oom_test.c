/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Memory that runs out at the Nth allocation, for every N: writer, reader and verify then do their
 * work all the same or say ST_ERR_NOMEM.  They leave no file and (under AddressSanitizer) no leak.
 *
 * The linker leads our allocations here (--wrap); SQLite takes its own from us by configuration.
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
#include <sqlite3.h>

#include "traces/format/launch_code.h"
#include "traces/format/launch_stream.h"
#include "traces/format/launches.h"
#include "traces/format/reader.h"
#include "traces/format/testing.h"
#include "traces/format/verify.h"
#include "traces/format/writer.h"

static long count, fail_at; /* fail_at 0: never */
static bool for_good;       /* every later one fails as well */
static sqlite3_mem_methods usual;

static bool fails(void) {
    count++;
    return fail_at && (count == fail_at || (for_good && count > fail_at));
}

void *__real_malloc(size_t size);
void *__real_calloc(size_t items, size_t size);
void *__real_realloc(void *data, size_t size);
char *__real_strdup(const char *text);
int __real_compress2(Bytef *to, uLongf *to_size, const Bytef *from, uLong size, int level);
int __real_uncompress(Bytef *to, uLongf *to_size, const Bytef *from, uLong size);
void *__wrap_malloc(size_t size);
void *__wrap_calloc(size_t items, size_t size);
void *__wrap_realloc(void *data, size_t size);
char *__wrap_strdup(const char *text);
int __wrap_compress2(Bytef *to, uLongf *to_size, const Bytef *from, uLong size, int level);
int __wrap_uncompress(Bytef *to, uLongf *to_size, const Bytef *from, uLong size);

void *__wrap_malloc(size_t size) {
    return fails() ? NULL : __real_malloc(size);
}

void *__wrap_calloc(size_t items, size_t size) {
    return fails() ? NULL : __real_calloc(items, size);
}

void *__wrap_realloc(void *data, size_t size) {
    return fails() ? NULL : __real_realloc(data, size);
}

char *__wrap_strdup(const char *text) {
    return fails() ? NULL : __real_strdup(text);
}

int __wrap_compress2(Bytef *to, uLongf *to_size, const Bytef *from, uLong size, int level) {
    return fails() ? Z_MEM_ERROR : __real_compress2(to, to_size, from, size, level);
}

int __wrap_uncompress(Bytef *to, uLongf *to_size, const Bytef *from, uLong size) {
    return fails() ? Z_MEM_ERROR : __real_uncompress(to, to_size, from, size);
}

static void *sqlite_malloc(int size) {
    return fails() ? NULL : usual.xMalloc(size);
}

static void *sqlite_realloc(void *data, int size) {
    return fails() ? NULL : usual.xRealloc(data, size);
}

static struct st_test_recording *recording;

static int write_tape(struct st_error *err) {
    return st_test_write(recording, st_test_path("oom.tape"), err);
}

static int read_tape(struct st_error *err) {
    static const unsigned modes[] = {0, ST_READ_BLOCKS, ST_READ_TABLES};
    struct st_tape *tape;
    struct st_cursor *cursor = NULL;
    const struct st_step *step;
    const char *json;
    int rc = st_tape_open(st_test_path("oom.tape"), &tape, err);
    if (rc)
        return rc;
    for (int m = 0; m < 3 && !rc; m++) {
        cursor = NULL;
        rc = st_cursor_open(tape, modes[m], &cursor, err);
        while (!rc && (rc = st_cursor_next(cursor, &step, err)) == 0)
            rc = st_tape_check_json(tape, step->step_id, &json, err);
        if (rc == ST_DONE)
            rc = st_cursor_seek(cursor, 20, err);
        if (!rc)
            rc = st_cursor_next(cursor, &step, err);
        st_cursor_close(cursor);
    }
    st_tape_close(tape);
    return rc;
}

static int verify_tape(struct st_error *err) {
    struct st_verify_report report;
    return st_tape_verify(st_test_path("oom.tape"), &report, err);
}

/* A block whose launches are not in the order of their steps: of step 1, then of step 0. */
static void write_launches(void) {
    const struct st_header header = {.compress_ratio_count = -1,
                                     .prefix_caching = -1,
                                     .async_scheduling = -1,
                                     .clock_monotonic_ns = ST_UNKNOWN,
                                     .clock_realtime_ns = ST_UNKNOWN};
    const struct st_launch_site site = {.name = "kernel", .grid = {1, 1, 1}, .block = {1, 1, 1}};
    const struct st_launch_step steps[] = {{.sequence = 0}, {.sequence = 1}};
    struct st_launch_record launch[] = {{.sequence = 1, .correlation_id = 1},
                                        {.sequence = 0, .correlation_id = 2}};
    struct st_launch_encoder *encoder = NULL;
    struct st_bytes stream = {0}, definitions = {0}, block = {0};
    assert_int_equal(st_launch_encoder_create(&encoder, NULL), 0);
    assert_int_equal(st_launch_encoder_site(encoder, &site, &launch[0].site, NULL), 0);
    launch[1].site = launch[0].site;
    assert_int_equal(st_launch_encoder_add(encoder, launch, 2, NULL), 0);
    assert_int_equal(st_launch_encoder_definitions(encoder, &definitions, NULL), 0);
    assert_int_equal(st_launch_encoder_block(encoder, &block, NULL), 0);
    st_launch_encoder_destroy(encoder);
    st_chunk_put(&stream, ST_CHUNK_HEAD, "asked=node\n", 11, NULL);
    st_chunk_put(&stream, ST_CHUNK_DEFINITIONS, definitions.data, definitions.size, NULL);
    st_chunk_put(&stream, ST_CHUNK_LAUNCHES, block.data, block.size, NULL);
    st_chunk_put_steps(&stream, steps, 2, NULL);
    st_chunk_put(&stream, ST_CHUNK_END, "", 0, NULL);
    FILE *file = fopen(st_test_path("launches.stream"), "wb");
    assert_non_null(file);
    assert_int_equal(fwrite(stream.data, 1, stream.size, file), stream.size);
    assert_int_equal(fclose(file), 0);
    st_bytes_fini(&stream);
    st_bytes_fini(&definitions);
    st_bytes_fini(&block);
    struct st_writer *writer = NULL;
    assert_int_equal(st_writer_open(st_test_path("launches.tape"), &header, &writer, NULL), 0);
    for (int64_t i = 0; i < 2; i++) {
        struct st_step step = st_test_bare_step(i);
        assert_int_equal(st_writer_add(writer, &step, NULL, NULL), 0);
    }
    assert_int_equal(st_writer_launches(writer, st_test_path("launches.stream"), NULL, NULL), 0);
    assert_int_equal(st_writer_finish(writer, NULL), 0);
}

static int read_launches(struct st_error *err) {
    const struct st_launch_record *list;
    struct st_launches *launches = NULL;
    struct st_tape *tape;
    int rc = st_tape_open(st_test_path("launches.tape"), &tape, err);
    if (rc)
        return rc;
    rc = st_launches_open(st_tape_db(tape), "launches.tape", &launches, err);
    for (int64_t step = 0; step < 2 && !rc; step++) {
        int64_t found;
        rc = st_launches_step(launches, step, &list, &found, err);
        if (!rc)
            assert_int_equal(found, 1);
    }
    st_launches_close(launches);
    st_tape_close(tape);
    return rc;
}

/* Each N in turn, and unless all are wanted from 100 on in larger steps; to the N that nothing
 * reaches any more. */
static void at_every_allocation(int (*work)(struct st_error *err), bool writes, bool all) {
    long runs = 0, tolerated = 0;
    for (long n = 1;; n += all ? 1 : 1 + n / 100) {
        struct st_error err = {0};
        if (writes)
            unlink(st_test_path("oom.tape"));
        count = 0;
        fail_at = n;
        sqlite3_int64 held = sqlite3_memory_used();
        int rc = work(&err);
        bool reached = count >= n;
        fail_at = 0;
        if (sqlite3_memory_used() != held)
            fail_msg("allocation %ld: SQLite still holds %lld bytes (%d, %s:%d %s)", n,
                     (long long)(sqlite3_memory_used() - held), rc, err.file, err.line, err.msg);
        if (rc && (rc != ST_ERR_NOMEM || !reached))
            fail_msg("allocation %ld: %d: %s (%s:%d)", n, rc, err.msg, err.file, err.line);
        if (rc && writes && st_test_file_count())
            fail_msg("allocation %ld: a file is left", n);
        tolerated += !rc && reached;
        runs++;
        if (!reached)
            break;
    }
    print_message("%ld runs, %ld of them did without\n", runs, tolerated);
}

static void writer_once(void **state) {
    (void)state;
    at_every_allocation(write_tape, true, false);
}

static void writer_for_good(void **state) {
    (void)state;
    for_good = true;
    at_every_allocation(write_tape, true, false);
    for_good = false;
}

static void reader_once(void **state) {
    (void)state;
    assert_int_equal(write_tape(NULL), 0);
    at_every_allocation(read_tape, false, false);
}

static void reader_for_good(void **state) {
    (void)state;
    for_good = true;
    at_every_allocation(read_tape, false, false);
    for_good = false;
}

static void verify_once(void **state) {
    (void)state;
    at_every_allocation(verify_tape, false, false);
}

static void launches_once(void **state) {
    (void)state;
    write_launches();
    at_every_allocation(read_launches, false, true);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(writer_once), cmocka_unit_test(writer_for_good),
        cmocka_unit_test(reader_once), cmocka_unit_test(reader_for_good),
        cmocka_unit_test(verify_once), cmocka_unit_test(launches_once),
    };
    struct st_test_engine_options options;
    st_test_engine_options_init(&options, 11);
    options.step_count = 40;
    options.group_count = 3;
    options.max_running = 4;
    options.num_blocks = 300;
    options.check = 20;
    recording = st_test_record(&options);
    sqlite3_config(SQLITE_CONFIG_GETMALLOC, &usual);
    sqlite3_mem_methods ours = usual;
    ours.xMalloc = sqlite_malloc;
    ours.xRealloc = sqlite_realloc;
    sqlite3_config(SQLITE_CONFIG_MALLOC, &ours);
    sqlite3_initialize();
    int rc = cmocka_run_group_tests(tests, NULL, NULL);
    st_test_recording_destroy(recording);
    return rc;
}
