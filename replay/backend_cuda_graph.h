/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Making CUDA graphs by capture: of one chain of launches, and of a chain whose rest an IF/ELSE
 * node chooses from.  Knows nothing of plans; the backend and `steptape bench graph-skip` share it.
 *
 *     st_cuda_capture(stream, issue, user, 0, &graph, err);
 *     st_cuda_capture_if(stream, &condition, issue, user, &graph, err);
 *     st_cuda_instantiate(graph, stream, &exec, &cost, err);
 */
#ifndef ST_REPLAY_BACKEND_CUDA_GRAPH_H
#define ST_REPLAY_BACKEND_CUDA_GRAPH_H

#include <cuda_runtime_api.h>
#include <stdint.h>

#include "replay/backend_cuda_kernels.h"
#include "traces/base/error.h"

/* Returns ST_ERR_NATIVE with CUDA's own words from the calling function when call fails. */
#define ST_CUDA(err, call)                                                                         \
    do {                                                                                           \
        int st_cuda_rc_ = (int)(call);                                                             \
        if (st_cuda_rc_ != 0)                                                                      \
            return st_cuda_fail((err), st_cuda_rc_, #call, __FILE__, __LINE__);                    \
    } while (0)

int st_cuda_fail(struct st_error *err, int code, const char *call, const char *file, int line);
int64_t st_cuda_now_ns(void);

/* Enqueues launches on a stream that is being captured; which: what was handed to the capture, in
 * an IF/ELSE 1 for the body of "if" and 0 for that of "else". */
typedef int st_cuda_issue_fn(void *user, int which, cudaStream_t stream, struct st_error *err);

/* *graph is the caller's to destroy. */
int st_cuda_capture(cudaStream_t stream, st_cuda_issue_fn *issue, void *user, int which,
                    cudaGraph_t *graph, struct st_error *err);
/* The kernel that writes the condition, then one node with two bodies.  ST_ERR_UNSUPPORTED before
 * CUDA 12.8 (the build's or the driver's).  condition->handle is set. */
int st_cuda_capture_if(cudaStream_t stream, struct st_cuda_condition *condition,
                       st_cuda_issue_fn *issue, void *user, cudaGraph_t *graph,
                       struct st_error *err);
/* The node that the stream captured last. */
int st_cuda_last_node(cudaStream_t stream, cudaGraphNode_t *node, struct st_error *err);

/* Device memory that an executable graph took (as far as the driver shows it), host time. */
struct st_cuda_graph_cost {
    int64_t bytes, host_ns;
};
/* Instantiates and uploads; cost may be NULL. */
int st_cuda_instantiate(cudaGraph_t graph, cudaStream_t stream, cudaGraphExec_t *exec,
                        struct st_cuda_graph_cost *cost, struct st_error *err);

#endif
