/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a launch geometry may depend on besides its arguments: the device's size and generation.
 *
 * A plan and a launcher must agree on a grid, so both ask here.  The CUDA runtime is asked once a
 * device and the answer is kept: a launch costs no call into the driver.  Without a GPU (or built
 * without CUDA) the answer is that of an H200, 132 multiprocessors of generation 9.0: a plan made
 * there says what would run on one.  Thread-safe: yes.
 */
#ifndef ST_KERNELS_DEVICE_H
#define ST_KERNELS_DEVICE_H

#ifdef __cplusplus
extern "C" {
#endif

struct st_device_facts {
    int multiprocessors;
    int generation; /* 10 * major + minor of the compute capability: 90 */
};

/* Of the current device. */
struct st_device_facts st_device_facts(void);

/* The CUDA side, in device_cuda.cu: the current device's ordinal, or -1 without one. */
int st_device_ordinal(void);
/* Asks the runtime; 0, or -1 when it does not say. */
int st_device_query(int ordinal, struct st_device_facts *out);

#ifdef __cplusplus
}
#endif
#endif
