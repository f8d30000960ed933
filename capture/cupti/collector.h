/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The CUPTI collector: every kernel and memory set that this process launches, one record each.
 *
 *     struct st_collector *c;
 *     ST_TRY(st_collector_open(NULL, NULL, &c, err));      dlopen: absent is an error, no crash
 *     ST_TRY(st_collector_start(c, err));                  before any graph is instantiated
 *     ... launch, synchronise the device ...
 *     ST_TRY(st_collector_flush(c, err));
 *     use(st_collector_records(c, &count));
 *     st_collector_clear(c);
 *     ST_TRY(st_collector_stop(c, err));
 *     st_collector_close(c);
 *
 * Invariants
 *  1. No lock of ours is held across a call into CUPTI, and no CUDA call is made from a callback.
 *  2. Nothing is lost in silence: records that CUPTI dropped, records without a timestamp and
 *     records whose end lies before their start are counted.
 *  3. Graphs that were instantiated before st_collector_start() give no node records.  All kernels
 *     of one graph launch share its correlation id; graph_node_id tells them apart.
 *  4. CUPTI's callbacks carry no user pointer, so one collector at a time can be started in a
 *     process. Open, start, flush, stop and close belong to one thread; CUPTI's own threads hand
 *     in buffers.
 */
#ifndef ST_CUPTI_COLLECTOR_H
#define ST_CUPTI_COLLECTOR_H

#include <stdint.h>

#include "traces/base/error.h"

#ifdef __cplusplus
extern "C" {
#endif

struct st_collector;

/* The name of memory sets, which are launches as kernels are; grid and block are 0. */
#define ST_CUPTI_MEMSET_NAME "[memset]"

struct st_kernel_record {
    const char *name; /* as the compiler mangled it; owned by the collector, one pointer a name */
    int64_t start_ns; /* 0: CUPTI had no room for the timestamp */
    int64_t end_ns;
    uint64_t graph_node_id; /* 0: not launched by a graph */
    uint32_t correlation_id;
    int32_t grid[3];
    int32_t block[3];
};

struct st_collector_counters {
    int64_t records;  /* kernel records taken over since the collector was opened */
    int64_t dropped;  /* CUPTI had no buffer for them */
    int64_t untimed;  /* start or end is 0 */
    int64_t reversed; /* end < start */
    int64_t other;    /* records of another kind, or that could not be read */
};

/*
 * Opens CUPTI at run time.  path: the library to take and no other, or NULL: libcupti.so.13, .12,
 * libcupti.so, then extras/CUPTI/lib64 and lib64 of cuda_home (may be NULL) and of /usr/local/cuda.
 * ST_ERR_UNAVAILABLE when there is none, with what was tried; ST_ERR_UNSUPPORTED when this build
 * has no CUPTI headers.
 */
int st_collector_open(const char *path, const char *cuda_home, struct st_collector **collector,
                      struct st_error *err);
/* Stops when started.  Accepts NULL. */
void st_collector_close(struct st_collector *collector);

/*
 * Begins to record.  ST_ERR_UNAVAILABLE with native 39 when another tool holds CUPTI (only one may
 * before CUDA 13.3); the message names it when CUPTI does.
 */
int st_collector_start(struct st_collector *collector, struct st_error *err);
/* Takes over everything that CUPTI holds of finished kernels: synchronise the device before. */
int st_collector_flush(struct st_collector *collector, struct st_error *err);
/* Flushes and detaches from CUPTI; the records stay. */
int st_collector_stop(struct st_collector *collector, struct st_error *err);

/* All records since the last clear, in no promised order; borrowed until flush, stop or clear. */
const struct st_kernel_record *st_collector_records(const struct st_collector *collector,
                                                    int64_t *count);
/* Sorts them by correlation id, then start: the order of the calls that launched them. */
void st_collector_sort(struct st_collector *collector);
void st_collector_clear(struct st_collector *collector);

void st_collector_get_counters(const struct st_collector *collector,
                               struct st_collector_counters *counters);
/* CUPTI's API version (130001: CUDA 13.0 update 1; 18 to 28: CUDA 11.8 to 12.9). */
uint32_t st_collector_version(const struct st_collector *collector);
/* The library that was opened. */
const char *st_collector_library(const struct st_collector *collector);

#ifdef __cplusplus
}
#endif
#endif
