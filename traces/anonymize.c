/* SPDX-License-Identifier: Apache-2.0 */
#include "traces/anonymize.h"

#include <inttypes.h>
#include <sqlite3.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Memory that runs out is an error of ours, not the end of the process. */
#define HASH_NONFATAL_OOM 1
#include <uthash.h>

#include "traces/base/log.h"
#include "traces/format/db.h"

#define DAY_NS (INT64_C(86400) * 1000000000)

/* ---- names: public ones stay */

static const char *const engines[] = {"vllm", "sglang", "tensorrt-llm", "lmdeploy", NULL};
static const char *const runners[] = {"V1", "V2", NULL};
static const char *const devices[] = {"cuda", "cpu", "none", NULL};
static const char *const architectures[] = {"DeepseekV2ForCausalLM",
                                            "DeepseekV3ForCausalLM",
                                            "DeepseekV32ForCausalLM",
                                            "DeepseekV4ForCausalLM",
                                            "Gemma2ForCausalLM",
                                            "Gemma3ForCausalLM",
                                            "Glm4MoeForCausalLM",
                                            "GptOssForCausalLM",
                                            "LlamaForCausalLM",
                                            "MistralForCausalLM",
                                            "MixtralForCausalLM",
                                            "Qwen2ForCausalLM",
                                            "Qwen2MoeForCausalLM",
                                            "Qwen3ForCausalLM",
                                            "Qwen3MoeForCausalLM",
                                            "Qwen3NextForCausalLM",
                                            NULL};

static const char *public_name(const char *name, const char *const *known) {
    for (; name && *known; known++)
        if (strcmp(name, *known) == 0)
            return *known;
    return NULL;
}

/* "0.26.0rc1+acme" as "0.26.0": up to three numbers of up to four digits. */
static const char *reduce_version(const char *version, char *reduced, size_t size) {
    size_t used = 0;
    for (int part = 0; version && part < 3; part++) {
        size_t digits = strspn(version, "0123456789");
        if (digits < 1 || digits > 4 || used + digits + 2 > size)
            break;
        used += (size_t)snprintf(reduced + used, size - used, "%s%.*s", part ? "." : "",
                                 (int)digits, version);
        version += digits;
        if (*version++ != '.')
            break;
    }
    return used ? reduced : NULL;
}

/* Of the JSON object only a public method and a number of tokens; that there is one stays. */
static int reduce_speculative(struct st_tape *tape, const char *text, char **reduced,
                              struct st_error *err) {
    sqlite3_stmt *stmt;
    ST_TRY(st_db_prepare(
        st_tape_db(tape), st_tape_path(tape),
        "SELECT CASE WHEN json_valid(?1) THEN json_patch('{}', json_object("
        "'method', CASE WHEN json_extract(?1, '$.method') IN ('ngram', 'ngram_gpu', 'suffix',"
        " 'medusa', 'mlp_speculator', 'draft_model', 'eagle', 'eagle3', 'mtp', 'deepseek_mtp')"
        " THEN json_extract(?1, '$.method') END,"
        "'num_speculative_tokens', CASE json_type(?1, '$.num_speculative_tokens')"
        " WHEN 'integer' THEN min(max(json_extract(?1, '$.num_speculative_tokens'), 0), 1024) END))"
        " ELSE '{}' END",
        &stmt, err));
    sqlite3_bind_text(stmt, 1, text, -1, SQLITE_STATIC);
    int rc = ST_OK;
    if (sqlite3_step(stmt) != SQLITE_ROW) {
        rc = st_db_fail(st_tape_db(tape), st_tape_path(tape), err);
    } else {
        const char *json = (const char *)sqlite3_column_text(stmt, 0);
        *reduced = json ? strdup(json) : NULL;
        if (!*reduced)
            rc = ST_FAIL_NOMEM(err);
    }
    sqlite3_finalize(stmt);
    return rc;
}

/* ---- request numbers */

struct number {
    int64_t request_id, number;
    bool live; /* was new, has not finished */
    UT_hash_handle hh;
};

struct numbers {
    struct number *by_id;
    int64_t next;
};

/* Requests that have finished are forgotten at the end of their step: memory follows the live
 * ones. */
static void forget(struct numbers *numbers, const struct st_request_list *list, bool live_too) {
    for (int32_t i = 0; i < list->count; i++) {
        struct number *n;
        HASH_FIND(hh, numbers->by_id, &list->request_id[i], sizeof(int64_t), n);
        if (n && (live_too || !n->live)) {
            HASH_DEL(numbers->by_id, n);
            free(n);
        }
    }
}

static void numbers_fini(struct numbers *numbers) {
    struct number *n, *next;
    HASH_ITER(hh, numbers->by_id, n, next) {
        HASH_DEL(numbers->by_id, n);
        free(n);
    }
}

static int find_number(struct numbers *numbers, int64_t request_id, struct number **found,
                       struct st_error *err) {
    struct number *n;
    HASH_FIND(hh, numbers->by_id, &request_id, sizeof request_id, n);
    if (!n) {
        n = calloc(1, sizeof *n);
        if (!n)
            return ST_FAIL_NOMEM(err);
        n->request_id = request_id;
        n->number = numbers->next++;
        HASH_ADD(hh, numbers->by_id, request_id, sizeof n->request_id, n);
        if (!n->hh.tbl) {
            free(n);
            return ST_FAIL_NOMEM(err);
        }
    }
    *found = n;
    return ST_OK;
}

/* ---- a step */

struct copy {
    struct st_tape *tape;
    const struct st_anonymize_options *options;
    struct st_writer *writer;
    struct numbers numbers;
    int64_t base_ns; /* of starts; ST_UNKNOWN: they stay */
    int64_t *id;     /* renumbered lists of a step, one after another */
    int64_t capacity, used;
};

static int renumber(struct copy *c, int32_t count, const int64_t **list, bool is_new,
                    struct st_error *err) {
    int64_t *to = c->id + c->used;
    for (int32_t i = 0; i < count; i++) {
        struct number *n = NULL;
        ST_TRY(find_number(&c->numbers, (*list)[i], &n, err));
        n->live |= is_new;
        to[i] = n->number;
    }
    if (count > 0) {
        *list = to;
        c->used += count;
    }
    return ST_OK;
}

static int reserve(struct copy *c, const struct st_step *s, struct st_error *err) {
    int64_t need = (int64_t)s->request_count + s->new_requests.count + s->finished.count +
                   s->preempted.count + s->resumed.count +
                   (s->replaced.count > 0 ? s->replaced.count : 0);
    c->used = 0;
    if (need <= c->capacity)
        return ST_OK;
    int64_t *id = realloc(c->id, (size_t)(need * 2) * sizeof *id);
    if (!id)
        return ST_FAIL_NOMEM(err);
    c->id = id;
    c->capacity = need * 2;
    return ST_OK;
}

/* Arrays of numbers under keys that are known: anything else might say more. */
static bool holds_numbers_alone(const char *json) {
    static const char *const keys[] = {"query_start_loc", "positions",    "seq_lens",
                                       "block_table",     "slot_mapping", NULL};
    for (;;) {
        char key[24];
        json += strspn(json, "{}[]:,-+.0123456789eE \t\r\nnul"); /* null is a value */
        const char *end = *json == '"' ? strchr(json + 1, '"') : NULL;
        if (!end)
            return !*json;
        snprintf(key, sizeof key, "%.*s", (int)(end - json - 1 > 23 ? 23 : end - json - 1),
                 json + 1);
        json = end + 1 + strspn(end + 1, " \t\r\n");
        if (!public_name(key, keys) || *json != ':')
            return false;
    }
}

static int copy_step(struct copy *c, const struct st_step *from, struct st_error *err) {
    struct st_step step = *from;
    const char *json = NULL;
    ST_TRY(reserve(c, from, err));
    ST_TRY(renumber(c, step.finished.count, &step.finished.request_id, false, err));
    ST_TRY(renumber(c, step.preempted.count, &step.preempted.request_id, false, err));
    ST_TRY(renumber(c, step.resumed.count, &step.resumed.request_id, false, err));
    ST_TRY(renumber(c, step.new_requests.count, &step.new_requests.request_id, true, err));
    ST_TRY(renumber(c, step.replaced.count, &step.replaced.request_id, false, err));
    ST_TRY(renumber(c, step.request_count, &step.request_id, false, err));
    if (step.start_ns != ST_UNKNOWN && c->base_ns != ST_UNKNOWN &&
        (__builtin_sub_overflow(step.start_ns, c->base_ns, &step.start_ns) || step.start_ns < 0))
        return ST_FAIL(err, ST_ERR_CORRUPT,
                       "%s: table step: the start of step %" PRId64 " is out of range",
                       st_tape_path(c->tape), step.step_id);
    if (c->options->keep_check) {
        ST_TRY(st_tape_check_json(c->tape, step.step_id, &json, err));
        if (json && !holds_numbers_alone(json))
            return ST_FAIL(err, ST_ERR_INPUT,
                           "%s: step %" PRId64 ": check holds more than the arrays that are known",
                           st_tape_path(c->tape), step.step_id);
    }
    ST_TRY(st_writer_add(c->writer, &step, json, err));
    /* A number that is finished and new in one step is the new one's from here on. */
    for (int32_t i = 0; i < from->finished.count; i++) {
        const struct st_request_list one = {1, &from->finished.request_id[i]};
        bool again = false;
        for (int32_t j = 0; j < from->new_requests.count && !again; j++)
            again = from->new_requests.request_id[j] == *one.request_id;
        forget(&c->numbers, &one, !again);
    }
    forget(&c->numbers, &from->preempted, false);
    return ST_OK;
}

static int copy_steps(struct copy *c, struct st_error *err) {
    struct st_cursor *cursor;
    const struct st_step *step;
    int64_t done = 0, total = st_tape_step_count(c->tape);
    ST_TRY(st_cursor_open(c->tape, ST_READ_BLOCKS, &cursor, err));
    int rc;
    while ((rc = st_cursor_next(cursor, &step, err)) == ST_OK) {
        if (st_interrupted()) {
            rc = ST_FAIL(err, ST_ERR_INTERRUPTED, "interrupted; no tape was written");
            break;
        }
        if ((rc = copy_step(c, step, err)))
            break;
        st_progress("anonymize", ++done, total);
    }
    st_cursor_close(cursor);
    return rc == ST_DONE ? ST_OK : rc;
}

/* ---- the rest */

/* A single number; NULL is ST_UNKNOWN. */
static int query_number(struct st_tape *tape, const char *sql, int64_t *value,
                        struct st_error *err) {
    sqlite3_stmt *stmt;
    ST_TRY(st_db_prepare(st_tape_db(tape), st_tape_path(tape), sql, &stmt, err));
    int rc = sqlite3_step(stmt) == SQLITE_ROW
                 ? ST_OK
                 : st_db_fail(st_tape_db(tape), st_tape_path(tape), err);
    if (!rc)
        *value = st_db_column(stmt, 0);
    sqlite3_finalize(stmt);
    return rc;
}

static int copy_recorder(struct copy *c, struct st_error *err) {
    sqlite3 *db = st_tape_db(c->tape);
    const char *path = st_tape_path(c->tape);
    sqlite3_stmt *stmt;
    ST_TRY(st_db_prepare(db, path,
                         "SELECT sequence_count, dropped_count, torn_count, recovered,"
                         " lost_reason IS NOT NULL, ring_bytes, byte_count, cost_sum_ns,"
                         " cost_median_ns, cost_p999_ns, cost_max_ns FROM recorder LIMIT 1",
                         &stmt, err));
    int row = sqlite3_step(stmt), rc = ST_OK;
    if (row == SQLITE_ROW) {
        struct st_recorder_facts facts = {
            .sequence_count = sqlite3_column_int64(stmt, 0),
            .dropped_count = sqlite3_column_int64(stmt, 1),
            .torn_count = sqlite3_column_int64(stmt, 2),
            .recovered = sqlite3_column_int64(stmt, 3) != 0,
            .lost_reason = sqlite3_column_int(stmt, 4) ? "left out by anonymize" : NULL,
            .ring_bytes = st_db_column(stmt, 5),
            .byte_count = st_db_column(stmt, 6),
            .cost_sum_ns = st_db_column(stmt, 7),
            .cost_median_ns = st_db_column(stmt, 8),
            .cost_p999_ns = st_db_column(stmt, 9),
            .cost_max_ns = st_db_column(stmt, 10),
        };
        rc = st_writer_recorder(c->writer, &facts, err);
    } else if (row != SQLITE_DONE) {
        rc = st_db_fail(db, path, err);
    }
    sqlite3_finalize(stmt);
    ST_TRY(rc);
    ST_TRY(st_db_prepare(db, path,
                         "SELECT before_step_id, dropped_count FROM step_gap WHERE before_step_id >"
                         " (SELECT coalesce(max(step_id), -1) FROM step)", /* others are steps' */
                         &stmt, err));
    while (!rc && (row = sqlite3_step(stmt)) == SQLITE_ROW)
        rc = st_writer_gap(c->writer, sqlite3_column_int64(stmt, 0), sqlite3_column_int64(stmt, 1),
                           err);
    if (!rc && row != SQLITE_DONE)
        rc = st_db_fail(db, path, err);
    sqlite3_finalize(stmt);
    return rc;
}

/* The history begins anew, and names no file. */
static int write_operation(struct copy *c, struct st_error *err) {
    char *argv[10];
    int argc = 0;
    argv[argc++] = "steptape anonymize";
    if (c->options->keep_model)
        argv[argc++] = "--keep-model";
    if (c->options->keep_times)
        argv[argc++] = "--keep-times";
    if (c->options->keep_kernels)
        argv[argc++] = "--keep-kernels";
    if (c->options->keep_check)
        argv[argc++] = "--keep-check";
    if (c->options->drop_unknown)
        argv[argc++] = "--drop-unknown";
    argv[argc++] = "IN.tape";
    argv[argc++] = "-o";
    argv[argc++] = "OUT.tape";
    ST_TRY(st_writer_operation(c->writer, argc, argv, err));
    return c->options->keep_times ? ST_OK : st_writer_round_times(c->writer, DAY_NS, err);
}

static int count_left_out(struct copy *c, bool recorder, struct st_anonymize_left_out *left_out,
                          struct st_error *err) {
    ST_TRY(query_number(c->tape, "SELECT count(*) FROM operation", &left_out->operations, err));
    if (!c->options->keep_check)
        ST_TRY(query_number(c->tape, "SELECT count(*) FROM step_check", &left_out->checks, err));
    return recorder
               ? query_number(c->tape, "SELECT count(*) FROM recorder_note", &left_out->notes, err)
               : ST_OK;
}

static int open_copy(struct copy *c, const char *output, struct st_error *err) {
    struct st_header header = *st_tape_header(c->tape);
    char version[32], *speculative = NULL;
    header.engine = public_name(header.engine, engines);
    header.engine_version = reduce_version(header.engine_version, version, sizeof version);
    header.runner = public_name(header.runner, runners);
    header.device = public_name(header.device, devices);
    if (!c->options->keep_model) {
        header.model = NULL;
        header.architecture = public_name(header.architecture, architectures);
    }
    if (!c->options->keep_times) {
        header.clock_monotonic_ns = header.clock_realtime_ns = ST_UNKNOWN;
        ST_TRY(query_number(c->tape, "SELECT min(start_ns) FROM step", &c->base_ns, err));
        ST_TRY(st_anonymize_find_first(c->tape, &c->base_ns, err));
    }
    if (header.scale)
        header.scale = "scaled; how is left out";
    if (header.speculative) {
        ST_TRY(reduce_speculative(c->tape, header.speculative, &speculative, err));
        header.speculative = speculative;
    }
    int rc = st_writer_open(output, &header, &c->writer, err);
    free(speculative);
    return rc;
}

static int refuse_unknown(struct copy *c, struct st_anonymize_left_out *left_out,
                          struct st_error *err) {
    char name[160];
    if (st_tape_is_result(c->tape))
        return ST_FAIL(err, ST_ERR_INPUT,
                       "%s: a result tape; anonymize the tape, and replay that again",
                       st_tape_path(c->tape));
    if (st_tape_step_count(c->tape) && st_tape_first_step(c->tape) != 0)
        return ST_FAIL(err, ST_ERR_UNSUPPORTED,
                       "%s: begins with step %" PRId64
                       ": only a tape from step 0 is copied; `steptape dump --cut` and import make "
                       "one of it",
                       st_tape_path(c->tape), st_tape_first_step(c->tape));
    ST_TRY(st_private_find_unknown(c->tape, name, sizeof name, &left_out->unknown, err));
    if (left_out->unknown && !c->options->drop_unknown)
        return ST_FAIL(err, ST_ERR_UNSUPPORTED,
                       "%s: %s holds what anonymize does not know; --drop-unknown leaves it out",
                       st_tape_path(c->tape), name);
    return ST_OK;
}

int st_anonymize(struct st_tape *tape, const char *output,
                 const struct st_anonymize_options *options, struct st_writer **writer,
                 struct st_anonymize_left_out *left_out, struct st_error *err) {
    struct copy c = {.tape = tape, .options = options, .base_ns = ST_UNKNOWN};
    bool recorder = false;
    int rc;
    memset(left_out, 0, sizeof *left_out);
    ST_TRY_OUT(refuse_unknown(&c, left_out, err));
    ST_TRY_OUT(st_db_has_table(st_tape_db(tape), st_tape_path(tape), "recorder", &recorder, err));
    ST_TRY_OUT(count_left_out(&c, recorder, left_out, err));
    ST_TRY_OUT(open_copy(&c, output, err));
    ST_TRY_OUT(copy_steps(&c, err));
    if (recorder)
        ST_TRY_OUT(copy_recorder(&c, err));
    ST_TRY_OUT(st_anonymize_launches(tape, output, options, c.base_ns == ST_UNKNOWN ? 0 : c.base_ns,
                                     c.writer, err));
    ST_TRY_OUT(write_operation(&c, err));
    *writer = c.writer;
    c.writer = NULL;
out:
    st_writer_abort(c.writer);
    numbers_fini(&c.numbers);
    free(c.id);
    return rc;
}
