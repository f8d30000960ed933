/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Kernel benchmarks: what `steptape bench kernels` measures.  Results go to a callback, row by
 * row, as they are measured; the command prints them.
 *
 * Method: a CUDA graph of 20 calls in one chain; a sample is the time of 10 replays in a row
 * (device events around them) divided by 200; the first 20 samples are dropped.  The L2 cache
 * is flushed before a row.  Each
 * call of a graph uses the next of `sets` buffer sets (1: the same memory each call, so data that
 * fits the L2 cache stays there, as upstream's figures were taken).  `eager` rows launch without a
 * graph and include the host's launch cost.
 */
#ifndef ST_KERNELS_BENCH_H
#define ST_KERNELS_BENCH_H

#include <stdint.h>

#include "traces/base/error.h"

#ifdef __cplusplus
extern "C" {
#endif

struct st_bench_row {
    const char *group; /* "ceiling", "save_partial_states", "compress", "slot_mapping", "seed" */
    const char *name;  /* "ratio=128 T=64", "T=256 boundary=all" */
    const char *mode;  /* "graph" or "eager" */
    int variant;       /* of the operator; 0: the default ones */
    int sets;          /* buffer sets that the calls rotate through */
    int launch_count;  /* of one call */
    int sample_count;  /* timed replays */
    double median_us;  /* of one call */
    double min_us;
    double max_us;
    double q1_us; /* quartiles */
    double q3_us;
    double anchor_us; /* upstream's figure for this row; 0: none */
    uint64_t bytes;   /* least bytes that a call moves (struct steptape_cost) */
    /* what it writes at the rate that a memset of 1 GiB writes in this run; 0: not asked */
    double write_ceiling_us;
};

struct st_bench_device {
    char name[256];
    int sm_count;
    int driver_version; /* as CUDA packs it: 13000 */
    int runtime_version;
    uint64_t l2_bytes;
    uint64_t memory_bytes;
};

struct st_bench_options {
    const char *filter; /* only rows whose group or name contain it; NULL: all */
    int all_variants;   /* 1: every variant, not only the default */
    int replay_count;   /* timed replays of a graph; 0: 200 */
};

/* A non-zero return stops the benchmark and becomes its return value. */
typedef int st_bench_row_fn(const struct st_bench_row *row, void *user);

/*
 * Runs the benchmarks on the current device.  ST_ERR_UNAVAILABLE without a GPU or built without
 * CUDA.  *device (may be NULL) is filled before the first row.
 */
int st_bench_kernels(const struct st_bench_options *options, struct st_bench_device *device,
                     st_bench_row_fn *row, void *user, struct st_error *err);

#ifdef __cplusplus
}
#endif
#endif
