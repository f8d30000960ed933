-- SPDX-License-Identifier: Apache-2.0
-- The same by the graph mode that steps ran in: where the launches that stay come from.
WITH first AS (
  SELECT s.step_id, s.kernel_ns, s.step_ns
  FROM run_step AS s
  JOIN _policy AS p ON p.run_id = s.run_id AND p.name = s.policy AND p.policy_id = 0
  WHERE s.run_id = :run
)
SELECT
  s.graph_mode, s.policy,
  count(*) AS steps,
  sum(s.launches) AS launches,
  sum(s.skipped) AS skipped,
  sum(s.could_skip) AS could_skip,
  sum(s.kernel_ns) AS kernel_ns,
  sum(s.step_ns) AS step_ns,
  -- Against the first policy; its own row has none.
  CASE WHEN p.policy_id > 0 THEN sum(f.kernel_ns - s.kernel_ns) END AS saved_kernel_ns,
  CASE WHEN p.policy_id > 0 THEN sum(f.step_ns - s.step_ns) END AS saved_step_ns
FROM run_step AS s
JOIN _policy AS p ON p.run_id = s.run_id AND p.name = s.policy
JOIN first AS f USING (step_id)
WHERE s.run_id = :run
GROUP BY s.graph_mode, p.policy_id
ORDER BY CASE s.graph_mode WHEN 'NONE' THEN 0 WHEN 'PIECEWISE' THEN 1 ELSE 2 END, p.policy_id;
