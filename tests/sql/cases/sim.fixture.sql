-- SPDX-License-Identifier: Apache-2.0
-- A simulated run: every time is a prediction, nothing was repeated or compared; the second policy
-- costs where it does not skip, the third skips nothing.
INSERT INTO tape (format_version, kind) VALUES (1, 'result');
INSERT INTO _result VALUES (1, 'result', '0123456789abcdef0123456789abcdef', 'azure.tape');
INSERT INTO run (run_id, backend, device, model, graph_mode, passes, tool_version, tape_hash, simulated,
  error_note, layers, created_unix) VALUES
  (1, 'sim', 'h200', 'deepseek-v4-flash', 'eager', 'time', '0.1.0', '0123456789abcdef0123456789abcdef', 1,
   'profile h200 (datasheet)', 20, 1796000000);
INSERT INTO _policy VALUES (1, 0, 'baseline'), (1, 1, 'upstream'), (1, 2, 'corrected');
INSERT INTO _operator VALUES (1, 'compress_pool');
INSERT INTO _shape (shape_id, operator_id, launches, skipped, could_skip) VALUES
  (1, 1, 20, 0, 0), (2, 1, 0, 20, 0);
WITH RECURSIVE n(i) AS (SELECT 0 UNION ALL SELECT i + 1 FROM n WHERE i < 9)
INSERT INTO step (step_id, request_count, token_count, decode_count, prefill_token_count,
  max_query_len, max_seq_len, preempted_count) SELECT i, 4, 4, 4, 0, 1, 100, 0 FROM n;
INSERT INTO _run_step
SELECT 1, p.policy_id, step_id, 0, 4, CASE WHEN p.policy_id = 1 AND step_id < 8 THEN 2 ELSE 1 END,
  60000 - CASE WHEN p.policy_id <> 1 THEN 0 WHEN step_id < 8 THEN 30000 + step_id ELSE -250 END,
  NULL, CASE WHEN p.policy_id = 1 THEN 120.0 END
FROM step, _policy AS p;
