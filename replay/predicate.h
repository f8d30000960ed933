/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Does any token of a step close a group of `ratio` tokens?  The rule of the c128 skip:
 * any(start % ratio + query_len >= ratio).  Without starts on the CPU the answer is NONE, which is
 * a value of its own and never "no".
 */
#ifndef ST_REPLAY_PREDICATE_H
#define ST_REPLAY_PREDICATE_H

#include <stdint.h>

enum st_boundary { ST_BOUNDARY_NONE = -1, ST_BOUNDARY_FALSE = 0, ST_BOUNDARY_TRUE = 1 };

/* start NULL: not on the CPU. */
enum st_boundary st_boundary_predicate(const int32_t *start, const int32_t *query_len,
                                       int32_t request_count, int32_t ratio);

#endif
