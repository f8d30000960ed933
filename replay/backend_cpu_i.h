/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Inside of the cpu backend: backend_cpu.c (its life, executing a plan, what was observed),
 * backend_cpu_fill.c (what the generator gives, what poison leaves).
 *
 * Invariants
 *  1. verify: every launch of the plan is executed for the layers that have a buffer of their own
 *     (ordinal < layer_buffers).  A layer that shares one would write the same bits again, so it is
 *     not executed; the run says how many buffers there were.
 *  2. Of attention, top-k, combined lists and their fills only the sampled tokens' rows are
 *     computed, with _ref_rows; everything else in full.
 *  3. count: launches are counted, nothing is computed: no device could disagree.
 *  4. Everything is reserved address space; pages of it become memory when they are used, and those
 *     of caches go back when the input says `forget`.
 */
#ifndef ST_REPLAY_BACKEND_CPU_I_H
#define ST_REPLAY_BACKEND_CPU_I_H

#include "replay/backend.h"
#include "replay/bind.h"
#include "replay/reference.h"

#define ST_CPU_MAX_LAYER_BUFFERS 64

/* Stored bytes of one row of an observation whose memory later layers use again. */
struct st_cpu_kept_row {
    int32_t row, length;
    size_t offset; /* into bytes */
};

/* What one observation of the last launch() saw. */
struct st_cpu_observation {
    size_t hash_offset, kept_offset;
    int32_t count, kept_count;
};

/* Of one policy; grows, and is reused by every step. */
struct st_cpu_observed {
    struct st_cpu_observation *observation;
    struct st_cpu_kept_row *kept;
    uint64_t *hash;
    uint8_t *bytes;
    size_t observation_count, kept_count, hash_count, byte_count;
    size_t observation_room, kept_room, hash_room, byte_room;
};

struct st_backend {
    const struct st_model *model;
    enum st_pass pass;
    bool poison;
    unsigned ops_mask;
    int32_t sets, sample_wanted;
    struct st_buffers buffers;
    uint8_t *memory[ST_BUF_COUNT];     /* all copies; NULL: not used, or of scope INPUT */
    int64_t stride[ST_BUF_COUNT];      /* from copy to copy; poison: with guards */
    int64_t band[ST_BUF_COUNT];        /* guard before each copy; 0 without poison */
    uint8_t *seen[ST_CACHE_COUNT];     /* [layer_buffers][num_blocks]: page was filled */
    struct st_layer_parameters *layer; /* [layer_buffers][3], by state cache */
    struct st_step_input input;
    int64_t *sample, *sample_shifted; /* [sample_wanted] tokens, ascending */
    int32_t *sample_token;
    int32_t sample_count;
    struct st_cpu_observed observed[ST_MAX_POLICIES];
    struct st_guards guards; /* of the last launch() */
    struct st_guard_damage damage[ST_GUARD_DAMAGES];
    int32_t damage_count;
    int64_t damage_lost;
    struct st_step_result result;
    struct st_backend_counters counters;
};

static inline void *st_cpu_buffer(const struct st_backend *b, enum st_buffer_id id, int32_t set,
                                  int32_t layer_buffer) {
    if (st_buffer_scope(id) == ST_SCOPE_INPUT)
        return b->input.host.at[id];
    if (!b->memory[id])
        return NULL;
    return b->memory[id] + b->band[id] +
           st_buffer_copy(&b->buffers, id, set, layer_buffer) * b->stride[id];
}

/* Parameters and tables that hold for the whole replay. */
int st_cpu_fill_constants(struct st_backend *b, struct st_error *err);
/* Everything that a step reads and no launch of it writes; input, sample are set. */
void st_cpu_fill_step(struct st_backend *b);
void st_cpu_forget(struct st_backend *b);
/* Scores of the sampled rows of a top-k launch. */
void st_cpu_fill_logits(const struct st_backend *b, const struct st_launch *launch,
                        const struct steptape_topk_per_row_args *args);

/* Invariant 6 of backend.h: before a policy's launches... */
void st_cpu_poison(struct st_backend *b, const struct st_plan *plan, int32_t policy);
/* ...and before the gathers of a chunk. */
void st_cpu_poison_workspace(struct st_backend *b, const struct st_plan *plan, int32_t policy);

/* Guards: filled behind the poison, compared behind a launch, and all of them behind the last. */
void st_cpu_fill_guards(struct st_backend *b, const struct st_plan *plan, int32_t policy);
void st_cpu_check_guards(struct st_backend *b, const struct st_launch *launch, int32_t policy);
void st_cpu_check_all_guards(struct st_backend *b, int32_t policy);

/* Sampled tokens among rows [first, first + count), counted from first; *n is set. */
const int64_t *st_cpu_sampled_rows(struct st_backend *b, int32_t first, int32_t count, int32_t *n);

#endif
