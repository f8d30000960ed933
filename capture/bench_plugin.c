/* SPDX-License-Identifier: Apache-2.0 */
/*
 * steptape bench plugin: becomes python3 running steptape.bench_plugin, with the package and the
 * library of this installation.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "capture/bench.h"
#include "capture/record.h"
#include "traces/base/command.h"

static const char start[] =
    "import sys\n"
    "if sys.path[:1] == ['']: del sys.path[0]\n" /* this folder may hold a steptape of its own */
    "import importlib.util, runpy\n"
    "if importlib.util.find_spec('numpy') is None:\n"
    "    sys.exit('steptape: ' + sys.executable + ' has no numpy: install it, or name another "
    "Python in STEPTAPE_PYTHON')\n"
    "runpy.run_module('steptape.bench_plugin', run_name='__main__', alter_sys=True)\n";

static int become_python(int argc, char **argv, struct st_error *err) {
    const char *python = getenv("STEPTAPE_PYTHON");
    char **arguments = calloc((size_t)argc + 4, sizeof *arguments);
    if (!arguments)
        return ST_FAIL_NOMEM(err);
    arguments[0] = (char *)(python && *python ? python : "python3");
    arguments[1] = (char *)"-c";
    arguments[2] = (char *)start;
    memcpy(arguments + 3, argv + 1, (size_t)(argc - 1) * sizeof *arguments);
    execvp(arguments[0], arguments);
    int rc =
        ST_FAIL_NATIVE(err, ST_ERR_UNAVAILABLE, errno, "%s: %s", arguments[0], strerror(errno));
    free(arguments);
    return rc;
}

int st_bench_plugin(int argc, char **argv) {
    struct st_error err;
    int rc = st_record_add_python(&err);
    if (rc == 0)
        rc = st_record_set_library(&err);
    if (rc == 0)
        become_python(argc, argv, &err);
    return st_command_fail(&err);
}
