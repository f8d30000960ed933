/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The CUDA backend's own kernels (see backend_cuda_kernels.h).  Plain and bandwidth-bound: none of
 * them is ever inside a timed region.
 */
#include "replay/backend_cuda_kernels.h"

#include <cuda_runtime.h>

#include "replay/digest.h"
#include "replay/generator.h"

#define THREADS 256

extern "C" __global__ void st_cuda_fill_inputs_kernel(struct st_cuda_fill a) {
    int32_t token = blockIdx.x, buffer = blockIdx.y;
    float *out = a.out + buffer * a.buffer_stride + (int64_t)token * 2 * a.width;
    if (token >= a.token_count) {
        float pad = a.poison ? __int_as_float(0x7FFFFFFF) : 0.0f;
        for (int32_t c = threadIdx.x; c < 2 * a.width; c += blockDim.x)
            out[c] = pad;
        return;
    }
    uint64_t row = st_gen_row(ST_GEN_KV_SCORE, buffer, a.request_id[a.token_to_request[token]],
                              a.position[token]);
    for (int32_t c = threadIdx.x; c < a.width; c += blockDim.x) {
        out[c] = st_gen_kv(row, c);
        out[a.width + c] = st_gen_score(row, c);
    }
}

extern "C" __global__ void st_cuda_fill_constants_kernel(float *ape, float *weight, int32_t ratio,
                                                         int32_t width) {
    int32_t phase = blockIdx.x, buffer = blockIdx.y;
    for (int32_t c = threadIdx.x; c < width; c += blockDim.x) {
        if (phase < ratio)
            ape[((int64_t)buffer * ratio + phase) * width + c] = st_gen_ape(buffer, phase, c);
        else
            weight[(int64_t)buffer * width + c] = st_gen_rms_weight(buffer, c);
    }
}

extern "C" __global__ void st_cuda_rebuild_kernel(struct st_cuda_rebuild a) {
    int32_t i = blockIdx.x, buffer = blockIdx.y;
    int64_t slot = a.slot[i];
    if (slot < 0)
        return;
    float *out = (float *)(a.state + buffer * a.buffer_bytes + slot / a.block_size * a.page_bytes) +
                 slot % a.block_size * 2 * a.width;
    const float *ape = a.ape + ((int64_t)buffer * a.ratio + a.position[i] % a.ratio) * a.width;
    uint64_t row = st_gen_row(ST_GEN_KV_SCORE, buffer, a.request[i], a.position[i]);
    for (int32_t c = threadIdx.x; c < a.width; c += blockDim.x) {
        out[c] = st_gen_kv(row, c);
        out[a.width + c] = st_gen_score(row, c) + ape[c];
    }
}

extern "C" __global__ void st_cuda_scatter_table_kernel(int32_t *block_id, int64_t stride,
                                                        const int32_t *packed, int32_t rows) {
    int32_t row = blockIdx.x;
    const int32_t *offset = packed + rows, *id = offset + rows + 1;
    int32_t *out = block_id + row * stride + packed[row];
    for (int32_t i = offset[row] + threadIdx.x; i < offset[row + 1]; i += blockDim.x)
        out[i - offset[row]] = id[i];
}

static __device__ uint32_t load_word(const struct st_cuda_row_layout *l, int64_t slot, int32_t i) {
    const uint8_t *page = l->base + slot / l->entries * l->page_bytes;
    int64_t entry = slot % l->entries;
    const uint32_t *words = (const uint32_t *)page;
    if (i < l->data_words)
        return words[entry * l->data_words + i];
    return words[(int64_t)l->entries * l->data_words + entry * l->tail_words + i - l->data_words];
}

/* One warp a row. */
extern "C" __global__ void st_cuda_hash_kernel(struct st_cuda_row_layout l, const int64_t *slot,
                                               int32_t count, uint64_t *hash) {
    int32_t row = (int32_t)(((int64_t)blockIdx.x * blockDim.x + threadIdx.x) / 32);
    int32_t lane = threadIdx.x % 32;
    if (row >= count)
        return;
    unsigned long long sum = 0;
    for (int32_t i = lane; i < l.data_words + l.tail_words; i += 32)
        sum += st_digest_word(load_word(&l, slot[row], i), (uint32_t)i);
    for (int32_t step = 16; step > 0; step /= 2)
        sum += __shfl_xor_sync(0xFFFFFFFFu, sum, step);
    if (lane == 0)
        hash[row] = sum;
}

extern "C" __global__ void st_cuda_gather_kernel(struct st_cuda_row_layout l, const int64_t *slot,
                                                 uint32_t *words) {
    int32_t row = blockIdx.x, n = l.data_words + l.tail_words;
    for (int32_t i = threadIdx.x; i < n; i += blockDim.x)
        words[(int64_t)row * n + i] = load_word(&l, slot[row], i);
}

extern "C" __global__ void st_cuda_gate_kernel(const volatile uint32_t *flag, uint32_t ticket) {
    unsigned long long start, now;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(start));
    /* Signed difference: tickets may wrap. */
    while ((int32_t)(*flag - ticket) < 0) {
        asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
        if (now - start > 2000000000ull)
            break;
    }
}

extern "C" __global__ void st_cuda_evict_kernel(uint4 *scratch, int64_t count) {
    int64_t stride = (int64_t)gridDim.x * blockDim.x;
    for (int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; i < count; i += stride)
        scratch[i] = make_uint4((uint32_t)i, 1, 2, 3);
}

int st_cuda_fill_inputs(const struct st_cuda_fill *a, void *stream) {
    if (a->padded_token_count <= 0 || a->buffer_count <= 0)
        return 0;
    dim3 grid(a->padded_token_count, a->buffer_count);
    st_cuda_fill_inputs_kernel<<<grid, THREADS, 0, (cudaStream_t)stream>>>(*a);
    return cudaGetLastError();
}

int st_cuda_fill_constants(float *ape, float *weight, int32_t buffer_count, int32_t ratio,
                           int32_t width, void *stream) {
    dim3 grid(ratio + 1, buffer_count);
    st_cuda_fill_constants_kernel<<<grid, THREADS, 0, (cudaStream_t)stream>>>(ape, weight, ratio,
                                                                              width);
    return cudaGetLastError();
}

int st_cuda_rebuild_state(const struct st_cuda_rebuild *a, void *stream) {
    if (a->count <= 0 || a->buffer_count <= 0)
        return 0;
    dim3 grid(a->count, a->buffer_count);
    st_cuda_rebuild_kernel<<<grid, THREADS, 0, (cudaStream_t)stream>>>(*a);
    return cudaGetLastError();
}

int st_cuda_scatter_table(int32_t *block_id, int64_t stride, const int32_t *packed, int32_t rows,
                          void *stream) {
    if (rows <= 0)
        return 0;
    st_cuda_scatter_table_kernel<<<rows, 64, 0, (cudaStream_t)stream>>>(block_id, stride, packed,
                                                                        rows);
    return cudaGetLastError();
}

int st_cuda_hash(const struct st_cuda_row_layout *layout, const int64_t *slot, int32_t count,
                 uint64_t *hash, void *stream) {
    if (count <= 0)
        return 0;
    int32_t rows_a_block = THREADS / 32;
    st_cuda_hash_kernel<<<(count + rows_a_block - 1) / rows_a_block, THREADS, 0,
                          (cudaStream_t)stream>>>(*layout, slot, count, hash);
    return cudaGetLastError();
}

int st_cuda_gather(const struct st_cuda_row_layout *layout, const int64_t *slot, int32_t count,
                   uint32_t *words, void *stream) {
    if (count <= 0)
        return 0;
    st_cuda_gather_kernel<<<count, THREADS, 0, (cudaStream_t)stream>>>(*layout, slot, words);
    return cudaGetLastError();
}

int st_cuda_gate(const volatile uint32_t *flag, uint32_t ticket, void *stream) {
    st_cuda_gate_kernel<<<1, 1, 0, (cudaStream_t)stream>>>(flag, ticket);
    return cudaGetLastError();
}

int st_cuda_evict(void *scratch, int64_t bytes, void *stream) {
    int64_t count = bytes / (int64_t)sizeof(uint4);
    if (count <= 0)
        return 0;
    st_cuda_evict_kernel<<<1024, THREADS, 0, (cudaStream_t)stream>>>((uint4 *)scratch, count);
    return cudaGetLastError();
}
