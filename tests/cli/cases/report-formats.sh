# SPDX-License-Identifier: Apache-2.0
. "$SOURCE/tests/cli/lib.sh"
replay_tiny
steptape report tiny.runs.tape >table
grep -q upstream table
steptape report tiny.runs.tape --format=json >json
steptape report tiny.runs.tape --format=csv >csv
steptape report tiny.runs.tape --format=csv -o file.csv >out
cmp csv file.csv
[ ! -s out ]
python3 - <<'END'
import csv, json
rows = json.load(open("json"))
assert isinstance(rows, list) and rows and all(isinstance(r, dict) for r in rows), rows
table = list(csv.reader(open("csv", newline="")))
assert len(table) > 1 and len({len(r) for r in table}) == 1, table
END
refuses 1 99 steptape report tiny.runs.tape --run 99
