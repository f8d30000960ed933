# SPDX-License-Identifier: Apache-2.0
# A disk that is really full: a tiny tmpfs, where one may mount.
. "$SOURCE/tests/cli/lib.sh"
tiny
mkdir disk
unshare -m true 2>/dev/null || skip "may not mount here"
unshare -m sh -eu -c '
    mount -t tmpfs -o size=16k tmpfs disk 2>/dev/null || exit 77
    status=0
    steptape import "$DATA/tiny.jsonl" -o disk/x.tape 2>err || status=$?
    [ "$status" -eq 1 ] && [ "$(wc -l <err)" -eq 1 ] && [ -z "$(ls -A disk)" ] || {
        echo "import: exit $status, $(cat err), left $(ls -A disk)" >&2
        exit 1
    }
    status=0
    steptape replay tiny.tape --backend sim --graph-mode eager --policy baseline -o disk/x.tape >out 2>err || status=$?
    [ "$status" -eq 1 ] && [ "$(wc -l <err)" -eq 1 ] && [ -z "$(ls -A disk)" ] || {
        echo "replay: exit $status, $(cat err), left $(ls -A disk)" >&2
        exit 1
    }
'
