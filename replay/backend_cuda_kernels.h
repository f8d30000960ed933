/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The CUDA backend's own kernels: what the generator gives, what poison leaves, hashes of outputs.
 * All but one are named st_cuda_..., which is how the count pass tells them from operators; the
 * exception, steptape_graph_condition, is a launch of a plan.
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
#define ST_CUDA_CONDITION_NAME "steptape_graph_condition"

/* Who the tokens of a step are: the keys of everything that is generated a token. */
struct st_cuda_tokens {
    const int64_t *request_id; /* [requests] */
    const int32_t *token_to_request;
    const int64_t *position;
};

/* kv, then score, of every token and layer buffer.  Tokens from token_count on are padding: NaN
 * when poison is set, else 0. */
struct st_cuda_scores {
    float *out;            /* of layer buffer 0: [padded_token_count][2 * width] */
    int64_t buffer_stride; /* floats */
    struct st_cuda_tokens tokens;
    int32_t token_count, padded_token_count;
    int32_t buffer_count;
    int32_t width;
    int32_t layer_key; /* of the generator, of layer buffer 0 */
    int32_t poison;
};
int st_cuda_fill_scores(const struct st_cuda_scores *args, void *stream);

/* ape [ratio][width] and RMSNorm weight [dim] of every layer buffer, constant over a replay. */
struct st_cuda_constants {
    float *ape, *weight;               /* of layer buffer 0 */
    int64_t ape_stride, weight_stride; /* floats between layer buffers */
    int32_t buffer_count;
    int32_t ratio, width, dim;
    int32_t layer_key;
};
int st_cuda_fill_constants(const struct st_cuda_constants *args, void *stream);
int st_cuda_fill_sink(float *out, int32_t heads, void *stream);

/* Pages [first_page, page_count) of a cache as opaque operators leave them. */
struct st_cuda_pages {
    uint8_t *base;        /* of layer buffer 0 */
    int64_t buffer_bytes; /* between layer buffers */
    int64_t page_bytes;
    int64_t first_page, page_count;
    int32_t entries;
    int32_t buffer_count;
    int32_t cache; /* enum st_cache_id, for the key */
    int32_t v32;   /* 656-byte entries, else 584 split by page */
};
int st_cuda_fill_pages(const struct st_cuda_pages *args, void *stream);

/* Queries, bf16 [padded_token_count][heads][head_dim]; padding: NaN when poison is set, else 0. */
struct st_cuda_queries {
    uint16_t *out;
    struct st_cuda_tokens tokens;
    int32_t token_count, padded_token_count;
    int32_t heads, head_dim;
    int32_t poison;
};
int st_cuda_fill_queries(const struct st_cuda_queries *args, void *stream);

/* Scores of an indexer: row r, of token r of `tokens`, holds entry c - first[r] in columns
 * [first[r], last[r]) and the float of `rest` in all others. */
struct st_cuda_logits {
    float *out;
    const int32_t *first; /* NULL: 0 */
    const int32_t *last;
    struct st_cuda_tokens tokens;
    int64_t stride;
    int32_t rows, columns;
    uint32_t rest;
};
int st_cuda_fill_logits(const struct st_cuda_logits *args, void *stream);

/* out[r * stride + c] = value + (modulo > 0 ? c % modulo : 0); 32-bit words. */
struct st_cuda_words {
    int32_t *out;
    int64_t rows, columns, stride;
    int32_t value, modulo;
};
int st_cuda_fill_words(const struct st_cuda_words *args, void *stream);

/* State rows that an earlier step would have saved, in one cache set. */
struct st_cuda_rebuild {
    uint8_t *state;         /* layer buffer 0 of the set */
    int64_t buffer_bytes;   /* between layer buffers */
    int64_t page_bytes;     /* between pages */
    int32_t block_size;     /* rows of a page */
    const float *ape;       /* of layer buffer 0: [ratio][width] */
    int64_t ape_stride;     /* floats between layer buffers */
    const int64_t *rebuild; /* [count][3]: request, position, slot */
    int32_t count;
    int32_t buffer_count;
    int32_t ratio, width;
    int32_t layer_key;
};
int st_cuda_rebuild_state(const struct st_cuda_rebuild *args, void *stream);

/* Puts row r's ids, packed[2 * rows + 1 + offset[r] ..], into columns first[r] .. of its row;
 * packed holds first[rows], offset[rows + 1], then the ids. */
int st_cuda_scatter_table(int32_t *block_id, int64_t stride, const int32_t *packed, int32_t rows,
                          void *stream);

/* The rows of an observation: struct st_rows of replay/bind.h, on the device. */
struct st_cuda_rows {
    const uint8_t *base;
    const int64_t *slot;
    const int32_t *lens;
    int64_t stride_bytes, page_bytes;
    int32_t entries, data_bytes, tail_bytes;
    int32_t count;
};
/* Which row of which observation is wanted, told to the device because captured kernels ask;
 * bytes[] follows. */
struct st_cuda_snapshot {
    int32_t observation, row; /* -1: none */
    int32_t length;           /* bytes, set by the kernel */
    int32_t room;
};
/* hash[i] of row i as digest.h says.  When *snapshot names a row of this observation its bytes are
 * copied behind it. */
int st_cuda_observe(const struct st_cuda_rows *rows, int32_t observation, uint64_t *hash,
                    struct st_cuda_snapshot *snapshot, void *stream);

/* Guards that shall still hold ST_GUARD_BYTE, as a word. */
#define ST_CUDA_GUARD_WORD 0xA5A5A5A5u
enum { ST_CUDA_GUARDS = 16, ST_CUDA_DAMAGES = 256 };
struct st_cuda_guard {
    uint32_t *at;
    int64_t begin; /* bytes from the buffer's first row; the rest: see struct st_guard_damage */
    int32_t words;
    int32_t buffer;
};
struct st_cuda_damage {
    int32_t op, layer, buffer, foreign, cut;
    int64_t first, last, words;
};
struct st_cuda_damages {
    int32_t count; /* found; more than ST_CUDA_DAMAGES are not kept */
    struct st_cuda_damage damage[ST_CUDA_DAMAGES];
};
struct st_cuda_guards {
    struct st_cuda_guard region[ST_CUDA_GUARDS];
    int32_t count;
    int32_t op, layer, foreign;
    struct st_cuda_damages *out;
};
/* Adds what is not as it was, and fills it again. */
int st_cuda_check_regions(const struct st_cuda_guards *args, void *stream);

/* The condition of an IF/ELSE node: whether a token with a slot closes a group of `ratio`.
 * ST_ERR_UNSUPPORTED's cause when this build's CUDA has none: cudaErrorNotSupported. */
struct st_cuda_condition {
    uint64_t handle; /* cudaGraphConditionalHandle */
    const int64_t *position, *slot;
    int32_t token_count, ratio;
};
int st_cuda_graph_condition(const struct st_cuda_condition *args, void *stream);

/* Holds the stream until *flag >= ticket (host memory, mapped) or 2 s have passed: work enqueued
 * behind it starts together, so that the host's launch time is not in the measurement. */
int st_cuda_gate(const volatile uint32_t *flag, uint32_t ticket, void *stream);
/* A kernel that does nothing. */
int st_cuda_nothing(void *stream);
/* Writes `bytes` of scratch: what was in the L2 cache before is not there any more. */
int st_cuda_evict(void *scratch, int64_t bytes, void *stream);

#ifdef __cplusplus
}
#endif
#endif
