/* SPDX-License-Identifier: Apache-2.0 */
/*
 * steptape doctor: what this machine can do, and why it cannot do the rest.
 */
#include <argp.h>
#include <stdlib.h>
#include <string.h>

#include "analysis/commands.h"
#include "analysis/doctor.h"
#include "analysis/grid.h"
#include "analysis/output.h"
#include "analysis/print.h"

enum { DETAIL_COLUMNS = 80 };

enum { OPT_PYTHON = 0x100, OPT_FOLDER, OPT_TIMEOUT, OPT_REQUIRE };
enum { TIMEOUT_MS = 20000, MAX_TIMEOUT_S = 3600 };
enum requirement { REQUIRE_NOTHING, REQUIRE_RECORD, REQUIRE_LAUNCHES };

struct arguments {
    enum st_format format;
    const char *output;
    const char *python, *folder;
    int timeout_ms;
    enum requirement requirement;
};

static struct st_doctor_hooks hooks;

void st_doctor_set_hooks(const struct st_doctor_hooks *given) {
    hooks = *given;
}

static const struct argp_option options[] = {
    {"format", 'f', "table|json|jsonl", 0,
     "a table (default), or data; json is an array of objects: what, status, detail", 0},
    {"output", 'o', "FILE", 0, "write to FILE, which appears when it is complete; - is stdout", 0},
    {"python", OPT_PYTHON, "PROGRAM", 0,
     "The engine's Python; without it, that of the vllm on PATH, else python3", 0},
    {"folder", OPT_FOLDER, "FOLDER", 0, "Where tapes will be recorded; without it, this folder", 0},
    {"timeout", OPT_TIMEOUT, "SECONDS", 0, "Wait so long for the engine's Python (20)", 0},
    {"require", OPT_REQUIRE, "record|launches", 0,
     "Exit with 3 unless an engine can be recorded here, or its launches too", 0},
    {0},
};

static const char doc[] =
    "Say what this machine can do: versions, driver, GPUs, CUPTI and the backends that follow; "
    "whether an engine can be recorded here: the engine, its plug-in, libraries, room, and other "
    "profilers. For what is missing, why and what to do. A line is ok, a warning, missing, or "
    "tells a fact."
    "\v"
    "Examples:\n"
    "  steptape doctor\n"
    "  steptape doctor --python ~/venv/bin/python --folder /data/tapes\n"
    "  steptape doctor --require=launches -o doctor.json --format=json\n"
    "\n"
    "Exit status: 0 whatever is found; 1 the output could not be written; 2 wrong command line; "
    "with --require, 3 when what it names cannot be done here.";

/* 0: it is no such number. */
static int parse_seconds(const char *text) {
    char *end;
    double seconds = strtod(text, &end);
    bool good = end != text && !*end && seconds >= 0.1 && seconds <= MAX_TIMEOUT_S;
    return good ? (int)(seconds * 1000) : 0;
}

static error_t parse_option(int key, char *value, struct argp_state *state) {
    struct arguments *arguments = state->input;
    struct st_error err;
    switch (key) {
    case 'f':
        if (st_format_parse(value, &arguments->format, &err) || arguments->format == ST_FORMAT_CSV)
            argp_error(state, "--format: '%s' is none of table, json, jsonl", value);
        return 0;
    case 'o':
        arguments->output = value;
        return 0;
    case OPT_PYTHON:
        arguments->python = value;
        return 0;
    case OPT_FOLDER:
        arguments->folder = value;
        return 0;
    case OPT_TIMEOUT:
        arguments->timeout_ms = parse_seconds(value);
        if (!arguments->timeout_ms)
            argp_error(state, "--timeout %s: 0.1 to %d seconds were expected", value,
                       MAX_TIMEOUT_S);
        return 0;
    case OPT_REQUIRE:
        arguments->requirement = strcmp(value, "record") == 0     ? REQUIRE_RECORD
                                 : strcmp(value, "launches") == 0 ? REQUIRE_LAUNCHES
                                                                  : REQUIRE_NOTHING;
        if (!arguments->requirement)
            argp_error(state, "--require=%s: record or launches was expected", value);
        return 0;
    case ARGP_KEY_ARG:
        argp_error(state, "there is nothing to be given, not '%s'", value);
        return 0;
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

static void print_json(const struct st_doctor *doctor, bool lines, FILE *out) {
    for (int i = 0; i < doctor->count; i++) {
        const struct st_finding *finding = &doctor->finding[i];
        fputs(lines ? "{\"what\":" : i ? ",\n{\"what\":" : "[{\"what\":", out);
        st_print_json_string(out, finding->what, strlen(finding->what));
        fputs(",\"status\":", out);
        st_print_json_string(out, finding->status, strlen(finding->status));
        fputs(",\"detail\":", out);
        st_print_json_string(out, finding->detail, strlen(finding->detail));
        fputs(lines ? "}\n" : "}", out);
    }
    if (!lines)
        fputs("]\n", out);
}

/* Adds text in rows of at most DETAIL_COLUMNS, broken at spaces; the first row has the other cells.
 */
static void add_wrapped(struct st_grid *grid, const struct st_finding *finding) {
    const char *at = finding->detail;
    bool first = true;
    do {
        size_t length = strlen(at), row = length;
        if (length > DETAIL_COLUMNS) {
            row = DETAIL_COLUMNS;
            while (row > 0 && at[row] != ' ')
                row--;
            if (row == 0)
                row = DETAIL_COLUMNS;
        }
        bool is_info = strcmp(finding->status, "info") == 0;
        st_grid_add(grid, "%s", first ? finding->what : "");
        st_grid_add(grid, "%s", first && !is_info ? finding->status : "");
        st_grid_add(grid, "%.*s", (int)row, at);
        at += row + strspn(at + row, " ");
        first = false;
    } while (*at);
}

static int print_table(const struct st_doctor *doctor, FILE *out, struct st_error *err) {
    struct st_grid grid;
    st_grid_init(&grid, "<<<", "what", "here", "detail");
    for (int i = 0; i < doctor->count; i++)
        add_wrapped(&grid, &doctor->finding[i]);
    return st_grid_print(&grid, out, "", err);
}

/* A variable that is empty names nothing. */
static const char *path_in(const char *variable) {
    const char *value = getenv(variable);
    return value && *value ? value : NULL;
}

static void examine(const struct arguments *arguments, struct st_doctor *doctor) {
    struct st_doctor_places places = {
        .python = arguments->python,
        .folder = arguments->folder,
        .ring_bytes = hooks.ring_bytes,
        .timeout_ms = arguments->timeout_ms,
        .path = getenv("PATH"),
        .cuda_home = getenv("CUDA_HOME"),
        .library = path_in("STEPTAPE_LIBRARY"),
        .inject = path_in("STEPTAPE_INJECT"),
        .cuda_injection = getenv("CUDA_INJECTION64_PATH"),
        .vllm_plugins = getenv("VLLM_PLUGINS"),
        .ld_preload = getenv("LD_PRELOAD"),
        .blocking = getenv("CUDA_LAUNCH_BLOCKING"),
        .find_part = hooks.find_part,
    };
    st_doctor_examine(doctor, &places);
}

static bool unmet(const struct st_doctor *doctor, enum requirement requirement) {
    return (requirement >= REQUIRE_RECORD && !doctor->can_record) ||
           (requirement == REQUIRE_LAUNCHES && !doctor->can_record_launches);
}

static int run_doctor(int argc, char **argv) {
    static const struct argp argp = {options, parse_option, NULL, doc, NULL, NULL, NULL};
    struct arguments arguments = {.timeout_ms = TIMEOUT_MS, .folder = "."};
    if (argp_parse(&argp, argc, argv, 0, NULL, &arguments))
        return 2;
    struct st_error err = {0};
    struct st_output output;
    struct st_doctor doctor;
    int rc = st_output_open(&output, arguments.output, &err);
    if (rc == 0) {
        examine(&arguments, &doctor);
        if (arguments.format == ST_FORMAT_TABLE)
            rc = print_table(&doctor, output.stream, &err);
        else
            print_json(&doctor, arguments.format == ST_FORMAT_JSONL, output.stream);
        if (rc == 0)
            rc = st_output_close(&output, true, &err);
        else
            st_output_close(&output, false, NULL);
    }
    if (rc)
        return st_command_fail(&err);
    return unmet(&doctor, arguments.requirement) ? st_error_exit_status(ST_ERR_MISMATCH) : 0;
}

const struct st_command st_cmd_doctor = {
    .name = "doctor",
    .group = "Ask and compare",
    .synopsis = "what this machine can do, and why it cannot do the rest",
    .run = run_doctor,
};
