-- SPDX-License-Identifier: Apache-2.0
-- Slots are where the block table says, in every step, group and token.
-- @steps tiny.jsonl
SELECT
  count(*) AS tokens,
  sum(s.slot = b.block_id * g.block_size + s.position % g.block_size) AS right,
  min(s.position) AS first, max(s.position) AS last
FROM slot_mapping AS s
JOIN (SELECT DISTINCT group_id, block_size FROM kv_group) AS g USING (group_id)
JOIN request_step AS r ON r.step_id = s.step_id
  AND s.token >= (SELECT coalesce(sum(query_len), 0) FROM request_step
                  WHERE step_id = r.step_id AND row < r.row)
  AND s.token < (SELECT sum(query_len) FROM request_step
                 WHERE step_id = r.step_id AND row <= r.row)
JOIN block_table AS b ON b.step_id = s.step_id AND b.group_id = s.group_id AND b.row = r.row
  AND b.ordinal = s.position / g.block_size;
