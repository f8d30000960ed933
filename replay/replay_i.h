/* SPDX-License-Identifier: Apache-2.0 */
/* Inside of a replay: shared by replay.c (the run), passes.c (walking steps) and verify.c. */
#ifndef ST_REPLAY_REPLAY_I_H
#define ST_REPLAY_REPLAY_I_H

#include <stdbool.h>
#include <stdint.h>

#include "replay/backend.h"
#include "replay/input.h"
#include "replay/model.h"
#include "replay/replay.h"
#include "traces/base/error.h"
#include "traces/format/reader.h"
#include "traces/format/result.h"

/* A slice of --shard: so many consecutive steps. */
#define ST_SHARD_SLICE 64

/* What the passes measured of one step under one policy. */
struct st_measured {
    int64_t step_ns, kernel_ns; /* ST_UNKNOWN */
    int64_t op_kernel_ns[ST_OP_COUNT];
};

/* What the tape holds of this replay's steps, from a first look at all of them. */
struct st_survey {
    int64_t step_count;  /* steps of the range and shard */
    int64_t token_count; /* in them */
    int64_t empty_count; /* of the steps: without requests */
    int64_t full_count, piecewise_count, above_largest_count, mode_unknown_count;
    int64_t no_cpu_starts_count;
    int64_t above_settings_count;      /* more requests or tokens than the engine's settings */
    int64_t first_above_settings_step; /* of them */
    struct st_limits limits;
};

/* Rows looked at by verify, per policy and operator. */
struct st_verify_counts {
    int64_t steps, rows, rows_differing;
    int64_t reference_rows, reference_differing, rounding_bytes;
};

struct st_replay {
    const struct st_replay_options *options;
    const struct st_backend_ops *ops;
    struct st_tape *tape;
    struct st_model model;
    struct st_survey survey;
    struct st_result *result;
    int64_t first_step, last_step; /* inclusive */
    int32_t repeat;

    struct st_plan *plan[ST_MAX_POLICIES];
    struct st_measured *measured; /* [survey.step_count][policy_count] */

    struct st_backend *backend; /* of the pass that runs */
    struct st_backend_info info;
    int32_t pass_buffers[ST_PASS_KINDS];   /* layer buffers of each pass that ran */
    int64_t pass_set_bytes[ST_PASS_KINDS]; /* memory of one policy in it */
    struct st_backend_counters counters;   /* summed over passes; -1 unknown */

    /* time: paired differences to the first policy within a step, for the noise floor */
    double paired_square_sum;
    int64_t paired_count, paired_freedom;

    /* verify */
    int64_t sample_stride; /* steps come in pairs, every so many pairs */
    int64_t verify_steps, verify_tokens;
    int32_t sample_rows;
    int64_t reference_steps, reference_tokens; /* that the CPU backend ran beside another */
    int64_t hazard_count, hazards_stored;
    struct st_verify_counts verify[ST_MAX_POLICIES][ST_OP_COUNT];
};

/* One step of a walk. */
struct st_walk_step {
    const struct st_step *step;
    int64_t index; /* among the steps of this replay, from 0 */
    struct st_step_shape shape;
    struct st_cursor *cursor;
    struct st_input *input; /* NULL: the walk reads no blocks */
};

typedef int st_walk_fn(struct st_replay *replay, const struct st_walk_step *at, void *user,
                       struct st_error *err);

/* Calls visit for each step of the range and shard, in order; events in between are observed.
 * inputs: give it what st_input_build() needs.  title: of the progress bar; NULL: none. */
int st_replay_walk(struct st_replay *replay, bool inputs, const char *title, st_walk_fn *visit,
                   void *user, struct st_error *err);

int st_replay_pass_time(struct st_replay *replay, struct st_error *err);
int st_replay_pass_count(struct st_replay *replay, struct st_error *err);
int st_replay_pass_verify(struct st_replay *replay, struct st_error *err);

/* Opens the backend for a pass, or closes it (also after an error). */
int st_replay_open_backend(struct st_replay *replay, enum st_pass pass, struct st_error *err);
void st_replay_close_backend(struct st_replay *replay);

static inline struct st_measured *st_replay_measured(struct st_replay *replay, int64_t index,
                                                     int32_t policy) {
    return &replay->measured[index * replay->options->policy_count + policy];
}

#endif
