/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A tape made of formulas behind the interface of traces/format/reader.h, for unit tests of the SQL
 * tables: every value can be told from its place, and every call is counted.
 */
#ifndef ST_ANALYSIS_FAKE_TAPE_H
#define ST_ANALYSIS_FAKE_TAPE_H

enum { FAKE_FIRST_STEP = 10, FAKE_STEPS = 100, FAKE_GROUPS = 2, FAKE_BLOCK_SIZE = 4 };

struct fake_calls {
    int attach, close, cursor_open, cursor_close, seek, next, block_table, slot_mapping;
};
extern struct fake_calls fake_calls;

/* Step s has s % 5 rows (none in every fifth), row r has 1 + r tokens and starts at s + r. */
int fake_rows(int step_id);
/* Row r of step s, group g: 2 + (s + r + g) % 3 ids. */
int fake_block_count(int step_id, int group, int row);
int fake_block_id(int step_id, int group, int row, int ordinal);

#endif
