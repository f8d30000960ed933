# SPDX-License-Identifier: Apache-2.0
"""The examples run, and what they record is whole."""

import os
import re
import subprocess
import sys

import pytest
from conftest import SOURCE, program

import steptape


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


def test_the_page(tmp_path, monkeypatch, capsys):
    """What docs/python.md has runs; without the lines that need Arrow and DuckDB."""
    page = (SOURCE.parents[1] / "docs/python.md").read_text()
    read, record = re.findall(r"^```python\n(.*?)^```", page, re.M | re.S)
    read = "\n".join(line for line in read.splitlines() if not re.search("duckdb|reader", line))
    assert "tape.step(1000, " in read
    monkeypatch.chdir(tmp_path)
    names: dict = {"steptape": steptape}
    exec(record, names)
    exec(read.replace("tape.step(1000, ", "tape.step(1, "), names)
    assert capsys.readouterr().out.startswith(f"{tmp_path}/x.tape\nmine 2\n0 None [7] [12] [0]\n")
