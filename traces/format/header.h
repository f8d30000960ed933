/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a tape says of the engine it was recorded from: line 1 of the interchange format.
 * Every string may be NULL (unknown).  Numbers: -1 unknown.  What it points to belongs to whoever
 * made it: of a tape's header to the tape, until st_tape_close().
 */
#ifndef ST_FORMAT_HEADER_H
#define ST_FORMAT_HEADER_H

#include <stdint.h>
#include <stdbool.h>

#include "traces/format/step.h"

enum st_member_kind {
    ST_MEMBER_SWA,
    ST_MEMBER_KV,
    ST_MEMBER_INDEXER_KV,
    ST_MEMBER_STATE,
    ST_MEMBER_INDEXER_STATE,
    ST_MEMBER_ATTENTION
};

const char *st_member_kind_name(enum st_member_kind kind);

struct st_member {
    enum st_member_kind kind;
    int32_t layers;
    int32_t ratio;
    int64_t window;     /* -1: null */
    int64_t page_bytes; /* -1: null */
};

/* A KV cache group: one block table, shared by its members. */
struct st_group {
    int32_t group_id;
    int32_t block_size; /* tokens a block */
    int32_t member_count;
    const struct st_member *members;
};

struct st_header {
    const char *engine, *engine_version, *runner, *device, *model, *architecture;
    int32_t compress_ratio_count; /* -1: null */
    const int32_t *compress_ratios;
    int64_t max_model_len, max_num_seqs, max_num_batched_tokens, num_blocks; /* -1: null */
    int8_t prefix_caching, async_scheduling;                                 /* 1, 0, -1 null */
    const char *speculative; /* JSON object text, or NULL */
    int64_t rank;
    int64_t clock_monotonic_ns, clock_realtime_ns; /* ST_UNKNOWN */
    const char *scale;
    int32_t group_count;
    const struct st_group *groups;
};

/* The group that has a member of this kind and ratio (ratio -1: any); NULL when there is none.
 * Groups differ between models: map by kind and ratio, never by id. */
const struct st_group *st_header_find_group(const struct st_header *header,
                                            enum st_member_kind kind, int32_t ratio);

#endif
