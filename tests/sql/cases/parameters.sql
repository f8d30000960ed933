-- SPDX-License-Identifier: Apache-2.0
-- @steps tiny.jsonl
-- @param step=4
-- @param least=1
SELECT row, request_id FROM request_step WHERE step_id = :step AND row >= :least;
