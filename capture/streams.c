/* SPDX-License-Identifier: Apache-2.0 */
#include "capture/streams.h"

#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "traces/format/launches.h"

/* launches-PID.stream, or launches-PID-N.stream where that name was taken. */
static int is_stream(const char *name, int64_t pid) {
    long long number = -1;
    int end = 0;
    if (sscanf(name, "launches-%lld%n", &number, &end) != 1 || number != pid)
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
static int each_stream(const char *folder, int64_t pid, int (*use)(const char *path, void *user),
                       void *user) {
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

int st_streams_import(struct st_writer *writer, const char *folder, int64_t pid, int64_t sequence,
                      struct st_error *err) {
    struct import in = {writer, sequence, err};
    return each_stream(folder, pid, import_one, &in);
}

static int remove_one(const char *path, void *user) {
    (void)user;
    unlink(path);
    return 0;
}

void st_streams_remove(const char *folder, int64_t pid) {
    (void)each_stream(folder, pid, remove_one, NULL);
}
