/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the writer refuses, what stops it, and what is left behind then: an older file under the
 * name stays as it was, and no temporary file remains.
 */
#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "traces/format/reader.h"
#include "traces/format/requests.h"
#include "traces/format/testing.h"
#include "traces/format/writer.h"

static const struct st_member member = {ST_MEMBER_KV, 1, 1, -1, -1};
static const struct st_group group = {0, 4, 1, &member};
static const struct st_header header = {.compress_ratio_count = -1,
                                        .max_model_len = -1,
                                        .num_blocks = 100,
                                        .group_count = 1,
                                        .groups = &group};

static int64_t request_id[2] = {1, 2};
static int32_t query_len[2] = {4, 1}, start[2] = {0, 0}, prompt_len[2] = {4, 1};
static int32_t offset[3] = {0, 1, 2}, block_id[2] = {1, 2};
static const struct st_row_blocks blocks = {offset, block_id};

/* A first step of two requests that is right. */
static struct st_step good_step(void) {
    return (struct st_step){.step_id = 0,
                            .zeroed = ST_UNKNOWN,
                            .request_count = 2,
                            .request_id = request_id,
                            .query_len = query_len,
                            .num_computed_tokens = start,
                            .new_requests = {2, request_id},
                            .new_prompt_len = prompt_len,
                            .replaced = {-1, NULL},
                            .group_count = 1,
                            .blocks = &blocks};
}

static void expect_error(int rc, int want, const struct st_error *err, const char *text) {
    if (rc != want || !strstr(err->msg, text))
        fail_msg("%d, \"%s\": %d, \"%s\" was expected", rc, rc ? err->msg : "", want, text);
}

/* The step is refused, every later call gives an error, and nothing is left behind. */
static void refused(struct st_step step, const char *text) {
    struct st_writer *writer;
    struct st_error err = {0};
    struct st_step good = good_step();
    const char *path = st_test_path("refused.tape");
    int files = st_test_file_count();
    assert_int_equal(st_writer_open(path, &header, &writer, &err), 0);
    assert_int_equal(st_test_file_count(), files + 1);
    expect_error(st_writer_add(writer, &step, NULL, &err), ST_ERR_INPUT, &err, text);
    expect_error(st_writer_add(writer, &good, NULL, &err), ST_ERR_INPUT, &err, "earlier step");
    expect_error(st_writer_finish(writer, &err), ST_ERR_INPUT, &err, "could not be written");
    assert_int_equal(st_test_file_count(), files);
}

static void rows_out_of_range(void **state) {
    (void)state;
    static const int32_t bad_len[] = {0, 1}, negative[] = {-1, 0}, high[] = {INT32_MAX, 0};
    static const int32_t bad_draft[] = {INT32_MAX, 0}, bad_prompt[] = {-2, 0};
    struct st_step step = good_step();
    step.query_len = bad_len;
    refused(step, "step 0: row 0 is out of range");
    step = good_step();
    step.num_computed_tokens = negative;
    refused(step, "row 0 is out of range");
    step.num_computed_tokens = high;
    refused(step, "row 0 is out of range");
    step = good_step();
    step.draft = negative;
    refused(step, "row 0 is out of range");
    step.draft = bad_draft;
    refused(step, "row 0 is out of range");
    step = good_step();
    step.new_prompt_len = bad_prompt;
    refused(step, "a prompt length");
    step = good_step();
    step.zeroed = -1;
    refused(step, "zeroed");
    step = good_step();
    step.finished.count = -1;
    refused(step, "negative length");
    step = good_step();
    step.replaced.count = -2;
    refused(step, "negative length");
}

static void blocks_out_of_range(void **state) {
    (void)state;
    static const int32_t falling[] = {0, 2, 1}, late[] = {1, 1, 2}, below[] = {-1, 1, 2};
    static const int32_t negative[] = {1, -1};
    const struct st_row_blocks bad[] = {
        {falling, block_id}, {below, block_id}, {late, block_id}, {offset, negative}};
    static const char *const text[] = {"an offset", "an offset", "first offset", "a block id"};
    for (int i = 0; i < 4; i++) {
        struct st_step step = good_step();
        step.blocks = &bad[i];
        refused(step, text[i]);
    }
    struct st_step step = good_step();
    step.group_count = 2;
    refused(step, "blocks of 2 groups, the tape has 1");
}

static void requests_out_of_order(void **state) {
    (void)state;
    static const int64_t twice[] = {1, 1}, unknown[] = {1, 3};
    struct st_step step = good_step();
    step.request_id = twice;
    refused(step, "stands twice");
    step.request_id = unknown;
    refused(step, "request 3 is in the batch but not running");
    step = good_step();
    step.new_requests.request_id = twice;
    refused(step, "already known");
    step = good_step();
    step.resumed = (struct st_request_list){1, unknown};
    refused(step, "not preempted");
    step = good_step();
    step.replaced = (struct st_request_list){1, &unknown[1]};
    refused(step, "unknown request 3");
    step = good_step();
    step.preempted = (struct st_request_list){1, request_id}; /* before it was new: unknown */
    struct st_writer *writer;
    assert_int_equal(st_writer_open(st_test_path("x.tape"), &header, &writer, NULL), 0);
    assert_int_equal(st_writer_add(writer, &step, NULL, NULL), 0);
    st_writer_abort(writer);
    assert_int_equal(access(st_test_path("x.tape"), F_OK), -1);
}

static void too_many_requests(void **state) {
    (void)state;
    enum { MANY = ST_REQUESTS_LIMIT + 1 };
    int64_t *id = malloc(MANY * sizeof *id);
    int32_t *len = calloc(MANY, sizeof *len);
    for (int i = 0; i < MANY; i++)
        id[i] = i;
    struct st_step step = {.zeroed = ST_UNKNOWN,
                           .new_requests = {MANY, id},
                           .new_prompt_len = len,
                           .replaced = {-1, NULL},
                           .group_count = 1,
                           .blocks = &(struct st_row_blocks){offset, block_id}};
    refused(step, "more than 131072 requests");
    /* One less goes, and all of them may leave at once. */
    struct st_writer *writer;
    step.new_requests.count--;
    assert_int_equal(st_writer_open(st_test_path("x.tape"), &header, &writer, NULL), 0);
    assert_int_equal(st_writer_add(writer, &step, NULL, NULL), 0);
    step.step_id++;
    step.finished = step.new_requests;
    step.new_requests.count = 0;
    assert_int_equal(st_writer_add(writer, &step, NULL, NULL), 0);
    st_writer_abort(writer);
    free(id);
    free(len);
}

static void steps_out_of_order(void **state) {
    (void)state;
    static const int64_t next[] = {1, 0, 2, -1};
    for (int i = 0; i < 4; i++) {
        struct st_writer *writer;
        struct st_error err;
        struct st_step step = good_step();
        assert_int_equal(st_writer_open(st_test_path("x.tape"), &header, &writer, &err), 0);
        assert_int_equal(st_writer_add(writer, &step, NULL, &err), 0);
        step.new_requests.count = 0;
        step.step_id = next[i];
        int rc = st_writer_add(writer, &step, NULL, &err);
        if (i == 0)
            assert_int_equal(rc, 0);
        else
            expect_error(rc, ST_ERR_INPUT, &err, "where step 1 was expected");
        st_writer_abort(writer);
    }
    struct st_step step = good_step();
    step.step_id = -5;
    refused(step, "step number -5 is out of range");
    step.step_id = INT64_MAX;
    refused(step, "out of range");
}

static void wrong_headers(void **state) {
    (void)state;
    static const struct st_member bad_kind = {(enum st_member_kind)99, 1, 1, -1, -1};
    static const struct st_member bad_layers = {ST_MEMBER_KV, -1, 1, -1, -1};
    static const struct st_group bad[] = {{1, 4, 1, &member},   {0, 0, 1, &member},
                                          {0, -4, 1, &member},  {0, 4, 0, &member},
                                          {0, 4, 1, &bad_kind}, {0, 4, 1, &bad_layers}};
    struct st_writer *writer = NULL;
    struct st_error err;
    for (int i = 0; i < 6; i++) {
        struct st_header h = header;
        h.groups = &bad[i];
        expect_error(st_writer_open(st_test_path("x.tape"), &h, &writer, &err), ST_ERR_INPUT, &err,
                     "KV cache group 0 is out of range");
    }
    struct st_header h = header;
    h.group_count = ST_MAX_GROUPS + 1;
    expect_error(st_writer_open(st_test_path("x.tape"), &h, &writer, &err), ST_ERR_INPUT, &err,
                 "65 KV cache groups, 0 to 64 expected");
    h = header;
    h.compress_ratio_count = 65537;
    expect_error(st_writer_open(st_test_path("x.tape"), &h, &writer, &err), ST_ERR_INPUT, &err,
                 "65537 layers");
    assert_null(writer);
}

/* The largest header that is taken comes back. */
static void largest_header(void **state) {
    (void)state;
    struct st_group groups[ST_MAX_GROUPS];
    struct st_member members[64];
    int32_t *ratios = calloc(65536, sizeof *ratios);
    for (int i = 0; i < 64; i++)
        members[i] = (struct st_member){(enum st_member_kind)(i % 6), i, i * 4, 1 + i, i};
    for (int i = 0; i < ST_MAX_GROUPS; i++)
        groups[i] = (struct st_group){i, 1 + i, 64, members};
    struct st_header h = header;
    h.group_count = ST_MAX_GROUPS;
    h.groups = groups;
    h.compress_ratio_count = 65536;
    h.compress_ratios = ratios;
    struct st_writer *writer;
    struct st_tape *tape;
    struct st_error err;
    assert_int_equal(st_writer_open(st_test_path("x.tape"), &h, &writer, &err), 0);
    assert_int_equal(st_writer_finish(writer, &err), 0);
    assert_int_equal(st_tape_open(st_test_path("x.tape"), &tape, &err), 0);
    const char *differs = st_test_compare_header(&h, st_tape_header(tape));
    if (differs)
        fail_msg("%s", differs);
    st_tape_close(tape);
    free(ratios);
}

static void folders(void **state) {
    (void)state;
    struct st_writer *writer;
    struct st_error err;
    expect_error(st_writer_open("/nonexistent/x.tape", &header, &writer, &err), ST_ERR_IO, &err,
                 "/nonexistent/x.tape: cannot be created: No such file or directory");
    /* The name is a folder's: that shows when the file takes its name. */
    const char *path = st_test_path("folder.tape");
    assert_int_equal(mkdir(path, 0700), 0);
    int files = st_test_file_count();
    assert_int_equal(st_writer_open(path, &header, &writer, &err), 0);
    expect_error(st_writer_finish(writer, &err), ST_ERR_IO, &err, "folder.tape");
    assert_int_equal(st_test_file_count(), files);
    rmdir(path);
}

/* In a process of its own, as somebody whom permissions bind. */
static void read_only_folder(void **state) {
    (void)state;
    char folder[200];
    struct st_writer *writer;
    struct st_error err;
    snprintf(folder, sizeof folder, "%s", st_test_path("locked"));
    assert_int_equal(mkdir(folder, 0555), 0);
    pid_t pid = fork();
    if (pid == 0) {
        if (geteuid() == 0 && setuid(65534) != 0)
            _exit(0);
        strcat(folder, "/x.tape");
        int rc = st_writer_open(folder, &header, &writer, &err);
        _exit(rc == ST_ERR_IO && strstr(err.msg, "Permission denied") ? 0 : 1);
    }
    int status = -1;
    waitpid(pid, &status, 0);
    rmdir(folder);
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

static char *slurp(const char *path, long *size) {
    FILE *file = fopen(path, "rb");
    assert_non_null(file);
    fseek(file, 0, SEEK_END);
    *size = ftell(file);
    rewind(file);
    char *data = malloc((size_t)*size + 1);
    assert_int_equal(fread(data, 1, (size_t)*size, file), *size);
    fclose(file);
    return data;
}

/* A file may grow to so many bytes and no further, as on a full disk. */
static void full_disk(void **state) {
    (void)state;
    struct st_test_engine_options options;
    st_test_engine_options_init(&options, 5);
    options.check = 100;
    struct st_test_recording *r = st_test_record(&options);
    const char *path = st_test_path("full.tape");
    struct st_error err = {0};
    long size, after;
    assert_int_equal(st_test_write(r, path, &err), 0);
    char *before = slurp(path, &size);
    int files = st_test_file_count();
    struct rlimit usual, small;
    signal(SIGXFSZ, SIG_IGN);
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &usual), 0);
    for (long limit = 0; limit < size; limit += limit < 8192 ? 4096 : size / 5) {
        small = usual;
        small.rlim_cur = (rlim_t)limit;
        assert_int_equal(setrlimit(RLIMIT_FSIZE, &small), 0);
        memset(&err, 0, sizeof err);
        int rc = st_test_write(r, path, &err);
        assert_int_equal(setrlimit(RLIMIT_FSIZE, &usual), 0);
        expect_error(rc, ST_ERR_IO, &err, "full.tape");
        assert_int_equal(st_test_file_count(), files);
    }
    char *now = slurp(path, &after);
    assert_int_equal(size, after);
    assert_memory_equal(before, now, (size_t)size);
    free(before);
    free(now);
    st_test_recording_destroy(r);
}

/* What a killed process left under the name of its number does not stand in the way. */
static void leftovers(void **state) {
    (void)state;
    char name[100];
    struct st_writer *one, *two;
    snprintf(name, sizeof name, "x.tape.tmp-%ld-0", (long)getpid());
    close(open(st_test_path(name), O_CREAT | O_RDWR, 0600));
    assert_int_equal(st_writer_open(st_test_path("x.tape"), &header, &one, NULL), 0);
    assert_int_equal(st_writer_open(st_test_path("x.tape"), &header, &two, NULL), 0);
    assert_int_equal(st_writer_finish(one, NULL), 0);
    assert_int_equal(st_writer_finish(two, NULL), 0);
    assert_int_equal(access(st_test_path(name), F_OK), 0);
    unlink(st_test_path(name));
}

static void the_file_is_readable_by_others(void **state) {
    (void)state;
    struct st_writer *writer;
    struct stat st;
    mode_t mask = umask(022);
    assert_int_equal(st_writer_open(st_test_path("mode.tape"), &header, &writer, NULL), 0);
    assert_int_equal(st_writer_finish(writer, NULL), 0);
    umask(mask);
    assert_int_equal(stat(st_test_path("mode.tape"), &st), 0);
    assert_int_equal(st.st_mode & 0777, 0644);
}

static void nothing_to_abort(void **state) {
    (void)state;
    st_writer_abort(NULL);
    st_cursor_close(NULL);
    st_tape_close(NULL);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rows_out_of_range),
        cmocka_unit_test(blocks_out_of_range),
        cmocka_unit_test(requests_out_of_order),
        cmocka_unit_test(too_many_requests),
        cmocka_unit_test(steps_out_of_order),
        cmocka_unit_test(wrong_headers),
        cmocka_unit_test(largest_header),
        cmocka_unit_test(folders),
        cmocka_unit_test(read_only_folder),
        cmocka_unit_test(full_disk),
        cmocka_unit_test(leftovers),
        cmocka_unit_test(the_file_is_readable_by_others),
        cmocka_unit_test(nothing_to_abort),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
