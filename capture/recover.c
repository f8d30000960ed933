/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A recording that was not closed is its unfinished tape, and behind that the ring.  Both are read
 * into a new tape: whatever the end of the process did to the old one shows here, not later.
 */
#include "capture/recover.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "capture/drain.h"
#include "capture/file_limit.h"
#include "capture/place.h"
#include "capture/streams.h"
#include "steptape/capture.h"
#include "traces/format/db.h"
#include "traces/format/reader.h"
#include "traces/interchange/parse.h"

struct recovery {
    struct st_place place;
    char *ring_path, *part_path, *recover_path;
    uint8_t *bytes; /* of the ring */
    size_t size;
    struct st_ring_file ring;
    struct st_tape *part; /* NULL: nothing was committed */
    struct st_interchange *text;
    struct st_drain drain;
    bool half;     /* what lies at recover_path is no whole tape */
    int part_fd;   /* locked while the ring's lock cannot be had */
    int64_t limit; /* steps that the new tape may have: the next one made no sense to its writer */
    char reason[300];
};

static int fail_errno(const char *path, struct st_error *err) {
    return ST_FAIL_NATIVE(err, ST_ERR_IO, errno, "%s: %s", path, strerror(errno));
}

/* ---- the ring */

static int lock_ring(struct recovery *r, struct st_error *err) {
    struct st_ring_head *head = calloc(1, sizeof *head);
    if (!head)
        return ST_FAIL_NOMEM(err);
    int rc = ST_OK;
    if (flock(r->place.ring_fd, LOCK_EX | LOCK_NB) < 0) {
        /* A child that the engine forked holds the lock on when the engine is gone. */
        if (pread(r->place.ring_fd, head, sizeof *head, 0) != sizeof *head ||
            !st_place_is_dead(head))
            rc = st_place_fail_busy(r->ring_path, head->pid, err);
        r->part_fd = rc ? -1 : open(r->part_path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
        if (r->part_fd >= 0 && flock(r->part_fd, LOCK_EX | LOCK_NB) < 0)
            rc = ST_FAIL(err, ST_ERR_IO, "%s: is being recovered already", r->part_path);
    }
    free(head);
    return rc;
}

static int read_ring(struct recovery *r, struct st_error *err) {
    struct stat st;
    r->place.ring_fd = open(r->ring_path, O_RDWR | O_CLOEXEC | O_NOFOLLOW);
    if (r->place.ring_fd < 0)
        return fail_errno(r->ring_path, err);
    ST_TRY(lock_ring(r, err));
    if (fstat(r->place.ring_fd, &st) < 0)
        return fail_errno(r->ring_path, err);
    if (!S_ISREG(st.st_mode) || st.st_size > ST_RING_MAX_BYTES + 4 * ST_RING_TEXT_LIMIT)
        return ST_FAIL(err, ST_ERR_INPUT, "%s: not the ring of a recorder", r->ring_path);
    r->size = (size_t)st.st_size;
    r->bytes = malloc(r->size + 1);
    if (!r->bytes)
        return ST_FAIL_NOMEM(err);
    for (size_t at = 0; at < r->size;) {
        ssize_t got = pread(r->place.ring_fd, r->bytes + at, r->size - at, (off_t)at);
        if (got < 0 && errno == EINTR)
            continue;
        if (got <= 0)
            return fail_errno(r->ring_path, err);
        at += (size_t)got;
    }
    return ST_OK;
}

/* Killed while it was being opened: nothing was recorded. */
static bool never_began(const struct recovery *r) {
    for (size_t i = 0; i < r->size && i < sizeof r->ring.head->magic; i++)
        if (r->bytes[i])
            return false;
    return true;
}

/* ---- the unfinished tape */

/* Takes back a transaction that the end of the process cut off; opens it when something is in it.
 */
static int open_part(struct recovery *r, struct st_error *err) {
    struct stat st;
    sqlite3 *db;
    bool begun = false;
    if (lstat(r->part_path, &st) < 0 && errno == ENOENT)
        return ST_OK;
    if (!S_ISREG(st.st_mode) || st.st_uid != geteuid())
        return ST_FAIL(err, ST_ERR_INPUT, "%s: not a file of this user's", r->part_path);
    ST_TRY(st_db_open(r->part_path, SQLITE_OPEN_READWRITE | SQLITE_OPEN_NOFOLLOW, &db, err));
    int rc = st_db_has_table(db, r->part_path, "step_block", &begun, err);
    sqlite3_close(db);
    if (rc || !begun)
        return rc;
    return st_tape_open_part(r->part_path, &r->part, err);
}

/* *header is the engine's, of whichever file has it; *own: room for that of the ring. */
static int find_header(struct recovery *r, const struct st_header **header, struct st_header *own,
                       struct st_error *err) {
    if (r->part) {
        *header = st_tape_header(r->part);
        return ST_OK;
    }
    if (!r->bytes)
        return ST_FAIL(err, ST_ERR_INPUT, "%s: there is no ring and nothing in the unfinished tape",
                       r->part_path);
    ST_TRY(st_interchange_open_memory(r->ring_path, r->ring.text, r->ring.head->text_size, NULL,
                                      &r->text, err));
    *own = st_drain_header(st_interchange_header(r->text), r->ring.head);
    *header = own;
    return ST_OK;
}

/* Not that there is no room or no memory: then all stays as it is, for another time. */
static bool is_damage(int rc) {
    return rc < 0 && rc != ST_ERR_NOMEM && rc != ST_ERR_IO;
}

/* A writer that has refused a step takes no other and makes no tape: the next one stops before it.
 */
static int stop_before(struct recovery *r, const char *what, const struct st_error *err) {
    r->limit = r->drain.next_step;
    if (r->drain.refused)
        snprintf(r->reason, sizeof r->reason, "%.250s", err->msg);
    else
        snprintf(r->reason, sizeof r->reason, "the %s is damaged: %.250s", what, err->msg);
    return ST_OK;
}

/* Of steps whose records are gone from the ring. */
static int copy_check_notes(struct recovery *r, struct st_error *err) {
    sqlite3 *db = NULL;
    sqlite3_stmt *stmt = NULL;
    int rc = st_db_open(r->part_path, SQLITE_OPEN_READONLY | SQLITE_OPEN_NOFOLLOW, &db, err);
    if (!rc)
        rc = st_db_prepare(db, r->part_path,
                           "SELECT sequence, key, value FROM recorder_note WHERE key = "
                           "'" ST_DRAIN_CHECK_NOTE "' AND sequence < ? ORDER BY note_id",
                           &stmt, err);
    int native = SQLITE_DONE;
    if (!rc)
        st_db_bind(stmt, 1, r->drain.next_sequence);
    while (!rc && (native = sqlite3_step(stmt)) == SQLITE_ROW)
        rc = st_writer_note(r->drain.writer, sqlite3_column_int64(stmt, 0),
                            (const char *)sqlite3_column_text(stmt, 1),
                            (const char *)sqlite3_column_text(stmt, 2), err);
    if (!rc && native != SQLITE_DONE)
        rc = st_db_fail(db, r->part_path, err);
    sqlite3_finalize(stmt);
    sqlite3_close(db);
    return rc;
}

static int copy_part(struct recovery *r, struct st_error *err) {
    struct st_cursor *cursor = NULL;
    const struct st_step *step;
    const char *json;
    int64_t first = st_tape_first_step(r->part);
    if (!st_tape_step_count(r->part))
        return ST_OK;
    if (first != 0)
        return ST_FAIL(err, ST_ERR_CORRUPT, "%s: begins with step %" PRId64, r->part_path, first);
    int rc = st_cursor_open(r->part, ST_READ_BLOCKS, &cursor, err);
    while (!rc && r->drain.next_step < r->limit &&
           (rc = st_cursor_next(cursor, &step, err)) == ST_OK) {
        if ((rc = st_tape_check_json(r->part, step->step_id, &json, err)))
            break;
        rc = st_drain_step(&r->drain, step, json, err);
        if (is_damage(rc)) {
            rc = stop_before(r, "unfinished tape", err);
            break;
        }
    }
    st_cursor_close(cursor);
    if (rc >= 0)
        rc = copy_check_notes(r, err);
    if (is_damage(rc) && r->drain.next_step > 0) {
        /* A machine that lost power: what comes before the damage is good. */
        snprintf(r->reason, sizeof r->reason, "the unfinished tape is damaged: %.250s", err->msg);
        return ST_OK;
    }
    return rc;
}

/* ---- both */

/* What is wrong with a record ends the recording there: the tape says so. */
static int add_records(struct recovery *r, struct st_error *err) {
    struct st_ring_view view = r->ring.view;
    const struct st_ring_record *record;
    int rc = ST_OK;
    while (!rc && r->drain.next_step < r->limit &&
           (rc = st_ring_next(&view, &record, err)) == ST_OK)
        rc = st_drain_record(&r->drain, record, err);
    return is_damage(rc) ? stop_before(r, "ring", err) : rc == ST_DONE ? ST_OK : rc;
}

/* All steps into a new tape, or those before the limit. */
static int fill(struct recovery *r, const struct st_header *header, struct st_error *err) {
    st_drain_close(&r->drain);
    unlink(r->recover_path); /* of a recovery that was killed: the lock says that it is gone */
    r->half = true;
    ST_TRY(st_drain_open(&r->drain, r->recover_path, header, err));
    if (r->part)
        ST_TRY(copy_part(r, err));
    return r->bytes && (!r->reason[0] || r->limit < INT64_MAX) ? add_records(r, err) : ST_OK;
}

static void take_failure(struct recovery *r) {
    const struct st_ring_head *head = r->ring.head;
    if (r->reason[0])
        return;
    if (atomic_load_explicit(&head->counters.off, memory_order_relaxed))
        snprintf(r->reason, sizeof r->reason, "%.255s", head->counters.reason);
    else if (atomic_load_explicit(&head->failed, memory_order_relaxed))
        snprintf(r->reason, sizeof r->reason, "the writer stopped: %.255s", head->failure);
}

/* Whoever is killed in here leaves enough for the next to see what is left to do, and does not make
 * the tape twice: first the ring says that it is made, then the old one goes, then it gets its
 * name. */
static int publish(struct recovery *r, char **tape, struct st_error *err) {
    const uint32_t one = 1;
    if (r->bytes && pwrite(r->place.ring_fd, &one, sizeof one,
                           offsetof(struct st_ring_head, finished)) != sizeof one)
        return fail_errno(r->ring_path, err);
    st_tape_close(r->part);
    r->part = NULL;
    if (r->bytes && unlink(r->part_path) < 0 && errno != ENOENT)
        return fail_errno(r->part_path, err);
    return st_place_publish(&r->place, "recover", tape, err);
}

static int make_tape(struct recovery *r, struct st_recovered *done, char **tape,
                     struct st_error *err) {
    const struct st_header *header = NULL;
    struct st_header own;
    uint64_t committed =
        r->bytes ? atomic_load_explicit(&r->ring.head->committed, memory_order_relaxed) : 0;
    if (!r->part && committed)
        return ST_FAIL(err, ST_ERR_CORRUPT,
                       "%s: is not there, and with it the first %" PRIu64 " steps: the ring alone "
                       "makes no tape",
                       r->part_path, committed);
    ST_TRY(find_header(r, &header, &own, err));
    ST_TRY(fill(r, header, err));
    if (r->limit < INT64_MAX)
        ST_TRY(fill(r, header, err));
    if (r->bytes) {
        take_failure(r);
    } else {
        snprintf(r->reason, sizeof r->reason, "the ring is not there: the last steps may be lost");
    }
    done->steps = r->drain.next_step;
    ST_TRY(st_drain_finish(&r->drain, r->bytes ? &r->ring : NULL, true,
                           r->reason[0] ? r->reason : NULL, err));
    r->half = false;
    done->dropped = r->drain.dropped;
    done->torn = r->drain.torn;
    ST_TRY(publish(r, tape, err));
    if (r->bytes)
        st_streams_remove(r->place.folder, r->ring.head->pid);
    return ST_OK;
}

/* The tape was made, and perhaps has its name already. */
static int complete(struct recovery *r, struct st_recovered *done, char **tape,
                    struct st_error *err) {
    struct st_tape *made;
    struct st_error reason;
    st_streams_remove(r->place.folder, r->ring.head->pid);
    if (st_tape_open(r->recover_path, &made, &reason))
        return ST_OK;
    done->steps = st_tape_step_count(made);
    st_tape_close(made);
    return st_place_publish(&r->place, "recover", tape, err);
}

static void fini(struct recovery *r) {
    st_drain_close(&r->drain);
    st_tape_close(r->part);
    st_interchange_close(r->text);
    if (r->part_fd >= 0)
        close(r->part_fd);
    free(r->bytes);
    free(r->ring_path);
    free(r->part_path);
    free(r->recover_path);
    st_place_fini(&r->place);
}

/* name: of the recording, without a suffix. */
static int recover_one(const char *path, const char *name, bool has_ring, st_recovered_fn *each,
                       void *user, struct st_error *err) {
    struct recovery r = {.part_fd = -1, .place.ring_fd = -1, .limit = INT64_MAX};
    struct st_recovered done = {0};
    char *tape = NULL;
    int rc = st_place_init(&r.place, path, NULL, err);
    if (!rc) {
        r.place.name = strdup(name);
        if (!r.place.name || !(r.ring_path = st_place_file(&r.place, "ring")) ||
            !(r.part_path = st_place_file(&r.place, "part")) ||
            !(r.recover_path = st_place_file(&r.place, "recover")))
            rc = ST_FAIL_NOMEM(err);
    }
    if (!rc && has_ring)
        rc = read_ring(&r, err);
    bool empty = !rc && has_ring && never_began(&r);
    if (!rc && has_ring && !empty)
        rc = st_ring_open_bytes(r.ring_path, r.bytes, r.size, &r.ring, err);
    bool finished = !rc && has_ring && !empty && access(r.part_path, F_OK) < 0 &&
                    atomic_load(&r.ring.head->finished);
    if (finished) {
        rc = complete(&r, &done, &tape, err);
    } else if (!rc && !empty) {
        rc = open_part(&r, err);
        if (!rc)
            rc = make_tape(&r, &done, &tape, err);
    }
    if (!rc) {
        st_place_clear(&r.place);
        done.tape = tape;
        done.reason = r.reason[0] ? r.reason : NULL;
        each(&done, user);
    } else if (r.half) {
        unlink(r.recover_path);
    }
    free(tape);
    fini(&r);
    return rc;
}

/* ---- all of a folder */

struct name {
    char text[NAME_MAX + 1];
    bool has_ring;
};

struct names {
    struct name *name;
    int count, capacity;
};

static int add_name(struct names *names, const char *file, const char *suffix, bool ring,
                    struct st_error *err) {
    size_t length = strlen(file), tail = strlen(suffix);
    if (length <= tail || strcmp(file + length - tail, suffix) != 0)
        return ST_OK;
    for (int i = 0; i < names->count; i++)
        if (strlen(names->name[i].text) == length - tail &&
            strncmp(names->name[i].text, file, length - tail) == 0) {
            names->name[i].has_ring |= ring;
            return ST_OK;
        }
    if (names->count == names->capacity) {
        int capacity = names->capacity * 2 + 16;
        void *name = realloc(names->name, (size_t)capacity * sizeof *names->name);
        if (!name)
            return ST_FAIL_NOMEM(err);
        names->name = name;
        names->capacity = capacity;
    }
    struct name *added = &names->name[names->count++];
    snprintf(added->text, sizeof added->text, "%.*s", (int)(length - tail), file);
    added->has_ring = ring;
    return ST_OK;
}

static int list_names(const char *folder, struct names *names, struct st_error *err) {
    DIR *dir = opendir(folder);
    if (!dir)
        return errno == ENOENT ? ST_DONE : fail_errno(folder, err);
    struct stat st;
    struct dirent *entry;
    int rc = ST_OK;
    if (fstat(dirfd(dir), &st) == 0 && st.st_uid != geteuid())
        rc = ST_FAIL(err, ST_ERR_IO, "%s: belongs to another user", folder);
    while (!rc && (entry = readdir(dir))) {
        rc = add_name(names, entry->d_name, ".ring", true, err);
        if (!rc)
            rc = add_name(names, entry->d_name, ".part", false, err);
    }
    closedir(dir);
    return rc ? rc : names->count ? ST_OK : ST_DONE;
}

int st_recover(const char *path, st_recovered_fn *each, void *user, struct st_error *err) {
    struct st_place place;
    struct names names = {0};
    int rc = st_place_init(&place, path, NULL, err);
    if (!rc)
        rc = list_names(place.folder, &names, err);
    for (int i = 0; !rc && i < names.count; i++)
        rc = recover_one(path, names.name[i].text, names.name[i].has_ring, each, user, err);
    if (rc >= 0 && place.folder) {
        st_streams_tidy(place.folder);
        rmdir(place.folder); /* an empty one */
    }
    free(names.name);
    st_place_fini(&place);
    return rc;
}

/* ---- the library's call */

struct line {
    char *text;
    size_t size, used;
};

static void add_line(const struct st_recovered *r, void *user) {
    struct line *line = user;
    size_t left = line->size - line->used;
    if (!line->text || !line->size || !r->tape)
        return;
    int n =
        snprintf(line->text + line->used, left, "%s%s: %" PRId64 " steps, %" PRId64 " dropped%s%s",
                 line->used ? "; " : "", r->tape, r->steps, r->dropped, r->reason ? "; " : "",
                 r->reason ? r->reason : "");
    line->used += n < 0 ? 0 : (size_t)n < left ? (size_t)n : left - 1;
}

STEPTAPE_API int steptape_recover(const char *path, char *message, size_t message_size) {
    struct st_error err = {0};
    struct line line = {message, message_size, 0};
    if (message && message_size)
        message[0] = 0;
    if (!path)
        return STEPTAPE_RECORDER_ERR_ARGUMENT;
    sigset_t before;
    st_block_file_limit(&before);
    int rc = st_recover(path, add_line, &line, &err);
    st_unblock_file_limit(&before);
    if (rc == ST_DONE)
        rc = ST_FAIL(&err, ST_ERR_INPUT, "%s.recording: there is no recording to recover", path);
    if (rc < 0 && message && message_size)
        snprintf(message, message_size, "%s", err.msg);
    switch (rc) {
    case ST_OK:
        return STEPTAPE_RECORDER_OK;
    case ST_ERR_NOMEM:
        return STEPTAPE_RECORDER_ERR_NOMEM;
    case ST_ERR_USAGE:
        return STEPTAPE_RECORDER_ERR_ARGUMENT;
    case ST_ERR_IO:
        return STEPTAPE_RECORDER_ERR_IO;
    default:
        return STEPTAPE_RECORDER_ERR_DAMAGED;
    }
}
