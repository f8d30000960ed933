# SPDX-License-Identifier: Apache-2.0
"""The SGLang plug-in on a stand-in, shaped as 0.5.11 to 0.5.23 are.  A real SGLang is recorded in
engine/test_sglang_engine.py."""

import gc
import logging
import sys
import types
import weakref

import numpy as np
import pytest
from conftest import notes_of, program

from steptape import Tape, _capture, sglang_plugin


class Request:
    def __init__(self, rid, prompt):
        self.rid, self.origin_input_ids, self.done = rid, [1] * prompt, False
        self.retraction_count = 0

    def finished(self):
        return self.done


class Scheduler:
    tp_rank = 0
    max_running_requests = 8
    max_req_len = 4095
    max_prefill_tokens = 16384
    chunked_prefill_size = 128
    enable_overlap = True
    model_config = types.SimpleNamespace(context_len=4096)
    server_args = types.SimpleNamespace(
        device="cpu", model_path="example/model", disable_radix_cache=False
    )

    def run_batch(self, batch):
        if batch == "raise":
            raise RuntimeError("out of memory")
        return types.SimpleNamespace(can_run_cuda_graph=batch.graph)


def batch_of(mode, requests, lengths=None, starts=None, spec=True, graph=None):
    batch = types.SimpleNamespace(forward_mode=types.SimpleNamespace(name=mode), reqs=requests)
    batch.graph = mode == "DECODE" if graph is None else graph
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
        def run_batch(self, *args, **kwargs):  # as SGLang's registry wraps it
            return hook(Scheduler.run_batch, self, *args, **kwargs)

    made = Hooked()
    made.tape = tmp_path / "x.tape"
    return made


def close(scheduler):
    """The tape is made when the scheduler is gone."""
    delattr(scheduler, sglang_plugin.SESSION)
    gc.collect()


def tape_of(scheduler):
    """The header and the steps of the tape, which is whole."""
    close(scheduler)
    verified = program("verify", scheduler.tape)
    assert verified.returncode == 0, verified.stderr
    with Tape(scheduler.tape) as tape:
        return tape.header, list(tape)


def test_steps(scheduler):
    a, b = Request("secret-a", 10), Request("secret-b", 4)
    scheduler.run_batch(batch_of("EXTEND", [a], [6], [0]))
    scheduler.run_batch(batch_of("MIXED", [b, a], [4, 4], [0, 6], graph=True))
    assert scheduler.run_batch(batch_of("DECODE", [a, b], starts=[10, 4])).can_run_cuda_graph
    scheduler.run_batch(batch_of("IDLE", []))
    a.done = True
    scheduler.run_batch(batch=batch_of("DECODE", [b], starts=[5]))
    scheduler.run_batch(batch_of("EXTEND", [b], [2], [4]))  # it begins again
    b.done = True
    c = Request("secret-b", 3)  # another request of a name that is free again
    scheduler.run_batch(batch_of("EXTEND", [c], [3], [0]))
    header, steps = tape_of(scheduler)
    assert header["engine"] == "sglang" and header["model"] == "example/model"
    assert header["async_scheduling"] is True and header["prefix_caching"] is True
    assert header["max_model_len"] == 4096 and header["max_num_batched_tokens"] == 128
    assert [s.request_id.tolist() for s in steps] == [[0], [1, 0], [0, 1], [1], [1], [2]]
    assert [s.query_len.tolist() for s in steps] == [[6], [4, 4], [1, 1], [1], [2], [3]]
    assert [s.num_computed_tokens.tolist() for s in steps] == [[0], [0, 6], [10, 4], [5], [4], [0]]
    assert [s.new.tolist() for s in steps] == [[0], [1], [], [], [], [2]]
    assert [s.finished.tolist() for s in steps] == [[], [], [], [0], [], [1]]
    assert [s.replaced.tolist() for s in steps] == [[], [], [], [], [1], []]
    assert [s.graph_mode for s in steps][:3] == ["NONE", "PIECEWISE", "FULL"]
    assert steps[1].new_prompt_len.tolist() == [4] and steps[0].duration_ns > 0
    assert b"secret" not in scheduler.tape.read_bytes()
    assert notes_of(scheduler.tape)["hooks"] == sglang_plugin.TARGET


def test_retracted_requests(scheduler):
    a, b, c = Request("a", 10), Request("b", 4), Request("c", 2)
    scheduler.run_batch(batch_of("EXTEND", [a, b, c], [10, 4, 2], [0, 0, 0]))
    b.retraction_count += 1
    c.retraction_count += 1
    scheduler.run_batch(batch_of("DECODE", [a], starts=[10]))
    scheduler.run_batch(batch_of("DECODE", [a], starts=[11]))
    a.retraction_count += 1  # and back before another step, where it was
    scheduler.run_batch(batch_of("EXTEND", [a, b], [1, 1], [12, 4]))  # b's prefix is cached
    del c  # aborted while it waited
    scheduler.run_batch(batch_of("DECODE", [a, b], starts=[13, 5]))
    _, steps = tape_of(scheduler)
    assert [s.preempted.tolist() for s in steps] == [[], [1, 2], [], [], []]
    assert [s.resumed.tolist() for s in steps] == [[], [], [], [1], []]
    assert [s.replaced.tolist() for s in steps] == [[], [], [], [0], []]
    assert [s.finished.tolist() for s in steps] == [[], [], [], [], [2]]


def test_many_steps_of_one_batch(scheduler):
    a, b, c = Request("a", 10), Request("b", 4), Request("c", 2)
    scheduler.run_batch(batch_of("EXTEND", [a, b, c], [10, 4, 2], [0, 0, 0]))
    for more in range(3):
        scheduler.run_batch(batch_of("DECODE", [a, b, c], starts=[10 + more, 4 + more, 2 + more]))
    c.retraction_count += 1
    scheduler.run_batch(batch_of("DECODE", [b, a], starts=[7, 13]))  # in another order
    scheduler.run_batch(batch_of("DECODE", [b, a], starts=[8, 14]))
    scheduler.run_batch(batch_of("DECODE", [b, a], starts=[8, 14]))  # not one token further
    c.done = True
    scheduler.run_batch(batch_of("DECODE", [b, a], starts=[9, 15]))
    scheduler.run_batch(batch_of("DECODE", [b, a], starts=[10, 16]))
    _, steps = tape_of(scheduler)
    assert [s.request_id.tolist() for s in steps] == [[0, 1, 2]] * 4 + [[1, 0]] * 5
    assert [s.preempted.tolist() for s in steps] == [[]] * 4 + [[2]] + [[]] * 4
    assert [s.finished.tolist() for s in steps] == [[]] * 7 + [[2], []]
    assert [s.replaced.tolist() for s in steps] == [[]] * 6 + [[1, 0], [], []]
    assert steps[3].num_computed_tokens.tolist() == [12, 6, 4]


def test_the_recording_keeps_no_request(scheduler):
    a = Request("a", 10)
    scheduler.run_batch(batch_of("EXTEND", [a], [10], [0]))
    kept = weakref.ref(a)
    del a
    assert kept() is None
    close(scheduler)


def test_a_prompt_that_another_engine_computed(scheduler):
    a = Request("a", 10)
    scheduler.run_batch(batch_of("PREBUILT", [a], [10], [0]))
    scheduler.run_batch(batch_of("DECODE", [a], starts=[10]))
    _, steps = tape_of(scheduler)
    assert [s.num_computed_tokens.tolist() for s in steps] == [[10]]
    assert steps[0].new_prompt_len.tolist() == [10]


def test_what_it_cannot_know_turns_it_off(scheduler, caplog):
    a = Request("a", 10)
    scheduler.run_batch(batch_of("EXTEND", [a], [10], [0]))
    with caplog.at_level(logging.WARNING, logger="steptape"):
        scheduler.run_batch(batch_of("DECODE", [a], starts=[10], spec=False))
        scheduler.run_batch(batch_of("DECODE", [a], starts=[11]))
    assert len(caplog.records) == 1
    _, steps = tape_of(scheduler)
    assert "speculation" in notes_of(scheduler.tape)["stopped"] and len(steps) == 1


@pytest.mark.parametrize(
    ("batch", "why"),
    [
        (("SPLIT_PREFILL", [Request("a", 10)], [10], [0]), "SPLIT_PREFILL"),
        (("DLLM_EXTEND", [Request("a", 10)], [10], [0]), "DLLM_EXTEND"),
        (("DECODE", [Request("a", 10)], None, [10, 10]), "beams"),
    ],
)
def test_what_does_not_run_row_by_row_turns_it_off(scheduler, batch, why):
    scheduler.run_batch(batch_of(*batch))
    scheduler.run_batch(batch_of("DECODE", [Request("b", 10)], starts=[10]))
    _, steps = tape_of(scheduler)
    assert why in notes_of(scheduler.tape)["stopped"] and not steps


def test_exceptions_pass(scheduler):
    with pytest.raises(RuntimeError, match="out of memory"):
        scheduler.run_batch("raise")


def ranks_in(place, scheduler, monkeypatch, **ranks):
    """As SGLang keeps them: until 0.5.12, until 0.5.20, and since 0.5.21."""
    if place == "scheduler":
        for name, rank in ranks.items():
            setattr(scheduler, name, rank)
    elif place == "ps":
        scheduler.ps = types.SimpleNamespace(**ranks)
    else:
        context = types.ModuleType("sglang.srt.runtime_context")
        context.get_parallel = lambda: types.SimpleNamespace(**ranks)
        monkeypatch.setitem(sys.modules, context.__name__, context)


@pytest.mark.parametrize("place", ["scheduler", "ps", "context"])
@pytest.mark.parametrize(
    ("ranks", "everyone", "tape"),
    [
        ({"tp_rank": 1, "attn_tp_rank": 1, "attn_cp_rank": 0, "dp_rank": None}, False, None),
        ({"tp_rank": 1, "attn_tp_rank": 0, "attn_cp_rank": 1}, False, None),
        ({"tp_rank": 1, "attn_tp_rank": 1, "attn_cp_rank": 0}, True, "x.rank1.tape"),
        ({"tp_rank": 1, "attn_tp_rank": 0, "attn_cp_rank": 0, "dp_rank": 1}, False, "x.dp1.tape"),
        ({"tp_rank": 1, "attn_tp_rank": 0, "attn_dp_rank": 1}, False, "x.dp1.tape"),
        ({"tp_rank": 0, "attn_tp_rank": 0, "pp_rank": 1}, False, "x.pp1.tape"),
        ({"tp_rank": 0, "attn_tp_rank": 0, "attn_cp_rank": 0, "pp_rank": 0}, False, "x.tape"),
        ({}, False, None),
    ],
)
def test_ranks(scheduler, monkeypatch, place, ranks, everyone, tape):
    monkeypatch.delattr(Scheduler, "tp_rank")
    ranks_in(place, scheduler, monkeypatch, **ranks)
    if everyone:
        monkeypatch.setenv("STEPTAPE_ALL_RANKS", "1")
    scheduler.run_batch(batch_of("EXTEND", [Request("a", 2)], [2], [0]))
    close(scheduler)
    found = [path.name for path in scheduler.tape.parent.iterdir()]
    assert found == ([] if tape is None else [tape])
    if tape is not None:
        assert f"tensor {ranks['tp_rank']}" in notes_of(scheduler.tape.with_name(tape))["ranks"]


@pytest.mark.parametrize("place", ["arguments", "context"])
def test_graph_modes(scheduler, monkeypatch, place):
    config = types.SimpleNamespace(
        decode=types.SimpleNamespace(backend="breakable"),
        prefill=types.SimpleNamespace(backend="full"),
    )
    if place == "context":
        context = types.ModuleType("sglang.srt.runtime_context")
        graph = types.SimpleNamespace(cuda_graph_config=config)
        context.get_exec = lambda: types.SimpleNamespace(graph=graph)
        monkeypatch.setitem(sys.modules, context.__name__, context)
    else:
        arguments = {**vars(Scheduler.server_args), "cuda_graph_config": config}
        scheduler.server_args = types.SimpleNamespace(**arguments)
    a = Request("a", 2)
    scheduler.run_batch(batch_of("EXTEND", [a], [2], [0], graph=True))
    scheduler.run_batch(batch_of("DECODE", [a], starts=[2]))
    scheduler.run_batch(batch_of("DECODE", [a], starts=[3], graph=False))
    _, steps = tape_of(scheduler)
    assert [step.graph_mode for step in steps] == ["FULL", "PIECEWISE", "NONE"]


def test_every_step_is_announced_to_launch_capture(scheduler, monkeypatch):
    told = []
    monkeypatch.setattr(_capture, "find_inject_step", lambda: told.append)
    a = Request("a", 2)
    scheduler.run_batch(batch_of("EXTEND", [a], [2], [0]))
    scheduler.run_batch(batch_of("IDLE", []))
    failing = batch_of("DECODE", [a], starts=[2])
    del failing.graph
    with pytest.raises(AttributeError):
        scheduler.run_batch(failing)
    scheduler.run_batch(batch_of("DECODE", [a], starts=[2]))
    _, steps = tape_of(scheduler)
    assert told == [0, -1, 1, -1, 1, -1] and len(steps) == 2


def test_nothing_without_a_recording(monkeypatch):
    monkeypatch.delenv("STEPTAPE_RECORD", raising=False)
    monkeypatch.setitem(sys.modules, "sglang", None)
    sglang_plugin.register()
