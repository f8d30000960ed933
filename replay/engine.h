/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Backend `engine`: nothing is executed; the launches that were recorded of the engine itself
 * become a run.  Its first policy, `recorded`, is what the engine did: launches by operator where
 * steptape knows one that does the work (traces/format/launch_family.h), by family where not.
 * Beside it stand the plans of the policies asked for, in the graph mode that each step recorded.
 *
 * The plan's launches of an operator and the engine's need not be as many: an engine's attention is
 * three kernels where steptape's is one.
 */
#ifndef ST_REPLAY_ENGINE_H
#define ST_REPLAY_ENGINE_H

#include "replay/replay.h"
#include "traces/base/error.h"

#define ST_ENGINE_BACKEND "engine"
#define ST_ENGINE_POLICY "recorded"

/* As st_replay_run().  ST_ERR_INPUT: the tape has no recorded launches.  A tape whose model is not
 * known gives a run without plans, and the run says so. */
int st_engine_run(const struct st_replay_options *options, struct st_replay_outcome *outcome,
                  struct st_error *err);

#endif
