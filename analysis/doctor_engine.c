/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The engine's Python and the libraries that an engine loads.
 */
#include <dlfcn.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "analysis/doctor_i.h"
#include "analysis/probe.h"
#include "steptape_version.h"
#include "traces/base/embedded.h"
#include "traces/base/program.h"

extern const struct st_embedded st_embedded_doctor[];

/* Releases of vLLM whose fields the plug-in knows: 0.FIRST to 0.LAST. */
enum { FIRST_MINOR = 20, LAST_MINOR = 33 };
/* The first SGLang, 0.5.PATCH, with the registry that its plug-in hooks into. */
enum { FIRST_SGLANG_PATCH = 11 };

/* ---- which Python */

static char *find_python(const struct st_doctor_places *places, const char **whose) {
    *whose = "--python";
    if (places->python)
        return st_program_find(places->path, places->python);
    char *script = st_program_find(places->path, "vllm");
    char *python = script ? st_program_python_of(places->path, script) : NULL;
    free(script);
    *whose = "of the `vllm` on PATH";
    if (!python) {
        *whose = "the python3 on PATH";
        python = st_program_find(places->path, "python3");
    }
    return python;
}

/* ---- asking it */

struct question {
    const char *python, *script, *folder;
};

static int ask(void *user) {
    const struct question *q = user;
    execl(q->python, q->python, "-c", q->script, q->folder, (char *)NULL);
    perror(q->python);
    return 127;
}

/* The value of a key, cut to size; NULL when the answer has none. */
static const char *find_value(const char *answer, const char *key, char *value, size_t size) {
    size_t length = strlen(key);
    for (const char *line = answer; *line; line += strcspn(line, "\n"), line += *line == '\n')
        if (strncmp(line, key, length) == 0 && line[length] == '\t') {
            const char *text = line + length + 1;
            snprintf(value, size, "%.*s", (int)strcspn(text, "\n"), text);
            return value;
        }
    return NULL;
}

static const char *last_line(char *text) {
    size_t end = strlen(text);
    while (end && text[end - 1] == '\n')
        text[--end] = 0;
    const char *line = strrchr(text, '\n');
    return line ? line + 1 : text;
}

static void add_no_answer(struct st_doctor *doctor, const char *python, int timeout_ms,
                          struct st_probe *probe) {
    switch (probe->end) {
    case ST_PROBE_TIMEOUT:
        st_doctor_add(doctor, "Python", "missing",
                      "%.160s did not answer within %.3g s and was killed; --timeout waits longer",
                      python, timeout_ms / 1e3);
        break;
    case ST_PROBE_SIGNALED:
        st_doctor_add(doctor, "Python", "missing", "%.160s was ended by signal %d (%s)", python,
                      probe->status, strsignal(probe->status));
        break;
    case ST_PROBE_FAILED:
        st_doctor_add(doctor, "Python", "missing", "%.160s cannot be started: %s", python,
                      strerror(probe->status));
        break;
    case ST_PROBE_EXITED:
        st_doctor_add(doctor, "Python", "missing",
                      "%.160s ended with status %d and did not say what it has: %.200s", python,
                      probe->status, probe->text[0] ? last_line(probe->text) : "no output");
        break;
    }
}

/* Whether the version's registry of hooks can load the plug-in. */
static bool examine_sglang(struct st_doctor *doctor, const char *version) {
    int major, minor, patch;
    if (sscanf(version, "%d.%d.%d", &major, &minor, &patch) != 3)
        st_doctor_add(doctor, "SGLang", "warning",
                      "%s; the plug-in needs 0.5.%d or later, which has a registry of hooks",
                      version, FIRST_SGLANG_PATCH);
    else if (major == 0 && (minor < 5 || (minor == 5 && patch < FIRST_SGLANG_PATCH))) {
        st_doctor_add(doctor, "SGLang", "missing",
                      "%s has no registry of hooks, so nothing is recorded: 0.5.%d has one",
                      version, FIRST_SGLANG_PATCH);
        return false;
    } else
        st_doctor_add(doctor, "SGLang", "ok", "%s, which loads the plug-in (not imported here)",
                      version);
    return true;
}

/* Whether an engine is there that can be recorded. */
static bool examine_engines(struct st_doctor *doctor, const char *answer) {
    char value[128];
    int major = -1, minor = -1;
    bool has_sglang = find_value(answer, "sglang", value, sizeof value) != NULL;
    bool sglang = has_sglang && examine_sglang(doctor, value);
    if (!find_value(answer, "vllm", value, sizeof value)) {
        if (!has_sglang)
            st_doctor_add(
                doctor, "vLLM", "missing",
                "this Python has none: name the engine's with --python, or pip install vllm");
        return sglang;
    }
    if (sscanf(value, "%d.%d", &major, &minor) == 2 && major == 0 && minor >= FIRST_MINOR &&
        minor <= LAST_MINOR)
        st_doctor_add(doctor, "vLLM", "ok", "%s, which the plug-in knows (not imported here)",
                      value);
    else
        st_doctor_add(doctor, "vLLM", "warning",
                      "%s; the plug-in knows 0.%d to 0.%d and reads what it finds: record a few "
                      "steps and look at the notes of `steptape info`",
                      value, FIRST_MINOR, LAST_MINOR);
    return true;
}

static bool examine_plugin(struct st_doctor *doctor, const char *answer, const char *folder) {
    char version[128], value[256];
    bool own = find_value(answer, "own", value, sizeof value) && strcmp(value, "1") == 0;
    if (!find_value(answer, "steptape", version, sizeof version)) {
        st_doctor_add(doctor, "plug-in", "missing",
                      "neither this Python nor the folder of this program has the package "
                      "steptape: pip install it from the source tree");
        return false;
    }
    if (!find_value(answer, "numpy", value, sizeof value)) {
        st_doctor_add(doctor, "plug-in", "missing", "it needs numpy: pip install numpy");
        return false;
    }
    if (!find_value(answer, "entry", value, sizeof value)) {
        st_doctor_add(
            doctor, "plug-in", "missing",
            "package steptape %s has no entry point in vllm.general_plugins, so vLLM does "
            "not load it: install it again, with pip and not as a copied folder",
            version);
        return false;
    }
    if (find_value(answer, "fails", value, sizeof value)) {
        st_doctor_add(doctor, "plug-in", "missing", "steptape %s does not load: %s", version,
                      value);
        return false;
    }
    if (strcmp(version, ST_VERSION) != 0)
        st_doctor_add(doctor, "plug-in", "warning",
                      "package steptape %s, this program is %s: install both of one version",
                      version, ST_VERSION);
    else if (own)
        st_doctor_add(doctor, "plug-in", "ok", "steptape %s, a package of this Python", version);
    else
        st_doctor_add(doctor, "plug-in", "ok",
                      "steptape %s from %.200s, which `steptape record` adds to PYTHONPATH",
                      version, folder);
    return true;
}

/* A list that vLLM reads as "only these". */
static void examine_plugin_list(struct st_doctor *doctor, const char *list) {
    if (!list)
        return;
    bool listed = false;
    for (const char *at = list; *at && !listed; at += strcspn(at, ","), at += *at == ',') {
        at += strspn(at, " ");
        size_t length = strcspn(at, ", ");
        listed = length == 8 && strncmp(at, "steptape", 8) == 0;
    }
    st_doctor_add(doctor, "VLLM_PLUGINS", listed ? "ok" : "warning",
                  listed
                      ? "'%.200s' has steptape"
                      : "'%.200s' leaves steptape out: `steptape record` adds it; an engine that "
                        "is started without it needs it in the list",
                  list);
}

bool st_doctor_examine_engine(struct st_doctor *doctor, const struct st_doctor_places *places) {
    const char *whose;
    char value[128];
    char *python = find_python(places, &whose);
    if (!python) {
        st_doctor_add(doctor, "Python", "missing", "%.200s: no such program%s",
                      places->python ? places->python : "vllm, python3",
                      places->python ? "" : " on PATH; --python names the engine's");
        return false;
    }
    char *folder = places->find_part ? places->find_part("steptape/python", "python") : NULL;
    struct question question = {python, st_embedded_find(st_embedded_doctor, "doctor_probe.py"),
                                folder ? folder : ""};
    struct st_probe *probe = malloc(sizeof *probe);
    bool good = false;
    if (probe) {
        st_probe_run(ask, &question, places->timeout_ms, probe);
        if (probe->end == ST_PROBE_EXITED && probe->status == 0 &&
            find_value(probe->text, "python", value, sizeof value)) {
            st_doctor_add(doctor, "Python", "ok", "%s, %.300s (%s)", value, python, whose);
            good = examine_engines(doctor, probe->text);
            good = examine_plugin(doctor, probe->text, question.folder) && good;
            examine_plugin_list(doctor, places->vllm_plugins);
        } else {
            add_no_answer(doctor, python, places->timeout_ms, probe);
        }
    }
    free(probe);
    free(folder);
    free(python);
    return good;
}

/* ---- libraries */

struct library {
    const char *path, *symbol;
};

static int load(void *user) {
    const struct library *library = user;
    void *handle = dlopen(library->path, RTLD_NOW | RTLD_LOCAL);
    if (!handle || !dlsym(handle, library->symbol)) {
        const char *why = dlerror();
        dprintf(1, "%s\n", why ? why : "it cannot be loaded");
        _exit(1);
    }
    _exit(0); /* without the library's destructors */
}

static bool examine_file(struct st_doctor *doctor, const struct st_doctor_places *places,
                         const char *name, const char *symbol, const char *given,
                         const char *variable, const char *without, bool preload) {
    char built[64];
    snprintf(built, sizeof built, "capture/%s", name);
    char *path = given ? strdup(given) : places->find_part ? places->find_part(name, built) : NULL;
    struct st_probe *probe = malloc(sizeof *probe);
    bool good = false;
    if (path && probe) {
        struct library library = {path, symbol};
        st_probe_run(load, &library, places->timeout_ms, probe);
        good = probe->end == ST_PROBE_EXITED && probe->status == 0;
        if (good && preload && strpbrk(path, " :"))
            st_doctor_add(doctor, name, "warning",
                          "%.300s loads, but LD_PRELOAD takes no path with a space or a colon: "
                          "--launches=count is not possible",
                          path);
        else if (good)
            st_doctor_add(doctor, name, "ok", "%.300s loads%s%s", path, given ? "; named by " : "",
                          given ? variable : "");
        else
            st_doctor_add(doctor, name, "missing", "does not load: %.400s",
                          probe->end == ST_PROBE_EXITED    ? last_line(probe->text)
                          : probe->end == ST_PROBE_TIMEOUT ? "it did not return in time"
                                                           : "the process that tried was killed");
    } else {
        st_doctor_add(doctor, name, "missing",
                      "not where this program was installed: install it again, or name the file "
                      "with %s; %s",
                      variable, without);
    }
    free(probe);
    free(path);
    return good;
}

bool st_doctor_examine_library(struct st_doctor *doctor, const struct st_doctor_places *places) {
    return examine_file(doctor, places, "libsteptape_capture.so", "steptape_recorder_open",
                        places->library, "STEPTAPE_LIBRARY", "without it nothing is recorded",
                        false);
}

bool st_doctor_examine_inject(struct st_doctor *doctor, const struct st_doctor_places *places) {
    return examine_file(doctor, places, "libsteptape_inject.so", "InitializeInjection",
                        places->inject, "STEPTAPE_INJECT",
                        "without it steps are recorded but no launches", true);
}
