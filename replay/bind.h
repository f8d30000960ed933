/* SPDX-License-Identifier: Apache-2.0 */
/*
 * From a launch of a plan to the arguments of its operator.  The only place that knows which buffer
 * and which stride an operator gets; backends call the operator with what comes out, on host or on
 * device addresses alike, and the plan asks it for costs with none.
 *
 *     union st_args args;
 *     st_bind(&model, &buffers, &frame, plan, launch, &args);
 *     rc = st_operator_kernel(launch->op)->launch(&args, stream);
 *
 * Thread-safe: yes; no state.
 */
#ifndef ST_REPLAY_BIND_H
#define ST_REPLAY_BIND_H

#include "kernels/registry.h"
#include "replay/buffers.h"
#include "replay/plan.h"
#include "steptape/kernels.h"

union st_args {
    struct steptape_compressed_slot_mapping_args compressed_slot_mapping;
    struct steptape_swa_indices_args swa_indices;
    struct steptape_gather_lens_args gather_lens;
    struct steptape_c128a_topk_metadata_args c128a_topk_metadata;
    struct steptape_boundary_list_args boundary_list;
    struct steptape_save_partial_states_args save_partial_states;
    struct steptape_compress_pool_args compress_pool;
    struct steptape_compress_norm_rope_store_args compress_norm_rope_store;
    struct steptape_compress_fused_args compress_fused;
    struct steptape_fill_args fill;
    struct steptape_topk_per_row_args topk_per_row;
    struct steptape_global_topk_indices_args global_topk_indices;
    struct steptape_sparse_mla_decode_args sparse_mla_decode;
    struct steptape_dequantize_and_gather_args dequantize_and_gather;
    struct steptape_combine_topk_swa_indices_args combine_topk_swa_indices;
    struct steptape_sparse_mla_prefill_args sparse_mla_prefill;
};

/* The kernels/ side of an operator; NULL for ST_OP_GRAPH_CONDITION. */
const struct st_kernel *st_operator_kernel(enum st_operator op);

/* frame: of the launch's (set, layer buffer ordinal % layer_buffers); NULL: all addresses NULL, for
 * a cost.  Rows of args count from launch->first_token (or first_request). */
void st_bind(const struct st_model *model, const struct st_buffers *buffers,
             const struct st_frame *frame, const struct st_plan *plan,
             const struct st_launch *launch, union st_args *args);
/* What the cost function of the launch is to be told. */
void st_bind_counts(const struct st_model *model, const struct st_plan *plan,
                    const struct st_launch *launch, struct steptape_token_counts *counts);

/*
 * Rows of an output as its consumer reads them.  Row i:
 *     pages:   slot != NULL: entry slot[i] of paged memory; slot[i] < 0: no row
 *              data_bytes at page * page_bytes + entry * data_bytes, then tail_bytes at
 *              page * page_bytes + entries * data_bytes + entry * tail_bytes
 *     strided: slot == NULL: data_bytes at base + i * stride_bytes; with lens: only the first
 *              min(lens[i], data_bytes / 4) words, and lens[i] is part of the row
 */
struct st_rows {
    const uint8_t *base;
    const int64_t *slot;
    const int32_t *lens;
    int64_t stride_bytes, page_bytes;
    int32_t entries, data_bytes, tail_bytes;
    int32_t count;
};
/* The rows of an observation.  Row i belongs to token first_token + i (GATHER_LENS: request). */
void st_bind_view(const struct st_model *model, const struct st_buffers *buffers,
                  const struct st_frame *frame, const struct st_plan *plan,
                  const struct st_launch *launch, struct st_rows *rows);

#endif
