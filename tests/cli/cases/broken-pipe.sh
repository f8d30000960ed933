# SPDX-License-Identifier: Apache-2.0
# A reader that goes away ends the program without a word.
. "$SOURCE/tests/cli/lib.sh"
tiny
{
    status=0
    for _ in 1 2 3 4 5 6 7 8; do
        steptape dump tiny.tape || status=$?
    done 2>err
    echo "$status" >status
} | head -n 1 >/dev/null
[ ! -s err ] || fail "talks: $(cat err)"
case $(cat status) in
0 | 141) ;;
*) fail "exit $(cat status)" ;;
esac
