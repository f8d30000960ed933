# SPDX-License-Identifier: Apache-2.0
# The references run every launch that the plan has; both policies give the same outputs.
. "$SOURCE/tests/cli/lib.sh"
tiny
steptape -q replay tiny.tape --backend cpu --graph-mode eager --policy baseline --policy upstream \
    -o x.tape >/dev/null
got=$(steptape query x.tape "SELECT count(*) FROM hazard" --format=csv | tail -n +2)
[ "$got" = 0 ] || fail "$got hazards"
got=$(steptape query x.tape --format=csv "SELECT sum(skipped) FROM launch_count
    WHERE policy = 'upstream' AND operator = 'compress_pool'" | tail -n +2)
[ "$got" = 24 ] || fail "$got skipped, 24 expected"
