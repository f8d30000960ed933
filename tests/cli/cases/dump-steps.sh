# SPDX-License-Identifier: Apache-2.0
# --steps A..B is inclusive and either end may be left out.  The header comes first.
. "$SOURCE/tests/cli/lib.sh"
tiny
steptape dump tiny.tape >all
steptape dump tiny.tape --steps 3..5 | tail -n +2 >got
sed -n '5,7p' all | cmp - got
steptape dump tiny.tape --steps ..1 | tail -n +2 >got
sed -n '2,3p' all | cmp - got
steptape dump tiny.tape --steps 18.. | tail -n +2 >got
tail -n 2 all | cmp - got
steptape dump tiny.tape --steps 7..7 | head -n 1 >got
head -n 1 all | cmp - got
# What is cut out is a recording: it imports, can be given away, and is replayed as in the whole.
whole=$SOURCE/traces/samples/azure-code.tape
steptape dump "$whole" --steps 500..599 >part.jsonl
refuses 1 "step: is 500, 0 was expected" steptape import part.jsonl -o part.tape
steptape -q dump "$whole" --steps 500..599 --cut | steptape -q import - -o part.tape
steptape verify part.tape >/dev/null
steptape -q anonymize part.tape -o given.tape >/dev/null
for tape in part given; do
    steptape -q replay $tape.tape --backend sim -o $tape.runs.tape >/dev/null
    steptape query $tape.runs.tape --format=csv \
        "SELECT operator, sum(launches) FROM launch_count GROUP BY 1 ORDER BY 1" >$tape.csv
done
steptape -q replay "$whole" --steps 500..599 --backend sim -o whole.runs.tape >/dev/null
steptape query whole.runs.tape --format=csv \
    "SELECT operator, sum(launches) FROM launch_count GROUP BY 1 ORDER BY 1" >whole.csv
cmp whole.csv part.csv
cmp whole.csv given.csv
