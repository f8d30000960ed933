/* SPDX-License-Identifier: Apache-2.0 */
/*
 * steptape recover: the tape of a recording that was not closed.
 */
#include <argp.h>
#include <inttypes.h>
#include <stdio.h>

#include "capture/commands.h"
#include "capture/recover.h"
#include "traces/base/log.h"

static const char doc[] =
    "Make the tape of a recording whose engine ended without closing it: killed, crashed, or out "
    "of disk.\n"
    "\n"
    "What was recorded lies in the folder X.tape.recording. At most the step that was being copied "
    "when the engine ended is lost; the tape says so, as it says how many steps were dropped "
    "before. `steptape record` does this by itself when its command has ended."
    "\v"
    "Examples:\n"
    "  steptape recover x.tape\n"
    "  steptape recover x.tape && steptape verify x.tape\n"
    "\n"
    "A name that is taken is not written over: the tape becomes x.2.tape. A recording that a live "
    "process holds is left alone. When nothing could be made of a recording its files stay.\n"
    "\n"
    "Exit status: 0 done; 1 nothing to recover, or it could not be; 2 wrong command line.";

struct arguments {
    const char *input;
    int made;
};

static error_t parse_option(int key, char *arg, struct argp_state *state) {
    struct arguments *a = state->input;
    return st_command_parse_tape(key, arg, state, &a->input, "steptape recover X.tape");
}

static void print(const struct st_recovered *r, void *user) {
    struct arguments *a = user;
    if (!r->tape)
        return;
    a->made++;
    printf("%s: %" PRId64 " steps", r->tape, r->steps);
    if (r->dropped)
        printf(", %" PRId64 " dropped", r->dropped);
    if (r->torn)
        printf(", one cut off");
    printf("\n");
    if (r->reason)
        st_log(ST_LOG_WARN, "%s: %s", r->tape, r->reason);
}

static int run(int argc, char **argv) {
    struct arguments a = {0};
    struct st_error err = {0};
    static const struct argp argp = {.parser = parse_option, .args_doc = "X.tape", .doc = doc};
    if (argp_parse(&argp, argc, argv, 0, NULL, &a) != 0)
        return 2;
    int rc = st_recover(a.input, print, &a, &err);
    if (rc == ST_DONE || (!rc && !a.made))
        rc = ST_FAIL(&err, ST_ERR_INPUT, "%s.recording: there is no recording to recover", a.input);
    return rc < 0 ? st_command_fail(&err) : 0;
}

const struct st_command st_cmd_recover = {"recover", "Record",
                                          "make the tape of a recording that was not closed", run};
