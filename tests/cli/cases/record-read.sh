# SPDX-License-Identifier: Apache-2.0
# Somebody reads the unfinished tape while the writer wants to commit: it waits, and nothing is lost.
. "$SOURCE/tests/cli/lib.sh"
engine=$BUILD/capture/fake_engine
[ -x "$engine" ] || skip "the engine for tests was not built"

"$engine" --steps 1000000 --sleep 200 --progress seen x.tape >out 2>&1 &
pid=$!
python3 - <<'END' || { kill -9 "$pid"; fail "nothing to read"; }
import sqlite3
import struct
import time


def recorded():
    try:
        return struct.unpack("qq", open("seen", "rb").read(16))[1]
    except (OSError, struct.error):
        return 0


def wait_for(steps):
    while recorded() < steps:
        time.sleep(0.01)


wait_for(200)
db = sqlite3.connect("file:x.tape.recording/x.part?mode=ro", uri=True, isolation_level=None)
db.execute("BEGIN")
while not db.execute("SELECT count(*) FROM step").fetchone()[0]:
    db.execute("COMMIT")
    time.sleep(0.01)
    db.execute("BEGIN")
wait_for(recorded() + 500)
END
kill -TERM "$pid"
wait "$pid" || fail "$(cat out)"
steptape query --format=csv x.tape "SELECT dropped_count, lost_reason, sequence_count > 700 FROM recorder" >got
[ "$(tail -n 1 got)" = 0,,1 ] || fail "$(cat got)"
steptape verify x.tape >verified
