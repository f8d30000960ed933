-- SPDX-License-Identifier: Apache-2.0
-- What `--pass verify` compared: rows of outputs with the first policy's, and with the CPU
-- reference.
SELECT
  c.policy, c.operator, c.steps, c.rows, c.rows_differing,
  c.reference_rows, c.reference_differing, c.rounding_bytes
FROM run_check AS c
JOIN _policy AS p ON p.run_id = c.run_id AND p.name = c.policy
JOIN _operator AS o ON o.name = c.operator
WHERE c.run_id = :run
ORDER BY p.policy_id, o.operator_id;
