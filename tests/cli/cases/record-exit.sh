# SPDX-License-Identifier: Apache-2.0
# An engine that ends by _exit, which runs no exit handlers: a recording that it closed before has
# all its launches, one that it left has all its steps.
. "$SOURCE/tests/cli/lib.sh"
driver=$BUILD/capture/hook_driver
[ -e "$driver/libcuda.so.1" ] || skip "the driver for tests was not built"
python=
for candidate in python3 /usr/bin/python3; do
    "$candidate" -c 'import numpy' 2>/dev/null && python=$candidate && break
done
[ "$python" ] || skip "no python3 has numpy"
cat >engine.py <<'END'
import ctypes
import os
import sys

from steptape import Recorder
from steptape._capture import find_inject_step

driver = ctypes.CDLL("libcuda.so.1")
assert driver.cuInit(0) == 0
inject_step = find_inject_step()
recorder = Recorder(os.environ["STEPTAPE_RECORD"], groups=[])
for step in range(300):
    inject_step(step)
    assert driver.cuLaunchKernel(None, 1, 2, 3, 4, 5, 6, 123, None, None, None) == 0
    first = step == 0
    recorder.record(
        [1], [1], [step], blocks=[], new=[1] if first else [], prompt_len=[1] if first else []
    )
    inject_step(-1)
if sys.argv[1] == "close":
    recorder.close()
os._exit(0)
END
for how in close leave; do
    LD_LIBRARY_PATH=$driver steptape -q record -o $how.tape --launches=count \
        --overhead-budget=none -- "$python" engine.py $how || fail "$how: exit $?"
    steptape verify $how.tape >/dev/null
    [ "$(steptape query $how.tape --format=csv 'SELECT count(*) FROM step' | tail -n 1)" = 300 ] ||
        fail "$how: steps are missing"
done
sums='SELECT count(*), sum(kernel_launches) FROM launch_step WHERE step_id IS NOT NULL'
steptape query close.tape --format=csv "$sums" | tail -n 1 | grep -qx 300,300 ||
    fail "launches are missing: $(steptape query close.tape "$sums")"
