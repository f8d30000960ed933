/* SPDX-License-Identifier: Apache-2.0 */
/*
 * topk_per_row: bulk copies into shared memory and the barrier that they complete (sm_90 on; before
 * that these trap, and the launcher does not come here).
 */
#ifndef ST_KERNELS_TOPK_ASYNC_CUH
#define ST_KERNELS_TOPK_ASYNC_CUH

#include <stdint.h>

#include "kernels/topk_per_row/topk_ptx.cuh"

#if __CUDA_ARCH__ >= 900
#define TOPK_ASYNC(...) asm volatile(__VA_ARGS__)
#else
#define TOPK_ASYNC(...) __trap()
#endif

/* One arrival completes a phase, with the bytes that it expects. */
static __device__ __forceinline__ void topk_barrier_init(uint64_t *barrier) {
    TOPK_ASYNC("mbarrier.init.shared::cta.b64 [%0], 1;\n"
               "fence.mbarrier_init.release.cluster;" ::"r"(topk_shared_address(barrier))
               : "memory");
}

static __device__ __forceinline__ void topk_barrier_expect(uint64_t *barrier, uint32_t bytes) {
    TOPK_ASYNC("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(
                   topk_shared_address(barrier)),
               "r"(bytes)
               : "memory");
}

static __device__ __forceinline__ void topk_barrier_wait(uint64_t *barrier, uint32_t parity) {
    TOPK_ASYNC("{\n"
               ".reg .pred done;\n"
               "again:\n"
               "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
               "@!done bra again;\n"
               "}" ::"r"(topk_shared_address(barrier)),
               "r"(parity)
               : "memory");
}

/* What was read from shared memory may be overwritten by copies from here on. */
static __device__ __forceinline__ void topk_async_fence(void) {
    TOPK_ASYNC("fence.proxy.async.shared::cta;" ::: "memory");
}

static __device__ __forceinline__ void topk_bulk_copy(void *to, const void *from, uint32_t bytes,
                                                      uint64_t *barrier) {
    TOPK_ASYNC(
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::
            "r"(topk_shared_address(to)),
        "l"(from), "r"(bytes), "r"(topk_shared_address(barrier))
        : "memory");
}

#endif
