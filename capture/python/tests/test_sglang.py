# SPDX-License-Identifier: Apache-2.0
"""The SGLang plug-in on a stand-in: no real SGLang was there to run it against."""

import gc
import logging
import sys
import types

import numpy as np
import pytest
from conftest import notes_of, program

from steptape import Tape, sglang_plugin


class Mode:
    def __init__(self, name):
        self.name = name

    def is_idle(self):
        return self.name == "IDLE"

    def is_extend(self):
        return self.name in ("EXTEND", "MIXED")

    def is_decode(self):
        return self.name == "DECODE"


class Request:
    def __init__(self, rid, prompt):
        self.rid, self.origin_input_ids, self.done = rid, [1] * prompt, False

    def finished(self):
        return self.done


class Scheduler:
    tp_rank = pp_rank = 0
    max_running_requests = 8
    max_req_len = 4096
    enable_overlap = True
    server_args = types.SimpleNamespace(
        device="cpu", model_path="example/model", disable_radix_cache=False
    )

    def run_batch(self, batch):
        if batch == "raise":
            raise RuntimeError("out of memory")
        return types.SimpleNamespace(can_run_cuda_graph=batch.forward_mode.is_decode())


def batch_of(mode, requests, lengths=None, starts=None, spec=True):
    batch = types.SimpleNamespace(forward_mode=Mode(mode), reqs=requests)
    batch.spec_algorithm = types.SimpleNamespace(is_none=lambda: spec)
    if mode in ("EXTEND", "MIXED"):
        batch.extend_lens, batch.prefix_lens = lengths, starts
    else:
        batch.seq_lens_cpu = np.array([s + 1 for s in starts or []], np.int64)
    return batch


@pytest.fixture
def scheduler(tmp_path, monkeypatch):
    """A Scheduler whose run_batch SGLang's registry has wrapped."""
    hooks = []

    class HookType:
        AROUND = "around"

    class HookRegistry:
        @staticmethod
        def register(target, hook, hook_type):
            assert hook_type == HookType.AROUND
            hooks.append((target, hook))

    for name in ("sglang", "sglang.srt", "sglang.srt.plugins"):
        monkeypatch.setitem(sys.modules, name, types.ModuleType(name))
    registry = types.ModuleType("sglang.srt.plugins.hook_registry")
    registry.HookRegistry, registry.HookType = HookRegistry, HookType
    monkeypatch.setitem(sys.modules, registry.__name__, registry)
    monkeypatch.setenv("STEPTAPE_RECORD", str(tmp_path / "x.tape"))
    sglang_plugin.register()
    ((target, hook),) = hooks
    assert target == "sglang.srt.managers.scheduler.Scheduler.run_batch"

    class Hooked(Scheduler):
        def run_batch(self, *args, **kwargs):
            return hook(Scheduler.run_batch, self, *args, **kwargs)

    made = Hooked()
    made.tape = tmp_path / "x.tape"
    return made


def close(scheduler):
    """The tape is made when the scheduler is gone."""
    delattr(scheduler, sglang_plugin.SESSION)
    gc.collect()


def test_steps(scheduler):
    a, b = Request("secret-a", 10), Request("secret-b", 4)
    scheduler.run_batch(batch_of("EXTEND", [a], [6], [0]))
    scheduler.run_batch(batch_of("MIXED", [b, a], [4, 4], [0, 6]))
    assert scheduler.run_batch(batch_of("DECODE", [a, b], starts=[10, 4])).can_run_cuda_graph
    scheduler.run_batch(batch_of("IDLE", []))
    a.done = True
    scheduler.run_batch(batch=batch_of("DECODE", [b], starts=[5]))
    scheduler.run_batch(batch_of("EXTEND", [b], [2], [4]))  # it was retracted
    del b
    c = Request("secret-a", 3)  # another request of a name that is free again
    scheduler.run_batch(batch_of("EXTEND", [c], [3], [0]))
    close(scheduler)
    with Tape(scheduler.tape) as tape:
        steps = list(tape)
        assert tape.header["engine"] == "sglang" and tape.header["model"] == "example/model"
        assert tape.header["async_scheduling"] is True
    assert [s.request_id.tolist() for s in steps] == [[0], [1, 0], [0, 1], [1], [1], [2]]
    assert [s.query_len.tolist() for s in steps] == [[6], [4, 4], [1, 1], [1], [2], [3]]
    assert [s.num_computed_tokens.tolist() for s in steps] == [[0], [0, 6], [10, 4], [5], [4], [0]]
    assert [s.new.tolist() for s in steps] == [[0], [1], [], [], [], [2]]
    assert [s.finished.tolist() for s in steps] == [[], [], [], [0], [], [1]]
    assert [s.replaced.tolist() for s in steps] == [[], [], [], [], [1], []]
    assert [s.graph_mode for s in steps][:3] == ["NONE", "NONE", "FULL"]
    assert steps[1].new_prompt_len.tolist() == [4] and steps[0].duration_ns > 0
    assert b"secret" not in scheduler.tape.read_bytes()
    assert notes_of(scheduler.tape)["hooks"] == sglang_plugin.TARGET
    verified = program("verify", scheduler.tape)
    assert verified.returncode == 0, verified.stderr


def test_what_it_cannot_know_turns_it_off(scheduler, caplog):
    a = Request("a", 10)
    scheduler.run_batch(batch_of("EXTEND", [a], [10], [0]))
    with caplog.at_level(logging.WARNING, logger="steptape"):
        scheduler.run_batch(batch_of("DECODE", [a], starts=[10], spec=False))
        scheduler.run_batch(batch_of("DECODE", [a], starts=[11]))
    assert len(caplog.records) == 1
    close(scheduler)
    assert "speculation" in notes_of(scheduler.tape)["stopped"]
    with Tape(scheduler.tape) as tape:
        assert tape.step_count == 1


def test_exceptions_pass(scheduler):
    with pytest.raises(RuntimeError, match="out of memory"):
        scheduler.run_batch("raise")


def test_other_ranks_are_not_recorded(scheduler):
    scheduler.tp_rank = 1
    scheduler.run_batch(batch_of("EXTEND", [Request("a", 2)], [2], [0]))
    assert not scheduler.tape.exists() and not scheduler.tape.with_name("x.tape.recording").exists()


def test_nothing_without_a_recording(monkeypatch):
    monkeypatch.delenv("STEPTAPE_RECORD", raising=False)
    monkeypatch.setitem(sys.modules, "sglang", None)
    sglang_plugin.register()
