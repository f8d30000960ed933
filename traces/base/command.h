/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A command of the program: one row of the table in steptape.c, one file cmd_<name>.c.
 *
 * run() gets argv with argv[0] = "steptape NAME", parses it with argp, and returns the exit status
 * (contracts: 0, 1, 2, 3, 4, 77).  It prints its own error with st_command_fail().
 */
#ifndef ST_BASE_COMMAND_H
#define ST_BASE_COMMAND_H

#include <argp.h>
#include <stdbool.h>
#include <stdint.h>

#include "traces/base/error.h"

struct st_command {
    const char *name;
    const char *group;    /* heading under which `steptape --help` lists it */
    const char *synopsis; /* one line */
    int (*run)(int argc, char **argv);
};

/* A benchmark that another folder brings to `steptape bench`; lists end with a NULL name. */
struct st_bench_command {
    const char *name, *synopsis;
    int (*run)(int argc, char **argv);
};

/* Prints "steptape: MESSAGE" on stderr (one line) and returns the exit status of the error. */
int st_command_fail(const struct st_error *err);

/* "A..B", both included, or "A"; an end that is left out gives -1.  False: it is no such text. */
bool st_command_parse_range(const char *text, int64_t *first, int64_t *last);

/* The keys that an argp parser of a command on one tape leaves over: *tape becomes the argument,
 * one and no more.  usage: how the command is called, for who gave none. */
error_t st_command_parse_tape(int key, char *arg, struct argp_state *state, const char **tape,
                              const char *usage);

#endif
