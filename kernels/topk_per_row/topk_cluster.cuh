/* SPDX-License-Identifier: Apache-2.0 */
/*
 * topk_per_row: the blocks of a cluster as a team (sm_90 on; before that a team of one).
 */
#ifndef ST_KERNELS_TOPK_CLUSTER_CUH
#define ST_KERNELS_TOPK_CLUSTER_CUH

#include <cooperative_groups.h>

/* The blocks of a cluster. */
struct topk_cluster {
    static __device__ __forceinline__ int rank() {
        int rank = 0;
#if __CUDA_ARCH__ >= 900
        asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
#endif
        return rank;
    }
    static __device__ __forceinline__ int size() {
        int size = 1;
#if __CUDA_ARCH__ >= 900
        asm("mov.u32 %0, %%cluster_nctarank;" : "=r"(size));
#endif
        return size;
    }
    static __device__ __forceinline__ void sync() {
#if __CUDA_ARCH__ >= 900
        asm volatile("barrier.cluster.arrive.aligned;\nbarrier.cluster.wait.aligned;" ::: "memory");
#endif
    }
    template <typename V> static __device__ __forceinline__ V *at(V *mine, int rank) {
#if __CUDA_ARCH__ >= 900
        return cooperative_groups::this_cluster().map_shared_rank(mine, rank);
#else
        return mine;
#endif
    }
};

#endif
