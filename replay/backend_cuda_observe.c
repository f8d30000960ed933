/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Looking at outputs: a hash of every row where a consumer would read it, and one row's bytes.
 *
 * A row is asked for by running its plan again: kernels that a graph captured look at a snapshot
 * request in device memory, so that nothing about the graph changes.
 */
#include <stdlib.h>
#include <string.h>

#include "replay/backend_cuda_i.h"
#include "replay/backend_cuda_kernels.h"

/* Observations a step makes once, and at most a layer: of each no more rows than tokens. */
enum { VIEWS_A_STEP = 8, VIEWS_A_LAYER = 8 };

static int64_t largest(int64_t a, int64_t b) {
    return a > b ? a : b;
}

/* Bytes of the longest row of any view. */
static int64_t row_room(const struct st_backend *b) {
    int64_t room = 2048 * 4; /* a state row of ratio 4 */
    room = largest(room, (int64_t)b->model.heads * b->model.value_dim * 2);
    room = largest(room, 4 * (b->buffers.combined_stride + 1));
    room = largest(room, 4 * ((int64_t)b->model.index_topk + 1));
    return largest(room, 4 * ((int64_t)b->buffers.c128a_capacity + 1));
}

static int set_request(struct st_backend *b, int32_t observation, int32_t row,
                       struct st_error *err) {
    struct st_cuda_snapshot request = {observation, row, 0, b->snapshot_room};
    ST_CUDA(err, cudaMemcpyAsync(b->d_snapshot, &request, sizeof request, cudaMemcpyHostToDevice,
                                 b->stream));
    ST_CUDA(err, cudaStreamSynchronize(b->stream));
    return 0;
}

int st_cuda_open_observed(struct st_backend *b, struct st_error *err) {
    int64_t rows = largest(b->buffers.max_tokens, b->buffers.max_requests);
    b->hash_room = rows * (VIEWS_A_STEP + VIEWS_A_LAYER * b->model.layer_count);
    b->snapshot_room = (int32_t)row_room(b);
    ST_TRY(st_cuda_alloc(b, &b->d_hash, b->sets * b->hash_room * 8, "row hashes", err));
    ST_TRY(st_cuda_alloc(b, &b->d_snapshot, (int64_t)sizeof *b->d_snapshot + b->snapshot_room,
                         "a row", err));
    for (int32_t set = 0; set < b->sets; set++) {
        void *hash = NULL;
        ST_CUDA(err, cudaHostAlloc(&hash, (size_t)b->hash_room * 8, cudaHostAllocDefault));
        b->observed[set].h_hash = hash;
    }
    return set_request(b, -1, -1, err);
}

void st_cuda_close_observed(struct st_backend *b) {
    for (int set = 0; set < ST_MAX_POLICIES; set++) {
        if (b->observed[set].h_hash)
            cudaFreeHost(b->observed[set].h_hash);
        free(b->observed[set].offset);
    }
}

static int32_t row_count(const struct st_launch *launch) {
    return launch->view == ST_VIEW_GATHER_LENS ? launch->request_count : launch->token_count;
}

int st_cuda_place_observations(struct st_backend *b, const struct st_plan *plan, int32_t set,
                               struct st_error *err) {
    struct st_cuda_observed *o = &b->observed[set];
    o->count = 0;
    o->rows = 0;
    if (plan->observation_count > o->room) {
        int64_t *grown = realloc(o->offset, (size_t)plan->observation_count * sizeof *grown);
        if (!grown)
            return ST_FAIL_NOMEM(err);
        o->offset = grown;
        o->room = plan->observation_count;
    }
    for (int32_t i = 0; i < plan->launch_count; i++) {
        if (plan->launch[i].op != ST_OP_OBSERVE)
            continue;
        if (b->pass != ST_PASS_VERIFY || o->count == o->room)
            return ST_FAIL(err, ST_ERR_USAGE,
                           "backend cuda: a plan with observations it does not "
                           "announce, or outside of verify");
        o->offset[o->count++] = o->rows;
        o->rows += row_count(&plan->launch[i]);
    }
    if (o->rows > b->hash_room)
        return ST_FAIL(err, ST_ERR_USAGE,
                       "backend cuda: %lld observed rows, there is room for "
                       "%lld",
                       (long long)o->rows, (long long)b->hash_room);
    return 0;
}

void st_cuda_bind_observation(const struct st_backend *b, const struct st_plan *plan,
                              const struct st_launch *launch, int32_t set,
                              struct st_cuda_rows *out) {
    struct st_rows rows;
    st_bind_view(&b->model, &b->buffers, st_cuda_frame(b, set, launch->ordinal), plan, launch,
                 &rows);
    memset(out, 0, sizeof *out);
    out->base = rows.base;
    out->slot = rows.slot;
    out->lens = rows.lens;
    out->stride_bytes = rows.stride_bytes;
    out->page_bytes = rows.page_bytes;
    out->entries = rows.entries;
    out->data_bytes = rows.data_bytes;
    out->tail_bytes = rows.tail_bytes;
    out->count = rows.count;
}

int st_cuda_launch_observation(struct st_backend *b, const struct st_plan *plan,
                               const struct st_launch *launch, int32_t set, int32_t observation,
                               struct st_error *err) {
    struct st_cuda_rows rows;
    st_cuda_bind_observation(b, plan, launch, set, &rows);
    uint64_t *hash = b->d_hash + set * b->hash_room + b->observed[set].offset[observation];
    ST_CUDA(err, st_cuda_observe(&rows, observation, hash, b->d_snapshot, b->stream));
    return 0;
}

int st_cuda_take_hashes(struct st_backend *b, int32_t set, struct st_error *err) {
    struct st_cuda_observed *o = &b->observed[set];
    if (o->rows > 0)
        ST_CUDA(err, cudaMemcpyAsync(o->h_hash, b->d_hash + set * b->hash_room, (size_t)o->rows * 8,
                                     cudaMemcpyDeviceToHost, b->stream));
    return 0;
}

int st_cuda_hashes(struct st_backend *b, const struct st_plan *plan, int32_t policy,
                   int32_t observation, int32_t count, uint64_t *hash, struct st_error *err) {
    (void)plan;
    const struct st_cuda_observed *o = &b->observed[st_cuda_set(b, policy)];
    int64_t end = observation + 1 < o->count ? o->offset[observation + 1] : o->rows;
    if (observation < 0 || observation >= o->count || end - o->offset[observation] != count)
        return ST_FAIL(err, ST_ERR_USAGE, "backend cuda: there is no observation %d of %d rows",
                       observation, count);
    memcpy(hash, o->h_hash + o->offset[observation], (size_t)count * sizeof *hash);
    return 0;
}

int st_cuda_read_row(struct st_backend *b, const struct st_plan *plan, int32_t policy,
                     int32_t observation, int32_t row, void *bytes, int32_t size, int32_t *length,
                     struct st_error *err) {
    struct st_cuda_snapshot taken;
    ST_TRY(set_request(b, observation, row, err));
    int rc = st_cuda_launch(b, plan, policy, err);
    cudaError_t copied = cudaStreamSynchronize(b->stream);
    if (copied == cudaSuccess)
        copied = cudaMemcpy(&taken, b->d_snapshot, sizeof taken, cudaMemcpyDeviceToHost);
    if (rc == 0 && copied == cudaSuccess && taken.length <= size)
        copied = cudaMemcpy(bytes, b->d_snapshot + 1, (size_t)taken.length, cudaMemcpyDeviceToHost);
    ST_TRY(rc);
    ST_CUDA(err, copied);
    ST_TRY(set_request(b, -1, -1, err));
    *length = taken.length;
    if (taken.length > size || taken.length > taken.room)
        return ST_FAIL(err, ST_ERR_USAGE, "backend cuda: a row has %d bytes, there is room for %d",
                       taken.length, size);
    return 0;
}
