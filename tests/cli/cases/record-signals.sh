# SPDX-License-Identifier: Apache-2.0
# A signal goes on to the engine, which closes its tape; kill -9 of both leaves what recover needs,
# and a recording that a live process holds is left alone.
. "$SOURCE/tests/cli/lib.sh"
engine=$BUILD/capture/fake_engine
[ -x "$engine" ] || skip "the engine for tests was not built"

wait_for() { # FILE: with a step in it
    for _ in $(seq 200); do
        [ -s "$1" ] && [ "$(od -An -td8 -N8 "$1" | tr -d ' ')" -gt 20 ] && return
        sleep 0.05
    done
    fail "the engine did not start"
}

steptape record -o x.tape -- "$engine" --steps 1000000 --sleep 500 --progress seen >out 2>err &
recorder=$!
wait_for seen
kill -TERM "$recorder"
status=0
wait "$recorder" || status=$?
[ "$status" -eq 0 ] || fail "exit $status: $(cat err)"
grep -q 'done, stopped' out || fail "the engine did not get the signal: $(cat out)"
steptape verify x.tape >verified

"$engine" --steps 1000000 --sleep 500 --progress seen2 y.tape >out 2>&1 &
engine_pid=$!
wait_for seen2
refuses 1 "process $engine_pid" steptape recover y.tape
"$engine" --steps 5 y.tape >out2 2>err2
grep -q "not recording: .*/y.tape: process $engine_pid records it already" err2 || fail "$(cat err2)"
grep -q 'engine: done' out2 || fail "the second engine did not go on: $(cat out2)"
kill -9 "$engine_pid"
wait "$engine_pid" || true
steptape recover y.tape >out3
grep -q '^y.tape: [0-9]* steps' out3 || fail "$(cat out3)"
steptape verify y.tape >verified

# A worker that the engine forked outlives it, with the lock: the engine is gone all the same.
"$engine" --steps 300 --no-close --fork z.tape >out
steptape recover z.tape >out3
grep -q '^z.tape: 300 steps' out3 || fail "$(cat out3)"

# Whoever ignores SIGCHLD has no children to wait for, and hands that on: the status is known still.
status=0
python3 -c 'import os, signal, sys
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
os.execvp(sys.argv[1], sys.argv[1:])' steptape -q record -o w.tape -- "$engine" --steps 3 --exit 5 \
    >out || status=$?
[ "$status" -eq 5 ] || fail "SIGCHLD ignored: exit $status"
