-- SPDX-License-Identifier: Apache-2.0
-- What each policy launched, and how long it took: one row a policy, in the order of the command
-- line.  A sum over steps of which some were not measured is not a total: *_steps counts them.
SELECT
  s.policy,
  count(*) AS steps,
  sum(t.token_count) AS tokens,
  sum(s.launches) AS launches,
  -- Launches that baseline makes and this policy does not.
  sum(s.skipped) AS skipped,
  -- Launches that the policy's rule allows to skip and that were made, and what prevented it.
  sum(s.could_skip) AS could_skip,
  sum(s.could_skip) FILTER (WHERE s.graph_mode = 'FULL') AS could_skip_full_graph,
  sum(s.could_skip) FILTER (WHERE s.graph_mode <> 'FULL') AS could_skip_no_cpu_starts,
  sum(s.kernel_ns) AS kernel_ns, count(s.kernel_ns) AS kernel_steps,
  sum(s.step_ns) AS step_ns, count(s.step_ns) AS step_steps,
  -- Host time of the rule at the batch size of each step.
  sum(s.predicate_ns) AS predicate_ns, count(s.predicate_ns) AS predicate_steps
FROM run_step AS s
JOIN step AS t USING (step_id)
JOIN _policy AS p ON p.run_id = s.run_id AND p.name = s.policy
WHERE s.run_id = :run
GROUP BY p.policy_id
ORDER BY p.policy_id;
