/* SPDX-License-Identifier: Apache-2.0 */
#include "traces/format/db.h"

#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

#include "traces/format/schema.h"
#include "traces/format/step.h"

#define TEMPORARY_NAMES 1000

int st_db_fail(sqlite3 *db, const char *path, struct st_error *err) {
    int native = sqlite3_errcode(db);
    int code = ST_ERR_NATIVE;
    switch (native & 0xff) {
    case SQLITE_FULL:
    case SQLITE_IOERR:
    case SQLITE_CANTOPEN:
    case SQLITE_READONLY:
    case SQLITE_PERM:
        code = ST_ERR_IO;
        break;
    case SQLITE_CORRUPT:
    case SQLITE_NOTADB:
    case SQLITE_FORMAT:
    case SQLITE_ERROR: /* a table or column that a tape has is not there */
        code = ST_ERR_CORRUPT;
        break;
    case SQLITE_NOMEM:
        code = ST_ERR_NOMEM;
        break;
    }
    int extended = sqlite3_extended_errcode(db);
    if (extended == SQLITE_IOERR_NOMEM)
        code = ST_ERR_NOMEM;
    if (extended == SQLITE_READONLY_ROLLBACK)
        return ST_FAIL_NATIVE(err, ST_ERR_IO, extended,
                              "%s: holds half a run of a replay that was killed; the next replay "
                              "into it, or sqlite3, takes that back (%s-journal)",
                              path, path);
    if ((native & 0xff) == SQLITE_READONLY)
        return ST_FAIL_NATIVE(err, ST_ERR_IO, extended,
                              "%s: the file or its folder may not be written", path);
    if ((native & 0xff) == SQLITE_BUSY)
        return ST_FAIL_NATIVE(err, ST_ERR_IO, extended,
                              "%s: another program writes to it; try again when that is done",
                              path);
    return ST_FAIL_NATIVE(err, code, native, "%s: %s", path, sqlite3_errmsg(db));
}

static uint32_t big_endian(const uint8_t *p) {
    return (uint32_t)p[0] << 24 | (uint32_t)p[1] << 16 | (uint32_t)p[2] << 8 | p[3];
}

/* SQLite's file header (sqlite.org/fileformat2.html): what can be said before SQLite opens it. */
static int look_at_header(const char *path, const uint8_t *head, ssize_t got, int64_t file_size,
                          struct st_error *err) {
    if (got < 100 || memcmp(head, "SQLite format 3", 16) != 0)
        return ST_FAIL(err, ST_ERR_INPUT, "%s: not a tape (no SQLite header%s)", path,
                       got == 0 ? ", the file is empty" : "");
    if (big_endian(head + 68) != ST_APPLICATION_ID)
        return ST_FAIL(err, ST_ERR_INPUT,
                       "%s: an SQLite file, but not a tape (application_id is 0x%08x)", path,
                       big_endian(head + 68));
    uint32_t version = big_endian(head + 60);
    if (version > ST_FORMAT_VERSION)
        return ST_FAIL(
            err, ST_ERR_VERSION,
            "%s: tape of format version %u, this steptape reads up to %d: use a newer one", path,
            version, ST_FORMAT_VERSION);
    if (version < 1)
        return ST_FAIL(err, ST_ERR_CORRUPT, "%s: damaged: format version 0", path);
    if (head[18] == 2 || head[19] == 2) /* even to read it SQLite would make files beside it */
        return ST_FAIL(err, ST_ERR_CORRUPT,
                       "%s: in WAL mode, which tapes are never in: sqlite3 FILE 'PRAGMA "
                       "journal_mode=DELETE' takes it out",
                       path);
    int64_t page_size = head[16] << 8 | head[17];
    if (page_size == 1)
        page_size = 65536;
    int64_t pages = big_endian(head + 28);
    if (pages * page_size > file_size)
        return ST_FAIL(err, ST_ERR_CORRUPT, "%s: truncated: %lld bytes, %lld expected", path,
                       (long long)file_size, (long long)(pages * page_size));
    return ST_OK;
}

/* A recording keeps its files beside the tape that will be: whoever asks for that is told. */
static int cannot_open(const char *path, int native, struct st_error *err) {
    char *folder;
    if (asprintf(&folder, "%s.recording", path) < 0)
        return ST_FAIL_NOMEM(err);
    bool recording = native == ENOENT && access(folder, F_OK) == 0;
    free(folder);
    if (recording)
        return ST_FAIL_NATIVE(err, ST_ERR_IO, native,
                              "%s: not there yet: its engine runs, or did not close it and "
                              "`steptape recover` makes it",
                              path);
    return ST_FAIL_NATIVE(err, ST_ERR_IO, native, "%s: %s", path, strerror(native));
}

int st_db_look(const char *path, struct st_error *err) {
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0)
        return cannot_open(path, errno, err);
    struct stat st;
    uint8_t head[100];
    int rc = ST_OK;
    if (fstat(fd, &st) < 0)
        rc = ST_FAIL_NATIVE(err, ST_ERR_IO, errno, "%s: %s", path, strerror(errno));
    else if (!S_ISREG(st.st_mode))
        rc = ST_FAIL(err, ST_ERR_INPUT, "%s: not a tape but a %s", path,
                     S_ISDIR(st.st_mode) ? "directory" : "special file");
    else
        rc = look_at_header(path, head, pread(fd, head, sizeof head, 0), st.st_size, err);
    close(fd);
    return rc;
}

/* SQLite opens these as well, and waits for whoever writes into a pipe, deaf to signals. */
static int look_beside(const char *path, struct st_error *err) {
    static const char *const suffixes[] = {"-journal", "-wal"};
    for (size_t i = 0; i < sizeof suffixes / sizeof suffixes[0]; i++) {
        char *name;
        struct stat st;
        if (asprintf(&name, "%s%s", path, suffixes[i]) < 0)
            return ST_FAIL_NOMEM(err);
        bool special = lstat(name, &st) == 0 && !S_ISREG(st.st_mode);
        free(name);
        if (special)
            return ST_FAIL(err, ST_ERR_INPUT, "%s%s: not a file, and SQLite would read it", path,
                           suffixes[i]);
    }
    return ST_OK;
}

int st_db_open(const char *path, int flags, sqlite3 **db, struct st_error *err) {
    char *name = NULL;
    ST_TRY(look_beside(path, err));
    if (asprintf(&name, "%s%s", path[0] == '/' ? "" : "./", path) < 0)
        return ST_FAIL_NOMEM(err);
    sqlite3 *opened = NULL;
    int rc = sqlite3_open_v2(name, &opened, flags | SQLITE_OPEN_NOMUTEX, NULL);
    free(name);
    if (rc == SQLITE_OK) {
        *db = opened;
        return ST_OK;
    }
    rc = opened ? st_db_fail(opened, path, err) : ST_FAIL_NOMEM(err);
    sqlite3_close(opened);
    return rc;
}

int st_db_open_tape(const char *path, sqlite3 **db, struct st_error *err) {
    ST_TRY(st_db_look(path, err));
    sqlite3 *opened;
    ST_TRY(st_db_open(path, SQLITE_OPEN_READONLY, &opened, err));
    /* Someone else's file: its definitions may not run code, its pages are not trusted. */
    sqlite3_db_config(opened, SQLITE_DBCONFIG_DEFENSIVE, 1, NULL);
    sqlite3_db_config(opened, SQLITE_DBCONFIG_TRUSTED_SCHEMA, 0, NULL);
    sqlite3_extended_result_codes(opened, 1);
    sqlite3_busy_timeout(opened, 2000);
    /* The SELECT: what keeps a file from being read shows now, not in the middle of something. */
    int rc = st_db_execute(opened, path,
                           "PRAGMA cell_size_check=ON; PRAGMA mmap_size=0;"
                           "SELECT 1 FROM sqlite_schema LIMIT 1",
                           err);
    if (rc)
        sqlite3_close(opened);
    else
        *db = opened;
    return rc;
}

/* An empty file of a name that is ours alone, so two writers of one path do not meet before the
 * rename.  In a container every process has the same number: one that was killed must not stand in
 * the way. */
static int create_temporary(const char *path, char **name, struct st_error *err) {
    for (int n = 0;; n++) {
        if (asprintf(name, "%s.tmp-%ld-%d", path, (long)getpid(), n) < 0)
            return ST_FAIL_NOMEM(err);
        int fd = open(*name, O_CREAT | O_EXCL | O_RDWR | O_CLOEXEC, 0666);
        if (fd >= 0) {
            close(fd);
            return ST_OK;
        }
        int native = errno;
        free(*name);
        if (native != EEXIST || n == TEMPORARY_NAMES)
            return ST_FAIL_NATIVE(err, ST_ERR_IO, native, "%s: cannot be created: %s", path,
                                  strerror(native));
    }
}

static int begin_tape(sqlite3 *db, const char *path, const char *journal, struct st_error *err) {
    char pragmas[192];
    snprintf(pragmas, sizeof pragmas,
             "PRAGMA journal_mode=%s; PRAGMA synchronous=OFF; PRAGMA application_id=%d;"
             "PRAGMA user_version=%d;",
             journal, ST_APPLICATION_ID, ST_FORMAT_VERSION);
    ST_TRY(st_db_execute(db, path, pragmas, err));
    return st_db_execute(db, path, st_schema_common_sql, err);
}

int st_db_create(const char *path, char **temporary, sqlite3 **db, struct st_error *err) {
    char *name = NULL;
    ST_TRY(create_temporary(path, &name, err));
    *temporary = name;
    /* URI: for ATTACH, which says in no other way that a file is only read. */
    ST_TRY(st_db_open(name, SQLITE_OPEN_READWRITE | SQLITE_OPEN_URI, db, err));
    return begin_tape(*db, path, "OFF", err);
}

int st_db_create_part(const char *path, sqlite3 **db, struct st_error *err) {
    int fd = open(path, O_CREAT | O_EXCL | O_RDWR | O_CLOEXEC, 0666);
    if (fd < 0)
        return ST_FAIL_NATIVE(err, ST_ERR_IO, errno, "%s: cannot be created: %s", path,
                              strerror(errno));
    close(fd);
    ST_TRY(st_db_open(path, SQLITE_OPEN_READWRITE, db, err));
    /* Whoever looks at an unfinished tape holds a commit up; meanwhile steps wait in the ring. */
    sqlite3_busy_timeout(*db, 60000);
    return begin_tape(*db, path, "DELETE", err);
}

int st_db_sync(const char *path, struct st_error *err) {
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    int rc = fd < 0 || fsync(fd) < 0
                 ? ST_FAIL_NATIVE(err, ST_ERR_IO, errno, "%s: %s", path, strerror(errno))
                 : ST_OK;
    if (fd >= 0)
        close(fd);
    return rc;
}

int st_db_execute(sqlite3 *db, const char *path, const char *sql, struct st_error *err) {
    return sqlite3_exec(db, sql, NULL, NULL, NULL) == SQLITE_OK ? ST_OK : st_db_fail(db, path, err);
}

int st_db_prepare(sqlite3 *db, const char *path, const char *sql, sqlite3_stmt **stmt,
                  struct st_error *err) {
    return sqlite3_prepare_v2(db, sql, -1, stmt, NULL) == SQLITE_OK ? ST_OK
                                                                    : st_db_fail(db, path, err);
}

int st_db_insert(sqlite3 *db, const char *path, sqlite3_stmt *stmt, struct st_error *err) {
    int rc = sqlite3_step(stmt) == SQLITE_DONE ? ST_OK : st_db_fail(db, path, err);
    sqlite3_reset(stmt);
    sqlite3_clear_bindings(stmt);
    return rc;
}

static void hash_row(XXH3_state_t *state, sqlite3_stmt *stmt) {
    int columns = sqlite3_column_count(stmt);
    for (int c = 0; c < columns; c++) {
        uint8_t type = (uint8_t)sqlite3_column_type(stmt, c);
        XXH3_128bits_update(state, &type, 1);
        if (type == SQLITE_INTEGER) {
            int64_t value = sqlite3_column_int64(stmt, c);
            XXH3_128bits_update(state, &value, sizeof value);
        } else if (type != SQLITE_NULL) {
            /* Text and blobs as bytes; a real (no table has one) as the text SQLite gives it. */
            const void *data = type == SQLITE_BLOB ? sqlite3_column_blob(stmt, c)
                                                   : (const void *)sqlite3_column_text(stmt, c);
            int64_t size = sqlite3_column_bytes(stmt, c);
            XXH3_128bits_update(state, &size, sizeof size);
            if (size)
                XXH3_128bits_update(state, data, (size_t)size);
        }
    }
}

static int hash_query(sqlite3 *db, const char *path, const char *sql, XXH3_state_t *state,
                      struct st_error *err) {
    sqlite3_stmt *stmt;
    ST_TRY(st_db_prepare(db, path, sql, &stmt, err));
    int rc;
    while ((rc = sqlite3_step(stmt)) == SQLITE_ROW)
        hash_row(state, stmt);
    rc = rc == SQLITE_DONE ? ST_OK : st_db_fail(db, path, err);
    sqlite3_finalize(stmt);
    return rc;
}

static int read_version(sqlite3 *db, const char *path, int *version, struct st_error *err) {
    sqlite3_stmt *stmt;
    ST_TRY(st_db_prepare(db, path, "PRAGMA user_version", &stmt, err));
    int rc = sqlite3_step(stmt) == SQLITE_ROW ? ST_OK : st_db_fail(db, path, err);
    *version = sqlite3_column_int(stmt, 0);
    sqlite3_finalize(stmt);
    return rc;
}

/* Memory that is out, or a damaged file, does not say that there is none. */
int st_db_has_table(sqlite3 *db, const char *path, const char *table, bool *has,
                    struct st_error *err) {
    int rc = sqlite3_table_column_metadata(db, "main", table, NULL, NULL, NULL, NULL, NULL, NULL);
    *has = rc == SQLITE_OK;
    return rc == SQLITE_OK || rc == SQLITE_ERROR ? ST_OK : st_db_fail(db, path, err);
}

int st_db_content_hash(sqlite3 *db, const char *path, char hash[33], struct st_error *err) {
    /* Each table in the order of its key; views and indexes count by their definitions. */
    static const struct {
        int since; /* format version */
        const char *sql;
        const char *table; /* that not every tape has; NULL: every one of that version */
    } queries[] = {
        {1, "SELECT type, name, tbl_name, sql FROM sqlite_schema ORDER BY type, name", NULL},
        {1, "SELECT * FROM pragma_user_version, pragma_application_id", NULL},
        {1, "SELECT * FROM tape ORDER BY rowid", NULL},
        {1, "SELECT * FROM kv_group ORDER BY group_id, member", NULL},
        {1, "SELECT * FROM step ORDER BY step_id", NULL},
        {1, "SELECT * FROM operation ORDER BY operation_id", NULL},
        {1, "SELECT * FROM step_block ORDER BY first_step", NULL},
        {1, "SELECT * FROM step_check ORDER BY step_id", NULL},
        {2, "SELECT * FROM step_summary ORDER BY rowid", NULL},
        {2, "SELECT * FROM recorder ORDER BY rowid", NULL},
        {2, "SELECT * FROM recorder_note ORDER BY note_id", NULL},
        {2, "SELECT * FROM step_gap ORDER BY before_step_id", NULL},
        {2, "SELECT * FROM launch_capture ORDER BY capture_id", "launch_capture"},
        {2, "SELECT * FROM launch_event ORDER BY event_id", "launch_event"},
        {2, "SELECT * FROM launch_name ORDER BY name_id", "launch_name"},
        {2, "SELECT * FROM launch_site ORDER BY site_id", "launch_site"},
        {2, "SELECT * FROM launch_step ORDER BY step_id", "launch_step"},
        {2, "SELECT * FROM launch_block ORDER BY block_id", "launch_block"},
    };
    int version;
    ST_TRY(read_version(db, path, &version, err));
    XXH3_state_t *state = XXH3_createState();
    if (!state)
        return ST_FAIL_NOMEM(err);
    XXH3_128bits_reset(state);
    int rc = ST_OK;
    for (size_t i = 0; i < sizeof queries / sizeof *queries && !rc; i++) {
        bool there = queries[i].since <= version;
        if (there && queries[i].table)
            rc = st_db_has_table(db, path, queries[i].table, &there, err);
        if (rc || !there)
            continue;
        XXH3_128bits_update(state, queries[i].sql, strlen(queries[i].sql));
        rc = hash_query(db, path, queries[i].sql, state, err);
    }
    if (!rc) {
        XXH128_canonical_t canonical;
        XXH128_canonicalFromHash(&canonical, XXH3_128bits_digest(state));
        for (int i = 0; i < 16; i++) {
            static const char digits[] = "0123456789abcdef";
            hash[2 * i] = digits[canonical.digest[i] >> 4];
            hash[2 * i + 1] = digits[canonical.digest[i] & 15];
        }
        hash[32] = 0;
    }
    XXH3_freeState(state);
    return rc;
}

void st_db_bind(sqlite3_stmt *stmt, int index, int64_t value) {
    if (value == ST_UNKNOWN)
        sqlite3_bind_null(stmt, index);
    else
        sqlite3_bind_int64(stmt, index, value);
}

int64_t st_db_column(sqlite3_stmt *stmt, int index) {
    return sqlite3_column_type(stmt, index) == SQLITE_NULL ? ST_UNKNOWN
                                                           : sqlite3_column_int64(stmt, index);
}
