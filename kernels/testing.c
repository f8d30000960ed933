/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Seeded numbers for the operators' tests: splitmix64 of a counter.
 */
#include "kernels/testing.h"

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
