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
    size_t size = strlen(path) + 16;
    output->temporary = malloc(size);
    if (!output->temporary)
        return ST_FAIL_NOMEM(err);
    snprintf(output->temporary, size, "%s.%ld.part", path, (long)getpid());
    int fd = open(output->temporary, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
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
