/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the operators' device files share: how a launch is checked, streaming loads, division by
 * a size that is nearly always a power of two, and the two instructions of programmatic dependent
 * launch (no-ops before sm_90).
 */
#ifndef ST_KERNELS_LAUNCH_CUH
#define ST_KERNELS_LAUNCH_CUH

#include <cuda_runtime.h>
#include <stdint.h>

#include "steptape/kernels.h"

/* The status of the launch just made. */
static inline int st_launch_status(void) {
    cudaError_t error = cudaGetLastError();
    return error == cudaSuccess ? STEPTAPE_OK : STEPTAPE_ERR_CUDA - (int)error;
}

static inline int st_cuda_status(cudaError_t error) {
    return error == cudaSuccess ? STEPTAPE_OK : STEPTAPE_ERR_CUDA - (int)error;
}

/* log2 of a power of two, or -1: the device then divides. */
static inline int st_shift_of(int32_t size) {
    int shift = 0;
    if (size < 1 || (size & (size - 1)) != 0)
        return -1;
    while ((int32_t)1 << shift < size)
        shift++;
    return shift;
}

static inline int st_is_aligned(const void *pointer, uintptr_t bytes) {
    return (uintptr_t)pointer % bytes == 0;
}

/* value / size for value >= 0, where shift = st_shift_of(size). */
static __device__ __forceinline__ int64_t st_divide(int64_t value, int32_t size, int shift) {
    return shift >= 0 ? value >> shift : value / size;
}

static __device__ __forceinline__ int32_t st_divide32(int32_t value, int32_t size, int shift) {
    return shift >= 0 ? value >> shift : value / size;
}

/*
 * Data that is read once: keep it out of L1.  The L2 then gives it up first, too: a working set of
 * 34 MB that is read again and again through this stays out of an L2 of 60 MB.  (Asking the L2 to
 * fetch 256 bytes at a time costs 4 %.)
 */
static __device__ __forceinline__ float4 st_load_stream(const float *pointer) {
    float4 v;
    asm volatile("ld.global.nc.L1::no_allocate.v4.f32 {%0, %1, %2, %3}, [%4];"
                 : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w)
                 : "l"(pointer));
    return v;
}

/* Data that is read once by this launch and perhaps again by the next. */
static __device__ __forceinline__ float4 st_load_keep(const float *pointer) {
    float4 v;
    asm volatile("ld.global.nc.v4.f32 {%0, %1, %2, %3}, [%4];"
                 : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w)
                 : "l"(pointer));
    return v;
}

/* 2^x, relative error under 2^-22, results under 2^-126 become 0. */
static __device__ __forceinline__ float st_exp2(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

/* Whether the current device knows programmatic dependent launch. */
static inline int st_has_dependent_launch(void) {
    int device = 0;
    int major = 0;
    if (cudaGetDevice(&device) != cudaSuccess ||
        cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device) != cudaSuccess)
        return 0;
    return major >= 9;
}

/*
 * A multiprocessor keeps its split between shared memory and L1 cache while blocks run there: a
 * launch that begins while another one runs finds the other's, and with too little shared memory
 * half of its blocks wait for the other half.  So save_partial_states and what is launched after it
 * (STEPTAPE_LAUNCH_AFTER_SAVE) ask for the same: 64 of 228 KB on an H200, which is two blocks of
 * compress_fused; more costs L1, where rows that are under way have their place.
 * config->attrs has room for one more.
 */
static inline void st_keep_split(cudaLaunchConfig_t *config) {
#if CUDART_VERSION >= 13000
    cudaLaunchAttribute *split = &config->attrs[config->numAttrs++];
    split->id = cudaLaunchAttributePreferredSharedMemoryCarveout;
    split->val.sharedMemCarveout = 28;
#else
    (void)config;
#endif
}

/* Blocks of the next launch may be scheduled from here on (they wait before they read). */
static __device__ __forceinline__ void st_launch_dependents(void) {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

/* Waits until all earlier launches are complete and visible. */
static __device__ __forceinline__ void st_wait_for_earlier(void) {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

#endif
