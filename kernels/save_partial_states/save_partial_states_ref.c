/* SPDX-License-Identifier: Apache-2.0 */
/*
 * save_partial_states, the reference.  One fp32 add an element, so it is bit-equal to any right
 * device variant.
 */
#include "kernels/save_partial_states/save_partial_states.h"

static void save_token(const struct steptape_save_partial_states_args *args, int64_t t) {
    int64_t slot = args->slot_mapping[t];
    if (slot < 0)
        return;
    const float *kv = args->kv + t * args->kv_stride;
    const float *score = args->score + t * args->score_stride;
    const float *ape = args->ape + (args->positions[t] % args->ratio) * args->ape_stride;
    float *row = args->state_cache + (slot / args->block_size) * args->state_page_stride +
                 (slot % args->block_size) * args->state_row_stride;
    for (int32_t d = 0; d < args->width; d++) {
        row[d] = kv[d];
        row[args->width + d] = score[d] + ape[d];
    }
}

static int check(const struct steptape_save_partial_states_args *args) {
    int rc = st_save_partial_states_check(args);
    if (rc != STEPTAPE_OK || args->num_tokens == 0)
        return rc;
    if (args->kv == NULL || args->score == NULL || args->ape == NULL || args->positions == NULL ||
        args->slot_mapping == NULL || args->state_cache == NULL)
        return STEPTAPE_ERR_ARGUMENT;
    return STEPTAPE_OK;
}

int steptape_save_partial_states_ref(const struct steptape_save_partial_states_args *args) {
    int rc = check(args);
    if (rc != STEPTAPE_OK)
        return rc;
    for (int64_t t = 0; t < args->num_tokens; t++)
        save_token(args, t);
    return STEPTAPE_OK;
}

int steptape_save_partial_states_ref_rows(const struct steptape_save_partial_states_args *args,
                                          const int64_t *tokens, int64_t n) {
    int rc = check(args);
    if (rc != STEPTAPE_OK)
        return rc;
    for (int64_t k = 0; k < n; k++) {
        if (tokens[k] < 0 || tokens[k] >= args->num_tokens)
            return STEPTAPE_ERR_ARGUMENT;
        save_token(args, tokens[k]);
    }
    return STEPTAPE_OK;
}
