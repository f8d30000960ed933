/* SPDX-License-Identifier: Apache-2.0 */
/* Reading the tables launch_*; they may be anybody's. */
#include <inttypes.h>
#include <sqlite3.h>
#include <stdlib.h>
#include <string.h>

#include "traces/format/db.h"
#include "traces/format/launch_family.h"
#include "traces/format/launches.h"

enum { CACHED_BLOCKS = 4 };

struct capture {
    int64_t capture_id, first_site, site_count;
};

struct block {
    int64_t block_id, first_sequence, last_sequence; /* -1: none of it is in a step */
    int32_t capture;                                 /* index */
};

/* A decoded block, its launches by step and within one in their order. */
struct decoded {
    int64_t block; /* index; -1: empty */
    uint64_t used;
    struct st_launch_record *launch;
    int64_t count, room;
};

struct st_launches {
    sqlite3 *db;
    char *path;
    sqlite3_stmt *find_step, *find_block;
    struct st_launch_decoder *decoder;
    struct capture *capture;
    struct block *block;
    struct st_launch_site *site; /* names are ours */
    int32_t *family;             /* [site_count] */
    char **name;
    int64_t capture_count, block_count, site_count, name_count;
    struct decoded cache[CACHED_BLOCKS];
    uint64_t clock;
    struct st_launch_record *list; /* what was given last */
    int64_t list_count, list_room;
};

static int corrupt(const struct st_launches *l, const char *what, int64_t number,
                   struct st_error *err) {
    return ST_FAIL(err, ST_ERR_CORRUPT, "%s: table %s %" PRId64 " is damaged", l->path, what,
                   number);
}

static int count_rows(struct st_launches *l, const char *sql, int64_t *count,
                      struct st_error *err) {
    sqlite3_stmt *stmt;
    ST_TRY(st_db_prepare(l->db, l->path, sql, &stmt, err));
    int rc = sqlite3_step(stmt) == SQLITE_ROW ? 0 : st_db_fail(l->db, l->path, err);
    *count = sqlite3_column_int64(stmt, 0);
    sqlite3_finalize(stmt);
    return rc;
}

/* Calls load for each row; it may be fewer than were counted, never more. */
static int each_row(struct st_launches *l, const char *sql, int64_t most,
                    int (*load)(struct st_launches *, sqlite3_stmt *, int64_t, struct st_error *),
                    struct st_error *err) {
    sqlite3_stmt *stmt;
    int64_t index = 0;
    int rc = 0, row = SQLITE_DONE;
    ST_TRY(st_db_prepare(l->db, l->path, sql, &stmt, err));
    while (rc == 0 && index < most && (row = sqlite3_step(stmt)) == SQLITE_ROW)
        rc = load(l, stmt, index++, err);
    if (rc == 0 && index < most)
        rc = row == SQLITE_DONE ? corrupt(l, "launch_*, row", index, err)
                                : st_db_fail(l->db, l->path, err);
    sqlite3_finalize(stmt);
    return rc;
}

static int load_name(struct st_launches *l, sqlite3_stmt *stmt, int64_t index,
                     struct st_error *err) {
    const char *text = (const char *)sqlite3_column_text(stmt, 1);
    if (sqlite3_column_int64(stmt, 0) != index || !text)
        return corrupt(l, "launch_name, row", index, err);
    l->name[index] = strdup(text);
    return l->name[index] ? 0 : ST_FAIL_NOMEM(err);
}

static int32_t kind_of(const char *name) {
    for (int32_t k = 0; name && k < ST_LAUNCH_KINDS; k++)
        if (strcmp(st_launch_kind_name(k), name) == 0)
            return k;
    return -1;
}

static int load_site(struct st_launches *l, sqlite3_stmt *stmt, int64_t index,
                     struct st_error *err) {
    struct st_launch_site *s = &l->site[index];
    int64_t name = sqlite3_column_int64(stmt, 2);
    s->kind = kind_of((const char *)sqlite3_column_text(stmt, 1));
    if (sqlite3_column_int64(stmt, 0) != index || s->kind < 0 || name < 0 || name >= l->name_count)
        return corrupt(l, "launch_site, row", index, err);
    s->name = l->name[name];
    s->graph_id = (uint32_t)sqlite3_column_int64(stmt, 3);
    s->graph_node_id = (uint64_t)sqlite3_column_int64(stmt, 4);
    for (int d = 0; d < 3; d++) {
        s->grid[d] = sqlite3_column_int(stmt, 5 + d);
        s->block[d] = sqlite3_column_int(stmt, 8 + d);
    }
    s->shared_bytes = sqlite3_column_int(stmt, 11);
    s->stream_id = (uint32_t)sqlite3_column_int64(stmt, 12);
    s->device_id = (uint32_t)sqlite3_column_int64(stmt, 13);
    l->family[index] = st_launch_family_of(s->kind, s->name);
    return 0;
}

static int load_capture(struct st_launches *l, sqlite3_stmt *stmt, int64_t index,
                        struct st_error *err) {
    struct capture *c = &l->capture[index];
    c->capture_id = sqlite3_column_int64(stmt, 0);
    c->first_site = sqlite3_column_int64(stmt, 1);
    if (c->first_site < 0 || c->first_site > l->site_count ||
        (index > 0 && c->first_site < l->capture[index - 1].first_site))
        return corrupt(l, "launch_capture, row", c->capture_id, err);
    c->site_count = l->site_count - c->first_site;
    if (index > 0)
        l->capture[index - 1].site_count = c->first_site - l->capture[index - 1].first_site;
    return 0;
}

static int load_block(struct st_launches *l, sqlite3_stmt *stmt, int64_t index,
                      struct st_error *err) {
    struct block *b = &l->block[index];
    int64_t capture_id = sqlite3_column_int64(stmt, 1);
    bool in_steps = sqlite3_column_type(stmt, 2) != SQLITE_NULL;
    *b = (struct block){.block_id = sqlite3_column_int64(stmt, 0),
                        .first_sequence = in_steps ? sqlite3_column_int64(stmt, 2) : -1,
                        .last_sequence = in_steps ? sqlite3_column_int64(stmt, 3) : -1,
                        .capture = -1};
    for (int32_t c = 0; c < l->capture_count; c++)
        if (l->capture[c].capture_id == capture_id)
            b->capture = c;
    return b->capture >= 0 ? 0 : corrupt(l, "launch_block, row", b->block_id, err);
}

static void *rows(int64_t count, size_t size) {
    return calloc((size_t)count + 1, size);
}

static int load(struct st_launches *l, struct st_error *err) {
    ST_TRY(count_rows(l, "SELECT count(*) FROM launch_capture", &l->capture_count, err));
    ST_TRY(count_rows(l, "SELECT count(*) FROM launch_block", &l->block_count, err));
    ST_TRY(count_rows(l, "SELECT count(*) FROM launch_site", &l->site_count, err));
    int64_t names = 0;
    ST_TRY(count_rows(l, "SELECT count(*) FROM launch_name", &names, err));
    if (l->site_count > ST_LAUNCH_SITES_MAX || names > ST_LAUNCH_SITES_MAX)
        return ST_FAIL(err, ST_ERR_CORRUPT,
                       "%s: %" PRId64 " kinds of launches, at most %d expected", l->path,
                       l->site_count, ST_LAUNCH_SITES_MAX);
    l->capture = rows(l->capture_count, sizeof *l->capture);
    l->block = rows(l->block_count, sizeof *l->block);
    l->site = rows(l->site_count, sizeof *l->site);
    l->family = rows(l->site_count, sizeof *l->family);
    l->name = rows(names, sizeof *l->name);
    if (!l->capture || !l->block || !l->site || !l->family || !l->name)
        return ST_FAIL_NOMEM(err);
    l->name_count = names;
    ST_TRY(each_row(l, "SELECT name_id, name FROM launch_name ORDER BY name_id", l->name_count,
                    load_name, err));
    ST_TRY(
        each_row(l, "SELECT * FROM launch_site ORDER BY site_id", l->site_count, load_site, err));
    ST_TRY(each_row(l, "SELECT capture_id, first_site FROM launch_capture ORDER BY capture_id",
                    l->capture_count, load_capture, err));
    ST_TRY(each_row(l,
                    "SELECT block_id, capture_id, first_sequence, last_sequence FROM launch_block"
                    " ORDER BY block_id",
                    l->block_count, load_block, err));
    ST_TRY(st_db_prepare(l->db, l->path, "SELECT sequence FROM launch_step WHERE step_id = ?",
                         &l->find_step, err));
    ST_TRY(st_db_prepare(l->db, l->path, "SELECT columns FROM launch_block WHERE block_id = ?",
                         &l->find_block, err));
    return st_launch_decoder_create(&l->decoder, err);
}

int st_launches_open(struct sqlite3 *db, const char *path, struct st_launches **launches,
                     struct st_error *err) {
    struct st_launches *l = calloc(1, sizeof *l);
    if (!l)
        return ST_FAIL_NOMEM(err);
    bool there;
    int rc = 0;
    l->db = db;
    for (int i = 0; i < CACHED_BLOCKS; i++)
        l->cache[i].block = -1;
    l->path = strdup(path);
    if (!l->path)
        ST_TRY_OUT(ST_FAIL_NOMEM(err));
    ST_TRY_OUT(st_db_has_table(db, path, "launch_block", &there, err));
    rc = there ? load(l, err) : ST_DONE;
out:
    if (rc)
        st_launches_close(l);
    else
        *launches = l;
    return rc;
}

void st_launches_close(struct st_launches *l) {
    if (!l)
        return;
    sqlite3_finalize(l->find_step);
    sqlite3_finalize(l->find_block);
    st_launch_decoder_destroy(l->decoder);
    for (int i = 0; i < CACHED_BLOCKS; i++)
        free(l->cache[i].launch);
    for (int64_t i = 0; i < l->name_count; i++)
        free(l->name[i]);
    free(l->name);
    free(l->family);
    free(l->site);
    free(l->block);
    free(l->capture);
    free(l->list);
    free(l->path);
    free(l);
}

const struct st_launch_site *st_launches_site(const struct st_launches *l, int64_t number) {
    return number >= 0 && number < l->site_count ? &l->site[number] : NULL;
}

int32_t st_launches_family(const struct st_launches *l, int64_t number) {
    return l->family[number];
}

/* ---- blocks */

/* Within a step the order stays: blocks are nearly in order, and qsort() is not stable. */
static int sort_steps(struct st_launch_record *launch, int64_t count, struct st_error *err) {
    int64_t sorted = 1;
    while (sorted < count && launch[sorted - 1].sequence <= launch[sorted].sequence)
        sorted++;
    if (sorted >= count)
        return 0;
    struct st_launch_record *copy = malloc((size_t)count * sizeof *copy);
    if (!copy)
        return ST_FAIL_NOMEM(err);
    for (int64_t width = 1; width < count; width *= 2) { /* merge sort, bottom up */
        for (int64_t low = 0; low < count; low += 2 * width) {
            int64_t middle = low + width < count ? low + width : count;
            int64_t high = low + 2 * width < count ? low + 2 * width : count;
            int64_t i = low, k = middle;
            for (int64_t out = low; out < high; out++)
                copy[out] = i < middle && (k == high || launch[i].sequence <= launch[k].sequence)
                                ? launch[i++]
                                : launch[k++];
        }
        memcpy(launch, copy, (size_t)count * sizeof *copy);
    }
    free(copy);
    return 0;
}

static int fetch_block(struct st_launches *l, int64_t index, const void **data, size_t *size,
                       struct st_error *err) {
    sqlite3_reset(l->find_block);
    sqlite3_bind_int64(l->find_block, 1, l->block[index].block_id);
    if (sqlite3_step(l->find_block) != SQLITE_ROW)
        return st_db_fail(l->db, l->path, err);
    *data = sqlite3_column_blob(l->find_block, 0);
    *size = (size_t)sqlite3_column_bytes(l->find_block, 0);
    return 0;
}

static int decode(struct st_launches *l, int64_t index, struct decoded *d, struct st_error *err) {
    const struct capture *c = &l->capture[l->block[index].capture];
    struct st_launch_block head = {0};
    struct st_error reason = {0};
    const void *data = NULL;
    size_t size = 0;
    d->block = -1;
    d->count = 0;
    ST_TRY(fetch_block(l, index, &data, &size, err));
    int rc = st_launch_block_head(data, size, &head, &reason);
    if (!rc && head.count > d->room) {
        void *p = realloc(d->launch, (size_t)head.count * sizeof *d->launch);
        if (!p)
            return ST_FAIL_NOMEM(err);
        d->launch = p;
        d->room = head.count;
    }
    if (!rc)
        rc = st_launch_decoder_begin(l->decoder, data, size, c->site_count, &reason);
    while (!rc && d->count < head.count) {
        rc = st_launch_decoder_next(l->decoder, &d->launch[d->count], &reason);
        if (!rc)
            d->launch[d->count++].site += (int32_t)c->first_site;
    }
    sqlite3_reset(l->find_block);
    if (rc)
        return ST_FAIL_NATIVE(err, rc < 0 ? rc : ST_ERR_CORRUPT, reason.native,
                              "%s: table launch_block, row %" PRId64 ": %s", l->path,
                              l->block[index].block_id, reason.msg);
    ST_TRY(sort_steps(d->launch, d->count, err));
    d->block = index;
    return 0;
}

static int take_block(struct st_launches *l, int64_t index, struct decoded **out,
                      struct st_error *err) {
    struct decoded *oldest = &l->cache[0];
    for (int i = 0; i < CACHED_BLOCKS; i++) {
        struct decoded *d = &l->cache[i];
        if (d->block == index) {
            d->used = ++l->clock;
            *out = d;
            return 0;
        }
        if (d->used < oldest->used)
            oldest = d;
    }
    ST_TRY(decode(l, index, oldest, err));
    oldest->used = ++l->clock;
    *out = oldest;
    return 0;
}

/* ---- steps */

static int64_t first_of(const struct decoded *d, int64_t sequence) {
    int64_t low = 0, high = d->count;
    while (low < high) {
        int64_t middle = low + (high - low) / 2;
        if (d->launch[middle].sequence < sequence)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

static int append(struct st_launches *l, const struct decoded *d, int64_t sequence,
                  struct st_error *err) {
    for (int64_t i = first_of(d, sequence); i < d->count && d->launch[i].sequence == sequence;
         i++) {
        if (l->list_count == l->list_room) {
            int64_t room = l->list_room ? 2 * l->list_room : 512;
            void *p = realloc(l->list, (size_t)room * sizeof *l->list);
            if (!p)
                return ST_FAIL_NOMEM(err);
            l->list = p;
            l->list_room = room;
        }
        l->list[l->list_count++] = d->launch[i];
    }
    return 0;
}

int st_launches_step(struct st_launches *l, int64_t step_id, const struct st_launch_record **list,
                     int64_t *count, struct st_error *err) {
    l->list_count = 0;
    *list = NULL;
    *count = 0;
    sqlite3_reset(l->find_step);
    sqlite3_bind_int64(l->find_step, 1, step_id);
    int row = sqlite3_step(l->find_step);
    int64_t sequence = row == SQLITE_ROW ? sqlite3_column_int64(l->find_step, 0) : -1;
    int rc = row == SQLITE_ROW || row == SQLITE_DONE ? 0 : st_db_fail(l->db, l->path, err);
    sqlite3_reset(l->find_step);
    for (int64_t i = 0; !rc && sequence >= 0 && i < l->block_count; i++) {
        struct decoded *d;
        if (sequence < l->block[i].first_sequence || sequence > l->block[i].last_sequence)
            continue;
        rc = take_block(l, i, &d, err);
        if (!rc)
            rc = append(l, d, sequence, err);
    }
    *list = l->list;
    *count = l->list_count;
    return rc;
}

int st_launches_verify(struct st_launches *l, struct st_error *err) {
    struct decoded *d;
    for (int64_t i = 0; i < l->block_count; i++)
        ST_TRY(take_block(l, i, &d, err));
    return 0;
}
