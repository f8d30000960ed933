/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the operators that make index lists share on the device.  Such a launch is over in a
 * microsecond or two, in which each line of code that is fetched for the first time counts: the
 * fast variants take powers of two and whole groups of four only and leave the rest to variant 1.
 */
#ifndef ST_KERNELS_INDEX_LISTS_CUH
#define ST_KERNELS_INDEX_LISTS_CUH

#include "kernels/launch.cuh"

/* First slot of the page that a block table names at `page`; pages hold 1 << shift entries. */
static __device__ __forceinline__ int st_page_slot(const int32_t *table, int page, int shift) {
    return max(__ldg(table + page), 0) << shift;
}

/* Slot of an entry of a request. */
static __device__ __forceinline__ int st_slot(const int32_t *table, int entry, int shift) {
    return st_page_slot(table, entry >> shift, shift) + (entry & ((1 << shift) - 1));
}

/* 16 bytes; stream: written once, more than the L2 holds. */
static __device__ __forceinline__ void st_store_four(int32_t *out, int4 value, bool stream) {
    if (stream)
        __stcs((int4 *)out, value);
    else
        *(int4 *)out = value;
}

/* The sum over a whole warp, in every lane. */
static __device__ __forceinline__ int st_warp_sum(int value) {
    return __reduce_add_sync(0xffffffffu, value);
}

#endif
