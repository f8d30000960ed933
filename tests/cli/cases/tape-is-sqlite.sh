# SPDX-License-Identifier: Apache-2.0
# Who has no steptape can still count: the stock sqlite3 program reads tapes and results.
. "$SOURCE/tests/cli/lib.sh"
needs sqlite3
replay_tiny
[ "$(sqlite3 tiny.tape 'PRAGMA journal_mode')" = delete ] || fail "left in WAL mode"
[ "$(sqlite3 tiny.tape 'SELECT count(*) FROM step')" = 20 ]
[ "$(sqlite3 tiny.tape 'SELECT sum(token_count) FROM step')" -gt 0 ]
[ "$(sqlite3 tiny.tape 'SELECT count(*) FROM kv_group')" -ge 3 ]
[ "$(sqlite3 tiny.tape 'SELECT graph_mode IS NULL FROM step WHERE step_id = 9')" = 1 ]
[ "$(sqlite3 tiny.tape 'SELECT start_ns IS NULL FROM step WHERE step_id = 9')" = 1 ]
[ "$(sqlite3 tiny.tape 'SELECT count(*) FROM operation')" = 1 ]
for table in tape kv_group step run run_step run_sample launch_count hazard operation; do
    sqlite3 tiny.runs.tape "SELECT count(*) FROM $table" >/dev/null || fail "no $table"
done
[ "$(sqlite3 tiny.runs.tape 'SELECT count(DISTINCT policy) FROM run_step')" = 2 ]
