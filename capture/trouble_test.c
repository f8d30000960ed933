/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What an engine sees when recording goes wrong: a status and one line, and it goes on.
 */
#include <errno.h>
#include <inttypes.h>
#include <setjmp.h>
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
#include <xxhash.h>

#include "capture/ring.h"
#include "capture/testing.h"

static const char header[] =
    "{\"kind\":\"steps\",\"version\":1,\"engine\":\"test\",\"num_blocks\":100,\"groups\":[{\"id\":"
    "0,"
    "\"block_size\":16,\"members\":[{\"kind\":\"attention\",\"layers\":1,\"ratio\":1}]}]}";

/* One request that decodes for ever; `extra` bytes of check object make a step as large as wanted.
 */
struct engine {
    int64_t id;
    int32_t query, start, prompt, row, block;
    char *check;
    int64_t steps;
};

static int step(struct engine *e, struct steptape_recorder *recorder) {
    const struct steptape_step_blocks blocks = {
        .run_count = e->start % 16 == 0, .run_row = &e->row, .block_id = &e->block};
    const struct steptape_step s = {
        .struct_size = sizeof s,
        .graph_mode = -1,
        .cpu_starts = -1,
        .request_count = 1,
        .start_ns = STEPTAPE_UNKNOWN,
        .duration_ns = STEPTAPE_UNKNOWN,
        .padded_token_count = STEPTAPE_UNKNOWN,
        .padded_request_count = STEPTAPE_UNKNOWN,
        .zeroed_count = STEPTAPE_UNKNOWN,
        .request_id = &e->id,
        .query_len = &e->query,
        .num_computed_tokens = &e->start,
        .new_count = e->steps == 0,
        .new_request = &e->id,
        .new_prompt_len = &e->prompt,
        .replaced_count = -1,
        .group_count = 1,
        .blocks = &blocks,
        .check_json = e->check,
    };
    e->block = 1 + e->start / 16 % 99;
    int rc = steptape_recorder_record_step(recorder, &s);
    e->steps++;
    e->start++;
    return rc;
}

static struct engine make_engine(size_t check_size) {
    struct engine e = {.id = 5, .query = 1, .prompt = 1};
    if (check_size) {
        static const char begin[] = "{\"positions\":[\"", end[] = "\"]}";
        e.check = malloc(check_size + 1);
        /* Does not compress. */
        struct st_test_random random = {1};
        for (size_t i = 0; i < check_size; i++)
            e.check[i] = (char)st_test_within(&random, ']', 126);
        memcpy(e.check, begin, strlen(begin));
        memcpy(e.check + check_size - strlen(end), end, sizeof end);
    }
    return e;
}

static char message[512];

static int open_small(const char *path, struct steptape_recorder **recorder) {
    const struct steptape_recorder_options options = {.struct_size = sizeof options,
                                                      .ring_bytes = 1 << 20};
    return steptape_recorder_open(path, header, &options, recorder, message, sizeof message);
}

static void expect_message(const char *part) {
    if (!strstr(message, part) || strchr(message, '\n'))
        fail_msg("'%s' is not in one line '%s'", part, message);
}

static void two_on_one_path(void **state) {
    (void)state;
    struct steptape_recorder *first, *second;
    const char *path = st_test_path("two.tape");
    char pid[64];
    snprintf(pid, sizeof pid, "process %ld records it already", (long)getpid());
    assert_int_equal(open_small(path, &first), 0);
    assert_int_equal(open_small(path, &second), STEPTAPE_RECORDER_ERR_BUSY);
    assert_null(second);
    expect_message(pid);
    assert_int_equal(steptape_recover(path, message, sizeof message), STEPTAPE_RECORDER_ERR_IO);
    expect_message(pid);
    /* Parts of one recording are recorded side by side. */
    struct steptape_recorder_options options = {
        .struct_size = sizeof options, .ring_bytes = 1 << 20, .part = "rank1"};
    assert_int_equal(
        steptape_recorder_open(path, header, &options, &second, message, sizeof message), 0);
    struct engine a = make_engine(0), b = make_engine(0);
    for (int i = 0; i < 10; i++) {
        assert_int_equal(step(&a, first), 0);
        assert_int_equal(step(&b, second), 0);
    }
    assert_int_equal(steptape_recorder_close(first, message, sizeof message), 0);
    expect_message("two.tape");
    assert_int_equal(steptape_recorder_close(second, message, sizeof message), 0);
    expect_message("two.rank1.tape");
    assert_int_equal(st_test_ask(path, "SELECT count(*) FROM step"), 10);
    assert_int_equal(st_test_ask(st_test_path("two.rank1.tape"), "SELECT count(*) FROM step"), 10);
    unlink(path);
    unlink(st_test_path("two.rank1.tape"));
    assert_int_equal(st_test_file_count(), 0);
}

/* Moved away first: the writer makes a journal where the folder was, and `rm -r` cannot remove one
 * in which a file appears. */
static void remove_folder(const char *path) {
    char from[400], command[512];
    snprintf(from, sizeof from, "%s.recording", path);
    assert_int_equal(rename(from, st_test_path("moved")), 0);
    snprintf(command, sizeof command, "rm -r '%s'", st_test_path("moved"));
    assert_int_equal(system(command), 0);
}

/* Until the writer has had the processor and failed. */
static void step_until_off(struct engine *e, struct steptape_recorder *recorder) {
    for (int64_t i = 0; step(e, recorder) >= 0; i++)
        if (i % 64 == 0)
            usleep(2000);
}

static void folder_goes_away(void **state) {
    (void)state;
    struct steptape_recorder *recorder;
    const char *path = st_test_path("gone.tape");
    struct engine e = make_engine(300);
    assert_int_equal(open_small(path, &recorder), 0);
    for (int i = 0; i < 200; i++)
        assert_int_equal(step(&e, recorder), 0);
    remove_folder(path);
    step_until_off(&e, recorder);
    struct steptape_recorder_stats stats = {.struct_size = sizeof stats};
    assert_int_equal(steptape_recorder_get_stats(recorder, &stats), 0);
    assert_int_equal(stats.state, STEPTAPE_RECORDER_OFF);
    assert_non_null(strstr(stats.message, "the writer has stopped"));
    assert_true(steptape_recorder_close(recorder, message, sizeof message) < 0);
    expect_message("gone.part");
    expect_message("gone.tape.recording is gone, and what was recorded with it");
    assert_int_equal(st_test_file_count(), 0);
    free(e.check);
}

/* In a process of its own, whose files may not grow beyond a limit. */
static void fill_disk(const char *path) {
    struct steptape_recorder *recorder;
    struct engine e = make_engine(2000);
    if (open_small(path, &recorder))
        _exit(2);
    struct rlimit limit = {1 << 20, 1 << 20};
    setrlimit(RLIMIT_FSIZE, &limit);
    step_until_off(&e, recorder);
    if (steptape_recorder_close(recorder, message, sizeof message) == 0)
        _exit(3);
    char command[300];
    snprintf(command, sizeof command, "`steptape recover %s`", path);
    if (!strstr(message, command))
        _exit(4);
    _exit(0);
}

static void disk_is_full(void **state) {
    (void)state;
    const char *path = st_test_path("full.tape");
    int status;
    pid_t pid = fork();
    if (pid == 0)
        fill_disk(path);
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_int_equal(status, 0);
    /* There is room again: what was taken is there, and the tape says why it ends. */
    assert_int_equal(steptape_recover(path, message, sizeof message), 0);
    expect_message("the writer has stopped and the ring is full");
    assert_true(st_test_ask(path, "SELECT count(*) FROM step") > 300);
    assert_int_equal(st_test_ask(path, "SELECT count(*) = sequence_count - dropped_count FROM step,"
                                       " recorder"),
                     1);
    assert_int_equal(
        st_test_ask(path, "SELECT lost_reason LIKE '%the ring is full%' FROM recorder"), 1);
    unlink(path);
    assert_int_equal(st_test_file_count(), 0);
}

/* Leaves a recording as one that was killed leaves it. */
static void leave(const char *path, int steps) {
    int status;
    pid_t pid = fork();
    if (pid == 0) {
        struct steptape_recorder *recorder;
        struct engine e = make_engine(0);
        int rc = open_small(path, &recorder);
        for (int i = 0; i < steps && !rc; i++)
            rc = step(&e, recorder);
        _exit(rc != 0);
    }
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_int_equal(status, 0);
}

/* The record of a step gets another request, and the hash that goes with it. */
static void change_request(const char *ring, uint64_t sequence, int64_t request_id) {
    FILE *file = fopen(ring, "r+b");
    assert_non_null(file);
    uint8_t *bytes = malloc(2 << 20);
    size_t size = fread(bytes, 1, 2 << 20, file);
    struct st_ring_file parts;
    const struct st_ring_record *record;
    struct st_error err;
    assert_int_equal(st_ring_open_bytes(ring, bytes, size, &parts, &err), 0);
    do
        assert_int_equal(st_ring_next(&parts.view, &record, &err), 0);
    while (record->sequence != sequence);
    uint8_t *at = bytes + ((const uint8_t *)record - bytes);
    memcpy(at + sizeof *record, &request_id, sizeof request_id);
    uint64_t hash = XXH3_64bits(at + ST_RING_HASHED_FROM, record->size - ST_RING_HASHED_FROM);
    memcpy(at + offsetof(struct st_ring_record, hash), &hash, sizeof hash);
    rewind(file);
    assert_int_equal(fwrite(bytes, 1, size, file), size);
    assert_int_equal(fclose(file), 0);
    free(bytes);
}

/* What was recorded before a step that the tape's writer refuses is not lost with it. */
static void recovers_up_to_a_wrong_step(void **state) {
    (void)state;
    const char *path = st_test_path("refused.tape");
    char ring[400];
    for (uint64_t wrong = 0; wrong < 10; wrong += 4) {
        leave(path, 10);
        snprintf(ring, sizeof ring, "%s.recording/refused.ring", path);
        change_request(ring, wrong, 99);
        assert_int_equal(steptape_recover(path, message, sizeof message), 0);
        expect_message("req[0]: request 99 is neither known nor in new");
        assert_int_equal(st_test_ask(path, "SELECT count(*) FROM step"), (int64_t)wrong);
        assert_int_equal(st_test_ask(path, "SELECT dropped_count FROM recorder"),
                         10 - (int64_t)wrong);
        unlink(path);
        assert_int_equal(st_test_file_count(), 0);
    }
}

/* Neither is what finds no room, wherever it ends: it stays for another time, and half a tape does
 * not stand in the way. */
static void recovers_when_there_is_room(void **state) {
    (void)state;
    const char *path = st_test_path("later.tape");
    char half[400];
    int status;
    leave(path, 2000);
    snprintf(half, sizeof half, "%s.recording/later.recover", path);
    for (rlim_t room = 4 << 10; room <= 256 << 10; room += 4 << 10) {
        pid_t pid = fork();
        if (pid == 0) {
            struct rlimit limit = {room, room};
            setrlimit(RLIMIT_FSIZE, &limit);
            _exit(-steptape_recover(path, message, sizeof message));
        }
        assert_int_equal(waitpid(pid, &status, 0), pid);
        if (status == 0)
            break;
        assert_int_equal(WEXITSTATUS(status), -STEPTAPE_RECORDER_ERR_IO);
        assert_int_not_equal(access(path, F_OK), 0);
        assert_int_not_equal(access(half, F_OK), 0);
    }
    if (status)
        assert_int_equal(steptape_recover(path, message, sizeof message), 0);
    assert_int_equal(st_test_ask(path, "SELECT count(*) FROM step"), 2000);
    assert_int_equal(st_test_ask(path, "SELECT lost_reason IS NULL FROM recorder"), 1);
    unlink(path);
    assert_int_equal(st_test_file_count(), 0);
}

static void no_room_for_the_ring(void **state) {
    (void)state;
    const char *path = st_test_path("none.tape");
    int status;
    pid_t pid = fork();
    if (pid == 0) {
        struct steptape_recorder *recorder;
        struct rlimit limit = {1 << 18, 1 << 18};
        setrlimit(RLIMIT_FSIZE, &limit);
        int rc = open_small(path, &recorder);
        _exit(rc == STEPTAPE_RECORDER_ERR_IO && strstr(message, "cannot be reserved") ? 0 : 1);
    }
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_int_equal(status, 0);
    assert_int_equal(st_test_file_count(), 0);
}

/* In a process of its own, which was started without stdin, stdout and stderr and prints all the
 * same. */
static int record_without_stdio(const char *path) {
    struct steptape_recorder *recorder;
    struct engine e = make_engine(0);
    for (int fd = 0; fd < 3; fd++)
        close(fd);
    if (open_small(path, &recorder))
        return 2;
    for (int i = 0; i < 100; i++) {
        if (step(&e, recorder))
            return 3;
        for (int fd = 0; fd < 3; fd++)
            if (write(fd, "a line\n", 7) >= 0 || errno != EBADF)
                return 4;
    }
    return steptape_recorder_close(recorder, message, sizeof message) ? 5 : 0;
}

static void stdio_is_closed(void **state) {
    (void)state;
    const char *path = st_test_path("closed.tape");
    int status;
    pid_t pid = fork();
    if (pid == 0)
        _exit(record_without_stdio(path));
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_int_equal(status, 0);
    assert_int_equal(st_test_ask(path, "SELECT count(*) FROM step"), 100);
    unlink(path);
    assert_int_equal(st_test_file_count(), 0);
}

static void directory_changes(void **state) {
    (void)state;
    struct steptape_recorder *recorder;
    struct engine e = make_engine(0);
    const char *path = st_test_path("relative.tape");
    char *before = getcwd(NULL, 0), folder[400];
    snprintf(folder, sizeof folder, "%s", path);
    *strrchr(folder, '/') = 0;
    assert_int_equal(chdir(folder), 0);
    assert_int_equal(open_small("relative.tape", &recorder), 0);
    assert_int_equal(step(&e, recorder), 0);
    assert_int_equal(chdir("/"), 0);
    assert_int_equal(steptape_recorder_close(recorder, message, sizeof message), 0);
    assert_string_equal(message, path);
    assert_int_equal(chdir(before), 0);
    assert_int_equal(st_test_ask(path, "SELECT count(*) FROM step"), 1);
    unlink(path);
    assert_int_equal(st_test_file_count(), 0);
    free(before);
}

static void places_that_do_not_do(void **state) {
    (void)state;
    struct steptape_recorder *recorder;
    char path[400];
    snprintf(path, sizeof path, "%s/x.tape", st_test_path("no-such-folder"));
    assert_int_equal(open_small(path, &recorder), STEPTAPE_RECORDER_ERR_IO);
    expect_message("No such file or directory");
    assert_int_equal(open_small(st_test_path("x.db"), &recorder), STEPTAPE_RECORDER_ERR_ARGUMENT);
    expect_message("ends in .tape");
    assert_int_equal(steptape_recorder_open(st_test_path("x.tape"), "{}", NULL, &recorder, message,
                                            sizeof message),
                     STEPTAPE_RECORDER_ERR_ARGUMENT);
    expect_message("header");
    assert_int_equal(st_test_file_count(), 0);
    assert_int_equal(steptape_recorder_record_step(NULL, NULL), STEPTAPE_RECORDER_ERR_OFF);
    assert_int_equal(steptape_recorder_close(NULL, message, sizeof message), 0);
}

static void another_users_folder(void **state) {
    (void)state;
    if (geteuid() != 0)
        skip();
    const char *path = st_test_path("theirs.tape");
    char folder[200];
    snprintf(folder, sizeof folder, "%s.recording", path);
    assert_int_equal(mkdir(folder, 0755), 0);
    assert_int_equal(chown(folder, 12345, 12345), 0);
    struct steptape_recorder *recorder;
    assert_int_equal(open_small(path, &recorder), STEPTAPE_RECORDER_ERR_IO);
    expect_message("belongs to another user");
    assert_int_equal(steptape_recover(path, message, sizeof message), STEPTAPE_RECORDER_ERR_IO);
    expect_message("belongs to another user");
    rmdir(folder);
    /* And one that this user may not write to. */
    int status;
    pid_t pid = fork();
    if (pid == 0) {
        if (setgid(12345) || setuid(12345))
            _exit(1);
        int rc = open_small(path, &recorder);
        _exit(rc == STEPTAPE_RECORDER_ERR_IO && strstr(message, "Permission denied") ? 0 : 1);
    }
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_int_equal(status, 0);
}

static void forks_keep_off(void **state) {
    (void)state;
    struct steptape_recorder *recorder;
    const char *path = st_test_path("fork.tape");
    struct engine e = make_engine(0);
    int status;
    assert_int_equal(open_small(path, &recorder), 0);
    assert_int_equal(step(&e, recorder), 0);
    pid_t pid = fork();
    if (pid == 0) {
        bool off = step(&e, recorder) == STEPTAPE_RECORDER_ERR_OFF &&
                   steptape_recorder_note(recorder, "a", "b") == STEPTAPE_RECORDER_ERR_OFF &&
                   steptape_recorder_sequence(recorder) == -1 &&
                   steptape_recorder_close(recorder, NULL, 0) == STEPTAPE_RECORDER_ERR_OFF;
        _exit(off ? 0 : 1);
    }
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_int_equal(status, 0);
    assert_int_equal(step(&e, recorder), 0);
    assert_int_equal(steptape_recorder_close(recorder, message, sizeof message), 0);
    assert_int_equal(st_test_ask(path, "SELECT count(*) FROM step"), 2);
    unlink(path);
}

/* ---- a step that makes no sense */

struct wrong {
    struct engine e;
    struct steptape_step_blocks blocks;
    struct steptape_step s;
};

static int64_t minus = -1, fifth = 5; /* fifth: the engine's request */
static int32_t one_minus = -7, none, many = 5;

static void unknown_request(struct wrong *w) {
    w->e.id = 99;
}

static void no_query(struct wrong *w) {
    w->e.query = 0;
}

static void known_request(struct wrong *w) {
    w->s.new_count = 1;
    w->s.new_request = &w->e.id;
    w->s.new_prompt_len = &w->e.prompt;
}

static void another_group(struct wrong *w) {
    w->s.group_count = 2;
}

/* What a row that lost its request might be taken for. */
static void lost_row(struct wrong *w) {
    w->s.finished_count = 1;
    w->s.finished = &fifth;
    w->e.id = -1;
}

static void table_of(struct wrong *w, int64_t stride) {
    w->blocks = (struct steptape_step_blocks){
        .table = &w->e.block, .row_stride = stride, .row_cell_count = &many, .cells_per_block = 1};
}

static void stride_below(struct wrong *w) {
    table_of(w, INT64_MIN);
}

static void stride_above(struct wrong *w) {
    table_of(w, (int64_t)1 << 32);
}

static void cells_below(struct wrong *w) {
    table_of(w, 5);
    w->blocks.row_cell_count = &one_minus;
}

static void negative_duration(struct wrong *w) {
    w->s.duration_ns = -5;
}

static void padded_tokens_above(struct wrong *w) {
    w->s.padded_token_count = INT64_MAX;
}

static void padded_requests_below(struct wrong *w) {
    w->s.padded_request_count = -1;
}

static void finished_below(struct wrong *w) {
    w->s.finished_count = 1;
    w->s.finished = &minus;
}

static void preempted_below(struct wrong *w) {
    w->s.preempted_count = 1;
    w->s.preempted = &minus;
}

static void negative_id(struct wrong *w) {
    w->blocks.block_id = &one_minus;
}

static void row_above(struct wrong *w) {
    w->e.row = 1;
}

static void row_below(struct wrong *w) {
    w->e.row = INT32_MIN;
}

static void runs_above(struct wrong *w) {
    w->blocks.run_count = 2;
}

static void runs_below(struct wrong *w) {
    w->blocks.run_count = -1;
}

static void empty_run(struct wrong *w) {
    w->blocks.run_length = &none;
}

static void no_rows(struct wrong *w) {
    w->blocks.run_row = NULL;
}

static void no_ids(struct wrong *w) {
    w->blocks.block_id = NULL;
}

static const struct {
    void (*spoil)(struct wrong *w); /* NULL: the step itself is NULL */
    const char *reason;
} wrongs[] = {
    {unknown_request, "request 99 is in the batch but not running"},
    {no_query, "query_len below 1"},
    {known_request, "already known"},
    {another_group, "group_count"},
    {lost_row, "has a negative number"},
    {stride_below, "row_stride"},
    {stride_above, "row_stride"},
    {cells_below, "request 5 has fewer than 0 cells"},
    {negative_duration, "duration_ns"},
    {padded_tokens_above, "padded_token_count"},
    {padded_requests_below, "padded_request_count"},
    {finished_below, "request -1 has"},
    {preempted_below, "request -1 has"},
    {negative_id, "a block id is negative"},
    {row_above, "outside of the batch"},
    {row_below, "outside of the batch"},
    {runs_above, "more runs"},
    {runs_below, "more runs"},
    {empty_run, "of no id"},
    {no_rows, "run_row"},
    {no_ids, "block_id"},
    {NULL, "NULL"},
};

/* It ends the recording; the tape has what came before, and the reason. */
static void wrong_steps(void **state) {
    (void)state;
    for (size_t kind = 0; kind < sizeof wrongs / sizeof wrongs[0]; kind++) {
        struct steptape_recorder *recorder;
        struct steptape_recorder_stats stats = {.struct_size = sizeof stats};
        const char *path = st_test_path("wrong.tape");
        struct wrong w = {.e = make_engine(0)};
        assert_int_equal(open_small(path, &recorder), 0);
        for (int i = 0; i < 3; i++)
            assert_int_equal(step(&w.e, recorder), 0);
        w.blocks = (struct steptape_step_blocks){
            .run_count = 1, .run_row = &w.e.row, .block_id = &w.e.block};
        w.s = (struct steptape_step){.struct_size = sizeof w.s,
                                     .request_count = 1,
                                     .request_id = &w.e.id,
                                     .query_len = &w.e.query,
                                     .num_computed_tokens = &w.e.start,
                                     .replaced_count = -1,
                                     .group_count = 1,
                                     .blocks = &w.blocks};
        if (wrongs[kind].spoil)
            wrongs[kind].spoil(&w);
        assert_int_equal(steptape_recorder_record_step(recorder, wrongs[kind].spoil ? &w.s : NULL),
                         STEPTAPE_RECORDER_ERR_ARGUMENT);
        assert_int_equal(steptape_recorder_record_step(recorder, &w.s),
                         STEPTAPE_RECORDER_ERR_ARGUMENT);
        assert_int_equal(steptape_recorder_get_stats(recorder, &stats), 0);
        assert_int_equal(stats.state, STEPTAPE_RECORDER_OFF);
        if (!strstr(stats.message, wrongs[kind].reason))
            fail_msg("'%s' is not in '%s'", wrongs[kind].reason, stats.message);
        assert_int_equal(steptape_recorder_close(recorder, message, sizeof message), 0);
        assert_int_equal(st_test_ask(path, "SELECT count(*) FROM step"), 3);
        assert_int_equal(st_test_ask(path, "SELECT length(lost_reason) > 10 FROM recorder"), 1);
        unlink(path);
    }
}

static void notes_are_kept(void **state) {
    (void)state;
    struct steptape_recorder *recorder;
    const char *path = st_test_path("notes.tape");
    struct engine e = make_engine(0);
    char *large = calloc(1, 70000);
    memset(large, 'x', 69999);
    assert_int_equal(open_small(path, &recorder), 0);
    assert_int_equal(steptape_recorder_note(recorder, "plugin_version", "1.2"), 0);
    assert_int_equal(step(&e, recorder), 0);
    assert_int_equal(steptape_recorder_note(recorder, "hooks", "execute_model \xc3\xa4"), 0);
    assert_int_equal(steptape_recorder_note(recorder, "large", large), STEPTAPE_RECORDER_DROPPED);
    assert_int_equal(steptape_recorder_close(recorder, message, sizeof message), 0);
    assert_int_equal(st_test_ask(path, "SELECT count(*) FROM recorder_note"), 2);
    assert_int_equal(st_test_ask(path, "SELECT sequence FROM recorder_note WHERE key = 'hooks' AND"
                                       " value = 'execute_model \xc3\xa4'"),
                     1);
    unlink(path);
    free(large);
}

#define TEST(name) cmocka_unit_test_teardown(name, st_test_empty_folder)

int main(void) {
    const struct CMUnitTest tests[] = {
        TEST(two_on_one_path),
        TEST(folder_goes_away),
        TEST(disk_is_full),
        TEST(no_room_for_the_ring),
        TEST(places_that_do_not_do),
        TEST(another_users_folder),
        TEST(forks_keep_off),
        TEST(wrong_steps),
        TEST(notes_are_kept),
        TEST(stdio_is_closed),
        TEST(directory_changes),
        TEST(recovers_up_to_a_wrong_step),
        TEST(recovers_when_there_is_room),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
