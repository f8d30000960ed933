/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the operators' tests share: seeded numbers, threads, device buffers with guard bands.
 *
 * A guarded buffer has a band of known bytes before and after its contents; a kernel that writes
 * outside is found when the buffer is read back.  Only tests link this.
 */
#ifndef ST_KERNELS_TESTING_H
#define ST_KERNELS_TESTING_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* The byte that tests poison outputs with; as fp32 it is a large negative number. */
#define ST_TEST_POISON 0xa5

/* 64 well mixed bits of a counter. */
uint64_t st_test_random(uint64_t counter);

/* A float in [-scale, scale) that depends on the counter alone. */
float st_test_uniform(uint64_t counter, float scale);

/* Fills n floats from st_test_uniform(seed + i). */
void st_test_fill(float *out, size_t n, uint64_t seed, float scale);

/*
 * Calls work(context, i) for every i below count, in any order, on as many threads as there are
 * processors: references take longer than the device.  Calls must not write to the same memory, nor
 * assert: cmocka's assertions belong to the main thread.
 */
void st_test_parallel(void (*work)(void *context, int64_t i), void *context, int64_t count);

/*
 * The number that a test got as its argument, `all` without one; -1 (with a line on stderr) when it
 * is none.  For a short run under compute-sanitizer.
 */
int64_t st_test_case_count(int argc, char **argv, int64_t all);

/* 0: a GPU is there and usable.  Otherwise -1, and *why is a short reason. */
int st_test_gpu_probe(const char **why);

/* A device copy of bytes bytes between two guard bands; NULL on failure.  data NULL: poisoned. */
void *st_test_device(const void *data, size_t bytes);

/* Copies back to data (after waiting for all work); -1 when a guard band was written. */
int st_test_device_read(void *data, const void *device, size_t bytes);

/* Writes bytes of a buffer that st_test_device made; copies them back without a look at the guard
 * bands.  0, or -1 on failure. */
int st_test_device_write(void *device, const void *data, size_t bytes);
int st_test_device_copy(void *data, const void *device, size_t bytes);

void st_test_device_free(void *device);

/* Waits; 0, or the CUDA error. */
int st_test_device_wait(void);

/*
 * How many nodes a graph has that captured launch(args, stream), without running it; a negative
 * status when the launch or the capture fails.  Beside a kernel a copy or a memset is a node, too.
 */
int st_test_device_launches(int (*launch)(const void *args, void *stream), const void *args);

#ifdef __cplusplus
}
#endif
#endif
