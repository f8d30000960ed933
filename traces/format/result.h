/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Writing a result tape: the step rows of the tape that was replayed, its hash, and the runs.
 *
 *     struct st_result *result;
 *     ST_TRY(st_result_open(path, tape, &result, err));
 *     ST_TRY_OUT(st_result_run(result, &facts, err));
 *     for each step and policy: st_result_step(result, ...);
 *     rc = st_result_finish(result, err);
 *
 * Invariants
 *  1. A new file grows under a temporary name and takes its name in _finish; an existing one is
 *     appended to in one transaction.  Nobody ever sees half a run.
 *  2. A run is appended only to results of the same tape, told by its hash.
 *  3. Tables hold integer ids, and a plan shape that many steps share once; the views have the
 *     names and columns that contracts promise: run, run_step, run_sample, launch_count, hazard.
 *  4. ST_UNKNOWN is stored as NULL.
 *
 * Layout and meaning of every column: result_schema.h.
 */
#ifndef ST_FORMAT_RESULT_H
#define ST_FORMAT_RESULT_H

#include <stdbool.h>
#include <stdint.h>

#include "traces/base/error.h"
#include "traces/format/reader.h"
#include "traces/format/step.h"

struct st_result;

/* What a run is.  Strings may be NULL (unknown) except backend. */
struct st_result_facts {
    const char *backend, *device, *model, *graph_mode;
    const char *passes;     /* "time,count,verify" */
    const char *error_note; /* where simulated figures come from */
    bool simulated;
    int32_t buffer_count; /* distinct buffers of a kind of layers; 0: none (sim) */
    int32_t layer_count;  /* attention layers */
    int32_t policy_count;
    const char *const *policy;
    int32_t operator_count;
    const char *const *operator_name;
};

/* One step under one policy.  launches, skipped, could_skip: [operator_count]. */
struct st_result_step {
    int64_t step_id;
    int32_t policy;
    enum st_graph_mode graph_mode; /* as replayed */
    int32_t padded_token_count;
    const int32_t *launches, *skipped, *could_skip;
    int64_t step_ns, kernel_ns;  /* ST_UNKNOWN */
    int64_t predicate_ps;        /* host time of the policy's rule; ST_UNKNOWN: it has none */
    const int64_t *op_kernel_ns; /* [operator_count] or NULL */
};

struct st_result_hazard {
    int64_t step_id;
    int32_t policy;
    int32_t layer; /* -1: metadata */
    int32_t operator_index;
    int64_t row, column; /* the first that differ; column -1: unknown */
    const char *what;
};

/* What verify looked at, per policy and operator. */
struct st_result_check {
    int32_t policy, operator_index;
    int64_t steps, rows; /* compared with the first policy */
    int64_t rows_differing;
    int64_t reference_rows;      /* compared with the CPU reference */
    int64_t reference_differing; /* outside the tolerance */
    int64_t rounding_bytes;      /* fp8 bytes that differ because the value sits on a boundary */
};

/* What the recorded launches of a family took, over the steps of a graph mode. */
struct st_result_family {
    enum st_graph_mode graph_mode;
    const char *family, *op; /* op NULL: opaque */
    int64_t steps, step_ns;  /* of that mode, with launches; step_ns ST_UNKNOWN: not of all */
    int64_t launches, untimed, kernel_ns;
};

int st_result_open(const char *path, struct st_tape *tape, struct st_result **result,
                   struct st_error *err);
int st_result_run(struct st_result *result, const struct st_result_facts *facts, int64_t *run_id,
                  struct st_error *err);
int st_result_step(struct st_result *result, const struct st_result_step *step,
                   struct st_error *err);
int st_result_sample(struct st_result *result, int64_t step_id, int32_t policy, const char *pass,
                     int32_t repetition, int64_t step_ns, struct st_error *err);
int st_result_hazard(struct st_result *result, const struct st_result_hazard *hazard,
                     struct st_error *err);
int st_result_check(struct st_result *result, const struct st_result_check *check,
                    struct st_error *err);
/* XXH3-64 of an operator's outputs in a step, over all layers. */
int st_result_digest(struct st_result *result, int64_t step_id, int32_t policy,
                     int32_t operator_index, int64_t rows, uint64_t digest, struct st_error *err);
/* Of a run of backend `engine`. */
int st_result_family(struct st_result *result, const struct st_result_family *family,
                     struct st_error *err);
/* The tables launch_* of the tape, unless they are there. */
int st_result_launches(struct st_result *result, struct st_tape *tape, struct st_error *err);
/* Host time of the boundary predicate at a batch size. */
int st_result_predicate(struct st_result *result, int32_t request_count, int64_t median_ps,
                        int64_t p10_ps, int64_t p90_ps, int32_t repetitions, struct st_error *err);
/* What is known only at the end of a run; options: a JSON object.  ST_UNKNOWN and NULL leave it
 * unknown. */
int st_result_run_end(struct st_result *result, int64_t noise_floor_ns, const char *options,
                      struct st_error *err);
int st_result_operation(struct st_result *result, int argc, char **argv, struct st_error *err);
/* Commits, syncs, renames.  The result is gone afterwards, also on error. */
int st_result_finish(struct st_result *result, struct st_error *err);
/* Leaves things as they were before _open.  Accepts NULL. */
void st_result_abort(struct st_result *result);

#endif
