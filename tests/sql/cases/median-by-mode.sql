-- SPDX-License-Identifier: Apache-2.0
-- @steps tiny.jsonl
SELECT
  coalesce(s.graph_mode, 'unknown') AS mode, count(*) AS rows,
  median(r.query_len) AS median, percentile(r.query_len, 90) AS p90
FROM step AS s JOIN request_step AS r USING (step_id)
GROUP BY 1
ORDER BY 1;
