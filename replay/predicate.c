/* SPDX-License-Identifier: Apache-2.0 */
#include "replay/predicate.h"

#include <stddef.h>

enum st_boundary st_boundary_predicate(const int32_t *start, const int32_t *query_len,
                                       int32_t request_count, int32_t ratio) {
    if (!start)
        return ST_BOUNDARY_NONE;
    /* No early exit: the loop without one is vectorised, and the answer is mostly "no" where it
     * matters. */
    int any = 0;
    if ((ratio & (ratio - 1)) == 0) {
        for (int32_t i = 0; i < request_count; i++)
            any |= (start[i] & (ratio - 1)) + query_len[i] >= ratio;
    } else {
        for (int32_t i = 0; i < request_count; i++)
            any |= start[i] % ratio + query_len[i] >= ratio;
    }
    return any ? ST_BOUNDARY_TRUE : ST_BOUNDARY_FALSE;
}
