/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The plan of sparse_mla_decode, on the host: what the plan kernels must leave, byte for byte.
 */
#include "kernels/sparse_mla_decode/sparse_mla_decode.h"

#include <stdlib.h>

#include "kernels/operator.h"
#include "kernels/sparse_mla_decode/cut.h"

static int32_t tiles_of(const struct steptape_sparse_mla_decode_args *args, int64_t t) {
    int64_t tiles = 0;
    for (int s = 0; s < 2; s++)
        tiles += st_ceil_div(st_decode_columns(&args->scope[s], t), ST_DECODE_TILE);
    return (int32_t)tiles;
}

int st_sparse_mla_decode_plan_ref(const struct steptape_sparse_mla_decode_args *args,
                                  const struct st_decode_geometry *geometry,
                                  struct st_decode_part *parts, struct st_decode_token *tokens) {
    int32_t *tile = malloc((size_t)args->tokens * sizeof *tile);
    if (tile == NULL)
        return STEPTAPE_ERR_UNSUPPORTED;
    for (int64_t t = 0; t < args->tokens; t++)
        tile[t] = tiles_of(args, t);
    st_plan_cut(tile, (int32_t)args->tokens, geometry->parts, parts, tokens);
    free(tile);
    return STEPTAPE_OK;
}
