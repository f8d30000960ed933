/* SPDX-License-Identifier: Apache-2.0 */
#include "traces/base/program.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

char *st_program_find(const char *path, const char *name) {
    if (strchr(name, '/'))
        return access(name, X_OK) == 0 ? strdup(name) : NULL;
    for (const char *at = path ? path : "/usr/bin:/bin"; at;) {
        size_t length = strcspn(at, ":");
        char *full;
        if (asprintf(&full, "%.*s/%s", (int)length, at, name) < 0)
            return NULL;
        if (length && access(full, X_OK) == 0)
            return full;
        free(full);
        at = at[length] ? at + length + 1 : NULL;
    }
    return NULL;
}

char *st_program_python_of(const char *path, const char *script) {
    char line[512] = "", *save;
    FILE *file = fopen(script, "re");
    bool read = file && fgets(line, sizeof line, file);
    if (file)
        fclose(file);
    if (!read || strncmp(line, "#!", 2) != 0)
        return NULL;
    char *program = strtok_r(line + 2, " \t\n", &save);
    if (program && strcmp(program, "/usr/bin/env") == 0)
        program = strtok_r(NULL, " \t\n", &save);
    return program && strstr(program, "python") ? st_program_find(path, program) : NULL;
}
