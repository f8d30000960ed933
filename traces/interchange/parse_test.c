/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The importer's parser: each fault is one line with file, line, step and key; good input comes out
 * as it went in; warnings are counted.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "traces/interchange/parse.h"
#include "traces/interchange/print.h"

#define GROUPS                                                                                     \
    "\"groups\":[{\"id\":0,\"block_size\":64,\"members\":[{\"kind\":\"swa\",\"layers\":2,"         \
    "\"ratio\":1,\"window\":128,\"page_bytes\":37440}]},{\"id\":1,\"block_size\":8,\"members\":["  \
    "{\"kind\":\"state\",\"layers\":1,\"ratio\":128,\"window\":null,\"page_bytes\":null}]}]"
#define LIMITS                                                                                     \
    "\"max_model_len\":1000,\"max_num_seqs\":2,\"max_num_batched_tokens\":300,\"num_blocks\":500,"
#define HEADER "{\"kind\":\"steps\",\"version\":1," LIMITS GROUPS "}\n"
#define HEAD(more) "{\"kind\":\"steps\",\"version\":1," more GROUPS "}\n"

/* The keys of a step that must be there, in two halves: tests change one half. */
#define ROWS(req, qlen, start) "\"req\":" req ",\"qlen\":" qlen ",\"start\":" start ","
#define EVENTS(new_, prompt_len, finished, preempted, resumed)                                     \
    "\"new\":" new_ ",\"prompt_len\":" prompt_len ",\"finished\":" finished                        \
    ",\"preempted\":" preempted ",\"resumed\":" resumed ","
#define QUIET EVENTS("[]", "[]", "[]", "[]", "[]")
#define STEP(n, rest) "{\"step\":" n "," rest "}\n"
#define STEP0                                                                                      \
    STEP("0", ROWS("[7]", "[3]", "[0]")                                                            \
                  EVENTS("[7]", "[3]", "[]", "[]", "[]") "\"blocks\":[[[1]],[[2]]]")
#define FIRST(blocks) ROWS("[7]", "[3]", "[0]") EVENTS("[7]", "[3]", "[]", "[]", "[]") blocks
#define DECODE(more) ROWS("[7]", "[1]", "[3]") QUIET "\"blocks\":[[[]],[[]]]" more

struct fault {
    const char *name;
    const char *text;
    const char *expected; /* the whole message behind "in.jsonl: " */
};

/* But for the rules between steps, which capture/rules_test.c has. */
static const struct fault faults[] = {
    {"empty file", "", "line 1: empty file, a header {\"kind\":\"steps\",...} was expected"},
    {"empty line", "\n", "line 1: empty line, a JSON object was expected"},
    {"no JSON", "steps\n", "line 1: column 5: not JSON ('[' or '{' expected near 'steps')"},
    {"no object", "[]\n", "line 1: is a list, a header {\"kind\":\"steps\",...} was expected"},
    {"no kind", "{}\n", "line 1: kind: missing, a header {\"kind\":\"steps\",...} was expected"},
    {"kind", "{\"kind\":\"else\"}\n", "line 1: kind: is \"else\", \"steps\" was expected"},
    {"kind type", "{\"kind\":1}\n", "line 1: kind: is an integer, \"steps\" was expected"},
    {"no version", "{\"kind\":\"steps\"}\n",
     "line 1: version: is missing, the integer 1 was expected"},
    {"version", "{\"kind\":\"steps\",\"version\":99,\"new_key\":1}\n",
     "line 1: version: is 99, this steptape reads version 1"},
    {"version type", "{\"kind\":\"steps\",\"version\":\"1\"}\n",
     "line 1: version: is a string, the integer 1 was expected"},
    {"no groups", "{\"kind\":\"steps\",\"version\":1}\n",
     "line 1: groups: missing, the key must be there"},
    {"null groups", "{\"kind\":\"steps\",\"version\":1,\"groups\":null}\n",
     "line 1: groups: is null, a value was expected"},
    {"header key", HEAD("\"sur\\nprise\":1,"),
     "line 1: sur?prise: unknown key; --ignore-unknown leaves such keys out"},
    {"key twice", HEAD("\"rank\":1,\"rank\":2,"),
     "line 1: rank: column 43: duplicate object key near '\"rank\"', each key once was expected"},
    {"string", HEAD("\"engine\":5,"), "line 1: engine: is an integer, a string was expected"},
    {"device", HEAD("\"device\":\"abacus\","),
     "line 1: device: is \"abacus\"; cuda, cpu or none was expected"},
    {"limit", HEAD("\"max_num_seqs\":0,"), "line 1: max_num_seqs: is 0, at least 1 was expected"},
    {"num_blocks", HEAD("\"num_blocks\":9999999999,"),
     "line 1: num_blocks: is 9999999999, 0 to 2147483648 was expected"},
    {"bool", HEAD("\"prefix_caching\":1,"),
     "line 1: prefix_caching: is an integer, true or false was expected"},
    {"ratios", HEAD("\"compress_ratios\":[0,-4],"),
     "line 1: compress_ratios[1]: is -4, 0 to 2147483647 was expected"},
    {"ratios type", HEAD("\"compress_ratios\":4,"),
     "line 1: compress_ratios: is an integer, a list was expected"},
    {"speculative", HEAD("\"speculative\":3,"),
     "line 1: speculative: is an integer, an object or null was expected"},
    {"clock", HEAD("\"clock\":7,"), "line 1: clock: is an integer, an object was expected"},
    {"clock key", HEAD("\"clock\":{\"ns\":7},"),
     "line 1: clock.ns: unknown key; --ignore-unknown leaves such keys out"},
    {"group", "{\"kind\":\"steps\",\"version\":1,\"groups\":[3]}\n",
     "line 1: groups[0]: is an integer, an object was expected"},
    {"block_size",
     "{\"kind\":\"steps\",\"version\":1,\"groups\":[{\"id\":0,\"block_size\":0,\"members\":[]}]}\n",
     "line 1: groups[0].block_size: is 0, 1 to 2147483647 was expected"},
    {"group ids",
     "{\"kind\":\"steps\",\"version\":1,\"groups\":[{\"id\":4,\"block_size\":1,\"members\":[]}]}\n",
     "line 1: groups[0].id: is 4, 0 was expected: ids are consecutive from 0"},
    {"no members",
     "{\"kind\":\"steps\",\"version\":1,\"groups\":[{\"id\":0,\"block_size\":1,\"members\":[]}]}\n",
     "line 1: groups[0].members: is empty, at least one member was expected"},
    {"member kind",
     "{\"kind\":\"steps\",\"version\":1,\"groups\":[{\"id\":0,\"block_size\":1,\"members\":["
     "{\"kind\":\"kw\",\"layers\":1,\"ratio\":1}]}]}\n",
     "line 1: groups[0].members[0].kind: is \"kw\"; swa, kv, indexer_kv, state, indexer_state or "
     "attention was expected"},
    {"member key",
     "{\"kind\":\"steps\",\"version\":1,\"groups\":[{\"id\":0,\"block_size\":1,\"members\":["
     "{\"kind\":\"kv\",\"layers\":1,\"ratio\":1,\"extra\":0}]}]}\n",
     "line 1: groups[0].members[0].extra: unknown key; --ignore-unknown leaves such keys out"},
    {"members",
     "{\"kind\":\"steps\",\"version\":1,\"groups\":[{\"id\":0,\"block_size\":1,\"members\":7}]}\n",
     "line 1: groups[0].members: is an integer, a list was expected"},

    {"cut off", HEADER STEP0 "{\"step\":",
     "line 3: the last line is cut off after 8 bytes, a whole JSON object was expected"},
    {"cut off in a word", HEADER "{\"step\":0,\"mode\":nul",
     "line 2: the last line is cut off after 20 bytes, a whole JSON object was expected"},
    {"step no object", HEADER "3\n", "line 2: column 1: not JSON ('[' or '{' expected near '3')"},
    {"step list", HEADER "[3]\n", "line 2: is a list, a step {\"step\":0,...} was expected"},
    {"no step", HEADER "{}\n", "line 2: step: missing, the key must be there"},
    {"step type", HEADER STEP("\"0\"", FIRST("\"blocks\":[[[1]],[[2]]]")),
     "line 2: step: is a string, an integer was expected"},
    {"step order", HEADER STEP0 STEP("2", DECODE("")),
     "line 3: step: is 2, 1 was expected: steps are consecutive from 0"},
    {"first step", HEADER STEP("1", DECODE("")),
     "line 2: step: is 1, 0 was expected: steps are consecutive from 0"},
    {"step key", HEADER STEP("0", FIRST("\"surprise\":1,\"blocks\":[[[1]],[[2]]]")),
     "line 2: step 0: surprise: unknown key; --ignore-unknown leaves such keys out"},
    {"no blocks", HEADER STEP("0", FIRST("\"zeroed\":0")),
     "line 2: step 0: blocks: missing, the key must be there"},
    {"null req", HEADER STEP("0", ROWS("null", "[]", "[]") QUIET "\"blocks\":[[],[]]"),
     "line 2: step 0: req: is null, a value was expected"},
    {"req type", HEADER STEP("0", ROWS("\"abc\"", "[]", "[]") QUIET "\"blocks\":[[],[]]"),
     "line 2: step 0: req: is a string, a list was expected"},
    {"req value", HEADER STEP("0", ROWS("[-7]", "[1]", "[0]") QUIET "\"blocks\":[[[]],[[]]]"),
     "line 2: step 0: req[0]: is -7, at least 0 was expected"},
    {"qlen count", HEADER STEP0 STEP("1", ROWS("[7]", "[1,1]", "[3]") QUIET "\"blocks\":[]"),
     "line 3: step 1: qlen: holds 2 values, 1 was expected, as in req"},
    {"qlen zero", HEADER STEP0 STEP("1", ROWS("[7]", "[0]", "[3]") QUIET "\"blocks\":[]"),
     "line 3: step 1: qlen[0]: is 0, 1 to 2147483647 was expected"},
    {"qlen fraction", HEADER STEP0 STEP("1", ROWS("[7]", "[1.5]", "[3]") QUIET "\"blocks\":[]"),
     "line 3: step 1: qlen[0]: is a fraction, an integer was expected"},
    {"start negative", HEADER STEP0 STEP("1", ROWS("[7]", "[1]", "[-1]") QUIET "\"blocks\":[]"),
     "line 3: step 1: start[0]: is -1, 0 to 2147483647 was expected"},
    {"start huge",
     HEADER STEP0 STEP("1", ROWS("[7]", "[1]", "[1180591620717411303424]") QUIET "\"blocks\":[]"),
     "line 3: start: column 62: too big integer, an integer of 64 bits was expected"},
    {"start + qlen",
     HEADER STEP("0", ROWS("[7]", "[1]", "[2147483647]")
                          EVENTS("[7]", "[3]", "[]", "[]", "[]") "\"blocks\":[[[]],[[]]]"),
     "line 2: step 0: start[0]: start + qlen is 2147483648, less than 2^31 was expected"},
    {"draft count", HEADER STEP0 STEP("1", DECODE(",\"draft\":[]")),
     "line 3: step 1: draft: holds 0 values, 1 was expected, as in req"},
    {"draft value", HEADER STEP0 STEP("1", DECODE(",\"draft\":[-1]")),
     "line 3: step 1: draft[0]: is -1, 0 to 2147483646 was expected"},
    {"mode", HEADER STEP0 STEP("1", DECODE(",\"mode\":\"HALF\"")),
     "line 3: step 1: mode: is \"HALF\"; NONE, PIECEWISE, FULL or null was expected"},
    {"dur_ns", HEADER STEP0 STEP("1", DECODE(",\"dur_ns\":-1")),
     "line 3: step 1: dur_ns: is -1, at least 0 was expected"},
    {"padded_tokens", HEADER STEP0 STEP("1", DECODE(",\"padded_tokens\":-1")),
     "line 3: step 1: padded_tokens: is -1, 0 to 2147483647 was expected"},
    {"cpu_starts", HEADER STEP0 STEP("1", DECODE(",\"cpu_starts\":\"no\"")),
     "line 3: step 1: cpu_starts: is a string, true or false was expected"},
    {"zeroed", HEADER STEP0 STEP("1", DECODE(",\"zeroed\":[]")),
     "line 3: step 1: zeroed: is a list, an integer was expected"},
    {"zeroed beyond", HEADER STEP0 STEP("1", DECODE(",\"zeroed\":9223372036854775807")),
     "line 3: step 1: zeroed: is 9223372036854775807, 0 to 9223372036854775806 was expected"},
    {"prompt_len",
     HEADER STEP("0", ROWS("[7]", "[3]", "[0]")
                          EVENTS("[7]", "[]", "[]", "[]", "[]") "\"blocks\":[[[1]],[[2]]]"),
     "line 2: step 0: prompt_len: holds 0 values, 1 was expected, as in new"},
    {"prompt_len value",
     HEADER STEP("0", ROWS("[7]", "[3]", "[0]")
                          EVENTS("[7]", "[-3]", "[]", "[]", "[]") "\"blocks\":[[[1]],[[2]]]"),
     "line 2: step 0: prompt_len[0]: is -3, 0 to 2147483647 was expected"},

    {"group count", HEADER STEP("0", FIRST("\"blocks\":[[[1]]]")),
     "line 2: step 0: blocks: holds 1 groups, 2 was expected, as in the header"},
    {"row count", HEADER STEP("0", FIRST("\"blocks\":[[[1]],[]]")),
     "line 2: step 0: blocks[1]: holds 0 lists, 1 was expected, as in req"},
    {"row type", HEADER STEP("0", FIRST("\"blocks\":[[[1]],[2]]")),
     "line 2: step 0: blocks[1][0]: is an integer, a list was expected"},
    {"block id", HEADER STEP("0", FIRST("\"blocks\":[[[1]],[[2,500]]]")),
     "line 2: step 0: blocks[1][0][1]: is 500, less than num_blocks (500) was expected"},
    {"block id of a later row",
     HEADER STEP("0", ROWS("[7,8,9]", "[3,3,3]", "[0,0,0]")
                          EVENTS("[7,8,9]", "[3,3,3]", "[]", "[]",
                                 "[]") "\"blocks\":[[[1],[],[3]],[[2],[],[4,500]]]"),
     "line 2: step 0: blocks[1][2][1]: is 500, less than num_blocks (500) was expected"},
    {"block id negative", HEADER STEP("0", FIRST("\"blocks\":[[[-1]],[[2]]]")),
     "line 2: step 0: blocks[0][0][0]: is -1, 0 to 2147483647 was expected"},
    {"block id type", HEADER STEP("0", FIRST("\"blocks\":[[[null]],[[2]]]")),
     "line 2: step 0: blocks[0][0][0]: is null, an integer was expected"},
    {"block id unlimited", HEAD("") STEP("0", FIRST("\"blocks\":[[[2147483648]],[[2]]]")),
     "line 2: step 0: blocks[0][0][0]: is 2147483648, 0 to 2147483647 was expected"},

    {"check type", HEADER STEP0 STEP("1", DECODE(",\"check\":[]")),
     "line 3: step 1: check: is a list, an object was expected"},
    {"check key", HEADER STEP0 STEP("1", DECODE(",\"check\":{\"weights\":[]}")),
     "line 3: step 1: check.weights: unknown key; --ignore-unknown leaves such keys out"},
    {"check member", HEADER STEP0 STEP("1", DECODE(",\"check\":{\"positions\":3}")),
     "line 3: step 1: check.positions: is an integer, a list was expected"},
};

/* Reads all of text; the result of the last call, and how many steps were given. */
static int read_all(const char *text, size_t size, const struct st_interchange_options *options,
                    int64_t *steps, struct st_error *err) {
    struct st_interchange *in;
    const struct st_step *step;
    const char *check_json;
    *steps = 0;
    int rc = st_interchange_open_memory("in.jsonl", text, size, options, &in, err);
    if (rc)
        return rc;
    while ((rc = st_interchange_next(in, &step, &check_json, err)) == 0)
        ++*steps;
    st_interchange_close(in);
    return rc;
}

static void each_fault_is_named(void **state) {
    (void)state;
    int wrong = 0;
    for (size_t i = 0; i < sizeof faults / sizeof faults[0]; i++) {
        const struct fault *f = &faults[i];
        struct st_error err = {0};
        int64_t steps;
        char expected[512];
        snprintf(expected, sizeof expected, "in.jsonl: %s", f->expected);
        int rc = read_all(f->text, strlen(f->text), NULL, &steps, &err);
        if (rc == ST_ERR_INPUT && strcmp(err.msg, expected) == 0)
            continue;
        print_error("%s: status %d\n   got: %s\n  want: %s\n", f->name, rc, err.msg, expected);
        wrong++;
    }
    assert_int_equal(wrong, 0);
}

static void nul_bytes_are_named(void **state) {
    (void)state;
    static const char text[] = HEADER STEP0 "\0\0";
    struct st_error err = {0};
    int64_t steps;
    assert_int_equal(read_all(text, sizeof text - 1, NULL, &steps, &err), ST_ERR_INPUT);
    assert_string_equal(err.msg, "in.jsonl: line 3: byte 1 is NUL, JSON text was expected");
    assert_int_equal(steps, 1);
}

static void a_long_line_is_refused(void **state) {
    (void)state;
    struct st_interchange_options options = {.max_line_bytes = sizeof HEADER};
    char text[2000];
    snprintf(text, sizeof text, "%s%s", HEADER, "{\"step\":0,\"req\":[");
    size_t n = strlen(text);
    memset(text + n, ' ', sizeof text - n);
    struct st_error err = {0};
    int64_t steps;
    assert_int_equal(read_all(text, sizeof text, &options, &steps, &err), ST_ERR_INPUT);
    char expected[80];
    snprintf(expected, sizeof expected, "in.jsonl: line 2: longer than %zu bytes", sizeof HEADER);
    assert_string_equal(err.msg, expected);
}

static void optional_keys_stay_absent(void **state) {
    (void)state;
    static const char text[] =
        HEAD("") STEP0 STEP("1", DECODE(",\"t_ns\":null,\"mode\":null,\"draft\":null,"
                                        "\"replace\":null,\"check\":null,\"cpu_starts\":null,"
                                        "\"zeroed\":null"));
    struct st_error err = {0};
    struct st_interchange *in;
    const struct st_step *step;
    const char *check_json;
    assert_int_equal(st_interchange_open_memory("x", text, strlen(text), NULL, &in, &err), 0);
    const struct st_header *h = st_interchange_header(in);
    assert_null(h->engine);
    assert_null(h->speculative);
    assert_int_equal(h->compress_ratio_count, -1);
    assert_int_equal(h->max_model_len, -1);
    assert_int_equal(h->rank, -1);
    assert_int_equal(h->prefix_caching, -1);
    assert_true(h->clock_monotonic_ns == ST_UNKNOWN);
    assert_int_equal(h->group_count, 2);
    assert_int_equal(h->groups[0].members[0].window, 128);
    assert_int_equal(h->groups[1].members[0].window, -1);
    assert_int_equal(h->groups[1].members[0].kind, ST_MEMBER_STATE);
    for (int i = 0; i < 2; i++) {
        assert_int_equal(st_interchange_next(in, &step, &check_json, &err), 0);
        assert_true(step->start_ns == ST_UNKNOWN);
        assert_true(step->padded_token_count == ST_UNKNOWN);
        assert_true(step->zeroed == ST_UNKNOWN);
        assert_int_equal(step->graph_mode, ST_GRAPH_MODE_UNKNOWN);
        assert_int_equal(step->cpu_starts, -1);
        assert_int_equal(step->replaced.count, -1);
        assert_int_equal(step->finished.count, 0);
        assert_null(step->draft);
        assert_null(check_json);
    }
    assert_int_equal(step->token_count, 1);
    assert_int_equal(step->blocks[1].offset[1], 0);
    assert_int_equal(st_interchange_next(in, &step, &check_json, &err), ST_DONE);
    st_interchange_close(in);
}

/* Requests 7 and 8: preempted, resumed from 0 with a new table, drafts rejected, finished. */
static const char story[] =
    "{\"kind\":\"steps\",\"version\":1,\"engine\":\"an \\\"engine\\\"\\n\",\"engine_version\":null,"
    "\"runner\":\"V1\",\"device\":\"none\",\"model\":\"\xc3\xa9\",\"architecture\":null,"
    "\"compress_ratios\":[0,4,128],\"max_model_len\":1000,\"max_num_seqs\":2,"
    "\"max_num_batched_tokens\":300,\"num_blocks\":500,\"prefix_caching\":false,"
    "\"async_scheduling\":true,\"speculative\":{\"z\":1,\"a\":[0.5,null]},\"rank\":3,"
    "\"clock\":{\"monotonic_ns\":-5,\"realtime_ns\":1700158623979960064},\"scale\":null," GROUPS
    "}\n"
    "{\"step\":0,\"t_ns\":5,\"dur_ns\":0,\"mode\":\"FULL\",\"padded_tokens\":8,\"padded_reqs\":"
    "null,"
    "\"req\":[7,9007199254740993],\"qlen\":[3,100],\"start\":[0,64],\"cpu_starts\":false,"
    "\"new\":[9007199254740993,7],\"prompt_len\":[null,3],\"finished\":[],\"preempted\":[],"
    "\"resumed\":[],\"blocks\":[[[1],[2,3]],[[],[499,0,4]]],\"zeroed\":4,"
    "\"check\":{\"slot_mapping\":null,\"positions\":[0,1,2],\"block_table\":[[[1,0],null],null]}}\n"
    "{\"step\":1,\"t_ns\":null,\"dur_ns\":null,\"mode\":null,\"padded_tokens\":null,"
    "\"padded_reqs\":null,\"req\":[7],\"qlen\":[4],\"start\":[3],\"new\":[],\"prompt_len\":[],"
    "\"finished\":[],\"preempted\":[9007199254740993],\"resumed\":[],\"draft\":[3],"
    "\"blocks\":[[[]],[[345]]]}\n"
    "{\"step\":2,\"t_ns\":7,\"dur_ns\":1,\"mode\":\"NONE\",\"padded_tokens\":0,\"padded_reqs\":0,"
    "\"req\":[],\"qlen\":[],\"start\":[],\"cpu_starts\":true,\"new\":[],\"prompt_len\":[],"
    "\"finished\":[],\"preempted\":[],\"resumed\":[],\"draft\":[],\"blocks\":[[],[]],"
    "\"replace\":[],\"zeroed\":0,\"check\":{}}\n"
    "{\"step\":3,\"t_ns\":7,\"dur_ns\":1,\"mode\":\"PIECEWISE\",\"padded_tokens\":7,"
    "\"padded_reqs\":2,\"req\":[7,9007199254740993],\"qlen\":[1,1],\"start\":[5,64],\"new\":[],"
    "\"prompt_len\":[],\"finished\":[],\"preempted\":[],\"resumed\":[9007199254740993],"
    "\"blocks\":[[[],[7]],[[],[8]]],\"replace\":[9007199254740993]}\n"
    "{\"step\":4,\"t_ns\":7,\"dur_ns\":1,\"mode\":\"PIECEWISE\",\"padded_tokens\":7,"
    "\"padded_reqs\":2,\"req\":[],\"qlen\":[],\"start\":[],\"new\":[],\"prompt_len\":[],"
    "\"finished\":[9007199254740993,7],\"preempted\":[],\"resumed\":[],\"blocks\":[[],[]]}\n";

static void what_is_read_is_printed(void **state) {
    (void)state;
    struct st_error err = {0};
    struct st_interchange *in;
    struct st_out *out;
    const struct st_step *step;
    const char *check_json;
    int rc;
    assert_int_equal(st_interchange_open_memory("x", story, strlen(story), NULL, &in, &err), 0);
    assert_int_equal(st_out_open_memory(&out, &err), 0);
    st_print_header(out, st_interchange_header(in));
    while ((rc = st_interchange_next(in, &step, &check_json, &err)) == 0)
        st_print_step(out, step, check_json);
    if (rc != ST_DONE)
        fail_msg("%s", err.msg);
    size_t size;
    const char *printed = st_out_memory(out, &size);
    char *got = strndup(printed, size);
    assert_string_equal(got, story);
    for (int kind = 0; kind < ST_WARN_KINDS; kind++)
        assert_int_equal(st_interchange_warning(in, kind, NULL), 0);
    free(got);
    st_out_abort(out);
    st_interchange_close(in);
}

/* What dropped steps computed shows at the next row of a request, in whichever step that is. */
static void starts_are_free_after_a_gap(void **state) {
    (void)state;
    static const char text[] = HEAD("")
        STEP("0", ROWS("[7,8]", "[3,1]", "[0,0]")
                      EVENTS("[7,8]", "[3,1]", "[]", "[]", "[]") "\"blocks\":[[[1],[2]],[[3],[4]]]")
            STEP("1", ROWS("[7]", "[1]", "[9]") QUIET "\"dropped\":2,\"blocks\":[[[]],[[]]]") STEP(
                "2", ROWS("[7,8]", "[1,1]", "[10,4]") QUIET "\"blocks\":[[[],[]],[[],[]]]")
                STEP("3", ROWS("[7,8]", "[1,1]", "[%d,%d]") QUIET "\"blocks\":[[[],[]],[[],[]]]");
    static const int starts[3][2] = {{11, 5}, {12, 5}, {11, 6}};
    for (int i = 0; i < 3; i++) {
        struct st_interchange *in;
        struct st_error err = {0};
        const struct st_step *step;
        const char *check_json;
        char line[sizeof text + 32];
        int rc;
        snprintf(line, sizeof line, text, starts[i][0], starts[i][1]);
        assert_int_equal(st_interchange_open_memory("x", line, strlen(line), NULL, &in, &err), 0);
        while ((rc = st_interchange_next(in, &step, &check_json, &err)) == 0)
            continue;
        if (rc != (i ? ST_ERR_INPUT : ST_DONE))
            fail_msg("%d: %s", i, err.msg);
        if (i)
            assert_non_null(strstr(err.msg, "step 3: start["));
        st_interchange_close(in);
    }
}

static void warnings_are_counted(void **state) {
    (void)state;
    static const char text[] =
        HEAD("\"extra\":1,\"max_model_len\":3,\"max_num_seqs\":1,\"max_num_batched_tokens\":1,")
            STEP("0", ROWS("[7,8]", "[3,1]", "[0,0]")
                          EVENTS("[7,8]", "[3,1]", "[]", "[]",
                                 "[]") "\"more\":{},\"check\":{\"odd\":1,\"positions\":[0]},"
                                       "\"blocks\":[[[1],[2]],[[3],[4]]]")
                STEP("1", ROWS("[7]", "[2]", "[2]") QUIET "\"blocks\":[[[]],[[]]]");
    static const char *const expected[ST_WARN_KINDS] = {
        "line 2: 1 steps with more requests than max_num_seqs (1)",
        "line 2 and later: 2 steps with more tokens than max_num_batched_tokens (1)",
        "line 3: 1 rows with start + qlen above max_model_len (3)",
        "line 3: 1 rows that start below the last start + qlen, with no draft to reject",
        "line 1 and later: 3 unknown keys left out, the first is extra",
    };
    struct st_interchange_options options = {.ignore_unknown = true};
    struct st_error err = {0};
    struct st_interchange *in;
    const struct st_step *step;
    const char *check_json, *warning;
    assert_int_equal(st_interchange_open_memory("x", text, strlen(text), &options, &in, &err), 0);
    assert_int_equal(st_interchange_next(in, &step, &check_json, &err), 0);
    assert_string_equal(check_json, "{\"positions\":[0]}");
    assert_int_equal(st_interchange_next(in, &step, &check_json, &err), 0);
    assert_int_equal(st_interchange_next(in, &step, &check_json, &err), ST_DONE);
    for (int kind = 0; kind < ST_WARN_KINDS; kind++) {
        assert_true(st_interchange_warning(in, kind, &warning) > 0);
        assert_string_equal(warning, expected[kind]);
    }
    st_interchange_close(in);
}

static void no_check_leaves_checks_out(void **state) {
    (void)state;
    static const char good[] = HEADER STEP("0", FIRST("\"check\":{},\"blocks\":[[[1]],[[2]]]"));
    static const char bad[] = HEADER STEP("0", FIRST("\"check\":1,\"blocks\":[[[1]],[[2]]]"));
    struct st_interchange_options options = {.no_check = true};
    struct st_error err = {0};
    struct st_interchange *in;
    const struct st_step *step;
    const char *check_json;
    int64_t steps;
    assert_int_equal(st_interchange_open_memory("x", good, strlen(good), &options, &in, &err), 0);
    assert_int_equal(st_interchange_next(in, &step, &check_json, &err), 0);
    assert_null(check_json);
    st_interchange_close(in);
    assert_int_equal(read_all(bad, strlen(bad), &options, &steps, &err), ST_ERR_INPUT);
}

static void many_requests_are_remembered(void **state) {
    (void)state;
    struct st_error err = {0};
    struct st_out *out;
    enum { COUNT = 3000 };
    assert_int_equal(st_out_open_memory(&out, &err), 0);
    st_out_string(out, "{\"kind\":\"steps\",\"version\":1,\"groups\":[]}\n");
    for (int i = 0; i <= COUNT; i++) { /* the last one takes the number of the first again */
        int64_t id = (int64_t)(i % COUNT) << 32;
        st_out_format(out,
                      "{\"step\":%d,\"req\":[%lld],\"qlen\":[1],\"start\":[0],\"new\":[%lld],"
                      "\"prompt_len\":[1],\"finished\":[],\"preempted\":[],\"resumed\":[],"
                      "\"blocks\":[]}\r\n",
                      i, (long long)id, (long long)id);
    }
    size_t size;
    const char *text = st_out_memory(out, &size);
    int64_t steps;
    assert_int_equal(read_all(text, size, NULL, &steps, &err), ST_ERR_INPUT);
    assert_int_equal(steps, COUNT);
    assert_non_null(strstr(err.msg, "new[0]: request 0 was seen before"));
    st_out_abort(out);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_fault_is_named),
        cmocka_unit_test(nul_bytes_are_named),
        cmocka_unit_test(a_long_line_is_refused),
        cmocka_unit_test(optional_keys_stay_absent),
        cmocka_unit_test(what_is_read_is_printed),
        cmocka_unit_test(starts_are_free_after_a_gap),
        cmocka_unit_test(warnings_are_counted),
        cmocka_unit_test(no_check_leaves_checks_out),
        cmocka_unit_test(many_requests_are_remembered),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
