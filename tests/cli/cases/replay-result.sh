# SPDX-License-Identifier: Apache-2.0
# A tape is evidence: replay does not touch it.  Runs are appended to the results of the same tape,
# and to no other's.
. "$SOURCE/tests/cli/lib.sh"
needs sqlite3
tiny
cp tiny.tape before.tape
steptape -q replay tiny.tape --backend sim --policy baseline --policy upstream >first
cmp tiny.tape before.tape
[ -s first ] || fail "replay prints no table"
only tiny.tape before.tape tiny.runs.tape first
steptape -q replay tiny.tape --backend sim --policy baseline --policy upstream >/dev/null
got=$(steptape query tiny.runs.tape "SELECT count(*) FROM run" --format=csv | tail -n +2)
[ "$got" = 2 ] || fail "$got runs, 2 expected"
steptape verify tiny.runs.tape >/dev/null
head -n 12 "$DATA/tiny.jsonl" >other.jsonl
steptape -q import other.jsonl -o other.tape
status=0
steptape -q replay other.tape --backend sim --policy baseline -o tiny.runs.tape >/dev/null 2>err ||
    status=$?
[ "$status" -eq 1 ] || fail "results of two tapes in one file: exit $status"
got=$(sqlite3 tiny.runs.tape "SELECT count(*) FROM run")
[ "$got" = 2 ] || fail "$got runs after a refused one"
