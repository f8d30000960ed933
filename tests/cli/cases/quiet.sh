# SPDX-License-Identifier: Apache-2.0
# -q leaves only errors on stderr; data is the same.
. "$SOURCE/tests/cli/lib.sh"
steptape -q import "$DATA/tiny.jsonl" -o tiny.tape 2>err
[ ! -s err ] || fail "talks: $(cat err)"
steptape -q replay tiny.tape --backend sim --policy baseline --policy upstream >table 2>err
[ ! -s err ] || fail "talks: $(cat err)"
[ -s table ]
