# SPDX-License-Identifier: Apache-2.0
# Writes beyond a limit fail as on a full disk (EFBIG for ENOSPC), for root as for anybody.
. "$SOURCE/tests/cli/lib.sh"
tiny
mkdir out
limited() {
    (
        trap '' XFSZ
        ulimit -f 8 # blocks of 512 or 1,024 bytes: less than any tape
        exec "$@"
    )
}
status=0
limited steptape import "$DATA/tiny.jsonl" -o out/x.tape 2>err || status=$?
[ "$status" -eq 1 ] || fail "import: exit $status"
[ "$(wc -l <err)" -eq 1 ] || fail "import: $(cat err)"
[ -z "$(ls -A out)" ] || fail "import left $(ls -A out)"
status=0
limited steptape replay tiny.tape --backend sim --graph-mode eager --policy baseline -o out/x.tape >/dev/null 2>err ||
    status=$?
[ "$status" -eq 1 ] || fail "replay: exit $status"
[ "$(wc -l <err)" -eq 1 ] || fail "replay: $(cat err)"
[ -z "$(ls -A out)" ] || fail "replay left $(ls -A out)"
status=0
steptape dump tiny.tape >/dev/full 2>err || status=$?
[ "$status" -eq 1 ] || fail "dump to a full disk: exit $status"
[ "$(wc -l <err)" -eq 1 ] || fail "dump to a full disk: $(cat err)"
