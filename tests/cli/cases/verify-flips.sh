# SPDX-License-Identifier: Apache-2.0
# Bits of a tape are flipped: what dump then reads differently or refuses, verify finds.
. "$SOURCE/tests/cli/lib.sh"
tiny
python3 - <<'END'
import random, subprocess, sys
data = bytearray(open("tiny.tape", "rb").read())
dump = lambda path: subprocess.run(["steptape", "dump", path], capture_output=True, timeout=300)
good = dump("tiny.tape").stdout
rng = random.Random(3)
harmful = 0
for _ in range(60):
    at, bit = rng.randrange(len(data)), 1 << rng.randrange(8)
    data[at] ^= bit
    open("flipped.tape", "wb").write(data)
    data[at] ^= bit
    got = dump("flipped.tape")
    if got.returncode not in (0, 1):
        sys.exit(f"byte {at}: dump ends with {got.returncode}: {got.stderr}")
    if got.returncode or got.stdout != good:
        harmful += 1
        verdict = subprocess.run(["steptape", "verify", "flipped.tape"], capture_output=True,
                                 timeout=300)
        if verdict.returncode != 1:
            sys.exit(f"byte {at}, bit {bit}: verify ends with {verdict.returncode}")
if not harmful:
    sys.exit("no flip did harm: the case shows nothing")
END
