/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What device.c asks the CUDA runtime.
 */
#include <cuda_runtime.h>

#include "kernels/device.h"

int st_device_ordinal(void) {
    int ordinal = -1;
    if (cudaGetDevice(&ordinal) != cudaSuccess) {
        cudaGetLastError(); /* no driver, no device: not the next launch's error */
        return -1;
    }
    return ordinal;
}

int st_device_query(int ordinal, struct st_device_facts *out) {
    int multiprocessors = 0;
    int major = 0;
    int minor = 0;
    if (cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, ordinal) !=
            cudaSuccess ||
        cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, ordinal) != cudaSuccess ||
        cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, ordinal) != cudaSuccess) {
        cudaGetLastError();
        return -1;
    }
    out->multiprocessors = multiprocessors;
    out->generation = 10 * major + minor;
    return 0;
}
