# SPDX-License-Identifier: Apache-2.0
. "$SOURCE/tests/cli/lib.sh"
tiny
sql="SELECT step_id, graph_mode, token_count FROM step WHERE step_id IN (0, 9) ORDER BY step_id"
steptape query tiny.tape "$sql" --format=csv >csv
printf 'step_id,graph_mode,token_count\n0,NONE,100\n9,,2\n' >want
tr -d '"\r' <csv | cmp - want
steptape query tiny.tape "$sql" --format=json >json
steptape query tiny.tape "$sql" --format=jsonl >jsonl
python3 - <<'END'
import json
want = [{"step_id": 0, "graph_mode": "NONE", "token_count": 100},
        {"step_id": 9, "graph_mode": None, "token_count": 2}]
assert json.load(open("json")) == want, open("json").read()
assert [json.loads(l) for l in open("jsonl")] == want, open("jsonl").read()
END
steptape query tiny.tape "$sql" >table
grep -q token_count table
# Nothing found is an empty array, and no row is an error.
steptape query tiny.tape "SELECT * FROM step WHERE step_id < 0" --format=json >json
python3 -c 'import json; assert json.load(open("json")) == []'
refuses 1 nonsense steptape query tiny.tape "SELECT nonsense FROM step"
cp tiny.tape before.tape
status=0
steptape query tiny.tape "DELETE FROM operation" >out 2>err || status=$?
[ "$status" -eq 1 ] || fail "a tape can be changed by query: exit $status"
cmp tiny.tape before.tape
