# SPDX-License-Identifier: Apache-2.0
"""The SGLang plug-in: entry point `steptape` of the group `sglang.srt.plugins`.

It was never run against a real SGLang: its names come from reading the sources of 2026, and its
tests are made of a stand-in.  It hooks Scheduler.run_batch by SGLang's own hook registry.

What it records: order, query lengths, starts, new and finished requests, graph mode, times.  What
it does not: block tables, as SGLang keeps its page table on the device, and no device is read here.
A tape of it has no KV groups; a replay makes them by the allocator's model.  With speculation the
scheduler does not know the query lengths, so nothing is recorded and the tape says why.
"""

from __future__ import annotations

import contextlib
import os
import sys
import time
import weakref
from typing import Any, Callable, Optional

import numpy as np

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
    result = original(scheduler, *args, **kwargs)
    session.end(result)
    return result


def _first(root: Any, *paths: str) -> Any:
    """The first of several attributes that is there."""
    for path in paths:
        value = get(root, path)
        if value is not None:
            return value
    return None


class Session:
    """The steps of one scheduler on their way to the tape."""

    def __init__(self, scheduler: Any) -> None:
        self.alive = True
        self._scheduler = weakref.proxy(scheduler)
        self._recorder: Optional[Recorder] = None
        self._number: dict[str, int] = {}
        self._next_start: dict[str, int] = {}
        self._request: dict[str, weakref.ref[Any]] = {}
        self._next = 0
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
            mode = batch.forward_mode
            if mode.is_idle() or not batch.reqs:
                return False
            if self._recorder is None and not self._open():
                return False
            self._batch = self._read(batch, mode)
            self._start_ns = time.monotonic_ns()
            return True
        except Exception as error:
            self.turn_off(error)
            return False

    def end(self, result: Any) -> None:
        try:
            if self.alive and self._recorder is not None:
                self._record(result)
        except Exception as error:
            self.turn_off(error)

    def _read(self, batch: Any, mode: Any) -> Any:
        """Lengths and starts, before the scheduler moves on."""
        speculation = getattr(batch, "spec_algorithm", None)
        if speculation is not None and not speculation.is_none():
            raise RuntimeError("with speculation the scheduler does not know its query lengths")
        rows = len(batch.reqs)
        if mode.is_extend():  # MIXED too: its decoding rows have length 1
            query_len = np.array(batch.extend_lens, np.int32)
            start = np.array(batch.prefix_lens, np.int32)
        elif mode.is_decode():
            query_len = np.ones(rows, np.int32)
            start = np.asarray(batch.seq_lens_cpu)[:rows].astype(np.int32) - 1
        else:
            raise RuntimeError(f"forward mode {mode} is not known")
        return list(batch.reqs), query_len, start, mode.is_decode()

    def _record(self, result: Any) -> None:
        requests, query_len, start, decoding = self._batch
        duration_ns = time.monotonic_ns() - self._start_ns
        names = [request.rid for request in requests]
        finished = self._finished(set(names))
        new, prompt_len, replaced = [], [], []
        for request, name, first in zip(requests, names, start.tolist()):
            if name not in self._number:
                self._number[name] = self._next
                self._next += 1
                self._request[name] = weakref.ref(request)
                new.append(self._number[name])
                prompt_len.append(len(request.origin_input_ids))
            elif first < self._next_start[name]:
                replaced.append(self._number[name])  # it was retracted, and begins again
        for name, first, length in zip(names, start.tolist(), query_len.tolist()):
            self._next_start[name] = first + length
        graph = getattr(result, "can_run_cuda_graph", None)
        mode = None
        if graph is not None:
            mode = ("FULL" if decoding else "PIECEWISE") if graph else "NONE"
        assert self._recorder is not None
        recorded = self._recorder.record(
            [self._number[name] for name in names],
            query_len,
            start,
            blocks=[],
            new=new,
            prompt_len=prompt_len,
            finished=finished,
            replaced=replaced or None,
            graph_mode=mode,
            start_ns=self._start_ns,
            duration_ns=duration_ns,
        )
        if not recorded and not self._recorder.stats().recording:
            self.turn_off(self._recorder.stats().message)

    def _finished(self, scheduled: set[str]) -> list[int]:
        gone = []
        for name in self._number:
            if name not in scheduled:
                request = self._request[name]()
                if request is None or request.finished():
                    gone.append(name)
        for name in gone:
            del self._request[name], self._next_start[name]
        return [self._number.pop(name) for name in gone]

    # ---- the recording

    def _open(self) -> bool:
        scheduler = self._scheduler
        tensor = int(_first(scheduler, "tp_rank", "ps.tp_rank") or 0)
        pipeline = int(_first(scheduler, "pp_rank", "ps.pp_rank") or 0)
        data = int(_first(scheduler, "dp_rank", "ps.dp_rank") or 0)
        if not is_recorded(tensor):
            self.alive = False
            return False
        arguments = scheduler.server_args
        overlap = getattr(scheduler, "enable_overlap", None)
        config = getattr(scheduler, "model_config", None)
        architectures = get(config, "hf_config.architectures") or [None]
        self._recorder = Recorder(
            os.environ["STEPTAPE_RECORD"],
            groups=[],
            ring_bytes=ring_bytes(),
            part=part_name(data, pipeline, tensor),
            engine="sglang",
            engine_version=getattr(sys.modules.get("sglang"), "__version__", None),
            runner="ModelRunner",
            device=getattr(arguments, "device", None),
            model=model_name(getattr(arguments, "model_path", None)),
            architecture=architectures[0],
            max_model_len=_first(scheduler, "max_req_len", "model_config.context_len"),
            max_num_seqs=_first(scheduler, "max_running_requests"),
            max_num_batched_tokens=_first(scheduler, "max_prefill_tokens"),
            prefix_caching=not getattr(arguments, "disable_radix_cache", False),
            async_scheduling=None if overlap is None else bool(overlap),
            rank=tensor,
        )
        if self._recorder.message:
            logger.warning("steptape: %s", self._recorder.message)
        self._recorder.note("plugin", f"steptape {__version__}, SGLang")
        self._recorder.note("hooks", TARGET)
        close_at_end(self, self._recorder)
        return True
