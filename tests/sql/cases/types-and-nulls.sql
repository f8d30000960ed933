-- SPDX-License-Identifier: Apache-2.0
-- @steps tiny.jsonl
SELECT
  NULL AS nil, 1 AS whole, 0.1 + 0.2 AS inexact, 1e100 AS big, 3.0 AS three,
  'a,"b"' AS quoted, 'two' || char(10) || 'lines' AS lines, ' edge ' AS edge;
