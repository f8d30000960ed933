# SPDX-License-Identifier: Apache-2.0
# What no engine can be set to is refused before it uses up the machine; each message names the tape.
. "$SOURCE/tests/cli/lib.sh"
tiny
for backend in cpu sim; do
    refuses 1 'tiny.tape: max_num_batched_tokens = 2147483647 is more than' \
        steptape replay tiny.tape --backend $backend --set max_num_batched_tokens=2147483647
    refuses 1 'tiny.tape: max_model_len = 2147483647 is more than' \
        steptape replay tiny.tape --backend $backend --set max_model_len=2147483647
    refuses 1 'tiny.tape: num_blocks = 2147483647 is more than' \
        steptape replay tiny.tape --backend $backend --set num_blocks=2147483647
done
sed 's/"max_num_batched_tokens":256/"max_num_batched_tokens":4294967301/' "$DATA/tiny.jsonl" >huge.jsonl
steptape -q import huge.jsonl -o huge.tape
refuses 1 'huge.tape: max_num_batched_tokens = 4294967301' steptape replay huge.tape --backend cpu
steptape -q replay huge.tape --backend cpu --set max_num_batched_tokens=256 --policy baseline \
    --sample-rows 1 --buffers 1 --steps ..9 >huge.txt
sed 's/"padded_tokens":100/"padded_tokens":2147483647/; s/"mode":"NONE"/"mode":"FULL"/' \
    "$DATA/tiny.jsonl" >padded.jsonl
steptape -q import padded.jsonl -o padded.tape
refuses 1 'padded.tape: padded_tokens = 2147483647' \
    steptape replay padded.tape --backend cpu --graph-mode tape
sed 's/"max_model_len":4096/"max_model_len":4611686018427387904/; s/"max_num_seqs":8/"max_num_seqs":4611686018427387905/' \
    "$DATA/tiny.jsonl" >endless.jsonl
steptape -q import endless.jsonl -o endless.tape
refuses 1 'endless.tape: max_model_len = 4611686018427387904' steptape replay endless.tape --backend sim
# Two groups of the window; the pages of the second do not hold its blocks.
python3 - "$DATA/tiny.jsonl" >pages.jsonl <<'END'
import json, sys
for line in open(sys.argv[1]):
    record = json.loads(line)
    record.pop("check", None)
    if "groups" in record:
        record["groups"][0]["members"][0]["layers"] = 2
        group = json.loads(json.dumps(record["groups"][0]))
        record["groups"].append(group | {"id": 3, "block_size": 4096})
    if "blocks" in record:
        record["blocks"].append([[399] if ids else [] for ids in record["blocks"][0]])
    print(json.dumps(record))
END
steptape -q import pages.jsonl -o pages.tape
refuses 1 'pages.tape: swa cache of ratio 1: a page of 37440 bytes does not hold 4096 entries' \
    steptape replay pages.tape --backend cpu
refuses 1 'tiny.tape: step 0: state/4: the allocator model ran out of its 10 blocks' \
    steptape -q replay tiny.tape --backend cpu --set num_blocks=10
refuses 1 'tiny.tape: step 1: block 30 is not below num_blocks = 30' \
    steptape -q replay tiny.tape --backend cpu --set num_blocks=30
refuses 2 'standard output' steptape replay tiny.tape --backend sim -o -
only endless.jsonl endless.tape huge.jsonl huge.runs.tape huge.tape huge.txt padded.jsonl \
    padded.tape pages.jsonl pages.tape tiny.tape
