/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Kernel benchmarks in a build without CUDA: there are none.
 */
#include "kernels/bench.h"

int st_bench_kernels(const struct st_bench_options *options, struct st_bench_device *device,
                     st_bench_row_fn *row, void *user, struct st_error *err) {
    (void)options;
    (void)device;
    (void)row;
    (void)user;
    return ST_FAIL(err, ST_ERR_UNAVAILABLE, "kernel benchmarks need a build with CUDA");
}
