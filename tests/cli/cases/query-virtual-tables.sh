# SPDX-License-Identifier: Apache-2.0
# What the virtual tables give back against the engine's own arrays.
. "$SOURCE/tests/cli/lib.sh"
tiny
for t in request_step block_table slot_mapping; do
    steptape query tiny.tape "SELECT * FROM $t" --format=jsonl >$t.jsonl
done
python3 - <<'END'
import collections, json, os
steps = [json.loads(l) for l in open(os.environ["DATA"] + "/tiny.jsonl")][1:]
rows = lambda name: [json.loads(l) for l in open(name + ".jsonl")]
requests = [(r["step_id"], r["row"], r["request_id"], r["query_len"], r["num_computed_tokens"])
            for r in rows("request_step")]
want = [(s["step"], i, *x) for s in steps for i, x in enumerate(zip(s["req"], s["qlen"], s["start"]))]
assert requests == want, (requests[:5], want[:5])
blocks, slots = collections.defaultdict(list), collections.defaultdict(list)
for r in rows("block_table"):
    blocks[r["step_id"], r["group_id"], r["row"]].append((r["ordinal"], r["block_id"]))
for r in rows("slot_mapping"):
    slots[r["step_id"], r["group_id"]].append((r["token"], r["position"], r["slot"]))
seen = 0
for s in steps:
    check = s.get("check")
    if not check:
        continue
    for g, table in enumerate(check["block_table"]):
        for row, ids in enumerate(table):
            assert sorted(blocks[s["step"], g, row]) == list(enumerate(ids)), (s["step"], g, row)
        got = sorted(slots[s["step"], g])
        assert [x[1] for x in got] == check["positions"], s["step"]
        assert [x[2] for x in got] == check["slot_mapping"][g], s["step"]
        seen += 1
assert seen == 3 * sum("check" in s for s in steps) > 0
END
