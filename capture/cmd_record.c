/* SPDX-License-Identifier: Apache-2.0 */
/*
 * steptape record: runs a command with the recorder set up, and makes the tape when it has ended.
 */
#include <argp.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "capture/commands.h"
#include "capture/record.h"
#include "capture/recover.h"
#include "traces/base/log.h"
#include "traces/format/launch_stream.h"

enum { OPT_LAUNCHES = 0x100, OPT_BUDGET, OPT_ALL_RANKS, OPT_RING };

static const char doc[] =
    "Run an engine and record what its scheduler does, step by step, into a tape.\n"
    "\n"
    "COMMAND is anything that starts vLLM or SGLang, a server or a script, or an engine of yours "
    "that records into the path in STEPTAPE_RECORD. It is run unchanged, with the recorder's "
    "variables in its environment; the engine's plug-in finds them. When it has ended, by whatever "
    "way, the tape is there."
    "\v"
    "Examples:\n"
    "  steptape record -o x.tape -- vllm serve Qwen/Qwen3-0.6B\n"
    "  steptape record -o x.tape --launches=node -- python3 offline.py\n"
    "  steptape record -o x.tape --all-ranks -- vllm serve model -tp 4\n"
    "\n"
    "Signals go on to the command, and its exit status is this one's. The files lie in "
    "x.tape.recording meanwhile; a kill -9 of the engine costs at most the step being copied. A "
    "name that is taken is not written over: the next tape is x.2.tape. With --all-ranks, and with "
    "data or pipeline parallelism, each rank writes a tape of its own: x.rank1.tape, x.dp1.tape.\n"
    "What goes into a tape: request numbers, lengths, block ids, times. No prompt, no token, no "
    "weight, no request name.\n"
    "\n"
    "Exit status: that of COMMAND, 128 + N when signal N ended it; 1 when nothing was recorded, or "
    "no tape could be made; 2 wrong command line; 127 COMMAND was not found.";

static const struct argp_option option_list[] = {
    {"output", 'o', "X.tape", 0, "The tape to write (required)", 0},
    {"launches", OPT_LAUNCHES, "off|count|graph|node|full", 0,
     "Kernel launches as well: how many (the default where a GPU is); each, with a graph as one; "
     "each node of a graph; copies and API calls too. From graph on CUPTI is attached, which "
     "slows the launch of every graph down",
     0},
    {"overhead-budget", OPT_BUDGET, "P%|none", 0,
     "Step the level of --launches down when it costs more than P percent of the time "
     "(default 1%). To measure that, some windows of steps run without capture; none: every "
     "launch of every step, whatever it costs",
     0},
    {"all-ranks", OPT_ALL_RANKS, NULL, 0,
     "Every tensor-parallel rank, not the first alone: they hold the same steps", 0},
    {"ring", OPT_RING, "SIZE", 0,
     "Room for steps that wait to be written, as in 64M (default) or 1G, a rank", 0},
    {0},
};

static bool parse_size(const char *text, int64_t *bytes) {
    char *end;
    errno = 0;
    long long n = strtoll(text, &end, 10);
    int shift = *end == 'K' || *end == 'k'   ? 10
                : *end == 'M' || *end == 'm' ? 20
                : *end == 'G' || *end == 'g' ? 30
                                             : 0;
    end += shift != 0;
    *bytes = n > 0 && n <= 1 << 30 ? n << shift : 0;
    return !errno && end != text && *end == 0 && *bytes >= 1 << 20 && *bytes <= 1 << 30;
}

/* "1%", "0.5%"; "none" is no limit.  A bare number is refused: the library that reads it would take
 * it for a share. */
static bool parse_budget(const char *text, const char **budget) {
    char *end;
    *budget = strcmp(text, "none") == 0 ? NULL : text;
    if (!*budget)
        return true;
    double value = strtod(text, &end);
    return end != text && strcmp(end, "%") == 0 && value > 0 && value <= 100 && text[0] >= '0' &&
           text[0] <= '9';
}

static error_t parse_option(int key, char *arg, struct argp_state *state) {
    struct st_record_options *o = state->input;
    switch (key) {
    case 'o':
        o->output = arg;
        return 0;
    case OPT_LAUNCHES:
        o->launches = arg;
        if (st_launch_level_parse(arg) < 0)
            argp_error(state, "--launches=%s: off, count, graph, node or full was expected", arg);
        return 0;
    case OPT_BUDGET:
        if (!parse_budget(arg, &o->budget))
            argp_error(state,
                       "--overhead-budget %s: a percentage such as 1%%, or none, was expected",
                       arg);
        return 0;
    case OPT_ALL_RANKS:
        o->all_ranks = true;
        return 0;
    case OPT_RING:
        if (!parse_size(arg, &o->ring_bytes))
            argp_error(state, "--ring %s: 1M to 1G was expected, as in 256M", arg);
        return 0;
    case ARGP_KEY_ARG:
        o->command = state->argv + state->next - 1;
        state->next = state->argc;
        return 0;
    case ARGP_KEY_END:
        if (!o->output)
            argp_error(state, "no tape given: steptape record -o X.tape -- COMMAND");
        if (!o->command)
            argp_error(state, "no command given: steptape record -o X.tape -- COMMAND");
        return 0;
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

/* ---- the command */

static volatile sig_atomic_t child;

/* What a terminal sends goes to the command as well: only what was sent to us alone goes on. */
static void forward(int number, siginfo_t *info, void *context) {
    (void)context;
    int before = errno;
    if (child > 0 && info->si_code <= 0)
        kill((pid_t)child, number);
    errno = before;
}

static const int forwarded[] = {SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGUSR1, SIGUSR2};
enum { FORWARDED = sizeof forwarded / sizeof forwarded[0] };

static void set_forwarding(struct sigaction *before) {
    struct sigaction sa;
    memset(&sa, 0, sizeof sa);
    sa.sa_sigaction = forward;
    sa.sa_flags = SA_SIGINFO | SA_RESTART;
    sigfillset(&sa.sa_mask);
    for (int i = 0; i < FORWARDED; i++)
        sigaction(forwarded[i], &sa, &before[i]);
}

/* Says through the pipe why the command could not be run. */
static void run_child(char **command, const struct sigaction *before, const sigset_t *mask,
                      int report) {
    for (int i = 0; i < FORWARDED; i++)
        sigaction(forwarded[i], &before[i], NULL);
    sigprocmask(SIG_SETMASK, mask, NULL);
    execvp(command[0], command);
    int native = errno;
    if (write(report, &native, sizeof native) < 0)
        _exit(126);
    _exit(native == ENOENT ? 127 : 126);
}

/* *status: of waitpid(). */
static int run_command(char **command, int *status, struct st_error *err) {
    int report[2], native = 0;
    struct sigaction before[FORWARDED];
    sigset_t all, mask;
    if (pipe2(report, O_CLOEXEC) < 0)
        return ST_FAIL_NATIVE(err, ST_ERR_IO, errno, "%s: %s", command[0], strerror(errno));
    /* No signal is lost between fork() and the handlers' knowing the child. */
    sigfillset(&all);
    sigprocmask(SIG_SETMASK, &all, &mask);
    set_forwarding(before);
    pid_t pid = fork();
    if (pid == 0)
        run_child(command, before, &mask, report[1]);
    child = (sig_atomic_t)pid;
    int failed = errno;
    sigprocmask(SIG_SETMASK, &mask, NULL);
    close(report[1]);
    if (pid < 0) {
        close(report[0]);
        return ST_FAIL_NATIVE(err, ST_ERR_IO, failed, "%s: %s", command[0], strerror(failed));
    }
    ssize_t got;
    while ((got = read(report[0], &native, sizeof native)) < 0 && errno == EINTR)
        continue;
    close(report[0]);
    while (waitpid(pid, status, 0) < 0 && errno == EINTR)
        continue;
    child = 0;
    if (got == (ssize_t)sizeof native)
        return ST_FAIL_NATIVE(err, ST_ERR_IO, native, "%s: %s", command[0], strerror(native));
    return ST_OK;
}

static int status_of(int status) {
    return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
}

/* ---- the tape */

static void say_remains(const struct st_recovered *r, void *user) {
    (void)user;
    if (r->tape)
        st_log(ST_LOG_INFO, "an earlier recording was not closed: recovered as %s", r->tape);
}

static void say_nothing(const struct st_recovered *r, void *user) {
    (void)r;
    (void)user;
}

/* What an earlier recording left behind becomes its tape first. */
static void recover_remains(const char *output) {
    struct st_error err;
    if (st_recover(output, say_remains, NULL, &err) < 0)
        st_log(ST_LOG_WARN, "an earlier recording stays as it is: %s", err.msg);
}

/* 0, or the exit status that says that there is no tape. */
static int finish(const struct st_record_options *o, const struct st_record_tapes *tapes,
                  int status) {
    struct st_error err = {0};
    int count = 0;
    int64_t steps = 0;
    if (st_recover(o->output, say_nothing, NULL, &err) < 0)
        st_log(ST_LOG_ERROR, "%s", err.msg);
    bool unfinished = err.msg[0];
    int rc = st_record_summarize(o->output, tapes, &count, &steps, &err);
    if (rc)
        return st_command_fail(&err);
    if (unfinished || steps)
        return status ? status : unfinished;
    if (status)
        st_log(ST_LOG_ERROR, "%s: ended with exit status %d and recorded nothing", o->command[0],
               status);
    else if (count)
        st_log(ST_LOG_ERROR, "%s: the recording began, but the engine ran no step", o->command[0]);
    else
        st_log(ST_LOG_ERROR,
               "%s: the command recorded nothing: `steptape doctor` says whether the engine's "
               "plug-in is found",
               o->command[0]);
    return status ? status : 1;
}

static int run(int argc, char **argv) {
    struct st_record_options o = {.budget = "1%"};
    struct st_record_tapes tapes = {0};
    struct st_error err = {0};
    const char *launches;
    int status = 0;
    static const struct argp argp = {.options = option_list,
                                     .parser = parse_option,
                                     .args_doc = "-- COMMAND [ARGUMENT...]",
                                     .doc = doc};
    if (argp_parse(&argp, argc, argv, ARGP_IN_ORDER, NULL, &o) != 0)
        return 2;
    int rc = st_record_set_environment(&o, &launches, &err);
    if (rc)
        return st_command_fail(&err);
    recover_remains(o.output);
    rc = st_record_list_before(o.output, &tapes, &err);
    tapes.want_launches = strcmp(launches, "off") != 0;
    if (!rc)
        rc = run_command(o.command, &status, &err);
    int result = rc ? st_command_fail(&err) : finish(&o, &tapes, status_of(status));
    if (rc && err.native == ENOENT)
        result = 127;
    st_record_tapes_fini(&tapes);
    return result;
}

const struct st_command st_cmd_record = {"record", "Record",
                                         "run an engine and record its steps into a tape", run};
