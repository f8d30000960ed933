/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the files of the CUDA backend share.
 *
 * backend_cuda.c opens, closes and owns memory; backend_cuda_fill.c brings in a step and what the
 * generator and poison leave; backend_cuda_launch.c runs plans; backend_cuda_full.c keeps the
 * graphs of FULL steps; backend_cuda_graph.c makes one; backend_cuda_observe.c looks at outputs,
 * backend_cuda_guard.c at what lies around them;
 * backend_cuda_count.c reads CUPTI's records; backend_cuda.cu holds the device code.
 *
 * Invariants
 *  1. Everything a launch reads or writes lies at a fixed address with a fixed stride for the whole
 *     pass.  A step changes contents only, so a graph captured once stays right, as in an engine.
 *  2. Nothing but the plan's launches runs between the two events of a measurement, and nothing
 *     else but kernels named st_cuda_... runs on the device where a count pass looks.
 *  3. Inputs come from the generator, on the device; state that earlier steps would have left is
 *     rebuilt from it in every cache set.
 */
#ifndef ST_REPLAY_BACKEND_CUDA_I_H
#define ST_REPLAY_BACKEND_CUDA_I_H

#include <cuda_runtime_api.h>
#include <stdbool.h>
#include <stdint.h>

#include "capture/cupti/collector.h"
#include "replay/backend.h"
#include "replay/backend_cuda_graph.h"
#include "replay/bind.h"

enum { ST_CUDA_MAX_ALLOCATIONS = 256 };

/* The ids of a block table that a step can read, and where they go. */
struct st_cuda_packed {
    int32_t *host; /* pinned: [rows] first column, [rows + 1] offset, ids */
    int32_t *device;
    int64_t room; /* of both */
};

/* A FULL graph: one a policy and capture size, two with graph-skip=variant. */
struct st_cuda_full {
    int32_t policy, tokens;
    bool pair;            /* variant: which of the two */
    uint64_t contents[2]; /* of what was captured, [1]: with the pair; 0: not seen */
    cudaGraph_t graph;    /* stays: its nodes name those of exec */
    cudaGraphExec_t exec;
    cudaGraphNode_t *node; /* node-disable: the pair's, in order */
    int32_t node_count;
    bool disabled; /* these nodes are */
};

/* What the plan of a policy's last launch() looks at, verify. */
struct st_cuda_observed {
    int64_t *offset; /* of each observation's first hash */
    int32_t count, room;
    int64_t rows;
    uint64_t *h_hash; /* pinned, [hash_room] */
};

struct st_backend {
    struct st_model model;
    enum st_pass pass;
    unsigned ops_mask;
    bool poison;
    int64_t max_rebuild;
    int32_t sets; /* one a policy in verify, else 1 */
    struct st_buffers buffers;

    cudaStream_t stream;
    cudaEvent_t begin, end;
    void *d_allocation[ST_CUDA_MAX_ALLOCATIONS];
    int32_t allocation_count;

    uint8_t *memory[ST_BUF_COUNT]; /* all copies, stride[id] apart; NULL: not used */
    int64_t stride[ST_BUF_COUNT];
    int64_t band[ST_BUF_COUNT]; /* poison: guard before each copy and behind it */
    struct st_frame *frame;     /* [sets][layer_buffers] */
    struct st_cuda_packed packed[ST_CACHE_COUNT];
    int64_t *d_rebuild; /* [max_rebuild][3] */

    /* The step that prepare() saw, with what making a plan needs of it. */
    struct st_step step;
    struct st_step_shape shape;
    int32_t *query_len, *computed;
    uint32_t logits_rest; /* what LOGITS holds outside of rows; 0: another step's scores */

    struct st_cuda_full *full;
    int32_t full_count, full_room;
    struct st_plan stack[2]; /* the bodies of an IF/ELSE: [1] with the pair */
    struct st_plan left_out; /* of operators that --ops leaves out */

    /* time */
    uint32_t *h_gate; /* pinned and mapped */
    uint32_t gate_ticket;
    void *d_evict;
    int64_t evict_bytes;
    int64_t host_ns; /* of the last launch() */

    /* count */
    struct st_collector *collector;  /* NULL: no CUPTI, nothing is counted */
    struct st_kernel_record *record; /* of the last step, as they ran */
    int64_t record_room;
    const struct st_plan *plan; /* of the last launch() */
    int64_t strays;             /* kernels launched since that are no step's */

    /* verify */
    uint64_t *d_hash; /* [sets][hash_room] */
    int64_t hash_room;
    struct st_cuda_snapshot *d_snapshot; /* bytes follow */
    int32_t snapshot_room;
    struct st_cuda_observed observed[ST_MAX_POLICIES];

    /* verify with poison */
    struct st_guards guards;                       /* of the last launch() */
    struct st_cuda_damages *d_damages, *h_damages; /* [sets]; h: pinned */
    struct st_guard_damage damage[ST_GUARD_DAMAGES];

    struct st_backend_counters counters;
};

static inline int32_t st_cuda_set(const struct st_backend *b, int32_t policy) {
    return b->sets > 1 ? policy : 0;
}

static inline void *st_cuda_buffer(const struct st_backend *b, enum st_buffer_id id, int32_t set,
                                   int32_t layer_buffer) {
    return b->memory[id]
               ? b->memory[id] + st_buffer_copy(&b->buffers, id, set, layer_buffer) * b->stride[id]
               : NULL;
}

static inline const struct st_frame *st_cuda_frame(const struct st_backend *b, int32_t set,
                                                   int32_t ordinal) {
    int32_t count = b->buffers.layer_buffers;
    return &b->frame[set * count + (ordinal > 0 ? ordinal % count : 0)];
}

/* Device memory that close() frees; bytes 0 gives NULL. */
int st_cuda_alloc(struct st_backend *b, void *pointer, int64_t bytes, const char *what,
                  struct st_error *err);

/* ---- backend_cuda_fill.c */

/* What holds for the whole pass; the memory is there and zero. */
int st_cuda_fill_pass(struct st_backend *b, struct st_error *err);
int st_cuda_prepare(struct st_backend *b, const struct st_step_input *input, struct st_error *err);
/* Scores that the plan's selections read, if they are not there yet. */
int st_cuda_fill_scores_of(struct st_backend *b, const struct st_plan *plan, struct st_error *err);
/* Invariant 6 of backend.h: before a policy's launches, and before the gathers of a chunk. */
int st_cuda_poison(struct st_backend *b, const struct st_plan *plan, int32_t set,
                   struct st_error *err);
int st_cuda_poison_workspace(struct st_backend *b, const struct st_plan *plan, int32_t set,
                             struct st_error *err);

/* ---- backend_cuda_launch.c */

/* One launch of a plan (observation: its number, when it is one). */
int st_cuda_launch_one(struct st_backend *b, const struct st_plan *plan,
                       const struct st_launch *launch, int32_t set, int32_t observation,
                       struct st_error *err);
int st_cuda_launch(struct st_backend *b, const struct st_plan *plan, int32_t policy,
                   struct st_error *err);
int st_cuda_sync(struct st_backend *b, struct st_step_result *result, struct st_error *err);

/* ---- backend_cuda_full.c */

/* The graph for a plan's launches in it: captured when it is the first of its kind; an error when
 * the plan would have captured another. */
int st_cuda_find_full(struct st_backend *b, const struct st_plan *plan, int32_t policy,
                      struct st_cuda_full **full, struct st_error *err);
int st_cuda_launch_full(struct st_backend *b, struct st_cuda_full *full, const struct st_plan *plan,
                        struct st_error *err);
void st_cuda_free_full(struct st_backend *b);

/* ---- backend_cuda_observe.c */

int st_cuda_open_observed(struct st_backend *b, struct st_error *err);
void st_cuda_close_observed(struct st_backend *b);
/* Where the observations of a plan go: before any is launched. */
int st_cuda_place_observations(struct st_backend *b, const struct st_plan *plan, int32_t set,
                               struct st_error *err);
void st_cuda_bind_observation(const struct st_backend *b, const struct st_plan *plan,
                              const struct st_launch *launch, int32_t set,
                              struct st_cuda_rows *rows);
int st_cuda_launch_observation(struct st_backend *b, const struct st_plan *plan,
                               const struct st_launch *launch, int32_t set, int32_t observation,
                               struct st_error *err);
int st_cuda_take_hashes(struct st_backend *b, int32_t set, struct st_error *err);
int st_cuda_hashes(struct st_backend *b, const struct st_plan *plan, int32_t policy,
                   int32_t observation, int32_t count, uint64_t *hash, struct st_error *err);
int st_cuda_read_row(struct st_backend *b, const struct st_plan *plan, int32_t policy,
                     int32_t observation, int32_t row, void *bytes, int32_t size, int32_t *length,
                     struct st_error *err);

/* ---- backend_cuda_guard.c */

int st_cuda_open_guards(struct st_backend *b, struct st_error *err);
void st_cuda_close_guards(struct st_backend *b);
/* Those of b->guards, in the buffers of a set; forgets what was found. */
int st_cuda_fill_guards(struct st_backend *b, int32_t set, struct st_error *err);
/* Behind a launch, also while a graph is captured... */
int st_cuda_check_guards(struct st_backend *b, const struct st_launch *launch, int32_t set,
                         struct st_error *err);
/* ...and behind the last: all of them; brings what was found. */
int st_cuda_check_all_guards(struct st_backend *b, int32_t set, struct st_error *err);
int32_t st_cuda_get_damages(struct st_backend *b, int32_t policy,
                            const struct st_guard_damage **damage, int64_t *lost);

#endif
