# SPDX-License-Identifier: Apache-2.0
"""Whatever goes wrong in the plug-in, the engine runs as if it were not there."""

import logging
import os
import resource
import subprocess
import sys

import pytest
from conftest import SOURCE, compare, notes_of, session_of

from steptape import Tape, _capture, _vllm_batch, recover, vllm_plugin
from steptape._fake.scheduler import Settings


def held_without_plugin(settings, requests):
    from conftest import wrapped_classes

    from steptape._fake.engine import Engine

    engine = Engine(settings, *wrapped_classes(settings.runner, wrapped=False))
    engine.run(requests)
    return engine.runner.held


def fail_at(monkeypatch, cls, name, call):
    original, calls = getattr(cls, name), [0]

    def failing(self, *args, **kwargs):
        calls[0] += 1
        if calls[0] == call:
            raise ValueError("planted")
        return original(self, *args, **kwargs)

    monkeypatch.setattr(cls, name, failing)


@pytest.mark.parametrize("runner", ("V1", "V2"))
@pytest.mark.parametrize(
    "place", ("take", "read", "_read_numbers", "_read_blocks", "apply", "sequence", "record")
)
def test_an_error_turns_it_off(record, monkeypatch, caplog, runner, place):
    settings = Settings(runner=runner)
    owner = {
        "apply": _vllm_batch.Requests,
        "sequence": _capture.Handle,
        "record": _capture.Handle,
    }.get(place, _vllm_batch.READERS[runner])
    if place == "sequence":
        monkeypatch.setattr(_capture, "find_inject_step", lambda: lambda step: 0)
    fail_at(monkeypatch, owner, place, 20)
    engine = record(settings)
    with caplog.at_level(logging.WARNING, logger="steptape"):
        engine.run(30)
    assert engine.runner.held == held_without_plugin(settings, 30)
    assert not session_of(engine).alive
    lines = [r.getMessage() for r in caplog.records if r.name == "steptape"]
    assert len(lines) == 1 and "planted" in lines[0]
    recorded = min(19, engine.steps)
    engine.runner.shutdown()
    assert notes_of(engine.tape)["stopped"] == "ValueError: planted"
    with Tape(engine.tape) as tape:
        assert 0 < tape.step_count <= recorded
        assert tape.step_count >= recorded - 10  # steps without tokens call apply too
    compare(engine.tape, engine.runner.held[: len(Tape(engine.tape))], settings.block_sizes)


def test_a_step_that_contradicts_the_one_before(record, caplog):
    """The recorder refuses it: it is off, the engine goes on."""
    engine = record(Settings())
    engine.run(30, steps=10)
    engine.settings.seed += 1
    session_of(engine)._requests._next = 0  # the next request takes the number of another
    engine.run(30)
    assert engine.steps == len(engine.runner.held)
    assert not session_of(engine).alive
    engine.runner.shutdown()
    assert "stopped" in notes_of(engine.tape)


@pytest.mark.parametrize("runner", ("V1", "V2"))
def test_the_engine_raises(record, runner):
    """Its exceptions pass, and the step that raised is recorded with an unknown duration."""
    engine = record(Settings(runner=runner))
    engine.run(5)
    before = engine.steps

    def hold(*_):
        raise RuntimeError("out of memory")

    engine.runner._hold = hold
    engine.scheduler.add("another", [1, 2, 3], 4)
    with pytest.raises(RuntimeError, match="out of memory"):
        engine.step()
    engine.runner.shutdown()
    with Tape(engine.tape) as tape:
        assert tape.step_count == before + 1
        assert tape.step(before).duration_ns is None
        assert tape.step(before - 1).duration_ns > 0


def test_the_log_says_that_it_records(record, caplog):
    with caplog.at_level(logging.INFO):
        engine = record(Settings())
        engine.run(3)
    said = [(r.name, r.getMessage()) for r in caplog.records]
    assert said == [("vllm.steptape", f"steptape: recording into {engine.tape}")]


def test_a_disk_that_is_full_for_a_while(record, caplog):
    """The log says so once, long before the ring is full, and again what can be done at the end."""
    engine = record(Settings())
    engine.run(5)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    with caplog.at_level(logging.WARNING, logger="steptape"):
        resource.setrlimit(resource.RLIMIT_FSIZE, (98304, before[1]))
        try:
            for _ in range(40):
                engine.run(60)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)
        assert session_of(engine).alive
        engine.runner.shutdown()
    first, last = (r.getMessage() for r in caplog.records if r.name == "steptape")
    command = f"`steptape recover {engine.tape}` makes a tape of"
    assert "cannot be written" in first and command in first
    assert last.startswith(f"steptape: {command} what was recorded: ")
    assert str(engine.tape) in recover(str(engine.tape))
    with Tape(engine.tape) as tape:
        assert tape.step_count == len(engine.runner.held) == engine.steps


@pytest.mark.parametrize("slot", (3, 10**6))
def test_block_ids_for_a_slot_outside_the_batch(record, caplog, slot):
    """They belong to no row: a guess would be a wrong tape."""
    engine = record(Settings(runner="V2", max_num_seqs=2))
    engine.run(5)
    before = engine.steps
    tables = engine.runner.block_tables
    original = tables.append_block_ids

    def append_block_ids(_, ids):
        original(slot, ids)

    tables.append_block_ids = append_block_ids
    with caplog.at_level(logging.WARNING):
        engine.run(30)
    assert engine.steps > before and not session_of(engine).alive
    assert "outside of the batch" in caplog.text


def test_two_recorders_on_one_path(record, caplog):
    first = record(Settings())
    first.run(3)
    with caplog.at_level(logging.WARNING, logger="steptape"):
        second = record(Settings())
        second.run(3)
    assert second.steps > 0 and not session_of(second).alive
    assert sum(str(os.getpid()) in r.getMessage() for r in caplog.records) == 1
    first.runner.shutdown()
    with Tape(first.tape) as tape:
        assert tape.step_count == first.steps


def test_no_library(record, monkeypatch, caplog):
    monkeypatch.setattr(_capture, "_library", None)
    monkeypatch.setenv("STEPTAPE_LIBRARY", "/nowhere/libsteptape_capture.so")
    with caplog.at_level(logging.WARNING, logger="steptape"):
        engine = record(Settings())
        engine.run(5)
    assert engine.steps == len(engine.runner.held) > 0
    lines = [r.getMessage() for r in caplog.records if r.name == "steptape"]
    assert len(lines) == 1 and "/nowhere/libsteptape_capture.so" in lines[0]
    assert not engine.tape.exists()


def test_a_folder_that_cannot_be_written(record, monkeypatch, caplog):
    monkeypatch.setenv("STEPTAPE_RECORD", "/proc/nowhere/x.tape")
    with caplog.at_level(logging.WARNING, logger="steptape"):
        engine = record(Settings())
        engine.run(5)
    assert engine.steps == len(engine.runner.held) > 0
    assert sum("/proc/nowhere" in r.getMessage() for r in caplog.records) == 1


@pytest.mark.parametrize("value", ("64M", "1", "-1"))
def test_a_ring_of_no_size(record, monkeypatch, caplog, value):
    monkeypatch.setenv("STEPTAPE_RING_BYTES", value)
    with caplog.at_level(logging.WARNING, logger="steptape"):
        engine = record(Settings())
        engine.run(5)
    assert engine.steps == len(engine.runner.held) > 0
    lines = [r.getMessage().lower() for r in caplog.records if r.name == "steptape"]
    assert len(lines) == 1 and "ring_bytes" in lines[0]
    assert not engine.tape.exists()


def test_register_never_raises(monkeypatch, caplog):
    monkeypatch.setenv("STEPTAPE_RECORD", "x.tape")
    monkeypatch.setattr(vllm_plugin, "_registered", False)
    monkeypatch.setattr(vllm_plugin._hooks, "after_import", lambda *_: 1 / 0)
    vllm_plugin.register()
    assert "nothing is recorded" in caplog.text


def test_register_without_a_recording_does_nothing():
    """In every other process: no hook, no numpy work, no file."""
    code = (
        "import sys; before = list(sys.meta_path)\n"
        "from steptape import vllm_plugin\n"
        "vllm_plugin.register(); vllm_plugin.register()\n"
        "assert sys.meta_path == before\n"
    )
    env = {k: v for k, v in os.environ.items() if k != "STEPTAPE_RECORD"}
    subprocess.run([sys.executable, "-c", code], check=True, env={**env, "PYTHONPATH": str(SOURCE)})


def test_a_class_of_other_names_is_left_alone(caplog, monkeypatch):
    monkeypatch.setenv("STEPTAPE_RECORD", "x.tape")
    import types

    from steptape import _hooks

    module = types.ModuleType("vllm.v1.worker.gpu_model_runner")
    with caplog.at_level(logging.WARNING, logger="steptape"):
        _hooks.run(lambda m: vllm_plugin._wrap_runner("V1", m), module)
    assert "cannot be recorded" in caplog.text


def test_the_runner_can_be_collected(record):
    """A recording does not keep a runner's memory, and ends with it."""
    import gc
    import weakref

    engine = record(Settings())
    engine.run(5)
    steps, tape = engine.steps, engine.tape
    gone = weakref.ref(engine.runner)
    del engine
    gc.collect()
    assert gone() is None
    with Tape(tape) as opened:
        assert opened.step_count == steps
