# SPDX-License-Identifier: Apache-2.0
"""The SGLang plug-in: entry point `steptape` of the group `sglang.srt.plugins`.

It hooks Scheduler.run_batch by SGLang's own hook registry, which SGLang has since 0.5.12.

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
from dataclasses import dataclass
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
    """A rank: of the scheduler in 0.5.12, of its `ps` after that, of the process since 0.5.22."""
    value = _first(scheduler, name, f"ps.{name}")
    if value is None:
        value = _context(f"get_parallel.{name}")
    return None if value is None else int(value)


def _graph_mode(scheduler: Any, phase: str, default: str) -> str:
    """What a graph of "decode" or "prefill" is; before 0.5.16 there was no choice."""
    config = _context("get_exec.graph.cuda_graph_config")
    if config is None:
        config = _first(scheduler, "server_args.cuda_graph_config")
    return BACKEND_MODE.get(get(config, f"{phase}.backend"), default)


def _retractions(request: Any) -> int:
    return int(getattr(request, "retraction_count", 0))


@dataclass
class Known:
    """A request that is on the tape and has not finished."""

    number: int
    request: weakref.ref[Any]
    retractions: int
    next_start: int = 0
    waiting: bool = False


class Session:
    """The steps of one scheduler on their way to the tape."""

    def __init__(self, scheduler: Any) -> None:
        self.alive = True
        self._scheduler = weakref.proxy(scheduler)
        self._recorder: Optional[Recorder] = None
        self._inject_step: Optional[Callable[[int], int]] = None
        self._known: dict[int, Known] = {}  # by id(): a name is given again when it is free
        self._next = 0
        self._graph: dict[bool, str] = {}
        self._batch: Any = None
        self._start_ns = 0

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
                return False
            if self._recorder is None and not self._open():
                return False
            assert self._recorder is not None
            self._batch = self._read(batch)
            self._start_ns = time.monotonic_ns()
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
            if self.alive and result is not None:
                self._record(result)
        except Exception as error:
            self.turn_off(error)

    def _read(self, batch: Any) -> Any:
        """Lengths and starts, before the scheduler moves on."""
        speculation = getattr(batch, "spec_algorithm", None)
        if speculation is not None and not speculation.is_none():
            raise RuntimeError("with speculation the scheduler does not know its query lengths")
        mode = batch.forward_mode.name
        if mode in ("EXTEND", "MIXED"):  # the decoding rows of MIXED have length 1
            query_len = np.array(batch.extend_lens, np.int32)
            start = np.array(batch.prefix_lens, np.int32)
        elif mode == "DECODE":
            start = np.asarray(batch.seq_lens_cpu).astype(np.int32) - 1
            query_len = np.ones(len(start), np.int32)
        else:
            raise RuntimeError(f"forward mode {mode} is not known")
        if not len(batch.reqs) == len(query_len) == len(start):
            raise RuntimeError(f"{len(start)} rows of {len(batch.reqs)} requests (beams)")
        return list(batch.reqs), query_len, start, mode == "DECODE"

    def _record(self, result: Any) -> None:
        requests, query_len, start, decoding = self._batch
        duration_ns = time.monotonic_ns() - self._start_ns
        finished, preempted = self._left({id(request) for request in requests})
        new: list[int] = []
        prompt_len: list[int] = []
        resumed: list[int] = []
        replaced: list[int] = []
        rows: list[int] = []
        for request, first, length in zip(requests, start.tolist(), query_len.tolist()):
            known = self._known.get(id(request))
            if known is None:
                known = Known(self._next, weakref.ref(request), _retractions(request))
                self._known[id(request)] = known
                self._next += 1
                new.append(known.number)
                prompt_len.append(len(request.origin_input_ids))
            elif known.waiting:
                resumed.append(known.number)
            elif known.next_start != first or known.retractions != _retractions(request):
                replaced.append(known.number)  # it was retracted, and is back at once
            known.waiting, known.retractions = False, _retractions(request)
            known.next_start = first + length
            rows.append(known.number)
        graph = getattr(result, "can_run_cuda_graph", None)
        mode = None
        if graph is not None:
            mode = self._graph[decoding] if graph else "NONE"
        assert self._recorder is not None
        recorded = self._recorder.record(
            rows,
            query_len,
            start,
            blocks=[],
            new=new,
            prompt_len=prompt_len,
            finished=finished,
            preempted=preempted,
            resumed=resumed,
            replaced=replaced or None,
            graph_mode=mode,
            start_ns=self._start_ns,
            duration_ns=duration_ns,
        )
        if not recorded and not self._recorder.stats().recording:
            self.turn_off(self._recorder.stats().message)

    def _left(self, scheduled: set[int]) -> tuple[list[int], list[int]]:
        """The requests that finished, and those that were retracted, since the last step."""
        finished, preempted = [], []
        for key, known in list(self._known.items()):
            request = known.request()
            if request is not None and key in scheduled:
                continue
            if request is None or request.finished():
                finished.append(self._known.pop(key).number)
            elif not known.waiting and known.retractions != _retractions(request):
                known.waiting = True
                preempted.append(known.number)
        return finished, preempted

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
