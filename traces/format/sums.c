/* SPDX-License-Identifier: Apache-2.0 */
#include "traces/format/sums.h"

#include <string.h>

#include "traces/format/db.h"

static const char *const names[ST_SUMS] = {
    "step_count",
    "request_step_count",
    "token_count",
    "decode_count",
    "prefill_token_count",
    "preempted_count",
    "request_count",
    "block_id_count",
    "max_request_count",
    "max_query_len",
    "max_seq_len",
    "begin_ns",
    "end_ns",
    "busy_ns",
    "c128_closes",
    "c128_none",
    "c128_unknown",
    "c128_empty",
};

static bool is_time(int sum) {
    return sum >= ST_SUM_BEGIN_NS && sum <= ST_SUM_BUSY_NS;
}

void st_sums_init(struct st_step_sums *sums) {
    memset(sums, 0, sizeof *sums);
    for (int m = 0; m < ST_SUM_MODES; m++)
        for (int i = ST_SUM_BEGIN_NS; i <= ST_SUM_BUSY_NS; i++)
            sums->mode[m][i] = ST_UNKNOWN;
}

/* Does a token of this step close a group of 128 positions? */
static bool closes_group(const struct st_step *step) {
    for (int32_t row = 0; row < step->request_count; row++)
        if (step->num_computed_tokens[row] % 128 + step->query_len[row] >= 128)
            return true;
    return false;
}

static void add(int64_t *to, int64_t value) {
    if (__builtin_add_overflow(*to == ST_UNKNOWN ? 0 : *to, value, to))
        *to = INT64_MAX; /* times of a hostile tape */
}

static void raise_to(int64_t *to, int64_t value) {
    if (*to == ST_UNKNOWN || value > *to)
        *to = value;
}

static void add_times(int64_t *sum, const struct st_step *step) {
    int64_t end;
    bool start = step->start_ns != ST_UNKNOWN, duration = step->duration_ns != ST_UNKNOWN;
    if (start && (sum[ST_SUM_BEGIN_NS] == ST_UNKNOWN || step->start_ns < sum[ST_SUM_BEGIN_NS]))
        sum[ST_SUM_BEGIN_NS] = step->start_ns;
    if (duration)
        add(&sum[ST_SUM_BUSY_NS], step->duration_ns);
    if (start && duration && !__builtin_add_overflow(step->start_ns, step->duration_ns, &end))
        raise_to(&sum[ST_SUM_END_NS], end);
}

void st_sums_add(struct st_step_sums *sums, const struct st_step *step,
                 const struct st_step_summary *summary) {
    int64_t *sum = sums->mode[(int)step->graph_mode + 1];
    int c128 = step->request_count == 0        ? ST_SUM_C128_EMPTY
               : !st_step_has_cpu_starts(step) ? ST_SUM_C128_UNKNOWN
               : closes_group(step)            ? ST_SUM_C128_CLOSES
                                               : ST_SUM_C128_NONE;
    sum[ST_SUM_STEPS]++;
    sum[c128]++;
    sum[ST_SUM_REQUEST_STEPS] += step->request_count;
    sum[ST_SUM_TOKENS] += summary->token_count;
    sum[ST_SUM_DECODES] += summary->decode_count;
    sum[ST_SUM_PREFILL_TOKENS] += summary->prefill_token_count;
    sum[ST_SUM_PREEMPTED] += step->preempted.count;
    sum[ST_SUM_NEW_REQUESTS] += step->new_requests.count;
    for (int32_t g = 0; g < step->group_count; g++)
        sum[ST_SUM_BLOCK_IDS] += step->blocks[g].offset[step->request_count];
    raise_to(&sum[ST_SUM_MAX_REQUESTS], step->request_count);
    raise_to(&sum[ST_SUM_MAX_QUERY_LEN], summary->max_query_len);
    raise_to(&sum[ST_SUM_MAX_SEQ_LEN], summary->max_seq_len);
    add_times(sum, step);
}

int64_t st_sums_total(const struct st_step_sums *sums, enum st_sum which) {
    int64_t total = is_time((int)which) ? ST_UNKNOWN : 0;
    for (int m = 0; m < ST_SUM_MODES; m++) {
        int64_t value = sums->mode[m][which];
        if (!sums->mode[m][ST_SUM_STEPS] || value == ST_UNKNOWN)
            continue;
        if (which == ST_SUM_BEGIN_NS)
            total = total == ST_UNKNOWN || value < total ? value : total;
        else if (which == ST_SUM_END_NS ||
                 (which >= ST_SUM_MAX_REQUESTS && which <= ST_SUM_MAX_SEQ_LEN))
            raise_to(&total, value);
        else
            add(&total, value);
    }
    return total;
}

int st_sums_store(sqlite3 *db, const char *path, const struct st_step_sums *sums,
                  struct st_error *err) {
    sqlite3_stmt *stmt;
    ST_TRY(st_db_prepare(db, path,
                         "INSERT INTO step_summary VALUES(?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?)",
                         &stmt, err));
    int rc = ST_OK;
    for (int m = 0; m < ST_SUM_MODES && !rc; m++) {
        if (!sums->mode[m][ST_SUM_STEPS])
            continue;
        sqlite3_bind_text(stmt, 1, st_graph_mode_name((enum st_graph_mode)(m - 1)), -1,
                          SQLITE_STATIC);
        for (int i = 0; i < ST_SUMS; i++)
            st_db_bind(stmt, 2 + i, sums->mode[m][i]);
        rc = st_db_insert(db, path, stmt, err);
    }
    sqlite3_finalize(stmt);
    return rc;
}

static int mode_of(const char *name) {
    for (int m = 1; name && m < ST_SUM_MODES; m++)
        if (strcmp(name, st_graph_mode_name((enum st_graph_mode)(m - 1))) == 0)
            return m;
    return name ? -1 : 0;
}

static int load_row(sqlite3_stmt *stmt, const char *path, struct st_step_sums *sums,
                    struct st_error *err) {
    int m = mode_of((const char *)sqlite3_column_text(stmt, 0));
    if (m < 0 || sums->mode[m][ST_SUM_STEPS])
        return ST_FAIL(err, ST_ERR_CORRUPT, "%s: table step_summary: a graph mode is damaged",
                       path);
    for (int i = 0; i < ST_SUMS; i++) {
        int64_t value = st_db_column(stmt, 1 + i);
        if (!is_time(i) && (value < 0 || value > ST_STEP_ID_MAX))
            return ST_FAIL(err, ST_ERR_CORRUPT, "%s: table step_summary: %s is out of range", path,
                           names[i]);
        sums->mode[m][i] = value;
    }
    return ST_OK;
}

int st_sums_load(sqlite3 *db, const char *path, struct st_step_sums *sums, bool *found,
                 struct st_error *err) {
    st_sums_init(sums);
    ST_TRY(st_db_has_table(db, path, "step_summary", found, err));
    if (!*found)
        return ST_OK;
    sqlite3_stmt *stmt;
    ST_TRY(st_db_prepare(db, path,
                         "SELECT graph_mode, step_count, request_step_count, token_count,"
                         " decode_count, prefill_token_count, preempted_count, request_count,"
                         " block_id_count, max_request_count, max_query_len, max_seq_len, begin_ns,"
                         " end_ns, busy_ns, c128_closes, c128_none, c128_unknown, c128_empty"
                         " FROM step_summary",
                         &stmt, err));
    int rc = ST_OK, row = SQLITE_DONE;
    while (!rc && (row = sqlite3_step(stmt)) == SQLITE_ROW)
        rc = load_row(stmt, path, sums, err);
    if (!rc && row != SQLITE_DONE)
        rc = st_db_fail(db, path, err);
    sqlite3_finalize(stmt);
    return rc;
}

const char *st_sums_compare(const struct st_step_sums *a, const struct st_step_sums *b) {
    for (int m = 0; m < ST_SUM_MODES; m++)
        for (int i = 0; i < ST_SUMS; i++)
            if (a->mode[m][i] != b->mode[m][i])
                return names[i];
    return NULL;
}
