# SPDX-License-Identifier: Apache-2.0
# The tape of a recorder: what it says of itself is reduced, its counts stay.
. "$SOURCE/tests/cli/lib.sh"
engine=$BUILD/capture/fake_engine
[ -x "$engine" ] || skip "the engine for tests was not built"
needs sqlite3
steptape -q record -o x.tape -- "$engine" --steps 300 >/dev/null
# A plug-in's words, as it may have said them.
sqlite3 x.tape "INSERT INTO recorder_note(sequence, key, value) VALUES(3, 'host', 'acme-17');
    UPDATE recorder SET lost_reason = '/home/acme: No space left'"
steptape -q anonymize x.tape -o y.tape >list
steptape verify y.tape >/dev/null
grep -aq -e acme -e '/home' y.tape && fail "a planted word is in the copy"
columns="sequence_count, dropped_count, torn_count, recovered, ring_bytes, byte_count, cost_sum_ns,
    cost_median_ns, cost_p999_ns, cost_max_ns"
for tape in x y; do
    sqlite3 $tape.tape "SELECT $columns, lost_reason IS NULL FROM recorder;
        SELECT recorder_cost_ns FROM tape" >$tape.facts
done
cmp x.facts y.facts || fail "the recorder's counts differ"
[ "$(sqlite3 y.tape 'SELECT count(*), min(start_ns) FROM step')" = '300|0' ] || fail "steps"
