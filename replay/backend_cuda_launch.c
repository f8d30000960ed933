/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Launches: a plan's operators with their arguments, eagerly or as a graph, and what each pass does
 * around them.
 *
 *  - time: the L2 cache is evicted before every measurement.  FULL steps are enqueued behind a
 *    gate kernel, so that the time is the device's alone, as when an engine runs ahead of its GPU.
 *    Eager steps start on an idle stream: their time holds what the host needs to launch them.
 *  - count: nothing around them; CUPTI's records since the last sync are this step's.
 */
#include <stdlib.h>
#include <string.h>

#include "kernels/registry.h"
#include "replay/backend_cuda_count.h"
#include "replay/backend_cuda_i.h"
#include "replay/backend_cuda_kernels.h"
#include "replay/generator.h"
#include "steptape/kernels.h"
#include "traces/base/log.h"

enum { FLUSH_TRIES = 50 };

static int64_t *c128_slots(const struct st_backend *b, int32_t set) {
    return b->d_slot_c128 + set * b->slot_count;
}

static float *pooled(const struct st_backend *b, int32_t set) {
    return b->d_pooled + (int64_t)set * b->max_tokens * b->model.head_dim;
}

static int launch_slot_mapping(struct st_backend *b, int32_t set, int32_t ratio) {
    const struct st_model_cache *cache = ratio == 128 ? &b->model.kv_c128 : &b->model.kv_c4;
    const struct st_cuda_table *table = ratio == 128 ? &b->kv_c128_table : &b->kv_c4_table;
    /* As in the plan: the engine's whole buffer, whatever this step needs of it. */
    int64_t out_len = b->model.max_num_batched_tokens;
    if (out_len < b->padded_token_count)
        out_len = b->padded_token_count;
    struct steptape_compressed_slot_mapping_args args = {
        .out = ratio == 128 ? c128_slots(b, set) : b->d_slot_c4 + set * b->slot_count,
        .query_start_loc = b->d_query_start_loc,
        .seq_lens = b->d_seq_len,
        .block_table = table->d_block_id,
        .block_table_stride = table->stride,
        .out_len = out_len,
        .num_reqs = b->padded_request_count,
        .ratio = ratio,
        .block_size = cache->entries,
    };
    return steptape_compressed_slot_mapping(&args, b->stream);
}

static int launch_save(struct st_backend *b, int64_t tokens, uint8_t *state, int32_t buffer) {
    int32_t width = b->model.head_dim;
    const float *kv = b->d_kv_score + (int64_t)buffer * b->max_tokens * 2 * width;
    struct steptape_save_partial_states_args args = {
        .kv = kv,
        .score = kv + width,
        .ape = b->d_ape + (int64_t)buffer * 128 * width,
        .positions = b->d_position,
        .slot_mapping = b->d_state_slot,
        .state_cache = (float *)(void *)state,
        .kv_stride = 2 * width,
        .score_stride = 2 * width,
        .ape_stride = width,
        .state_page_stride = b->model.state_c128.page_bytes / (int64_t)sizeof(float),
        .state_row_stride = 2 * width,
        .num_tokens = tokens,
        .width = width,
        .ratio = 128,
        .block_size = b->model.state_c128.block_size,
    };
    return steptape_save_partial_states(&args, b->stream);
}

static int launch_pool(struct st_backend *b, int32_t set, int64_t tokens, const uint8_t *state) {
    int32_t width = b->model.head_dim;
    struct steptape_compress_pool_args args = {
        .state_cache = (const float *)(const void *)state,
        .positions = b->d_position,
        .slot_mapping = b->d_state_slot,
        .kv_slot_mapping = c128_slots(b, set),
        .token_to_req = b->d_token_to_request,
        .block_table = b->state_table.d_block_id,
        .pooled = pooled(b, set),
        .state_page_stride = b->model.state_c128.page_bytes / (int64_t)sizeof(float),
        .state_row_stride = 2 * width,
        .block_table_stride = b->state_table.stride,
        .pooled_stride = width,
        .num_tokens = tokens,
        .head_dim = width,
        .ratio = 128,
        .overlap = 0,
        .block_size = b->model.state_c128.block_size,
    };
    return steptape_compress_pool(&args, b->stream);
}

static int launch_store(struct st_backend *b, int32_t set, int64_t tokens, uint8_t *kv,
                        int32_t buffer, bool after_pool) {
    int32_t width = b->model.head_dim;
    struct steptape_compress_norm_rope_store_args args = {
        .pooled = pooled(b, set),
        .positions = b->d_position,
        .slot_mapping = b->d_state_slot,
        .kv_slot_mapping = c128_slots(b, set),
        .weight = b->d_weight + (int64_t)buffer * width,
        .cos_sin_cache = b->d_cos_sin,
        .kv_cache = kv,
        .pooled_stride = width,
        .cos_sin_stride = b->model.rope_dim,
        .kv_page_stride_bytes = b->model.kv_c128.page_bytes,
        .num_tokens = tokens,
        .head_dim = width,
        .rope_dim = b->model.rope_dim,
        .ratio = 128,
        .kv_block_size = b->model.kv_c128.entries,
        .weight_dtype = STEPTAPE_FP32,
        .eps = (float)b->model.rms_eps,
        .flags = after_pool ? STEPTAPE_LAUNCH_AFTER_POOL : 0,
    };
    return steptape_compress_norm_rope_store(&args, b->stream);
}

static int launch_one(struct st_backend *b, const struct st_launch *launch, int64_t tokens,
                      int32_t set, bool after_pool, struct st_error *err) {
    int32_t buffer = launch->ordinal >= 0 && b->buffers > 0 ? launch->ordinal % b->buffers : 0;
    int64_t at = (int64_t)set * b->buffers + buffer;
    uint8_t *state = b->d_state ? b->d_state + at * b->state_bytes : NULL;
    uint8_t *kv = b->d_kv ? b->d_kv + at * b->kv_bytes : NULL;
    int rc;
    switch (launch->op) {
    case ST_OP_COMPRESSED_SLOT_MAPPING:
        rc = launch_slot_mapping(b, set, launch->ratio);
        break;
    case ST_OP_SAVE_PARTIAL_STATES:
        rc = launch_save(b, tokens, state, buffer);
        break;
    case ST_OP_COMPRESS_POOL:
        rc = launch_pool(b, set, tokens, state);
        break;
    case ST_OP_COMPRESS_NORM_ROPE_STORE:
        rc = launch_store(b, set, tokens, kv, buffer, after_pool);
        break;
    default:
        return ST_FAIL(err, ST_ERR_UNSUPPORTED, "the cuda backend has no operator %d", launch->op);
    }
    if (rc != STEPTAPE_OK)
        return ST_FAIL_NATIVE(err, ST_ERR_NATIVE, rc, "%s of layer %d: %s (%d)",
                              st_operator_name((enum st_operator)launch->op), launch->layer,
                              steptape_status_name(rc), rc);
    return 0;
}

/* The launches of the plan that are in the graph, or that are not, in order. */
static int launch_some(struct st_backend *b, const struct st_plan *plan, int32_t set, bool in_graph,
                       int32_t *count, struct st_error *err) {
    const struct st_launch *before = NULL;
    for (int32_t i = 0; i < plan->launch_count; i++) {
        const struct st_launch *launch = &plan->launch[i];
        if (launch->in_graph != in_graph)
            continue;
        bool after_pool = before && before->op == ST_OP_COMPRESS_POOL &&
                          launch->op == ST_OP_COMPRESS_NORM_ROPE_STORE &&
                          before->ordinal == launch->ordinal;
        ST_TRY(launch_one(b, launch, plan->shape.padded_token_count, set, after_pool, err));
        before = launch;
        ++*count;
    }
    return 0;
}

static uint64_t graph_key(const struct st_plan *plan, int32_t set) {
    uint64_t key = st_gen_mix(
        ((uint64_t)(uint32_t)set << 32 | (uint32_t)plan->shape.padded_token_count) + ST_GEN_GOLDEN);
    for (int32_t i = 0; i < plan->launch_count; i++) {
        const struct st_launch *l = &plan->launch[i];
        if (l->in_graph)
            key = st_gen_mix((key ^ ((uint64_t)l->op << 32 | (uint32_t)(uint16_t)l->layer)) +
                             ST_GEN_GOLDEN);
    }
    return key;
}

static int capture(struct st_backend *b, const struct st_plan *plan, int32_t set,
                   struct st_cuda_graph *graph, struct st_error *err) {
    cudaGraph_t captured = NULL;
    ST_CUDA(err, cudaStreamBeginCapture(b->stream, cudaStreamCaptureModeThreadLocal));
    graph->kernels = 0;
    int rc = launch_some(b, plan, set, true, &graph->kernels, err);
    int end = cudaStreamEndCapture(b->stream, &captured);
    if (rc == 0 && end != cudaSuccess)
        rc = st_cuda_fail(err, end, "cudaStreamEndCapture", __FILE__, __LINE__);
    if (rc == 0) {
        int made = cudaGraphInstantiate(&graph->exec, captured, 0);
        if (made != cudaSuccess)
            rc = st_cuda_fail(err, made, "cudaGraphInstantiate", __FILE__, __LINE__);
    }
    if (captured)
        cudaGraphDestroy(captured);
    ST_TRY(rc);
    ST_CUDA(err, cudaGraphUpload(graph->exec, b->stream));
    ST_CUDA(err, cudaStreamSynchronize(b->stream));
    return 0;
}

static int find_graph(struct st_backend *b, const struct st_plan *plan, int32_t set,
                      const struct st_cuda_graph **graph, struct st_error *err) {
    uint64_t key = graph_key(plan, set);
    for (int32_t i = 0; i < b->graph_count; i++) {
        if (b->graph[i].key == key) {
            *graph = &b->graph[i];
            return 0;
        }
    }
    if (b->graph_count == b->graph_room) {
        int32_t room = b->graph_room ? 2 * b->graph_room : 64;
        void *p = realloc(b->graph, (size_t)room * sizeof *b->graph);
        if (!p)
            return ST_FAIL_NOMEM(err);
        b->graph = p;
        b->graph_room = room;
    }
    struct st_cuda_graph *made = &b->graph[b->graph_count];
    memset(made, 0, sizeof *made);
    made->key = key;
    ST_TRY(capture(b, plan, set, made, err));
    b->graph_count++;
    b->counters.graphs++;
    *graph = made;
    return 0;
}

void st_cuda_free_graphs(struct st_backend *b) {
    for (int32_t i = 0; i < b->graph_count; i++)
        cudaGraphExecDestroy(b->graph[i].exec);
    free(b->graph);
    b->graph = NULL;
    b->graph_count = 0;
}

static int issue(struct st_backend *b, const struct st_plan *plan, int32_t set,
                 const struct st_cuda_graph *graph, struct st_error *err) {
    int32_t count = 0;
    ST_TRY(launch_some(b, plan, set, false, &count, err));
    b->counters.launches += count;
    if (graph) {
        ST_CUDA(err, cudaGraphLaunch(graph->exec, b->stream));
        b->counters.launches += graph->kernels;
        b->counters.graph_launches++;
    }
    return 0;
}

static int issue_timed(struct st_backend *b, const struct st_plan *plan, int32_t set,
                       const struct st_cuda_graph *graph, struct st_error *err) {
    ST_CUDA(err, st_cuda_evict(b->d_evict, b->evict_bytes, b->stream));
    if (!graph) {
        ST_CUDA(err, cudaStreamSynchronize(b->stream));
        ST_CUDA(err, cudaEventRecord(b->begin, b->stream));
        ST_TRY(issue(b, plan, set, graph, err));
        ST_CUDA(err, cudaEventRecord(b->end, b->stream));
        return 0;
    }
    ST_CUDA(err, st_cuda_gate(b->h_gate, ++b->gate_ticket, b->stream));
    ST_CUDA(err, cudaEventRecord(b->begin, b->stream));
    int rc = issue(b, plan, set, graph, err);
    if (rc == 0) {
        int recorded = cudaEventRecord(b->end, b->stream);
        if (recorded != cudaSuccess)
            rc = st_cuda_fail(err, recorded, "cudaEventRecord", __FILE__, __LINE__);
    }
    __atomic_store_n(b->h_gate, b->gate_ticket, __ATOMIC_RELEASE); /* also after a failure */
    return rc;
}

int st_cuda_launch(struct st_backend *b, const struct st_plan *plan, int32_t policy,
                   struct st_error *err) {
    int32_t set = b->sets > 1 ? policy : 0;
    const struct st_cuda_graph *graph = NULL;
    bool in_graph = false;
    for (int32_t i = 0; i < plan->launch_count; i++)
        in_graph = in_graph || plan->launch[i].in_graph;
    if (in_graph)
        ST_TRY(find_graph(b, plan, set, &graph, err));
    b->plan = plan;
    if (b->pass == ST_PASS_TIME)
        return issue_timed(b, plan, set, graph, err);
    return issue(b, plan, set, graph, err);
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
    st_collector_sort(b->collector);
    return 0;
}

static int collect(struct st_backend *b, struct st_step_result *result, struct st_error *err) {
    int64_t count = 0;
    const struct st_kernel_record *record = NULL;
    ST_TRY(fetch_records(b, b->plan->launch_count, &record, &count, err));
    st_cuda_count(record, count, result);
    ST_TRY(st_cuda_check_shapes(record, count, b->plan, err));
    st_collector_clear(b->collector);
    struct st_collector_counters counters;
    st_collector_get_counters(b->collector, &counters);
    b->counters.dropped = counters.dropped;
    return 0;
}

int st_cuda_sync(struct st_backend *b, struct st_step_result *result, struct st_error *err) {
    result->step_ns = ST_UNKNOWN;
    result->kernel_ns = ST_UNKNOWN;
    result->other_launches = 0;
    for (int op = 0; op < ST_OP_COUNT; op++) {
        result->launches[op] = -1;
        result->op_kernel_ns[op] = ST_UNKNOWN;
    }
    ST_CUDA(err, cudaStreamSynchronize(b->stream));
    if (b->pass == ST_PASS_TIME) {
        float ms = 0;
        ST_CUDA(err, cudaEventElapsedTime(&ms, b->begin, b->end));
        result->step_ns = (int64_t)((double)ms * 1e6 + 0.5);
    }
    if (b->collector)
        ST_TRY(collect(b, result, err));
    return 0;
}

/* One untimed launch, for every layer buffer when the operator has layers. */
static int launch_left_out(struct st_backend *b, enum st_operator op, int16_t ratio, int32_t set,
                           int64_t *launched, struct st_error *err) {
    int32_t times = op == ST_OP_COMPRESSED_SLOT_MAPPING ? 1 : b->buffers;
    for (int32_t i = 0; i < times; i++) {
        struct st_launch launch = {
            .op = (uint8_t)op, .layer = -1, .ordinal = (int16_t)i, .ratio = ratio};
        ST_TRY(launch_one(b, &launch, b->padded_token_count, set, false, err));
        ++*launched;
    }
    return 0;
}

int st_cuda_launch_left_out(struct st_backend *b, struct st_error *err) {
    bool mapping = !st_operator_wanted(b->ops_mask, ST_OP_COMPRESSED_SLOT_MAPPING);
    bool save = !st_operator_wanted(b->ops_mask, ST_OP_SAVE_PARTIAL_STATES);
    int64_t launched = 0, count;
    if (b->padded_token_count == 0)
        return 0;
    for (int32_t set = 0; set < b->sets; set++) {
        if (mapping && b->d_slot_c4)
            ST_TRY(launch_left_out(b, ST_OP_COMPRESSED_SLOT_MAPPING, 4, set, &launched, err));
        if (mapping && b->d_slot_c128)
            ST_TRY(launch_left_out(b, ST_OP_COMPRESSED_SLOT_MAPPING, 128, set, &launched, err));
        if (save && b->d_state)
            ST_TRY(launch_left_out(b, ST_OP_SAVE_PARTIAL_STATES, 128, set, &launched, err));
    }
    if (!b->collector || launched == 0)
        return 0;
    const struct st_kernel_record *record; /* of no step */
    ST_CUDA(err, cudaStreamSynchronize(b->stream));
    ST_TRY(fetch_records(b, launched, &record, &count, err));
    st_collector_clear(b->collector);
    return 0;
}

/* Every operator once over so many tokens, all of them padding. */
static int launch_padding(struct st_backend *b, int64_t tokens, struct st_error *err) {
    struct st_launch launch = {.layer = -1, .ordinal = -1};
    for (int op = 0; op < ST_OP_COUNT; op++) {
        launch.op = (uint8_t)op;
        if (op == ST_OP_COMPRESSED_SLOT_MAPPING) {
            launch.ratio = 4;
            if (b->d_slot_c4)
                ST_TRY(launch_one(b, &launch, tokens, 0, false, err));
        }
        launch.ratio = 128;
        if (b->d_state || (op == ST_OP_COMPRESSED_SLOT_MAPPING && b->d_slot_c128))
            ST_TRY(launch_one(b, &launch, tokens, 0, op == ST_OP_COMPRESS_NORM_ROPE_STORE, err));
    }
    return 0;
}

int st_cuda_launch_nothing(struct st_backend *b, struct st_error *err) {
    /* Slots of -1 and no requests: every kernel returns at its first early-out.  The number of
     * tokens chooses among an operator's kernels, so all of them are loaded before any capture. */
    b->padded_request_count = 0;
    if (b->max_tokens > 0)
        ST_CUDA(err, cudaMemsetAsync(b->d_state_slot, 0xFF, (size_t)b->max_tokens * 8, b->stream));
    for (int64_t tokens = 1; tokens < b->max_tokens; tokens *= 2)
        ST_TRY(launch_padding(b, tokens, err));
    if (b->max_tokens > 0)
        ST_TRY(launch_padding(b, b->max_tokens, err));
    if (b->pass == ST_PASS_TIME) {
        ST_CUDA(err, st_cuda_gate(b->h_gate, b->gate_ticket, b->stream));
        ST_CUDA(err, st_cuda_evict(b->d_evict, b->evict_bytes, b->stream));
    }
    ST_CUDA(err, cudaStreamSynchronize(b->stream));
    return 0;
}
