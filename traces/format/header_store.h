/* SPDX-License-Identifier: Apache-2.0 */
/* Header and history of a tape as rows, both ways. */
#ifndef ST_FORMAT_HEADER_STORE_H
#define ST_FORMAT_HEADER_STORE_H

#include <sqlite3.h>
#include <stdbool.h>

#include "traces/base/error.h"
#include "traces/format/header.h"

/* ST_ERR_INPUT when st_header_load() would refuse what st_header_store() stores. */
int st_header_check(const struct st_header *header, struct st_error *err);
/* Fills tables tape and kv_group of a new tape. */
int st_header_store(sqlite3 *db, const char *path, const struct st_header *header,
                    struct st_error *err);
/* Row of table operation: this tool, its version, argv, now. */
int st_operation_store(sqlite3 *db, const char *path, int argc, char **argv, struct st_error *err);

/* One allocation that holds a header and all it points to. */
struct st_stored_header {
    struct st_header header;
    int32_t allocator_model;
    bool is_result;
};

int st_header_load(sqlite3 *db, const char *path, struct st_stored_header **stored,
                   struct st_error *err);
void st_stored_header_destroy(struct st_stored_header *stored);

#endif
