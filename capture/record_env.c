/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the recorded command finds in its environment.
 */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "capture/place.h"
#include "capture/record.h"
#include "traces/base/log.h"
#include "traces/base/program.h"

/* A place from the program's folder on; NULL: nothing is there. */
static char *find_from_program(const char *form, const char *place) {
    char program[PATH_MAX], relative[512], path[PATH_MAX + 600];
    ssize_t n = readlink("/proc/self/exe", program, sizeof program - 1);
    if (n <= 0)
        return NULL;
    program[n] = 0;
    *strrchr(program, '/') = 0;
    snprintf(relative, sizeof relative, form, place);
    snprintf(path, sizeof path, "%s/%s", program, relative);
    return realpath(path, NULL);
}

static char *find_in(const char *const *forms, const char *installed, const char *built) {
    char *path = NULL;
    for (; *forms && !path; forms++)
        path = find_from_program(*forms, installed);
    return path ? path : find_from_program("%s", built);
}

char *st_record_find(const char *installed, const char *built) {
    static const char *const forms[] = {"../" ST_LIBDIR "/%s", "../lib/%s", NULL};
    return find_in(forms, installed, built);
}

/* The same for what lies in share. */
static char *find_data(const char *installed, const char *built) {
    static const char *const forms[] = {"../" ST_DATADIR "/%s", "../share/%s", NULL};
    return find_in(forms, installed, built);
}

static int set(const char *name, const char *value, struct st_error *err) {
    return setenv(name, value, 1) == 0 ? ST_OK : ST_FAIL_NOMEM(err);
}

/* A variable that is empty names nothing. */
static const char *given(const char *name) {
    const char *value = getenv(name);
    return value && *value ? value : NULL;
}

/* The file may not be there yet; its folder must. */
static int set_output(const char *output, struct st_error *err) {
    struct st_place place;
    const char *slash = strrchr(output, '/');
    int rc = st_place_init(&place, output, NULL, err);
    char *real = rc ? NULL : realpath(place.parent, NULL), *path = NULL;
    if (!rc && !real)
        rc = ST_FAIL_NATIVE(err, ST_ERR_IO, errno, "%s: %s", place.parent, strerror(errno));
    else if (!rc && access(real, W_OK | X_OK) < 0)
        rc = ST_FAIL_NATIVE(err, ST_ERR_IO, errno, "%s: no file can be made there: %s", real,
                            strerror(errno));
    else if (!rc && asprintf(&path, "%s/%s", strcmp(real, "/") ? real : "",
                             slash ? slash + 1 : output) < 0)
        rc = ST_FAIL_NOMEM(err);
    else if (!rc)
        rc = set("STEPTAPE_RECORD", path, err);
    free(path);
    free(real);
    st_place_fini(&place);
    return rc;
}

int st_record_set_library(struct st_error *err) {
    if (given("STEPTAPE_LIBRARY"))
        return ST_OK;
    char *path = st_record_find("libsteptape_capture.so", "capture/libsteptape_capture.so");
    if (!path)
        return ST_FAIL(err, ST_ERR_UNSUPPORTED,
                       "libsteptape_capture.so is not where this program was installed; "
                       "STEPTAPE_LIBRARY can name it");
    int rc = set("STEPTAPE_LIBRARY", path, err);
    free(path);
    return rc;
}

/* Counting needs no CUPTI where the library stands in front of all others. */
static int set_preload(const char *path, struct st_error *err) {
    const char *value = given("LD_PRELOAD");
    char *longer;
    if (value && strstr(value, path))
        return ST_OK;
    if (asprintf(&longer, "%s%s%s", path, value ? ":" : "", value ? value : "") < 0)
        return ST_FAIL_NOMEM(err);
    int rc = set("LD_PRELOAD", longer, err);
    free(longer);
    return rc;
}

static int check_launches(const char *path, const char *level, struct st_error *err) {
    const char *other = given("CUDA_INJECTION64_PATH");
    if (!path)
        return ST_FAIL(err, ST_ERR_UNSUPPORTED,
                       "--launches=%s needs libsteptape_inject.so, which is not where %s", level,
                       given("STEPTAPE_INJECT") ? "STEPTAPE_INJECT says"
                                                : "this program was installed");
    if (other && strcmp(other, path) != 0)
        return ST_FAIL(err, ST_ERR_USAGE,
                       "--launches=%s: CUDA_INJECTION64_PATH is set to %.200s, and there is one "
                       "such library a process: unset it, or record with --launches=off",
                       level, other);
    if (strcmp(level, "count") == 0 && strpbrk(path, " :"))
        return ST_FAIL(err, ST_ERR_UNSUPPORTED,
                       "--launches=count: %.200s: LD_PRELOAD takes no path with a space or a colon",
                       path);
    return ST_OK;
}

/* Launches are recorded by a library that the CUDA driver loads into the engine. */
static int set_injection(const struct st_record_options *options, const char **launches,
                         struct st_error *err) {
    const char *named = given("STEPTAPE_INJECT");
    char *path = named ? realpath(named, NULL)
                       : st_record_find("libsteptape_inject.so", "capture/libsteptape_inject.so");
    int rc = ST_OK;
    *launches = options->launches;
    if (!*launches) {
        /* What attaches CUPTI slows every graph launch down, and no budget sees that: on request.
         */
        struct st_error reason;
        bool gpu = access("/dev/nvidiactl", F_OK) == 0;
        *launches = gpu && check_launches(path, "count", &reason) == ST_OK ? "count" : "off";
        if (gpu && strcmp(*launches, "off") == 0)
            st_log(ST_LOG_WARN, "no launches are recorded: %s", reason.msg);
    }
    if (strcmp(*launches, "off") != 0)
        rc = check_launches(path, *launches, err);
    if (!rc && strcmp(*launches, "off") != 0)
        rc = set("CUDA_INJECTION64_PATH", path, err);
    if (!rc && strcmp(*launches, "count") == 0)
        rc = set_preload(path, err);
    if (!rc && path)
        rc = set("STEPTAPE_INJECT", path, err);
    free(path);
    return rc ? rc : set("STEPTAPE_LAUNCHES", *launches, err);
}

/* A comma list that lacks the word gets it; a variable that is not set means "all". */
static int add_plugin(const char *name, struct st_error *err) {
    const char *value = getenv(name);
    char *longer;
    if (!value)
        return ST_OK;
    for (const char *at = value; (at = strstr(at, "steptape")); at += 8) {
        char before = at == value ? ',' : at[-1], after = at[8];
        if ((before == ',' || before == ' ') && (after == ',' || after == ' ' || !after))
            return ST_OK;
    }
    if (asprintf(&longer, "%s%ssteptape", value, *value ? "," : "") < 0)
        return ST_FAIL_NOMEM(err);
    int rc = set(name, longer, err);
    free(longer);
    return rc;
}

/* ---- the Python package */

/* The Python that runs a command: itself, or the one in the first line of a script; else NULL. */
static char *find_python(const char *command) {
    const char *path = getenv("PATH");
    char *file = st_program_find(path, command);
    if (!file)
        return NULL;
    const char *slash = strrchr(file, '/');
    if (strncmp(slash ? slash + 1 : file, "python", 6) == 0)
        return file;
    char *python = st_program_python_of(path, file);
    free(file);
    return python;
}

/* Does this Python find the plug-in by itself?  A folder called steptape that happens to lie where
 * it looks is none. */
static bool has_package(const char *python) {
    static const char ask[] = "import sys\n"
                              "if sys.path[:1] == ['']: del sys.path[0]\n"
                              "import importlib.metadata\n"
                              "points = importlib.metadata.entry_points()\n"
                              "group = 'vllm.general_plugins'\n"
                              "found = points.select(group=group) if hasattr(points, 'select') "
                              "else points.get(group, [])\n"
                              "sys.exit(not any(point.name == 'steptape' for point in found))\n";
    pid_t pid = fork();
    if (pid == 0) {
        int null = open("/dev/null", O_RDWR);
        dup2(null, 0);
        dup2(null, 1);
        dup2(null, 2);
        execl(python, python, "-c", ask, (char *)NULL);
        _exit(127);
    }
    int status = -1;
    while (pid > 0 && waitpid(pid, &status, 0) < 0 && errno == EINTR)
        continue;
    return pid > 0 && WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

int st_record_add_python(struct st_error *err) {
    char *folder = find_data("steptape/python", "python"), *longer;
    const char *value = getenv("PYTHONPATH");
    if (!folder)
        return ST_FAIL(err, ST_ERR_UNSUPPORTED,
                       "the Python package is not where this program was installed");
    int size = asprintf(&longer, "%s%s%s", value ? value : "", value && *value ? ":" : "", folder);
    free(folder);
    if (size < 0)
        return ST_FAIL_NOMEM(err);
    int rc = set("PYTHONPATH", longer, err);
    free(longer);
    return rc;
}

/* An engine that is no Python does without. */
static int set_python(const char *command, struct st_error *err) {
    char *python = find_python(command);
    bool has = python && has_package(python);
    free(python);
    int rc = has ? ST_OK : st_record_add_python(err);
    return rc == ST_ERR_UNSUPPORTED ? ST_OK : rc;
}

int st_record_set_environment(const struct st_record_options *options, const char **launches,
                              struct st_error *err) {
    char number[32];
    ST_TRY(set_output(options->output, err));
    ST_TRY(st_record_set_library(err));
    ST_TRY(set_injection(options, launches, err));
    ST_TRY(set("STEPTAPE_OVERHEAD_BUDGET", options->budget ? options->budget : "", err));
    ST_TRY(set("STEPTAPE_ALL_RANKS", options->all_ranks ? "1" : "0", err));
    if (options->ring_bytes) {
        snprintf(number, sizeof number, "%lld", (long long)options->ring_bytes);
        ST_TRY(set("STEPTAPE_RING_BYTES", number, err));
    }
    ST_TRY(add_plugin("VLLM_PLUGINS", err));
    ST_TRY(add_plugin("SGLANG_PLUGINS", err));
    return set_python(options->command[0], err);
}
