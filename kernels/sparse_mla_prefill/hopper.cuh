/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Hopper's instructions that sparse_mla_prefill uses: warpgroup products (wgmma), barriers in
 * shared memory (mbarrier), asynchronous copies of 16 bytes.  Only a build for sm_90a has them.
 *
 * Operands lie in shared memory in blocks of rows x 128 bytes: row r of a block starts at 128 r,
 * and its 16-byte unit u is stored at unit u ^ (r % 8) (the "128-byte swizzle"); blocks start at
 * multiples of 1024.  The same block serves as a K-major operand (rows are heads or keys, the sum
 * runs along a row) and as an MN-major one (the sum runs over the rows).
 */
#ifndef ST_KERNELS_SPARSE_MLA_PREFILL_HOPPER_CUH
#define ST_KERNELS_SPARSE_MLA_PREFILL_HOPPER_CUH

#include <stdint.h>

/* ---- descriptors: where an operand lies; addresses and distances in units of 16 bytes */

static __device__ __forceinline__ uint64_t st_operand(uint32_t address, uint32_t leading,
                                                      uint32_t stride) {
    return (uint64_t)((address & 0x3ffffu) >> 4) | (uint64_t)(leading >> 4) << 16 |
           (uint64_t)(stride >> 4) << 32 | 1ull << 62;
}

/* Rows are heads or keys; groups of 8 rows follow each other. */
static __device__ __forceinline__ uint64_t st_operand_k_major(uint32_t address) {
    return st_operand(address, 16, 1024);
}

/* The sum runs over rows; 64 columns a block, the next 64 a block further. */
static __device__ __forceinline__ uint64_t st_operand_mn_major(uint32_t address,
                                                               uint32_t block_bytes) {
    return st_operand(address, block_bytes, 1024);
}

/* ---- products: 64 rows x N columns, 16 terms of each sum */

/* Registers of the sums are settled: before the first product of a batch. */
static __device__ __forceinline__ void st_wgmma_begin(void) {
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}

static __device__ __forceinline__ void st_wgmma_commit(void) {
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}

/* At most so many batches are still under way. */
template <int PENDING> static __device__ __forceinline__ void st_wgmma_wait(void) {
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(PENDING) : "memory");
}

/* Keeps the compiler from moving uses of the sums over a wait. */
template <int N> static __device__ __forceinline__ void st_settle(float (&d)[N]) {
#pragma unroll
    for (int i = 0; i < N; i++)
        asm volatile("" : "+f"(d[i])::"memory");
}

#define ST_F4(d, i) "+f"(d[i]), "+f"(d[(i) + 1]), "+f"(d[(i) + 2]), "+f"(d[(i) + 3])
#define ST_F16(d, i) ST_F4(d, i), ST_F4(d, (i) + 4), ST_F4(d, (i) + 8), ST_F4(d, (i) + 12)
#define ST_F64(d, i) ST_F16(d, i), ST_F16(d, (i) + 16), ST_F16(d, (i) + 32), ST_F16(d, (i) + 48)

/* d (+)= a b, both K-major; is_sum 0: d is written anew. */
static __device__ __forceinline__ void st_wgmma_n64(float (&d)[32], uint64_t a, uint64_t b,
                                                    int is_sum) {
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %34, 0;\n"
                 "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 "
                 "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
                 "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}, "
                 "%32, %33, p, 1, 1, 0, 0;\n}"
                 : ST_F16(d, 0), ST_F16(d, 16)
                 : "l"(a), "l"(b), "r"(is_sum));
}

/* d (+)= a b, a K-major, b MN-major. */
static __device__ __forceinline__ void st_wgmma_n128(float (&d)[64], uint64_t a, uint64_t b,
                                                     int is_sum) {
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %66, 0;\n"
                 "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 "
                 "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
                 "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
                 "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "
                 "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63}, "
                 "%64, %65, p, 1, 1, 0, 1;\n}"
                 : ST_F64(d, 0)
                 : "l"(a), "l"(b), "r"(is_sum));
}

/* What ordinary stores left in shared memory is visible to products from here on. */
static __device__ __forceinline__ void st_fence_for_products(void) {
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

/* ---- barriers */

static __device__ __forceinline__ void st_barrier_init(uint32_t barrier, uint32_t count) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(count) : "memory");
}

static __device__ __forceinline__ void st_barrier_arrive(uint32_t barrier) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}

/* Arrives when all of this thread's copies so far have landed. */
static __device__ __forceinline__ void st_barrier_arrive_after_copies(uint32_t barrier) {
    asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(barrier) : "memory");
}

/* Until the phase of that parity is over; of a new barrier, the phase before the first (1) is. */
static __device__ __forceinline__ void st_barrier_wait(uint32_t barrier, uint32_t parity) {
    asm volatile("{\n.reg .pred p;\n"
                 "ST_WAIT:\n"
                 "mbarrier.try_wait.parity.shared::cta.b64 p, [%0], %1;\n"
                 "@p bra ST_DONE;\n"
                 "bra ST_WAIT;\n"
                 "ST_DONE:\n}" ::"r"(barrier),
                 "r"(parity)
                 : "memory");
}

/* ---- copies and stores */

static __device__ __forceinline__ void st_copy16(uint32_t to, const void *from, uint32_t bytes) {
    asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;" ::"r"(to), "l"(from),
                 "r"(bytes)
                 : "memory");
}

static __device__ __forceinline__ void st_shared_store(uint32_t address, uint32_t value) {
    asm volatile("st.shared.b32 [%0], %1;" ::"r"(address), "r"(value) : "memory");
}

/* Registers a thread of this warpgroup keeps, or gets. */
template <int N> static __device__ __forceinline__ void st_registers_down(void) {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(N));
}
template <int N> static __device__ __forceinline__ void st_registers_up(void) {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(N));
}

#endif
