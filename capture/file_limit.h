/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A file that may not grow (ulimit -f) is an error of ours, not the end of the engine: SIGXFSZ is
 * held back while files are written on a thread of the engine's.
 */
#ifndef ST_CAPTURE_FILE_LIMIT_H
#define ST_CAPTURE_FILE_LIMIT_H

#include <pthread.h>
#include <signal.h>
#include <time.h>

static inline void st_block_file_limit(sigset_t *before) {
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGXFSZ);
    pthread_sigmask(SIG_BLOCK, &set, before);
}

static inline void st_unblock_file_limit(const sigset_t *before) {
    const struct timespec now = {0};
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGXFSZ);
    while (!sigismember(before, SIGXFSZ) && sigtimedwait(&set, NULL, &now) > 0)
        continue;
    pthread_sigmask(SIG_SETMASK, before, NULL);
}

#endif
