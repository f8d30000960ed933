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
};

static void CUPTIAPI ignore_callback(void *user, CUpti_CallbackDomain domain, CUpti_CallbackId id,
                                     const void *data) {
    (void)user, (void)domain, (void)id, (void)data;
}

static int api_subscribe(void *self, char other[ST_CUPTI_SUBSCRIBER_NAME_BYTES]) {
    struct library *lib = self;
    other[0] = 0;
#if CUPTI_API_VERSION >= 130000
    if (lib->subscribe_v2) {
        CUpti_SubscriberParams params;
        memset(&params, 0, sizeof params);
        params.structSize = CUpti_SubscriberParams_STRUCT_SIZE;
        params.subscriberName = "steptape";
        params.oldSubscriberName = other;
        params.oldSubscriberSize = ST_CUPTI_SUBSCRIBER_NAME_BYTES;
        return lib->subscribe_v2(&lib->subscriber, ignore_callback, NULL, &params);
    }
#endif
    return lib->subscribe(&lib->subscriber, ignore_callback, NULL);
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
