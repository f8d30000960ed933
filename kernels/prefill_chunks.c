/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which prefill requests share a workspace: the plan of steptape_plan_prefill_chunks.
 */
#include "kernels/operator.h"

struct lengths {
    int64_t compressed, gather;
};

static struct lengths lengths_of(int32_t seq_len, int32_t query_len, int32_t ratio,
                                 int32_t window) {
    int64_t prefix = (int64_t)seq_len - query_len;
    struct lengths l;
    l.compressed = ratio > 1 ? seq_len / ratio : 0;
    l.gather = query_len + (prefix < window - 1 ? prefix : window - 1);
    return l;
}

static int64_t larger(int64_t a, int64_t b) {
    return a > b ? a : b;
}

int32_t steptape_plan_prefill_chunks(const int32_t *seq_lens, const int32_t *query_lens,
                                     int32_t num_reqs, int32_t ratio, int32_t window,
                                     int64_t max_model_len, int64_t max_num_batched_tokens,
                                     int32_t fixed_size, struct steptape_prefill_chunk *out) {
    if (num_reqs < 0 || ratio < 1 || window < 1 || max_model_len < 0 || fixed_size < 0 ||
        max_num_batched_tokens < 0 || max_model_len > INT32_MAX ||
        max_num_batched_tokens > INT32_MAX ||
        (num_reqs > 0 && (seq_lens == NULL || query_lens == NULL || out == NULL)))
        return STEPTAPE_ERR_ARGUMENT;
    for (int32_t r = 0; r < num_reqs; r++)
        if (query_lens[r] < 0 || seq_lens[r] < query_lens[r])
            return STEPTAPE_ERR_ARGUMENT;
    const int64_t compressed_max = ratio > 1 ? st_ceil_div(max_model_len, ratio) : 0;
    const int64_t m_max = compressed_max + window + max_num_batched_tokens;
    if (fixed_size > 0 && m_max > INT32_MAX)
        return STEPTAPE_ERR_ARGUMENT;
    int32_t chunk_count = 0;
    for (int32_t first = 0, count; first < num_reqs; first += count) {
        struct lengths most = {0, 0};
        for (count = 0; first + count < num_reqs; count++) {
            const int32_t r = first + count;
            const struct lengths l = lengths_of(seq_lens[r], query_lens[r], ratio, window);
            const struct lengths with = {larger(most.compressed, l.compressed),
                                         larger(most.gather, l.gather)};
            const int is_full = fixed_size > 0
                                    ? count == fixed_size
                                    : (count + 1) * (with.compressed + with.gather) > 4 * m_max;
            if (count > 0 && is_full)
                break;
            most = with;
        }
        const int64_t n = fixed_size > 0 ? compressed_max : most.compressed;
        const int64_t m = fixed_size > 0 ? m_max : most.compressed + most.gather;
        if (m > INT32_MAX)
            return STEPTAPE_ERR_ARGUMENT;
        out[chunk_count].first_req = first;
        out[chunk_count].req_count = count;
        out[chunk_count].n = (int32_t)n;
        out[chunk_count].m = (int32_t)m;
        chunk_count++;
    }
    return chunk_count;
}
