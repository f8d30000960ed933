# SPDX-License-Identifier: Apache-2.0
"""The examples run, and what they record is whole."""

import os
import subprocess
import sys

from conftest import SOURCE, program


def test_the_toy_engine(tmp_path):
    tape = tmp_path / "x.tape"
    done = subprocess.run(
        [sys.executable, str(SOURCE / "examples/toy_engine.py"), str(tape)],
        env={**os.environ, "PYTHONPATH": str(SOURCE), "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert "steps of toy" in done.stdout
    assert "step 3: requests" in done.stdout
    verified = program("verify", tape)
    assert verified.returncode == 0, verified.stderr
    replayed = program("info", tape)
    assert "requests       40" in replayed.stdout
