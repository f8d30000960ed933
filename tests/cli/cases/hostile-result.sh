# SPDX-License-Identifier: Apache-2.0
# A result tape whose definitions would compute for ever, or whose figures overflow: one line, soon.
. "$SOURCE/tests/cli/lib.sh"
replay_tiny
change() { # SQL: tiny.runs.tape with a change, as hostile.tape
    python3 - "$1" <<'END'
import shutil, sqlite3, sys
shutil.copy("tiny.runs.tape", "hostile.tape")
db = sqlite3.connect("hostile.tape")
db.executescript(sys.argv[1])
END
}
forever='WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT 1 AS run_id FROM n'
change "ALTER TABLE run RENAME TO r; CREATE VIEW run AS $forever;"
for c in info verify report; do
    refuses 1 'hostile.tape: run is not a table' timeout 300 steptape $c hostile.tape
done
refuses 1 'hostile.tape: run is not a table' \
    timeout 300 steptape replay tiny.tape --backend sim -o hostile.tape
change "DROP VIEW launch_count; CREATE VIEW launch_count AS $forever;"
refuses 1 'launch_count is not a view' timeout 300 steptape report hostile.tape
change 'UPDATE _run_step SET step_ns = 9223372036854775807;'
refuses 1 'hostile.tape: integer overflow' steptape report hostile.tape
change "PRAGMA journal_mode = WAL;"
rm -f hostile.tape-*
refuses 1 'in WAL mode' steptape info hostile.tape
refuses 1 'in WAL mode' steptape query hostile.tape 'SELECT 1'
only hostile.tape tiny.runs.tape tiny.tape
