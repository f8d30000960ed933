-- SPDX-License-Identifier: Apache-2.0
-- What the recorded engine launched, by graph mode and family of kernels, and what each family takes
-- of the kernel time and of the step time.  Only runs of backend `engine` have families.
SELECT
  CASE f.mode WHEN 0 THEN 'NONE' WHEN 1 THEN 'PIECEWISE' WHEN 2 THEN 'FULL' END AS graph_mode,
  f.family, f.operator, f.steps, f.launches,
  1.0 * f.launches / nullif(f.steps, 0) AS launches_per_step,
  f.untimed, f.kernel_ns,
  1.0 * f.kernel_ns / nullif(f.launches - f.untimed, 0) AS kernel_ns_per_launch,
  1.0 * f.kernel_ns / nullif(total(f.kernel_ns) OVER (PARTITION BY f.mode), 0) AS kernel_share,
  1.0 * f.kernel_ns / nullif(f.step_ns, 0) AS step_share,
  -- Of all families of that mode.
  1.0 * sum(f.launches) OVER (PARTITION BY f.mode) / nullif(f.steps, 0) AS all_launches_per_step
FROM _family AS f
WHERE f.run_id = :run
ORDER BY f.mode DESC, f.kernel_ns DESC, f.family, f.operator;
