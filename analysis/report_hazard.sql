-- SPDX-License-Identifier: Apache-2.0
-- Where a policy's outputs differ from the first one's: the first place of each step and operator.
SELECT h.policy, h.step_id, h.layer, h.operator, h.row, h.column, h.what
FROM hazard AS h
JOIN _policy AS p ON p.run_id = h.run_id AND p.name = h.policy
JOIN _operator AS o ON o.name = h.operator
WHERE h.run_id = :run
ORDER BY p.policy_id, h.step_id, h.layer, o.operator_id, h.row;
