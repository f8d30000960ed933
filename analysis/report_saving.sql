-- SPDX-License-Identifier: Apache-2.0
-- What each policy saves against the first one: one row a policy, measure (kernel, step) and subset
-- of the steps: all, skipping (this policy left launches out) and other.  What the others show is
-- no saving but noise, or a cost.
-- Differences are paired: first policy minus this one, in each step that both have.
--   pairs             steps with both
--   saved_ns          sum of the differences
--   saved_error_ns    half width of the 95 % interval of that sum, from the repetitions of each
--                     step; NULL: nothing was repeated (a simulated run has no noise)
--   median, p25, p75  of the differences
--   low, high         95 % interval of the median, by the sign test; NULL below 6 pairs
WITH first AS (
  SELECT name FROM _policy WHERE run_id = :run AND policy_id = 0
),
measured AS (
  SELECT 'kernel' AS measure, policy, step_id, kernel_ns AS ns, skipped
  FROM run_step WHERE run_id = :run AND kernel_ns IS NOT NULL
  UNION ALL
  SELECT 'step', policy, step_id, step_ns, skipped
  FROM run_step WHERE run_id = :run AND step_ns IS NOT NULL
),
paired AS (
  SELECT
    b.policy, b.measure, b.step_id,
    CASE WHEN b.skipped > 0 THEN 'skipping' ELSE 'other' END AS subset,
    a.ns AS first_ns, b.ns AS policy_ns, a.ns - b.ns AS saved_ns
  FROM measured AS b
  JOIN measured AS a ON a.policy = (SELECT name FROM first)
    AND a.measure = b.measure AND a.step_id = b.step_id
  WHERE b.policy <> (SELECT name FROM first)
),
pair AS (
  SELECT policy, measure, step_id, 'all' AS subset, first_ns, policy_ns, saved_ns FROM paired
  UNION ALL
  SELECT policy, measure, step_id, subset, first_ns, policy_ns, saved_ns FROM paired
),
-- Repetition r of both policies ran side by side.
repeated AS (
  SELECT
    b.policy, CASE b.pass WHEN 'count' THEN 'kernel' ELSE 'step' END AS measure,
    b.step_id, count(*) AS n,
    avg(1.0 * (a.step_ns - b.step_ns) * (a.step_ns - b.step_ns))
      - avg(a.step_ns - b.step_ns) * avg(a.step_ns - b.step_ns) AS variance
  FROM run_sample AS b
  JOIN run_sample AS a ON a.run_id = b.run_id AND a.policy = (SELECT name FROM first)
    AND a.step_id = b.step_id AND a.pass = b.pass AND a.repetition = b.repetition
  WHERE b.run_id = :run AND b.policy <> (SELECT name FROM first)
  GROUP BY b.policy, b.pass, b.step_id
  HAVING count(*) > 1
),
error AS (
  SELECT
    p.policy, p.measure, p.subset, count(*) AS steps,
    1.96 * sqrt(sum(max(r.variance, 0) / (r.n - 1))) AS error_ns
  FROM pair AS p JOIN repeated AS r USING (policy, measure, step_id)
  GROUP BY p.policy, p.measure, p.subset
),
summary AS (
  SELECT
    policy, measure, subset, count(*) AS pairs,
    sum(first_ns) AS first_ns, sum(policy_ns) AS policy_ns, sum(saved_ns) AS saved_ns,
    median(saved_ns) AS median_ns,
    percentile(saved_ns, 25) AS p25_ns, percentile(saved_ns, 75) AS p75_ns
  FROM pair
  GROUP BY policy, measure, subset
),
-- Ranks of the interval's ends: half of the pairs, less or more 1.96 standard deviations of a coin
-- thrown for each.
ranked AS (
  SELECT
    p.policy, p.measure, p.subset, p.saved_ns,
    row_number() OVER (PARTITION BY p.policy, p.measure, p.subset ORDER BY p.saved_ns) AS rank,
    count(*) OVER (PARTITION BY p.policy, p.measure, p.subset) AS n
  FROM pair AS p
),
interval AS (
  SELECT
    policy, measure, subset,
    min(saved_ns) FILTER (WHERE rank >= max(1, floor(n / 2.0 - 0.98 * sqrt(n)))) AS low_ns,
    max(saved_ns) FILTER (WHERE rank <= min(n, ceil(n / 2.0 + 0.98 * sqrt(n)) + 1)) AS high_ns
  FROM ranked
  WHERE n >= 6
  GROUP BY policy, measure, subset
)
SELECT
  s.policy, (SELECT name FROM first) AS against, s.measure, s.subset, s.pairs,
  s.first_ns, s.policy_ns, s.saved_ns,
  CASE WHEN e.steps = s.pairs THEN e.error_ns END AS saved_error_ns,
  1.0 * s.saved_ns / nullif(s.first_ns, 0) AS saved_share,
  s.median_ns, s.p25_ns, s.p75_ns, i.low_ns, i.high_ns
FROM summary AS s
JOIN _policy AS p ON p.run_id = :run AND p.name = s.policy
LEFT JOIN error AS e USING (policy, measure, subset)
LEFT JOIN interval AS i USING (policy, measure, subset)
ORDER BY
  p.policy_id, s.measure,
  CASE s.subset WHEN 'all' THEN 0 WHEN 'skipping' THEN 1 ELSE 2 END;
