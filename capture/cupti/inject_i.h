/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Private to libsteptape_inject: one capture a process.
 *
 * Three kinds of threads meet here.
 *  - The engine's: they mark steps and launch.  They touch their own counters, their own ring of
 *    ended steps, and one word of `calls`: no lock (inject_calls.c).
 *  - CUPTI's: they ask for buffers and hand them back, under a lock that is held for a few
 *    instructions (inject_buffers.c).
 *  - The worker: it reads buffers, codes, packs and writes (inject_worker.c).
 */
#ifndef ST_CUPTI_INJECT_I_H
#define ST_CUPTI_INJECT_I_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "capture/cupti/api_i.h"
#include "capture/cupti/inject_budget.h"
#include "steptape/inject.h"
#include "traces/base/bytes.h"
#include "traces/base/error.h"
#include "traces/format/launch_code.h"
#include "traces/format/launch_stream.h"

enum {
    ST_INJECT_CALLS = 1 << 20,     /* calls whose records may be outstanding */
    ST_INJECT_STEP_RING = 1 << 10, /* ended steps of a thread that the worker has not seen */
    ST_INJECT_BATCH = 1 << 15,     /* launches that are sorted together */
    ST_INJECT_STEPS = 1 << 12      /* ended steps that are taken together */
};

/* Plain data.  Zero and NULL: the default. */
struct st_inject_options {
    const char *stream_path;
    int32_t level;                   /* enum st_launch_level */
    double budget;                   /* share of a step's time; 0: none */
    const char *note;                /* something that the stream should say at its head, or NULL */
    size_t buffer_bytes;             /* of one of CUPTI's buffers */
    int32_t buffer_count;            /* at the most */
    int32_t block_launches;          /* a block is written when it has so many */
    int64_t flush_ns;                /* between looks at what CUPTI holds */
    int64_t window_ns, window_steps; /* of the budget: at least both */
};

/* One thread that launches or marks steps.  Written by that thread alone, read by the worker. */
struct st_inject_thread {
    struct st_inject_thread *next;
    atomic_bool used;
    _Atomic int64_t kernel_launches, graph_launches, graph_kernels;
    _Atomic int64_t graphs_unknown; /* graph launches whose kernels are not known */
    _Atomic int64_t steps_lost;
    /* The open call and the open step; only its own thread looks at these. */
    bool in_call, captured;
    enum st_cupti_call call;
    uint64_t exec;
    int64_t sequence;
    struct st_launch_step step;
    uint64_t step_generation;
    int64_t kernels_before, graphs_before, graph_kernels_before, unknown_before;
    /* Ended steps. */
    _Atomic uint64_t head, tail;
    struct st_launch_step ring[ST_INJECT_STEP_RING];
};

struct st_inject_buffer {
    struct st_inject_buffer *next;
    size_t valid;
};

struct st_inject_pool {
    pthread_mutex_t lock;
    pthread_cond_t wake; /* of the worker */
    struct st_inject_buffer *free_list, *ready, **ready_tail;
    size_t bytes;
    int32_t made, most, free_count, spare;
    int64_t refused; /* requests that got nothing */
    bool poked;
};

struct st_inject_counters {
    int64_t steps, records, dropped, untimed, reversed, unattributed, other, bytes;
};

struct st_inject {
    struct st_cupti_api api;
    bool subscribed, has_pool;
    unsigned kept;           /* records that stay on whatever the level */
    int calls_on, memory_on; /* callbacks that are on */
    bool has_api;            /* false: calls are counted by hooks, and nothing else is recorded */
    struct st_inject_options options;
    char *stream_path, *note;
    int fd;
    pid_t pid;

    _Atomic int32_t level;       /* enum st_launch_level now; off in a window without capture */
    _Atomic int32_t wanted;      /* level that the next step mark changes to; -1: none */
    pthread_mutex_t level_lock;  /* held while the level changes */
    _Atomic uint64_t generation; /* odd while the level changes */
    _Atomic uint64_t *calls;     /* [ST_INJECT_CALLS]: step of each call, by correlation id */
    struct st_inject_pool pool;

    pthread_t worker;
    bool worker_started;
    struct st_inject_counters counters; /* the worker's */
    struct st_launch_encoder *encoder;
    struct st_launch_record *batch;
    struct st_bytes out;
    struct st_launch_step *steps; /* room to take ended steps into */
    int64_t last_flush_ns, last_block_ns, last_totals_ns, last_buffer_ns;
    int64_t wanted_ns; /* when a level was asked for */
    int64_t totals_at; /* bytes of the stream behind the last totals */
    struct st_inject_budget budget;
    bool writing; /* false: the stream could not be written */

    pthread_mutex_t lock; /* guards what follows */
    pthread_cond_t done;
    struct st_inject_counters published;
    struct st_budget_estimate estimate;
    int32_t state;         /* enum steptape_inject_state */
    int32_t capture_level; /* that windows with capture have */
    uint64_t flush_asked, flush_done;
    bool stop, finished;
    char message[256];
};

int64_t st_inject_now_ns(void);

/* inject.c.  Takes api over; NULL at level count. */
int st_inject_start(const struct st_cupti_api *api, const struct st_inject_options *options,
                    struct st_inject **inject, struct st_error *err);
/* Writes the rest and ends.  False: the worker did not end within 10 s, and everything is left to
 * the process.  CUPTI stays attached: the process is about to end. */
bool st_inject_stop(struct st_inject *inject);
/* After a stop that gave true, when CUPTI makes no more calls. */
void st_inject_destroy(struct st_inject *inject);
int st_inject_flush(struct st_inject *inject);
void st_inject_message(struct st_inject *inject, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
/* Asks for capture at that level, or off.  CUPTI must not be switched in the middle of a launch
 * (the launches of a whole window were then told as that one's), so that it is done between two
 * steps, on the thread that marks them. */
void st_inject_want_level(struct st_inject *inject, int32_t level);
/* Does what was asked for, if anything was. */
void st_inject_apply_level(struct st_inject *inject);
/* What a budget steps down to: never to `graph`, which can only be had from the start. */
int32_t st_inject_lower_level(int32_t level);
/* The stream of a process of which nothing can be recorded: says why and ends. */
int st_inject_write_refusal(const char *path, const struct st_inject_options *options,
                            const char *reason, struct st_error *err);

/* inject_hook.c: whether calls come to us without CUPTI, which the loader decides. */
bool st_inject_hooks_present(void);
void st_inject_hooks_enable(bool on);

/* inject_calls.c */
void st_inject_calls_attach(struct st_inject *inject); /* NULL: detach */
void st_inject_on_call(enum st_cupti_call call, uint32_t correlation_id, uint64_t exec);
void st_inject_on_graph(const struct st_cupti_graph_event *event);
/* kernels: of each launch of it; -1: not known. */
void st_inject_set_graph(uint64_t exec, int64_t kernels);
int st_inject_mark(int64_t sequence);
/* The step of a call; ST_LAUNCH_UNATTRIBUTED when it was not seen or long ago. */
int64_t st_inject_step_of(const struct st_inject *inject, uint32_t correlation_id);
/* Takes ended steps of all threads: at most room. */
int64_t st_inject_take_steps(struct st_launch_step *step, int64_t room);
struct st_inject_calls_total {
    int64_t kernel_launches, graph_launches, graph_kernels, graphs_unknown, steps_lost;
};
void st_inject_calls_total(struct st_inject_calls_total *total);
void st_inject_calls_forked(void); /* in a child: forget the parent's */

/* inject_buffers.c */
int st_inject_pool_init(struct st_inject_pool *pool, size_t bytes, int32_t most,
                        struct st_error *err);
void st_inject_pool_close(struct st_inject_pool *pool);  /* buffers that CUPTI holds stay its */
void st_inject_pool_attach(struct st_inject_pool *pool); /* NULL: CUPTI gets no more buffers */
void st_inject_on_request(uint8_t **bytes, size_t *size, size_t *max_records);
void st_inject_on_complete(void *context, uint32_t stream, uint8_t *bytes, size_t size,
                           size_t valid);
/* Waits until a buffer is ready, poked or the time is over. */
struct st_inject_buffer *st_inject_pool_take(struct st_inject_pool *pool, int64_t wait_ns);
void st_inject_pool_give(struct st_inject_pool *pool, struct st_inject_buffer *buffer);
void st_inject_pool_prepare(struct st_inject_pool *pool); /* keeps clean buffers in store */
void st_inject_pool_poke(struct st_inject_pool *pool);
uint8_t *st_inject_buffer_bytes(struct st_inject_buffer *buffer);

/* inject_worker.c */
void *st_inject_worker(void *inject);
int st_inject_write_head(struct st_inject *inject, struct st_error *err);

#endif
