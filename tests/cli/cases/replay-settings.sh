# SPDX-License-Identifier: Apache-2.0
# Settings below a step's size, kinds of attention that are not known, names with control characters.
. "$SOURCE/tests/cli/lib.sh"
tiny
refuses 1 'tiny.tape: step 0: 100 tokens are more than max_num_batched_tokens = 99 (see --set)' \
    steptape -q replay tiny.tape --backend sim --set max_num_batched_tokens=99
refuses 1 'tiny.tape: step 2: 2 requests are more than max_num_seqs = 1 (see --set)' \
    steptape -q replay tiny.tape --backend cpu --set max_num_seqs=1
steptape -q replay tiny.tape --backend sim --set max_num_seqs=1 --steps ..1 >one.txt
# A tape that contradicts its own header is replayed, and says so.
sed 's/"max_num_seqs":8/"max_num_seqs":2/' "$DATA/tiny.jsonl" >small.jsonl
steptape -q import small.jsonl -o small.tape 2>/dev/null
steptape replay small.tape --backend sim -o small.runs.tape >small.txt 2>small.err
grep -q 'settings (first: step 13): 2$' small.err || fail "$(cat small.err)"
[ "$(steptape query small.runs.tape --format=csv \
    "SELECT json_extract(options, '\$.steps_above_settings') FROM run" | tail -n 1)" = 2 ]

sed 's/"heads": 64/"heads": 64, "attention": "foo\\u001b[31m"/' \
    "$SOURCE/replay/models/deepseek-v4-tiny.json" >foo.json
refuses 1 "foo.json: \"attention\": there is no kind 'foo [31m'; \"dsa\"" \
    steptape replay tiny.tape --backend sim --model ./foo.json

# What a name holds reaches no terminal: neither on stdout nor on stderr, of no command.
sed 's/"model":"tiny"/"model":"ti\\u001b[31mny\\u0007\\u009b"/' "$DATA/tiny.jsonl" >name.jsonl
steptape -q import name.jsonl -o name.tape
{
    steptape info name.tape
    steptape replay name.tape --backend cpu --policy baseline --pass count
    steptape report name.runs.tape
    steptape query name.runs.tape 'SELECT model FROM run'
} >name.txt 2>&1
grep -qF 'KV groups of ti\x1b[31mny\x07\xc2\x9b: their blocks' name.txt || fail "$(cat name.txt)"
tr -d '\n' <name.txt | LC_ALL=C grep -q '[[:cntrl:]]' && fail 'control characters'
LC_ALL=C grep -q "$(printf '\302\233')" name.txt && fail 'a C1 control character'
sed 's/"compress_ratios":\[0,128,4,128\]/"compress_ratios":[0]/' name.jsonl >dense.jsonl
steptape -q import dense.jsonl -o dense.tape
refuses 1 "the tape's model (ti [31mny " steptape replay dense.tape --backend sim
