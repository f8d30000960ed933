/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Counting launches without CUPTI.  A process that CUPTI is attached to launches graphs node by
 * node, some 40 to 80 us for 200 nodes where 2 us are enough, whatever is recorded: far too much
 * for a count.  So, where the loader put this library in front of all others (LD_PRELOAD), the few
 * functions of the driver that launch are replaced by ones that count and call on.
 *
 * The CUDA runtime and most libraries get them from cuGetProcAddress(), which they get from
 * dlsym(): both answers are looked at.  Libraries that link the driver find the names here.  Where
 * the library was not loaded in front, nothing of this is in use.
 *
 * No CUDA header: pointers and numbers are passed on as they are.
 */
#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>

#include "capture/cupti/inject_i.h"

#define EXPORT __attribute__((visibility("default")))

enum hook {
    LAUNCH_KERNEL,
    LAUNCH_KERNEL_PTSZ,
    LAUNCH_KERNEL_EX,
    LAUNCH_KERNEL_EX_PTSZ,
    LAUNCH_COOPERATIVE,
    LAUNCH_COOPERATIVE_PTSZ,
    GRAPH_LAUNCH,
    GRAPH_LAUNCH_PTSZ,
    GRAPH_INSTANTIATE,
    GRAPH_INSTANTIATE_FLAGS,
    GRAPH_INSTANTIATE_PARAMS,
    GRAPH_EXEC_DESTROY,
    BEGIN_CAPTURE,
    BEGIN_CAPTURE_PTSZ,
    BEGIN_CAPTURE_TO,
    BEGIN_CAPTURE_TO_PTSZ,
    END_CAPTURE,
    END_CAPTURE_PTSZ,
    GET_PROC_ADDRESS,
    GET_PROC_ADDRESS_2,
    HOOKS
};

typedef void *pointer;
typedef void function(void); /* any */
static function *_Atomic real[HOOKS];
static atomic_bool counting;
static atomic_int captures; /* streams that are being captured */

/* Functions of the driver that only we call. */
static struct {
    int (*is_capturing)(pointer, int *);
    int (*get_nodes)(pointer, pointer *, size_t *);
    int (*node_type)(pointer, int *);
} driver;
static pthread_once_t driver_once = PTHREAD_ONCE_INIT;

/* The assembly at the end jumps to it. */
__attribute__((visibility("hidden"))) extern pointer st_inject_real_dlsym;
pointer st_inject_real_dlsym;

static void find_real_dlsym(void) {
    static const char *const versions[] = {"GLIBC_2.34", "GLIBC_2.2.5", "GLIBC_2.17"};
    pointer p = NULL;
    for (size_t i = 0; !p && i < sizeof versions / sizeof versions[0]; i++)
        p = dlvsym(RTLD_NEXT, "dlsym", versions[i]);
    if (!p)
        abort(); /* no GNU C library: the loader could not have put us here */
    __atomic_store_n(&st_inject_real_dlsym, p, __ATOMIC_RELEASE);
}

static pointer real_dlsym(pointer handle, const char *name) {
    typedef pointer lookup(pointer, const char *);
    lookup *f;
    if (!__atomic_load_n(&st_inject_real_dlsym, __ATOMIC_ACQUIRE))
        find_real_dlsym();
    memcpy(&f, &st_inject_real_dlsym, sizeof f);
    return f(handle, name);
}

static void find_driver(void) {
    static const char *const names[] = {"cuStreamIsCapturing", "cuGraphGetNodes",
                                        "cuGraphNodeGetType"};
    pointer *const slots[] = {(pointer *)&driver.is_capturing, (pointer *)&driver.get_nodes,
                              (pointer *)&driver.node_type};
    pointer library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL | RTLD_NOLOAD);
    for (size_t i = 0; library && i < sizeof names / sizeof names[0]; i++) {
        pointer p = real_dlsym(library, names[i]);
        memcpy(slots[i], &p, sizeof p);
    }
}

static function *real_of(enum hook hook);

#define REAL(hook, type) ((type *)real_of(hook))

/* ---- what is counted */

static bool is_counting(void) {
    return atomic_load_explicit(&counting, memory_order_relaxed);
}

/* A launch into a stream that is captured only adds a node. */
static bool is_captured(pointer stream) {
    if (atomic_load_explicit(&captures, memory_order_relaxed) <= 0)
        return false;
    pthread_once(&driver_once, find_driver);
    int status = 0;
    return driver.is_capturing && driver.is_capturing(stream, &status) == 0 && status != 0;
}

static int count(enum st_cupti_call call, pointer exec, int result) {
    st_inject_on_call(call, 0, (uint64_t)(uintptr_t)exec);
    st_inject_on_call(result == 0 ? ST_CUPTI_CALL_DONE : ST_CUPTI_CALL_FAILED, 0, 0);
    return result;
}

/* A driver may launch through another of these functions: the outer one counts. */
static __thread int inside __attribute__((tls_model("initial-exec")));

#define LAUNCH(stream, call, exec, expression)                                                     \
    do {                                                                                           \
        if (!is_counting() || inside || is_captured(stream))                                       \
            return (expression);                                                                   \
        inside = 1;                                                                                \
        int result = (expression);                                                                 \
        inside = 0;                                                                                \
        return count((call), (exec), result);                                                      \
    } while (0)

typedef int launch_kernel(pointer, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned,
                          unsigned, pointer, pointer *, pointer *);
typedef int launch_kernel_ex(pointer, pointer, pointer *, pointer *);
typedef int launch_cooperative(pointer, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned,
                               unsigned, pointer, pointer *);
typedef int graph_launch(pointer, pointer);
typedef int five_words(pointer, pointer, pointer, pointer, pointer);
typedef int six_words(pointer, pointer, pointer, pointer, size_t, int);
typedef int get_proc_address(const char *, pointer *, int, uint64_t);
typedef int get_proc_address_2(const char *, pointer *, int, uint64_t, int *);

#define DEFINE_LAUNCH_KERNEL(name, hook)                                                           \
    EXPORT int name(pointer f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by,    \
                    unsigned bz, unsigned shared, pointer stream, pointer *arguments,              \
                    pointer *extra);                                                               \
    int name(pointer f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by,           \
             unsigned bz, unsigned shared, pointer stream, pointer *arguments, pointer *extra) {   \
        LAUNCH(stream, ST_CUPTI_CALL_KERNEL, NULL,                                                 \
               REAL(hook, launch_kernel)(f, gx, gy, gz, bx, by, bz, shared, stream, arguments,     \
                                         extra));                                                  \
    }
DEFINE_LAUNCH_KERNEL(cuLaunchKernel, LAUNCH_KERNEL)
DEFINE_LAUNCH_KERNEL(cuLaunchKernel_ptsz, LAUNCH_KERNEL_PTSZ)

#define DEFINE_LAUNCH_COOPERATIVE(name, hook)                                                      \
    EXPORT int name(pointer f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by,    \
                    unsigned bz, unsigned shared, pointer stream, pointer *arguments);             \
    int name(pointer f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by,           \
             unsigned bz, unsigned shared, pointer stream, pointer *arguments) {                   \
        LAUNCH(                                                                                    \
            stream, ST_CUPTI_CALL_KERNEL, NULL,                                                    \
            REAL(hook, launch_cooperative)(f, gx, gy, gz, bx, by, bz, shared, stream, arguments)); \
    }
DEFINE_LAUNCH_COOPERATIVE(cuLaunchCooperativeKernel, LAUNCH_COOPERATIVE)
DEFINE_LAUNCH_COOPERATIVE(cuLaunchCooperativeKernel_ptsz, LAUNCH_COOPERATIVE_PTSZ)

/* CUlaunchConfig: grid, block, shared memory (7 words of 4 bytes), the stream. */
static pointer stream_of(const void *config) {
    pointer stream;
    memcpy(&stream, (const char *)config + 32, sizeof stream);
    return stream;
}

#define DEFINE_LAUNCH_KERNEL_EX(name, hook)                                                        \
    EXPORT int name(pointer config, pointer f, pointer *arguments, pointer *extra);                \
    int name(pointer config, pointer f, pointer *arguments, pointer *extra) {                      \
        LAUNCH(stream_of(config), ST_CUPTI_CALL_KERNEL, NULL,                                      \
               REAL(hook, launch_kernel_ex)(config, f, arguments, extra));                         \
    }
DEFINE_LAUNCH_KERNEL_EX(cuLaunchKernelEx, LAUNCH_KERNEL_EX)
DEFINE_LAUNCH_KERNEL_EX(cuLaunchKernelEx_ptsz, LAUNCH_KERNEL_EX_PTSZ)

#define DEFINE_GRAPH_LAUNCH(name, hook)                                                            \
    EXPORT int name(pointer exec, pointer stream);                                                 \
    int name(pointer exec, pointer stream) {                                                       \
        LAUNCH(stream, ST_CUPTI_CALL_GRAPH, exec, REAL(hook, graph_launch)(exec, stream));         \
    }
DEFINE_GRAPH_LAUNCH(cuGraphLaunch, GRAPH_LAUNCH)
DEFINE_GRAPH_LAUNCH(cuGraphLaunch_ptsz, GRAPH_LAUNCH_PTSZ)

/* ---- graphs: how many kernels each has */

/* CUgraphNodeType: kernel 0, memcpy, memset, host, then graph 4; what is above may run others. */
static int64_t kernels_in(pointer graph) {
    size_t total = 0;
    int64_t kernels = 0;
    pthread_once(&driver_once, find_driver);
    if (!driver.get_nodes || !driver.node_type || driver.get_nodes(graph, NULL, &total) != 0)
        return -1;
    pointer *node = calloc(total + 1, sizeof *node);
    if (!node || driver.get_nodes(graph, node, &total) != 0)
        kernels = -1;
    for (size_t i = 0; kernels >= 0 && i < total; i++) {
        int type = -1;
        if (driver.node_type(node[i], &type) != 0 || type < 0 || type == 4 || type > 12)
            kernels = -1;
        else
            kernels += type == 0;
    }
    free(node);
    return kernels;
}

static int instantiate(enum hook hook, pointer exec, pointer graph, pointer a, pointer b,
                       pointer c) {
    int result = REAL(hook, five_words)(exec, graph, a, b, c);
    if (result == 0 && exec) {
        pointer made;
        memcpy(&made, exec, sizeof made);
        st_inject_set_graph((uint64_t)(uintptr_t)made, kernels_in(graph));
    }
    return result;
}

static int graph_instantiate(pointer exec, pointer graph, pointer a, pointer b, pointer c) {
    return instantiate(GRAPH_INSTANTIATE, exec, graph, a, b, c);
}

static int graph_instantiate_flags(pointer exec, pointer graph, pointer a, pointer b, pointer c) {
    return instantiate(GRAPH_INSTANTIATE_FLAGS, exec, graph, a, b, c);
}

static int graph_instantiate_params(pointer exec, pointer graph, pointer a, pointer b, pointer c) {
    return instantiate(GRAPH_INSTANTIATE_PARAMS, exec, graph, a, b, c);
}

static int graph_exec_destroy(pointer exec, pointer a, pointer b, pointer c, pointer d) {
    const struct st_cupti_graph_event gone = {.change = ST_CUPTI_INSTANCE_GONE,
                                              .exec = (uint64_t)(uintptr_t)exec};
    st_inject_on_graph(&gone);
    return REAL(GRAPH_EXEC_DESTROY, five_words)(exec, a, b, c, d);
}

/* ---- captures */

static int begin_capture(enum hook hook, pointer stream, pointer a, pointer b, pointer c, size_t d,
                         int e) {
    atomic_fetch_add(&captures, 1);
    int result = REAL(hook, six_words)(stream, a, b, c, d, e);
    if (result != 0)
        atomic_fetch_sub(&captures, 1);
    return result;
}

#define DEFINE_BEGIN_CAPTURE(name, hook)                                                           \
    static int name(pointer stream, pointer a, pointer b, pointer c, size_t d, int e) {            \
        return begin_capture(hook, stream, a, b, c, d, e);                                         \
    }
DEFINE_BEGIN_CAPTURE(begin_capture_plain, BEGIN_CAPTURE)
DEFINE_BEGIN_CAPTURE(begin_capture_ptsz, BEGIN_CAPTURE_PTSZ)
DEFINE_BEGIN_CAPTURE(begin_capture_to, BEGIN_CAPTURE_TO)
DEFINE_BEGIN_CAPTURE(begin_capture_to_ptsz, BEGIN_CAPTURE_TO_PTSZ)

/* It ends the capture also when it fails, but for calls that were wrong from the start. */
static int end_capture(enum hook hook, pointer stream, pointer graph) {
    bool was = is_captured(stream);
    int result = REAL(hook, graph_launch)(stream, graph);
    if (was || result == 0)
        atomic_fetch_sub(&captures, 1);
    return result;
}

static int end_capture_plain(pointer stream, pointer graph) {
    return end_capture(END_CAPTURE, stream, graph);
}

static int end_capture_ptsz(pointer stream, pointer graph) {
    return end_capture(END_CAPTURE_PTSZ, stream, graph);
}

/* ---- handing them out */

static int hooked_get_proc_address(const char *symbol, pointer *address, int version,
                                   uint64_t flags);
static int hooked_get_proc_address_2(const char *symbol, pointer *address, int version,
                                     uint64_t flags, int *status);

static const struct {
    const char *name; /* as dlsym() is asked for it */
    function *ours;
} hooks[HOOKS] = {
    [LAUNCH_KERNEL] = {"cuLaunchKernel", (function *)cuLaunchKernel},
    [LAUNCH_KERNEL_PTSZ] = {"cuLaunchKernel_ptsz", (function *)cuLaunchKernel_ptsz},
    [LAUNCH_KERNEL_EX] = {"cuLaunchKernelEx", (function *)cuLaunchKernelEx},
    [LAUNCH_KERNEL_EX_PTSZ] = {"cuLaunchKernelEx_ptsz", (function *)cuLaunchKernelEx_ptsz},
    [LAUNCH_COOPERATIVE] = {"cuLaunchCooperativeKernel", (function *)cuLaunchCooperativeKernel},
    [LAUNCH_COOPERATIVE_PTSZ] = {"cuLaunchCooperativeKernel_ptsz",
                                 (function *)cuLaunchCooperativeKernel_ptsz},
    [GRAPH_LAUNCH] = {"cuGraphLaunch", (function *)cuGraphLaunch},
    [GRAPH_LAUNCH_PTSZ] = {"cuGraphLaunch_ptsz", (function *)cuGraphLaunch_ptsz},
    [GRAPH_INSTANTIATE] = {"cuGraphInstantiate", (function *)graph_instantiate},
    [GRAPH_INSTANTIATE_FLAGS] = {"cuGraphInstantiateWithFlags",
                                 (function *)graph_instantiate_flags},
    [GRAPH_INSTANTIATE_PARAMS] = {"cuGraphInstantiateWithParams",
                                  (function *)graph_instantiate_params},
    [GRAPH_EXEC_DESTROY] = {"cuGraphExecDestroy", (function *)graph_exec_destroy},
    [BEGIN_CAPTURE] = {"cuStreamBeginCapture_v2", (function *)begin_capture_plain},
    [BEGIN_CAPTURE_PTSZ] = {"cuStreamBeginCapture_v2_ptsz", (function *)begin_capture_ptsz},
    [BEGIN_CAPTURE_TO] = {"cuStreamBeginCaptureToGraph", (function *)begin_capture_to},
    [BEGIN_CAPTURE_TO_PTSZ] = {"cuStreamBeginCaptureToGraph_ptsz",
                               (function *)begin_capture_to_ptsz},
    [END_CAPTURE] = {"cuStreamEndCapture", (function *)end_capture_plain},
    [END_CAPTURE_PTSZ] = {"cuStreamEndCapture_ptsz", (function *)end_capture_ptsz},
    [GET_PROC_ADDRESS] = {"cuGetProcAddress", (function *)hooked_get_proc_address},
    [GET_PROC_ADDRESS_2] = {"cuGetProcAddress_v2", (function *)hooked_get_proc_address_2},
};

/* What a caller gets for a name: ours, when theirs is known; the last one that was told counts. */
static pointer answer(enum hook hook, pointer theirs) {
    function *f;
    pointer ours;
    memcpy(&f, &theirs, sizeof f);
    memcpy(&ours, &hooks[hook].ours, sizeof ours);
    if (theirs && theirs != ours)
        atomic_store(&real[hook], f);
    return theirs ? ours : NULL;
}

/* Somebody who links the driver calls before anybody asked. */
static function *real_of(enum hook hook) {
    function *f = atomic_load_explicit(&real[hook], memory_order_relaxed);
    if (f)
        return f;
    pointer library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    pointer p = library ? real_dlsym(library, hooks[hook].name) : NULL;
    (void)answer(hook, p);
    f = atomic_load(&real[hook]);
    if (!f)
        abort(); /* there is no driver to launch with */
    return f;
}

static int hook_of(const char *name, bool ptsz) {
    if (name[0] != 'c' || name[1] != 'u')
        return -1;
    for (int i = 0; i < HOOKS; i++)
        if (strcmp(hooks[i].name, name) == 0) {
            /* With the per-thread stream the driver has another function of the same name. */
            bool paired = i + 1 < HOOKS && strncmp(hooks[i + 1].name, name, strlen(name)) == 0 &&
                          strcmp(hooks[i + 1].name + strlen(name), "_ptsz") == 0;
            return ptsz && paired ? i + 1 : i;
        }
    return -1;
}

/* The names that the driver is asked for have no _v2; the version tells. */
static int hook_of_symbol(const char *symbol, int version, uint64_t flags) {
    bool ptsz = flags & 2; /* CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM */
    if (strcmp(symbol, "cuStreamBeginCapture") == 0)
        return version >= 10010 ? BEGIN_CAPTURE + ptsz : -1;
    if (strcmp(symbol, "cuGetProcAddress") == 0)
        return version >= 12000 ? GET_PROC_ADDRESS_2 : GET_PROC_ADDRESS;
    if (strcmp(symbol, "cuGraphInstantiate") == 0 && version >= 12000)
        return GRAPH_INSTANTIATE_FLAGS;
    return hook_of(symbol, ptsz);
}

static int hooked_get_proc_address(const char *symbol, pointer *address, int version,
                                   uint64_t flags) {
    int result = REAL(GET_PROC_ADDRESS, get_proc_address)(symbol, address, version, flags);
    int hook = symbol && result == 0 && address ? hook_of_symbol(symbol, version, flags) : -1;
    if (hook >= 0 && *address)
        *address = answer((enum hook)hook, *address);
    return result;
}

static int hooked_get_proc_address_2(const char *symbol, pointer *address, int version,
                                     uint64_t flags, int *status) {
    int result =
        REAL(GET_PROC_ADDRESS_2, get_proc_address_2)(symbol, address, version, flags, status);
    int hook = symbol && result == 0 && address ? hook_of_symbol(symbol, version, flags) : -1;
    if (hook >= 0 && *address)
        *address = answer((enum hook)hook, *address);
    return result;
}

/* ---- dlsym */

/* NULL: the question goes on to the real dlsym(), with the caller's own return address, by which
 * that one knows whose RTLD_NEXT is meant. */
__attribute__((visibility("hidden"), used)) pointer st_inject_dlsym(pointer handle,
                                                                    const char *name);

pointer st_inject_dlsym(pointer handle, const char *name) {
    if (!__atomic_load_n(&st_inject_real_dlsym, __ATOMIC_ACQUIRE))
        find_real_dlsym();
    int hook = name && handle != RTLD_NEXT ? hook_of(name, false) : -1;
    return hook >= 0 ? answer((enum hook)hook, real_dlsym(handle, name)) : NULL;
}

#if defined(__x86_64__)
__asm__(".text\n"
        ".globl dlsym\n"
        ".type dlsym, @function\n"
        "dlsym:\n"
        "  endbr64\n"
        "  push %rdi\n"
        "  push %rsi\n"
        "  sub $8, %rsp\n"
        "  call st_inject_dlsym\n"
        "  add $8, %rsp\n"
        "  pop %rsi\n"
        "  pop %rdi\n"
        "  test %rax, %rax\n"
        "  jne 1f\n"
        "  mov st_inject_real_dlsym(%rip), %rax\n"
        "  jmp *%rax\n"
        "1: ret\n"
        ".size dlsym, . - dlsym\n");
#elif defined(__aarch64__)
__asm__(".text\n"
        ".globl dlsym\n"
        ".type dlsym, %function\n"
        "dlsym:\n"
        "  stp x29, x30, [sp, #-32]!\n"
        "  stp x0, x1, [sp, #16]\n"
        "  mov x29, sp\n"
        "  bl st_inject_dlsym\n"
        "  mov x9, x0\n"
        "  ldp x0, x1, [sp, #16]\n"
        "  ldp x29, x30, [sp], #32\n"
        "  cbnz x9, 1f\n"
        "  adrp x9, st_inject_real_dlsym\n"
        "  ldr x9, [x9, #:lo12:st_inject_real_dlsym]\n"
        "  br x9\n"
        "1: mov x0, x9\n"
        "  ret\n"
        ".size dlsym, . - dlsym\n");
#endif

bool st_inject_hooks_present(void) {
#if defined(__x86_64__) || defined(__aarch64__)
    pointer first = real_dlsym(RTLD_DEFAULT, "cuGraphLaunch");
    function *ours = (function *)cuGraphLaunch;
    return first && memcmp(&first, &ours, sizeof ours) == 0;
#else
    return false;
#endif
}

void st_inject_hooks_enable(bool on) {
    atomic_store(&counting, on);
}
