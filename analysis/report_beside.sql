-- SPDX-License-Identifier: Apache-2.0
-- The plan beside what was recorded: launches a step of every operator that the plan makes or that the
-- engine's kernels were found to do, by graph mode.  They need not be as many: an engine may split
-- an operator into several kernels, or join several.
WITH counted AS (
  SELECT
    s.graph_mode, c.operator, p.policy_id, p.name AS policy,
    sum(c.launches) AS launches, count(DISTINCT c.step_id) AS steps
  FROM launch_count AS c
  JOIN _policy AS p ON p.run_id = c.run_id AND p.name = c.policy
  JOIN run_step AS s ON s.run_id = c.run_id AND s.policy = 'recorded' AND s.step_id = c.step_id
  WHERE c.run_id = :run
  GROUP BY s.graph_mode, c.operator, p.policy_id
)
SELECT
  r.graph_mode, r.operator, r.steps,
  1.0 * r.launches / r.steps AS recorded_per_step,
  p.policy, 1.0 * p.launches / p.steps AS planned_per_step
FROM counted AS r
JOIN counted AS p ON p.graph_mode IS r.graph_mode AND p.operator = r.operator AND p.policy_id > 0
WHERE r.policy_id = 0
  AND (p.launches > 0
    OR (r.launches > 0 AND r.operator IN
      (SELECT operator FROM _family WHERE run_id = :run AND operator IS NOT NULL)))
ORDER BY
  CASE r.graph_mode WHEN 'FULL' THEN 0 WHEN 'PIECEWISE' THEN 1 WHEN 'NONE' THEN 2 ELSE 3 END,
  r.operator, p.policy_id;
