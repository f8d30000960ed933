/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the boundary predicate costs the host, measured where a run is made: a skip is worth what it
 * saves less this.
 */
#ifndef ST_REPLAY_PREDICATE_COST_H
#define ST_REPLAY_PREDICATE_COST_H

#include <stdint.h>

struct st_predicate_cost {
    int64_t median_ps, p10_ps, p90_ps; /* of one call */
    int32_t samples;                   /* each the mean of calls_per_sample calls */
    int32_t calls_per_sample;
};

/* Measures the predicate (ratio 128) over a batch. */
void st_predicate_measure(const int32_t *start, const int32_t *query_len, int32_t request_count,
                          struct st_predicate_cost *cost);

#endif
