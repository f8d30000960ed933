/* SPDX-License-Identifier: Apache-2.0 */
#include "traces/format/header_store.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "steptape_version.h"
#include "traces/format/blocks.h"
#include "traces/format/db.h"
#include "traces/format/schema.h"

/* What a hostile tape may make us allocate. */
#define MAX_LAYERS 65536
#define MAX_MEMBERS 4096

static int64_t now_ns(void) {
    struct timespec ts;
    clock_gettime(CLOCK_REALTIME, &ts);
    return (int64_t)ts.tv_sec * 1000000000 + ts.tv_nsec;
}

static void bind_known(sqlite3_stmt *stmt, int index, int64_t value) {
    if (value < 0)
        sqlite3_bind_null(stmt, index);
    else
        sqlite3_bind_int64(stmt, index, value);
}

static int run(sqlite3 *db, const char *path, sqlite3_stmt *stmt, struct st_error *err) {
    int rc = sqlite3_step(stmt) == SQLITE_DONE ? ST_OK : st_db_fail(db, path, err);
    sqlite3_finalize(stmt);
    return rc;
}

static char *ratios_json(const struct st_header *header) {
    sqlite3_str *s = sqlite3_str_new(NULL);
    for (int32_t i = 0; i < header->compress_ratio_count; i++)
        sqlite3_str_appendf(s, "%c%d", i ? ',' : '[', header->compress_ratios[i]);
    sqlite3_str_appendall(s, header->compress_ratio_count ? "]" : "[]");
    return sqlite3_str_finish(s);
}

static int store_tape(sqlite3 *db, const char *path, const struct st_header *h,
                      struct st_error *err) {
    sqlite3_stmt *stmt;
    int failed = 0;
    ST_TRY(
        st_db_prepare(db, path,
                      "INSERT INTO tape VALUES(?,'tape',?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,NULL,"
                      "NULL,NULL)",
                      &stmt, err));
    const char *strings[] = {h->engine, h->engine_version, h->runner,
                             h->device, h->model,          h->architecture};
    sqlite3_bind_int(stmt, 1, ST_FORMAT_VERSION);
    for (int i = 0; i < 6; i++)
        failed |= sqlite3_bind_text(stmt, 2 + i, strings[i], -1, SQLITE_TRANSIENT);
    if (h->compress_ratio_count >= 0) {
        char *json = ratios_json(h);
        failed |= json ? sqlite3_bind_text(stmt, 8, json, -1, sqlite3_free) : SQLITE_NOMEM;
    }
    bind_known(stmt, 9, h->max_model_len);
    bind_known(stmt, 10, h->max_num_seqs);
    bind_known(stmt, 11, h->max_num_batched_tokens);
    bind_known(stmt, 12, h->num_blocks);
    bind_known(stmt, 13, h->prefix_caching);
    bind_known(stmt, 14, h->async_scheduling);
    failed |= sqlite3_bind_text(stmt, 15, h->speculative, -1, SQLITE_TRANSIENT);
    bind_known(stmt, 16, h->rank);
    st_db_bind(stmt, 17, h->clock_monotonic_ns);
    st_db_bind(stmt, 18, h->clock_realtime_ns);
    failed |= sqlite3_bind_text(stmt, 19, h->scale, -1, SQLITE_TRANSIENT);
    sqlite3_bind_int64(stmt, 20, now_ns());
    if (failed) { /* SQLite would store NULL in its place */
        sqlite3_finalize(stmt);
        return ST_FAIL_NOMEM(err);
    }
    return run(db, path, stmt, err);
}

static bool member_in_range(const struct st_member *member) {
    return member->kind >= ST_MEMBER_SWA && member->kind <= ST_MEMBER_ATTENTION &&
           member->layers >= 0 && member->layers <= MAX_LAYERS && member->ratio >= 0;
}

int st_header_check(const struct st_header *header, struct st_error *err) {
    if (header->group_count < 0 || header->group_count > ST_MAX_GROUPS)
        return ST_FAIL(err, ST_ERR_INPUT, "%d KV cache groups, 0 to %d expected",
                       header->group_count, ST_MAX_GROUPS);
    if (header->compress_ratio_count > MAX_LAYERS)
        return ST_FAIL(err, ST_ERR_INPUT, "compress_ratios of %d layers, at most %d expected",
                       header->compress_ratio_count, MAX_LAYERS);
    int64_t members = 0;
    for (int32_t g = 0; g < header->group_count; g++) {
        const struct st_group *group = &header->groups[g];
        bool good = group->group_id == g && group->block_size >= 1 &&
                    group->block_size <= INT32_MAX / 2 && group->member_count >= 1;
        members += group->member_count;
        for (int32_t m = 0; good && m < group->member_count; m++)
            good = member_in_range(&group->members[m]);
        if (!good || members > MAX_MEMBERS)
            return ST_FAIL(err, ST_ERR_INPUT, "KV cache group %d is out of range", g);
    }
    return ST_OK;
}

int st_header_store(sqlite3 *db, const char *path, const struct st_header *header,
                    struct st_error *err) {
    ST_TRY(store_tape(db, path, header, err));
    for (int32_t g = 0; g < header->group_count; g++)
        for (int32_t m = 0; m < header->groups[g].member_count; m++) {
            const struct st_group *group = &header->groups[g];
            const struct st_member *member = &group->members[m];
            sqlite3_stmt *stmt;
            ST_TRY(st_db_prepare(db, path, "INSERT INTO kv_group VALUES(?,?,?,?,?,?,?,?)", &stmt,
                                 err));
            sqlite3_bind_int(stmt, 1, group->group_id);
            sqlite3_bind_int(stmt, 2, group->block_size);
            sqlite3_bind_int(stmt, 3, m);
            sqlite3_bind_text(stmt, 4, st_member_kind_name(member->kind), -1, SQLITE_STATIC);
            sqlite3_bind_int(stmt, 5, member->layers);
            sqlite3_bind_int(stmt, 6, member->ratio);
            bind_known(stmt, 7, member->window);
            bind_known(stmt, 8, member->page_bytes);
            ST_TRY(run(db, path, stmt, err));
        }
    return ST_OK;
}

int st_operation_store(sqlite3 *db, const char *path, int argc, char **argv, struct st_error *err) {
    sqlite3_str *s = sqlite3_str_new(NULL);
    sqlite3_str_appendall(s, "INSERT INTO operation(tool, version, source_commit, argv, time)"
                             " SELECT 'steptape', ?, ?, json_group_array(column1), ? FROM (VALUES"
                             "(NULL)");
    for (int i = 0; i < argc; i++)
        sqlite3_str_appendf(s, ",(%Q)", argv[i]);
    sqlite3_str_appendall(s, ") WHERE column1 IS NOT NULL");
    char *sql = sqlite3_str_finish(s);
    if (!sql)
        return ST_FAIL_NOMEM(err);
    sqlite3_stmt *stmt;
    int rc = st_db_prepare(db, path, sql, &stmt, err);
    sqlite3_free(sql);
    ST_TRY(rc);
    sqlite3_bind_text(stmt, 1, ST_VERSION, -1, SQLITE_STATIC);
    if (ST_COMMIT[0])
        sqlite3_bind_text(stmt, 2, ST_COMMIT, -1, SQLITE_STATIC);
    sqlite3_bind_int64(stmt, 3, now_ns());
    return run(db, path, stmt, err);
}

/* ---- loading */

/* Strings and arrays of a loaded header, freed together. */
struct storage {
    struct st_stored_header stored;
    char *text[9];
    int32_t *ratios;
    struct st_group groups[ST_MAX_GROUPS];
    struct st_member *members;
};

void st_stored_header_destroy(struct st_stored_header *stored) {
    struct storage *s = (struct storage *)stored;
    if (!s)
        return;
    for (size_t i = 0; i < sizeof s->text / sizeof *s->text; i++)
        free(s->text[i]);
    free(s->ratios);
    free(s->members);
    free(s);
}

/* *text stays NULL for NULL; false: no memory. */
static bool take_text(sqlite3_stmt *stmt, int c, char **text) {
    if (sqlite3_column_type(stmt, c) == SQLITE_NULL)
        return true;
    const char *borrowed = (const char *)sqlite3_column_text(stmt, c);
    *text = borrowed ? strdup(borrowed) : NULL;
    return *text;
}

static int64_t known(sqlite3_stmt *stmt, int c) {
    int64_t value =
        sqlite3_column_type(stmt, c) == SQLITE_NULL ? -1 : sqlite3_column_int64(stmt, c);
    return value < 0 ? -1 : value;
}

static int8_t known_bool(sqlite3_stmt *stmt, int c) {
    int64_t value = known(stmt, c);
    return value > 0 ? 1 : (int8_t)value;
}

static int load_tape(struct storage *s, sqlite3_stmt *stmt, const char *path,
                     struct st_error *err) {
    struct st_header *h = &s->stored.header;
    for (int i = 0; i < 9; i++)
        if (!take_text(stmt, i, &s->text[i]))
            return ST_FAIL_NOMEM(err);
    h->engine = s->text[0];
    h->engine_version = s->text[1];
    h->runner = s->text[2];
    h->device = s->text[3];
    h->model = s->text[4];
    h->architecture = s->text[5];
    h->speculative = s->text[7];
    h->scale = s->text[8];
    h->max_model_len = known(stmt, 9);
    h->max_num_seqs = known(stmt, 10);
    h->max_num_batched_tokens = known(stmt, 11);
    h->num_blocks = known(stmt, 12);
    h->prefix_caching = known_bool(stmt, 13);
    h->async_scheduling = known_bool(stmt, 14);
    h->rank = known(stmt, 15);
    h->clock_monotonic_ns = st_db_column(stmt, 16);
    h->clock_realtime_ns = st_db_column(stmt, 17);
    int64_t allocator_model = known(stmt, 18);
    const char *kind = (const char *)sqlite3_column_text(stmt, 19);
    if (allocator_model >= ST_MODEL_COUNT)
        return ST_FAIL(err, ST_ERR_CORRUPT, "%s: table tape: allocator_model is out of range",
                       path);
    s->stored.allocator_model = allocator_model < 0 ? 0 : (int32_t)allocator_model;
    if (!kind || (strcmp(kind, "tape") && strcmp(kind, "result")))
        return ST_FAIL(err, ST_ERR_CORRUPT, "%s: table tape: kind is neither tape nor result",
                       path);
    if (!sqlite3_column_int(stmt, 20)) /* it is printed as it is */
        return ST_FAIL(err, ST_ERR_CORRUPT, "%s: table tape: speculative is not JSON", path);
    s->stored.is_result = strcmp(kind, "result") == 0;
    return ST_OK;
}

static int load_ratios(sqlite3 *db, const char *path, struct storage *s, struct st_error *err) {
    struct st_header *h = &s->stored.header;
    h->compress_ratio_count = -1;
    if (!s->text[6])
        return ST_OK;
    sqlite3_stmt *stmt;
    ST_TRY(st_db_prepare(db, path, "SELECT value FROM json_each(?) WHERE type = 'integer'", &stmt,
                         err));
    sqlite3_bind_text(stmt, 1, s->text[6], -1, SQLITE_STATIC);
    int32_t count = 0, capacity = 0;
    int step, rc = ST_OK;
    while (!rc && (step = sqlite3_step(stmt)) == SQLITE_ROW) {
        if (count == capacity) {
            int32_t *grown = realloc(s->ratios, ((size_t)capacity * 2 + 64) * sizeof *grown);
            if (!grown) {
                rc = ST_FAIL_NOMEM(err);
                break;
            }
            s->ratios = grown;
            capacity = capacity * 2 + 64;
        }
        s->ratios[count++] = sqlite3_column_int(stmt, 0);
        if (count > MAX_LAYERS)
            rc = ST_FAIL(err, ST_ERR_CORRUPT, "%s: table tape: compress_ratios of too many layers",
                         path);
    }
    if (!rc && step != SQLITE_DONE)
        rc = sqlite3_errcode(db) == SQLITE_NOMEM
                 ? ST_FAIL_NOMEM(err)
                 : ST_FAIL(err, ST_ERR_CORRUPT,
                           "%s: table tape: compress_ratios is no list of layers", path);
    sqlite3_finalize(stmt);
    ST_TRY(rc);
    h->compress_ratio_count = count;
    h->compress_ratios = s->ratios;
    return ST_OK;
}

static int member_kind(const char *name) {
    for (int kind = ST_MEMBER_SWA; kind <= ST_MEMBER_ATTENTION; kind++)
        if (name && strcmp(name, st_member_kind_name((enum st_member_kind)kind)) == 0)
            return kind;
    return -1;
}

static int load_member(struct storage *s, sqlite3_stmt *stmt, int32_t *members, const char *path,
                       struct st_error *err) {
    struct st_header *h = &s->stored.header;
    int64_t group_id = sqlite3_column_int64(stmt, 0), block_size = sqlite3_column_int64(stmt, 1);
    int64_t layers = sqlite3_column_int64(stmt, 4), ratio = sqlite3_column_int64(stmt, 5);
    int kind = member_kind((const char *)sqlite3_column_text(stmt, 3));
    struct st_group *group = h->group_count ? &s->groups[h->group_count - 1] : NULL;
    if (!group || group->group_id != group_id) {
        if (h->group_count == ST_MAX_GROUPS || group_id != h->group_count)
            return ST_FAIL(err, ST_ERR_CORRUPT, "%s: table kv_group: group %lld is out of order",
                           path, (long long)group_id);
        group = &s->groups[h->group_count++];
        *group =
            (struct st_group){(int32_t)group_id, (int32_t)block_size, 0, s->members + *members};
    }
    if (kind < 0 || block_size < 1 || block_size > INT32_MAX / 2 || layers < 0 ||
        layers > MAX_LAYERS || ratio < 0 || ratio > INT32_MAX || *members == MAX_MEMBERS)
        return ST_FAIL(err, ST_ERR_CORRUPT, "%s: table kv_group: group %lld is out of range", path,
                       (long long)group_id);
    s->members[*members] = (struct st_member){(enum st_member_kind)kind, (int32_t)layers,
                                              (int32_t)ratio, known(stmt, 6), known(stmt, 7)};
    ++*members;
    group->member_count++;
    return ST_OK;
}

static int load_groups(sqlite3 *db, const char *path, struct storage *s, struct st_error *err) {
    sqlite3_stmt *stmt;
    ST_TRY(
        st_db_prepare(db, path,
                      "SELECT group_id, block_size, member, kind, layers, ratio, window, page_bytes"
                      " FROM kv_group ORDER BY group_id, member",
                      &stmt, err));
    s->stored.header.groups = s->groups;
    s->members = calloc(MAX_MEMBERS, sizeof *s->members);
    int32_t members = 0;
    int rc = s->members ? ST_OK : ST_FAIL_NOMEM(err);
    int step = SQLITE_DONE;
    while (!rc && (step = sqlite3_step(stmt)) == SQLITE_ROW)
        rc = load_member(s, stmt, &members, path, err);
    if (!rc && step != SQLITE_DONE)
        rc = st_db_fail(db, path, err);
    sqlite3_finalize(stmt);
    return rc;
}

int st_header_load(sqlite3 *db, const char *path, struct st_stored_header **stored,
                   struct st_error *err) {
    sqlite3_stmt *stmt;
    ST_TRY(
        st_db_prepare(db, path,
                      "SELECT engine, engine_version, runner, device, model, architecture,"
                      " compress_ratios, speculative, scale, max_model_len, max_num_seqs,"
                      " max_num_batched_tokens, num_blocks, prefix_caching, async_scheduling, rank,"
                      " clock_monotonic_ns, clock_realtime_ns, allocator_model, kind,"
                      " speculative IS NULL OR json_valid(speculative) FROM tape",
                      &stmt, err));
    struct storage *s = calloc(1, sizeof *s);
    int rc = s ? ST_OK : ST_FAIL_NOMEM(err);
    if (!rc && sqlite3_step(stmt) != SQLITE_ROW)
        rc = sqlite3_errcode(db) == SQLITE_DONE
                 ? ST_FAIL(err, ST_ERR_CORRUPT, "%s: table tape is empty", path)
                 : st_db_fail(db, path, err);
    if (!rc)
        rc = load_tape(s, stmt, path, err);
    sqlite3_finalize(stmt);
    if (!rc)
        rc = load_ratios(db, path, s, err);
    if (!rc)
        rc = load_groups(db, path, s, err);
    if (rc)
        st_stored_header_destroy(s ? &s->stored : NULL);
    else
        *stored = &s->stored;
    return rc;
}
