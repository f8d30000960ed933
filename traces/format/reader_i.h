/* SPDX-License-Identifier: Apache-2.0 */
#ifndef ST_FORMAT_READER_I_H
#define ST_FORMAT_READER_I_H

#include <sqlite3.h>
#include <stdbool.h>

#include "traces/base/bytes.h"
#include "traces/format/header_store.h"
#include "traces/format/reader.h"

struct st_tape {
    char *path;
    sqlite3 *db;
    bool owned; /* db is closed with the tape */
    bool part;  /* of a recording: not sealed */
    struct st_stored_header *stored;
    int64_t step_count, first_step;
    char hash[33];
    struct st_bytes check_json;
};

#endif
