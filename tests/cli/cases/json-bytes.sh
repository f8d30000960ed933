# SPDX-License-Identifier: Apache-2.0
# Names of files, and what a recorder noted, may be any bytes; JSON is UTF-8 all the same.
. "$SOURCE/tests/cli/lib.sh"
needs sqlite3
json() { # COMMAND...: prints JSON, each line or all of it
    "$@" >out || fail "exit $?: $*"
    python3 - <<'END' || fail "$*: $(head -c 300 out)"
import json
text = open("out", "rb").read().decode()
try:
    json.loads(text)
except ValueError:
    [json.loads(line) for line in text.splitlines()]
END
}
bytes=$(printf 'a\377\303b')
cp "$DATA/tiny.jsonl" "$bytes.jsonl"
steptape -q import "$bytes.jsonl" -o x.tape # its command line is kept
cp x.tape "$bytes.tape"
sqlite3 x.tape "UPDATE tape SET model = cast(x'41ff42' AS TEXT);
    UPDATE tape SET speculative = cast(x'7b2261223a22ff227d' AS TEXT);
    INSERT INTO recorder_note(sequence, key, value) VALUES(0, cast(x'ff' AS TEXT), cast(x'c3' AS TEXT))"
json steptape info x.tape --format=json
json steptape info "$bytes.tape" --format=json
json steptape dump x.tape
json steptape query x.tape "SELECT model, speculative FROM tape" --format=json
json steptape -q anonymize "$bytes.tape" -o y.tape --format=json
json steptape doctor --folder "$bytes" --format=json
