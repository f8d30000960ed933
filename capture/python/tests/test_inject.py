# SPDX-License-Identifier: Apache-2.0
"""Launch capture is told which step the engine is in."""

import os
import pathlib
import subprocess
import sys

import pytest
from conftest import SOURCE, session_of

from steptape import Tape, _capture
from steptape._fake.scheduler import Settings


@pytest.mark.parametrize("runner", ["V1", "V2"])
def test_every_step_is_announced(record, monkeypatch, runner):
    told = []
    monkeypatch.setattr(_capture, "find_inject_step", lambda: told.append)
    engine = record(Settings(runner=runner))
    told.clear()  # what the warm-up left

    def note(*_):
        told.append("runs")

    engine.runner._hold = note
    engine.run(10)
    steps = engine.steps
    engine.worker.execute_dummy_batch()
    assert told == [x for n in range(steps) for x in (n, "runs", -1, n, -1)]
    engine.runner.shutdown()
    with Tape(engine.tape) as tape:
        assert tape.step_count == steps


def test_an_error_ends_the_step(record, monkeypatch):
    told = []
    monkeypatch.setattr(_capture, "find_inject_step", lambda: told.append)
    engine = record(Settings())
    engine.run(2)

    def fail(*_):
        raise RuntimeError("planted")

    engine.runner._hold = fail
    engine.scheduler.add("another", [1, 2], 2)
    with pytest.raises(RuntimeError):
        engine.step()
    assert told[-1] == -1
    session_of(engine).close()


def test_it_is_found_when_it_is_loaded_and_never_loaded():
    library = pathlib.Path(os.environ.get("STEPTAPE_LIBRARY", "")).with_name(
        "libsteptape_inject.so"
    )
    if not library.is_file():
        pytest.skip("no libsteptape_inject.so beside libsteptape_capture.so")
    code = (
        "import ctypes, os\n"
        "from steptape._capture import find_inject_step\n"
        "assert find_inject_step() is None\n"
        "ctypes.CDLL(os.environ['STEPTAPE_INJECT'])\n"
        "assert callable(find_inject_step())\n"
        "find_inject_step()(-1)\n"
        "del os.environ['STEPTAPE_INJECT']\n"
        "assert find_inject_step() is None\n"
    )
    env = {**os.environ, "STEPTAPE_INJECT": str(library), "PYTHONPATH": str(SOURCE)}
    subprocess.run([sys.executable, "-c", code], check=True, env=env)
