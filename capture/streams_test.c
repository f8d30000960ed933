/* SPDX-License-Identifier: Apache-2.0 */
/* A recording with launches: those of the process get into its tape, others stay where they are. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <fcntl.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>
#include <cmocka.h>

#include "capture/testing.h"
#include "traces/format/launch_stream.h"

static char folder[] = "/tmp/steptape-streams-XXXXXX";
static char tape_path[64];

static void write_stream(const char *name, bool damaged) {
    struct st_launch_step step[4];
    struct st_bytes out = {0};
    char path[160];
    for (int i = 0; i < 4; i++)
        step[i] = (struct st_launch_step){.sequence = i,
                                          .level = ST_LEVEL_COUNT,
                                          .start_ns = 10 * i,
                                          .duration_ns = 5,
                                          .kernel_launches = 100 + i,
                                          .graph_launches = 1,
                                          .graph_kernels = -1};
    assert_int_equal(st_chunk_put(&out, ST_CHUNK_HEAD, "asked=count\n", 12, NULL), 0);
    assert_int_equal(st_chunk_put_steps(&out, step, 4, NULL), 0);
    if (damaged)
        assert_int_equal(st_chunk_put(&out, ST_CHUNK_LAUNCHES, "?", 1, NULL), 0);
    snprintf(path, sizeof path, "%s.recording/%s", tape_path, name);
    FILE *f = fopen(path, "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(out.data, 1, out.size, f), out.size);
    fclose(f);
    st_bytes_fini(&out);
}

static bool is_left(const char *name) {
    char path[160];
    snprintf(path, sizeof path, "%s.recording/%s", tape_path, name);
    return access(path, F_OK) == 0;
}

/* Records a few steps; before the close, streams are written. */
static void record(const char *mine, bool damaged) {
    struct st_test_engine_options options;
    struct steptape_recorder *recorder;
    struct steptape_recorder_options open = {.struct_size = sizeof open, .ring_bytes = 8 << 20};
    char message[512];
    st_test_engine_options_init(&options, 5);
    options.lawful = true;
    options.step_count = 4;
    struct st_test_recording *r = st_test_record(&options);
    char *json = st_test_header_json(&r->header);
    if (steptape_recorder_open(tape_path, json, &open, &recorder, message, sizeof message))
        fail_msg("%s", message);
    free(json);
    for (int32_t i = 0; i < r->step_count; i++) {
        struct st_test_call call;
        st_test_call_init(&call, &r->step[i], ST_TEST_RUNS);
        assert_int_equal(steptape_recorder_record_step(recorder, &call.step), 0);
        st_test_call_fini(&call);
    }
    write_stream(mine, damaged);
    write_stream("launches-1.stream", false);
    if (steptape_recorder_close(recorder, message, sizeof message))
        fail_msg("%s", message);
    assert_string_equal(message, tape_path);
    st_test_recording_destroy(r);
}

static void launches_get_into_the_tape(void **state) {
    (void)state;
    char mine[64];
    for (int again = 0; again < 2; again++) { /* the second name of a process */
        snprintf(mine, sizeof mine, again ? "launches-%ld-1.stream" : "launches-%ld.stream",
                 (long)getpid());
        record(mine, false);
        assert_int_equal(st_test_ask(tape_path, "SELECT sum(kernel_launches) FROM launch_step"),
                         406);
        assert_int_equal(
            st_test_ask(tape_path, "SELECT count(*) FROM launch_capture WHERE level = 'count'"), 1);
        assert_false(is_left(mine));
        assert_true(is_left("launches-1.stream"));
        unlink(tape_path);
    }
}

/* The steps matter more: what is wrong is a note. */
static void a_damaged_stream_is_noted(void **state) {
    (void)state;
    char mine[64];
    snprintf(mine, sizeof mine, "launches-%ld.stream", (long)getpid());
    record(mine, true);
    assert_int_equal(st_test_ask(tape_path, "SELECT count(*) FROM step"), 4);
    assert_int_equal(st_test_ask(tape_path, "SELECT count(*) FROM launch_step"), 4);
    assert_int_equal(
        st_test_ask(tape_path, "SELECT count(*) FROM recorder_note WHERE key = 'launches'"), 1);
}

/* A rank that recorded no step leaves its stream behind; the lock says whether it lives. */
static void streams_of_the_dead_are_removed(void **state) {
    (void)state;
    char path[160], message[512];
    snprintf(path, sizeof path, "%s.recording", tape_path);
    mkdir(path, 0700);
    write_stream("launches-1.stream", false);
    write_stream("launches-22-3.stream", false);
    write_stream("launches-x.stream", false);
    snprintf(path, sizeof path, "%s.recording/launches-1.stream", tape_path);
    int fd = open(path, O_RDONLY);
    assert_int_equal(flock(fd, LOCK_EX | LOCK_NB), 0);
    assert_int_not_equal(steptape_recover(tape_path, message, sizeof message), 0);
    assert_true(is_left("launches-1.stream"));
    assert_true(is_left("launches-x.stream")); /* nobody's */
    assert_false(is_left("launches-22-3.stream"));
    close(fd);
    assert_int_not_equal(steptape_recover(tape_path, message, sizeof message), 0);
    assert_false(is_left("launches-1.stream"));
    snprintf(path, sizeof path, "%s.recording/launches-x.stream", tape_path);
    unlink(path);
    assert_int_not_equal(steptape_recover(tape_path, message, sizeof message), 0);
    assert_false(is_left("."));
}

static int setup(void **state) {
    (void)state;
    if (!mkdtemp(folder))
        return -1;
    snprintf(tape_path, sizeof tape_path, "%s/x.tape", folder);
    return 0;
}

static int teardown(void **state) {
    (void)state;
    char command[96];
    snprintf(command, sizeof command, "rm -r %s", folder);
    return system(command);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(launches_get_into_the_tape),
        cmocka_unit_test(a_damaged_stream_is_noted),
        cmocka_unit_test(streams_of_the_dead_are_removed),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
