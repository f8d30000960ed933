# SPDX-License-Identifier: Apache-2.0
# A copy that does not say whose it is: planted words are gone, it replays alike, and the list on
# stdout is what the copy holds.
. "$SOURCE/tests/cli/lib.sh"
needs sqlite3
python3 - "$DATA/tiny.jsonl" >planted.jsonl <<'END'
import json, sys
lines = [json.loads(line) for line in open(sys.argv[1])]
lines[0].update(engine_version="0.26.1.dev7+acme", model="/home/acme/secret", scale="acme's",
                speculative={"method": "eagle3", "model": "acme/draft", "num_speculative_tokens": 2})
def renumber(step, f):
    for key in ("req", "new", "finished", "preempted", "resumed", "replace"):
        if key in step:
            step[key] = [f(r) for r in step[key]]
for step in lines[1:]:
    renumber(step, lambda r: 7000000 - 31 * r)
for line in lines:
    print(json.dumps(line))
END
mkdir acme
mv planted.jsonl acme/secret.jsonl
steptape -q import acme/secret.jsonl -o acme/secret.tape
steptape anonymize acme/secret.tape -o share.tape >list 2>err
grep -aq acme acme/secret.tape || fail "nothing was planted"
grep -aq -e acme -e secret share.tape && fail "a planted word is in the copy"
grep -q '^steptape: share.tape: .* left out: 1 rows of history' err || fail "not said: $(cat err)"
steptape verify share.tape >/dev/null

# The same facts, with numbers from 0 in the order in which requests appear.
steptape dump acme/secret.tape >before.jsonl
steptape dump share.tape >after.jsonl
python3 - before.jsonl after.jsonl <<'END'
import json, sys
before, after = ([json.loads(line) for line in open(f)] for f in sys.argv[1:])
number = {}
first = min(s["t_ns"] for s in before[1:] if s["t_ns"] is not None)
for step in before[1:]:
    for key in ("finished", "preempted", "resumed", "new", "replace", "req"):
        if key in step:
            step[key] = [number.setdefault(r, len(number)) for r in step[key]]
    if step["t_ns"] is not None:
        step["t_ns"] -= first
    step.pop("check", None)
header = before[0]
header.update(engine_version="0.26.1", model=None, clock=None,
              speculative={"method": "eagle3", "num_speculative_tokens": 2})
assert after[0].pop("scale"), "that it was scaled stays"
header.pop("scale")
for a, b in zip(before, after):
    if b.get("clock") == {"monotonic_ns": None, "realtime_ns": None}:
        b["clock"] = None
    assert a == b, f"{a}\n{b}"
assert len(before) == len(after) and len(number) > 1
END

# It replays alike.
for tape in acme/secret share; do
    steptape -q replay $tape.tape --backend sim --policy baseline --policy upstream \
        -o "$(basename $tape).runs.tape" >/dev/null
    steptape query "$(basename $tape).runs.tape" "SELECT policy, step_id, graph_mode, step_ns,
        kernel_ns, launches, could_skip FROM run_step ORDER BY policy, step_id" >"$(basename $tape).rows"
done
cmp secret.rows share.rows || fail "the copy replays otherwise"
[ "$(wc -l <share.rows)" -gt 4 ] || fail "no rows"

# The list: every column of the copy, and what is empty.
sqlite3 share.tape "SELECT t.name || '.' || x.name FROM sqlite_schema AS t, pragma_table_info(t.name)
    AS x WHERE t.type = 'table'" >columns
while read -r column; do
    grep -q -e "^$column " -e "[ ,]$column\(,\|$\)" list || fail "the list lacks $column"
done <columns
grep -q '^empty: .*tape.model' list || fail "the model is not said to be gone"
steptape -q anonymize acme/secret.tape -o share.tape --format=json >list.json
python3 - list.json <<'END'
import json, sys
rows = json.load(open(sys.argv[1]))
by = {(r["table"], r["column"], r["part"]): r for r in rows}
assert by["tape", "model", None]["values"] == 0 and by["tape", "model", None]["least"] is None
assert by["step", "step_id", None]["least"] == 0
assert by["step_block", "facts", "request numbers"]["least"] == 0
assert by["tape", "engine", None]["greatest"] == "vllm"
assert {r["tells"] for r in rows if r["values"]} <= {"nothing", "model", "setup", "traffic"}
END

# What is kept on request is said to be.
steptape -q anonymize --keep-model --keep-times --keep-check acme/secret.tape -o kept.tape >list
grep -q '^tape.model .*/home/acme/secret *kept *identity' list || fail "model: $(grep model list)"
grep -q '^tape.clock_realtime_ns .* kept *identity' list || fail "clock: $(grep clock list)"
steptape dump kept.tape | grep -q '"check":' || fail "no check objects"
steptape dump kept.tape | grep -q '"t_ns":1000,' || fail "starts were changed"

# A copy of a copy is the same.
steptape -q anonymize share.tape -o again.tape >/dev/null
steptape dump again.tape >again.jsonl
sed -i 's/"scale":"[^"]*"/"scale":null/' after.jsonl again.jsonl
cmp after.jsonl again.jsonl

# A tape of the first version.
steptape -q anonymize "$SOURCE/traces/samples/azure-code.tape" -o old.tape >/dev/null
steptape verify old.tape >/dev/null
grep -aq v4-flash6 old.tape && fail "the model's name is in the copy"

# What is refused leaves nothing behind.
mkdir empty
cd empty || exit
refuses 2 'is the tape itself' steptape anonymize ../share.tape -o ../share.tape
refuses 1 'a result tape' steptape anonymize ../share.runs.tape -o x.tape
refuses 1 'not a tape' steptape anonymize ../list -o x.tape
echo text >notes
refuses 2 'exists and is no tape' steptape anonymize ../share.tape -o notes
sqlite3 ../share.tape "CREATE TABLE mine(x); INSERT INTO mine VALUES(1)"
refuses 1 'mine holds what anonymize does not know' steptape anonymize ../share.tape -o x.tape
only notes
steptape -q anonymize --drop-unknown ../share.tape -o x.tape >/dev/null
for arguments in "" "a.tape" "a.tape -o -" "a.tape b.tape -o c.tape" "a.tape -o b.tape --format=csv"; do
    status=0
    # shellcheck disable=SC2086 # words
    steptape anonymize $arguments >out 2>err || status=$?
    [ "$status" -eq 2 ] || fail "'$arguments': exit $status"
done
