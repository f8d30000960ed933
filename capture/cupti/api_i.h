/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The part of CUPTI that the collector uses, as a table: the real library stands behind it
 * (api.c), and in tests a fake one that needs no GPU and no CUDA headers.
 *
 * Functions return CUPTI's result code, 0 is success.  No CUPTI type passes through.
 */
#ifndef ST_CUPTI_API_I_H
#define ST_CUPTI_API_I_H

#include <stddef.h>
#include <stdint.h>

#include "capture/cupti/collector.h"
#include "traces/format/launch_code.h"

enum {
    ST_CUPTI_SUCCESS = 0,
    ST_CUPTI_MAX_LIMIT_REACHED = 12,      /* no more records in the buffer */
    ST_CUPTI_MULTIPLE_SUBSCRIBERS = 39,   /* another tool is there */
    ST_CUPTI_SUBSCRIBER_NAME_BYTES = 128, /* CUPTI asks for at least 64 */
    ST_CUPTI_BUFFER_ALIGN = 64,
};

typedef void st_cupti_request_fn(uint8_t **buffer, size_t *size, size_t *max_records);
typedef void st_cupti_complete_fn(void *context, uint32_t stream, uint8_t *buffer, size_t size,
                                  size_t valid);

/* ---- what launch capture needs beyond the collector (inject_i.h) */

/* Records that can be asked for. */
enum st_cupti_records {
    ST_CUPTI_KERNELS = 1, /* kernels, those of graphs node by node unless GRAPHS is on as well */
    ST_CUPTI_GRAPHS = 2,  /* one record a graph launch, none of its kernels */
    ST_CUPTI_COPIES = 4,
    ST_CUPTI_MEMSETS = 8,
    ST_CUPTI_CALLS = 16, /* the host's launching calls */
};

/* Calls that launch, on the thread that makes them. */
enum st_cupti_call {
    ST_CUPTI_CALL_KERNEL, /* begins; graph_exec is 0 */
    ST_CUPTI_CALL_GRAPH,  /* begins; graph_exec: which one */
    ST_CUPTI_CALL_MEMORY, /* a copy or memory set: no end is told */
    ST_CUPTI_CALL_DONE,
    ST_CUPTI_CALL_FAILED, /* launched nothing */
};
typedef void st_cupti_call_fn(enum st_cupti_call call, uint32_t correlation_id,
                              uint64_t graph_exec);

enum st_cupti_graph_change {
    ST_CUPTI_NODE_ADDED,     /* graph; kernel: whether it is one; nested: holds a graph itself */
    ST_CUPTI_GRAPH_CLONED,   /* graph, of original */
    ST_CUPTI_GRAPH_GONE,     /* graph */
    ST_CUPTI_GRAPH_INSTANCE, /* exec, of graph */
    ST_CUPTI_INSTANCE_GONE,  /* exec */
};
struct st_cupti_graph_event {
    enum st_cupti_graph_change change;
    uint64_t graph, original, exec;
    int kernel, nested;
};
typedef void st_cupti_graph_fn(const struct st_cupti_graph_event *event);

struct st_cupti_api {
    /* What follows gets this as its first argument. */
    void *self;
    const char *library;
    uint32_t version;
    /* Takes CUPTI's single slot.  other: the tool that holds it, "" when CUPTI does not say. */
    int (*subscribe)(void *self, char other[ST_CUPTI_SUBSCRIBER_NAME_BYTES]);
    int (*unsubscribe)(void *self);
    /* Once per process is enough; the buffers that request gives are zeroed. */
    int (*register_callbacks)(void *self, st_cupti_request_fn *request,
                              st_cupti_complete_fn *complete);
    int (*enable_kernels)(void *self);
    int (*disable_kernels)(void *self);
    int (*flush)(void *self, int forced);
    int (*dropped)(void *self, size_t *count);
    int (*next_record)(void *self, uint8_t *buffer, size_t valid, void **record);
    /* 1 and *out when the record is a kernel, with name as CUPTI holds it (may be NULL); else 0. */
    int (*decode)(void *self, const void *record, struct st_kernel_record *out);
    /* Takes the slot, with callbacks for calls that launch and for graphs. */
    int (*subscribe_launches)(void *self, st_cupti_call_fn *on_call, st_cupti_graph_fn *on_graph,
                              char other[ST_CUPTI_SUBSCRIBER_NAME_BYTES]);
    /* Which calls on_call is told of; those of on_graph stay on. */
    int (*enable_calls)(void *self, int launches, int memory);
    /* records: of enum st_cupti_records. */
    int (*enable_records)(void *self, unsigned records, int on);
    /* Once a process: records carry this clock from then on. */
    int (*set_clock)(void *self, uint64_t (*now_ns)(void));
    /* 1 and site, launch (but sequence and site) filled; 0: a record of another kind. */
    int (*decode_launch)(void *self, const void *record, struct st_launch_site *site,
                         struct st_launch_record *launch);
    /* Text of a result code; never NULL. */
    const char *(*text)(void *self, int result);
    void (*close)(void *self);
};

/* The real library. */
int st_cupti_api_open(const char *path, const char *cuda_home, struct st_cupti_api *api,
                      struct st_error *err);
/* Takes the table over (api->close is called by st_collector_close, also when this fails). */
int st_collector_open_api(const struct st_cupti_api *api, struct st_collector **collector,
                          struct st_error *err);

#endif
