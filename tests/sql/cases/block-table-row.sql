-- SPDX-License-Identifier: Apache-2.0
-- One row's table in one group.
-- @steps tiny.jsonl
SELECT ordinal, block_id FROM block_table
WHERE step_id = 12 AND group_id = 0 AND row = 1
ORDER BY ordinal;
