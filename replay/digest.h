/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The hash of one output row, computable by one thread or by many in any order (C and CUDA alike).
 *
 *     hash = sum over i of st_digest_word(word[i], i)      modulo 2^64
 *
 * Rows are whole 32-bit words.
 * Rows of an observation (struct st_rows, replay/bind.h), "st_digest_rows semantics":
 *     pages    the words of the data, then those of the tail; 0 where the slot is negative
 *     strided  the words of the row; with lens: n = clamp(lens[i], 0, data_bytes / 4) words, and n
 *              itself as word number ST_DIGEST_LENGTH: lists of different room compare
 * As bytes (read_row): the same words in the same order, n last.
 * The digest of an operator's outputs in a step is XXH3-64 over the row hashes in token order.
 * Bits are compared, not values: a NaN equals itself, -0 differs from 0.
 */
#ifndef ST_REPLAY_DIGEST_H
#define ST_REPLAY_DIGEST_H

#include "replay/generator.h"

#define ST_DIGEST_LENGTH 0xFFFFFFFFu

ST_GEN_FN uint64_t st_digest_word(uint32_t word, uint32_t index) {
    return st_gen_mix(((uint64_t)index << 32 | word) + ST_GEN_GOLDEN);
}

ST_GEN_FN uint64_t st_digest_row(const uint32_t *word, uint32_t word_count) {
    uint64_t hash = 0;
    for (uint32_t i = 0; i < word_count; i++)
        hash += st_digest_word(word[i], i);
    return hash;
}

#endif
