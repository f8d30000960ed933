/* SPDX-License-Identifier: Apache-2.0 */
/*
 * steptape verify: is a tape whole?
 */
#include <argp.h>
#include <inttypes.h>
#include <stdio.h>

#include "traces/base/log.h"
#include "traces/commands.h"
#include "traces/format/verify.h"

struct arguments {
    const char *input;
};

static const char doc[] =
    "Read a tape to its end and say whether it is whole.\n"
    "\n"
    "The content is hashed and compared with the tape's seal, the structure of the database is "
    "checked, every packed block is decoded, and the step rows are compared with it. The first "
    "fault is named."
    "\v"
    "Examples:\n"
    "  steptape verify x.tape\n"
    "  steptape verify x.tape && steptape replay x.tape --backend sim\n"
    "\n"
    "A result tape has no seal: it may grow. Of it the structure is checked.\n"
    "\n"
    "Exit status: 0 whole; 1 damaged, or no tape; 2 wrong command line; 130 interrupted.";

static error_t parse_option(int key, char *arg, struct argp_state *state) {
    struct arguments *a = state->input;
    return st_command_parse_tape(key, arg, state, &a->input, "steptape verify X.tape");
}

static int run(int argc, char **argv) {
    struct arguments a = {0};
    struct st_verify_report report;
    struct st_error err = {0};
    static const struct argp argp = {.parser = parse_option, .args_doc = "X.tape", .doc = doc};
    if (argp_parse(&argp, argc, argv, 0, NULL, &a) != 0)
        return 2;
    st_interrupt_install();
    int rc = st_tape_verify(a.input, &report, &err);
    st_progress_end();
    if (rc)
        return st_command_fail(&err);
    printf("%s: whole (%" PRId64 " steps", a.input, report.step_count);
    if (report.run_count > 0)
        printf(", %" PRId64 " runs)\n", report.run_count);
    else
        printf(", %" PRId64 " request-steps, %" PRId64 " block ids, %" PRId64 " checks)\n",
               report.request_step_count, report.block_id_count, report.check_count);
    return 0;
}

const struct st_command st_cmd_verify = {"verify", "Tapes", "say whether a tape is whole", run};
