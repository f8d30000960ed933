/* SPDX-License-Identifier: Apache-2.0 */
#include "traces/target.h"

#include <sys/stat.h>

#include "traces/format/db.h"

int st_target_check(const char *output, const char *input, const char *what, bool force,
                    struct st_error *err) {
    struct stat st, in;
    if (stat(output, &st) != 0)
        return ST_OK; /* nothing there, or the writer says what is wrong */
    if (S_ISDIR(st.st_mode))
        return ST_FAIL(err, ST_ERR_IO, "%.200s: is a folder, a file to write was expected", output);
    if (!S_ISREG(st.st_mode))
        return ST_FAIL(err, ST_ERR_IO, "%.200s: is no regular file; a tape cannot be written to it",
                       output);
    if (stat(input, &in) == 0 && in.st_dev == st.st_dev && in.st_ino == st.st_ino)
        return ST_FAIL(err, ST_ERR_USAGE, "%.200s: is %s itself; choose another name", output,
                       what);
    if (force || st.st_size == 0)
        return ST_OK;
    struct st_error why;
    int rc = st_db_look(output, &why);
    if (rc == ST_ERR_INPUT)
        return ST_FAIL(
            err, ST_ERR_USAGE,
            "%.200s: exists and is no tape; choose another name, or --force to replace it", output);
    return rc == ST_ERR_IO ? ST_FAIL(err, rc, "%s", why.msg) : ST_OK;
}
