-- SPDX-License-Identifier: Apache-2.0
-- Launches and kernel time of each operator under each policy that makes or leaves out any.
SELECT
  c.operator, c.policy,
  sum(c.launches) AS launches,
  sum(c.skipped) AS skipped,
  sum(c.could_skip) AS could_skip,
  sum(c.kernel_ns) AS kernel_ns,
  count(c.kernel_ns) AS kernel_steps,
  1.0 * sum(c.kernel_ns) / nullif(sum(c.launches) FILTER (WHERE c.kernel_ns IS NOT NULL), 0)
    AS kernel_ns_per_launch
FROM launch_count AS c
JOIN _policy AS p ON p.run_id = c.run_id AND p.name = c.policy
JOIN _operator AS o ON o.name = c.operator
WHERE c.run_id = :run
GROUP BY o.operator_id, p.policy_id
HAVING sum(c.launches) + sum(c.skipped) + sum(c.could_skip) > 0
ORDER BY o.operator_id, p.policy_id;
