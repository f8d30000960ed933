-- SPDX-License-Identifier: Apache-2.0
-- The step table and the arrays agree on every step.
-- @steps tiny.jsonl
SELECT
  s.step_id, s.request_count, s.token_count,
  (SELECT count(*) FROM request_step AS r WHERE r.step_id = s.step_id) AS rows,
  (SELECT sum(query_len) FROM request_step AS r WHERE r.step_id = s.step_id) AS tokens,
  (SELECT max(num_computed_tokens + query_len) FROM request_step AS r
   WHERE r.step_id = s.step_id) = s.max_seq_len AS same_length
FROM step AS s
ORDER BY s.step_id DESC;
