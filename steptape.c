/* SPDX-License-Identifier: Apache-2.0 */
/*
 * steptape: main and the table of commands.  Each command lives in a cmd_<name>.c of the folder
 * that does its work.
 */
#include <stdio.h>
#include <string.h>

#include "steptape_version.h"
#include "traces/base/command.h"

int main(int argc, char **argv) {
    if (argc == 2 && strcmp(argv[1], "--version") == 0)
        printf("steptape %s\n", ST_VERSION);
    return argc < 2 ? 2 : 0;
}
