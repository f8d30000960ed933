/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What `steptape record` says at the end: which tapes are there now, and what they say of
 * themselves.
 */
#include <dirent.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "capture/place.h"
#include "capture/record.h"
#include "traces/base/log.h"
#include "traces/format/db.h"
#include "traces/format/reader.h"

/* NAME.tape and NAME.anything.tape of a recording into NAME.tape. */
static bool is_ours(const char *file, const char *base) {
    size_t length = strlen(file), name = strlen(base);
    return length >= name + 5 && strncmp(file, base, name) == 0 && file[name] == '.' &&
           strcmp(file + length - 5, ".tape") == 0;
}

static int compare(const void *a, const void *b) {
    return strcmp(*(char *const *)a, *(char *const *)b);
}

static int list(const char *output, char ***names, int *count, struct st_error *err) {
    struct st_place place;
    int rc = st_place_init(&place, output, NULL, err);
    DIR *dir = rc ? NULL : opendir(place.parent);
    struct dirent *entry;
    if (!rc && !dir)
        rc = ST_FAIL_NATIVE(err, ST_ERR_IO, errno, "%s: %s", place.parent, strerror(errno));
    while (!rc && (entry = readdir(dir))) {
        if (!is_ours(entry->d_name, place.base))
            continue;
        char **grown = realloc(*names, ((size_t)*count + 1) * sizeof *grown);
        if (!grown || !(grown[*count] = strdup(entry->d_name)))
            rc = ST_FAIL_NOMEM(err);
        if (grown)
            *names = grown;
        *count += !rc;
    }
    if (dir)
        closedir(dir);
    if (*count)
        qsort(*names, (size_t)*count, sizeof **names, compare);
    st_place_fini(&place);
    return rc;
}

int st_record_list_before(const char *output, struct st_record_tapes *tapes, struct st_error *err) {
    *tapes = (struct st_record_tapes){0};
    return list(output, &tapes->before, &tapes->before_count, err);
}

void st_record_tapes_fini(struct st_record_tapes *tapes) {
    for (int i = 0; i < tapes->before_count; i++)
        free(tapes->before[i]);
    free(tapes->before);
    *tapes = (struct st_record_tapes){0};
}

static void print_tape(const char *path, struct st_tape *tape) {
    static const char sql[] =
        "SELECT dropped_count, recovered, torn_count, cost_median_ns, cost_p999_ns, cost_sum_ns,"
        " (SELECT max(start_ns + duration_ns) - min(start_ns) FROM step), lost_reason"
        " FROM recorder";
    sqlite3_stmt *stmt;
    st_log(ST_LOG_INFO, "%s: %" PRId64 " steps", path, st_tape_step_count(tape));
    if (st_db_prepare(st_tape_db(tape), path, sql, &stmt, NULL))
        return;
    if (sqlite3_step(stmt) == SQLITE_ROW) {
        if (sqlite3_column_int64(stmt, 0))
            st_log(ST_LOG_WARN, "%s: %" PRId64 " steps were dropped: a larger --ring holds more",
                   path, (int64_t)sqlite3_column_int64(stmt, 0));
        if (sqlite3_column_int64(stmt, 1))
            st_log(ST_LOG_INFO, "%s: the engine ended without closing it, %s", path,
                   sqlite3_column_int64(stmt, 2) ? "and one step was cut off"
                                                 : "no step was cut off");
        if (sqlite3_column_type(stmt, 7) != SQLITE_NULL)
            st_log(ST_LOG_WARN, "%s: recording ended early: %s", path,
                   sqlite3_column_text(stmt, 7));
        double median = (double)sqlite3_column_int64(stmt, 3) / 1e3;
        double high = (double)sqlite3_column_int64(stmt, 4) / 1e3;
        double sum = (double)sqlite3_column_int64(stmt, 5);
        double time = (double)sqlite3_column_int64(stmt, 6);
        char share[64] = "";
        if (time > 0)
            snprintf(share, sizeof share, "; %.2g %% of the time from first to last step",
                     100 * sum / time);
        if (sqlite3_column_type(stmt, 3) != SQLITE_NULL)
            st_log(ST_LOG_INFO, "%s: recording cost a step %.2f us (median), %.2f us (p99.9)%s",
                   path, median, high, share);
    }
    sqlite3_finalize(stmt);
}

/* Launches, where they were recorded: what was counted, and how much of it has records. */
static void print_launches(const char *path, struct st_tape *tape, bool wanted) {
    static const char sql[] =
        "SELECT sum(kernel_launches), sum(graph_launches), sum(records),"
        " total(dropped) + total(untimed) + total(reversed) + total(unattributed) + total(other),"
        " count(*)"
        " FROM launch_capture";
    sqlite3_stmt *stmt;
    sqlite3 *db = st_tape_db(tape);
    bool has = false;
    if (st_db_has_table(db, path, "launch_capture", &has, NULL))
        return;
    if (!has && wanted)
        st_log(ST_LOG_WARN,
               "%s: no launches: no CUDA driver was loaded, or it did not take our library", path);
    if (!has || st_db_prepare(db, path, sql, &stmt, NULL))
        return;
    if (sqlite3_step(stmt) == SQLITE_ROW && sqlite3_column_int64(stmt, 4)) {
        char text[3][24];
        for (int i = 0; i < 3; i++)
            snprintf(text[i], sizeof text[i],
                     sqlite3_column_type(stmt, i) == SQLITE_NULL ? "-" : "%.0f",
                     sqlite3_column_double(stmt, i));
        st_log(ST_LOG_INFO, "%s: %s kernel launches and %s graph launches, %s records", path,
               text[0], text[1], text[2]);
        if (sqlite3_column_double(stmt, 3) > 0)
            st_log(ST_LOG_WARN, "%s: %.0f launches are without a record, a time or a step", path,
                   sqlite3_column_double(stmt, 3));
    }
    sqlite3_finalize(stmt);
}

int st_record_summarize(const char *output, const struct st_record_tapes *tapes, int *count,
                        int64_t *steps, struct st_error *err) {
    char **names = NULL;
    int name_count = 0;
    *count = 0;
    *steps = 0;
    const char *slash = strrchr(output, '/');
    int rc = list(output, &names, &name_count, err);
    for (int i = 0; i < name_count; i++) {
        char *path = NULL;
        struct st_tape *tape;
        struct st_error reason = {0};
        bool old =
            tapes->before_count && bsearch(&names[i], tapes->before, (size_t)tapes->before_count,
                                           sizeof *tapes->before, compare);
        if (!rc && !old &&
            asprintf(&path, "%.*s%s", slash ? (int)(slash - output) + 1 : 0, output, names[i]) >=
                0) {
            if (st_tape_open(path, &tape, &reason) == ST_OK) {
                *count += 1;
                *steps += st_tape_step_count(tape);
                print_tape(path, tape);
                print_launches(path, tape, tapes->want_launches);
                st_tape_close(tape);
            } else {
                st_log(ST_LOG_WARN, "%s", reason.msg);
            }
            free(path);
        }
        free(names[i]);
    }
    free(names);
    return rc;
}
