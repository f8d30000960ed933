/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The SQL extension: per-request rows, arrays and single launches of the open tape as tables.
 *
 *     SELECT block_id FROM block_table WHERE step_id = 17 AND group_id = 0 AND row = 3;
 *
 * Eponymous virtual tables over the connection's `main` database, which has to be a tape:
 *     request_step (step_id, row, request_id, query_len, num_computed_tokens, prompt_len)
 *     block_table  (step_id, group_id, row, ordinal, block_id)
 *     slot_mapping (step_id, group_id, token, position, slot)
 *     launch       (run_id, policy, step_id, ordinal, operator, graph_node, grid, block, start_ns,
 *                   duration_ns)
 * Aggregates: percentile(value, p) with p in 0..100, linear between ranks; median(value).
 *
 * The same code is linked into the program and built as steptape.so (`.load ./steptape`).
 *
 * Invariants
 *  1. Rows come in the order of the first columns (step_id, group_id, row, ordinal).
 *  2. A constraint (=, <, <=, >, >=) on any of those columns narrows what is decoded; one on
 *     step_id seeks.
 *  3. Decoders are kept between queries of a connection: ascending step_ids never decode twice.
 *  4. Nothing is written.
 */
#ifndef ST_ANALYSIS_SQL_H
#define ST_ANALYSIS_SQL_H

#include "traces/base/error.h"

struct sqlite3;

/* Registers the tables and aggregates on db.  Opens nothing yet: a database that is no tape is an
 * error of the first query that uses one of the tables. */
int st_sql_register(struct sqlite3 *db, struct st_error *err);

#endif
