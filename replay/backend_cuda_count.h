/* SPDX-License-Identifier: Apache-2.0 */
/*
 * From CUPTI's records to what a step launched, operator by operator.
 *
 * Invariants
 *  1. A kernel is known by its exact name: an operator's (kernels/registry.h), the backend's own
 *     (st_cuda_..., never counted), or another one, which is counted as such; so is a memory set.
 *  2. Kernel time is time in which a kernel of the step runs: where two overlap (programmatic
 *     dependent launch), the overlap counts once, for the earlier one.  It is unknown when a
 *     record has no times.
 */
#ifndef ST_REPLAY_BACKEND_CUDA_COUNT_H
#define ST_REPLAY_BACKEND_CUDA_COUNT_H

#include <stdint.h>

#include "capture/cupti/collector.h"
#include "replay/backend.h"
#include "replay/plan.h"

/* Sorts by start: the order in which a stream ran them.  Correlation ids do not tell it: kernels in
 * the body of a conditional node have none. */
void st_cuda_order(struct st_kernel_record *record, int64_t count);

/* Fills result->launches, op_kernel_ns, kernel_ns and other_launches from the records of one step,
 * in their order. */
void st_cuda_count(const struct st_kernel_record *record, int64_t count,
                   struct st_step_result *result);

/* Whether every launch's last kernel had the grid and block of the plan, operator by operator; only
 * where their numbers agree.  ST_ERR_MISMATCH names the first that had not. */
int st_cuda_check_shapes(const struct st_kernel_record *record, int64_t count,
                         const struct st_plan *plan, struct st_error *err);

/* Kernels of operators and other ones, the backend's own left out. */
int64_t st_cuda_count_foreign(const struct st_kernel_record *record, int64_t count);

#endif
