# SPDX-License-Identifier: Apache-2.0
# A prefix that two requests share is no hazard, whenever its owner computed it; two tokens of a
# step that go to one place are refused by name.
. "$SOURCE/tests/cli/lib.sh"
needs python3
cat >make.py <<'PYTHON'
import json
import sys

SIZES = (64, 256, 4, 8)
KINDS = ((("swa", 1, 128),), (("kv", 4, None), ("indexer_kv", 4, None), ("kv", 128, None)),
         (("state", 4, 8), ("indexer_state", 4, 8)), (("state", 128, 128),))
taken = 0


def fresh(count):
    global taken
    taken += count
    return list(range(taken - count + 1, taken + 1))


def tables(tokens, prefix=None, shared=0):
    return [(prefix[g][:shared // size] if prefix else []) +
            fresh(-(-tokens // size) - shared // size) for g, size in enumerate(SIZES)]


def step(number, rows, new=()):
    print(json.dumps({
        "step": number, "mode": "NONE", "req": [r[0] for r in rows],
        "start": [r[1] for r in rows], "qlen": [r[2] for r in rows],
        "new": list(new), "prompt_len": [300] * len(new),
        "finished": [], "preempted": [], "resumed": [],
        "blocks": [[r[3][g] for r in rows] for g in range(len(SIZES))]}))


print(json.dumps({
    "kind": "steps", "version": 1, "architecture": "DeepseekV4ForCausalLM",
    "compress_ratios": [0, 4, 128], "max_model_len": 4096, "num_blocks": 1000,
    "groups": [{"id": g, "block_size": size, "members": [
        {"kind": kind, "layers": 1, "ratio": ratio, "window": window}
        for kind, ratio, window in KINDS[g]]} for g, size in enumerate(SIZES)]}))
kind, group = sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 0
if kind == "same-step":
    a = tables(300)
    step(0, [(1, 0, 300, a), (2, 256, 44, tables(300, a, 256))], [1, 2])
elif kind == "later":  # its owner stands where the other begins, and needs the state before
    a = tables(256)
    step(0, [(1, 0, 256, a)], [1])
    step(1, [(1, 256, 1, [fresh(1) for size in SIZES])])
    step(2, [(1, 257, 3, [[]] * 4), (2, 256, 4, tables(260, a, 256))], [2])
else:
    a, b = tables(300), tables(300)
    if kind == "row":
        a[group][-1] = a[group][-2]
    else:
        b[group][-1] = a[group][-1]
    step(0, [(1, 0, 300, a), (2, 0, 300, b)], [1, 2])
PYTHON
make() {
    rm -f x.tape
    python3 make.py "$@" | steptape -q import - -o x.tape
}
replay() {
    rm -f x.runs.tape
    steptape -q replay x.tape --backend cpu --pass verify --poison --policy baseline \
        --policy safe --sample-rows 1000 \
        --ops save_partial_states,compress_pool,compress_norm_rope_store,compress_fused
}
for kind in same-step later; do
    make $kind
    replay >out 2>err || fail "$kind: exit $?: $(cat out err)"
done
for group in 1 2 3; do # those whose caches the replay writes
    make row $group
    refuses 1 "x.tape: step 0, request 1, group $group: stores tokens in block" replay
    make rows $group
    refuses 1 "x.tape: step 0, request 2, group $group: stores tokens in block" replay
    [ ! -e x.runs.tape ] || fail "a run was kept"
done
make row 0 # of the window nothing is written here
replay >out 2>err || fail "window: exit $?: $(cat out err)"
# How many launches there are, and how long they take, does not hang on it.
make rows 1
rm x.runs.tape
steptape -q replay x.tape --backend sim >/dev/null || fail "sim: exit $?"
