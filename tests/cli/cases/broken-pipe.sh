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

# Nobody reads stderr: the work goes on, and no half file is left.
tiny
(
    sleep 0.2 # until true is gone
    steptape replay tiny.tape --backend cpu --graph-mode tape --set max_capture_size=1 \
        --policy baseline --policy corrected -o quiet.tape >quiet.txt
    echo "done" >quiet.status
) 2>&1 | true
[ -s quiet.status ] || fail "stderr closed: it did not end well; left: $(ls -A)"
[ -s quiet.tape ] || fail "stderr closed: no result"
[ -z "$(find . -name '*.tmp-*')" ] || fail "left behind: $(ls -A)"
