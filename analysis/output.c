/* SPDX-License-Identifier: Apache-2.0 */
#include "analysis/output.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static int fail_io(const struct st_output *output, const char *what, int error,
                   struct st_error *err) {
    return ST_FAIL_NATIVE(err, ST_ERR_IO, error, "%s: %s: %s",
                          output->path ? output->path : "standard output", what, strerror(error));
}

/* The tape that is asked, most likely: figures do not take its place. */
static bool is_database(const char *path) {
    char head[16] = "";
    FILE *file = fopen(path, "rb");
    size_t size = file ? fread(head, 1, sizeof head, file) : 0;
    if (file)
        fclose(file);
    return size == sizeof head && memcmp(head, "SQLite format 3", sizeof head) == 0;
}

/* Beside the target, under a name of our own; in a container every process has the same number, so
 * one that was killed must not stand in the way. */
static int open_temporary(struct st_output *output, struct st_error *err) {
    size_t size = strlen(output->path) + 40;
    output->temporary = malloc(size);
    if (!output->temporary)
        return ST_FAIL_NOMEM(err);
    int fd, n = 0;
    do {
        snprintf(output->temporary, size, "%s.%ld-%d.part", output->path, (long)getpid(), n);
        fd = open(output->temporary, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    } while (fd < 0 && errno == EEXIST && n++ < 1000);
    output->stream = fd < 0 ? NULL : fdopen(fd, "w");
    if (output->stream)
        return 0;
    int error = errno;
    if (fd >= 0) {
        close(fd);
        unlink(output->temporary);
    }
    free(output->temporary);
    output->temporary = NULL;
    return fail_io(output, "cannot create", error, err);
}

int st_output_open(struct st_output *output, const char *path, struct st_error *err) {
    *output = (struct st_output){0};
    if (!path || strcmp(path, "-") == 0) {
        output->stream = stdout;
        return 0;
    }
    output->path = path;
    /* A device or a pipe (/dev/null, a fifo) is written in place. */
    struct stat status;
    if (stat(path, &status) == 0 && !S_ISREG(status.st_mode)) {
        output->stream = fopen(path, "w");
        return output->stream ? 0 : fail_io(output, "cannot open", errno, err);
    }
    if (is_database(path))
        return ST_FAIL(err, ST_ERR_USAGE,
                       "%s: exists and is an SQLite database; a new name or a text file expected",
                       path);
    return open_temporary(output, err);
}

int st_output_close(struct st_output *output, bool keep, struct st_error *err) {
    if (!output->stream)
        return 0;
    errno = 0;
    bool failed = fflush(output->stream) != 0 || ferror(output->stream);
    int error = errno ? errno : EIO;
    if (output->stream != stdout && fclose(output->stream) != 0 && !failed) {
        failed = true;
        error = errno;
    }
    output->stream = NULL;
    if (output->temporary && keep && !failed && rename(output->temporary, output->path) != 0) {
        failed = true;
        error = errno;
    }
    if (output->temporary && (!keep || failed))
        unlink(output->temporary);
    free(output->temporary);
    output->temporary = NULL;
    if (keep && failed && output->path)
        return fail_io(output, "write failed", error, err);
    return 0; /* stdout: main looks at it once more, and speaks */
}
