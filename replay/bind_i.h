/* SPDX-License-Identifier: Apache-2.0 */
/* Inside of binding: bind.c (metadata, compressors) and bind_attention.c (top-k, attention, views).
 */
#ifndef ST_REPLAY_BIND_I_H
#define ST_REPLAY_BIND_I_H

#include "replay/bind.h"

struct st_bind {
    const struct st_model *model;
    const struct st_buffers *buffers;
    const struct st_frame *frame; /* NULL: for a cost */
    const struct st_plan *plan;
    const struct st_launch *launch;
};

void *st_bind_at(const struct st_bind *b, enum st_buffer_id id, int64_t byte_offset);
/* Of the launch's first token on. */
const int64_t *st_bind_slot(const struct st_bind *b, enum st_cache_id cache);
const int32_t *st_bind_table(const struct st_bind *b, enum st_cache_id cache,
                             int32_t first_request);
/* Buffer of the slots that entries of this cache get. */
enum st_buffer_id st_bind_kv_slot(enum st_cache_id cache);
/* Stands for a list where a cost is asked for. */
extern const int32_t st_bind_no_list;

/* C128A rows: columns and stride, as the metadata kernel writes them and as attention reads them.
 * They are the same except under FULL, where a graph keeps what it was captured with. */
struct st_c128a_view {
    int32_t width;
    int64_t stride;
};
struct st_c128a_view st_bind_c128a_written(const struct st_bind *b);
struct st_c128a_view st_bind_c128a_read(const struct st_bind *b);

void st_bind_attention(const struct st_bind *b, union st_args *args);

#endif
