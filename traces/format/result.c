/* SPDX-License-Identifier: Apache-2.0 */
#include "traces/format/result.h"

#include <errno.h>
#include <fcntl.h>
#include <sqlite3.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>
#include <xxhash.h>

#include "steptape_version.h"
#include "traces/format/db.h"
#include "traces/format/header_store.h"
#include "traces/format/launches.h"
#include "traces/format/result_schema.h"
#include "traces/format/schema.h"

enum { MAX_OPERATORS = 64 };

enum statement {
    INSERT_STEP,
    INSERT_OPERATOR_TIME,
    INSERT_SAMPLE,
    INSERT_HAZARD,
    INSERT_CHECK,
    INSERT_DIGEST,
    INSERT_PREDICATE,
    STATEMENT_COUNT
};

static const char *const statement_sql[STATEMENT_COUNT] = {
    [INSERT_STEP] = "INSERT INTO _run_step (run_id, policy_id, step_id, mode, padded_token_count,"
                    " shape_id, step_ns, kernel_ns, predicate_ns)"
                    " VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9)",
    [INSERT_OPERATOR_TIME] = "INSERT INTO _operator_time (run_id, policy_id, step_id, operator_id,"
                             " kernel_ns) VALUES (?1, ?2, ?3, ?4, ?5)",
    [INSERT_SAMPLE] = "INSERT INTO _sample (run_id, policy_id, step_id, pass, repetition, step_ns)"
                      " VALUES (?1, ?2, ?3, ?4, ?5, ?6)",
    [INSERT_HAZARD] = "INSERT INTO _hazard (run_id, policy_id, step_id, layer, operator_id,"
                      " first_row, first_column, what) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8)",
    [INSERT_CHECK] = "INSERT INTO _check (run_id, policy_id, operator_id, steps, rows,"
                     " rows_differing, reference_rows, reference_differing, rounding_bytes)"
                     " VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9)",
    [INSERT_DIGEST] = "INSERT INTO _digest (run_id, policy_id, step_id, operator_id, rows, digest)"
                      " VALUES (?1, ?2, ?3, ?4, ?5, ?6)",
    [INSERT_PREDICATE] = "INSERT INTO predicate_cost (run_id, request_count, median_ns, p10_ns,"
                         " p90_ns, repetitions) VALUES (?1, ?2, ?3, ?4, ?5, ?6)",
};

struct shape {
    int32_t counts[3 * MAX_OPERATORS]; /* launches, skipped, could_skip */
};

struct st_result {
    char *path, *temporary; /* temporary NULL: appending */
    sqlite3 *db;
    sqlite3_stmt *statement[STATEMENT_COUNT];
    int64_t run_id;
    int32_t operator_count;
    int64_t operator_id[MAX_OPERATORS];
    int64_t first_shape;
    int32_t shape_count, shape_room;
    struct shape *shape; /* [shape_room], those of this run */
    int32_t *shape_slot; /* their places by hash, open addressing; -1: empty */
    uint32_t slot_room;  /* a power of two */
    char tape_hash[33];
};

/* Runs a statement once and finalizes it; *value (may be NULL) gets the first column of a row. */
static int run_once(struct st_result *r, sqlite3_stmt *stmt, int64_t *value, struct st_error *err) {
    int code = sqlite3_step(stmt);
    int rc = code == SQLITE_DONE || code == SQLITE_ROW ? 0 : st_db_fail(r->db, r->path, err);
    if (code == SQLITE_ROW && value)
        *value = sqlite3_column_int64(stmt, 0);
    sqlite3_finalize(stmt);
    return rc;
}

static int query_int(struct st_result *r, const char *sql, int64_t *value, struct st_error *err) {
    sqlite3_stmt *stmt = NULL;
    ST_TRY(st_db_prepare(r->db, r->path, sql, &stmt, err));
    return run_once(r, stmt, value, err);
}

static void bind_text(sqlite3_stmt *stmt, int index, const char *text) {
    if (text)
        sqlite3_bind_text(stmt, index, text, -1, SQLITE_TRANSIENT);
}

/* ---- opening */

/* A file name as an URI that only reads; SQLite takes no mode any other way in ATTACH. */
static char *read_only_uri(const char *path) {
    char *full = realpath(path, NULL);
    char *uri = full ? malloc(3 * strlen(full) + 32) : NULL;
    if (uri) {
        char *out = uri + sprintf(uri, "file:");
        for (const char *in = full; *in; in++) {
            if (strchr("?#%", *in))
                out += sprintf(out, "%%%02X", (unsigned char)*in);
            else
                *out++ = *in;
        }
        strcpy(out, "?mode=ro");
    }
    free(full);
    return uri;
}

static int copy_rows(struct st_result *r, struct st_tape *tape, struct st_error *err) {
    static const char sql[] =
        "INSERT INTO tape (format_version, kind, engine, engine_version, runner, device, model,"
        " architecture, compress_ratios, max_model_len, max_num_seqs, max_num_batched_tokens,"
        " num_blocks, prefix_caching, async_scheduling, speculative, rank, clock_monotonic_ns,"
        " clock_realtime_ns, scale, created, recorder_cost_ns, allocator_model)"
        " SELECT " ST_FORMAT_VERSION_TEXT
        ", 'result', engine, engine_version, runner, device, model,"
        " architecture, compress_ratios, max_model_len, max_num_seqs, max_num_batched_tokens,"
        " num_blocks, prefix_caching, async_scheduling, speculative, rank, clock_monotonic_ns,"
        " clock_realtime_ns, scale, created, recorder_cost_ns, allocator_model"
        " FROM source.tape;"
        "INSERT INTO kv_group (group_id, block_size, member, kind, layers, ratio, window,"
        " page_bytes) SELECT group_id, block_size, member, kind, layers, ratio, window, page_bytes"
        " FROM source.kv_group;"
        "INSERT INTO step (step_id, start_ns, duration_ns, request_count, token_count,"
        " decode_count, prefill_token_count, max_query_len, max_seq_len, graph_mode,"
        " padded_token_count, padded_request_count, preempted_count)"
        " SELECT step_id, start_ns, duration_ns, request_count, token_count, decode_count,"
        " prefill_token_count, max_query_len, max_seq_len, graph_mode, padded_token_count,"
        " padded_request_count, preempted_count FROM source.step ORDER BY step_id;"
        "INSERT INTO operation (tool, version, source_commit, argv, time)"
        " SELECT tool, version, source_commit, argv, time FROM source.operation"
        " ORDER BY operation_id;";
    char *uri = read_only_uri(st_tape_path(tape));
    if (!uri)
        return ST_FAIL_NATIVE(err, ST_ERR_IO, errno, "%s: %s", st_tape_path(tape), strerror(errno));
    sqlite3_stmt *stmt = NULL;
    int rc = st_db_prepare(r->db, r->path, "ATTACH ?1 AS source", &stmt, err);
    if (rc == 0) {
        bind_text(stmt, 1, uri);
        rc = run_once(r, stmt, NULL, err);
    }
    free(uri);
    if (rc == 0)
        rc = st_db_execute(r->db, r->path, "BEGIN", err);
    if (rc == 0)
        rc = st_db_execute(r->db, r->path, sql, err);
    if (rc == 0)
        rc = st_db_execute(r->db, r->path, "COMMIT; DETACH source; BEGIN", err);
    return rc;
}

static int mark_source(struct st_result *r, struct st_tape *tape, struct st_error *err) {
    sqlite3_stmt *stmt = NULL;
    ST_TRY(st_db_prepare(r->db, r->path, "UPDATE tape SET source_hash = ?1", &stmt, err));
    bind_text(stmt, 1, r->tape_hash);
    ST_TRY(run_once(r, stmt, NULL, err));
    const char *slash = strrchr(st_tape_path(tape), '/');
    ST_TRY(st_db_prepare(r->db, r->path,
                         "INSERT INTO _result (one, kind, tape_hash, tape_file)"
                         " VALUES (1, 'result', ?1, ?2)",
                         &stmt, err));
    bind_text(stmt, 1, r->tape_hash);
    bind_text(stmt, 2, slash ? slash + 1 : st_tape_path(tape));
    return run_once(r, stmt, NULL, err);
}

static int open_new(struct st_result *r, struct st_tape *tape, struct st_error *err) {
    ST_TRY(st_db_create(r->path, &r->temporary, &r->db, err));
    ST_TRY(st_db_execute(r->db, r->path, st_result_schema_sql, err));
    ST_TRY(st_db_execute(r->db, r->path, st_result_views_sql, err));
    ST_TRY(copy_rows(r, tape, err));
    return mark_source(r, tape, err);
}

/* A replay that was killed while it appended left its journal: SQLite plays it back as soon as it
 * may write.  Only a file that passed for a tape by its header is opened so. */
static int take_back_half_run(struct st_result *r, struct st_error *err) {
    sqlite3 *db = NULL;
    ST_TRY(st_db_open(r->path, SQLITE_OPEN_READWRITE, &db, err));
    sqlite3_busy_timeout(db, 5000);
    int rc = st_db_execute(db, r->path, "SELECT 1 FROM sqlite_schema LIMIT 1", err);
    sqlite3_close(db);
    return rc;
}

/* What is there must be a result tape of the same tape. */
static int check_existing(struct st_result *r, struct st_error *err) {
    struct st_tape *old = NULL;
    struct st_error first = {0};
    int rc = st_tape_open(r->path, &old, &first);
    if (rc && first.native == SQLITE_READONLY_ROLLBACK) {
        ST_TRY(take_back_half_run(r, err));
        ST_TRY(st_tape_open(r->path, &old, err));
    } else if (rc) {
        return ST_FAIL_NATIVE(err, rc, first.native, "%s", first.msg);
    }
    bool is_result = st_tape_is_result(old);
    st_tape_close(old);
    if (!is_result)
        return ST_FAIL(err, ST_ERR_INPUT,
                       "%s: exists and is a tape; a result tape or a new name expected", r->path);
    return 0;
}

static int check_same_tape(struct st_result *r, struct st_error *err) {
    sqlite3_stmt *stmt = NULL;
    ST_TRY(st_db_prepare(r->db, r->path, "SELECT tape_hash FROM _result", &stmt, err));
    int code = sqlite3_step(stmt);
    const char *hash = code == SQLITE_ROW ? (const char *)sqlite3_column_text(stmt, 0) : NULL;
    int rc = 0;
    if (code != SQLITE_ROW && code != SQLITE_DONE)
        rc = st_db_fail(r->db, r->path, err);
    else if (!hash || strcmp(hash, r->tape_hash) != 0)
        rc = ST_FAIL(err, ST_ERR_INPUT,
                     "%s: holds results of another tape (hash %.8s..., not %.8s...); give another "
                     "name with -o",
                     r->path, hash ? hash : "?", r->tape_hash);
    sqlite3_finalize(stmt);
    return rc;
}

static int open_existing(struct st_result *r, struct st_error *err) {
    ST_TRY(check_existing(r, err));
    ST_TRY(st_db_open(r->path, SQLITE_OPEN_READWRITE, &r->db, err));
    /* Someone else's file, perhaps: its definitions run nothing. */
    sqlite3_db_config(r->db, SQLITE_DBCONFIG_DEFENSIVE, 1, NULL);
    sqlite3_db_config(r->db, SQLITE_DBCONFIG_TRUSTED_SCHEMA, 0, NULL);
    sqlite3_db_config(r->db, SQLITE_DBCONFIG_ENABLE_TRIGGER, 0, NULL);
    sqlite3_busy_timeout(r->db, 5000);
    ST_TRY(check_same_tape(r, err));
    ST_TRY(st_db_execute(r->db, r->path, "PRAGMA journal_mode = DELETE", err));
    return st_db_execute(r->db, r->path, "BEGIN IMMEDIATE", err);
}

int st_result_open(const char *path, struct st_tape *tape, struct st_result **result,
                   struct st_error *err) {
    struct st_result *r = calloc(1, sizeof *r);
    if (!r)
        return ST_FAIL_NOMEM(err);
    int rc = 0;
    r->path = strdup(path);
    if (!r->path)
        ST_TRY_OUT(ST_FAIL_NOMEM(err));
    snprintf(r->tape_hash, sizeof r->tape_hash, "%s", st_tape_hash(tape));
    struct stat status;
    if (stat(path, &status) == 0)
        ST_TRY_OUT(open_existing(r, err));
    else
        ST_TRY_OUT(open_new(r, tape, err));
    for (int i = 0; i < STATEMENT_COUNT; i++)
        ST_TRY_OUT(st_db_prepare(r->db, r->path, statement_sql[i], &r->statement[i], err));
out:
    if (rc != 0)
        st_result_abort(r);
    else
        *result = r;
    return rc;
}

/* ---- runs */

static int insert_run(struct st_result *r, const struct st_result_facts *f, struct st_error *err) {
    sqlite3_stmt *stmt = NULL;
    ST_TRY(
        st_db_prepare(r->db, r->path,
                      "INSERT INTO run (backend, device, model, graph_mode, passes, tool_version,"
                      " commit_id, tape_hash, simulated, error_note, layers, layer_buffers,"
                      " created_unix)"
                      " VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13)",
                      &stmt, err));
    bind_text(stmt, 1, f->backend);
    bind_text(stmt, 2, f->device);
    bind_text(stmt, 3, f->model);
    bind_text(stmt, 4, f->graph_mode);
    bind_text(stmt, 5, f->passes);
    bind_text(stmt, 6, ST_VERSION);
    bind_text(stmt, 7, ST_COMMIT[0] ? ST_COMMIT : NULL);
    bind_text(stmt, 8, r->tape_hash);
    sqlite3_bind_int(stmt, 9, f->simulated);
    bind_text(stmt, 10, f->error_note);
    sqlite3_bind_int(stmt, 11, f->layer_count);
    if (f->buffer_count > 0)
        sqlite3_bind_int(stmt, 12, f->buffer_count);
    sqlite3_bind_int64(stmt, 13, (int64_t)time(NULL));
    return run_once(r, stmt, NULL, err);
}

static int insert_policies(struct st_result *r, const struct st_result_facts *f,
                           struct st_error *err) {
    for (int32_t i = 0; i < f->policy_count; i++) {
        sqlite3_stmt *stmt = NULL;
        ST_TRY(st_db_prepare(r->db, r->path,
                             "INSERT INTO _policy (run_id, policy_id, name) VALUES (?1, ?2, ?3)",
                             &stmt, err));
        sqlite3_bind_int64(stmt, 1, r->run_id);
        sqlite3_bind_int(stmt, 2, i);
        bind_text(stmt, 3, f->policy[i]);
        ST_TRY(run_once(r, stmt, NULL, err));
    }
    return 0;
}

static int intern_operators(struct st_result *r, const struct st_result_facts *f,
                            struct st_error *err) {
    r->operator_count = f->operator_count;
    for (int32_t i = 0; i < f->operator_count; i++) {
        sqlite3_stmt *stmt = NULL;
        ST_TRY(st_db_prepare(r->db, r->path, "INSERT OR IGNORE INTO _operator (name) VALUES (?1)",
                             &stmt, err));
        bind_text(stmt, 1, f->operator_name[i]);
        ST_TRY(run_once(r, stmt, NULL, err));
        ST_TRY(st_db_prepare(r->db, r->path, "SELECT operator_id FROM _operator WHERE name = ?1",
                             &stmt, err));
        bind_text(stmt, 1, f->operator_name[i]);
        ST_TRY(run_once(r, stmt, &r->operator_id[i], err));
    }
    return 0;
}

int st_result_run(struct st_result *r, const struct st_result_facts *facts, int64_t *run_id,
                  struct st_error *err) {
    if (facts->operator_count > MAX_OPERATORS)
        return ST_FAIL(err, ST_ERR_UNSUPPORTED, "more than %d operators", MAX_OPERATORS);
    ST_TRY(insert_run(r, facts, err));
    r->run_id = sqlite3_last_insert_rowid(r->db);
    ST_TRY(insert_policies(r, facts, err));
    ST_TRY(intern_operators(r, facts, err));
    r->shape_count = 0;
    for (uint32_t k = 0; k < r->slot_room; k++)
        r->shape_slot[k] = -1;
    ST_TRY(query_int(r, "SELECT coalesce(max(shape_id), 0) + 1 FROM _shape", &r->first_shape, err));
    *run_id = r->run_id;
    return 0;
}

static int insert_shape(struct st_result *r, const struct shape *shape, int64_t shape_id,
                        struct st_error *err) {
    for (int32_t i = 0; i < r->operator_count; i++) {
        const int32_t *c = shape->counts + 3 * i;
        sqlite3_stmt *stmt = NULL;
        ST_TRY(st_db_prepare(
            r->db, r->path,
            "INSERT INTO _shape (shape_id, operator_id, launches, skipped, could_skip)"
            " VALUES (?1, ?2, ?3, ?4, ?5)",
            &stmt, err));
        sqlite3_bind_int64(stmt, 1, shape_id);
        sqlite3_bind_int64(stmt, 2, r->operator_id[i]);
        for (int k = 0; k < 3; k++)
            sqlite3_bind_int(stmt, 3 + k, c[k]);
        ST_TRY(run_once(r, stmt, NULL, err));
    }
    return 0;
}

/* Where a shape stands or would stand. */
static uint32_t shape_place(const struct st_result *r, const struct shape *shape) {
    size_t size = 3 * (size_t)r->operator_count * sizeof shape->counts[0];
    uint32_t k = (uint32_t)XXH3_64bits(shape, size) & (r->slot_room - 1);
    while (r->shape_slot[k] >= 0 && memcmp(&r->shape[r->shape_slot[k]], shape, size) != 0)
        k = (k + 1) & (r->slot_room - 1);
    return k;
}

static int grow_shapes(struct st_result *r, struct st_error *err) {
    if (r->shape_count < r->shape_room)
        return 0;
    int32_t room = r->shape_room ? 2 * r->shape_room : 64;
    void *shape = realloc(r->shape, (size_t)room * sizeof *r->shape);
    if (shape)
        r->shape = shape;
    void *slot = realloc(r->shape_slot, 4 * (size_t)room * sizeof *r->shape_slot);
    if (slot)
        r->shape_slot = slot;
    if (!shape || !slot)
        return ST_FAIL_NOMEM(err);
    r->shape_room = room;
    r->slot_room = 4 * (uint32_t)room;
    for (uint32_t k = 0; k < r->slot_room; k++)
        r->shape_slot[k] = -1;
    for (int32_t i = 0; i < r->shape_count; i++)
        r->shape_slot[shape_place(r, &r->shape[i])] = i;
    return 0;
}

/* The id of these launch counts.  A plan has few different ones; a recorded engine may have one a
 * step. */
static int intern_shape(struct st_result *r, const struct st_result_step *step, int64_t *shape_id,
                        struct st_error *err) {
    struct shape shape;
    memset(&shape, 0, sizeof shape);
    for (int32_t i = 0; i < r->operator_count; i++) {
        shape.counts[3 * i] = step->launches[i];
        shape.counts[3 * i + 1] = step->skipped[i];
        shape.counts[3 * i + 2] = step->could_skip[i];
    }
    ST_TRY(grow_shapes(r, err));
    uint32_t k = shape_place(r, &shape);
    bool is_new = r->shape_slot[k] < 0;
    if (is_new) {
        r->shape_slot[k] = r->shape_count;
        r->shape[r->shape_count++] = shape;
    }
    *shape_id = r->first_shape + r->shape_slot[k];
    return is_new ? insert_shape(r, &shape, *shape_id, err) : 0;
}

int st_result_step(struct st_result *r, const struct st_result_step *step, struct st_error *err) {
    int64_t shape_id = 0;
    ST_TRY(intern_shape(r, step, &shape_id, err));
    sqlite3_stmt *stmt = r->statement[INSERT_STEP];
    sqlite3_bind_int64(stmt, 1, r->run_id);
    sqlite3_bind_int(stmt, 2, step->policy);
    sqlite3_bind_int64(stmt, 3, step->step_id);
    sqlite3_bind_int(stmt, 4, step->graph_mode);
    sqlite3_bind_int(stmt, 5, step->padded_token_count);
    sqlite3_bind_int64(stmt, 6, shape_id);
    st_db_bind(stmt, 7, step->step_ns);
    st_db_bind(stmt, 8, step->kernel_ns);
    if (step->predicate_ps != ST_UNKNOWN)
        sqlite3_bind_double(stmt, 9, (double)step->predicate_ps * 1e-3);
    ST_TRY(st_db_insert(r->db, r->path, stmt, err));
    for (int32_t i = 0; step->op_kernel_ns && i < r->operator_count; i++) {
        if (step->op_kernel_ns[i] == ST_UNKNOWN || step->launches[i] == 0)
            continue;
        stmt = r->statement[INSERT_OPERATOR_TIME];
        sqlite3_bind_int64(stmt, 1, r->run_id);
        sqlite3_bind_int(stmt, 2, step->policy);
        sqlite3_bind_int64(stmt, 3, step->step_id);
        sqlite3_bind_int64(stmt, 4, r->operator_id[i]);
        sqlite3_bind_int64(stmt, 5, step->op_kernel_ns[i]);
        ST_TRY(st_db_insert(r->db, r->path, stmt, err));
    }
    return 0;
}

int st_result_sample(struct st_result *r, int64_t step_id, int32_t policy, const char *pass,
                     int32_t repetition, int64_t step_ns, struct st_error *err) {
    sqlite3_stmt *stmt = r->statement[INSERT_SAMPLE];
    sqlite3_bind_int64(stmt, 1, r->run_id);
    sqlite3_bind_int(stmt, 2, policy);
    sqlite3_bind_int64(stmt, 3, step_id);
    bind_text(stmt, 4, pass);
    sqlite3_bind_int(stmt, 5, repetition);
    sqlite3_bind_int64(stmt, 6, step_ns);
    return st_db_insert(r->db, r->path, stmt, err);
}

int st_result_hazard(struct st_result *r, const struct st_result_hazard *hazard,
                     struct st_error *err) {
    sqlite3_stmt *stmt = r->statement[INSERT_HAZARD];
    sqlite3_bind_int64(stmt, 1, r->run_id);
    sqlite3_bind_int(stmt, 2, hazard->policy);
    sqlite3_bind_int64(stmt, 3, hazard->step_id);
    if (hazard->layer >= 0)
        sqlite3_bind_int(stmt, 4, hazard->layer);
    sqlite3_bind_int64(stmt, 5, r->operator_id[hazard->operator_index]);
    sqlite3_bind_int64(stmt, 6, hazard->row);
    if (hazard->column >= 0)
        sqlite3_bind_int64(stmt, 7, hazard->column);
    bind_text(stmt, 8, hazard->what);
    return st_db_insert(r->db, r->path, stmt, err);
}

int st_result_check(struct st_result *r, const struct st_result_check *check,
                    struct st_error *err) {
    sqlite3_stmt *stmt = r->statement[INSERT_CHECK];
    sqlite3_bind_int64(stmt, 1, r->run_id);
    sqlite3_bind_int(stmt, 2, check->policy);
    sqlite3_bind_int64(stmt, 3, r->operator_id[check->operator_index]);
    sqlite3_bind_int64(stmt, 4, check->steps);
    sqlite3_bind_int64(stmt, 5, check->rows);
    sqlite3_bind_int64(stmt, 6, check->rows_differing);
    sqlite3_bind_int64(stmt, 7, check->reference_rows);
    sqlite3_bind_int64(stmt, 8, check->reference_differing);
    sqlite3_bind_int64(stmt, 9, check->rounding_bytes);
    return st_db_insert(r->db, r->path, stmt, err);
}

int st_result_digest(struct st_result *r, int64_t step_id, int32_t policy, int32_t operator_index,
                     int64_t rows, uint64_t digest, struct st_error *err) {
    sqlite3_stmt *stmt = r->statement[INSERT_DIGEST];
    sqlite3_bind_int64(stmt, 1, r->run_id);
    sqlite3_bind_int(stmt, 2, policy);
    sqlite3_bind_int64(stmt, 3, step_id);
    sqlite3_bind_int64(stmt, 4, r->operator_id[operator_index]);
    sqlite3_bind_int64(stmt, 5, rows);
    sqlite3_bind_int64(stmt, 6, (int64_t)digest);
    return st_db_insert(r->db, r->path, stmt, err);
}

int st_result_family(struct st_result *r, const struct st_result_family *family,
                     struct st_error *err) {
    sqlite3_stmt *stmt = NULL;
    /* A file of an older version gets the table now. */
    ST_TRY(st_db_execute(r->db, r->path, st_result_family_sql, err));
    ST_TRY(
        st_db_prepare(r->db, r->path,
                      "INSERT INTO _family (run_id, mode, family, operator, steps, step_ns,"
                      " launches, untimed, kernel_ns) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9)",
                      &stmt, err));
    sqlite3_bind_int64(stmt, 1, r->run_id);
    sqlite3_bind_int(stmt, 2, family->graph_mode);
    bind_text(stmt, 3, family->family);
    bind_text(stmt, 4, family->op);
    sqlite3_bind_int64(stmt, 5, family->steps);
    st_db_bind(stmt, 6, family->step_ns);
    sqlite3_bind_int64(stmt, 7, family->launches);
    sqlite3_bind_int64(stmt, 8, family->untimed);
    sqlite3_bind_int64(stmt, 9, family->kernel_ns);
    return run_once(r, stmt, NULL, err);
}

int st_result_launches(struct st_result *r, struct st_tape *tape, struct st_error *err) {
    return st_launches_copy(r->db, r->path, st_tape_db(tape), st_tape_path(tape), err);
}

int st_result_predicate(struct st_result *r, int32_t request_count, int64_t median_ps,
                        int64_t p10_ps, int64_t p90_ps, int32_t repetitions, struct st_error *err) {
    sqlite3_stmt *stmt = r->statement[INSERT_PREDICATE];
    sqlite3_bind_int64(stmt, 1, r->run_id);
    sqlite3_bind_int(stmt, 2, request_count);
    sqlite3_bind_double(stmt, 3, (double)median_ps * 1e-3);
    sqlite3_bind_double(stmt, 4, (double)p10_ps * 1e-3);
    sqlite3_bind_double(stmt, 5, (double)p90_ps * 1e-3);
    sqlite3_bind_int(stmt, 6, repetitions);
    return st_db_insert(r->db, r->path, stmt, err);
}

int st_result_run_end(struct st_result *r, int64_t noise_floor_ns, const char *options,
                      struct st_error *err) {
    sqlite3_stmt *stmt = NULL;
    ST_TRY(st_db_prepare(r->db, r->path,
                         "UPDATE run SET noise_floor_ns = ?2, options = ?3"
                         " WHERE run_id = ?1",
                         &stmt, err));
    sqlite3_bind_int64(stmt, 1, r->run_id);
    st_db_bind(stmt, 2, noise_floor_ns);
    bind_text(stmt, 3, options);
    return run_once(r, stmt, NULL, err);
}

int st_result_operation(struct st_result *r, int argc, char **argv, struct st_error *err) {
    return st_operation_store(r->db, r->path, argc, argv, err);
}

/* ---- ending */

/* Another run may have made the file meanwhile; its results are not overwritten. */
static int take_name(struct st_result *r, struct st_error *err) {
    int rc = renameat2(AT_FDCWD, r->temporary, AT_FDCWD, r->path, RENAME_NOREPLACE);
    if (rc < 0 && errno == EINVAL) /* a file system without that flag */
        rc = rename(r->temporary, r->path);
    if (rc == 0)
        return 0;
    if (errno == EEXIST)
        return ST_FAIL(err, ST_ERR_IO,
                       "%s: was made by somebody else meanwhile; run again to append to it",
                       r->path);
    return ST_FAIL_NATIVE(err, ST_ERR_IO, errno, "%s: %s", r->path, strerror(errno));
}

static void finalize_statements(struct st_result *r) {
    for (int i = 0; i < STATEMENT_COUNT; i++) {
        sqlite3_finalize(r->statement[i]);
        r->statement[i] = NULL;
    }
}

int st_result_finish(struct st_result *r, struct st_error *err) {
    int rc = 0;
    ST_TRY_OUT(st_db_execute(r->db, r->path, "COMMIT", err));
    finalize_statements(r);
    if (sqlite3_close(r->db) != SQLITE_OK)
        ST_TRY_OUT(st_db_fail(r->db, r->path, err));
    r->db = NULL;
    if (r->temporary) {
        ST_TRY_OUT(st_db_sync(r->temporary, err));
        ST_TRY_OUT(take_name(r, err));
        free(r->temporary);
        r->temporary = NULL;
    }
out:
    st_result_abort(r);
    return rc;
}

void st_result_abort(struct st_result *r) {
    if (!r)
        return;
    finalize_statements(r);
    sqlite3_close(r->db); /* an open transaction is rolled back */
    if (r->temporary)
        unlink(r->temporary);
    free(r->temporary);
    free(r->path);
    free(r->shape);
    free(r->shape_slot);
    free(r);
}
