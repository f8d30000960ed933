/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the files of the CUDA backend share.  See backend_cuda.c for how it works.
 */
#ifndef ST_REPLAY_BACKEND_CUDA_I_H
#define ST_REPLAY_BACKEND_CUDA_I_H

#include <cuda_runtime_api.h>
#include <stdbool.h>
#include <stdint.h>

#include "capture/cupti/collector.h"
#include "replay/backend.h"

/* Returns ST_ERR_NATIVE with CUDA's own words from the calling function when call fails. */
#define ST_CUDA(err, call)                                                                         \
    do {                                                                                           \
        int st_cuda_rc_ = (int)(call);                                                             \
        if (st_cuda_rc_ != 0)                                                                      \
            return st_cuda_fail((err), st_cuda_rc_, #call, __FILE__, __LINE__);                    \
    } while (0)

int st_cuda_fail(struct st_error *err, int code, const char *call, const char *file, int line);

enum { ST_CUDA_MAX_ALLOCATIONS = 64 };

/* A block table at a fixed address with a fixed stride, as an engine's persistent one. */
struct st_cuda_table {
    int32_t *d_block_id;
    int32_t *h_packed; /* pinned: [rows] first column, [rows + 1] offset, ids of this step */
    int32_t *d_packed;
    int64_t packed_count; /* room of both */
    int32_t block_size;
    int64_t stride; /* columns of d_block_id; 0: the model has none */
};

/* The FULL graph of one capture size. */
struct st_cuda_graph {
    uint64_t key; /* of the launches in it and the cache set they use */
    cudaGraphExec_t exec;
    int32_t kernels;
};

struct st_backend {
    struct st_model model;
    enum st_pass pass;
    unsigned ops_mask;
    bool poison;
    int32_t max_tokens, max_requests, max_rebuild;
    int32_t sets;    /* cache sets: one a policy in verify, else 1 */
    int32_t buffers; /* distinct layer buffers of a set */

    cudaStream_t stream;
    cudaEvent_t begin, end;
    void *d_allocation[ST_CUDA_MAX_ALLOCATIONS];
    int32_t allocation_count;
    void *h_allocation[ST_CUDA_MAX_ALLOCATIONS];
    int32_t h_allocation_count;

    /* Caches: [sets][buffers], pages of the model's page bytes. */
    uint8_t *d_state, *d_kv;
    int64_t state_bytes, kv_bytes; /* of one buffer */
    float *d_kv_score;             /* [buffers][max_tokens][2 * head_dim] */
    float *d_ape, *d_weight;
    float *d_cos_sin; /* [max_seq_len][rope_dim]; only the rows that start a group are filled */
    float *d_pooled;  /* [sets][max_tokens][head_dim], shared by all layers as an allocator would */

    /* Step metadata at fixed addresses: a captured graph reads them at every replay. */
    int64_t *d_position, *d_state_slot, *d_request_id;
    int32_t *d_token_to_request, *d_query_start_loc, *d_seq_len;
    int64_t *d_slot_c128, *d_slot_c4; /* [sets][slot_count], made on the device */
    int64_t slot_count;
    int64_t *d_rebuild; /* request, position, slot: [3][max_rebuild] */
    struct st_cuda_table state_table, kv_c128_table, kv_c4_table;
    int32_t request_count, padded_request_count, token_count, padded_token_count;

    struct st_cuda_graph *graph;
    int32_t graph_count, graph_room;

    /* time */
    uint32_t *h_gate; /* pinned and mapped */
    uint32_t gate_ticket;
    void *d_evict;
    int64_t evict_bytes;

    /* count */
    struct st_collector *collector; /* NULL: no CUPTI, nothing is counted */
    const struct st_plan *plan;     /* of the last launch() */

    /* verify */
    int64_t *d_rows;
    uint64_t *d_hash;
    int64_t rows_room;
    uint32_t *d_words;
    int64_t words_room;

    struct st_backend_counters counters;
};

/* Device memory that close() frees; bytes 0 gives NULL. */
int st_cuda_alloc(struct st_backend *b, void **pointer, int64_t bytes, const char *what,
                  struct st_error *err);

/* Enqueues the plan's launches as its mode asks (backend_cuda_launch.c). */
int st_cuda_launch(struct st_backend *b, const struct st_plan *plan, int32_t policy,
                   struct st_error *err);
int st_cuda_sync(struct st_backend *b, struct st_step_result *result, struct st_error *err);
/* One launch of every operator over tokens that are all padding: loads the modules, writes nothing.
 */
int st_cuda_launch_nothing(struct st_backend *b, struct st_error *err);
/* Operators that --ops leaves out still give the others their inputs: they run in preparation. */
int st_cuda_launch_left_out(struct st_backend *b, struct st_error *err);
void st_cuda_free_graphs(struct st_backend *b);

#endif
