/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The writer: facts and block ids of ST_BLOCK_STEPS steps become one row of step_block.
 *
 * Which variant of the allocator's model fits the engine is not known at first.  All of them run
 * side by side over the first blocks; then the one that needs the fewest bytes goes on alone.
 */
#include "traces/format/writer.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "traces/format/blocks.h"
#include "traces/format/db.h"
#include "traces/format/facts.h"
#include "traces/format/header_store.h"
#include "traces/format/launches.h"
#include "traces/format/schema.h"
#include "traces/format/sums.h"
#include "traces/format/writer_i.h"

/* One model of the allocator with the requests' state that goes with it. */
struct variant {
    bool active;
    struct st_requests requests;
    struct st_facts_encoder facts;
    struct st_blocks_model model;
    struct st_bytes column[ST_BLOCKS_COLUMNS];
    struct st_bytes blob[ST_TRIAL_BLOCKS]; /* block_ids of the trial, until one is chosen */
    size_t trial_size;
};

struct st_writer {
    char *path;
    char *temporary;
    sqlite3 *db;
    sqlite3_stmt *insert_step, *insert_block, *insert_check;
    int32_t group_count;
    struct variant variant[ST_MODEL_COUNT];
    int chosen; /* -1 during the trial */
    int trial_blocks;
    int64_t next_step;   /* -1: any */
    int32_t block_steps; /* steps in the block being filled */
    int64_t block_rows;  /* request-steps in it */
    int64_t block_ids;   /* ids in it */
    int64_t ids_total, ids_since_keyframe;
    size_t keyframe_size; /* of the last one */
    struct st_bytes keyframe, packed;
    struct st_step_sums sums;
    bool part;         /* path is the file itself, and blocks are committed one by one */
    int64_t committed; /* steps */
    int64_t added;
    int status; /* the first error; every later call gives it again */
};

static struct variant *lead(struct st_writer *w) {
    return &w->variant[w->chosen < 0 ? 0 : w->chosen];
}

static void variant_fini(struct variant *v) {
    if (!v->active)
        return;
    v->active = false;
    st_requests_fini(&v->requests);
    st_facts_encoder_fini(&v->facts);
    st_blocks_model_fini(&v->model);
    for (int c = 0; c < ST_BLOCKS_COLUMNS; c++)
        st_bytes_fini(&v->column[c]);
    for (int b = 0; b < ST_TRIAL_BLOCKS; b++)
        st_bytes_fini(&v->blob[b]);
}

static int open_variants(struct st_writer *w, const struct st_header *header,
                         struct st_error *err) {
    for (int i = 0; i < ST_MODEL_COUNT; i++) {
        struct variant *v = &w->variant[i];
        v->active = true;
        st_requests_init(&v->requests, header->group_count);
        ST_TRY(st_blocks_model_init(&v->model, header, (unsigned)i, err));
    }
    return ST_OK;
}

static int prepare(struct st_writer *w, const struct st_header *header, struct st_error *err) {
    ST_TRY(st_db_execute(w->db, w->path, "BEGIN", err));
    ST_TRY(st_db_execute(w->db, w->path, st_schema_tape_sql, err));
    ST_TRY(st_header_store(w->db, w->path, header, err));
    ST_TRY(st_db_prepare(w->db, w->path, "INSERT INTO step VALUES(?,?,?,?,?,?,?,?,?,?,?,?,?)",
                         &w->insert_step, err));
    ST_TRY(st_db_prepare(w->db, w->path, "INSERT INTO step_block VALUES(?,?,?,?,?)",
                         &w->insert_block, err));
    ST_TRY(
        st_db_prepare(w->db, w->path, "INSERT INTO step_check VALUES(?,?)", &w->insert_check, err));
    return open_variants(w, header, err);
}

static int open_writer(const char *path, bool part, const struct st_header *header,
                       struct st_writer **writer, struct st_error *err) {
    ST_TRY(st_header_check(header, err));
    struct st_writer *w = calloc(1, sizeof *w);
    if (!w)
        return ST_FAIL_NOMEM(err);
    int rc = ST_OK;
    w->chosen = -1;
    w->next_step = -1;
    st_sums_init(&w->sums);
    w->group_count = header->group_count;
    w->part = part;
    w->path = strdup(path);
    if (!w->path)
        ST_TRY_OUT(ST_FAIL_NOMEM(err));
    ST_TRY_OUT(part ? st_db_create_part(w->path, &w->db, err)
                    : st_db_create(w->path, &w->temporary, &w->db, err));
    ST_TRY_OUT(prepare(w, header, err));
    if (part)
        ST_TRY_OUT(st_db_execute(w->db, w->path, "COMMIT; BEGIN", err));
out:
    if (rc)
        st_writer_abort(w);
    else
        *writer = w;
    return rc;
}

int st_writer_open(const char *path, const struct st_header *header, struct st_writer **writer,
                   struct st_error *err) {
    return open_writer(path, false, header, writer, err);
}

int st_writer_open_part(const char *part, const struct st_header *header, struct st_writer **writer,
                        struct st_error *err) {
    return open_writer(part, true, header, writer, err);
}

void st_step_summarize(const struct st_step *step, struct st_step_summary *s) {
    memset(s, 0, sizeof *s);
    for (int32_t i = 0; i < step->request_count; i++) {
        int32_t query_len = step->query_len[i], start = step->num_computed_tokens[i];
        int32_t prompt_len = step->prompt_len[i];
        s->token_count += query_len;
        if (query_len > s->max_query_len)
            s->max_query_len = query_len;
        if (start + query_len > s->max_seq_len)
            s->max_seq_len = start + query_len;
        bool past_prompt = prompt_len >= 0 ? start >= prompt_len : start > 0;
        if (past_prompt && query_len == 1 + (step->draft ? step->draft[i] : 0))
            s->decode_count++;
        else
            s->prefill_token_count += query_len;
    }
}

static int insert_step(struct st_writer *w, const struct st_step *step, struct st_error *err) {
    /* The caller need not know prompt lengths: the requests' state does. */
    const struct st_requests *requests = &lead(w)->requests;
    int32_t *prompt_len = malloc(((size_t)step->request_count + 1) * sizeof *prompt_len);
    if (!prompt_len)
        return ST_FAIL_NOMEM(err);
    for (int32_t i = 0; i < step->request_count; i++)
        prompt_len[i] = requests->batch.item[i]->prompt_len;
    struct st_step known = *step;
    known.prompt_len = prompt_len;
    struct st_step_summary summary;
    st_step_summarize(&known, &summary);
    st_sums_add(&w->sums, step, &summary);
    free(prompt_len);
    sqlite3_stmt *stmt = w->insert_step;
    sqlite3_bind_int64(stmt, 1, step->step_id);
    st_db_bind(stmt, 2, step->start_ns);
    st_db_bind(stmt, 3, step->duration_ns);
    sqlite3_bind_int(stmt, 4, step->request_count);
    sqlite3_bind_int64(stmt, 5, summary.token_count);
    sqlite3_bind_int(stmt, 6, summary.decode_count);
    sqlite3_bind_int64(stmt, 7, summary.prefill_token_count);
    sqlite3_bind_int(stmt, 8, summary.max_query_len);
    sqlite3_bind_int(stmt, 9, summary.max_seq_len);
    sqlite3_bind_text(stmt, 10, st_graph_mode_name(step->graph_mode), -1, SQLITE_STATIC);
    st_db_bind(stmt, 11, step->padded_token_count);
    st_db_bind(stmt, 12, step->padded_request_count);
    sqlite3_bind_int(stmt, 13, step->preempted.count);
    return st_db_insert(w->db, w->path, stmt, err);
}

static int insert_check(struct st_writer *w, int64_t step_id, const char *json,
                        struct st_error *err) {
    w->packed.size = 0;
    ST_TRY(st_bytes_deflate(&w->packed, json, strlen(json), err));
    sqlite3_bind_int64(w->insert_check, 1, step_id);
    sqlite3_bind_blob(w->insert_check, 2, w->packed.data, (int)w->packed.size, SQLITE_STATIC);
    return st_db_insert(w->db, w->path, w->insert_check, err);
}

static int begin_block(struct st_writer *w, struct st_error *err) {
    w->keyframe.size = 0;
    if (w->chosen >= 0 && w->ids_since_keyframe >= ST_KEYFRAME_IDS &&
        (uint64_t)w->ids_since_keyframe >= w->keyframe_size * ST_KEYFRAME_IDS_PER_BYTE) {
        struct variant *v = lead(w);
        ST_TRY(st_blocks_put_keyframe(&v->model, &v->requests, &w->keyframe, err));
        w->ids_since_keyframe = 0;
        w->keyframe_size = w->keyframe.size;
    }
    for (int i = 0; i < ST_MODEL_COUNT; i++) {
        struct variant *v = &w->variant[i];
        if (!v->active)
            continue;
        st_facts_encoder_begin(&v->facts, &v->requests);
        st_blocks_begin(&v->model, NULL);
        for (int c = 0; c < ST_BLOCKS_COLUMNS; c++)
            v->column[c].size = 0;
    }
    return ST_OK;
}

static int write_block(struct st_writer *w, const struct st_bytes *ids, struct st_error *err) {
    sqlite3_stmt *stmt = w->insert_block;
    w->packed.size = 0;
    ST_TRY(st_columns_pack(lead(w)->facts.column, ST_FACTS_COLUMNS, &w->packed, err));
    sqlite3_bind_int64(stmt, 1, w->next_step - w->block_steps);
    sqlite3_bind_int(stmt, 2, w->block_steps);
    sqlite3_bind_blob64(stmt, 3, w->packed.data, w->packed.size, SQLITE_STATIC);
    sqlite3_bind_blob64(stmt, 4, ids->data, ids->size, SQLITE_STATIC);
    if (w->keyframe.size)
        sqlite3_bind_blob64(stmt, 5, w->keyframe.data, w->keyframe.size, SQLITE_STATIC);
    return st_db_insert(w->db, w->path, stmt, err);
}

/* Blocks of the trial are in the file with the first variant's ids, which is how a reader takes
 * them while no model is named; the chosen one's replace them. */
static int choose(struct st_writer *w, struct st_error *err) {
    int best = 0;
    for (int i = 1; i < ST_MODEL_COUNT; i++)
        if (w->variant[i].trial_size < w->variant[best].trial_size)
            best = i;
    sqlite3_stmt *update = NULL;
    ST_TRY(
        st_db_prepare(w->db, w->path,
                      "UPDATE step_block SET block_ids = ?1 WHERE first_step = (SELECT first_step"
                      " FROM step_block ORDER BY first_step LIMIT 1 OFFSET ?2)",
                      &update, err));
    int rc = ST_OK;
    for (int b = 0; b < w->trial_blocks && !rc; b++) {
        struct st_bytes *blob = &w->variant[best].blob[b];
        sqlite3_bind_blob64(update, 1, blob->data, blob->size, SQLITE_STATIC);
        sqlite3_bind_int(update, 2, b);
        rc = st_db_insert(w->db, w->path, update, err);
    }
    sqlite3_finalize(update);
    for (int i = 0; i < ST_MODEL_COUNT; i++)
        if (i != best)
            variant_fini(&w->variant[i]);
    w->chosen = best;
    if (!rc) {
        char sql[64];
        snprintf(sql, sizeof sql, "UPDATE tape SET allocator_model = %d", best);
        rc = st_db_execute(w->db, w->path, sql, err);
    }
    return rc;
}

static int end_block(struct st_writer *w, struct st_error *err) {
    if (!w->block_steps)
        return ST_OK;
    int place = w->chosen < 0 ? w->trial_blocks : 0;
    for (int i = 0; i < ST_MODEL_COUNT; i++) {
        struct variant *v = &w->variant[i];
        if (!v->active)
            continue;
        v->blob[place].size = 0;
        ST_TRY(st_columns_pack(v->column, ST_BLOCKS_COLUMNS, &v->blob[place], err));
        v->trial_size += v->blob[place].size;
    }
    ST_TRY(write_block(w, &lead(w)->blob[place], err));
    w->block_steps = 0;
    w->block_rows = 0;
    w->block_ids = 0;
    if (w->chosen < 0 && (++w->trial_blocks == ST_TRIAL_BLOCKS || w->ids_total >= ST_TRIAL_IDS))
        ST_TRY(choose(w, err));
    if (w->part) {
        ST_TRY(st_db_execute(w->db, w->path, "COMMIT; BEGIN", err));
        w->committed = w->added;
    }
    return ST_OK;
}

static int encode_step(struct variant *v, const struct st_step *step, struct st_error *err) {
    ST_TRY(st_facts_encode(&v->facts, &v->requests, step, err));
    return st_blocks_encode(&v->model, &v->requests, step, v->column, err);
}

/* What the columns cannot hold, or a reader would take for damage. */
static const char *find_fault(const struct st_step *step) {
    const struct st_request_list *lists[] = {&step->finished, &step->preempted, &step->resumed,
                                             &step->new_requests};
    for (size_t i = 0; i < sizeof lists / sizeof *lists; i++)
        if (lists[i]->count < 0)
            return "a list of a negative length";
    if (step->request_count < 0 || step->replaced.count < -1)
        return "a list of a negative length";
    if (step->dropped_before < 0 || step->dropped_before > ST_STEP_ID_MAX)
        return "the count of dropped steps";
    for (int32_t i = 0; i < step->new_requests.count; i++)
        if (step->new_prompt_len[i] < -1)
            return "a prompt length";
    if (step->zeroed != ST_UNKNOWN && (step->zeroed < 0 || step->zeroed == INT64_MAX))
        return "the count of zeroed blocks";
    for (int32_t g = 0; g < step->group_count; g++) {
        const int32_t *offset = step->blocks[g].offset;
        for (int32_t i = 0; i < step->request_count; i++)
            if (offset[i] < 0 || offset[i + 1] < offset[i])
                return "an offset of block ids";
        for (int32_t i = offset[0]; i < offset[step->request_count]; i++)
            if (step->blocks[g].block_id[i] < 0)
                return "a block id";
        if (offset[0])
            return "the first offset of block ids";
    }
    return NULL;
}

static int check_step(struct st_writer *w, const struct st_step *step, struct st_error *err) {
    if (w->next_step < 0) {
        if (step->step_id < 0 || step->step_id > ST_STEP_ID_MAX)
            return ST_FAIL(err, ST_ERR_INPUT, "step number %" PRId64 " is out of range",
                           step->step_id);
        w->next_step = step->step_id;
    }
    if (step->step_id != w->next_step)
        return ST_FAIL(err, ST_ERR_INPUT, "step %" PRId64 " where step %" PRId64 " was expected",
                       step->step_id, w->next_step);
    if (step->group_count != w->group_count)
        return ST_FAIL(err, ST_ERR_INPUT, "step %" PRId64 ": blocks of %d groups, the tape has %d",
                       step->step_id, step->group_count, w->group_count);
    for (int32_t i = 0; i < step->request_count; i++)
        if (step->query_len[i] < 1 || step->num_computed_tokens[i] < 0 ||
            (int64_t)step->query_len[i] + step->num_computed_tokens[i] > INT32_MAX ||
            (step->draft && (step->draft[i] < 0 || step->draft[i] == INT32_MAX)))
            return ST_FAIL(err, ST_ERR_INPUT, "step %" PRId64 ": row %d is out of range",
                           step->step_id, i);
    const char *fault = find_fault(step);
    if (fault)
        return ST_FAIL(err, ST_ERR_INPUT, "step %" PRId64 ": %s is out of range", step->step_id,
                       fault);
    return ST_OK;
}

static int add_step(struct st_writer *w, const struct st_step *step, const char *check_json,
                    struct st_error *err) {
    ST_TRY(check_step(w, step, err));
    if (!w->block_steps)
        ST_TRY(begin_block(w, err));
    for (int i = 0; i < ST_MODEL_COUNT; i++)
        if (w->variant[i].active)
            ST_TRY(encode_step(&w->variant[i], step, err));
    ST_TRY(insert_step(w, step, err));
    for (int i = 0; i < ST_MODEL_COUNT; i++)
        if (w->variant[i].active)
            st_requests_advance(&w->variant[i].requests, step);
    if (check_json)
        ST_TRY(insert_check(w, step->step_id, check_json, err));
    if (step->dropped_before)
        ST_TRY(st_writer_gap(w, step->step_id, step->dropped_before, err));
    int64_t ids = 0;
    for (int32_t g = 0; g < step->group_count; g++)
        ids += step->blocks[g].offset[step->request_count];
    w->ids_total += ids;
    w->ids_since_keyframe += ids;
    w->block_ids += ids;
    w->block_rows += step->request_count;
    w->block_steps++;
    w->next_step++;
    w->added++;
    if (w->block_steps == ST_BLOCK_STEPS || w->block_rows >= ST_BLOCK_ROWS ||
        w->block_ids >= ST_BLOCK_IDS)
        return end_block(w, err);
    return ST_OK;
}

int st_writer_add(struct st_writer *w, const struct st_step *step, const char *check_json,
                  struct st_error *err) {
    if (w->status)
        return ST_FAIL(err, w->status, "%s: an earlier step could not be written", w->path);
    w->status = add_step(w, step, check_json, err);
    return w->status;
}

int st_writer_operation(struct st_writer *w, int argc, char **argv, struct st_error *err) {
    return st_operation_store(w->db, w->path, argc, argv, err);
}

struct sqlite3 *st_writer_db(struct st_writer *w) {
    return w->db;
}

int st_writer_round_times(struct st_writer *w, int64_t unit_ns, struct st_error *err) {
    char sql[256];
    snprintf(sql, sizeof sql,
             "PRAGMA secure_delete=ON;"
             "UPDATE tape SET created = created - created %% %" PRId64
             "; UPDATE operation SET time = time - time %% %" PRId64,
             unit_ns, unit_ns);
    return st_db_execute(w->db, w->path, sql, err);
}

static void finalize(struct st_writer *w) {
    sqlite3_finalize(w->insert_step);
    sqlite3_finalize(w->insert_block);
    sqlite3_finalize(w->insert_check);
    w->insert_step = w->insert_block = w->insert_check = NULL;
}

static int seal(struct st_writer *w, struct st_error *err) {
    char hash[33], sql[96];
    ST_TRY(st_db_content_hash(w->db, w->path, hash, err));
    snprintf(sql, sizeof sql, "INSERT INTO seal VALUES('%s'); COMMIT;", hash);
    return st_db_execute(w->db, w->path, sql, err);
}

/* Writes what is left, seals and syncs; the database is closed. */
static int complete(struct st_writer *w, const char *file, struct st_error *err) {
    if (w->status)
        return ST_FAIL(err, w->status, "%s: a step could not be written", w->path);
    ST_TRY(end_block(w, err));
    if (w->chosen < 0)
        ST_TRY(choose(w, err));
    ST_TRY(st_sums_store(w->db, w->path, &w->sums, err));
    ST_TRY(seal(w, err));
    finalize(w);
    if (sqlite3_close(w->db) != SQLITE_OK)
        return st_db_fail(w->db, w->path, err);
    w->db = NULL;
    return st_db_sync(file, err);
}

int st_writer_finish(struct st_writer *w, struct st_error *err) {
    int rc = complete(w, w->temporary, err);
    if (!rc && rename(w->temporary, w->path) < 0)
        rc = ST_FAIL_NATIVE(err, ST_ERR_IO, errno, "%s: %s", w->path, strerror(errno));
    if (!rc) {
        free(w->temporary);
        w->temporary = NULL;
    }
    st_writer_abort(w);
    return rc;
}

int st_writer_seal(struct st_writer *w, struct st_error *err) {
    int rc = complete(w, w->path, err);
    st_writer_leave(w);
    return rc;
}

int st_writer_commit(struct st_writer *w, struct st_error *err) {
    if (w->status)
        return ST_FAIL(err, w->status, "%s: an earlier step could not be written", w->path);
    w->status = end_block(w, err);
    return w->status;
}

int64_t st_writer_committed(const struct st_writer *w) {
    return w->committed;
}

static void destroy(struct st_writer *w) {
    finalize(w);
    sqlite3_close(w->db);
    for (int i = 0; i < ST_MODEL_COUNT; i++)
        variant_fini(&w->variant[i]);
    st_bytes_fini(&w->keyframe);
    st_bytes_fini(&w->packed);
    free(w->temporary);
    free(w->path);
    free(w);
}

void st_writer_leave(struct st_writer *w) {
    if (w)
        destroy(w);
}

void st_writer_abort(struct st_writer *w) {
    if (!w)
        return;
    if (w->temporary)
        unlink(w->temporary);
    else if (w->part && w->db)
        unlink(w->path);
    destroy(w);
}

/* ---- what the recorder says of itself */

static int insert_row(struct st_writer *w, sqlite3_stmt *stmt, int failed, struct st_error *err) {
    int rc = failed ? ST_FAIL_NOMEM(err) /* SQLite would store NULL in its place */
                    : st_db_insert(w->db, w->path, stmt, err);
    sqlite3_finalize(stmt);
    return rc;
}

int st_writer_recorder(struct st_writer *w, const struct st_recorder_facts *f,
                       struct st_error *err) {
    sqlite3_stmt *stmt;
    ST_TRY(st_db_prepare(w->db, w->path, "INSERT INTO recorder VALUES(?,?,?,?,?,?,?,?,?,?,?)",
                         &stmt, err));
    sqlite3_bind_int64(stmt, 1, f->sequence_count);
    sqlite3_bind_int64(stmt, 2, f->dropped_count);
    sqlite3_bind_int64(stmt, 3, f->torn_count);
    sqlite3_bind_int(stmt, 4, f->recovered);
    int failed = sqlite3_bind_text(stmt, 5, f->lost_reason, -1, SQLITE_TRANSIENT);
    st_db_bind(stmt, 6, f->ring_bytes);
    st_db_bind(stmt, 7, f->byte_count);
    st_db_bind(stmt, 8, f->cost_sum_ns);
    st_db_bind(stmt, 9, f->cost_median_ns);
    st_db_bind(stmt, 10, f->cost_p999_ns);
    st_db_bind(stmt, 11, f->cost_max_ns);
    ST_TRY(insert_row(w, stmt, failed, err));
    ST_TRY(st_db_prepare(w->db, w->path, "UPDATE tape SET recorder_cost_ns = ?", &stmt, err));
    st_db_bind(stmt, 1, f->cost_sum_ns);
    return insert_row(w, stmt, 0, err);
}

int st_writer_note(struct st_writer *w, int64_t sequence, const char *key, const char *value,
                   struct st_error *err) {
    sqlite3_stmt *stmt;
    ST_TRY(st_db_prepare(w->db, w->path,
                         "INSERT INTO recorder_note(sequence, key, value) VALUES(?,?,?)", &stmt,
                         err));
    sqlite3_bind_int64(stmt, 1, sequence);
    int failed = sqlite3_bind_text(stmt, 2, key, -1, SQLITE_TRANSIENT);
    failed |= sqlite3_bind_text(stmt, 3, value, -1, SQLITE_TRANSIENT);
    return insert_row(w, stmt, failed, err);
}

int st_writer_gap(struct st_writer *w, int64_t step_id, int64_t dropped, struct st_error *err) {
    sqlite3_stmt *stmt;
    ST_TRY(st_db_prepare(w->db, w->path, "INSERT INTO step_gap VALUES(?,?)", &stmt, err));
    sqlite3_bind_int64(stmt, 1, step_id);
    sqlite3_bind_int64(stmt, 2, dropped);
    return insert_row(w, stmt, 0, err);
}

int st_writer_launches(struct st_writer *w, const char *stream,
                       struct st_launches_imported *imported, struct st_error *err) {
    return st_launches_import(w->db, w->path, stream, imported, err);
}
