/* SPDX-License-Identifier: Apache-2.0 */
#include "capture/streams.h"

#include <dirent.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <link.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <unistd.h>

#include "traces/format/launches.h"

/* launches-PID.stream, or launches-PID-N.stream where that name was taken.  pid NULL: any. */
static int is_stream(const char *name, const int64_t *pid) {
    long long number = -1;
    int end = 0;
    if (sscanf(name, "launches-%lld%n", &number, &end) != 1 || (pid && number != *pid))
        return 0;
    if (name[end] == '-' && name[end + 1] >= '1' && name[end + 1] <= '9')
        end += 1 + (int)strspn(name + end + 1, "0123456789");
    return strcmp(name + end, ".stream") == 0;
}

static int by_name(const struct dirent **a, const struct dirent **b) {
    size_t x = strlen((*a)->d_name), y = strlen((*b)->d_name);
    return x != y ? (x < y ? -1 : 1) : strcmp((*a)->d_name, (*b)->d_name);
}

/* Calls use for each; stops at the first that is not 0. */
static int each_stream(const char *folder, const int64_t *pid,
                       int (*use)(const char *path, void *user), void *user) {
    struct dirent **entry = NULL;
    int count = scandir(folder, &entry, NULL, by_name), rc = 0;
    for (int i = 0; i < count; i++) {
        char *path = NULL;
        if (rc == 0 && is_stream(entry[i]->d_name, pid) &&
            asprintf(&path, "%s/%s", folder, entry[i]->d_name) >= 0)
            rc = use(path, user);
        free(path);
        free(entry[i]);
    }
    free(entry);
    return rc;
}

struct import {
    struct st_writer *writer;
    int64_t sequence;
    struct st_error *err;
};

static int import_one(const char *path, void *user) {
    struct import *in = user;
    struct st_error reason = {0};
    struct st_launches_imported got = {0};
    if (st_writer_launches(in->writer, path, &got, &reason) == 0)
        return 0;
    return st_writer_note(in->writer, in->sequence, "launches", reason.msg, in->err);
}

/* ---- the library that writes them, in our own process */

struct search {
    const char *name;
    char path[4096];
};

static int look_at_object(struct dl_phdr_info *info, size_t size, void *user) {
    struct search *search = user;
    (void)size;
    if (!info->dlpi_name || !strstr(info->dlpi_name, search->name) ||
        strlen(info->dlpi_name) >= sizeof search->path)
        return 0;
    strcpy(search->path, info->dlpi_name);
    return 1;
}

/* What it has not written yet would be missing in the tape.  The driver opened it for itself alone,
 * so that its functions are not to be found by name. */
static void flush_own(void) {
    struct search search = {.name = "libsteptape_inject"};
    if (!dl_iterate_phdr(look_at_object, &search))
        return;
    void *library = dlopen(search.path, RTLD_NOW | RTLD_NOLOAD);
    void *symbol = library ? dlsym(library, "steptape_inject_flush") : NULL;
    int (*flush)(void) = NULL;
    memcpy(&flush, &symbol, sizeof flush);
    if (flush)
        (void)flush(); /* what it could not write is counted as missing */
    if (library)
        dlclose(library);
}

int st_streams_import(struct st_writer *writer, const char *folder, int64_t pid, int64_t sequence,
                      struct st_error *err) {
    struct import in = {writer, sequence, err};
    if (pid == getpid())
        flush_own();
    return each_stream(folder, &pid, import_one, &in);
}

static int remove_one(const char *path, void *user) {
    (void)user;
    unlink(path);
    return 0;
}

void st_streams_remove(const char *folder, int64_t pid) {
    (void)each_stream(folder, &pid, remove_one, NULL);
}

/* libsteptape_inject holds a lock on what it writes. */
static int remove_dead(const char *path, void *user) {
    (void)user;
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOFOLLOW);
    if (fd < 0)
        return 0;
    if (flock(fd, LOCK_EX | LOCK_NB) == 0)
        unlink(path);
    close(fd);
    return 0;
}

void st_streams_tidy(const char *folder) {
    (void)each_stream(folder, NULL, remove_dead, NULL);
}
