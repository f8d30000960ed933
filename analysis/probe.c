/* SPDX-License-Identifier: Apache-2.0 */
#include "analysis/probe.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { WAIT_MS = 10 };

static int64_t now_ms(void) {
    struct timespec ts;
    clock_gettime(CLOCK_MONOTONIC, &ts);
    return (int64_t)ts.tv_sec * 1000 + ts.tv_nsec / 1000000;
}

static void become(int (*act)(void *user), void *user, int out) {
    setpgid(0, 0); /* so that what it starts can be killed with it */
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    int null = open("/dev/null", O_RDONLY);
    if (null < 0 || dup2(null, 0) < 0 || dup2(out, 1) < 0 || dup2(out, 2) < 0)
        _exit(126);
    _exit(act(user));
}

/* False: the deadline came first. */
static bool read_all(int fd, int64_t deadline, struct st_probe *probe) {
    size_t size = 0;
    for (;;) {
        int64_t left = deadline - now_ms();
        struct pollfd ready = {.fd = fd, .events = POLLIN};
        if (left <= 0)
            return false;
        int n = poll(&ready, 1, (int)left);
        if (n < 0 && errno != EINTR)
            return true;
        if (n <= 0)
            continue;
        char rest[512];
        size_t room = sizeof probe->text - 1 - size;
        ssize_t got = room ? read(fd, probe->text + size, room) : read(fd, rest, sizeof rest);
        if (got == 0 || (got < 0 && errno != EINTR))
            return true;
        if (got > 0 && room)
            size += (size_t)got;
    }
}

void st_probe_run(int (*act)(void *user), void *user, int timeout_ms, struct st_probe *probe) {
    int pipes[2], status = 0;
    memset(probe, 0, sizeof *probe);
    probe->end = ST_PROBE_FAILED;
    if (pipe2(pipes, O_CLOEXEC) < 0) {
        probe->status = errno;
        return;
    }
    fflush(NULL);
    pid_t pid = fork();
    probe->status = errno;
    if (pid == 0)
        become(act, user, pipes[1]);
    close(pipes[1]);
    if (pid > 0) {
        int64_t deadline = now_ms() + timeout_ms;
        setpgid(pid, pid); /* the child does the same: whoever is first */
        bool in_time = read_all(pipes[0], deadline, probe);
        /* It may have closed its output and go on.  It is not reaped yet: its number is its own. */
        siginfo_t gone = {0};
        while (in_time && waitid(P_PID, (id_t)pid, &gone, WEXITED | WNOHANG | WNOWAIT) == 0 &&
               gone.si_pid == 0) {
            in_time = now_ms() < deadline;
            poll(NULL, 0, WAIT_MS);
        }
        kill(-pid, SIGKILL);
        while (waitpid(pid, &status, 0) < 0 && errno == EINTR)
            continue;
        probe->end = !in_time              ? ST_PROBE_TIMEOUT
                     : WIFSIGNALED(status) ? ST_PROBE_SIGNALED
                                           : ST_PROBE_EXITED;
        probe->status = WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status);
    }
    close(pipes[0]);
}
