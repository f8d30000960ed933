# SPDX-License-Identifier: Apache-2.0
# docs/sql.md has the columns that the tables and views have, in their order.
. "$SOURCE/tests/cli/lib.sh"
steptape -q import "$DATA/tiny.jsonl" -o x.tape
steptape -q replay x.tape --backend sim --policy baseline -o x.runs.tape >replayed
count=0
while read -r name columns; do
    for file in x.tape x.runs.tape; do
        got=$(steptape query --format=jsonl "$file" \
            "SELECT group_concat(name, ', ') AS c FROM pragma_table_info('$name')" | sed 's/^{"c":"\{0,1\}//; s/"\{0,1\}}$//')
        [ "$got" = null ] && continue
        [ "$got" = "$columns" ] || fail "$name: docs/sql.md has $columns, $file $got"
        count=$((count + 1))
    done
done <<END
$(sed -n 's/^| `\([a-z_]*\)` | [^|]* | \([a-z][^|]*\) |$/\1 \2/p' "$SOURCE/docs/sql.md")
END
[ "$count" -ge 17 ] || fail "only $count tables were found"
only x.tape x.runs.tape replayed
