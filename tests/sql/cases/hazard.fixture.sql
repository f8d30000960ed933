-- SPDX-License-Identifier: Apache-2.0
-- A run on the CPU references: no time is measured, and one policy changes outputs.
INSERT INTO tape (format_version, kind) VALUES (1, 'result');
INSERT INTO _result VALUES (1, 'result', '0123456789abcdef0123456789abcdef', 'azure.tape');
INSERT INTO operation (tool, version, argv, time)
VALUES ('steptape', '0.1.0', '["steptape replay","azure.tape","--backend","cpu"]', 2);
INSERT INTO run (run_id, backend, device, model, graph_mode, passes, tool_version, tape_hash, simulated,
  options, layers, created_unix) VALUES
  (1, 'cpu', 'cpu: 2 processors', 'deepseek-v4-tiny', 'full', 'count,verify', '0.1.0',
   '0123456789abcdef0123456789abcdef', 0, '{"steps_above_largest_capture":1,"steps_mode_unknown":0,"steps_without_cpu_starts":2,"allocated_groups":["state_c128"],"profiler_records_dropped":3}',
   1, 1796000000);
INSERT INTO _policy VALUES (1, 0, 'baseline'), (1, 1, 'baseline,c128-launch=skip-empty');
INSERT INTO _operator VALUES (1, 'save_partial_states'), (2, 'compress_norm_rope_store');
INSERT INTO _shape (shape_id, operator_id, launches, skipped, could_skip) VALUES
  (1, 1, 1, 0, 0), (1, 2, 1, 0, 0), (2, 1, 1, 0, 0), (2, 2, 0, 1, 0);
INSERT INTO step (step_id, request_count, token_count, decode_count, prefill_token_count,
  max_query_len, max_seq_len, preempted_count) VALUES
  (824, 2, 9, 1, 8, 8, 300, 0), (825, 2, 2, 2, 0, 1, 301, 0);
INSERT INTO _run_step VALUES
  (1, 0, 824, 0, 9, 1, NULL, NULL, NULL), (1, 0, 825, 2, 2, 1, NULL, NULL, NULL),
  (1, 1, 824, 0, 9, 2, NULL, NULL, NULL), (1, 1, 825, 2, 2, 2, NULL, NULL, NULL);
INSERT INTO _check VALUES (1, 1, 1, 2, 11, 0, 0, 0, 0), (1, 1, 2, 2, 11, 7, 4, 1, 0);
WITH RECURSIVE n(i) AS (SELECT 0 UNION ALL SELECT i + 1 FROM n WHERE i < 6)
INSERT INTO _hazard (run_id, policy_id, step_id, layer, operator_id, first_row, first_column, what)
SELECT 1, 1, 824 + i / 4, CASE WHEN i = 3 THEN NULL ELSE 2 END, 2, i, CASE WHEN i < 5 THEN 7 * i END,
  'stored entry differs from baseline' FROM n;
