/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The CUDA backend's own kernels (see backend_cuda_kernels.h).  Plain and bandwidth-bound: but for
 * the condition of a graph, none of them is ever inside a timed region.
 */
#include "replay/backend_cuda_kernels.h"

#include <cuda_runtime.h>

#include "replay/digest.h"
#include "replay/generator.h"

#define THREADS 256
#define ROW_THREADS 128 /* of a block that hashes rows */

static __device__ uint64_t token_row(const struct st_cuda_tokens &t, int tag, int32_t layer,
                                     int32_t token) {
    return st_gen_row(tag, layer, t.request_id[t.token_to_request[token]], t.position[token]);
}

/* ---- what the generator gives */

extern "C" __global__ void st_cuda_fill_scores_kernel(struct st_cuda_scores a) {
    int32_t token = blockIdx.x, buffer = blockIdx.y;
    float *out = a.out + buffer * a.buffer_stride + (int64_t)token * 2 * a.width;
    if (token >= a.token_count) {
        float pad = a.poison ? __int_as_float(-1) : 0.0f;
        for (int32_t c = threadIdx.x; c < 2 * a.width; c += blockDim.x)
            out[c] = pad;
        return;
    }
    uint64_t row = token_row(a.tokens, ST_GEN_KV_SCORE, a.layer_key + buffer, token);
    for (int32_t c = threadIdx.x; c < a.width; c += blockDim.x) {
        out[c] = st_gen_kv(row, c);
        out[a.width + c] = st_gen_score(row, c);
    }
}

extern "C" __global__ void st_cuda_fill_constants_kernel(struct st_cuda_constants a) {
    int32_t phase = blockIdx.x, buffer = blockIdx.y, key = a.layer_key + buffer;
    if (phase < a.ratio) {
        float *ape = a.ape + buffer * a.ape_stride + (int64_t)phase * a.width;
        for (int32_t c = threadIdx.x; c < a.width; c += blockDim.x)
            ape[c] = st_gen_ape(key, phase, c);
        return;
    }
    for (int32_t c = threadIdx.x; c < a.dim; c += blockDim.x)
        a.weight[buffer * a.weight_stride + c] = st_gen_rms_weight(key, c);
}

extern "C" __global__ void st_cuda_fill_sink_kernel(float *out, int32_t heads) {
    for (int32_t h = threadIdx.x; h < heads; h += blockDim.x)
        out[h] = st_gen_sink(h);
}

/* One block a page, one warp an entry. */
extern "C" __global__ void st_cuda_fill_pages_kernel(struct st_cuda_pages a) {
    const int32_t data_words = 144, entry_words = 146, v32_words = 164;
    int64_t id = a.first_page + blockIdx.x;
    int32_t buffer = blockIdx.y, lane = threadIdx.x % 32;
    uint32_t *page = (uint32_t *)(a.base + buffer * a.buffer_bytes + id * a.page_bytes);
    for (int32_t e = threadIdx.x / 32; e < a.entries; e += blockDim.x / 32) {
        uint64_t row = st_gen_row(ST_GEN_PAGE, a.cache << 16 | buffer, id, e);
        if (a.v32) {
            for (int32_t w = lane; w < v32_words; w += 32)
                page[e * v32_words + w] = st_gen_v32_word(row, w);
            continue;
        }
        for (int32_t w = lane; w < data_words; w += 32)
            page[e * data_words + w] = st_gen_ds_mla_word(row, w);
        if (lane < entry_words - data_words)
            page[a.entries * data_words + e * (entry_words - data_words) + lane] =
                st_gen_ds_mla_word(row, data_words + lane);
    }
}

extern "C" __global__ void st_cuda_fill_queries_kernel(struct st_cuda_queries a) {
    int32_t token = blockIdx.x, head = blockIdx.y;
    uint32_t *out = (uint32_t *)(a.out + ((int64_t)token * a.heads + head) * a.head_dim);
    uint64_t row = 0;
    if (token < a.token_count)
        row = token_row(a.tokens, ST_GEN_Q, head, token);
    for (int32_t i = threadIdx.x; i < a.head_dim / 2; i += blockDim.x) {
        uint32_t pair = a.poison ? 0xFFFFFFFFu : 0u;
        if (token < a.token_count)
            pair = st_gen_q(row, 2 * i) | (uint32_t)st_gen_q(row, 2 * i + 1) << 16;
        out[i] = pair;
    }
}

extern "C" __global__ void st_cuda_fill_logits_kernel(struct st_cuda_logits a) {
    int32_t r = blockIdx.x;
    float *out = a.out + r * a.stride;
    int32_t first = a.first ? a.first[r] : 0, last = a.last[r];
    uint64_t row = token_row(a.tokens, ST_GEN_LOGIT, 0, r);
    for (int32_t c = blockIdx.y * blockDim.x + threadIdx.x; c < a.columns;
         c += gridDim.y * blockDim.x)
        out[c] = c >= first && c < last ? st_gen_logit(row, c - first) : __uint_as_float(a.rest);
}

extern "C" __global__ void st_cuda_rebuild_kernel(struct st_cuda_rebuild a) {
    int32_t i = blockIdx.x, buffer = blockIdx.y;
    int64_t request = a.rebuild[3 * i], position = a.rebuild[3 * i + 1],
            slot = a.rebuild[3 * i + 2];
    if (slot < 0)
        return;
    float *out = (float *)(a.state + buffer * a.buffer_bytes + slot / a.block_size * a.page_bytes) +
                 slot % a.block_size * 2 * a.width;
    const float *ape = a.ape + buffer * a.ape_stride + position % a.ratio * a.width;
    uint64_t row = st_gen_row(ST_GEN_KV_SCORE, a.layer_key + buffer, request, position);
    for (int32_t c = threadIdx.x; c < a.width; c += blockDim.x) {
        out[c] = st_gen_kv(row, c);
        out[a.width + c] = st_gen_score(row, c) + ape[c];
    }
}

/* ---- words and tables */

extern "C" __global__ void st_cuda_fill_words_kernel(struct st_cuda_words a) {
    for (int64_t r = blockIdx.x; r < a.rows; r += gridDim.x)
        for (int64_t c = blockIdx.y * blockDim.x + threadIdx.x; c < a.columns;
             c += gridDim.y * blockDim.x)
            a.out[r * a.stride + c] = a.value + (a.modulo > 0 ? (int32_t)(c % a.modulo) : 0);
}

extern "C" __global__ void st_cuda_scatter_table_kernel(int32_t *block_id, int64_t stride,
                                                        const int32_t *packed, int32_t rows) {
    int32_t row = blockIdx.x;
    const int32_t *offset = packed + rows, *id = offset + rows + 1;
    int32_t *out = block_id + row * stride + packed[row];
    for (int32_t i = offset[row] + threadIdx.x; i < offset[row + 1]; i += blockDim.x)
        out[i - offset[row]] = id[i];
}

/* ---- observations */

/* The words of row i as digest.h orders them: data, tail; then, of a list, its length. */
struct row_view {
    const uint32_t *data, *tail;
    int32_t data_count, tail_count;
    bool exists, has_length;
};

static __device__ struct row_view view_of(const struct st_cuda_rows &rows, int32_t i) {
    struct row_view v = {NULL, NULL, rows.data_bytes / 4, 0, true, false};
    if (rows.slot) {
        int64_t slot = rows.slot[i];
        v.exists = slot >= 0;
        if (!v.exists)
            return v;
        int64_t entry = slot % rows.entries;
        const uint8_t *page = rows.base + slot / rows.entries * rows.page_bytes;
        v.data = (const uint32_t *)(page + entry * rows.data_bytes);
        v.tail = (const uint32_t *)(page + (int64_t)rows.entries * rows.data_bytes +
                                    entry * rows.tail_bytes);
        v.tail_count = rows.tail_bytes / 4;
        return v;
    }
    v.data = (const uint32_t *)(rows.base + i * rows.stride_bytes);
    if (rows.lens) {
        v.has_length = true;
        v.data_count = max(0, min(rows.lens[i], v.data_count));
    }
    return v;
}

static __device__ uint32_t word_of(const struct row_view &v, int32_t w) {
    return w < v.data_count ? v.data[w] : v.tail[w - v.data_count];
}

/* lane of `lanes` threads that share a row; what all lanes return adds up to its hash. */
static __device__ unsigned long long hash_part(const struct row_view &v, int32_t lane,
                                               int32_t lanes) {
    unsigned long long sum = 0;
    if (!v.exists)
        return 0;
    for (int32_t w = lane; w < v.data_count + v.tail_count; w += lanes)
        sum += st_digest_word(word_of(v, w), (uint32_t)w);
    if (v.has_length && lane == 0)
        sum += st_digest_word((uint32_t)v.data_count, ST_DIGEST_LENGTH);
    return sum;
}

static __device__ void copy_row(const struct row_view &v, int32_t lane, int32_t lanes,
                                struct st_cuda_snapshot *snapshot) {
    uint32_t *out = (uint32_t *)(snapshot + 1);
    int32_t words = v.exists ? v.data_count + v.tail_count : 0;
    int32_t length = v.exists ? 4 * (words + (v.has_length ? 1 : 0)) : 0;
    if (lane == 0)
        snapshot->length = length;
    if (length > snapshot->room)
        return;
    for (int32_t w = lane; w < words; w += lanes)
        out[w] = word_of(v, w);
    if (lane == 0 && v.exists && v.has_length)
        out[words] = (uint32_t)v.data_count;
}

static __device__ unsigned long long sum_warp(unsigned long long sum) {
    for (int32_t step = 16; step > 0; step /= 2)
        sum += __shfl_xor_sync(0xFFFFFFFFu, sum, step);
    return sum;
}

static __device__ void observe(const struct st_cuda_rows &rows, int32_t observation, int32_t i,
                               int32_t lane, int32_t lanes, struct st_cuda_snapshot *snapshot,
                               unsigned long long *part) {
    struct row_view v = view_of(rows, i);
    *part = sum_warp(hash_part(v, lane, lanes));
    if (snapshot->observation == observation && snapshot->row == i)
        copy_row(v, lane, lanes, snapshot);
}

/* Short rows: one warp each. */
extern "C" __global__ void st_cuda_observe_short_kernel(struct st_cuda_rows rows,
                                                        int32_t observation, uint64_t *hash,
                                                        struct st_cuda_snapshot *snapshot) {
    int32_t i = (int32_t)(((int64_t)blockIdx.x * blockDim.x + threadIdx.x) / 32);
    int32_t lane = threadIdx.x % 32;
    if (i >= rows.count)
        return;
    unsigned long long part;
    observe(rows, observation, i, lane, 32, snapshot, &part);
    if (lane == 0)
        hash[i] = part;
}

/* Long rows: one block each. */
extern "C" __global__ void st_cuda_observe_long_kernel(struct st_cuda_rows rows,
                                                       int32_t observation, uint64_t *hash,
                                                       struct st_cuda_snapshot *snapshot) {
    __shared__ unsigned long long parts[ROW_THREADS / 32];
    unsigned long long part;
    observe(rows, observation, blockIdx.x, threadIdx.x, ROW_THREADS, snapshot, &part);
    if (threadIdx.x % 32 == 0)
        parts[threadIdx.x / 32] = part;
    __syncthreads();
    if (threadIdx.x > 0)
        return;
    for (int32_t w = 1; w < ROW_THREADS / 32; w++)
        part += parts[w];
    hash[blockIdx.x] = part;
}

/* ---- guards */

/* One block a region. */
extern "C" __global__ void st_cuda_check_regions_kernel(struct st_cuda_guards a) {
    const uint32_t want = ST_CUDA_GUARD_WORD;
    const struct st_cuda_guard &r = a.region[blockIdx.x];
    __shared__ int first, last, changed;
    if (threadIdx.x == 0) {
        first = r.words;
        last = -1;
        changed = 0;
    }
    __syncthreads();
    for (int w = threadIdx.x; w < r.words; w += blockDim.x) {
        if (r.at[w] == want)
            continue;
        atomicMin(&first, w);
        atomicMax(&last, w);
        atomicAdd(&changed, 1);
        r.at[w] = want;
    }
    __syncthreads();
    if (threadIdx.x > 0 || changed == 0)
        return;
    int slot = atomicAdd(&a.out->count, 1);
    if (slot >= ST_CUDA_DAMAGES)
        return;
    struct st_cuda_damage &d = a.out->damage[slot];
    d.op = a.op;
    d.layer = a.layer;
    d.buffer = r.buffer;
    d.foreign = a.foreign;
    d.cut = r.begin < 0 ? first == 0 : last == r.words - 1;
    d.first = r.begin + 4 * (int64_t)first;
    d.last = r.begin + 4 * (int64_t)last;
    d.words = changed;
}

/* ---- graphs and times */

extern "C" __global__ void steptape_graph_condition(struct st_cuda_condition a) {
#if CUDART_VERSION >= 12040
    int any = 0;
    for (int32_t t = threadIdx.x; t < a.token_count; t += blockDim.x)
        any |= a.slot[t] >= 0 && (a.position[t] + 1) % a.ratio == 0;
    any = __syncthreads_or(any);
    if (threadIdx.x == 0)
        cudaGraphSetConditional((cudaGraphConditionalHandle)a.handle, any ? 1u : 0u);
#endif
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

extern "C" __global__ void st_cuda_nothing_kernel(void) {
}

extern "C" __global__ void st_cuda_evict_kernel(uint4 *scratch, int64_t count) {
    int64_t stride = (int64_t)gridDim.x * blockDim.x;
    for (int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; i < count; i += stride)
        scratch[i] = make_uint4((uint32_t)i, 1, 2, 3);
}

/* ---- launchers */

static unsigned int column_blocks(int64_t columns) {
    int64_t blocks = (columns + 4 * THREADS - 1) / (4 * THREADS);
    return (unsigned int)(blocks < 1 ? 1 : blocks > 512 ? 512 : blocks);
}

int st_cuda_fill_scores(const struct st_cuda_scores *a, void *stream) {
    if (a->padded_token_count <= 0 || a->buffer_count <= 0)
        return 0;
    dim3 grid(a->padded_token_count, a->buffer_count);
    st_cuda_fill_scores_kernel<<<grid, THREADS, 0, (cudaStream_t)stream>>>(*a);
    return cudaGetLastError();
}

int st_cuda_fill_constants(const struct st_cuda_constants *a, void *stream) {
    if (a->buffer_count <= 0)
        return 0;
    dim3 grid(a->ratio + 1, a->buffer_count);
    st_cuda_fill_constants_kernel<<<grid, THREADS, 0, (cudaStream_t)stream>>>(*a);
    return cudaGetLastError();
}

int st_cuda_fill_sink(float *out, int32_t heads, void *stream) {
    st_cuda_fill_sink_kernel<<<1, THREADS, 0, (cudaStream_t)stream>>>(out, heads);
    return cudaGetLastError();
}

int st_cuda_fill_pages(const struct st_cuda_pages *a, void *stream) {
    int64_t pages = a->page_count - a->first_page;
    if (pages <= 0 || a->buffer_count <= 0)
        return 0;
    dim3 grid((unsigned int)pages, a->buffer_count);
    st_cuda_fill_pages_kernel<<<grid, THREADS, 0, (cudaStream_t)stream>>>(*a);
    return cudaGetLastError();
}

int st_cuda_fill_queries(const struct st_cuda_queries *a, void *stream) {
    if (a->padded_token_count <= 0)
        return 0;
    dim3 grid(a->padded_token_count, a->heads);
    st_cuda_fill_queries_kernel<<<grid, THREADS, 0, (cudaStream_t)stream>>>(*a);
    return cudaGetLastError();
}

int st_cuda_fill_logits(const struct st_cuda_logits *a, void *stream) {
    if (a->rows <= 0 || a->columns <= 0)
        return 0;
    dim3 grid(a->rows, column_blocks(a->columns));
    st_cuda_fill_logits_kernel<<<grid, THREADS, 0, (cudaStream_t)stream>>>(*a);
    return cudaGetLastError();
}

int st_cuda_fill_words(const struct st_cuda_words *a, void *stream) {
    if (a->rows <= 0 || a->columns <= 0)
        return 0;
    dim3 grid((unsigned int)(a->rows < 65536 ? a->rows : 65536), column_blocks(a->columns));
    st_cuda_fill_words_kernel<<<grid, THREADS, 0, (cudaStream_t)stream>>>(*a);
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

int st_cuda_observe(const struct st_cuda_rows *rows, int32_t observation, uint64_t *hash,
                    struct st_cuda_snapshot *snapshot, void *stream) {
    const int32_t short_bytes = 1024, rows_a_block = THREADS / 32;
    cudaStream_t s = (cudaStream_t)stream;
    if (rows->count <= 0)
        return 0;
    if (rows->data_bytes + rows->tail_bytes <= short_bytes)
        st_cuda_observe_short_kernel<<<(rows->count + rows_a_block - 1) / rows_a_block, THREADS, 0,
                                       s>>>(*rows, observation, hash, snapshot);
    else
        st_cuda_observe_long_kernel<<<rows->count, ROW_THREADS, 0, s>>>(*rows, observation, hash,
                                                                        snapshot);
    return cudaGetLastError();
}

int st_cuda_check_regions(const struct st_cuda_guards *a, void *stream) {
    if (a->count <= 0)
        return 0;
    st_cuda_check_regions_kernel<<<a->count, 1024, 0, (cudaStream_t)stream>>>(*a);
    return cudaGetLastError();
}

int st_cuda_graph_condition(const struct st_cuda_condition *a, void *stream) {
#if CUDART_VERSION >= 12040
    steptape_graph_condition<<<1, THREADS, 0, (cudaStream_t)stream>>>(*a);
    return cudaGetLastError();
#else
    (void)a;
    (void)stream;
    return cudaErrorNotSupported;
#endif
}

int st_cuda_gate(const volatile uint32_t *flag, uint32_t ticket, void *stream) {
    st_cuda_gate_kernel<<<1, 1, 0, (cudaStream_t)stream>>>(flag, ticket);
    return cudaGetLastError();
}

int st_cuda_nothing(void *stream) {
    st_cuda_nothing_kernel<<<1, 32, 0, (cudaStream_t)stream>>>();
    return cudaGetLastError();
}

int st_cuda_evict(void *scratch, int64_t bytes, void *stream) {
    int64_t count = bytes / (int64_t)sizeof(uint4);
    if (count <= 0)
        return 0;
    st_cuda_evict_kernel<<<1024, THREADS, 0, (cudaStream_t)stream>>>((uint4 *)scratch, count);
    return cudaGetLastError();
}
