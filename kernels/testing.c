/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Seeded numbers for the operators' tests: splitmix64 of a counter.  Work on many threads.
 */
#include "kernels/testing.h"

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

enum { MOST_THREADS = 64 };

struct parallel {
    void (*work)(void *context, int64_t i);
    void *context;
    int64_t count;
    atomic_llong next;
};

uint64_t st_test_random(uint64_t counter) {
    uint64_t z = (counter + 1) * 0x9e3779b97f4a7c15ull;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
    return z ^ (z >> 31);
}

float st_test_uniform(uint64_t counter, float scale) {
    return ((float)(st_test_random(counter) >> 40) / 8388608.0f - 1.0f) * scale;
}

void st_test_fill(float *out, size_t n, uint64_t seed, float scale) {
    for (size_t i = 0; i < n; i++)
        out[i] = st_test_uniform(seed + i, scale);
}

static void *take_turns(void *opaque) {
    struct parallel *all = opaque;
    for (;;) {
        const int64_t i = atomic_fetch_add(&all->next, 1);
        if (i >= all->count)
            return NULL;
        all->work(all->context, i);
    }
}

void st_test_parallel(void (*work)(void *context, int64_t i), void *context, int64_t count) {
    struct parallel all = {.work = work, .context = context, .count = count};
    pthread_t threads[MOST_THREADS];
    const long processors = sysconf(_SC_NPROCESSORS_ONLN);
    int started = 0;
    while (started < MOST_THREADS && started + 1 < processors && started + 1 < count &&
           pthread_create(&threads[started], NULL, take_turns, &all) == 0)
        started++;
    take_turns(&all); /* whatever could not be started is done here */
    for (int i = 0; i < started; i++)
        pthread_join(threads[i], NULL);
}

int64_t st_test_case_count(int argc, char **argv, int64_t all) {
    char *end;
    if (argc < 2)
        return all;
    errno = 0;
    const long long count = strtoll(argv[1], &end, 10);
    if (argc > 2 || errno != 0 || end == argv[1] || *end != 0 || count < 0) {
        fprintf(stderr, "usage: %s [CASES]\n", argv[0]);
        return -1;
    }
    return count;
}
