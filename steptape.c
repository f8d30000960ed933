/* SPDX-License-Identifier: Apache-2.0 */
/*
 * steptape: main and the table of commands.  Each command lives in a cmd_<name>.c of the folder
 * that does its work, and parses its own options.
 *
 *     steptape [-q|-v] COMMAND [ARGUMENT...]
 *
 * Invariants
 *  1. Descriptors 0, 1 and 2 are open before anything else is: no database ever becomes stderr.
 *  2. What was written to stdout arrived, or the program says so and exits with 1, whichever way
 *     it ends: the check runs from atexit(), since argp itself calls exit() for --help.
 *  3. A reader that goes away (`steptape dump x.tape | head`) ends the program quietly by SIGPIPE,
 *     also when whoever started it had that signal ignored.
 *  4. A child that has ended can be waited for, also when whoever started us ignored SIGCHLD.
 */
#include <argp.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <sqlite3.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdio_ext.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "analysis/commands.h"
#include "analysis/report.h"
#include "capture/commands.h"
#include "capture/record.h"
#include "replay/commands.h"
#include "steptape_version.h"
#include "traces/base/command.h"
#include "traces/base/log.h"
#include "traces/commands.h"

/* Order of --help; commands of one group stand together. */
static const struct st_command *const commands[] = {
    &st_cmd_record, &st_cmd_recover, &st_cmd_import,    &st_cmd_dump,
    &st_cmd_info,   &st_cmd_verify,  &st_cmd_anonymize, &st_cmd_replay,
    &st_cmd_report, &st_cmd_query,   &st_cmd_bench,     &st_cmd_doctor,
};
enum { COMMAND_COUNT = sizeof commands / sizeof commands[0] };

/* Folders that may not include one another meet here. */
static const struct st_replay_hooks replay_hooks = {.print_report = st_report_print};
static const struct st_doctor_hooks doctor_hooks = {
    .find_part = st_record_find,
    .ring_bytes = (int64_t)64 << 20, /* what steptape/capture.h says of options that do not */
};

/* A descriptor that is closed is opened the wrong way round on /dev/null: using it stays an error,
 * and its number is taken. */
static void occupy_standard_descriptors(void) {
    static const int modes[] = {O_WRONLY, O_RDONLY, O_RDONLY};
    for (int fd = 0; fd <= 2; fd++)
        if (fcntl(fd, F_GETFD) == -1 && errno == EBADF && open("/dev/null", modes[fd]) != fd)
            _exit(1);
}

static void restore_signals(void) {
    sigset_t set;
    signal(SIGPIPE, SIG_DFL);
    signal(SIGCHLD, SIG_DFL);
    sigemptyset(&set);
    sigaddset(&set, SIGPIPE);
    sigprocmask(SIG_UNBLOCK, &set, NULL);
}

/* atexit(): a full disk is noticed by the last flush or by close(), seldom earlier. */
static void close_stdout(void) {
    bool pending = __fpending(stdout) > 0;
    bool failed = ferror(stdout) != 0;
    errno = 0;
    if (fclose(stdout) != 0)
        failed = failed || pending || errno != EBADF; /* closed from the start and never used */
    if (!failed)
        return;
    if (errno)
        fprintf(stderr, "steptape: standard output: %s\n", strerror(errno));
    else
        fputs("steptape: standard output: write failed\n", stderr);
    _exit(1);
}

static void print_version(FILE *out, struct argp_state *state) {
    (void)state;
    fprintf(out, "steptape %s\ncommit: %s\nCUDA:   %s\nSQLite: %s\n", ST_VERSION,
            ST_COMMIT[0] ? ST_COMMIT : "unknown (not built from a git checkout)",
            ST_CUDA_VERSION[0] ? ST_CUDA_VERSION : "none (built without it)", sqlite3_libversion());
}

static void print_help(FILE *out) {
    fputs("Usage: steptape [-q|-v] COMMAND [ARGUMENT...]\n"
          "Keep what a serving engine's scheduler did, step by step; replay the kernel launches\n"
          "of those steps under two policies; say what a change saves.\n",
          out);
    for (int i = 0; i < COMMAND_COUNT; i++) {
        if (i == 0 || strcmp(commands[i]->group, commands[i - 1]->group) != 0)
            fprintf(out, "\n%s:\n", commands[i]->group);
        fprintf(out, "  %-9s %s\n", commands[i]->name, commands[i]->synopsis);
    }
    fputs(
        "\nOptions:\n"
        "  -q, --quiet    errors only on stderr, no progress bar\n"
        "  -v, --verbose  more on stderr\n"
        "      --help     this text; `steptape COMMAND --help` for one command\n"
        "      --version  version, commit, CUDA and SQLite it was built with\n"
        "\nExit status: 0 done, 1 failed, 2 wrong command line, 3 a hazard was found or launches\n"
        "were not the plan's, 77 nothing could run (no GPU), 130 interrupted.\n",
        out);
}

static const struct st_command *find_command(const char *name) {
    for (int i = 0; i < COMMAND_COUNT; i++)
        if (strcmp(commands[i]->name, name) == 0)
            return commands[i];
    return NULL;
}

static int min_int(int a, int b) {
    return a < b ? a : b;
}

/* Insertions, deletions, replacements and swaps of neighbours that turn a into b. */
static int edit_distance(const char *a, const char *b) {
    enum { MAX = 32 };
    int d[MAX + 1][MAX + 1];
    int n = (int)strnlen(a, MAX), m = (int)strnlen(b, MAX);
    for (int i = 0; i <= n; i++) {
        for (int j = 0; j <= m; j++) {
            if (i == 0 || j == 0) {
                d[i][j] = i + j;
                continue;
            }
            d[i][j] = d[i - 1][j - 1] + (a[i - 1] != b[j - 1]);
            d[i][j] = min_int(d[i][j], min_int(d[i - 1][j], d[i][j - 1]) + 1);
            if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1])
                d[i][j] = min_int(d[i][j], d[i - 2][j - 2] + 1);
        }
    }
    return d[n][m];
}

static int unknown_command(const char *name) {
    const char *best = NULL;
    int best_distance = 3; /* more changes than two is another word */
    for (int i = 0; i < COMMAND_COUNT; i++) {
        int distance = edit_distance(name, commands[i]->name);
        if (distance < best_distance && distance < (int)strlen(commands[i]->name) - 1) {
            best = commands[i]->name;
            best_distance = distance;
        }
    }
    if (best)
        st_log(ST_LOG_ERROR, "there is no command '%s'; did you mean '%s'?", name, best);
    else
        st_log(ST_LOG_ERROR, "there is no command '%s'; `steptape --help` lists them", name);
    return 2;
}

static int run_command(const char *name, int argc, char **argv) {
    const struct st_command *command = find_command(name);
    if (!command)
        return unknown_command(name);
    char title[64];
    snprintf(title, sizeof title, "steptape %s", command->name);
    argv[0] = title;
    return command->run(argc, argv);
}

static int help_command(int argc, char **argv) {
    if (argc < 2) {
        print_help(stdout);
        return 0;
    }
    if (argc > 2) {
        st_log(ST_LOG_ERROR, "help: one command at a time, not '%s' as well", argv[2]);
        return 2;
    }
    char help[] = "--help";
    char *help_argv[] = {argv[0], help, NULL};
    return run_command(argv[1], 2, help_argv);
}

static bool is_option(const char *arg, const char *letter, const char *word) {
    return strcmp(arg, letter) == 0 || strcmp(arg, word) == 0;
}

int main(int argc, char **argv) {
    occupy_standard_descriptors();
    restore_signals();
    if (atexit(close_stdout) != 0)
        return 1;
    argp_err_exit_status = 2;
    argp_program_version_hook = print_version;
    st_replay_set_hooks(&replay_hooks);
    st_doctor_set_hooks(&doctor_hooks);
    st_bench_set_more(st_capture_benches);

    int at = 1;
    for (; at < argc && argv[at][0] == '-'; at++) {
        if (is_option(argv[at], "-q", "--quiet")) {
            st_log_set_level(ST_LOG_ERROR);
        } else if (is_option(argv[at], "-v", "--verbose")) {
            st_log_set_level(ST_LOG_DEBUG);
        } else if (is_option(argv[at], "-V", "--version")) {
            print_version(stdout, NULL);
            return 0;
        } else if (is_option(argv[at], "-?", "--help") || strcmp(argv[at], "-h") == 0) {
            print_help(stdout);
            return 0;
        } else {
            st_log(ST_LOG_ERROR,
                   "there is no option '%s' before the command; see `steptape --help`", argv[at]);
            return 2;
        }
    }
    if (at == argc) {
        print_help(stderr);
        return 2;
    }
    if (strcmp(argv[at], "help") == 0)
        return help_command(argc - at, argv + at);
    return run_command(argv[at], argc - at, argv + at);
}
