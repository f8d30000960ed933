/* SPDX-License-Identifier: Apache-2.0 */
/*
 * CUPTI behind the table of api_i.h.  The only file that includes its headers; the library itself
 * is opened at run time, so that the program starts where it is not installed.
 *
 * The fields that we read sit at the same offsets in all kernel records from CUDA 11.5 (Kernel7)
 * on: asserted below for the versions that the headers know, and newer records only grow at the
 * end.
 */
#include "capture/cupti/api_i.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#ifdef ST_HAVE_CUPTI_HEADERS

#include <dlfcn.h>
#include <cupti.h>
#if CUPTI_API_VERSION >= 130000
#include <cupti_activity_deprecated.h>
typedef CUpti_ActivityKernel10 kernel_record;
#define SAME_OFFSET(field)                                                                         \
    _Static_assert(                                                                                \
        offsetof(CUpti_ActivityKernel10, field) == offsetof(CUpti_ActivityKernel7, field) &&       \
            offsetof(CUpti_ActivityKernel10, field) == offsetof(CUpti_ActivityKernel9, field),     \
        "CUPTI moved " #field)
SAME_OFFSET(start);
SAME_OFFSET(end);
SAME_OFFSET(gridX);
SAME_OFFSET(blockX);
SAME_OFFSET(correlationId);
SAME_OFFSET(name);
SAME_OFFSET(graphNodeId);
SAME_OFFSET(graphId);
SAME_OFFSET(dynamicSharedMemory);
SAME_OFFSET(streamId);
#else
typedef CUpti_ActivityKernel9 kernel_record;
#endif

_Static_assert((int)ST_CUPTI_MAX_LIMIT_REACHED == (int)CUPTI_ERROR_MAX_LIMIT_REACHED,
               "CUPTI result code");
_Static_assert((int)ST_CUPTI_MULTIPLE_SUBSCRIBERS ==
                   (int)CUPTI_ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED,
               "CUPTI result code");

enum { OLDEST_VERSION = 16 };

struct library {
    st_cupti_call_fn *on_call;
    st_cupti_graph_fn *on_graph;
    void *handle;
    char path[512];
    CUpti_SubscriberHandle subscriber;
    CUptiResult (*get_version)(uint32_t *);
    CUptiResult (*subscribe)(CUpti_SubscriberHandle *, CUpti_CallbackFunc, void *);
#if CUPTI_API_VERSION >= 130000
    CUptiResult (*subscribe_v2)(CUpti_SubscriberHandle *, CUpti_CallbackFunc, void *,
                                CUpti_SubscriberParams *); /* NULL before CUDA 13.0 */
#endif
    CUptiResult (*unsubscribe)(CUpti_SubscriberHandle);
    CUptiResult (*register_callbacks)(CUpti_BuffersCallbackRequestFunc,
                                      CUpti_BuffersCallbackCompleteFunc);
    CUptiResult (*enable)(CUpti_ActivityKind);
    CUptiResult (*disable)(CUpti_ActivityKind);
    CUptiResult (*flush_all)(uint32_t);
    CUptiResult (*get_dropped)(CUcontext, uint32_t, size_t *);
    CUptiResult (*next)(uint8_t *, size_t, CUpti_Activity **);
    CUptiResult (*set_attribute)(CUpti_ActivityAttribute, size_t *, void *);
    CUptiResult (*result_string)(CUptiResult, const char **);
    CUptiResult (*enable_callback)(uint32_t, CUpti_SubscriberHandle, CUpti_CallbackDomain,
                                   CUpti_CallbackId);
    CUptiResult (*timestamp_callback)(CUpti_TimestampCallbackFunc); /* NULL before CUDA 11.x */
    CUptiResult (*enable_driver_call)(CUpti_CallbackId, uint8_t);   /* NULL before CUDA 12.x */
    CUptiResult (*callback_name)(CUpti_CallbackDomain, uint32_t, const char **);
};

static void CUPTIAPI ignore_callback(void *user, CUpti_CallbackDomain domain, CUpti_CallbackId id,
                                     const void *data) {
    (void)user, (void)domain, (void)id, (void)data;
}

static int subscribe(struct library *lib, CUpti_CallbackFunc callback,
                     char other[ST_CUPTI_SUBSCRIBER_NAME_BYTES]) {
    other[0] = 0;
#if CUPTI_API_VERSION >= 130000
    if (lib->subscribe_v2) {
        CUpti_SubscriberParams params;
        memset(&params, 0, sizeof params);
        params.structSize = CUpti_SubscriberParams_STRUCT_SIZE;
        params.subscriberName = "steptape";
        params.oldSubscriberName = other;
        params.oldSubscriberSize = ST_CUPTI_SUBSCRIBER_NAME_BYTES;
        return lib->subscribe_v2(&lib->subscriber, callback, lib, &params);
    }
#endif
    return lib->subscribe(&lib->subscriber, callback, lib);
}

static int api_subscribe(void *self, char other[ST_CUPTI_SUBSCRIBER_NAME_BYTES]) {
    return subscribe(self, ignore_callback, other);
}

static int api_unsubscribe(void *self) {
    struct library *lib = self;
    return lib->unsubscribe(lib->subscriber);
}

static int api_register(void *self, st_cupti_request_fn *request, st_cupti_complete_fn *complete) {
    struct library *lib = self;
    /* The collector hands out zeroed buffers; without this CUPTI clears them on the thread that
     * launches.  Older libraries do not know the attribute: slower, nothing else. */
    uint8_t zeroed = 1;
    size_t size = sizeof zeroed;
    (void)lib->set_attribute(CUPTI_ACTIVITY_ATTR_ZEROED_OUT_ACTIVITY_BUFFER, &size, &zeroed);
    return lib->register_callbacks((CUpti_BuffersCallbackRequestFunc)request,
                                   (CUpti_BuffersCallbackCompleteFunc)complete);
}

static int api_enable(void *self) {
    struct library *lib = self;
    CUptiResult result = lib->enable(CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL);
    return result != CUPTI_SUCCESS ? result : lib->enable(CUPTI_ACTIVITY_KIND_MEMSET);
}

static int api_disable(void *self) {
    struct library *lib = self;
    CUptiResult memset_result = lib->disable(CUPTI_ACTIVITY_KIND_MEMSET);
    CUptiResult result = lib->disable(CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL);
    return result != CUPTI_SUCCESS ? result : memset_result;
}

static int api_flush(void *self, int forced) {
    struct library *lib = self;
    return lib->flush_all(forced ? CUPTI_ACTIVITY_FLAG_FLUSH_FORCED : 0);
}

static int api_dropped(void *self, size_t *count) {
    struct library *lib = self;
    return lib->get_dropped(NULL, 0, count);
}

static int api_next(void *self, uint8_t *buffer, size_t valid, void **record) {
    struct library *lib = self;
    CUpti_Activity *activity = *record;
    int result = lib->next(buffer, valid, &activity);
    *record = activity;
    return result;
}

/* A memory set is a launch too: it has no name, no grid and no block. */
static int decode_memset(const void *record, struct st_kernel_record *out) {
    const CUpti_ActivityMemset4 *m = record;
    out->name = ST_CUPTI_MEMSET_NAME;
    out->start_ns = (int64_t)m->start;
    out->end_ns = (int64_t)m->end;
    out->graph_node_id = m->graphNodeId;
    out->correlation_id = m->correlationId;
    return 1;
}

static int api_decode(void *self, const void *record, struct st_kernel_record *out) {
    (void)self;
    const CUpti_Activity *activity = record;
    if (activity->kind == CUPTI_ACTIVITY_KIND_MEMSET)
        return decode_memset(record, out);
    if (activity->kind != CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL &&
        activity->kind != CUPTI_ACTIVITY_KIND_KERNEL)
        return 0;
    const kernel_record *k = record;
    out->name = k->name;
    out->start_ns = (int64_t)k->start;
    out->end_ns = (int64_t)k->end;
    out->graph_node_id = k->graphNodeId;
    out->correlation_id = k->correlationId;
    out->grid[0] = k->gridX;
    out->grid[1] = k->gridY;
    out->grid[2] = k->gridZ;
    out->block[0] = k->blockX;
    out->block[1] = k->blockY;
    out->block[2] = k->blockZ;
    return 1;
}

static const char *api_text(void *self, int result) {
    struct library *lib = self;
    const char *text = NULL;
    if (lib->result_string((CUptiResult)result, &text) != CUPTI_SUCCESS || !text)
        return "unknown CUPTI result";
    return text;
}

/* ---- launch capture */

static const CUpti_CallbackId launching[] = {
    CUPTI_DRIVER_TRACE_CBID_cuLaunchKernel,
    CUPTI_DRIVER_TRACE_CBID_cuLaunchKernel_ptsz,
    CUPTI_DRIVER_TRACE_CBID_cuLaunchKernelEx,
    CUPTI_DRIVER_TRACE_CBID_cuLaunchKernelEx_ptsz,
    CUPTI_DRIVER_TRACE_CBID_cuLaunchCooperativeKernel,
    CUPTI_DRIVER_TRACE_CBID_cuLaunchCooperativeKernel_ptsz,
    CUPTI_DRIVER_TRACE_CBID_cuGraphLaunch,
    CUPTI_DRIVER_TRACE_CBID_cuGraphLaunch_ptsz,
};
enum { LAUNCHING = sizeof launching / sizeof launching[0] };

/* Every copy and memory set that is no array's, with its variants for the per-thread stream. */
#define ID(name) CUPTI_DRIVER_TRACE_CBID_##name
#define BOTH(name, per_thread) ID(name), ID(name##per_thread)
static const CUpti_CallbackId memory_calls[] = {
    BOTH(cuMemcpy, _ptds),
    BOTH(cuMemcpyAsync, _ptsz),
    BOTH(cuMemcpyHtoD_v2, _ptds),
    BOTH(cuMemcpyHtoDAsync_v2, _ptsz),
    BOTH(cuMemcpyDtoH_v2, _ptds),
    BOTH(cuMemcpyDtoHAsync_v2, _ptsz),
    BOTH(cuMemcpyDtoD_v2, _ptds),
    BOTH(cuMemcpyDtoDAsync_v2, _ptsz),
    BOTH(cuMemcpy2D_v2, _ptds),
    BOTH(cuMemcpy2DUnaligned_v2, _ptds),
    BOTH(cuMemcpy2DAsync_v2, _ptsz),
    BOTH(cuMemcpy3D_v2, _ptds),
    BOTH(cuMemcpy3DAsync_v2, _ptsz),
    BOTH(cuMemcpyPeer, _ptds),
    BOTH(cuMemcpyPeerAsync, _ptsz),
    BOTH(cuMemcpy3DPeer, _ptds),
    BOTH(cuMemcpy3DPeerAsync, _ptsz),
    BOTH(cuMemsetD8_v2, _ptds),
    BOTH(cuMemsetD16_v2, _ptds),
    BOTH(cuMemsetD32_v2, _ptds),
    BOTH(cuMemsetD2D8_v2, _ptds),
    BOTH(cuMemsetD2D16_v2, _ptds),
    BOTH(cuMemsetD2D32_v2, _ptds),
    BOTH(cuMemsetD8Async, _ptsz),
    BOTH(cuMemsetD16Async, _ptsz),
    BOTH(cuMemsetD32Async, _ptsz),
    BOTH(cuMemsetD2D8Async, _ptsz),
    BOTH(cuMemsetD2D16Async, _ptsz),
    BOTH(cuMemsetD2D32Async, _ptsz),
};
enum { MEMORY_CALLS = sizeof memory_calls / sizeof memory_calls[0] };

static const CUpti_CallbackId graph_changes[] = {
    CUPTI_CBID_RESOURCE_GRAPHNODE_CREATED,          CUPTI_CBID_RESOURCE_GRAPH_CLONED,
    CUPTI_CBID_RESOURCE_GRAPH_DESTROY_STARTING,     CUPTI_CBID_RESOURCE_GRAPHEXEC_CREATED,
    CUPTI_CBID_RESOURCE_GRAPHEXEC_DESTROY_STARTING,
};
enum { GRAPH_CHANGES = sizeof graph_changes / sizeof graph_changes[0] };

static void tell_graph(struct library *lib, CUpti_CallbackId id, const CUpti_GraphData *g) {
    struct st_cupti_graph_event event = {.graph = (uint64_t)(uintptr_t)g->graph,
                                         .original = (uint64_t)(uintptr_t)g->originalGraph,
                                         .exec = (uint64_t)(uintptr_t)g->graphExec};
    switch (id) {
    case CUPTI_CBID_RESOURCE_GRAPHNODE_CREATED:
        event.change = ST_CUPTI_NODE_ADDED;
        event.kernel = g->nodeType == CU_GRAPH_NODE_TYPE_KERNEL;
        event.nested =
            g->nodeType != CU_GRAPH_NODE_TYPE_KERNEL && g->nodeType != CU_GRAPH_NODE_TYPE_MEMCPY &&
            g->nodeType != CU_GRAPH_NODE_TYPE_MEMSET && g->nodeType != CU_GRAPH_NODE_TYPE_EMPTY &&
            g->nodeType != CU_GRAPH_NODE_TYPE_WAIT_EVENT &&
            g->nodeType != CU_GRAPH_NODE_TYPE_EVENT_RECORD &&
            g->nodeType != CU_GRAPH_NODE_TYPE_HOST;
        break;
    case CUPTI_CBID_RESOURCE_GRAPH_CLONED:
        event.change = ST_CUPTI_GRAPH_CLONED;
        break;
    case CUPTI_CBID_RESOURCE_GRAPH_DESTROY_STARTING:
        event.change = ST_CUPTI_GRAPH_GONE;
        break;
    case CUPTI_CBID_RESOURCE_GRAPHEXEC_CREATED:
        event.change = ST_CUPTI_GRAPH_INSTANCE;
        break;
    default:
        event.change = ST_CUPTI_INSTANCE_GONE;
    }
    lib->on_graph(&event);
}

static int is_launching(CUpti_CallbackId id) {
    for (int i = 0; i < LAUNCHING; i++)
        if (launching[i] == id)
            return 1;
    return 0;
}

static void CUPTIAPI tell_launch(void *user, CUpti_CallbackDomain domain, CUpti_CallbackId id,
                                 const void *data) {
    struct library *lib = user;
    if (domain == CUPTI_CB_DOMAIN_DRIVER_API) {
        const CUpti_CallbackData *c = data;
        if (!is_launching(id)) {
            if (c->callbackSite == CUPTI_API_ENTER)
                lib->on_call(ST_CUPTI_CALL_MEMORY, c->correlationId, 0);
        } else if (c->callbackSite != CUPTI_API_ENTER) {
            CUresult result = c->functionReturnValue ? *(CUresult *)c->functionReturnValue : 0;
            lib->on_call(result == CUDA_SUCCESS ? ST_CUPTI_CALL_DONE : ST_CUPTI_CALL_FAILED,
                         c->correlationId, 0);
        } else if (id == CUPTI_DRIVER_TRACE_CBID_cuGraphLaunch ||
                   id == CUPTI_DRIVER_TRACE_CBID_cuGraphLaunch_ptsz) {
            const cuGraphLaunch_params *p = c->functionParams;
            lib->on_call(ST_CUPTI_CALL_GRAPH, c->correlationId, (uint64_t)(uintptr_t)p->hGraph);
        } else {
            lib->on_call(ST_CUPTI_CALL_KERNEL, c->correlationId, 0);
        }
    } else if (domain == CUPTI_CB_DOMAIN_RESOURCE) {
        const CUpti_ResourceData *r = data;
        if (r->resourceDescriptor)
            tell_graph(lib, id, r->resourceDescriptor);
    }
}

static int api_subscribe_launches(void *self, st_cupti_call_fn *on_call,
                                  st_cupti_graph_fn *on_graph,
                                  char other[ST_CUPTI_SUBSCRIBER_NAME_BYTES]) {
    struct library *lib = self;
    lib->on_call = on_call;
    lib->on_graph = on_graph;
    int result = subscribe(lib, tell_launch, other);
    for (int i = 0; result == CUPTI_SUCCESS && i < GRAPH_CHANGES; i++)
        result =
            lib->enable_callback(1, lib->subscriber, CUPTI_CB_DOMAIN_RESOURCE, graph_changes[i]);
    return result;
}

static int enable_callbacks(struct library *lib, const CUpti_CallbackId *id, int count, int on) {
    int result = CUPTI_SUCCESS;
    for (int i = 0; result == CUPTI_SUCCESS && i < count; i++)
        result =
            lib->enable_callback((uint32_t)on, lib->subscriber, CUPTI_CB_DOMAIN_DRIVER_API, id[i]);
    return result;
}

static int api_enable_calls(void *self, int launches, int memory) {
    int result = enable_callbacks(self, launching, LAUNCHING, launches);
    return result != CUPTI_SUCCESS ? result
                                   : enable_callbacks(self, memory_calls, MEMORY_CALLS, memory);
}

static int enable_driver_calls(struct library *lib, int on) {
    if (!lib->enable_driver_call)
        return on ? lib->enable(CUPTI_ACTIVITY_KIND_DRIVER)
                  : lib->disable(CUPTI_ACTIVITY_KIND_DRIVER);
    int result = CUPTI_SUCCESS;
    for (int i = 0; result == CUPTI_SUCCESS && i < LAUNCHING; i++)
        result = lib->enable_driver_call(launching[i], (uint8_t)on);
    return result;
}

static int api_enable_records(void *self, unsigned records, int on) {
    static const struct {
        unsigned record;
        CUpti_ActivityKind kind;
    } kinds[] = {
        {ST_CUPTI_GRAPHS, CUPTI_ACTIVITY_KIND_GRAPH_TRACE},
        {ST_CUPTI_KERNELS, CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL},
        {ST_CUPTI_COPIES, CUPTI_ACTIVITY_KIND_MEMCPY},
        {ST_CUPTI_COPIES, CUPTI_ACTIVITY_KIND_MEMCPY2},
        {ST_CUPTI_MEMSETS, CUPTI_ACTIVITY_KIND_MEMSET},
    };
    struct library *lib = self;
    int result = CUPTI_SUCCESS;
    for (size_t i = 0; result == CUPTI_SUCCESS && i < sizeof kinds / sizeof kinds[0]; i++)
        if (records & kinds[i].record)
            result = on ? lib->enable(kinds[i].kind) : lib->disable(kinds[i].kind);
    if (result == CUPTI_SUCCESS && records & ST_CUPTI_CALLS)
        result = enable_driver_calls(lib, on);
    return result;
}

static int api_set_clock(void *self, uint64_t (*now_ns)(void)) {
    struct library *lib = self;
    return lib->timestamp_callback ? lib->timestamp_callback(now_ns) : CUPTI_ERROR_NOT_SUPPORTED;
}

/* What the records of all kinds share, under the same names. */
#define SITE_OF(r) .graph_id = (r)->graphId, .stream_id = (r)->streamId, .device_id = (r)->deviceId
#define LAUNCH_OF(r)                                                                               \
    .start_ns = (int64_t)(r)->start, .end_ns = (int64_t)(r)->end,                                  \
    .correlation_id = (r)->correlationId

static void launch_kernel(const kernel_record *k, struct st_launch_site *s,
                          struct st_launch_record *l) {
    *s = (struct st_launch_site){.kind = ST_LAUNCH_KERNEL,
                                 SITE_OF(k),
                                 .graph_node_id = k->graphNodeId,
                                 .name = k->name,
                                 .grid = {k->gridX, k->gridY, k->gridZ},
                                 .block = {k->blockX, k->blockY, k->blockZ},
                                 .shared_bytes = k->staticSharedMemory + k->dynamicSharedMemory};
    *l = (struct st_launch_record){LAUNCH_OF(k)};
}

static const char *copy_name(uint8_t kind) {
    static const char *const names[] = {"[memcpy]",      "[memcpy HtoD]", "[memcpy DtoH]",
                                        "[memcpy HtoA]", "[memcpy AtoH]", "[memcpy AtoA]",
                                        "[memcpy AtoD]", "[memcpy DtoA]", "[memcpy DtoD]",
                                        "[memcpy HtoH]", "[memcpy PtoP]"};
    return kind < sizeof names / sizeof names[0] ? names[kind] : names[0];
}

static void launch_copy(const CUpti_ActivityMemcpy6 *m, struct st_launch_site *s,
                        struct st_launch_record *l) {
    *s = (struct st_launch_site){.kind = ST_LAUNCH_MEMCPY,
                                 SITE_OF(m),
                                 .graph_node_id = m->graphNodeId,
                                 .name = copy_name(m->copyKind)};
    *l = (struct st_launch_record){LAUNCH_OF(m), .bytes = (int64_t)m->bytes};
}

static void launch_peer_copy(const CUpti_ActivityMemcpyPtoP4 *m, struct st_launch_site *s,
                             struct st_launch_record *l) {
    *s = (struct st_launch_site){.kind = ST_LAUNCH_MEMCPY,
                                 SITE_OF(m),
                                 .graph_node_id = m->graphNodeId,
                                 .name = copy_name(CUPTI_ACTIVITY_MEMCPY_KIND_PTOP)};
    *l = (struct st_launch_record){LAUNCH_OF(m), .bytes = (int64_t)m->bytes};
}

static void launch_memset(const CUpti_ActivityMemset4 *m, struct st_launch_site *s,
                          struct st_launch_record *l) {
    *s = (struct st_launch_site){.kind = ST_LAUNCH_MEMSET,
                                 SITE_OF(m),
                                 .graph_node_id = m->graphNodeId,
                                 .name = ST_CUPTI_MEMSET_NAME};
    *l = (struct st_launch_record){LAUNCH_OF(m), .bytes = (int64_t)m->bytes};
}

static void launch_graph(const CUpti_ActivityGraphTrace2 *g, struct st_launch_site *s,
                         struct st_launch_record *l) {
    *s = (struct st_launch_site){.kind = ST_LAUNCH_GRAPH, SITE_OF(g), .name = "[graph]"};
    *l = (struct st_launch_record){LAUNCH_OF(g)};
}

static int launch_call(struct library *lib, const CUpti_ActivityAPI *a, struct st_launch_site *s,
                       struct st_launch_record *l) {
    const char *name = NULL;
    if (!is_launching(a->cbid))
        return 0;
    (void)lib->callback_name(CUPTI_CB_DOMAIN_DRIVER_API, a->cbid, &name);
    *s = (struct st_launch_site){.kind = ST_LAUNCH_API, .name = name, .stream_id = a->threadId};
    *l = (struct st_launch_record){LAUNCH_OF(a)};
    return 1;
}

static int api_decode_launch(void *self, const void *record, struct st_launch_site *site,
                             struct st_launch_record *launch) {
    const CUpti_Activity *activity = record;
    switch (activity->kind) {
    case CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL:
    case CUPTI_ACTIVITY_KIND_KERNEL:
        launch_kernel(record, site, launch);
        return 1;
    case CUPTI_ACTIVITY_KIND_GRAPH_TRACE:
        launch_graph(record, site, launch);
        return 1;
    case CUPTI_ACTIVITY_KIND_MEMCPY:
        launch_copy(record, site, launch);
        return 1;
    case CUPTI_ACTIVITY_KIND_MEMCPY2:
        launch_peer_copy(record, site, launch);
        return 1;
    case CUPTI_ACTIVITY_KIND_MEMSET:
        launch_memset(record, site, launch);
        return 1;
    case CUPTI_ACTIVITY_KIND_DRIVER:
        return launch_call(self, record, site, launch);
    default:
        return 0;
    }
}

/* The library stays mapped: CUPTI has threads and driver hooks of its own that outlive us. */
static void api_close(void *self) {
    free(self);
}

static int find_symbols(struct library *lib, struct st_error *err) {
    const struct {
        const char *name;
        void *slot;
        int optional;
    } symbol[] = {
        {"cuptiGetVersion", &lib->get_version, 0},
        {"cuptiSubscribe", &lib->subscribe, 0},
#if CUPTI_API_VERSION >= 130000
        {"cuptiSubscribe_v2", &lib->subscribe_v2, 1},
#endif
        {"cuptiUnsubscribe", &lib->unsubscribe, 0},
        {"cuptiActivityRegisterCallbacks", &lib->register_callbacks, 0},
        {"cuptiActivityEnable", &lib->enable, 0},
        {"cuptiActivityDisable", &lib->disable, 0},
        {"cuptiActivityFlushAll", &lib->flush_all, 0},
        {"cuptiActivityGetNumDroppedRecords", &lib->get_dropped, 0},
        {"cuptiActivityGetNextRecord", &lib->next, 0},
        {"cuptiActivitySetAttribute", &lib->set_attribute, 0},
        {"cuptiGetResultString", &lib->result_string, 0},
        {"cuptiEnableCallback", &lib->enable_callback, 0},
        {"cuptiGetCallbackName", &lib->callback_name, 0},
        {"cuptiActivityRegisterTimestampCallback", &lib->timestamp_callback, 1},
        {"cuptiActivityEnableDriverApi", &lib->enable_driver_call, 1},
    };
    for (size_t i = 0; i < sizeof symbol / sizeof symbol[0]; i++) {
        void *address = dlsym(lib->handle, symbol[i].name);
        if (!address && !symbol[i].optional)
            return ST_FAIL(err, ST_ERR_UNAVAILABLE,
                           "%s: has no %s: not a CUPTI of CUDA 11.5 or later", lib->path,
                           symbol[i].name);
        memcpy(symbol[i].slot, &address, sizeof address);
    }
    return 0;
}

static void *try_open(struct library *lib, const char *path) {
    snprintf(lib->path, sizeof lib->path, "%s", path);
    return lib->handle = dlopen(path, RTLD_NOW | RTLD_LOCAL);
}

static int find_library(struct library *lib, const char *path, const char *cuda_home,
                        struct st_error *err) {
    if (path) {
        if (try_open(lib, path))
            return 0;
        return ST_FAIL(err, ST_ERR_UNAVAILABLE, "%s", dlerror());
    }
    static const char *const soname[] = {"libcupti.so.13", "libcupti.so.12", "libcupti.so"};
    static const char *const folder[] = {"extras/CUPTI/lib64", "lib64"};
    enum { SONAMES = sizeof soname / sizeof soname[0] };
    /* One that is loaded already (PyTorch brings its own) is the one for this process. */
    for (size_t i = 0; i < SONAMES; i++) {
        snprintf(lib->path, sizeof lib->path, "%s", soname[i]);
        if ((lib->handle = dlopen(soname[i], RTLD_NOW | RTLD_LOCAL | RTLD_NOLOAD)))
            return 0;
    }
    for (size_t i = 0; i < SONAMES; i++)
        if (try_open(lib, soname[i]))
            return 0;
    const char *const home[] = {cuda_home, "/usr/local/cuda"};
    for (size_t h = 0; h < 2; h++) {
        for (size_t f = 0; home[h] && f < 2; f++) {
            for (size_t i = 0; i < SONAMES; i++) {
                char full[512];
                snprintf(full, sizeof full, "%s/%s/%s", home[h], folder[f], soname[i]);
                if (try_open(lib, full))
                    return 0;
            }
        }
    }
    return ST_FAIL(
        err, ST_ERR_UNAVAILABLE,
        "CUPTI is not installed: no libcupti.so.13, .12 or libcupti.so on the library path%s%s "
        "or in /usr/local/cuda",
        cuda_home ? ", in " : "", cuda_home ? cuda_home : "");
}

int st_cupti_api_open(const char *path, const char *cuda_home, struct st_cupti_api *api,
                      struct st_error *err) {
    struct library *lib = calloc(1, sizeof *lib);
    if (!lib)
        return ST_FAIL_NOMEM(err);
    int rc;
    uint32_t version = 0;
    ST_TRY_OUT(find_library(lib, path, cuda_home, err));
    ST_TRY_OUT(find_symbols(lib, err));
    if (lib->get_version(&version) != CUPTI_SUCCESS || version < OLDEST_VERSION) {
        rc = ST_FAIL(err, ST_ERR_UNAVAILABLE, "%s: CUPTI API version %u, at least %d expected",
                     lib->path, version, OLDEST_VERSION);
        goto out;
    }
    *api = (struct st_cupti_api){.self = lib,
                                 .library = lib->path,
                                 .version = version,
                                 .subscribe = api_subscribe,
                                 .unsubscribe = api_unsubscribe,
                                 .register_callbacks = api_register,
                                 .enable_kernels = api_enable,
                                 .disable_kernels = api_disable,
                                 .flush = api_flush,
                                 .dropped = api_dropped,
                                 .next_record = api_next,
                                 .decode = api_decode,
                                 .subscribe_launches = api_subscribe_launches,
                                 .enable_calls = api_enable_calls,
                                 .enable_records = api_enable_records,
                                 .set_clock = api_set_clock,
                                 .decode_launch = api_decode_launch,
                                 .text = api_text,
                                 .close = api_close};
    return 0;
out:
    free(lib);
    return rc;
}

#else /* no CUPTI headers */

int st_cupti_api_open(const char *path, const char *cuda_home, struct st_cupti_api *api,
                      struct st_error *err) {
    (void)path, (void)cuda_home, (void)api;
    return ST_FAIL(err, ST_ERR_UNSUPPORTED,
                   "this build has no CUPTI: it was made without the CUDA toolkit");
}

#endif
