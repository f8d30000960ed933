/* SPDX-License-Identifier: Apache-2.0 */
/* libcuda.so.1 as far as the hooks know it, for hook_test.c: it launches nothing. */
#include <dlfcn.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define EXPORT __attribute__((visibility("default")))

EXPORT int driver_launches, driver_graphs;
static int capturing, fail_next, nodes;

EXPORT int cuInit(unsigned flags);
EXPORT int cuLaunchKernel(void *f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by,
                          unsigned bz, unsigned shared, void *stream, void **arguments,
                          void **extra);
EXPORT int cuLaunchKernel_ptsz(void *f, unsigned gx, unsigned gy, unsigned gz, unsigned bx,
                               unsigned by, unsigned bz, unsigned shared, void *stream,
                               void **arguments, void **extra);
EXPORT int cuLaunchKernelEx(void *config, void *f, void **arguments, void **extra);
EXPORT int cuGraphLaunch(void *exec, void *stream);
EXPORT int cuGraphInstantiateWithFlags(void **exec, void *graph, unsigned long long flags);
EXPORT int cuGraphExecDestroy(void *exec);
EXPORT int cuStreamBeginCapture_v2(void *stream, int mode);
EXPORT int cuStreamEndCapture(void *stream, void **graph);
EXPORT int cuStreamIsCapturing(void *stream, int *status);
EXPORT int cuGraphGetNodes(void *graph, void **node, size_t *count);
EXPORT int cuGraphNodeGetType(void *node, int *type);
EXPORT int cuGetProcAddress_v2(const char *symbol, void **address, int version, uint64_t flags,
                               int *status);
EXPORT void driver_fail_next(void);

/* As the driver does: its one slot for a tool. */
int cuInit(unsigned flags) {
    const char *path = getenv("CUDA_INJECTION64_PATH");
    void *library = path ? dlopen(path, RTLD_NOW | RTLD_LOCAL) : NULL;
    int (*start)(void) = NULL;
    void *symbol = library ? dlsym(library, "InitializeInjection") : NULL;
    memcpy(&start, &symbol, sizeof start);
    (void)flags;
    return start && start() == 1 ? 0 : 3;
}

static int launch(void) {
    if (fail_next) {
        fail_next = 0;
        return 1;
    }
    if (capturing)
        nodes++;
    else
        driver_launches++;
    return 0;
}

int cuLaunchKernel(void *f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by,
                   unsigned bz, unsigned shared, void *stream, void **arguments, void **extra) {
    (void)f, (void)gx, (void)gy, (void)gz, (void)bx, (void)by, (void)bz, (void)stream;
    (void)arguments, (void)extra;
    return shared == 123 ? launch() : 2; /* the arguments came through */
}

int cuLaunchKernel_ptsz(void *f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by,
                        unsigned bz, unsigned shared, void *stream, void **arguments,
                        void **extra) {
    driver_launches += 100; /* tells it from the other one */
    return cuLaunchKernel(f, gx, gy, gz, bx, by, bz, shared, stream, arguments, extra);
}

int cuLaunchKernelEx(void *config, void *f, void **arguments, void **extra) {
    (void)config, (void)f, (void)arguments, (void)extra;
    return launch();
}

int cuGraphLaunch(void *exec, void *stream) {
    (void)stream;
    driver_graphs += exec != NULL;
    return 0;
}

int cuGraphInstantiateWithFlags(void **exec, void *graph, unsigned long long flags) {
    static char instance;
    (void)graph;
    *exec = &instance;
    return (int)flags;
}

int cuGraphExecDestroy(void *exec) {
    return exec == NULL;
}

int cuStreamBeginCapture_v2(void *stream, int mode) {
    (void)stream;
    capturing = 1;
    nodes = 0;
    return mode;
}

int cuStreamEndCapture(void *stream, void **graph) {
    static char captured;
    (void)stream;
    *graph = &captured;
    capturing = 0;
    return 0;
}

int cuStreamIsCapturing(void *stream, int *status) {
    (void)stream;
    *status = capturing;
    return 0;
}

/* The last is a copy. */
int cuGraphGetNodes(void *graph, void **node, size_t *count) {
    (void)graph;
    *count = (size_t)nodes + 1;
    for (size_t i = 0; node && i < *count; i++)
        node[i] = i == (size_t)nodes ? &nodes : (void *)&capturing;
    return 0;
}

int cuGraphNodeGetType(void *node, int *type) {
    *type = node == (void *)&nodes;
    return 0;
}

void driver_fail_next(void) {
    fail_next = 1;
}

int cuGetProcAddress_v2(const char *symbol, void **address, int version, uint64_t flags,
                        int *status) {
    static const struct {
        const char *name;
        void *address;
    } table[] = {
        {"cuLaunchKernel", (void *)cuLaunchKernel},
        {"cuLaunchKernelEx", (void *)cuLaunchKernelEx},
        {"cuGraphLaunch", (void *)cuGraphLaunch},
        {"cuGraphInstantiate", (void *)cuGraphInstantiateWithFlags},
        {"cuGraphExecDestroy", (void *)cuGraphExecDestroy},
        {"cuStreamBeginCapture", (void *)cuStreamBeginCapture_v2},
        {"cuStreamEndCapture", (void *)cuStreamEndCapture},
        {"cuGetProcAddress", (void *)cuGetProcAddress_v2},
    };
    (void)version;
    *address = NULL;
    for (size_t i = 0; i < sizeof table / sizeof table[0]; i++)
        if (strcmp(symbol, table[i].name) == 0)
            *address = table[i].address;
    if (flags & 2 && strcmp(symbol, "cuLaunchKernel") == 0)
        *address = (void *)cuLaunchKernel_ptsz;
    if (status)
        *status = *address == NULL;
    return *address == NULL;
}
