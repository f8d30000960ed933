/* SPDX-License-Identifier: Apache-2.0 */
#include "replay/predicate_cost.h"

#include <stdlib.h>
#include <time.h>

#include "replay/predicate.h"

enum { SAMPLES = 31, CALLS = 64 };

static int64_t now_ns(void) {
    struct timespec ts;
    clock_gettime(CLOCK_MONOTONIC, &ts);
    return (int64_t)ts.tv_sec * 1000000000 + ts.tv_nsec;
}

static int compare(const void *a, const void *b) {
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return x < y ? -1 : x > y;
}

void st_predicate_measure(const int32_t *start, const int32_t *query_len, int32_t request_count,
                          struct st_predicate_cost *cost) {
    int64_t sample[SAMPLES];
    volatile int sink = 0;               /* keeps the calls */
    for (int s = -1; s < SAMPLES; s++) { /* -1: warms the cache, not kept */
        int64_t begin = now_ns();
        for (int c = 0; c < CALLS; c++)
            sink += (int)st_boundary_predicate(start, query_len, request_count, 128);
        if (s >= 0)
            sample[s] = (now_ns() - begin) * 1000 / CALLS;
    }
    qsort(sample, SAMPLES, sizeof sample[0], compare);
    cost->median_ps = sample[SAMPLES / 2];
    cost->p10_ps = sample[SAMPLES / 10];
    cost->p90_ps = sample[SAMPLES - 1 - SAMPLES / 10];
    cost->samples = SAMPLES;
    cost->calls_per_sample = CALLS;
}
