/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Errors: how every function of steptape says what went wrong.
 *
 * A fallible function returns int: 0 is success, a negative enum st_status is an error, a positive
 * value a normal event (ST_DONE: no more items).  Its last parameter is a struct st_error *, which
 * may be NULL, is left alone on success, and whose message is complete enough to print as it is.
 *
 *     if (n < 1)
 *         return ST_FAIL(err, ST_ERR_INPUT, "%s: line %d: qlen is %d, at least 1 expected", ...);
 *     ST_TRY(st_tape_open(path, &tape, err));
 *
 * Thread-safe: yes, each thread with an st_error of its own.
 */
#ifndef ST_BASE_ERROR_H
#define ST_BASE_ERROR_H

#ifdef __cplusplus
extern "C" {
#endif

/* Values are pinned; gaps are left for more of a kind. */
enum st_status {
    ST_OK = 0,
    ST_DONE = 1,              /* nothing more to read: an event, no error */
    ST_ERR_NOMEM = -1,        /* an allocation failed */
    ST_ERR_IO = -10,          /* the system refused: open, read, write, disk full */
    ST_ERR_INPUT = -20,       /* what a file holds is wrong */
    ST_ERR_CORRUPT = -21,     /* a tape is damaged */
    ST_ERR_VERSION = -22,     /* a tape of a newer format */
    ST_ERR_USAGE = -30,       /* the command line is wrong */
    ST_ERR_MISMATCH = -40,    /* a comparison or gate was not met */
    ST_ERR_UNAVAILABLE = -50, /* nothing here can do it (no GPU, no CUPTI) */
    ST_ERR_UNSUPPORTED = -51, /* this build or backend does not do it */
    ST_ERR_NATIVE = -60,      /* a library (SQLite, CUDA, CUPTI) failed; see native */
    ST_ERR_INTERRUPTED = -70  /* Ctrl-C */
};

struct st_error {
    int code;         /* enum st_status */
    int native;       /* errno, SQLite, CUDA or CUPTI code; 0: none */
    const char *file; /* where it was raised */
    int line;
    char msg[512];
};

/* Fills *err (if not NULL) and returns code. */
int st_error_set(struct st_error *err, int code, int native, const char *file, int line,
                 const char *fmt, ...)
#if defined(__GNUC__)
    __attribute__((format(printf, 6, 7)))
#endif
    ;

/* The exit status of the program for an error code: 1, 2, 3 or 77. */
int st_error_exit_status(int code);

#define ST_FAIL(err, code, ...) st_error_set((err), (code), 0, __FILE__, __LINE__, __VA_ARGS__)
#define ST_FAIL_NATIVE(err, code, native, ...)                                                     \
    st_error_set((err), (code), (native), __FILE__, __LINE__, __VA_ARGS__)
#define ST_FAIL_NOMEM(err) ST_FAIL((err), ST_ERR_NOMEM, "out of memory")

/* Returns from the calling function when expr fails.  Events (> 0) return as well. */
#define ST_TRY(expr)                                                                               \
    do {                                                                                           \
        int st_try_rc_ = (expr);                                                                   \
        if (st_try_rc_ != 0)                                                                       \
            return st_try_rc_;                                                                     \
    } while (0)

/* Jumps to out: with rc set when expr fails. */
#define ST_TRY_OUT(expr)                                                                           \
    do {                                                                                           \
        rc = (expr);                                                                               \
        if (rc != 0)                                                                               \
            goto out;                                                                              \
    } while (0)

#ifdef __cplusplus
}
#endif
#endif
