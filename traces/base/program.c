/* SPDX-License-Identifier: Apache-2.0 */
#include "traces/base/program.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* A folder passes for one that can be executed. */
static bool is_program(const char *file) {
    struct stat st;
    return access(file, X_OK) == 0 && stat(file, &st) == 0 && S_ISREG(st.st_mode);
}

char *st_program_find(const char *path, const char *name) {
    if (strchr(name, '/'))
        return is_program(name) ? strdup(name) : NULL;
    for (const char *at = path ? path : "/usr/bin:/bin"; at;) {
        size_t length = strcspn(at, ":");
        char *full;
        if (asprintf(&full, "%.*s/%s", (int)length, at, name) < 0)
            return NULL;
        if (length && is_program(full))
            return full;
        free(full);
        at = at[length] ? at + length + 1 : NULL;
    }
    return NULL;
}

/* What pip and uv write where the path is too long for a first line, or has a space in it:
 *     #!/bin/sh
 *     '''exec' "/a path/bin/python" "$0" "$@"
 */
static char *second_line_program(char *line) {
    static const char begin[] = "'''exec' ";
    if (strncmp(line, begin, sizeof begin - 1) != 0)
        return NULL;
    char *program = line + sizeof begin - 1;
    char end = *program == '"' ? '"' : ' ';
    program += end == '"';
    program[strcspn(program, (char[]){end, '\n', 0})] = 0;
    return program;
}

char *st_program_python_of(const char *path, const char *script) {
    char line[512] = "", second[4200] = "", *save;
    FILE *file = fopen(script, "re");
    bool read = file && fgets(line, sizeof line, file);
    bool more = read && fgets(second, sizeof second, file);
    if (file)
        fclose(file);
    if (!read || strncmp(line, "#!", 2) != 0)
        return NULL;
    char *program = strtok_r(line + 2, " \t\n", &save);
    if (program && strcmp(program, "/usr/bin/env") == 0)
        program = strtok_r(NULL, " \t\n", &save);
    else if (program && more && strcmp(program, "/bin/sh") == 0)
        program = second_line_program(second);
    return program && strstr(program, "python") ? st_program_find(path, program) : NULL;
}
