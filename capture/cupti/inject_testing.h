/* SPDX-License-Identifier: Apache-2.0 */
/* A CUPTI that needs no GPU, and what a stream holds: for the tests of launch capture. */
#ifndef ST_CUPTI_INJECT_TESTING_H
#define ST_CUPTI_INJECT_TESTING_H

#include "capture/cupti/inject_i.h"

enum { FAKE_KERNEL = 1, FAKE_OTHER = 2, FAKE_BROKEN = 3, FAKE_BUFFERS = 64 };

/* Launches are written into the buffer that is held; it goes back when it is full or flushed. */
struct fake_cupti {
    pthread_mutex_t lock;
    int subscribe_result, enable_result;
    const char *other_tool;
    int subscribed, registered, clocks, closed, calls_on, memory_on, flushes;
    unsigned records_on;
    int graphs_enabled;      /* times */
    size_t records_a_buffer; /* 0: as many as fit */
    size_t dropped;
    int patient; /* waits for a buffer: on a busy machine the worker is slow to clear one */
    int hold;    /* full buffers are kept, as CUPTI does while a kernel runs */
    st_cupti_request_fn *request;
    st_cupti_complete_fn *complete;
    st_cupti_call_fn *on_call;
    st_cupti_graph_fn *on_graph;
    uint64_t (*clock)(void);
    struct {
        uint8_t *bytes;
        size_t size, used;
    } held[FAKE_BUFFERS];
    int held_count;
    int dirty; /* buffers that were not clear */
    uint32_t next_call;
    uint64_t next_graph;
};

void fake_init(struct fake_cupti *fake);
/* Buffers that it still holds are its own to free, as CUPTI's would be. */
void fake_fini(struct fake_cupti *fake);
struct st_cupti_api fake_api(struct fake_cupti *fake);
/* One record of any kind, without a call. */
void fake_record(struct fake_cupti *fake, int kind, const struct st_launch_site *site,
                 uint32_t call, int64_t start_ns, int64_t end_ns);
/* A kernel launched alone: the call, then its record.  The number of the call. */
uint32_t fake_launch(struct fake_cupti *fake, const char *name, int32_t grid);
/* A graph of so many kernels, made by capture; its handle. */
uint64_t fake_graph(struct fake_cupti *fake, int kernels);
/* Launches it: one call, one record a node. */
void fake_graph_launch(struct fake_cupti *fake, uint64_t exec, int kernels);

/* ---- reading back */

struct read_stream {
    char head[2048], end[2048], notes[8192];
    size_t head_size, end_size;
    int64_t note_count, torn;
    bool ended;
    struct st_launch_site *site;
    char **name;
    int64_t names, sites, launches, steps;
    struct st_launch_record *launch;
    struct st_launch_step *step;
};
void read_stream(const char *path, struct read_stream *out);
void read_stream_fini(struct read_stream *stream);
int64_t stream_total(const struct read_stream *stream, const char *key);

#endif
