-- SPDX-License-Identifier: Apache-2.0
-- A run of two policies on 100 steps: every fourth in a FULL graph, some without starts on the CPU,
-- 20 c128 layers; times with five repetitions; an older run beside it.
INSERT INTO tape (format_version, kind, model, source_hash)
VALUES (1, 'result', 'v4-flash-layout', '0123456789abcdef0123456789abcdef');
INSERT INTO _result VALUES (1, 'result', '0123456789abcdef0123456789abcdef', 'azure.tape');
INSERT INTO operation (tool, version, source_commit, argv, time) VALUES
  ('steptape', '0.1.0', NULL, '["steptape import","azure.jsonl","-o","azure.tape"]', 1),
  ('steptape', '0.1.0', '5c7d435c0ffe',
   '["steptape replay","azure.tape","--backend","cuda","--policy","baseline","--policy","upstream"]', 2);
INSERT INTO run (run_id, backend, device, model, graph_mode, passes, tool_version, commit_id, options,
  tape_hash, noise_floor_ns, simulated, layers, layer_buffers, created_unix) VALUES
  (1, 'cuda', 'NVIDIA H200', 'deepseek-v4-flash', 'tape', 'time,count,verify', '0.1.0', '5c7d435c0ffe',
   '{"repeat":5}', '0123456789abcdef0123456789abcdef', 412, 0, 20, 4, 1796000000);
INSERT INTO _policy VALUES (1, 0, 'baseline'), (1, 1, 'upstream');
INSERT INTO _operator VALUES (1, 'compressed_slot_mapping'), (2, 'save_partial_states'),
  (3, 'compress_pool'), (4, 'compress_norm_rope_store');
INSERT INTO _shape (shape_id, operator_id, launches, skipped, could_skip) VALUES
  (1, 1, 2, 0, 0), (1, 2, 20, 0, 0), (1, 3, 20, 0, 0), (1, 4, 20, 0, 0),
  (2, 1, 2, 0, 0), (2, 2, 20, 0, 0), (2, 3, 0, 20, 0), (2, 4, 0, 20, 0),
  (3, 1, 2, 0, 0), (3, 2, 20, 0, 0), (3, 3, 20, 0, 20), (3, 4, 20, 0, 20);
WITH RECURSIVE n(i) AS (SELECT 0 UNION ALL SELECT i + 1 FROM n WHERE i < 99)
INSERT INTO step SELECT i, i * 1000, 900, 10, 10 + i, 10, 0, 1, 5000,
  CASE WHEN i % 4 = 0 THEN 'FULL' ELSE 'NONE' END, NULL, NULL, 0 FROM n;
-- Steps 1, 2 mod 4 skip unless a boundary is crossed (every third step); 3 mod 4 has no CPU starts.
INSERT INTO _run_step
SELECT 1, 0, step_id, CASE WHEN step_id % 4 = 0 THEN 2 ELSE 0 END, token_count, 1,
  100000 + step_id * 100, 80000 + step_id * 90, NULL FROM step;
INSERT INTO _run_step
SELECT 1, 1, step_id, CASE WHEN step_id % 4 = 0 THEN 2 ELSE 0 END, token_count,
  CASE WHEN step_id % 4 IN (0, 3) THEN 3 WHEN step_id % 3 = 0 THEN 1 ELSE 2 END,
  100000 + step_id * 100
    - CASE WHEN step_id % 4 IN (0, 3) OR step_id % 3 = 0 THEN step_id % 5 - 2
      ELSE 44000 + 37 * step_id END,
  80000 + step_id * 90
    - CASE WHEN step_id % 4 IN (0, 3) OR step_id % 3 = 0 THEN 0 ELSE 40000 + 31 * step_id END,
  310.5 FROM step;
INSERT INTO _sample
SELECT 1, policy_id, step_id, 'time', r.value,
  step_ns + (step_id * 7 + r.value * 13 + policy_id * 5) % 100
FROM _run_step, json_each('[0,1,2,3,4]') AS r;
INSERT INTO _operator_time
SELECT s.run_id, s.policy_id, s.step_id, h.operator_id, h.launches * (1500 + 500 * h.operator_id)
FROM _run_step AS s JOIN _shape AS h USING (shape_id) WHERE h.launches > 0;
INSERT INTO _check VALUES (1, 1, 2, 100, 44000, 0, 640, 0, 0), (1, 1, 4, 100, 4400, 0, 64, 0, 3);
