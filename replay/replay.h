/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Replay: tape -> plan -> backend -> run of a result tape.
 *
 *     struct st_replay_options options;
 *     st_replay_options_init(&options);
 *     options.tape_path = "x.tape"; ...
 *     ST_TRY(st_replay_run(&options, &outcome, err));
 *
 * Passes never mix: each opens its backend anew and walks the steps on its own.  Policies are
 * interleaved step by step (A B B A ...).
 */
#ifndef ST_REPLAY_REPLAY_H
#define ST_REPLAY_REPLAY_H

#include <stdbool.h>
#include <stdint.h>

#include "replay/backend.h"
#include "replay/plan.h"
#include "replay/policy.h"
#include "traces/base/error.h"
#include "traces/format/reader.h"

struct st_replay_options {
    const char *tape_path;
    const char *result_path;          /* NULL: X.runs.tape beside the tape */
    const char *backend;              /* "cpu", "sim", "cuda" */
    const struct st_backend_ops *ops; /* (optional) this backend instead of a named one */
    const char *model;                /* NULL: what the tape says */
    int32_t policy_count;
    struct st_policy policy[ST_MAX_POLICIES];
    enum st_mode_request mode;
    unsigned pass_mask;            /* 0: the backend's default */
    unsigned ops_mask;             /* 0: all */
    int64_t first_step, last_step; /* inclusive; -1: open end */
    int32_t shard, shard_count;    /* from 1; 0: no shards */
    int32_t repeat;                /* time pass: samples a step and policy; 0: default */
    int32_t buffers;               /* distinct layer buffers wanted; 0: as many as fit */
    int64_t
        sample_tokens; /* verify: tokens a policy at most, by sampling steps; 0: all, -1: default */
    int32_t sample_rows; /* verify: rows a step compared with the reference; -1: default */
    bool poison, allow_hazards;
    int32_t set_count;
    const char *const *set; /* engine settings, "max_model_len=N" */
    const char *device;
    int32_t device_set_count;
    const char *const *device_set;
    const char *cupti_path; /* STEPTAPE_CUPTI, read by the program; NULL: looked for */
    const char *cuda_home;  /* CUDA_HOME; NULL */
    int argc;               /* for `operation` */
    char **argv;
};

struct st_replay_outcome {
    int64_t run_id;
    int64_t hazard_count;
    char result_path[4096];
};

void st_replay_options_init(struct st_replay_options *options);
/* Where results go: -o, or X.runs.tape beside the tape. */
int st_replay_result_path(const struct st_replay_options *options, char *out, size_t size,
                          struct st_error *err);
/* The steps to replay: those asked for, which the tape must have, or all. */
int st_replay_range(const struct st_replay_options *options, const struct st_tape *tape,
                    int64_t *first_step, int64_t *last_step, struct st_error *err);
/* ST_ERR_UNAVAILABLE: the backend cannot run here.  Hazards are no error: see outcome. */
int st_replay_run(const struct st_replay_options *options, struct st_replay_outcome *outcome,
                  struct st_error *err);

#endif
