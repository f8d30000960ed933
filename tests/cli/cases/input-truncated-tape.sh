# SPDX-License-Identifier: Apache-2.0
. "$SOURCE/tests/cli/lib.sh"
tiny
size=$(wc -c <tiny.tape)
for part in 1 2 3; do
    head -c $((size * part / 4)) tiny.tape >cut.tape
    refuses 1 cut.tape steptape verify cut.tape
    status=0
    steptape dump cut.tape >out 2>err || status=$?
    [ "$status" -eq 1 ] || fail "dump of $part/4 of a tape: exit $status"
    rm -f out err
done
only tiny.tape cut.tape
