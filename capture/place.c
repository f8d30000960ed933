/* SPDX-License-Identifier: Apache-2.0 */
#include "capture/place.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "traces/base/descriptor.h"

#define NAMES 10000
/* The longest thing behind a base: a number and a suffix. */
#define TAIL_BYTES (sizeof ".10000.recover-journal" - 1)

static int fail_errno(const char *path, const char *what, struct st_error *err) {
    int native = errno;
    return ST_FAIL_NATIVE(err, ST_ERR_IO, native, "%s: %s: %s", path, what, strerror(native));
}

static bool good_part(const char *part) {
    size_t n = strspn(part, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-");
    return n > 0 && part[n] == 0 && n <= 64;
}

int st_place_init(struct st_place *place, const char *path, const char *part,
                  struct st_error *err) {
    *place = (struct st_place){.ring_fd = -1};
    const char *slash = strrchr(path, '/'), *file = slash ? slash + 1 : path;
    size_t length = strlen(file);
    if (length < 6 || strcmp(file + length - 5, ".tape") != 0)
        return ST_FAIL(err, ST_ERR_USAGE, "%s: the name of a tape that ends in .tape was expected",
                       path);
    if (part && !good_part(part))
        return ST_FAIL(err, ST_ERR_USAGE,
                       "part '%.64s': letters, digits, '_' and '-' were expected", part);
    size_t tail = TAIL_BYTES + (part ? strlen(part) + 1 : 0);
    if (length - 5 + tail > NAME_MAX)
        return ST_FAIL(err, ST_ERR_USAGE, "%.40s...: a name of %zu bytes is too long, at most %zu",
                       file, length, NAME_MAX + 5 - tail);
    int failed = asprintf(&place->folder, "%s.recording", path) < 0;
    if (failed)
        place->folder = NULL;
    place->parent = slash ? strndup(path, slash == path ? 1 : (size_t)(slash - path)) : strdup(".");
    if (asprintf(&place->base, "%.*s%s%s", (int)length - 5, file, part ? "." : "",
                 part ? part : "") < 0)
        place->base = NULL;
    if (failed || !place->parent || !place->base)
        return ST_FAIL_NOMEM(err);
    return ST_OK;
}

void st_place_fini(struct st_place *place) {
    if (place->ring_fd >= 0)
        close(place->ring_fd);
    free(place->parent);
    free(place->folder);
    free(place->base);
    free(place->name);
    *place = (struct st_place){.ring_fd = -1};
}

char *st_place_file(const struct st_place *place, const char *suffix) {
    char *file;
    return asprintf(&file, "%s/%s.%s", place->folder, place->name, suffix) < 0 ? NULL : file;
}

static char *numbered(const struct st_place *place, int n) {
    char *name;
    int rc = n == 1 ? asprintf(&name, "%s", place->base) : asprintf(&name, "%s.%d", place->base, n);
    return rc < 0 ? NULL : name;
}

static char *tape_path(const struct st_place *place, const char *name) {
    char *path;
    const char *slash = strcmp(place->parent, "/") == 0 ? "" : "/";
    bool here = strcmp(place->parent, ".") == 0;
    int rc = asprintf(&path, "%s%s%s.tape", here ? "" : place->parent, here ? "" : slash, name);
    return rc < 0 ? NULL : path;
}

static bool exists(const char *path) {
    struct stat st;
    return lstat(path, &st) == 0 || errno != ENOENT;
}

/* ---- who has it */

static int64_t start_of(int64_t pid) {
    char path[64], text[1024];
    snprintf(path, sizeof path, "/proc/%lld/stat", (long long)pid);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t got = fd < 0 ? -1 : read(fd, text, sizeof text - 1);
    if (fd >= 0)
        close(fd);
    if (got <= 0)
        return 0;
    text[got] = 0;
    const char *at = strrchr(text, ')'); /* the program's name may hold anything */
    for (int field = 2; at && field < 22; field++)
        at = strchr(at + 1, ' ');
    return at ? strtoll(at + 1, NULL, 10) : 0;
}

static uint64_t pid_space(void) {
    struct stat st;
    return stat("/proc/self/ns/pid", &st) == 0 ? (uint64_t)st.st_ino : 0;
}

static void read_boot_id(char *id, size_t size) {
    memset(id, 0, size);
    int fd = open("/proc/sys/kernel/random/boot_id", O_RDONLY | O_CLOEXEC);
    ssize_t got = fd < 0 ? -1 : read(fd, id, size - 1);
    if (fd >= 0)
        close(fd);
    id[got > 0 ? strcspn(id, "\n") : 0] = 0;
}

void st_place_sign(struct st_ring_head *head) {
    head->pid = getpid();
    head->pid_started = start_of(head->pid);
    head->pid_space = pid_space();
    read_boot_id(head->boot_id, sizeof head->boot_id);
}

bool st_place_is_dead(const struct st_ring_head *head) {
    char boot_id[sizeof head->boot_id];
    read_boot_id(boot_id, sizeof boot_id);
    if (head->boot_id[0] && boot_id[0] && strncmp(boot_id, head->boot_id, sizeof boot_id) != 0)
        return true;
    if (!head->pid_space || head->pid_space != pid_space() || head->pid < 1 ||
        head->pid > INT32_MAX)
        return false;
    if (kill((pid_t)head->pid, 0) < 0 && errno == ESRCH)
        return true;
    int64_t started = start_of(head->pid);
    return started && head->pid_started && started != head->pid_started;
}

/* The ring of a name that is taken: does a live process have it?  A lock alone does not say so: a
 * child that the engine forked keeps it when the engine is gone. */
static bool is_alive(int fd, int64_t *pid) {
    struct st_ring_head *head = malloc(sizeof *head);
    bool alive = flock(fd, LOCK_EX | LOCK_NB) < 0;
    *pid = 0;
    if (alive && head && pread(fd, head, sizeof *head, 0) == sizeof *head) {
        *pid = head->pid;
        alive = !st_place_is_dead(head);
    }
    free(head);
    return alive;
}

int st_place_fail_busy(const char *path, int64_t pid, struct st_error *err) {
    if (pid <= 0) /* it has the lock and did not sign yet */
        return ST_FAIL(err, ST_ERR_IO, "%s: another process records it already", path);
    return ST_FAIL(err, ST_ERR_IO, "%s: process %" PRId64 " records it already", path, pid);
}

/* ---- taking a name */

/* 0: the ring is made and locked; ST_DONE: the name is taken. */
static int take_name(struct st_place *place, struct st_error *err) {
    char *tape = tape_path(place, place->name), *ring = st_place_file(place, "ring");
    char *part = st_place_file(place, "part");
    int rc = tape && ring && part ? ST_OK : ST_FAIL_NOMEM(err);
    bool taken = !rc && (exists(tape) || exists(part));
    int fd = -1;
    if (!rc)
        fd = st_descriptor_above_stdio(
            open(ring, O_RDWR | O_CLOEXEC | O_NOFOLLOW | (taken ? 0 : O_CREAT | O_EXCL), 0600));
    if (!rc && fd < 0 && !taken && errno == EEXIST) {
        taken = true;
        fd = open(ring, O_RDWR | O_CLOEXEC | O_NOFOLLOW);
    }
    if (!rc && taken) {
        int64_t pid;
        rc = ST_DONE;
        if (fd >= 0 && is_alive(fd, &pid)) {
            (void)st_place_fail_busy(tape, pid, err);
            rc = ST_PLACE_BUSY;
        }
    } else if (!rc && fd < 0) {
        rc = fail_errno(ring, "cannot be created", err);
    } else if (!rc && flock(fd, LOCK_EX | LOCK_NB) < 0) {
        rc = fail_errno(ring, "cannot be locked", err);
        unlink(ring);
    }
    if (rc && fd >= 0)
        close(fd);
    if (!rc)
        place->ring_fd = fd;
    free(tape);
    free(ring);
    free(part);
    return rc;
}

/* The folder, locked so that two do not choose a name at one time. */
static int open_folder(const struct st_place *place, int *folder, struct st_error *err) {
    for (int n = 0; n < 100; n++) {
        if (mkdir(place->folder, 0700) < 0 && errno != EEXIST)
            return fail_errno(place->folder, "cannot be made", err);
        int fd = open(place->folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW);
        if (fd < 0 && errno == ENOENT)
            continue;
        if (fd < 0)
            return fail_errno(place->folder, "cannot be opened", err);
        struct stat mine, there;
        while (flock(fd, LOCK_EX) < 0 && errno == EINTR)
            continue;
        if (fstat(fd, &mine) == 0 && mine.st_uid != geteuid()) {
            close(fd);
            return ST_FAIL(err, ST_ERR_IO, "%s: belongs to another user", place->folder);
        }
        if (stat(place->folder, &there) == 0 && there.st_ino == mine.st_ino) {
            *folder = fd;
            return ST_OK;
        }
        close(fd); /* removed by who finished the last recording in it */
    }
    return ST_FAIL(err, ST_ERR_IO, "%s: is removed again and again", place->folder);
}

int st_place_take(struct st_place *place, struct st_error *err) {
    int folder;
    ST_TRY(open_folder(place, &folder, err));
    int rc = ST_DONE;
    for (int n = 1; rc == ST_DONE && n <= NAMES; n++) {
        free(place->name);
        place->name = numbered(place, n);
        rc = place->name ? take_name(place, err) : ST_FAIL_NOMEM(err);
    }
    if (rc == ST_DONE)
        rc = ST_FAIL(err, ST_ERR_IO, "%s: %d recordings of this name are there already",
                     place->folder, NAMES);
    if (rc)
        rmdir(place->folder); /* only when it is empty */
    close(folder);
    return rc;
}

void st_place_clear(struct st_place *place) {
    static const char *const suffixes[] = {"part", "part-journal", "recover", "recover-journal",
                                           "ring"};
    for (size_t i = 0; i < sizeof suffixes / sizeof suffixes[0]; i++) {
        char *file = st_place_file(place, suffixes[i]);
        if (file)
            unlink(file);
        free(file);
    }
    rmdir(place->folder);
}

/* rename() that never replaces; ST_DONE: the name is taken. */
static int rename_new(const char *from, const char *to, struct st_error *err) {
    if (renameat2(AT_FDCWD, from, AT_FDCWD, to, RENAME_NOREPLACE) == 0)
        return ST_OK;
    if (errno == EEXIST)
        return ST_DONE;
    if (errno != EINVAL && errno != ENOSYS)
        return fail_errno(to, "cannot be made", err);
    if (link(from, to) == 0) { /* a file system that does not know it */
        unlink(from);
        return ST_OK;
    }
    return errno == EEXIST ? ST_DONE : fail_errno(to, "cannot be made", err);
}

int st_place_publish(const struct st_place *place, const char *suffix, char **path,
                     struct st_error *err) {
    char *from = st_place_file(place, suffix);
    int rc = from ? ST_DONE : ST_FAIL_NOMEM(err);
    *path = NULL;
    /* Its own name first: it was free when the recording began. */
    for (int n = 0; rc == ST_DONE && n <= NAMES; n++) {
        char *name = n == 0 ? strdup(place->name) : numbered(place, n);
        free(*path);
        *path = name ? tape_path(place, name) : NULL;
        free(name);
        rc = *path ? rename_new(from, *path, err) : ST_FAIL_NOMEM(err);
    }
    if (rc == ST_DONE)
        rc = ST_FAIL(err, ST_ERR_IO, "%s: %d tapes of this name are there already", *path, NAMES);
    if (rc) {
        free(*path);
        *path = NULL;
    }
    free(from);
    return rc;
}
