/* SPDX-License-Identifier: Apache-2.0 */
/*
 * combine_topk_swa_indices on CUDA.
 */
#include "kernels/combine_topk_swa_indices/combine_topk_swa_indices.h"
#include "kernels/launch.cuh"

typedef struct steptape_combine_topk_swa_indices_args combine_args;

/* What a row is made of. */
struct combine_row {
    int k;      /* copied columns */
    int length; /* k + window columns */
    int end;    /* up to here it is written */
    int base;   /* added to copied ones */
    int window; /* column k + j is window + k + j */
};

static __device__ __forceinline__ combine_row make_row(const combine_args &a, int b, int seq_len,
                                                       int gather_len, int p) {
    combine_row row;
    row.k = a.topk > 0 && p >= 0 ? min((p + 1) / a.ratio, a.topk) : 0;
    const int w = max(min(p + 1, a.window), 0);
    row.length = row.k + w;
    row.base = a.m * b;
    row.window = row.base + a.n + (p - w + 1) - (seq_len - gather_len) - row.k;
    row.end = row.length;
    if (a.tail == STEPTAPE_COMBINE_TAIL_128)
        row.end = (row.length + 127) / 128 * 128;
    else if (a.tail == STEPTAPE_COMBINE_TAIL_WIDTH)
        row.end = a.width;
    return row;
}

extern "C" __global__ void __launch_bounds__(256)
    steptape_combine_topk_swa_indices_v1(const __grid_constant__ combine_args a) {
    const int b = blockIdx.x;
    const int first = a.query_start_loc[b] - a.query_start_loc[0];
    const int query_len = a.query_start_loc[b + 1] - a.query_start_loc[b];
    const int seq_len = a.seq_lens[b];
    for (int i = blockIdx.y; i < query_len; i += gridDim.y) {
        const int64_t t = first + i;
        if (t >= a.num_tokens)
            return;
        const combine_row row = make_row(a, b, seq_len, a.gather_lens[b], seq_len - query_len + i);
        int32_t *out = a.indices + t * a.indices_stride;
        for (int c = threadIdx.x; c < row.end; c += blockDim.x) {
            int value = -1;
            if (c < row.k)
                value = a.topk_indices[t * a.topk_stride + c] + row.base;
            else if (c < row.length)
                value = row.window + c;
            out[c] = value;
        }
        if (threadIdx.x == 0)
            a.lens[t] = row.length;
    }
}

int st_combine_topk_swa_indices_cuda(const combine_args *args, const struct st_geometry *geometry,
                                     void *stream) {
    const dim3 grid(geometry->grid[0], geometry->grid[1]);
    steptape_combine_topk_swa_indices_v1<<<grid, geometry->threads, 0, (cudaStream_t)stream>>>(
        *args);
    return st_launch_status();
}
