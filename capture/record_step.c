/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The call that the engine makes for every step, and what it costs.
 */
#include <stdarg.h>
#include <stdio.h>
#include <time.h>

#include "capture/recorder_i.h"

static uint64_t now_ns(void) {
    struct timespec ts;
    clock_gettime(CLOCK_MONOTONIC, &ts); /* vDSO: no system call */
    return (uint64_t)ts.tv_sec * 1000000000u + (uint64_t)ts.tv_nsec;
}

static void store(_Atomic uint64_t *to, uint64_t value) {
    atomic_store_explicit(to, value, memory_order_relaxed);
}

int st_recorder_turn_off(struct steptape_recorder *r, int status, const char *fmt, ...) {
    struct st_ring_counters *counters = &r->ring.head->counters;
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(counters->reason, sizeof counters->reason, fmt, ap);
    va_end(ap);
    atomic_store_explicit(&counters->off, 1, memory_order_release);
    r->off = status;
    return status;
}

STEPTAPE_API int steptape_recorder_record_step(struct steptape_recorder *r,
                                               const struct steptape_step *s) {
    if (!r || !atomic_load_explicit(r->mine, memory_order_relaxed))
        return STEPTAPE_RECORDER_ERR_OFF;
    if (r->off)
        return r->off;
    if (atomic_load_explicit(&r->refused, memory_order_acquire))
        return st_recorder_turn_off(r, STEPTAPE_RECORDER_ERR_ARGUMENT, "%s", r->ring.head->failure);
    uint64_t begin = now_ns();
    struct st_ring_head *head = r->ring.head;
    store(&head->counters.begun, r->sequence + 1);
    int rc = r->take_step(r, s);
    store(&head->counters.sequence, ++r->sequence);
    uint64_t cost = now_ns() - begin;
    store(&head->counters.cost_sum_ns, r->cost_sum_ns += cost);
    if (cost > r->cost_max_ns)
        store(&head->counters.cost_max_ns, r->cost_max_ns = cost);
    _Atomic uint64_t *class = &head->cost_class[st_ring_cost_class(cost)];
    store(class, atomic_load_explicit(class, memory_order_relaxed) + 1);
    return rc;
}
