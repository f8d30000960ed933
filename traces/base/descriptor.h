/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Descriptors of files that stay open inside a program that is not ours.
 *
 * Where a program was started with stdin, stdout or stderr closed, the next open() gets that
 * number, and whatever the program then prints goes into the file.
 */
#ifndef ST_BASE_DESCRIPTOR_H
#define ST_BASE_DESCRIPTOR_H

#include <errno.h>
#include <fcntl.h>
#include <unistd.h>

/* The descriptor that open() gave, or a copy of it above the three of stdio, close-on-exec, in its
 * place; -1 and errno as open() left it, or as the copy failed. */
static inline int st_descriptor_above_stdio(int fd) {
    if (fd < 0 || fd > STDERR_FILENO)
        return fd;
    int copy = fcntl(fd, F_DUPFD_CLOEXEC, STDERR_FILENO + 1), native = errno;
    close(fd);
    errno = native;
    return copy;
}

#endif
