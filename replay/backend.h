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
 *             verify only: hashes, read_row
 *     counters                   what happened over the whole pass
 *     close
 *
 * Invariants
 *  1. A backend issues exactly the plan's launches, in the plan's order, in the plan's mode, with
 *     the arguments that replay/bind.h gives for its addresses.  In FULL the launches with in_graph
 *     set run as one CUDA graph, captured once per (policy, capture size) and never again; the
 *     others eagerly before it.  In PIECEWISE and NONE every launch is eager: the captured segments
 *     of a piecewise step hold no operator that is replayed here.
 *  2. Repeating a step's launches gives the same bits (writes are idempotent).
 *  3. Cache set: in verify every policy has buffers of its own (a policy that does not write must
 *     show); in time and count all policies may share one.
 *  4. Layers may share buffers when memory is short: layer number `ordinal` of its kind uses layer
 *     buffer ordinal % layer_buffers, and everything generated for it is keyed by that number
 *     instead of the layer: layers that share a buffer have the same inputs, so what one wrote is
 *     what the other expects to find.  info.layer_buffers says how many there are.
 *  5. Padding: tokens [token_count, padded_token_count) have slot -1, position 0 and length 0;
 *     requests above request_count have length 0.
 *  6. verify with poison: before each launch() whatever no launch of the step is bound to write
 *     holds what production would leave there: NaN in floating scratch and in cache blocks that
 *     nobody wrote, stale but valid indices in index buffers (pointing at NaN rows where an index
 *     can), guards (replay/guard.h) around every output, up to the end of its array.
 */
#ifndef ST_REPLAY_BACKEND_H
#define ST_REPLAY_BACKEND_H

#include <stdbool.h>
#include <stdint.h>

#include "replay/buffers.h"
#include "replay/guard.h"
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
    struct st_limits limits;
    enum st_pass pass;
    int32_t policy_count;
    unsigned ops_mask; /* as in st_plan_make */
    bool poison;
    int64_t max_rebuild;      /* largest rebuild_count */
    int32_t layer_buffers;    /* wanted; 0: as many as fit */
    int32_t sample_tokens;    /* cpu: tokens a step whose attention is computed; 0: its default */
    const char *device;       /* --device (sim: profile name or file); NULL */
    int32_t device_set_count; /* --device-set */
    const char *const *device_set;
    const char *cupti_path; /* count on cuda: the CUPTI library to take; NULL: looked for */
    const char *cuda_home;  /* (optional) where to look for it */
};

struct st_backend_info {
    char device[160];          /* "NVIDIA H200", "cpu: ...", "sim: ..." */
    struct st_buffers buffers; /* sizes, see invariant 4 */
    int64_t set_bytes; /* reserved for one policy, caches included; 0: nothing is allocated */
    bool simulated;
    char error_note[160]; /* simulated: where its figures come from */
};

/* A state row that earlier steps would have written and this replay has not: to be written with
 * save_partial_states semantics (from the generator) into every cache set before the launches. */
struct st_rebuild {
    int64_t request_id, position, slot;
};

struct st_step_input {
    int64_t step_id;
    struct st_step_shape shape;
    /* Host arrays of scope INPUT, laid out as replay/buffers.h says (tables with table_stride);
     * NULL where the model has no use for one.  Borrowed until the next build. */
    struct st_frame host;
    /* Per cache: columns [first_column[r], ceil(seq_len[r] / block_size)) of row r are filled, the
     * others hold anything; no launch of this step reads them.  [request_count] */
    const int32_t *first_column[ST_CACHE_COUNT];
    /* Nothing in the caches is needed any more (it is in the rebuild lists where it is): a backend
     * may give their memory back. */
    bool forget;
    int32_t rebuild_count[ST_CACHE_COUNT]; /* of the state caches */
    const struct st_rebuild *rebuild[ST_CACHE_COUNT];
    /* For the comparison, of the state caches: whether the entry that a token closes is pooled from
     * rows that another request wrote, as where a prefix is shared. [token_count] */
    const bool *mixed[ST_CACHE_COUNT];
};

/* Unknown is ST_UNKNOWN. */
struct st_step_result {
    int64_t step_ns;               /* time: first launch to the end of the last, on the device */
    int64_t host_ns;               /* time: what the host spent in launching (graph toggles too) */
    int64_t kernel_ns;             /* count: sum over kernels */
    int32_t launches[ST_OP_COUNT]; /* count: as observed; -1 not observed */
    int64_t op_kernel_ns[ST_OP_COUNT];
    int32_t other_launches; /* count: kernels and memory sets that belong to no operator */
};

struct st_backend_counters {
    int64_t launches;       /* kernels issued */
    int64_t graph_launches; /* graphs launched */
    int64_t graphs;         /* graphs captured */
    int64_t graph_bytes;    /* device memory that instantiating them took; -1 unknown */
    int64_t capture_ns;     /* host time of capturing and instantiating; -1 unknown */
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
    /* (optional; needed for verify) After sync, hash[i] of row i of observation number
     * `observation` (counted from 0 over the plan's OBSERVE launches), st_digest_rows semantics;
     * rows that the backend did not compute (rows_computed) and rows without a slot are 0. */
    int (*hashes)(struct st_backend *backend, const struct st_plan *plan, int32_t policy,
                  int32_t observation, int32_t count, uint64_t *hash, struct st_error *err);
    /* (optional; needed for verify) The bytes of one such row: runs the plan again up to it.  size
     * is room; *length is set. */
    int (*read_row)(struct st_backend *backend, const struct st_plan *plan, int32_t policy,
                    int32_t observation, int32_t row, void *bytes, int32_t size, int32_t *length,
                    struct st_error *err);
    /* (optional; verify with poison) After sync, guards that the last launch() of the policy found
     * changed: borrowed until the next; *lost more were found.  Returns how many. */
    int32_t (*damages)(struct st_backend *backend, int32_t policy,
                       const struct st_guard_damage **damage, int64_t *lost);
    /* (optional) Ascending tokens whose attention, top-k and combined rows were computed in the
     * step that prepare() saw last; NULL: all. */
    const int32_t *(*sampled_tokens)(const struct st_backend *backend, int32_t *count);
    /* (optional) default: all unknown (-1). */
    void (*counters)(const struct st_backend *backend, struct st_backend_counters *counters);
    void (*close)(struct st_backend *backend); /* accepts NULL */
    int64_t
        forget_bytes;  /* verify: input.forget once steps wrote so many bytes of caches; 0: never */
    bool needs_blocks; /* prepare needs block tables; without: host is empty */
};

extern const struct st_backend_ops st_backend_cpu;
extern const struct st_backend_ops st_backend_sim;
extern const struct st_backend_ops st_backend_cuda; /* without CUDA: probe says so */

/* NULL when there is none of that name. */
const struct st_backend_ops *st_backend_find(const char *name);

#endif
