-- SPDX-License-Identifier: Apache-2.0
-- What the run is: one row.  :run is its number.
SELECT
  r.run_id, r.backend, r.device, r.model, r.graph_mode, r.passes,
  r.simulated, r.sim_error, r.error_note, r.layers, r.layer_buffers,
  r.noise_floor_ns, r.options, r.kernel_module_hash,
  r.tool_version, r.commit_id,
  strftime('%Y-%m-%dT%H:%M:%SZ', r.created_unix, 'unixepoch') AS created,
  -- What the run says of its steps and passes.
  json_extract(r.options, '$.steps_above_largest_capture') AS steps_above_largest_capture,
  json_extract(r.options, '$.steps_mode_unknown') AS steps_mode_unknown,
  json_extract(r.options, '$.steps_without_cpu_starts') AS steps_without_cpu_starts,
  json_extract(r.options, '$.verify_steps') AS verify_steps,
  json_extract(r.options, '$.hazards_not_stored') AS hazards_not_stored,
  json_extract(r.options, '$.profiler_records_dropped') AS profiler_records_dropped,
  (SELECT group_concat(value, ', ') FROM json_each(r.options, '$.allocated_groups'))
    AS allocated_groups,
  r.tape_hash, (SELECT tape_file FROM _result) AS tape_file,
  -- Each replay adds a run and a row of `operation`.
  (SELECT (SELECT group_concat(
             CASE WHEN value GLOB '*[^-a-zA-Z0-9_./,:=+@]*' AND key > 0
               THEN quote(value) ELSE value END, ' ')
           FROM json_each(o.argv))
   FROM operation AS o
   WHERE json_extract(o.argv, '$[0]') GLOB '*replay'
   ORDER BY o.operation_id
   LIMIT 1 OFFSET (SELECT count(*) FROM run WHERE run_id < :run)) AS command,
  (SELECT count(DISTINCT step_id) FROM run_step WHERE run_id = :run) AS steps,
  (SELECT min(step_id) FROM run_step WHERE run_id = :run) AS first_step,
  (SELECT max(step_id) FROM run_step WHERE run_id = :run) AS last_step,
  (SELECT sum(token_count) FROM step WHERE step_id IN
    (SELECT step_id FROM run_step WHERE run_id = :run)) AS tokens,
  (SELECT count(*) FROM hazard WHERE run_id = :run) AS hazards,
  (SELECT count(*) FROM run_check WHERE run_id = :run) AS checks
FROM run AS r
WHERE r.run_id = :run;
