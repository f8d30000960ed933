# SPDX-License-Identifier: Apache-2.0
# --steps A..B is inclusive and either end may be left out.  The header comes first.
. "$SOURCE/tests/cli/lib.sh"
tiny
steptape dump tiny.tape >all
steptape dump tiny.tape --steps 3..5 | tail -n +2 >got
sed -n '5,7p' all | cmp - got
steptape dump tiny.tape --steps ..1 | tail -n +2 >got
sed -n '2,3p' all | cmp - got
steptape dump tiny.tape --steps 18.. | tail -n +2 >got
tail -n 2 all | cmp - got
steptape dump tiny.tape --steps 7..7 | head -n 1 >got
head -n 1 all | cmp - got
