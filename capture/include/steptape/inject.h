/* SPDX-License-Identifier: Apache-2.0 */
/*
 * libsteptape_inject: records the kernel launches of the process that it is loaded into, each with
 * the engine's step that made it.
 *
 * `steptape record` sets everything up.  By hand:
 *
 *     STEPTAPE_RECORD=/abs/x.tape STEPTAPE_LAUNCHES=node \
 *     CUDA_INJECTION64_PATH=/path/libsteptape_inject.so python serve.py
 *
 * The driver opens the library when the process initialises CUDA; who marks steps opens the same
 * file (dlopen, ctypes) and calls steptape_inject_step().  What is recorded goes to
 * x.tape.recording/launches-PID.stream.  Nothing here ever fails the engine: what cannot be
 * recorded is counted, and said in the stream and in steptape_inject_get_stats().
 *
 * Threads: all functions may be called from any thread.  Step marks belong to the calling thread.
 * A process that fork()s after CUDA was initialised records in the parent only, as CUDA itself
 * works only there; one that initialises CUDA after the fork records under its own number.
 */
#ifndef STEPTAPE_INJECT_H
#define STEPTAPE_INJECT_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#if defined(__GNUC__)
#define STEPTAPE_INJECT_API __attribute__((visibility("default")))
#else
#define STEPTAPE_INJECT_API
#endif

/* How much is recorded; STEPTAPE_LAUNCHES names it in lower case. */
enum steptape_inject_level {
    STEPTAPE_INJECT_OFF = 0,
    STEPTAPE_INJECT_COUNT = 1, /* launches counted for each step; no CUPTI, no times */
    STEPTAPE_INJECT_GRAPH = 2, /* kernels launched alone, and one record a graph launch */
    STEPTAPE_INJECT_NODE = 3,  /* every kernel, those of graphs with their node */
    STEPTAPE_INJECT_FULL = 4   /* and copies, memory sets, the host time of launching calls */
};

enum steptape_inject_state {
    STEPTAPE_INJECT_IDLE = 0,    /* CUDA was not initialised, or the level is off */
    STEPTAPE_INJECT_RUNNING = 1, /* records */
    STEPTAPE_INJECT_STOPPED = 2, /* ended */
    STEPTAPE_INJECT_FAILED = 3   /* records nothing; message says why */
};

struct steptape_inject_stats {
    uint32_t struct_size;    /* set by the caller: sizeof(struct steptape_inject_stats) */
    int32_t state;           /* enum steptape_inject_state */
    int32_t level, asked;    /* enum steptape_inject_level: now, and as set up */
    uint32_t cupti_version;  /* 0: not opened */
    int64_t steps;           /* marked and ended */
    int64_t kernel_launches; /* calls, as counted on the threads that made them */
    int64_t graph_launches;
    int64_t records;      /* launches written or about to be */
    int64_t dropped;      /* records that CUPTI had no buffer for */
    int64_t untimed;      /* records without a start or an end */
    int64_t reversed;     /* records that end before they start */
    int64_t unattributed; /* records whose call was not seen: the step is not known */
    int64_t other;        /* records that could not be read, or of no known kind */
    int64_t steps_lost;   /* counts of steps that found no room */
    int64_t bytes;        /* of the stream */
    int64_t buffer_bytes; /* memory for CUPTI's buffers, at the most so far */
    double cost_share;    /* of a step's time, measured by --overhead-budget; NaN: not measured */
    double cost_ns_per_launch;
    char message[256]; /* the last thing worth a line of log; "" */
};

/* What the driver calls; 1 always. */
STEPTAPE_INJECT_API int InitializeInjection(void);

/* The calling thread's launches belong to this step from now on; -1: to none.  The number is what
 * steptape_recorder_sequence() gives.  No lock, no allocation after a thread's first call. */
STEPTAPE_INJECT_API int steptape_inject_step(int64_t sequence);

/* Fills at most stats->struct_size bytes.  0, or -1 when that is too small to hold anything. */
STEPTAPE_INJECT_API int steptape_inject_get_stats(struct steptape_inject_stats *stats);

/* Writes out all launches that the device has finished; waits for it, 10 s at most.  Synchronise
 * the device before, and call it before _exit(), which runs no exit handler: without it the counts
 * of the last 20 ms and the records of about the last second are lost.  Closing a recorder of this
 * process calls it.  0, or -1: not all. */
STEPTAPE_INJECT_API int steptape_inject_flush(void);

#ifdef __cplusplus
}
#endif
#endif
