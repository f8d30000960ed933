/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Asking in a child process: what it does to itself, or how long it hangs, harms nobody.
 */
#ifndef ST_ANALYSIS_PROBE_H
#define ST_ANALYSIS_PROBE_H

#include <stddef.h>

enum st_probe_end {
    ST_PROBE_EXITED,   /* status: the exit status */
    ST_PROBE_SIGNALED, /* status: the signal */
    ST_PROBE_TIMEOUT,  /* it was killed, and what it started with it */
    ST_PROBE_FAILED    /* there was no child; status: errno */
};

struct st_probe {
    enum st_probe_end end;
    int status;
    char text[8192]; /* what it wrote to stdout and stderr, cut to size, 0 at the end */
};

/* Runs act(user) in a child, with /dev/null as stdin; the child ends when act returns, with the
 * exit status it returns.  The child is forked from this program: act must not need its threads. */
void st_probe_run(int (*act)(void *user), void *user, int timeout_ms, struct st_probe *probe);

#endif
