/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The generator: every input that the tape does not determine, the same bits on CPU and GPU.
 *
 *     uint64_t row = st_gen_row(ST_GEN_KV_SCORE, layer, request_id, position);
 *     float kv = st_gen_kv(row, channel), score = st_gen_score(row, channel);
 *
 * Invariants
 *  1. A value is a pure function of (tensor tag, layer, request, position, channel): counter-based,
 *     no state, any element alone.  Known answers are pinned by generator_test.c; the function may
 *     not change once a digest has been published.
 *  2. Only integer operations and exact float operations (24-bit integers scaled by a power of
 *     two), so compiler, contraction and rounding mode do not matter.
 *  3. C11 and CUDA C++ compile it alike.
 *
 * How it works: the key of a row is the splitmix64 finaliser (D. Stafford's mix 13) chained over
 * tag, layer, request and position; a channel adds a multiple of the golden-ratio increment and
 * mixes once more.  One mix gives kv (high half) and score (low half) of a channel.
 */
#ifndef ST_REPLAY_GENERATOR_H
#define ST_REPLAY_GENERATOR_H

#include <stdint.h>

#ifdef __CUDACC__
#define ST_GEN_FN static __host__ __device__ __forceinline__
#else
#define ST_GEN_FN static inline
#endif

enum st_gen_tag {
    ST_GEN_KV_SCORE = 1,   /* by (layer, request, position, channel) */
    ST_GEN_APE = 2,        /* by (layer, position % ratio, channel) */
    ST_GEN_RMS_WEIGHT = 3, /* by (layer, channel) */
    ST_GEN_Q = 4,          /* by (head, request, position, channel) */
    ST_GEN_LOGIT = 5,      /* by (request, position, entry) */
    ST_GEN_PAGE = 6,       /* by (cache and layer, page, entry, word) */
    ST_GEN_SINK = 7        /* by (head) */
};

/* `layer` of the compressors: ratio 128 has the layer buffer's own number (published digests), the
 * others are told apart from it. */
#define ST_GEN_LAYER_C4 256
#define ST_GEN_LAYER_INDEXER 512

#define ST_GEN_GOLDEN 0x9E3779B97F4A7C15ull

ST_GEN_FN uint64_t st_gen_mix(uint64_t x) {
    x ^= x >> 30;
    x *= 0xBF58476D1CE4E5B9ull;
    x ^= x >> 27;
    x *= 0x94D049BB133111EBull;
    x ^= x >> 31;
    return x;
}

/* Key of one row of a tensor. */
ST_GEN_FN uint64_t st_gen_row(int tag, int32_t layer, int64_t request_id, int64_t position) {
    uint64_t key = st_gen_mix(((uint64_t)(uint32_t)tag << 32 | (uint32_t)layer) + ST_GEN_GOLDEN);
    key = st_gen_mix(key ^ ((uint64_t)request_id + ST_GEN_GOLDEN));
    return st_gen_mix(key ^ ((uint64_t)position + ST_GEN_GOLDEN));
}

ST_GEN_FN uint64_t st_gen_channel(uint64_t row, int32_t channel) {
    return st_gen_mix(row + (uint64_t)(uint32_t)(channel + 1) * ST_GEN_GOLDEN);
}

/* 24 of 32 bits as a float in [-1, 1), exact. */
ST_GEN_FN float st_gen_unit(uint32_t bits) {
    return (float)((int32_t)(bits >> 8) - 8388608) * (1.0f / 8388608.0f);
}

/* Compressor input: kv in [-2, 2), score in [-4, 4). */
ST_GEN_FN float st_gen_kv(uint64_t row, int32_t channel) {
    return st_gen_unit((uint32_t)(st_gen_channel(row, channel) >> 32)) * 2.0f;
}

ST_GEN_FN float st_gen_score(uint64_t row, int32_t channel) {
    return st_gen_unit((uint32_t)st_gen_channel(row, channel)) * 4.0f;
}

/* Absolute position embedding of the score, in [-0.5, 0.5); phase = position % ratio. */
ST_GEN_FN float st_gen_ape(int32_t layer, int32_t phase, int32_t channel) {
    uint64_t row = st_gen_row(ST_GEN_APE, layer, 0, phase);
    return st_gen_unit((uint32_t)(st_gen_channel(row, channel) >> 32)) * 0.5f;
}

/* RMSNorm weight, in [0.5, 1.5) times a power of two of each 64 channels (so that the fp8 blocks of
 * an entry differ in scale). */
ST_GEN_FN float st_gen_rms_weight(int32_t layer, int32_t channel) {
    uint64_t row = st_gen_row(ST_GEN_RMS_WEIGHT, layer, 0, 0);
    float unit = st_gen_unit((uint32_t)(st_gen_channel(row, channel) >> 32)) * 0.5f + 1.0f;
    uint32_t step = (uint32_t)st_gen_channel(row, 65536 + channel / 64) & 7u;
    return unit * ((float)(1u << step) * 0.0625f);
}

/* Query, a bf16 in [-1, 1) with 8 significant bits: exact.  row: st_gen_row(ST_GEN_Q, head, ...).
 */
ST_GEN_FN uint16_t st_gen_q(uint64_t row, int32_t channel) {
    int32_t v = (int32_t)(st_gen_channel(row, channel) >> 56) - 128;
    float value = (float)v * (1.0f / 128.0f);
    union {
        float f;
        uint32_t u;
    } bits;
    bits.f = value;
    return (uint16_t)(bits.u >> 16);
}

/* Score of an indexer, in [-8, 8).  row: st_gen_row(ST_GEN_LOGIT, 0, request, position). */
ST_GEN_FN float st_gen_logit(uint64_t row, int32_t entry) {
    return st_gen_unit((uint32_t)(st_gen_channel(row, entry) >> 32)) * 8.0f;
}

ST_GEN_FN float st_gen_sink(int32_t head) {
    uint64_t row = st_gen_row(ST_GEN_SINK, 0, 0, 0);
    return st_gen_unit((uint32_t)st_gen_channel(row, head)) * 2.0f;
}

/* Four e4m3 without a NaN among them. */
ST_GEN_FN uint32_t st_gen_e4m3x4(uint64_t row, int32_t word) {
    uint32_t bits = (uint32_t)st_gen_channel(row, word);
    for (int i = 0; i < 32; i += 8)
        if ((bits >> i & 0x7Fu) == 0x7Fu)
            bits ^= 1u << i;
    return bits;
}

ST_GEN_FN uint32_t st_gen_bf16x2(uint64_t row, int32_t word) {
    return (uint32_t)st_gen_q(row, 4096 + 2 * word) | (uint32_t)st_gen_q(row, 4096 + 2 * word + 1)
                                                          << 16;
}

/* Word of an entry that no replayed operator writes, as opaque operators leave it.  584-byte
 * entries: words 0..143 are the data, 144 and 145 the tail of scales (2^-10 .. 2^-8 of e4m3).
 * row: st_gen_row(ST_GEN_PAGE, cache << 16 | layer buffer, page, entry). */
ST_GEN_FN uint32_t st_gen_ds_mla_word(uint64_t row, int32_t word) {
    if (word < 112)
        return st_gen_e4m3x4(row, word);
    if (word < 144)
        return st_gen_bf16x2(row, word);
    uint32_t bits = (uint32_t)st_gen_channel(row, word), scales = 0;
    for (int i = 0; i < 32; i += 8)
        scales |= (117u + (bits >> i & 0xFFu) % 3u) << i;
    return word == 145 ? scales & 0xFFFFFFu : scales;
}

/* 656-byte entries: 128 words of e4m3, 4 fp32 scales, 32 words of bf16. */
ST_GEN_FN uint32_t st_gen_v32_word(uint64_t row, int32_t word) {
    if (word < 128)
        return st_gen_e4m3x4(row, word);
    if (word < 132) /* 2^-10, 2^-9, 2^-8 */
        return (117u + (uint32_t)st_gen_channel(row, word) % 3u) << 23;
    return st_gen_bf16x2(row, word);
}

#endif
