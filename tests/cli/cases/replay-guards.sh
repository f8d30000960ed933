# SPDX-License-Identifier: Apache-2.0
# Rows past a view of top-k: step 6 of the tiny tape verifies 2 drafts of one request and none of the other.
. "$SOURCE/tests/cli/lib.sh"
tiny
run() { # MODE STATUS ROWS OPTION...: exit status, and what the hazards are, one a line
    mode=$1 want=$2 status=0
    shift 2
    rm -f guard.tape
    steptape -q replay tiny.tape --backend cpu --pass verify --graph-mode "$mode" --steps 5..7 \
        --sample-rows 4 -o guard.tape "$@" >guard.txt || status=$?
    [ "$status" -eq "$want" ] || fail "exit $status, $want expected: $mode $*: $(cat guard.txt)"
    steptape query guard.tape --format=csv "SELECT policy, step_id, layer, operator, \"row\", what
        FROM hazard" | tail -n +2 >hazards
}
for mode in full-and-piecewise piecewise full eager tape; do
    run $mode 0 --poison --policy baseline --policy safe --policy baseline,topk-rows=padded \
        --policy safe,topk-rows=padded,topk-select=library-relative
    [ ! -s hazards ] || fail "$mode: $(cat hazards)"
done
for mode in full-and-piecewise piecewise eager tape; do
    run $mode 3 --poison --policy baseline --policy safe,topk-rows=unpadded
    [ "$(cat hazards)" = "\"safe,topk-rows=unpadded\",6,2,topk_per_row,4,\"written past the view of \
top-k indices: rows 4 to 5, 4096 bytes\"" ] || fail "$mode: $(cat hazards)"
done
# A graph has the rows of its capture; without poison there are no guards; a hazard can be allowed.
run full 0 --poison --policy baseline --policy baseline,topk-rows=unpadded
run eager 0 --policy baseline --policy baseline,topk-rows=unpadded
[ ! -s hazards ] || fail "$(cat hazards)"
run eager 0 --poison --allow-hazards --policy baseline,topk-rows=unpadded
[ "$(wc -l <hazards)" -eq 1 ] || fail "$(cat hazards)"
