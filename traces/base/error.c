/* SPDX-License-Identifier: Apache-2.0 */
#include "traces/base/error.h"

#include <stdarg.h>
#include <stdio.h>

int st_error_set(struct st_error *err, int code, int native, const char *file, int line,
                 const char *fmt, ...) {
    if (!err)
        return code;
    err->code = code;
    err->native = native;
    err->file = file;
    err->line = line;
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(err->msg, sizeof err->msg, fmt, ap);
    va_end(ap);
    /* One line that drives no terminal, whatever a library or a file's text brings along; C1
     * controls are two bytes in UTF-8. */
    for (unsigned char *c = (unsigned char *)err->msg; *c; c++) {
        if (c[0] == 0xc2 && c[1] >= 0x80 && c[1] < 0xa0)
            c[0] = c[1] = ' ';
        else if (*c < ' ' || *c == 0x7f)
            *c = ' ';
    }
    return code;
}

int st_error_exit_status(int code) {
    switch (code) {
    case ST_OK:
        return 0;
    case ST_ERR_USAGE:
        return 2;
    case ST_ERR_MISMATCH:
        return 3;
    case ST_ERR_UNAVAILABLE:
        return 77;
    case ST_ERR_INTERRUPTED:
        return 130;
    default:
        return 1;
    }
}
