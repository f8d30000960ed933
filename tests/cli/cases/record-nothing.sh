# SPDX-License-Identifier: Apache-2.0
# A command that records nothing, one that is not there, and wrong command lines.
. "$SOURCE/tests/cli/lib.sh"
refuses 1 'steptape doctor' steptape record -o x.tape -- true
refuses 127 'no-such-engine' steptape record -o x.tape -- no-such-engine
refuses 1 'nowhere' steptape record -o nowhere/x.tape -- true
refuses 2 'too long' steptape record -o "$(printf '%0240d' 0).tape" -- touch ran
refuses 1 'no recording to recover' steptape recover x.tape
[ -z "$(ls -A)" ] || fail "left behind: $(ls -A)"

# The plug-in was there, so doctor is no help.
if [ -x "$BUILD/capture/fake_engine" ]; then
    steptape record -o idle.tape -- "$BUILD/capture/fake_engine" --steps 0 >out 2>err && fail "exit 0"
    grep -q 'the engine ran no step' err || fail "$(cat err)"
    ! grep doctor err || fail "doctor is no help here"
    rm idle.tape out err
fi

usage() { # TEXT ARGUMENT...
    text=$1 status=0
    shift
    steptape record "$@" >out 2>err || status=$?
    [ "$status" -eq 2 ] || fail "record $*: exit $status"
    grep -qF -- "$text" err || fail "record $*: $(cat err)"
}
usage 'no tape given' -- true
usage 'no command given' -o x.tape
usage 'ends in .tape' -o x.db -- true
usage 'off, count, graph, node or full' -o x.tape --launches=all -- true
usage 'a percentage' -o x.tape --overhead-budget=much -- true
usage 'a percentage' -o x.tape --overhead-budget=1 -- true
usage '1M to 1G' -o x.tape --ring=12 -- true

# The command's own options are its own.
steptape record -o x.tape -- sh -c 'echo "$1"; exit 3' sh --launches=what >out 2>err && fail "exit 0"
[ "$(cat out)" = --launches=what ] || fail "$(cat out) $(cat err)"
grep -q 'sh: ended with exit status 3 and recorded nothing' err || fail "$(cat err)"
