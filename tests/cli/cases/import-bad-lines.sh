# SPDX-License-Identifier: Apache-2.0
# Each fault is named with its line; nothing is left behind.
. "$SOURCE/tests/cli/lib.sh"
mkdir out
edit() { # NAME LINE PYTHON: runs PYTHON on the object `o` of that line
    python3 - "$@" "$DATA/tiny.jsonl" >"$1.jsonl" <<'END'
import json, sys
name, line, code, source = sys.argv[1:]
for n, text in enumerate(open(source), 1):
    o = json.loads(text)
    if n == int(line):
        exec(code)
    print(json.dumps(o))
END
    refuses 1 "$1.jsonl" steptape import "$1.jsonl" -o out/x.tape
    steptape import "$1.jsonl" -o out/x.tape 2>err || true
    grep -q "line $2\b" err || fail "$1: line $2 is not named: $(cat err)"
    [ -z "$(ls -A out)" ] || fail "$1: left behind: $(ls -A out)"
}
edit kind 1 'o["kind"] = "else"'
edit version 1 'o["version"] = 99'
edit unknown 3 'o["surprise"] = 1'
edit negative 4 'o["qlen"][0] = -1'
edit zero 4 'o["qlen"][0] = 0'
edit huge 4 'o["start"][0] = 1 << 70'
edit zeroed 4 'o["zeroed"] = (1 << 63) - 1'
edit draft 4 'o["draft"] = [(1 << 31) - 1] * len(o["req"])'
edit unequal 4 'o["qlen"].append(1)'
edit string 5 'o["req"] = "abc"'
edit order 6 'o["step"] = 9'
edit mode 6 'o["mode"] = "HALF"'
edit block 3 'o["blocks"][0][0] = [400]'
edit groups 3 'o["blocks"].pop()'
edit finished 14 'o["req"][0] = 0'
grep -v nothing "$DATA/tiny.jsonl" | head -c 3000 >truncated.jsonl
refuses 1 truncated.jsonl steptape import truncated.jsonl -o out/x.tape
sed 's/"step":5,/"step":5,"surprise":[1,{"a":null}],/' "$DATA/tiny.jsonl" >extra.jsonl
refuses 1 surprise steptape import extra.jsonl -o out/x.tape
[ -z "$(ls -A out)" ] || fail "left behind: $(ls -A out)"
steptape -q import --ignore-unknown extra.jsonl -o out/x.tape
steptape dump out/x.tape >dump.jsonl
same_facts "$DATA/tiny.jsonl" dump.jsonl

# Not even --force puts a tape in the place of the recording that it is made from.
cp "$DATA/tiny.jsonl" own.jsonl
ln own.jsonl same.jsonl
refuses 2 'is the recording itself' steptape import --force own.jsonl -o same.jsonl
cmp own.jsonl "$DATA/tiny.jsonl"
