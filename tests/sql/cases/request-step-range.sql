-- SPDX-License-Identifier: Apache-2.0
-- @steps tiny.jsonl
SELECT step_id, row, request_id, query_len, num_computed_tokens, prompt_len FROM request_step
WHERE step_id BETWEEN 3 AND 6
ORDER BY step_id, row;
