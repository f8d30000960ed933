# SPDX-License-Identifier: Apache-2.0
"""The examples run, and what they record is whole."""

import os
import subprocess
import sys

import pytest
from conftest import SOURCE, program


@pytest.mark.parametrize("named_by", ("argument", "environment"))
def test_the_toy_engine(tmp_path, named_by):
    tape = tmp_path / "x.tape"
    environment = {**os.environ, "PYTHONPATH": str(SOURCE), "PYTHONDONTWRITEBYTECODE": "1"}
    arguments = [str(tape)] if named_by == "argument" else []
    if not arguments:
        environment["STEPTAPE_RECORD"] = str(tape)
    done = subprocess.run(
        [sys.executable, str(SOURCE / "examples/toy_engine.py"), *arguments],
        env=environment,
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
