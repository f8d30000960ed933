/* SPDX-License-Identifier: Apache-2.0 */
#include "traces/format/verify.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "traces/base/log.h"
#include "traces/format/db.h"
#include "traces/format/launches.h"
#include "traces/format/reader_i.h"
#include "traces/format/sums.h"
#include "traces/format/writer_i.h"

/* Bytes of SQLite's header that change how a file is opened, not what it holds. */
static int check_header(const char *path, struct st_error *err) {
    unsigned char head[100];
    FILE *file = fopen(path, "rb");
    size_t got = file ? fread(head, 1, sizeof head, file) : 0;
    if (file)
        fclose(file);
    if (got != sizeof head)
        return ST_FAIL(err, ST_ERR_IO, "%s: cannot be read", path);
    if (head[18] != 1 || head[19] != 1)
        return ST_FAIL(err, ST_ERR_CORRUPT, "%s: the header names a journal mode tapes are not in",
                       path);
    return ST_OK;
}

static int check_structure(struct st_tape *tape, struct st_error *err) {
    sqlite3_stmt *stmt;
    ST_TRY(st_db_prepare(tape->db, tape->path, "PRAGMA integrity_check(1)", &stmt, err));
    int rc = ST_OK;
    if (sqlite3_step(stmt) != SQLITE_ROW)
        rc = st_db_fail(tape->db, tape->path, err);
    else if (strcmp((const char *)sqlite3_column_text(stmt, 0), "ok") != 0)
        rc = ST_FAIL(err, ST_ERR_CORRUPT, "%s: %.300s", tape->path, sqlite3_column_text(stmt, 0));
    sqlite3_finalize(stmt);
    return rc;
}

static int check_seal(struct st_tape *tape, struct st_error *err) {
    char hash[33];
    ST_TRY(st_db_content_hash(tape->db, tape->path, hash, err));
    if (strcmp(hash, tape->hash) != 0)
        return ST_FAIL(err, ST_ERR_CORRUPT,
                       "%s: the content is not what was sealed (%s, sealed %s)", tape->path, hash,
                       tape->hash);
    return ST_OK;
}

static int check_step(struct st_tape *tape, const struct st_step *step, sqlite3_stmt *row,
                      struct st_step_sums *sums, struct st_error *err) {
    struct st_step_summary summary;
    st_step_summarize(step, &summary);
    st_sums_add(sums, step, &summary);
    sqlite3_reset(row);
    sqlite3_bind_int64(row, 1, step->step_id);
    if (sqlite3_step(row) != SQLITE_ROW)
        return st_db_fail(tape->db, tape->path, err);
    const int64_t want[] = {step->request_count,   summary.token_count,
                            summary.decode_count,  summary.prefill_token_count,
                            summary.max_query_len, summary.max_seq_len,
                            step->preempted.count};
    for (int i = 0; i < (int)(sizeof want / sizeof *want); i++)
        if (sqlite3_column_int64(row, i) != want[i])
            return ST_FAIL(err, ST_ERR_CORRUPT,
                           "%s: step %" PRId64 ": %s is %" PRId64 ", the arrays say %" PRId64,
                           tape->path, step->step_id, sqlite3_column_name(row, i),
                           (int64_t)sqlite3_column_int64(row, i), want[i]);
    return ST_OK;
}

static int check_sums(struct st_tape *tape, const struct st_step_sums *want, struct st_error *err) {
    struct st_step_sums sums;
    bool found;
    ST_TRY(st_sums_load(tape->db, tape->path, &sums, &found, err));
    const char *differs = found ? st_sums_compare(&sums, want) : NULL;
    if (differs)
        return ST_FAIL(err, ST_ERR_CORRUPT, "%s: table step_summary: %s is not what the steps say",
                       tape->path, differs);
    return ST_OK;
}

/* Gaps lie between steps of the tape, in which as many were dropped as the recorder says. */
static int check_gaps(struct st_tape *tape, struct st_error *err) {
    static const char sql[] =
        "SELECT (SELECT count(*) FROM step_gap WHERE dropped_count < 1 OR before_step_id NOT"
        " BETWEEN ?1 AND ?2), (SELECT total(dropped_count) FROM step_gap) <>"
        " (SELECT total(dropped_count) FROM recorder) AND EXISTS (SELECT 1 FROM recorder)";
    sqlite3_stmt *stmt;
    bool has_gaps;
    ST_TRY(st_db_has_table(tape->db, tape->path, "step_gap", &has_gaps, err));
    if (!has_gaps)
        return ST_OK; /* format 1 */
    ST_TRY(st_db_prepare(tape->db, tape->path, sql, &stmt, err));
    sqlite3_bind_int64(stmt, 1, tape->first_step);
    sqlite3_bind_int64(stmt, 2, tape->first_step + tape->step_count);
    int rc = sqlite3_step(stmt) == SQLITE_ROW ? ST_OK : st_db_fail(tape->db, tape->path, err);
    if (!rc && sqlite3_column_int64(stmt, 0))
        rc = ST_FAIL(err, ST_ERR_CORRUPT, "%s: table step_gap: a gap is out of range", tape->path);
    if (!rc && sqlite3_column_int64(stmt, 1))
        rc = ST_FAIL(err, ST_ERR_CORRUPT, "%s: table step_gap is not what the recorder counted",
                     tape->path);
    sqlite3_finalize(stmt);
    return rc;
}

static int check_steps(struct st_tape *tape, struct st_verify_report *report,
                       struct st_error *err) {
    struct st_cursor *cursor = NULL;
    struct st_step_sums sums;
    sqlite3_stmt *row = NULL;
    st_sums_init(&sums);
    const struct st_step *step;
    int rc = st_db_prepare(tape->db, tape->path,
                           "SELECT request_count, token_count, decode_count,"
                           " prefill_token_count, max_query_len, max_seq_len, preempted_count"
                           " FROM step WHERE step_id = ?",
                           &row, err);
    if (!rc)
        rc = st_cursor_open(tape, ST_READ_TABLES, &cursor, err);
    while (!rc && (rc = st_cursor_next(cursor, &step, err)) == ST_OK) {
        rc = check_step(tape, step, row, &sums, err);
        report->step_count++;
        report->request_step_count += step->request_count;
        for (int32_t g = 0; g < step->group_count; g++)
            report->block_id_count += step->blocks[g].offset[step->request_count];
        const char *json = NULL;
        if (!rc)
            rc = st_tape_check_json(tape, step->step_id, &json, err);
        report->check_count += json != NULL;
        st_progress("verify", report->step_count, tape->step_count);
        if (!rc && st_interrupted())
            rc = ST_FAIL(err, ST_ERR_INTERRUPTED, "%s: interrupted", tape->path);
    }
    st_progress_end();
    if (rc == ST_DONE)
        rc = report->step_count == tape->step_count
                 ? ST_OK
                 : ST_FAIL(err, ST_ERR_CORRUPT, "%s: %" PRId64 " steps of %" PRId64 " can be read",
                           tape->path, report->step_count, tape->step_count);
    st_cursor_close(cursor);
    sqlite3_finalize(row);
    if (!rc)
        rc = check_sums(tape, &sums, err);
    return rc ? rc : check_gaps(tape, err);
}

static int check_checks(struct st_tape *tape, const struct st_verify_report *report,
                        struct st_error *err) {
    sqlite3_stmt *stmt;
    if (sqlite3_prepare_v2(tape->db, "SELECT count(*) FROM step_check", -1, &stmt, NULL) !=
        SQLITE_OK)
        return st_db_fail(tape->db, tape->path, err);
    int rc = sqlite3_step(stmt) == SQLITE_ROW ? ST_OK : st_db_fail(tape->db, tape->path, err);
    if (!rc && sqlite3_column_int64(stmt, 0) != report->check_count)
        rc = ST_FAIL(err, ST_ERR_CORRUPT,
                     "%s: table step_check: %lld rows, %" PRId64 " of them of steps of the tape",
                     tape->path, (long long)sqlite3_column_int64(stmt, 0), report->check_count);
    sqlite3_finalize(stmt);
    return rc;
}

static int check_launches(struct st_tape *tape, struct st_error *err) {
    struct st_launches *launches = NULL;
    int rc = st_launches_open(tape->db, tape->path, &launches, err);
    if (rc == ST_DONE) /* none were recorded */
        return ST_OK;
    if (!rc)
        rc = st_launches_verify(launches, err);
    st_launches_close(launches);
    return rc;
}

static int count_runs(struct st_tape *tape, struct st_verify_report *report, struct st_error *err) {
    sqlite3_stmt *stmt;
    ST_TRY(st_db_prepare(tape->db, tape->path, "SELECT count(*) FROM run", &stmt, err));
    int rc = sqlite3_step(stmt) == SQLITE_ROW ? ST_OK : st_db_fail(tape->db, tape->path, err);
    report->run_count = sqlite3_column_int64(stmt, 0);
    report->step_count = tape->step_count;
    sqlite3_finalize(stmt);
    return rc;
}

int st_tape_verify(const char *path, struct st_verify_report *report, struct st_error *err) {
    memset(report, 0, sizeof *report);
    struct st_tape *tape;
    ST_TRY(st_tape_open(path, &tape, err));
    int rc = check_header(path, err);
    if (!rc)
        rc = check_structure(tape, err);
    if (!rc && st_tape_is_result(tape)) {
        rc = count_runs(tape, report, err);
    } else if (!rc) {
        rc = check_seal(tape, err);
        if (!rc)
            rc = check_steps(tape, report, err);
        if (!rc)
            rc = check_checks(tape, report, err);
        if (!rc)
            rc = check_launches(tape, err);
    }
    st_tape_close(tape);
    return rc;
}
