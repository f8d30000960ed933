# SPDX-License-Identifier: Apache-2.0
"""The SGLang plug-in: entry point `steptape` of the group `sglang.srt.plugins`.

It hooks Scheduler.run_batch by SGLang's own hook registry, which SGLang has since 0.5.11.

What it records: order, query lengths, starts, new, finished, retracted and resumed requests, graph
mode, times.  What it does not: block tables, as SGLang keeps its page table on the device, and no
device is read here.  A tape of it has no KV groups; a replay makes them by the allocator's model.
Where the scheduler does not know what runs (speculation, beams, a prefill that is run layer by
layer, diffusion), nothing is recorded and the tape says why.
"""

from __future__ import annotations

import contextlib
import os
import sys
import time
import weakref
from typing import Any, Callable, Optional

import numpy as np

from steptape import _capture
from steptape._plugin import (
    close_at_end,
    get,
    is_recorded,
    log_stop,
    logger,
    model_name,
    part_name,
    ring_bytes,
)
from steptape._recorder import Recorder
from steptape._version import __version__

TARGET = "sglang.srt.managers.scheduler.Scheduler.run_batch"
SESSION = "_steptape_session"
NO_FORWARD = ("IDLE", "PREBUILT")  # PREBUILT: another engine has computed the prompt
BACKEND_MODE = {"full": "FULL", "breakable": "PIECEWISE", "tc_piecewise": "PIECEWISE"}


def register() -> None:
    """What SGLang calls in every process; without STEPTAPE_RECORD it does nothing."""
    if not os.environ.get("STEPTAPE_RECORD"):
        return
    try:
        from sglang.srt.plugins.hook_registry import HookRegistry, HookType

        HookRegistry.register(TARGET, run_batch, HookType.AROUND)
    except Exception as error:
        logger.warning("steptape: nothing is recorded: %r", error)


def run_batch(original: Callable[..., Any], scheduler: Any, *args: Any, **kwargs: Any) -> Any:
    """Around Scheduler.run_batch(batch, ...): its result and its exceptions pass as they are."""
    session = getattr(scheduler, SESSION, None)
    if session is None:
        session = Session(scheduler)
        setattr(scheduler, SESSION, session)
    batch = args[0] if args else kwargs.get("batch")
    if not session.begin(batch):
        return original(scheduler, *args, **kwargs)
    result = None
    try:
        result = original(scheduler, *args, **kwargs)
    finally:
        session.end(result)
    return result


def _first(root: Any, *paths: str) -> Any:
    """The first of several attributes that is there."""
    for path in paths:
        value = get(root, path)
        if value is not None:
            return value
    return None


def _context(path: str) -> Any:
    """What SGLang keeps for the whole process: "get_parallel.tp_rank"."""
    name, attribute = path.split(".", 1)
    read = getattr(sys.modules.get("sglang.srt.runtime_context"), name, None)
    # A value that nobody has set raises an error of its own kind there.
    with contextlib.suppress(Exception):
        return None if read is None else get(read(), attribute)
    return None


def _rank(scheduler: Any, name: str) -> Optional[int]:
    """A rank: of the scheduler until 0.5.12, its `ps` until 0.5.20, the process since 0.5.21."""
    value = _first(scheduler, name, f"ps.{name}")
    if value is None:
        value = _context(f"get_parallel.{name}")
    return None if value is None else int(value)


def _graph_mode(scheduler: Any, phase: str, default: str) -> str:
    """What a graph of "decode" or "prefill" is; 0.5.13 had no choice yet."""
    config = _context("get_exec.graph.cuda_graph_config")
    if config is None:
        config = _first(scheduler, "server_args.cuda_graph_config")
    return BACKEND_MODE.get(get(config, f"{phase}.backend"), default)


class Known:
    """A request that is on the tape and has not finished."""

    __slots__ = ("number", "request", "retractions", "next_start", "waiting")

    def __init__(self, number: int, request: Any) -> None:
        self.number = number
        self.request = weakref.ref(request)
        self.retractions: int = request.retraction_count
        self.next_start = 0
        self.waiting = False


class Batch:
    """A batch that runs, as the scheduler had it before it moved on."""

    def __init__(self, batch: Any) -> None:
        speculation = getattr(batch, "spec_algorithm", None)
        if speculation is not None and not speculation.is_none():
            raise RuntimeError("with speculation the scheduler does not know its query lengths")
        mode = batch.forward_mode.name
        self.decoding = mode == "DECODE"
        if mode in ("EXTEND", "MIXED"):  # the decoding rows of MIXED have length 1
            self.query_len = np.array(batch.extend_lens, np.int32)
            self.start = np.array(batch.prefix_lens, np.int32)
        elif self.decoding:
            self.start = np.asarray(batch.seq_lens_cpu).astype(np.int32) - 1
            self.query_len = np.ones(len(self.start), np.int32)
        else:
            raise RuntimeError(f"forward mode {mode} is not known")
        self.requests = list(batch.reqs)
        if not len(self.requests) == len(self.query_len) == len(self.start):
            raise RuntimeError(f"{len(self.start)} rows of {len(self.requests)} requests (beams)")
        self.keys = list(map(id, self.requests))
        self.start_ns = time.monotonic_ns()


class Requests:
    """The requests on the tape, and what became of them between two steps."""

    def __init__(self) -> None:
        self._known: dict[int, Known] = {}  # by id(): a name is given again when it is free
        self._next = 0
        self._keys: list[int] = []  # of the last batch, whose rows, and where each goes on
        self._rows: _capture.Int64s = np.zeros(0, np.int64)
        self._ends: _capture.Int32s = np.zeros(0, np.int32)
        self._settled = True

    def take(self, batch: Batch) -> tuple[_capture.Int64s, dict[str, Any]]:
        """The numbers of the batch's rows, and its events as Recorder.record() takes them."""
        events: dict[str, Any] = {}
        if (
            batch.decoding
            and len(self._known) == len(batch.keys)
            and batch.keys == self._keys
            and np.array_equal(batch.start, self._ends)
        ):
            self._settled = False  # the batch of the last step, one token further
        else:
            self._settle()
            events = self._left(set(batch.keys))
            self._rows = np.array(self._arrive(batch, events), np.int64)
            self._keys = batch.keys
        self._ends = batch.start + batch.query_len
        return self._rows, events

    def forget_batch(self) -> None:
        """Others may be where the requests of the last batch were, and nothing of them was seen."""
        self._settle()
        self._keys = []

    def _settle(self) -> None:
        if not self._settled:
            for key, end in zip(self._keys, self._ends.tolist()):
                self._known[key].next_start = end
            self._settled = True

    def _left(self, scheduled: set[int]) -> dict[str, list[int]]:
        """The requests that finished, and those that were retracted, since the last step."""
        finished, preempted = [], []
        for key, known in list(self._known.items()):
            request = known.request()
            if request is not None and key in scheduled:
                continue
            if request is None or request.finished():
                finished.append(self._known.pop(key).number)
            elif not known.waiting and known.retractions != request.retraction_count:
                known.waiting = True
                preempted.append(known.number)
        return {"finished": finished, "preempted": preempted}

    def _arrive(self, batch: Batch, events: dict[str, list[int]]) -> list[int]:
        rows = []
        new, prompt_len, resumed, replaced = [], [], [], []
        starts, lengths = batch.start.tolist(), batch.query_len.tolist()
        for key, request, start, length in zip(batch.keys, batch.requests, starts, lengths):
            known = self._known.get(key)
            if known is None:
                self._known[key] = known = Known(self._next, request)
                self._next += 1
                new.append(known.number)
                prompt_len.append(len(request.origin_input_ids))
            elif known.waiting:
                resumed.append(known.number)
                known.waiting = False
            elif known.next_start != start or known.retractions != request.retraction_count:
                replaced.append(known.number)  # it was retracted, and is back at once
            known.retractions = request.retraction_count
            known.next_start = start + length
            rows.append(known.number)
        events.update(new=new, prompt_len=prompt_len, resumed=resumed)
        if replaced:
            events["replaced"] = replaced
        return rows


class Session:
    """The steps of one scheduler on their way to the tape."""

    def __init__(self, scheduler: Any) -> None:
        self.alive = True
        self._scheduler = weakref.proxy(scheduler)
        self._recorder: Optional[Recorder] = None
        self._inject_step: Optional[Callable[[int], int]] = None
        self._requests = Requests()
        self._graph: dict[bool, str] = {}
        self._batch: Optional[Batch] = None

    def turn_off(self, reason: object) -> None:
        if not self.alive:
            return
        self.alive = False
        text = log_stop(reason)
        with contextlib.suppress(Exception):
            if self._recorder is not None:
                self._recorder.note("stopped", text)

    # ---- a step

    def begin(self, batch: Any) -> bool:
        """True: a batch of requests, which end() will record."""
        if not self.alive:
            return False
        try:
            if not batch.reqs or batch.forward_mode.name in NO_FORWARD:
                self._requests.forget_batch()
                return False
            if self._recorder is None and not self._open():
                return False
            assert self._recorder is not None
            self._batch = Batch(batch)
            if self._inject_step is not None:
                self._inject_step(self._recorder.sequence)
            return True
        except Exception as error:
            self.turn_off(error)
            return False

    def end(self, result: Any) -> None:
        """result: None where run_batch raised, which is the engine's affair."""
        try:
            if self._inject_step is not None:
                self._inject_step(-1)
            batch, self._batch = self._batch, None  # which holds the requests
            if self.alive and batch is not None and result is not None:
                self._record(batch, result)
        except Exception as error:
            self.turn_off(error)

    def _record(self, batch: Batch, result: Any) -> None:
        duration_ns = time.monotonic_ns() - batch.start_ns
        rows, events = self._requests.take(batch)
        graph = getattr(result, "can_run_cuda_graph", None)
        mode = None
        if graph is not None:
            mode = self._graph[batch.decoding] if graph else "NONE"
        assert self._recorder is not None
        recorded = self._recorder.record(
            rows,
            batch.query_len,
            batch.start,
            blocks=[],
            graph_mode=mode,
            start_ns=batch.start_ns,
            duration_ns=duration_ns,
            **events,
        )
        if not recorded and not self._recorder.stats().recording:
            self.turn_off(self._recorder.stats().message)

    # ---- the recording

    def _open(self) -> bool:
        scheduler = self._scheduler
        tensor = _rank(scheduler, "tp_rank")
        if tensor is None:
            raise RuntimeError("the scheduler does not say which rank it is")
        # With attention in data parallel each of its ranks has batches of its own.
        copy = _rank(scheduler, "attn_tp_rank")
        copy = tensor if copy is None else copy or _rank(scheduler, "attn_cp_rank") or 0
        if not is_recorded(copy):
            self.alive = False
            return False
        pipeline = _rank(scheduler, "pp_rank") or 0
        data = _rank(scheduler, "dp_rank") or _rank(scheduler, "attn_dp_rank") or 0
        arguments = scheduler.server_args
        overlap = getattr(scheduler, "enable_overlap", None)
        config = getattr(scheduler, "model_config", None)
        architectures = get(config, "hf_config.architectures") or [None]
        self._recorder = Recorder(
            os.environ["STEPTAPE_RECORD"],
            groups=[],
            ring_bytes=ring_bytes(),
            part=part_name(data, pipeline, tensor if copy else 0),
            engine="sglang",
            engine_version=getattr(sys.modules.get("sglang"), "__version__", None),
            runner="ModelRunner",
            device=getattr(arguments, "device", None),
            model=model_name(getattr(arguments, "model_path", None)),
            architecture=architectures[0],
            max_model_len=_first(scheduler, "model_config.context_len", "max_req_len"),
            max_num_seqs=_first(scheduler, "max_running_requests"),
            max_num_batched_tokens=_first(scheduler, "chunked_prefill_size", "max_prefill_tokens"),
            prefix_caching=not _first(
                scheduler, "disable_radix_cache", "server_args.disable_radix_cache"
            ),
            async_scheduling=None if overlap is None else bool(overlap),
            rank=tensor,
        )
        if self._recorder.message:
            logger.warning("steptape: %s", self._recorder.message)
        self._inject_step = _capture.find_inject_step()
        for phase, default in (("decode", "FULL"), ("prefill", "PIECEWISE")):
            self._graph[phase == "decode"] = _graph_mode(scheduler, phase, default)
        self._recorder.note("ranks", f"data {data}, pipeline {pipeline}, tensor {tensor}")
        self._recorder.note("plugin", f"steptape {__version__}, SGLang")
        self._recorder.note("hooks", TARGET)
        close_at_end(self, self._recorder)
        return True
