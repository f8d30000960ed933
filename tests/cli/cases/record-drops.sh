# SPDX-License-Identifier: Apache-2.0
# A ring that is too small for an engine in a hurry: the tape says what is missing and where, and
# its dump can be imported again.
. "$SOURCE/tests/cli/lib.sh"
engine=$BUILD/capture/fake_engine
[ -x "$engine" ] || skip "the engine for tests was not built"
"$engine" --steps 60000 --requests 200 --ring 1048576 x.tape >out
steptape verify x.tape >verified
steptape info x.tape --format=json >info
dropped=$(python3 -c "
import json
d = json.load(open('info'))
assert d['recorder']['offered'] == 60000, d['recorder']
assert d['recorder']['dropped'] == sum(g['dropped'] for g in d['gaps']), d['gaps']
assert d['steps']['count'] == 60000 - d['recorder']['dropped'], d['steps']
print(d['recorder']['dropped'])")
[ "$dropped" -gt 0 ] || skip "this machine writes as fast as the engine runs"
steptape info x.tape | grep -q '^gaps ' || fail "info does not show gaps"
steptape dump x.tape -o x.jsonl
grep -q '"dropped":[1-9]' x.jsonl || fail "dump does not show gaps"
steptape -q import x.jsonl -o y.tape
steptape dump y.tape | cmp - x.jsonl
steptape verify y.tape >verified
