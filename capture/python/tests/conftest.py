# SPDX-License-Identifier: Apache-2.0
"""What the tests share: the package from the source tree, and an engine to record.

STEPTAPE_LIBRARY names libsteptape_capture.so and STEPTAPE_PROGRAM the program, as CTest sets them.
"""

import os
import pathlib
import sqlite3
import subprocess
import sys
import types

import pytest

SOURCE = pathlib.Path(__file__).resolve().parents[1]
sys.path.insert(0, str(SOURCE))
sys.dont_write_bytecode = True

from steptape import Tape, vllm_plugin  # noqa: E402
from steptape._fake import engine, runners  # noqa: E402


def wrapped_classes(kind, wrapped=True):
    """(runner class, worker class) of a fake vLLM, as the plug-in leaves them."""
    base = runners.FakeRunnerV1 if kind == "V1" else runners.FakeRunnerV2
    name = next(n for n, k in vllm_plugin.RUNNERS.items() if k == kind)
    runner = type("GPUModelRunner", (), {**base.__dict__, "__module__": name})
    worker = type("Worker", (), dict(engine.Worker.__dict__))
    if wrapped:
        vllm_plugin._wrap_runner(kind, types.SimpleNamespace(__name__=name, GPUModelRunner=runner))
        vllm_plugin._wrap_worker("Worker", types.SimpleNamespace(Worker=worker))
    return runner, worker


@pytest.fixture
def record(tmp_path, monkeypatch):
    """record(settings) makes a fake engine whose steps go to a tape."""
    monkeypatch.setenv("STEPTAPE_RECORD", str(tmp_path / "x.tape"))
    monkeypatch.delenv("STEPTAPE_ALL_RANKS", raising=False)
    monkeypatch.delenv("STEPTAPE_INJECT", raising=False)

    def make(settings, **parallel):
        made = engine.Engine(settings, *wrapped_classes(settings.runner), **parallel)
        made.tape = tmp_path / "x.tape"
        return made

    return make


def session_of(made):
    return getattr(made.runner, vllm_plugin.SESSION)


def notes_of(path):
    db = sqlite3.connect(f"file:{path}?mode=ro", uri=True)
    try:
        return dict(db.execute("SELECT key, value FROM recorder_note ORDER BY note_id"))
    finally:
        db.close()


def program(*arguments, **options):
    path = os.environ.get("STEPTAPE_PROGRAM")
    if not path:
        pytest.skip("STEPTAPE_PROGRAM does not name the program")
    return subprocess.run([path, *map(str, arguments)], capture_output=True, text=True, **options)


def compare(path, held, block_sizes):
    """Every array of a tape with what the engine held, step by step.  Gives what to look at."""
    numbers, seen = {}, {"preempted": 0, "resumed": 0, "replaced": 0, "finished": 0, "new": 0}
    seen["modes"] = set()
    with Tape(path) as tape:
        assert tape.step_count == len(held)
        steps = (step for batch in tape.read(batch=37, tables=True, slots=True) for step in batch)
        for step, want in zip(steps, held):
            for name in want.finished:
                numbers.pop(name, None)
            for name, number in zip(want.names, step.request_id.tolist()):
                assert numbers.setdefault(name, number) == number
            assert len(set(numbers.values())) == len(numbers)
            assert len(step.request_id) == len(want.names)
            assert step.query_len.tolist() == want.query_len
            assert step.num_computed_tokens.tolist() == want.start
            assert {None: -1, "NONE": 0, "PIECEWISE": 1, "FULL": 2}[step.graph_mode] == want.mode
            assert step.padded_tokens == want.padded_tokens
            assert step.padded_requests == want.padded_requests
            assert step.new.tolist() == [numbers[name] for name in want.new]
            if step.draft is not None:
                assert step.draft.tolist() == want.draft
            else:
                assert not any(want.draft)
            for group, size in enumerate(block_sizes):
                tables = want.tables[group]
                assert [ids.tolist() for ids in step.table(group)] == tables
                assert step.slots(group).tolist() == [
                    table[position // size] * size + position % size
                    for table, start, length in zip(tables, want.start, want.query_len)
                    for position in range(start, start + length)
                ]
            for event in ("preempted", "resumed", "replaced", "finished", "new"):
                seen[event] += len(getattr(step, event))
            seen["modes"].add(step.graph_mode)
    return seen
