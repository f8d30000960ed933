# SPDX-License-Identifier: Apache-2.0
# The small recording of docs/interchange.md is one: it imports, comes out again and is replayed.
. "$SOURCE/tests/cli/lib.sh"
sed -n '/^## A small recording/,/^## Rules/p' "$SOURCE/docs/interchange.md" | grep '^{' >steps.jsonl
steptape -q import steps.jsonl -o x.tape
steptape verify x.tape >/dev/null
steptape dump x.tape | sed '1d' | grep -c '"step"' | grep -qx 3 || fail "three steps went in"
steptape -q replay x.tape --backend sim --graph-mode tape >out 2>err || fail "replay: exit $?"
[ ! -s err ] || fail "replay warns: $(cat err)"
grep -Eq 'compress_pool +baseline +2 +0 ' out || fail "one c128 layer in two steps: $(cat out)"
grep -Eq ' upstream +1 +1 +1 ' out || fail "of two steps without a boundary one is a FULL graph"
