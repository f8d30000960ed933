/* SPDX-License-Identifier: Apache-2.0 */
/*
 * boundary_list, the reference.
 */
#include "kernels/boundary_list/boundary_list.h"

static int is_listed(const struct steptape_boundary_list_args *args, int64_t t) {
    return args->slot_mapping[t] >= 0 && (args->positions[t] + 1) % args->ratio == 0 &&
           args->kv_slot_mapping[t] >= 0;
}

int steptape_boundary_list_ref(const struct steptape_boundary_list_args *args) {
    int rc = st_boundary_list_ready(args);
    if (rc < 0)
        return rc;
    int32_t count = 0;
    for (int64_t t = 0; t < args->num_tokens; t++)
        if (is_listed(args, t))
            args->list[count++] = (int32_t)t;
    *args->count = count;
    return STEPTAPE_OK;
}

int steptape_boundary_list_ref_rows(const struct steptape_boundary_list_args *args,
                                    const int64_t *tokens, int64_t n) {
    int rc = st_boundary_list_ready(args);
    if (rc < 0)
        return rc;
    for (int64_t i = 0; i < n; i++)
        if (tokens[i] < 0 || tokens[i] >= args->num_tokens)
            return STEPTAPE_ERR_ARGUMENT;
    int32_t count = 0;
    for (int64_t t = 0; t < args->num_tokens; t++) {
        if (!is_listed(args, t))
            continue;
        for (int64_t i = 0; i < n; i++)
            if (tokens[i] == t)
                args->list[count] = (int32_t)t;
        count++;
    }
    *args->count = count;
    return STEPTAPE_OK;
}
