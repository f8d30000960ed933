/* SPDX-License-Identifier: Apache-2.0 */
#include "traces/base/log.h"

#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static enum st_log_level log_level = ST_LOG_INFO;
static bool progress_drawn;
static int64_t progress_last_ns;
static volatile sig_atomic_t interrupted;

void st_log_set_level(enum st_log_level level) {
    log_level = level;
}

/* Nobody may be reading stderr any more: that is no reason to die with half a file on the disk.
 * (stdout is another matter: see steptape.c.) */
static void begin_talk(sigset_t *before) {
    sigset_t pipe;
    sigemptyset(&pipe);
    sigaddset(&pipe, SIGPIPE);
    pthread_sigmask(SIG_BLOCK, &pipe, before);
}

static void end_talk(const sigset_t *before) {
    sigset_t pipe;
    const struct timespec now = {0};
    sigemptyset(&pipe);
    sigaddset(&pipe, SIGPIPE);
    if (!sigismember(before, SIGPIPE))
        while (sigtimedwait(&pipe, NULL, &now) > 0)
            ;
    pthread_sigmask(SIG_SETMASK, before, NULL);
}

/* Names come from tapes and model files: no terminal gets their control characters.  C1 controls
 * are two bytes in UTF-8. */
static void put_safe(FILE *out, const char *text) {
    for (const unsigned char *at = (const unsigned char *)text; *at; at++) {
        bool is_c1 = at[0] == 0xc2 && at[1] >= 0x80 && at[1] < 0xa0;
        if (*at >= 0x20 && *at != 0x7f && !is_c1)
            putc(*at, out);
        else
            fprintf(out, "\\x%02x", *at);
        if (is_c1)
            fprintf(out, "\\x%02x", *++at);
    }
}

void st_log(enum st_log_level level, const char *fmt, ...) {
    if (level > log_level)
        return;
    st_progress_end();
    sigset_t before;
    begin_talk(&before);
    fputs(level == ST_LOG_WARN ? "steptape: warning: " : "steptape: ", stderr);
    va_list ap;
    va_start(ap, fmt);
    char *message = NULL;
    if (vasprintf(&message, fmt, ap) >= 0)
        put_safe(stderr, message);
    free(message);
    va_end(ap);
    fputc('\n', stderr);
    end_talk(&before);
}

void st_progress(const char *what, int64_t done, int64_t total) {
    if (log_level < ST_LOG_INFO)
        return;
    struct timespec ts;
    clock_gettime(CLOCK_MONOTONIC, &ts);
    int64_t now_ns = (int64_t)ts.tv_sec * 1000000000 + ts.tv_nsec;
    if (progress_last_ns && now_ns - progress_last_ns < 100000000)
        return;
    bool first = progress_last_ns == 0;
    progress_last_ns = now_ns;
    if (first || !isatty(STDERR_FILENO))
        return;
    char bar[31];
    if (total > 0 && done > total) /* the file grew since it was opened */
        total = done;
    int filled = total > 0 ? (int)(30 * done / total) : 0;
    memset(bar, ' ', sizeof bar - 1);
    memset(bar, '=', (size_t)filled);
    bar[30] = 0;
    if (total > 0)
        fprintf(stderr, "\r%s %3d%% [%s] %lld/%lld\033[K", what, (int)(100 * done / total), bar,
                (long long)done, (long long)total);
    else
        fprintf(stderr, "\r%s %lld\033[K", what, (long long)done);
    progress_drawn = true;
}

void st_progress_end(void) {
    progress_last_ns = 0;
    if (!progress_drawn)
        return;
    fputs("\r\033[K", stderr);
    progress_drawn = false;
}

static void on_signal(int sig) {
    (void)sig;
    interrupted = 1;
}

void st_interrupt_install(void) {
    struct sigaction sa;
    memset(&sa, 0, sizeof sa);
    sa.sa_handler = on_signal;
    sa.sa_flags = (int)SA_RESETHAND; /* a second Ctrl-C ends the program at once */
    sigaction(SIGINT, &sa, NULL);
    sigaction(SIGTERM, &sa, NULL);
    /* The terminal went away; nohup asks to go on nevertheless. */
    struct sigaction old;
    if (sigaction(SIGHUP, NULL, &old) == 0 && old.sa_handler != SIG_IGN)
        sigaction(SIGHUP, &sa, NULL);
    /* A file above the limit (ulimit -f) is an error of write(), like a full disk. */
    signal(SIGXFSZ, SIG_IGN);
}

bool st_interrupted(void) {
    return interrupted != 0;
}
