/* SPDX-License-Identifier: Apache-2.0 */
#include "replay/backend_cuda_graph.h"

#include <string.h>
#include <time.h>

int st_cuda_fail(struct st_error *err, int code, const char *call, const char *file, int line) {
    int length = (int)strcspn(call, "(");
    return st_error_set(err, ST_ERR_NATIVE, code, file, line, "CUDA: %.*s failed: %s (%d)", length,
                        call, cudaGetErrorString((cudaError_t)code), code);
}

int64_t st_cuda_now_ns(void) {
    struct timespec ts;
    clock_gettime(CLOCK_MONOTONIC, &ts);
    return (int64_t)ts.tv_sec * 1000000000 + ts.tv_nsec;
}

/* Ends a capture that `begin` began; what issue said counts more than how the capture ended. */
static int end_capture(cudaStream_t stream, int rc, cudaGraph_t *graph, struct st_error *err) {
    int end = (int)cudaStreamEndCapture(stream, graph);
    if (rc == 0 && end != cudaSuccess)
        rc = st_cuda_fail(err, end, "cudaStreamEndCapture", __FILE__, __LINE__);
    return rc;
}

int st_cuda_capture(cudaStream_t stream, st_cuda_issue_fn *issue, void *user, int which,
                    cudaGraph_t *graph, struct st_error *err) {
    *graph = NULL;
    /* Relaxed: a kernel that was never launched before is loaded now. */
    ST_CUDA(err, cudaStreamBeginCapture(stream, cudaStreamCaptureModeRelaxed));
    int rc = end_capture(stream, issue(user, which, stream, err), graph, err);
    if (rc != 0 && *graph) {
        cudaGraphDestroy(*graph);
        *graph = NULL;
    }
    return rc;
}

int st_cuda_last_node(cudaStream_t stream, cudaGraphNode_t *node, struct st_error *err) {
    enum cudaStreamCaptureStatus status;
    const cudaGraphNode_t *tail = NULL;
    size_t count = 0;
#if CUDART_VERSION >= 13000
    ST_CUDA(err, cudaStreamGetCaptureInfo(stream, &status, NULL, NULL, &tail, NULL, &count));
#else
    ST_CUDA(err, cudaStreamGetCaptureInfo_v2(stream, &status, NULL, NULL, &tail, &count));
#endif
    if (status != cudaStreamCaptureStatusActive || count != 1)
        return ST_FAIL(err, ST_ERR_NATIVE, "a captured stream ends in %zu nodes, not in one",
                       count);
    *node = tail[0];
    return 0;
}

/* ---- IF/ELSE */

#if CUDART_VERSION >= 12080

static int check_driver(struct st_error *err) {
    int driver = 0;
    ST_CUDA(err, cudaDriverGetVersion(&driver));
    if (driver < 12080)
        return ST_FAIL(err, ST_ERR_UNSUPPORTED,
                       "graph-skip=conditional needs a driver of CUDA 12.8 or newer, this one is "
                       "%d.%d",
                       driver / 1000, driver % 1000 / 10);
    return 0;
}

static int begin_in(cudaStream_t stream, cudaGraph_t graph, struct st_error *err) {
    ST_CUDA(err, cudaStreamBeginCaptureToGraph(stream, graph, NULL, NULL, 0,
                                               cudaStreamCaptureModeRelaxed));
    return 0;
}

static int add_if(cudaGraph_t graph, const cudaGraphNode_t *after, uint64_t handle,
                  cudaGraph_t body[2], struct st_error *err) {
    struct cudaGraphNodeParams params;
    cudaGraphNode_t node;
    memset(&params, 0, sizeof params);
    params.type = cudaGraphNodeTypeConditional;
    params.conditional.handle = (cudaGraphConditionalHandle)handle;
    params.conditional.type = cudaGraphCondTypeIf;
    params.conditional.size = 2;
#if CUDART_VERSION >= 13000
    ST_CUDA(err, cudaGraphAddNode(&node, graph, after, NULL, 1, &params));
#else
    ST_CUDA(err, cudaGraphAddNode(&node, graph, after, 1, &params));
#endif
    body[0] = params.conditional.phGraph_out[0];
    body[1] = params.conditional.phGraph_out[1];
    return 0;
}

static int build_if(cudaStream_t stream, struct st_cuda_condition *condition,
                    st_cuda_issue_fn *issue, void *user, cudaGraph_t graph, struct st_error *err) {
    cudaGraphConditionalHandle handle;
    cudaGraphNode_t first;
    cudaGraph_t same, body[2];
    ST_CUDA(err, cudaGraphConditionalHandleCreate(&handle, graph, 0, 0));
    condition->handle = handle;
    ST_TRY(begin_in(stream, graph, err));
    int rc = st_cuda_graph_condition(condition, stream);
    if (rc != 0)
        rc = st_cuda_fail(err, rc, "st_cuda_graph_condition", __FILE__, __LINE__);
    if (rc == 0)
        rc = st_cuda_last_node(stream, &first, err);
    ST_TRY(end_capture(stream, rc, &same, err));
    ST_TRY(add_if(graph, &first, handle, body, err));
    for (int i = 0; i < 2; i++) { /* body 0 runs when the condition is not 0 */
        ST_TRY(begin_in(stream, body[i], err));
        ST_TRY(end_capture(stream, issue(user, i == 0, stream, err), &same, err));
    }
    return 0;
}

int st_cuda_capture_if(cudaStream_t stream, struct st_cuda_condition *condition,
                       st_cuda_issue_fn *issue, void *user, cudaGraph_t *graph,
                       struct st_error *err) {
    *graph = NULL;
    ST_TRY(check_driver(err));
    ST_CUDA(err, cudaGraphCreate(graph, 0));
    int rc = build_if(stream, condition, issue, user, *graph, err);
    if (rc != 0) {
        cudaGraphDestroy(*graph);
        *graph = NULL;
    }
    return rc;
}

#else

int st_cuda_capture_if(cudaStream_t stream, struct st_cuda_condition *condition,
                       st_cuda_issue_fn *issue, void *user, cudaGraph_t *graph,
                       struct st_error *err) {
    (void)stream;
    (void)condition;
    (void)issue;
    (void)user;
    *graph = NULL;
    return ST_FAIL(err, ST_ERR_UNSUPPORTED,
                   "graph-skip=conditional needs a build with CUDA 12.8 or newer, this one is of "
                   "%d.%d",
                   CUDART_VERSION / 1000, CUDART_VERSION % 1000 / 10);
}

#endif

int st_cuda_instantiate(cudaGraph_t graph, cudaStream_t stream, cudaGraphExec_t *exec,
                        struct st_cuda_graph_cost *cost, struct st_error *err) {
    size_t before = 0, after = 0, total;
    int64_t start_ns = st_cuda_now_ns();
    ST_CUDA(err, cudaMemGetInfo(&before, &total));
    ST_CUDA(err, cudaGraphInstantiate(exec, graph, 0));
    int rc = (int)cudaGraphUpload(*exec, stream);
    if (rc == cudaSuccess)
        rc = (int)cudaStreamSynchronize(stream);
    if (rc == cudaSuccess)
        rc = (int)cudaMemGetInfo(&after, &total);
    if (rc != cudaSuccess) {
        cudaGraphExecDestroy(*exec);
        *exec = NULL;
        return st_cuda_fail(err, rc, "cudaGraphUpload", __FILE__, __LINE__);
    }
    if (cost) {
        cost->bytes = before > after ? (int64_t)(before - after) : 0;
        cost->host_ns = st_cuda_now_ns() - start_ns;
    }
    return 0;
}
