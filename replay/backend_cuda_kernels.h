/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The CUDA backend's own kernels: inputs from the generator, lost state, digests of outputs.  None
 * of them is an operator; all are named st_cuda_..., which is how the count pass tells them apart.
 *
 * Pointers are device pointers, stream is a cudaStream_t.  Functions enqueue and return the CUDA
 * runtime's error code (0: success).
 */
#ifndef ST_REPLAY_BACKEND_CUDA_KERNELS_H
#define ST_REPLAY_BACKEND_CUDA_KERNELS_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define ST_CUDA_OWN_PREFIX "st_cuda_"

/* kv, then score, of every token and buffer, as the generator gives them.  Tokens from token_count
 * on are padding: NaN when poison is set, else 0. */
struct st_cuda_fill {
    float *out; /* [buffer_count][max_tokens][2 * width] */
    int64_t buffer_stride;
    const int64_t *request_id; /* [requests] */
    const int32_t *token_to_request;
    const int64_t *position;
    int32_t token_count, padded_token_count;
    int32_t buffer_count;
    int32_t width;
    int32_t poison;
};
int st_cuda_fill_inputs(const struct st_cuda_fill *args, void *stream);

/* ape [buffer][ratio][width] and RMSNorm weight [buffer][width], constant over a replay. */
int st_cuda_fill_constants(float *ape, float *weight, int32_t buffer_count, int32_t ratio,
                           int32_t width, void *stream);

/* State rows that an earlier step would have saved, in one cache set. */
struct st_cuda_rebuild {
    uint8_t *state;         /* buffer 0 of the set */
    int64_t buffer_bytes;   /* between buffers */
    int64_t page_bytes;     /* between pages */
    int32_t block_size;     /* rows of a page */
    const float *ape;       /* [buffer][ratio][width] */
    const int64_t *request; /* [count] */
    const int64_t *position;
    const int64_t *slot;
    int32_t count;
    int32_t buffer_count;
    int32_t ratio, width;
};
int st_cuda_rebuild_state(const struct st_cuda_rebuild *args, void *stream);

/* Puts row r's ids, packed[2 * rows + 1 + offset[r] ..], into columns first[r] .. of its row;
 * packed holds first[rows], offset[rows + 1], then the ids. */
int st_cuda_scatter_table(int32_t *block_id, int64_t stride, const int32_t *packed, int32_t rows,
                          void *stream);

/*
 * Where output rows lie: row s is entry s % entries of page s / entries; its first data_words words
 * lie together at entry * data_words, its last tail_words behind all the data of the page.
 */
struct st_cuda_row_layout {
    const uint8_t *base;
    int64_t page_bytes;
    int32_t entries;
    int32_t data_words, tail_words;
};
/* st_digest_row of each row. */
int st_cuda_hash(const struct st_cuda_row_layout *layout, const int64_t *slot, int32_t count,
                 uint64_t *hash, void *stream);
/* The rows' words, one row after the other. */
int st_cuda_gather(const struct st_cuda_row_layout *layout, const int64_t *slot, int32_t count,
                   uint32_t *words, void *stream);

/* Holds the stream until *flag >= ticket (host memory, mapped) or 2 s have passed: work enqueued
 * behind it starts together, so that the host's launch time is not in the measurement. */
int st_cuda_gate(const volatile uint32_t *flag, uint32_t ticket, void *stream);
/* Writes `bytes` of scratch: what was in the L2 cache before is not there any more. */
int st_cuda_evict(void *scratch, int64_t bytes, void *stream);

#ifdef __cplusplus
}
#endif
#endif
