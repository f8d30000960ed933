/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What each way of skipping the c128 pair inside a captured graph costs: the layers of one step
 * with the real kernels, rows to a callback as they are measured.
 *
 * Method: a graph of `layers` c128 layers in one chain (save, and the pair with its dependent
 * launch, or the fused one that begins while save runs), each layer with buffers of its own.  The
 * tokens that close a group lie anywhere in the batch.  A sample is the time of 10 launches in a
 * row, divided by 10: on the device between two events, on the host around the calls.  A toggle is
 * measured alone, from before the first node is switched to the end of the launch that follows.
 */
#ifndef ST_REPLAY_GRAPH_SKIP_H
#define ST_REPLAY_GRAPH_SKIP_H

#include <stdbool.h>
#include <stdint.h>

#include "traces/base/error.h"

struct st_graph_skip_row {
    int32_t tokens, closing; /* of a step; of these, how many close a group of 128 */
    const char *way;
    int32_t kernels; /* nodes that are kernels, of all bodies */
    int32_t samples;
    double median_us, q1_us, q3_us; /* of a step, on the device */
    double host_median_us, host_q1_us, host_q3_us;
    int64_t graph_bytes, capture_ns; /* of all graphs of this way */
    bool same_outputs;               /* states and entries, bit by bit, as `always` leaves them */
};

struct st_graph_skip_options {
    int32_t layers;  /* 0: 20 */
    int32_t samples; /* 0: 100 */
};

/* A non-zero return stops the benchmark and becomes its return value. */
typedef int st_graph_skip_fn(const struct st_graph_skip_row *row, void *user);

/* device: room for the GPU's name, filled before the first row.  ST_ERR_UNAVAILABLE without a GPU
 * or without CUDA. */
int st_graph_skip_bench(const struct st_graph_skip_options *options, char *device, int32_t size,
                        st_graph_skip_fn *row, void *user, struct st_error *err);

#endif
