/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Talk: everything that steptape says beside its data goes to stderr through here.
 *
 * The level, the bar that is drawn and the mark of Ctrl-C are globals, one a program; main sets the
 * level once (-q, -v).
 * Progress is drawn only when stderr is a terminal, at most ten times a second, and is wiped before
 * any other line is written.  Thread-safe: no; the main thread talks.
 */
#ifndef ST_BASE_LOG_H
#define ST_BASE_LOG_H

#include <stdbool.h>
#include <stdint.h>

enum st_log_level { ST_LOG_ERROR, ST_LOG_WARN, ST_LOG_INFO, ST_LOG_DEBUG };

void st_log_set_level(enum st_log_level level);

/* One line "steptape: MESSAGE" (warnings "steptape: warning: MESSAGE") on stderr; control
 * characters of MESSAGE as \xNN. */
void st_log(enum st_log_level level, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

/* "WHAT  37% [=====>      ] 1060/2866"; total 0: unknown.  Cheap to call for every step. */
void st_progress(const char *what, int64_t done, int64_t total);
/* Wipes the bar. */
void st_progress_end(void);

/* Set by SIGINT, SIGTERM and SIGHUP (unless nohup ignores that one) once st_interrupt_install() was
 * called; long loops look at it and return ST_ERR_INTERRUPTED, so that partial files are removed on
 * the way out. */
void st_interrupt_install(void);
bool st_interrupted(void);

#endif
