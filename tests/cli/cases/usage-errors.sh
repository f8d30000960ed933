# SPDX-License-Identifier: Apache-2.0
# The command line is wrong: exit 2, nothing on stdout, nothing written.
. "$SOURCE/tests/cli/lib.sh"
wrong() {
    status=0
    "$@" >out 2>err || status=$?
    [ "$status" -eq 2 ] || fail "exit $status, 2 expected: $*: $(cat err)"
    [ ! -s out ] || fail "output in spite of a wrong command line: $*"
    [ -s err ] || fail "no word: $*"
    rm -f out err
}
for command in $COMMANDS; do
    wrong steptape "$command" --no-such-option
    wrong steptape "$command" a b c d e
done
for command in import dump info verify replay report query bench; do
    wrong steptape "$command"
done
tiny
wrong steptape import "$DATA/tiny.jsonl"
wrong steptape dump tiny.tape --steps 5..3
wrong steptape dump tiny.tape --steps x..y
wrong steptape replay tiny.tape --backend abacus
wrong steptape replay tiny.tape --backend sim --policy no-such-policy
wrong steptape replay tiny.tape --backend sim --policy baseline,no-such-switch=1
wrong steptape replay tiny.tape --backend sim --policy baseline,c128-launch=sometimes
wrong steptape replay tiny.tape --backend sim --policy baseline --graph-mode half
wrong steptape replay tiny.tape --backend sim --policy baseline --pass guess
wrong steptape replay tiny.tape --backend sim --policy baseline --shard 3/2
wrong steptape query tiny.tape "SELECT 1" --format=runes
only tiny.tape
refuses 1 './nofile.profile: it cannot be read' \
    steptape replay "$SOURCE/traces/samples/azure-code.tape" --backend sim --graph-mode eager \
    --device ./nofile.profile
