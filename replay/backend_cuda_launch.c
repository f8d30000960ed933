/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Running plans: each operator with the arguments that bind gives, eagerly or in a graph, and what
 * each pass does around them.
 *
 *  - time: the L2 cache is evicted before every measurement.  FULL steps are enqueued behind a
 *    gate kernel, so that the time is the device's alone, as when an engine runs ahead of its GPU.
 *    Eager steps start on an idle stream: their time holds what the host needs to launch them.
 *  - count: nothing around them; CUPTI's records since the last sync are this step's.
 *  - verify: poison before them, row hashes in between.
 */
#include <stdlib.h>
#include <string.h>

#include "kernels/registry.h"
#include "replay/backend_cuda_count.h"
#include "replay/backend_cuda_i.h"
#include "replay/backend_cuda_kernels.h"
#include "steptape/kernels.h"
#include "traces/base/log.h"

enum { FLUSH_TRIES = 50 };

/* ---- one launch */

static int64_t planned(const struct st_plan *plan) {
    int64_t total = 0;
    for (int op = 0; op < ST_OP_COUNT; op++)
        total += plan->launches[op];
    return total;
}

int st_cuda_launch_one(struct st_backend *b, const struct st_plan *plan,
                       const struct st_launch *launch, int32_t set, int32_t observation,
                       struct st_error *err) {
    enum st_operator op = (enum st_operator)launch->op;
    if (op == ST_OP_OBSERVE)
        return st_cuda_launch_observation(b, plan, launch, set, observation, err);
    const struct st_kernel *kernel = st_operator_kernel(op);
    if (!kernel)
        return ST_FAIL(err, ST_ERR_UNSUPPORTED, "backend cuda has no operator %s",
                       st_operator_name(op));
    union st_args args;
    st_bind(&b->model, &b->buffers, st_cuda_frame(b, set, launch->ordinal), plan, launch, &args);
    int rc = kernel->launch(&args, b->stream);
    if (rc != STEPTAPE_OK)
        return ST_FAIL_NATIVE(err, ST_ERR_NATIVE, rc, "step %lld: %s of layer %d: %s (%d)",
                              (long long)b->step.step_id, st_operator_name(op), launch->layer,
                              steptape_status_name(rc), rc);
    return 0;
}

/* Whether this is the first gather of a chunk in a layer. */
static bool begins_chunk(const struct st_plan *plan, int32_t i) {
    const struct st_launch *launch = &plan->launch[i], *before = i > 0 ? launch - 1 : NULL;
    if (launch->op != ST_OP_DEQUANTIZE_AND_GATHER)
        return false;
    return !before || before->op != launch->op || before->layer != launch->layer ||
           before->chunk != launch->chunk;
}

static int issue_eager(struct st_backend *b, const struct st_plan *plan, int32_t set,
                       struct st_error *err) {
    int32_t observation = 0;
    for (int32_t i = 0; i < plan->launch_count; i++) {
        const struct st_launch *launch = &plan->launch[i];
        if (!launch->in_graph && !launch->disabled) {
            if (b->poison && begins_chunk(plan, i))
                ST_TRY(st_cuda_poison_workspace(b, plan, set, err));
            ST_TRY(st_cuda_launch_one(b, plan, launch, set, observation, err));
            if (b->poison)
                ST_TRY(st_cuda_check_guards(b, launch, set, err));
        }
        observation += launch->op == ST_OP_OBSERVE;
    }
    return 0;
}

static int issue(struct st_backend *b, const struct st_plan *plan, int32_t set,
                 struct st_cuda_full *full, struct st_error *err) {
    int64_t start_ns = st_cuda_now_ns();
    ST_TRY(issue_eager(b, plan, set, err));
    if (full)
        ST_TRY(st_cuda_launch_full(b, full, plan, err));
    b->host_ns = st_cuda_now_ns() - start_ns;
    b->counters.launches += planned(plan);
    return 0;
}

/* ---- operators that --ops leaves out */

/* They still give the others their inputs; what only attention reads is not made without it. */
static bool is_needed(const struct st_backend *b, enum st_operator op) {
    switch (op) {
    case ST_OP_GRAPH_CONDITION:
    case ST_OP_SPARSE_MLA_DECODE:
    case ST_OP_SPARSE_MLA_PREFILL:
        return false;
    case ST_OP_DEQUANTIZE_AND_GATHER:
    case ST_OP_COMBINE_TOPK_SWA_INDICES:
        return st_operator_wanted(b->ops_mask, ST_OP_SPARSE_MLA_PREFILL);
    default:
        return true;
    }
}

static int run_left_out(struct st_backend *b, const struct st_plan *plan, int32_t set,
                        struct st_error *err) {
    unsigned mask = 0;
    for (int op = 0; op < ST_OP_COUNT; op++)
        if (!st_operator_wanted(b->ops_mask, (enum st_operator)op) &&
            is_needed(b, (enum st_operator)op))
            mask |= 1u << op;
    if (mask == 0)
        return 0;
    struct st_plan *rest = &b->left_out;
    ST_TRY(st_plan_make(&b->model, &b->step, &plan->shape, plan->policy, mask, false, rest, err));
    ST_TRY(st_cuda_fill_scores_of(b, rest, err));
    for (int32_t i = 0; i < rest->launch_count; i++) {
        const struct st_launch *launch = &rest->launch[i];
        if (launch->disabled || launch->op == ST_OP_GRAPH_CONDITION) /* no graph, no condition */
            continue;
        ST_TRY(st_cuda_launch_one(b, rest, launch, set, 0, err));
        b->strays += launch->launch_count;
    }
    return 0;
}

/* ---- a plan */

static int issue_timed(struct st_backend *b, const struct st_plan *plan, int32_t set,
                       struct st_cuda_full *full, struct st_error *err) {
    ST_CUDA(err, st_cuda_evict(b->d_evict, b->evict_bytes, b->stream));
    if (!full) {
        ST_CUDA(err, cudaStreamSynchronize(b->stream));
        ST_CUDA(err, cudaEventRecord(b->begin, b->stream));
        ST_TRY(issue(b, plan, set, full, err));
        ST_CUDA(err, cudaEventRecord(b->end, b->stream));
        return 0;
    }
    ST_CUDA(err, st_cuda_gate(b->h_gate, ++b->gate_ticket, b->stream));
    ST_CUDA(err, cudaEventRecord(b->begin, b->stream));
    int rc = issue(b, plan, set, full, err);
    if (rc == 0) {
        int recorded = cudaEventRecord(b->end, b->stream);
        if (recorded != cudaSuccess)
            rc = st_cuda_fail(err, recorded, "cudaEventRecord", __FILE__, __LINE__);
    }
    __atomic_store_n(b->h_gate, b->gate_ticket, __ATOMIC_RELEASE); /* also after a failure */
    return rc;
}

/* CUPTI hands records over a little later than the stream is done: asks again until as many as were
 * launched are there, or no more come. */
static int fetch_records(struct st_backend *b, int64_t launched,
                         const struct st_kernel_record **record, int64_t *count,
                         struct st_error *err) {
    for (int i = 0; i < FLUSH_TRIES; i++) {
        ST_TRY(st_collector_flush(b->collector, err));
        *record = st_collector_records(b->collector, count);
        if (st_cuda_count_foreign(*record, *count) >= launched)
            break;
    }
    return 0;
}

/* Launches that belong to no step: their records are not to be found in the next one. */
static int drop_strays(struct st_backend *b, struct st_error *err) {
    const struct st_kernel_record *record;
    int64_t count;
    if (b->collector && b->strays > 0) {
        ST_CUDA(err, cudaStreamSynchronize(b->stream));
        ST_TRY(fetch_records(b, b->strays, &record, &count, err));
        st_collector_clear(b->collector);
    }
    b->strays = 0;
    return 0;
}

static bool has_graph(const struct st_plan *plan) {
    for (int32_t i = 0; i < plan->launch_count; i++)
        if (plan->launch[i].in_graph)
            return true;
    return false;
}

int st_cuda_launch(struct st_backend *b, const struct st_plan *plan, int32_t policy,
                   struct st_error *err) {
    int32_t set = st_cuda_set(b, policy);
    struct st_cuda_full *full = NULL;
    b->plan = plan;
    b->host_ns = 0;
    ST_TRY(st_cuda_place_observations(b, plan, set, err));
    if (b->pass != ST_PASS_VERIFY && b->ops_mask != 0 && plan->launch_count > 0)
        ST_TRY(run_left_out(b, plan, set, err));
    ST_TRY(st_cuda_fill_scores_of(b, plan, err));
    if (b->poison) /* a graph captures where they are */
        st_guards_make(&b->model, &b->buffers, plan, &b->guards);
    if (has_graph(plan))
        ST_TRY(st_cuda_find_full(b, plan, policy, &full, err));
    if (b->poison)
        ST_TRY(st_cuda_poison(b, plan, set, err));
    ST_TRY(drop_strays(b, err));
    if (b->pass == ST_PASS_TIME)
        return issue_timed(b, plan, set, full, err);
    ST_TRY(issue(b, plan, set, full, err));
    if (b->poison)
        ST_TRY(st_cuda_check_all_guards(b, set, err));
    return b->pass == ST_PASS_VERIFY ? st_cuda_take_hashes(b, set, err) : 0;
}

/* ---- what it took */

/* The collector's own records stay as they are. */
static int copy_records(struct st_backend *b, const struct st_kernel_record *record, int64_t count,
                        struct st_error *err) {
    if (count > b->record_room) {
        void *grown = realloc(b->record, 2 * (size_t)count * sizeof *b->record);
        if (!grown)
            return ST_FAIL_NOMEM(err);
        b->record = grown;
        b->record_room = 2 * count;
    }
    if (count > 0)
        memcpy(b->record, record, (size_t)count * sizeof *record);
    st_cuda_order(b->record, count);
    return 0;
}

static int collect(struct st_backend *b, struct st_step_result *result, struct st_error *err) {
    int64_t count = 0;
    const struct st_kernel_record *record = NULL;
    ST_TRY(fetch_records(b, planned(b->plan), &record, &count, err));
    ST_TRY(copy_records(b, record, count, err));
    st_collector_clear(b->collector);
    st_cuda_count(b->record, count, result);
    ST_TRY(st_cuda_check_shapes(b->record, count, b->plan, err));
    struct st_collector_counters counters;
    st_collector_get_counters(b->collector, &counters);
    b->counters.dropped = counters.dropped;
    return 0;
}

int st_cuda_sync(struct st_backend *b, struct st_step_result *result, struct st_error *err) {
    memset(result, 0, sizeof *result);
    result->step_ns = result->host_ns = result->kernel_ns = ST_UNKNOWN;
    for (int op = 0; op < ST_OP_COUNT; op++) {
        result->launches[op] = -1;
        result->op_kernel_ns[op] = ST_UNKNOWN;
    }
    ST_CUDA(err, cudaStreamSynchronize(b->stream));
    if (b->pass == ST_PASS_TIME) {
        float ms = 0;
        ST_CUDA(err, cudaEventElapsedTime(&ms, b->begin, b->end));
        result->step_ns = (int64_t)((double)ms * 1e6 + 0.5);
        result->host_ns = b->host_ns;
    }
    if (b->collector)
        ST_TRY(collect(b, result, err));
    return 0;
}
