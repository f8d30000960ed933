# SPDX-License-Identifier: Apache-2.0
# An engine is recorded: its output and status go through, the tape is whole, and it says what the
# recorder dropped and cost.  An engine that is killed leaves its tape as well.
. "$SOURCE/tests/cli/lib.sh"
engine=$BUILD/capture/fake_engine
[ -x "$engine" ] || skip "the engine for tests was not built"

steptape record -o x.tape -- "$engine" --steps 400 >out 2>err
[ "$(cat out)" = "engine: done" ] || fail "the engine's output: $(cat out)"
grep -q '^steptape: x.tape: 400 steps$' err || fail "no summary: $(cat err)"
grep -q 'recording cost a step' err || fail "no cost: $(cat err)"
steptape verify x.tape | grep -q '400 steps' || fail "not whole"
only x.tape out err

status=0
steptape record -o y.tape -- "$engine" --steps 400 --abort-at 333 >out 2>err || status=$?
[ "$status" -eq 137 ] || fail "killed engine: exit $status"
grep -q 'y.tape: 333 steps' err || fail "no summary: $(cat err)"
grep -q 'the engine ended without closing it, no step was cut off' err || fail "not said: $(cat err)"
steptape verify y.tape >verified
steptape replay y.tape --backend cpu --model deepseek-v4-tiny --policy baseline --steps 100..102 \
    -o y.runs.tape >replayed 2>&1 || fail "a recovered tape does not replay: $(cat replayed)"

# Asked for launches, and there is no driver to tell of them.
steptape record -o n.tape --launches=node -- "$engine" --steps 4 >out 2>err
grep -q 'n.tape: no launches' err || fail "nothing of launches: $(cat err)"
steptape record -o off.tape --launches=off -- "$engine" --steps 4 >out 2>err
! grep launches err || fail "launches were not asked for"

# The status of an engine that closes and fails.
status=0
steptape -q record -o z.tape -- "$engine" --steps 10 --exit 5 >out || status=$?
[ "$status" -eq 5 ] || fail "exit $status, 5 expected"

# A name that is taken is not written over, and the engine is told.
before=$(cksum <x.tape)
steptape record -o x.tape -- "$engine" --steps 7 >out 2>err
[ "$before" = "$(cksum <x.tape)" ] || fail "x.tape was written over"
grep -q 'x.2.tape: 7 steps' err || fail "no second tape: $(cat err)"
[ ! -e x.tape.recording ] || fail "the folder is left behind"
