/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a step may say is the same for what is imported and for what is recorded: each case goes
 * through both.  The rules are docs/interchange.md's.
 */
#include <inttypes.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

#include "capture/testing.h"
#include "traces/format/reader.h"
#include "traces/interchange/parse.h"
#include "traces/interchange/print.h"

#define HEADER                                                                                     \
    "{\"kind\":\"steps\",\"version\":1,\"num_blocks\":500,\"groups\":[{\"id\":0,\"block_size\":4," \
    "\"members\":[{\"kind\":\"attention\",\"layers\":1,\"ratio\":1}]}]}"

enum { MOST = 4, STEPS = 4 };

struct list {
    int32_t count;
    int64_t id[MOST];
};
#define LIST(...)                                                                                  \
    {                                                                                              \
        sizeof((int64_t[]){__VA_ARGS__}) / sizeof(int64_t), {                                      \
            __VA_ARGS__                                                                            \
        }                                                                                          \
    }

/* Rows of one token each. */
struct step {
    struct list req;
    int32_t start[MOST];
    struct list new_, finished, preempted, resumed, replace;
    int32_t block; /* id that each row gets; 0: none */
};

struct rule_case {
    const char *name;
    int32_t count;
    struct step step[STEPS];
    const char *fault; /* of the last step; NULL: all is well */
};

/* The engine's thread knows already, and says it in words of its own. */
#define EARLY "!"

#define FIRST                                                                                      \
    { .req = LIST(7), .new_ = LIST(7) }
#define GONE                                                                                       \
    { .finished = LIST(7) }
#define WAITING                                                                                    \
    { .preempted = LIST(7) }

static const struct rule_case cases[] = {
    {"decode", 2, {FIRST, {.req = LIST(7), .start = {1}}}, NULL},
    {"an id just below num_blocks", 1, {{.req = LIST(7), .new_ = LIST(7), .block = 499}}, NULL},
    {"an id of num_blocks",
     1,
     {{.req = LIST(7), .new_ = LIST(7), .block = 500}},
     "blocks[0][0][0]: is 500, less than num_blocks (500) was expected"},
    {"finished", 2, {FIRST, GONE}, NULL},
    {"finished unknown", 1, {GONE}, NULL},
    {"finished twice", 3, {FIRST, GONE, GONE}, "finished[0]: request 7 is finished already"},
    {"finished unknown twice", 2, {GONE, GONE}, "finished[0]: request 7 is finished already"},
    {"finished twice in a step",
     2,
     {FIRST, {.finished = LIST(7, 7)}},
     "finished[1]: request 7 is finished already"},
    {"finished and scheduled",
     2,
     {FIRST, {.req = LIST(7), .start = {1}, .finished = LIST(7)}},
     EARLY "req[0]: request 7 is scheduled after it finished"},
    {"preempted", 2, {FIRST, WAITING}, NULL},
    {"preempted and finished in a step",
     2,
     {FIRST, {.preempted = LIST(7), .finished = LIST(7)}},
     NULL},
    {"preempted, then finished", 3, {FIRST, WAITING, GONE}, NULL},
    {"preempted unknown", 1, {WAITING}, "preempted[0]: request 7 was never scheduled"},
    {"preempted finished",
     3,
     {FIRST, GONE, WAITING},
     "preempted[0]: request 7 is finished already"},
    {"preempted twice",
     3,
     {FIRST, WAITING, WAITING},
     "preempted[0]: request 7 is preempted already"},
    {"preempted twice in a step",
     2,
     {FIRST, {.preempted = LIST(7, 7)}},
     "preempted[1]: request 7 is preempted already"},
    {"preempted, new again",
     3,
     {FIRST, WAITING, FIRST},
     EARLY "new[0]: request 7 was seen before; a number names one request"},
    {"preempted and scheduled",
     2,
     {FIRST, {.req = LIST(7), .start = {1}, .preempted = LIST(7)}},
     EARLY "req[0]: request 7 is preempted, it was expected in resumed as well"},
    {"preempted and resumed in a step",
     2,
     {FIRST, {.req = LIST(7), .preempted = LIST(7), .resumed = LIST(7)}},
     "preempted[0]: request 7 is in req of the same step, that was not expected"},
    {"new and preempted in a step",
     1,
     {{.req = LIST(7), .new_ = LIST(7), .preempted = LIST(7)}},
     "preempted[0]: request 7 was never scheduled"},
    {"resumed",
     3,
     {FIRST, WAITING, {.req = LIST(7), .start = {300}, .resumed = LIST(7), .replace = LIST(7)}},
     NULL},
    {"resumed without a row",
     3,
     {FIRST, WAITING, {.resumed = LIST(7)}},
     "resumed[0]: request 7 is not in req of this step, as was expected"},
    {"resumed running",
     2,
     {FIRST, {.req = LIST(7), .start = {1}, .resumed = LIST(7)}},
     EARLY "resumed[0]: request 7 is running, a preempted one was expected"},
    {"resumed unknown",
     1,
     {{.resumed = LIST(7)}},
     EARLY "resumed[0]: request 7 is not known, a preempted one was expected"},
    {"number used again",
     3,
     {FIRST, GONE, FIRST},
     "new[0]: request 7 was seen before; a number names one request"},
    {"number used again by the step that frees it",
     2,
     {FIRST, {.req = LIST(7), .new_ = LIST(7), .finished = LIST(7)}},
     "new[0]: request 7 was seen before; a number names one request"},
    {"number of one that never ran used again",
     2,
     {GONE, FIRST},
     "new[0]: request 7 was seen before; a number names one request"},
    {"a number beside a finished one",
     3,
     {FIRST, GONE, {.req = LIST(6, 8, 263), .new_ = LIST(6, 8, 263)}},
     NULL},
    {"new while it runs",
     2,
     {FIRST, FIRST},
     EARLY "new[0]: request 7 was seen before; a number names one request"},
    {"new without a row",
     1,
     {{.new_ = LIST(7)}},
     "new[0]: request 7 is not in req of this step, as was expected"},
    {"unknown in a row",
     1,
     {{.req = LIST(7)}},
     EARLY "req[0]: request 7 is neither known nor in new"},
    {"twice in a batch",
     2,
     {FIRST, {.req = LIST(7, 7), .start = {1, 1}}},
     EARLY "req[1]: request 7 stands twice in this step"},
    {"new with a start", 1, {{.req = LIST(7), .start = {300}, .new_ = LIST(7)}}, NULL},
    {"start below", 3, {FIRST, {.req = LIST(7), .start = {1}}, {.req = LIST(7)}}, NULL},
    {"start above",
     2,
     {FIRST, {.req = LIST(7), .start = {2}}},
     "start[0]: is 2, at most 1 was expected: the last start + qlen of request 7"},
    {"a new table with a start above",
     2,
     {FIRST, {.req = LIST(7), .start = {300}, .replace = LIST(7)}},
     NULL},
    {"a new table without a row",
     2,
     {FIRST, {.replace = LIST(7)}},
     "replace[0]: request 7 is not in req of this step, as was expected"},
    {"a new table of an unknown one",
     1,
     {{.replace = LIST(7)}},
     EARLY "replace[0]: request 7 is not in req of this step, as was expected"},
};

/* A step of a case in the form that the tape's code takes; rows and columns are borrowed. */
struct row_memory {
    int32_t one[MOST], offset[MOST + 1], id[MOST];
    struct st_row_blocks blocks;
};

static struct st_step make_step(const struct step *from, int64_t number, struct row_memory *m) {
    for (int32_t i = 0; i < MOST; i++) {
        m->one[i] = 1;
        m->id[i] = from->block;
        m->offset[i + 1] = from->block ? i + 1 : 0;
    }
    m->offset[0] = 0;
    m->blocks = (struct st_row_blocks){m->offset, m->id};
    struct st_step step = {
        .step_id = number,
        .start_ns = ST_UNKNOWN,
        .duration_ns = ST_UNKNOWN,
        .graph_mode = ST_GRAPH_MODE_UNKNOWN,
        .padded_token_count = ST_UNKNOWN,
        .padded_request_count = ST_UNKNOWN,
        .cpu_starts = -1,
        .zeroed = ST_UNKNOWN,
        .request_count = from->req.count,
        .request_id = from->req.id,
        .query_len = m->one,
        .num_computed_tokens = from->start,
        .new_requests = {from->new_.count, from->new_.id},
        .new_prompt_len = m->one,
        .finished = {from->finished.count, from->finished.id},
        .preempted = {from->preempted.count, from->preempted.id},
        .resumed = {from->resumed.count, from->resumed.id},
        .replaced = {from->replace.count, from->replace.id},
        .group_count = 1,
        .blocks = &m->blocks,
    };
    return step;
}

static bool is_early(const struct rule_case *c) {
    return c->fault && c->fault[0] == EARLY[0];
}

/* Steps that import takes; why it stops, or "". */
static int32_t import_case(const struct rule_case *c, char *why, size_t size) {
    struct st_out *out;
    struct st_error err = {0};
    struct st_interchange *in;
    const struct st_step *got;
    const char *check_json;
    assert_int_equal(st_out_open_memory(&out, &err), 0);
    st_out_string(out, HEADER "\n");
    for (int32_t i = 0; i < c->count; i++) {
        struct row_memory memory;
        struct st_step step = make_step(&c->step[i], i, &memory);
        st_print_step(out, &step, NULL);
    }
    size_t length;
    const char *text = st_out_memory(out, &length);
    assert_int_equal(st_interchange_open_memory("in", text, length, NULL, &in, &err), 0);
    int32_t steps = 0;
    int rc;
    while ((rc = st_interchange_next(in, &got, &check_json, &err)) == 0)
        steps++;
    const char *fault = rc == ST_DONE ? "" : err.msg, *behind = strstr(fault, ": step ");
    snprintf(why, size, "%.299s", behind ? behind + 2 : fault);
    st_interchange_close(in);
    st_out_abort(out);
    return steps;
}

/* The same for the recorder, whose tape is whole in any case. */
static int32_t record_case(const struct rule_case *c, char *why, size_t size) {
    struct steptape_recorder *recorder;
    char message[512];
    const char *path = st_test_path("rules.tape");
    const struct steptape_recorder_options options = {.struct_size = sizeof options,
                                                      .ring_bytes = 1 << 20};
    if (steptape_recorder_open(path, HEADER, &options, &recorder, message, sizeof message))
        fail_msg("%s", message);
    for (int32_t i = 0; i < c->count; i++) {
        struct row_memory memory;
        struct st_test_step step = {.step = make_step(&c->step[i], i, &memory)};
        struct st_test_call call;
        st_test_call_init(&call, &step, ST_TEST_RUNS);
        int rc = steptape_recorder_record_step(recorder, &call.step);
        st_test_call_fini(&call);
        if (rc != (is_early(c) && i == c->count - 1 ? STEPTAPE_RECORDER_ERR_ARGUMENT : 0))
            fail_msg("%s: step %d: %d", c->name, i, rc);
    }
    if (steptape_recorder_close(recorder, message, sizeof message))
        fail_msg("%s: %s", c->name, message);
    assert_string_equal(message, path);
    int64_t steps = st_test_ask(path, "SELECT count(*) FROM step");
    snprintf(why, size, "%s", st_test_ask_text(path, "SELECT lost_reason FROM recorder"));
    if (c->fault && !is_early(c))
        assert_int_equal(st_test_ask(path, "SELECT dropped_count FROM recorder"), 1);
    unlink(path);
    return (int32_t)steps;
}

static void import_and_recorder_agree(void **state) {
    (void)state;
    int wrong = 0;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        const struct rule_case *c = &cases[i];
        char expected[300] = "", import[300], record[300];
        int32_t good = c->count - (c->fault != NULL);
        if (c->fault)
            snprintf(expected, sizeof expected, "step %d: %s", good, c->fault + is_early(c));
        int32_t imported = import_case(c, import, sizeof import);
        int32_t recorded = record_case(c, record, sizeof record);
        bool same = is_early(c) ? strncmp(record, expected, strlen("step 0:")) == 0
                                : strcmp(record, expected) == 0;
        if (imported == good && recorded == good && same && strcmp(import, expected) == 0)
            continue;
        print_error("%s: %d steps\n  import %d: %s\n  record %d: %s\n  want: %s\n", c->name, good,
                    imported, import, recorded, record, expected);
        wrong++;
    }
    assert_int_equal(wrong, 0);
}

/* The engine is told as soon as the writer knows, not when the ring is full. */
static void a_refused_step_turns_recording_off(void **state) {
    (void)state;
    struct steptape_recorder *recorder;
    struct steptape_recorder_stats stats = {.struct_size = sizeof stats};
    char message[512];
    const char *path = st_test_path("off.tape");
    assert_int_equal(steptape_recorder_open(path, HEADER, NULL, &recorder, message, sizeof message),
                     0);
    static const struct step gone = GONE;
    const struct timespec pause = {0, 1000000};
    int rc = 0;
    for (int i = 0; !rc && i < 20000; i++) {
        struct row_memory memory;
        struct st_test_step step = {.step = make_step(&gone, i, &memory)};
        struct st_test_call call;
        st_test_call_init(&call, &step, ST_TEST_RUNS);
        rc = steptape_recorder_record_step(recorder, &call.step);
        st_test_call_fini(&call);
        nanosleep(&pause, NULL);
    }
    assert_int_equal(rc, STEPTAPE_RECORDER_ERR_ARGUMENT);
    assert_int_equal(steptape_recorder_get_stats(recorder, &stats), 0);
    assert_int_equal(stats.state, STEPTAPE_RECORDER_OFF);
    assert_string_equal(stats.message, "step 1: finished[0]: request 7 is finished already");
    assert_int_equal(steptape_recorder_close(recorder, message, sizeof message), 0);
    assert_int_equal(st_test_ask(path, "SELECT count(*) FROM step"), 1);
    unlink(path);
    assert_int_equal(st_test_file_count(), 0);
}

/* ---- check objects */

static const char *const good_checks[] = {
    "{}", "{\"positions\":[0,1],\"seq_lens\":null}",
    "{\n \"block_table\" : [ [[1, 2]] ]\n}\n", /* a tape has it on one line */
    "{\"slot_mapping\":[[-1]],\"query_start_loc\":[\"what is in the list is the engine's\"]}"};
static const char *const bad_checks[] = {"[]",
                                         "3",
                                         "text",
                                         "{",
                                         "{} {}",
                                         "{\"weights\":[]}",
                                         "{\"positions\":3}",
                                         "{\"positions\":[],\"positions\":[]}",
                                         "{\"positions\":[NaN]}",
                                         "{\"positions\":[\"\xff\"]}"};

static int record_check(struct steptape_recorder *recorder, int64_t request_id, const char *check) {
    struct row_memory memory;
    const struct step gone = {.finished = LIST(request_id)};
    struct st_test_step step = {.step = make_step(&gone, 0, &memory)};
    struct st_test_call call;
    st_test_call_init(&call, &step, ST_TEST_RUNS);
    call.step.check_json = check;
    int rc = steptape_recorder_record_step(recorder, &call.step);
    st_test_call_fini(&call);
    return rc;
}

/* The check object as import has it, or "" where it refuses it. */
static void import_check(const char *check, char *text, size_t size) {
    struct st_interchange *in;
    struct st_error err = {0};
    const struct st_step *step;
    const char *got;
    char lines[1000], flat[200];
    snprintf(flat, sizeof flat, "%s", check);
    for (char *c = flat; *c; c++)
        *c = *c == '\n' ? ' ' : *c;
    snprintf(lines, sizeof lines,
             HEADER
             "\n{\"step\":0,\"req\":[],\"qlen\":[],\"start\":[],\"new\":[],\"prompt_len\":[],"
             "\"finished\":[],\"preempted\":[],\"resumed\":[],\"blocks\":[[]],\"check\":%s}\n",
             flat);
    assert_int_equal(st_interchange_open_memory("in", lines, strlen(lines), NULL, &in, &err), 0);
    int rc = st_interchange_next(in, &step, &got, &err);
    snprintf(text, size, "%s", rc ? "" : got);
    st_interchange_close(in);
}

/* A bad one costs no step: it is left out, and a note says so. */
static void checks_of_both_are_the_same(void **state) {
    (void)state;
    enum { GOOD = sizeof good_checks / sizeof *good_checks };
    enum { BAD = sizeof bad_checks / sizeof *bad_checks };
    struct steptape_recorder *recorder;
    struct st_error err;
    struct st_tape *tape;
    char message[512], import[300];
    const char *path = st_test_path("checks.tape"), *record;
    assert_int_equal(steptape_recorder_open(path, HEADER, NULL, &recorder, message, sizeof message),
                     0);
    for (int i = 0; i < GOOD + BAD; i++)
        assert_int_equal(
            record_check(recorder, i, i < GOOD ? good_checks[i] : bad_checks[i - GOOD]), 0);
    assert_int_equal(steptape_recorder_close(recorder, message, sizeof message), 0);
    assert_int_equal(st_test_ask(path, "SELECT count(*) FROM step"), GOOD + BAD);
    assert_int_equal(st_test_ask(path, "SELECT count(*) FROM step_check"), GOOD);
    assert_int_equal(st_test_ask(path, "SELECT count(DISTINCT sequence) FROM recorder_note"
                                       " WHERE key = 'check left out'"),
                     BAD);
    assert_string_equal(
        st_test_ask_text(path, "SELECT value FROM recorder_note WHERE sequence = 9"),
        "weights: unknown key");
    assert_int_equal(st_tape_open(path, &tape, &err), 0);
    for (int i = 0; i < GOOD + BAD; i++) {
        import_check(i < GOOD ? good_checks[i] : bad_checks[i - GOOD], import, sizeof import);
        assert_int_equal(st_tape_check_json(tape, i, &record, &err), 0);
        assert_string_equal(record ? record : "", import);
        assert_int_equal(import[0] != 0, i < GOOD);
    }
    st_tape_close(tape);
    unlink(path);
}

/* Those that were written already, and those that are in the ring alone. */
static void notes_of_bad_checks_outlive_the_engine(void **state) {
    (void)state;
    enum { COUNT = 300 };
    const char *path = st_test_path("killed.tape");
    char message[512];
    int status;
    pid_t pid = fork();
    if (pid == 0) {
        struct steptape_recorder *recorder;
        struct steptape_recorder_stats stats = {.struct_size = sizeof stats};
        const struct timespec pause = {0, 1000000};
        int rc = steptape_recorder_open(path, HEADER, NULL, &recorder, message, sizeof message);
        for (int i = 0; i < COUNT && !rc; i++)
            rc = record_check(recorder, i, "[]");
        while (!rc && !stats.committed_count && !steptape_recorder_get_stats(recorder, &stats))
            nanosleep(&pause, NULL);
        _exit(rc != 0);
    }
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_int_equal(status, 0);
    assert_int_equal(steptape_recover(path, message, sizeof message), 0);
    assert_int_equal(st_test_ask(path, "SELECT count(*) FROM step"), COUNT);
    assert_int_equal(st_test_ask(path, "SELECT count(*) FROM recorder_note"), COUNT);
    assert_int_equal(st_test_ask(path, "SELECT count(DISTINCT sequence) FROM recorder_note"),
                     COUNT);
    unlink(path);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(import_and_recorder_agree),
        cmocka_unit_test(a_refused_step_turns_recording_off),
        cmocka_unit_test(checks_of_both_are_the_same),
        cmocka_unit_test(notes_of_bad_checks_outlive_the_engine),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
