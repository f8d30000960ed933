# SPDX-License-Identifier: Apache-2.0
# -o never takes the place of a tape, and stands what an earlier run of the same number left.
. "$SOURCE/tests/cli/lib.sh"
replay_tiny
cp tiny.tape tape.before
cp tiny.runs.tape runs.before
refuses 2 tiny.tape steptape query tiny.tape 'SELECT 1' -o tiny.tape
refuses 2 tiny.runs.tape steptape report tiny.runs.tape --format=csv -o tiny.runs.tape
cmp tiny.tape tape.before
cmp tiny.runs.tape runs.before
echo old >text
steptape query tiny.tape 'SELECT 7 AS seven' --format=csv -o text
grep -qx 7 text

mkdir left
sh -c 'echo >left/q.csv.$$-0.part; exec steptape query tiny.tape "SELECT 7" --format=csv -o left/q.csv'
sh -c 'echo >left/x.tape.tmp-$$-0; exec steptape -q import "$DATA/tiny.jsonl" -o left/x.tape'
sh -c 'echo >left/r.tape.tmp-$$-0; exec steptape -q replay tiny.tape --backend sim -o left/r.tape' >out
for f in left/q.csv left/x.tape left/r.tape; do
    [ -s $f ] || fail "$f is missing"
done
[ "$(find left -type f | wc -l)" -eq 6 ] || fail "in left: $(ls left)"
