/* SPDX-License-Identifier: Apache-2.0 */
/*
 * topk_per_row: what is said in PTX, as the compiler says it in twice as many instructions.
 */
#ifndef ST_KERNELS_TOPK_PTX_CUH
#define ST_KERNELS_TOPK_PTX_CUH

#include <cuda_fp16.h>
#include <stdint.h>

/* Two values as halves, high << 16 | low, cut towards zero (which keeps the order); beyond the
 * range it is the greatest finite half. */
static __device__ __forceinline__ uint32_t topk_halves(float high, float low) {
    uint32_t bits;
    asm("cvt.rz.f16x2.f32 %0, %1, %2;" : "=r"(bits) : "f"(high), "f"(low));
    return bits;
}

static __device__ __forceinline__ float topk_from_half(uint32_t bits) {
    return __half2float(__ushort_as_half((unsigned short)bits));
}

/* An address in shared memory as the stores below take it. */
static __device__ __forceinline__ uint32_t topk_shared_address(const void *pointer) {
    return (uint32_t)__cvta_generic_to_shared(pointer);
}

/* The compiler keeps the value where it is instead of computing it again. */
static __device__ __forceinline__ int topk_keep(int value) {
    asm volatile("" : "+r"(value));
    return value;
}

/* count += x >= least ? ONE : 0 */
template <uint32_t ONE>
static __device__ __forceinline__ void topk_count_if(float x, float least, uint32_t &count) {
    asm("{\n"
        ".reg .pred p;\n"
        "setp.ge.f32 p, %1, %2;\n"
        "@p add.u32 %0, %0, %3;\n"
        "}"
        : "+r"(count)
        : "f"(x), "f"(least), "n"(ONE));
}

/* When x >= least, stores x and the column (or the column alone) and moves on. */
static __device__ __forceinline__ void topk_store_both_if(float x, float least, int column,
                                                          uint32_t &address) {
    asm volatile("{\n"
                 ".reg .pred p;\n"
                 "setp.ge.f32 p, %1, %2;\n"
                 "@p st.shared.v2.b32 [%0], {%3, %4};\n"
                 "@p add.u32 %0, %0, 8;\n"
                 "}"
                 : "+r"(address)
                 : "f"(x), "f"(least), "r"(__float_as_uint(x)), "r"(column)
                 : "memory");
}

static __device__ __forceinline__ void topk_store_column_if(float x, float least, int column,
                                                            uint32_t &address) {
    asm volatile("{\n"
                 ".reg .pred p;\n"
                 "setp.ge.f32 p, %1, %2;\n"
                 "@p st.shared.b32 [%0], %3;\n"
                 "@p add.u32 %0, %0, 4;\n"
                 "}"
                 : "+r"(address)
                 : "f"(x), "f"(least), "r"(column)
                 : "memory");
}

#endif
