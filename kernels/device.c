/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Facts of the current device, kept once asked for.
 */
#include "kernels/device.h"

static const struct st_device_facts without_gpu = {132, 90};

#ifdef ST_KERNELS_CUDA

#include <stdatomic.h>

enum { MOST_DEVICES = 64 };

/* multiprocessors * 1000 + generation; 0: not asked yet.  Threads that ask at the same time write
 * the same number. */
static atomic_int known[MOST_DEVICES];

struct st_device_facts st_device_facts(void) {
    struct st_device_facts facts = without_gpu;
    int ordinal = st_device_ordinal();
    if (ordinal < 0)
        return facts;
    if (ordinal >= MOST_DEVICES) {
        st_device_query(ordinal, &facts);
        return facts;
    }
    int packed = atomic_load_explicit(&known[ordinal], memory_order_relaxed);
    if (packed == 0) {
        if (st_device_query(ordinal, &facts) != 0)
            return facts;
        packed = facts.multiprocessors * 1000 + facts.generation;
        atomic_store_explicit(&known[ordinal], packed, memory_order_relaxed);
    }
    facts.multiprocessors = packed / 1000;
    facts.generation = packed % 1000;
    return facts;
}

#else

struct st_device_facts st_device_facts(void) {
    return without_gpu;
}

#endif
