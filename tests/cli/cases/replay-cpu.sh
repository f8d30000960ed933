# SPDX-License-Identifier: Apache-2.0
# The references run every launch that the plan has; both policies give the same outputs.  As the
# changes were first merged they do not: lists of a library's sort begin at the wrong column.
. "$SOURCE/tests/cli/lib.sh"
tiny
steptape -q replay tiny.tape --backend cpu --graph-mode eager --buffers 1 \
    --policy baseline --policy corrected -o x.tape >/dev/null
got=$(steptape query x.tape "SELECT count(*) FROM hazard" --format=csv | tail -n +2)
[ "$got" = 0 ] || fail "$got hazards"
got=$(steptape query x.tape --format=csv "SELECT sum(skipped) FROM launch_count
    WHERE policy = 'corrected' AND operator = 'compress_pool'" | tail -n +2)
[ "$got" = 24 ] || fail "$got skipped, 24 expected"
status=0
steptape -q replay tiny.tape --backend cpu --graph-mode eager --policy baseline --policy upstream \
    --steps 2..2 -o y.tape >/dev/null 2>err || status=$?
[ "$status" -eq 3 ] || fail "hazards: exit $status, 3 expected"
grep -q 'hazards: outputs differ' err
got=$(steptape query y.tape --format=csv \
    "SELECT DISTINCT operator FROM hazard ORDER BY 1" | tail -n +2 | tr -d '"' | tr '\n' ' ')
[ "$got" = "combine_topk_swa_indices sparse_mla_prefill topk_per_row " ] || fail "hazards in: $got"
steptape -q replay tiny.tape --backend cpu --graph-mode eager --policy baseline --policy upstream \
    --steps 2..2 --allow-hazards -o y.tape >/dev/null 2>&1
