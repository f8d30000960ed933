# SPDX-License-Identifier: Apache-2.0
. "$SOURCE/tests/cli/lib.sh"
tiny
steptape replay --policy list >list
grep -q 'c128-launch' list
grep -q 'skip-empty' list
grep -q 'baseline' list
grep -q 'upstream' list
# A preset with a change is written as given.
steptape -q replay tiny.tape --backend sim --policy baseline \
    --policy baseline,c128-launch=skip-empty -o x.tape >/dev/null
got=$(steptape query x.tape --format=csv \
    "SELECT DISTINCT policy FROM run_step ORDER BY policy" | tail -n +2 | tr -d '"' | tr '\n' ' ')
[ "$got" = "baseline baseline,c128-launch=skip-empty " ] || fail "policies: $got"
