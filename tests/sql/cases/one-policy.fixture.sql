-- SPDX-License-Identifier: Apache-2.0
-- One policy, time measured in one of two steps, most facts unknown.
INSERT INTO tape (format_version, kind) VALUES (1, 'result');
INSERT INTO _result VALUES (1, 'result', '0123456789abcdef0123456789abcdef', NULL);
INSERT INTO run (run_id, backend, tool_version, tape_hash, simulated, created_unix)
VALUES (3, 'cuda', '0.1.0', '0123456789abcdef0123456789abcdef', 0, 1796000000);
INSERT INTO _policy VALUES (3, 0, 'safe');
INSERT INTO _operator VALUES (1, 'save_partial_states');
INSERT INTO _shape (shape_id, operator_id, launches, skipped, could_skip) VALUES (1, 1, 20, 0, 0);
INSERT INTO step (step_id, request_count, token_count, decode_count, prefill_token_count,
  max_query_len, max_seq_len, preempted_count) VALUES
  (0, 1, 8, 0, 8, 8, 8, 0), (1, 1, 1, 1, 0, 1, 9, 0), (2, 0, 0, 0, 0, 0, 0, 0);
-- Step 2 has no requests, hence no launch: its shape is empty.
INSERT INTO _run_step VALUES
  (3, 0, 0, 0, 8, 1, 51200, NULL, NULL), (3, 0, 1, 0, 1, 1, NULL, NULL, NULL),
  (3, 0, 2, 0, 0, 2, NULL, NULL, NULL);
