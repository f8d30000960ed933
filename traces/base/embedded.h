/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Data files that travel inside the program: tables that st_embed() of the top CMakeLists.txt
 * generates, ended by a row of NULLs.
 */
#ifndef ST_BASE_EMBEDDED_H
#define ST_BASE_EMBEDDED_H

#include <stddef.h>
#include <string.h>

struct st_embedded {
    const char *name; /* file name without its folder */
    const char *text;
};

/* The text of a file, or NULL. */
static inline const char *st_embedded_find(const struct st_embedded *table, const char *name) {
    while (table->name && strcmp(table->name, name) != 0)
        table++;
    return table->text;
}

#endif
