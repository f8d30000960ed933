# SPDX-License-Identifier: Apache-2.0
# Import, dump, the same facts; from gzip and from stdin as well; with and without `check`.
. "$SOURCE/tests/cli/lib.sh"
python3 "$DATA/make_tiny.py" | cmp - "$DATA/tiny.jsonl"
tiny
steptape dump tiny.tape >dump.jsonl
same_facts "$DATA/tiny.jsonl" dump.jsonl
steptape verify tiny.tape >/dev/null
steptape info tiny.tape >/dev/null

gzip -c "$DATA/tiny.jsonl" >tiny.jsonl.gz
steptape -q import tiny.jsonl.gz -o gz.tape
steptape dump gz.tape | cmp - dump.jsonl
steptape -q import - -o stdin.tape <"$DATA/tiny.jsonl"
steptape dump stdin.tape | cmp - dump.jsonl
steptape -q import - -o stdin-gz.tape <tiny.jsonl.gz
steptape dump stdin-gz.tape | cmp - dump.jsonl

steptape -q import --no-check "$DATA/tiny.jsonl" -o plain.tape
steptape dump plain.tape >plain.jsonl
python3 -c '
import json, sys
for line in open(sys.argv[1]):
    step = json.loads(line)
    step.pop("check", None)
    print(json.dumps(step))' "$DATA/tiny.jsonl" >want.jsonl
same_facts want.jsonl plain.jsonl
