-- SPDX-License-Identifier: Apache-2.0
-- A tape without single launches has an empty table of them.
-- @steps tiny.jsonl
SELECT count(*) AS launches, max(duration_ns) AS longest_ns FROM launch WHERE step_id < 10;
