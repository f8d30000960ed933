/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Backends: what executes plans.  One const table each, listed in st_backends; no registration.
 *
 * Order of calls (one thread):
 *
 *     probe                      can this machine do it, and if not why
 *     open(config)               one per pass: count, time and verify never share a backend
 *     for each step:
 *         prepare(input)         step metadata to the device, inputs generated, lost state rebuilt;
 *                                never timed
 *         for each repetition, for each policy in the interleaved order (A B B A ...):
 *             launch(plan, policy)    enqueue the plan's launches, in order
 *             sync(result)            wait; fill what the pass measures
 *         verify only: hash_rows / read_rows
 *     counters                   what happened over the whole pass
 *     close
 *
 * Invariants
 *  1. A backend issues exactly the plan's launches, in the plan's order, in the plan's mode; in
 *     FULL the launches with in_graph set run as one CUDA graph of shape.padded_token_count
 *     tokens, captured at max_model_len and kept per (policy, capture size); the others eagerly
 *     before it.
 *  2. Repeating a step's launches gives the same bits (writes are idempotent).
 *  3. Cache set: in verify every policy has caches of its own (a policy that does not write must
 *     show); in time and count all policies may share one.
 *  4. Layers may share buffers when memory is short: c128 layer number `ordinal` uses buffer
 *     ordinal % buffer_count, and everything generated for it is keyed by that buffer number
 *     instead of the layer: layers that share a buffer have the same inputs, so what one wrote is
 *     what the other expects to find.  info.buffer_count says how many there are.
 *  5. Padding: tokens [token_count, padded_token_count) have slot -1 and position 0; requests above
 *     request_count have length 0.
 */
#ifndef ST_REPLAY_BACKEND_H
#define ST_REPLAY_BACKEND_H

#include <stdbool.h>
#include <stdint.h>

#include "replay/model.h"
#include "replay/plan.h"
#include "replay/policy.h"
#include "traces/base/error.h"
#include "traces/format/step.h"

enum st_pass { ST_PASS_TIME, ST_PASS_COUNT, ST_PASS_VERIFY, ST_PASS_KINDS };
const char *st_pass_name(enum st_pass pass);

struct st_backend; /* each backend's own */

struct st_backend_config {
    const struct st_model *model;
    enum st_pass pass;
    int32_t policy_count;
    unsigned ops_mask;    /* as in st_plan_make */
    bool poison;          /* fill what nobody has written yet with NaN (caches, scratch, padding) */
    int32_t max_tokens;   /* largest padded_token_count of the replay */
    int32_t max_requests; /* largest padded_request_count */
    int64_t max_seq_len;  /* longest context of the replay (<= model->max_model_len) */
    int32_t max_blocks_per_row; /* widest block table row of the replay (state and kv) */
    int64_t num_blocks;         /* block ids are below this */
    int64_t max_rebuild;        /* largest rebuild_count */
    int32_t buffer_count;       /* wanted; 0: as many as fit */
    bool uses_full;             /* some step runs in FULL */
    const char *device;         /* --device (sim: profile name or file); NULL */
    int32_t device_set_count;   /* --device-set */
    const char *const *device_set;
    const char *cupti_path; /* count on cuda: the CUPTI library to take; NULL: looked for */
    const char *cuda_home;  /* (optional) where to look for it */
};

struct st_backend_info {
    char device[160];     /* "NVIDIA H200", "cpu: ...", "sim: ..." */
    int32_t buffer_count; /* distinct layer buffers, see invariant 4 */
    bool simulated;
    char error_note[160]; /* simulated: where its figures come from */
};

/* Block ids as the kernels get them: row r has block_id[r * stride + column]; absent ids are 0.
 * Columns below first_column[r] belong to positions that no launch of this step reads; they hold
 * anything. */
struct st_block_table {
    const int32_t *block_id;
    const int32_t *first_column; /* [row_count] */
    int32_t row_count;           /* padded_request_count */
    int32_t stride; /* the same in all steps of a replay; 0: the model has no such cache */
};

struct st_step_input {
    int64_t step_id;
    struct st_step_shape shape;
    const int64_t *request_id;       /* [request_count] key of the generator */
    const int32_t *query_start_loc;  /* [padded_request_count + 1] */
    const int32_t *seq_len;          /* [padded_request_count] start + query_len */
    const int64_t *position;         /* [padded_token_count] */
    const int32_t *token_to_request; /* [padded_token_count] */
    const int64_t *state_slot;       /* [padded_token_count] slot in the c128 state cache */
    struct st_block_table state_c128, kv_c128, kv_c4;
    /* Nothing in the caches is needed any more (it is in the rebuild list where it is): a backend
     * may give their memory back. */
    bool forget;
    /* State rows that earlier steps would have written and this replay has not: to be written
     * through save_partial_states semantics (from the generator) into every cache set before the
     * launches. */
    int32_t rebuild_count;
    const int64_t *rebuild_request_id; /* [rebuild_count] */
    const int64_t *rebuild_position;
    const int64_t *rebuild_slot;
};

/* Unknown is ST_UNKNOWN. */
struct st_step_result {
    int64_t step_ns;               /* time: first launch to the end of the last, on the device */
    int64_t kernel_ns;             /* count: sum over kernels */
    int32_t launches[ST_OP_COUNT]; /* count: as observed; -1 not observed */
    int64_t op_kernel_ns[ST_OP_COUNT];
    int32_t other_launches; /* count: kernels and memory sets that belong to no operator */
};

/* Rows of an output, for hash_rows and read_row.  slot: state slot (save), entry slot (store),
 * token (slot mapping). */
struct st_output_rows {
    enum st_operator op;
    int32_t ordinal; /* c128 layer ordinal; slot mapping: the ratio */
    int32_t policy;  /* cache set */
    int32_t count;
    const int64_t *slot;
};

/* Bytes of one output row: slot mapping 8, save 4096 (kv, then score + ape), store 584 (576 data,
 * then 8 scale bytes); 0 for outputs that are not kept (pool). */
int32_t st_output_row_bytes(enum st_operator op);

struct st_backend_counters {
    int64_t launches;       /* kernels issued */
    int64_t graph_launches; /* graphs launched */
    int64_t graphs;         /* graphs captured */
    int64_t dropped;        /* profiling records lost */
};

struct st_backend_ops {
    const char *name;
    const char *summary;
    unsigned pass_mask;         /* passes it can do, 1 << enum st_pass */
    unsigned default_pass_mask; /* passes without --pass */
    /* 0, or ST_ERR_UNAVAILABLE with the reason. */
    int (*probe)(struct st_error *err);
    int (*open)(const struct st_backend_config *config, struct st_backend **backend,
                struct st_backend_info *info, struct st_error *err);
    int (*prepare)(struct st_backend *backend, const struct st_step_input *input,
                   struct st_error *err);
    int (*launch)(struct st_backend *backend, const struct st_plan *plan, int32_t policy,
                  struct st_error *err);
    int (*sync)(struct st_backend *backend, struct st_step_result *result, struct st_error *err);
    /* (optional; needed for verify) hash: [rows->count], st_digest_row of each row. */
    int (*hash_rows)(struct st_backend *backend, const struct st_output_rows *rows, uint64_t *hash,
                     struct st_error *err);
    /* (optional; needed for verify) the rows' bytes, st_output_row_bytes() each. */
    int (*read_rows)(struct st_backend *backend, const struct st_output_rows *rows, void *bytes,
                     struct st_error *err);
    /* (optional) default: all unknown (-1). */
    void (*counters)(const struct st_backend *backend, struct st_backend_counters *counters);
    void (*close)(struct st_backend *backend); /* accepts NULL */
    int64_t
        forget_bytes;  /* verify: input.forget once steps wrote so many bytes of caches; 0: never */
    bool needs_blocks; /* prepare needs block tables; without: state and tables are NULL */
};

extern const struct st_backend_ops st_backend_cpu;
extern const struct st_backend_ops st_backend_sim;
extern const struct st_backend_ops st_backend_cuda; /* without CUDA: probe says so */

/* NULL when there is none of that name. */
const struct st_backend_ops *st_backend_find(const char *name);

#endif
