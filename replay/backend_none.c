/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The cuda backend of a program that was built without CUDA: it says so.
 */
#include "replay/backend.h"
#include "replay/graph_skip.h"

static int probe(struct st_error *err) {
    return ST_FAIL(err, ST_ERR_UNAVAILABLE,
                   "backend cuda: this program was built without CUDA (no nvcc was found, or "
                   "ST_ENABLE_CUDA=OFF); --backend sim or cpu run everywhere");
}

const struct st_backend_ops st_backend_cuda = {
    .name = "cuda",
    .summary = "kernels on an NVIDIA GPU (not in this build)",
    .pass_mask = 1u << ST_PASS_TIME | 1u << ST_PASS_COUNT | 1u << ST_PASS_VERIFY,
    .default_pass_mask = 1u << ST_PASS_TIME | 1u << ST_PASS_COUNT | 1u << ST_PASS_VERIFY,
    .probe = probe,
};

int st_graph_skip_bench(const struct st_graph_skip_options *options, char *device, int32_t size,
                        st_graph_skip_fn *row, void *user, struct st_error *err) {
    (void)options;
    (void)device;
    (void)size;
    (void)row;
    (void)user;
    return ST_FAIL(err, ST_ERR_UNAVAILABLE, "bench graph-skip needs a build with CUDA");
}
